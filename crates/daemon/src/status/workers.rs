//! The document about workers, their ports and offload devices.

use std::sync::PoisonError;

use uxfrm_engine::TrafficCounters;
use uxfrm_offload::Nics;
use uxfrm_runtime::{PortTraffic, WorkerFigures};
use uxfrm_status::workers::{
    OffloadDeviceStatus, PortStatus, StreamStatus, WorkerReport, WorkerStatus,
};

use super::{
    answer::{age_seconds, unix_seconds},
    board::Posted,
};

/// What workers published last, and what devices count.
pub(super) fn report(posted: &Posted) -> WorkerReport {
    let figures = (0..).zip(&posted.post.figures);
    WorkerReport {
        at: unix_seconds(),
        age_seconds: age_seconds(posted),
        workers: figures.map(|(number, shared)| worker(number, shared.read())).collect(),
        devices: devices(&posted.post.nics),
    }
}

fn worker(number: u32, figures: WorkerFigures) -> WorkerStatus {
    let WorkerFigures { at, cpu, time_stamp, turns, waiting, outward, inward, ports } = figures;
    WorkerStatus {
        worker: number,
        measured_ns: at,
        cpu_ns: cpu,
        time_stamp: (time_stamp != 0).then_some(time_stamp),
        turns,
        batches: ports.iter().map(|(_, traffic)| traffic.batches).sum(),
        waiting,
        outbound: stream(outward),
        inbound: stream(inward),
        ports: ports.into_iter().map(port).collect(),
    }
}

fn port((name, traffic): (String, PortTraffic)) -> PortStatus {
    let PortTraffic { batches, received, sent, sent_bytes, refused } = traffic;
    PortStatus { name, batches, received, sent, sent_bytes, refused }
}

const fn stream(traffic: TrafficCounters) -> StreamStatus {
    let TrafficCounters { received, received_bytes, sent, sent_bytes, dropped, .. } = traffic;
    StreamStatus { received, received_bytes, sent, sent_bytes, dropped }
}

fn devices(nics: &Nics) -> Vec<OffloadDeviceStatus> {
    let named = nics.names().into_iter().filter_map(|(name, _)| Some((nics.nic(&name)?, name)));
    let devices = named.map(|((nic, function), name)| {
        // As long as the copy takes; the device's thread waits no longer than for its controller.
        let nic = nic.lock().unwrap_or_else(PoisonError::into_inner);
        let (states_in, states_out) = nic.states_of(function);
        OffloadDeviceStatus {
            name,
            states_in: states_in as u64,
            states_out: states_out as u64,
            outbound: stream(nic.outward()),
            inbound: stream(nic.inward()),
        }
    });
    devices.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uxfrm_runtime::SharedWorkerFigures;

    use super::{super::board::Post, *};

    #[test]
    fn each_worker_is_told_with_its_ports() {
        let ports = || ["tun".to_owned(), "esp4".to_owned()];
        let figures = vec![Arc::new(SharedWorkerFigures::new(ports())), Arc::default()];
        let mut posted = Posted::default();
        posted.post = Post { figures, ..Post::default() };
        let report = report(&posted);
        let names: Vec<_> = report.workers[0].ports.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["tun", "esp4"]);
        assert_eq!((report.workers[1].worker, report.workers[1].ports.len()), (1, 0));
        assert_eq!(report.workers[0].time_stamp, None, "nothing is published yet");
        assert!(report.devices.is_empty());
    }

    #[test]
    fn batches_are_those_of_all_ports() {
        let port = |batches| PortTraffic { batches, ..PortTraffic::default() };
        let ports = vec![("tun".to_owned(), port(3)), ("esp4".to_owned(), port(4))];
        let outward = TrafficCounters { received: 9, sent: 7, dropped: 2, ..Default::default() };
        let figures = WorkerFigures { ports, outward, time_stamp: 5, ..WorkerFigures::default() };
        let told = worker(3, figures);
        assert_eq!((told.worker, told.batches, told.time_stamp), (3, 7, Some(5)));
        assert_eq!((told.outbound.received, told.outbound.dropped, told.packets()), (9, 2, 9));
    }
}
