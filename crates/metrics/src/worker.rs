//! Workers and their ports: processor time, packets, what the kernel did not take.
//!
//! `rate(uxfrm_worker_cpu_seconds_total)` is a worker's busy share, and that by the rate of packets
//! the time a packet takes.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::workers::{PortStatus, StreamStatus, WorkerReport, WorkerStatus};

use crate::{
    catalogue::{self, Metric},
    distinct::distinct,
    label::{self, Labels},
    sample::{self, Value},
};

/// Workers.
const WORKERS: usize = 256;
/// Ports of all workers.
const PORTS: usize = 1024;
/// Nanoseconds of a second.
const NANOSECONDS: f64 = 1e9;

/// Writes them.
pub(crate) fn write(encoder: &mut DescriptorEncoder<'_>, report: &WorkerReport) -> fmt::Result {
    let workers: Vec<_> =
        distinct(report.workers.iter(), |worker| worker.worker).take(WORKERS).collect();
    write_loops(encoder, &workers)?;
    write_packets(encoder, &workers)?;
    write_ports(encoder, &workers)
}

fn write_loops(encoder: &mut DescriptorEncoder<'_>, workers: &[&WorkerStatus]) -> fmt::Result {
    type Figure = fn(&WorkerStatus) -> Value;
    let figures: [(Metric, Figure); 4] = [
        (catalogue::WORKER_CPU, |worker| (worker.cpu_ns as f64 / NANOSECONDS).into()),
        (catalogue::WORKER_TURNS, |worker| worker.turns.into()),
        (catalogue::WORKER_BATCHES, |worker| worker.batches.into()),
        (catalogue::WORKER_WAITING, |worker| worker.waiting.into()),
    ];
    for (metric, figure) in figures {
        let series = workers.iter().map(|worker| (vec![number(worker)], figure(worker)));
        sample::write(encoder, &metric, series)?;
    }
    Ok(())
}

fn write_packets(encoder: &mut DescriptorEncoder<'_>, workers: &[&WorkerStatus]) -> fmt::Result {
    type Count = fn(&StreamStatus) -> u64;
    let counts: [(Metric, Count); 5] = [
        (catalogue::WORKER_RECEIVED_PACKETS, |stream| stream.received),
        (catalogue::WORKER_RECEIVED_BYTES, |stream| stream.received_bytes),
        (catalogue::WORKER_SENT_PACKETS, |stream| stream.sent),
        (catalogue::WORKER_SENT_BYTES, |stream| stream.sent_bytes),
        (catalogue::WORKER_DROPPED_PACKETS, |stream| stream.dropped),
    ];
    for (metric, count) in counts {
        let series = workers.iter().flat_map(|worker| {
            [("out", &worker.outbound), ("in", &worker.inbound)].map(|(direction, stream)| {
                let labels: Labels<'_> = vec![number(worker), ("direction", direction.into())];
                (labels, count(stream).into())
            })
        });
        sample::write(encoder, &metric, series)?;
    }
    Ok(())
}

fn write_ports(encoder: &mut DescriptorEncoder<'_>, workers: &[&WorkerStatus]) -> fmt::Result {
    type Count = fn(&PortStatus) -> u64;
    let counts: [(Metric, Count); 4] = [
        (catalogue::PORT_RECEIVED_BUFFERS, |port| port.received),
        (catalogue::PORT_SENT_PACKETS, |port| port.sent),
        (catalogue::PORT_SENT_BYTES, |port| port.sent_bytes),
        (catalogue::PORT_REFUSED_PACKETS, |port| port.refused),
    ];
    let ports = workers.iter().flat_map(|worker| {
        let labels = |port: &PortStatus| {
            vec![number(worker), ("port", label::value(&port.name).into_owned().into())]
        };
        worker.ports.iter().map(move |port| (labels(port), port))
    });
    let ports: Vec<(Labels<'_>, _)> =
        distinct(ports, |(labels, _)| labels.clone()).take(PORTS).collect();
    for (metric, count) in counts {
        let series = ports.iter().map(|(labels, port)| (labels.as_slice(), count(port).into()));
        sample::write(encoder, &metric, series)?;
    }
    Ok(())
}

fn number(worker: &WorkerStatus) -> (&'static str, std::borrow::Cow<'static, str>) {
    ("worker", worker.worker.to_string().into())
}
