//! What the gateway told at an instant, and what grew since the instant before.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use uxfrm_control_client::stat;
use uxfrm_status::{
    counters::CounterReport,
    drops::{DropQuery, DropReport, DropStatus},
    gateway::{GatewayStatus, PeerFilter, StatusQuery},
    tunnel::{StateStatus, TrafficStatus, TunnelStatus},
    workers::{WorkerReport, WorkerStatus},
};

/// Tunnels of a sample at the most: the worst first. A filter by address asks for others.
const TUNNELS: u32 = 1000;

/// What the gateway told.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// When, on this side.
    pub(crate) at: Instant,
    pub(crate) status: GatewayStatus,
    pub(crate) counters: CounterReport,
    /// `None` of a gateway that does not know the question.
    pub(crate) workers: Option<WorkerReport>,
    /// The latest record of each drop reason.
    pub(crate) dropped: BTreeMap<String, DropStatus>,
}

/// Reads samples, and remembers what need not be asked for again.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    next: Option<u64>,
    dropped: BTreeMap<String, DropStatus>,
    process: Option<(u32, u64)>,
}

/// Two samples of one process, and what lies between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval<'s> {
    pub(crate) now: &'s Sample,
    pub(crate) before: Option<&'s Sample>,
}

/// Packets and bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) packets: f64,
    pub(crate) bytes: f64,
}

impl Sampler {
    /// Asks the gateway; with `peer` only for tunnels with that.
    ///
    /// # Errors
    /// When none answers.
    pub(crate) fn read(&mut self, peer: Option<PeerFilter>) -> anyhow::Result<Sample> {
        let status = stat::read_status(&StatusQuery {
            peer,
            limit: Some(TUNNELS),
            ..StatusQuery::default()
        })?;
        let counters = stat::read_counters()?;
        let workers = stat::read_workers().ok();
        let process = (status.gateway.pid, status.gateway.started);
        if self.process.replace(process) != Some(process) {
            (self.next, self.dropped) = (None, BTreeMap::new());
        }
        let query = DropQuery { from: self.next, ..DropQuery::default() };
        self.remember(stat::read_drops(&query)?);
        let dropped = self.dropped.clone();
        Ok(Sample { at: Instant::now(), status, counters, workers, dropped })
    }

    fn remember(&mut self, report: DropReport) {
        self.next = Some(report.next);
        for record in report.records {
            self.dropped.insert(record.reason.clone(), record);
        }
    }
}

impl Sample {
    /// Takes over from an `earlier` sample the workers that have published nothing up to `now`:
    /// they do it about once a second, and may be asked more often.
    pub(crate) fn keep_workers(&mut self, now: &Self, earlier: &Self) {
        let (Some(own), Some(now), Some(earlier)) =
            (&mut self.workers, &now.workers, &earlier.workers)
        else {
            return;
        };
        for worker in &mut own.workers {
            let is_it = |other: &&WorkerStatus| other.worker == worker.worker;
            let is_unchanged = now
                .workers
                .iter()
                .find(is_it)
                .is_some_and(|other| other.measured_ns == worker.measured_ns);
            if let Some(was) = earlier.workers.iter().find(is_it).filter(|_| is_unchanged) {
                *worker = was.clone();
            }
        }
    }

    /// Whether both are of one process, whose counters go on.
    pub(crate) fn continues(&self, before: &Self) -> bool {
        let process = |sample: &Self| (sample.status.gateway.pid, sample.status.gateway.started);
        process(self) == process(before)
    }
}

impl<'s> Interval<'s> {
    /// How long it is; `None` of a single sample.
    fn seconds(&self) -> Option<f64> {
        let span = self.now.at.saturating_duration_since(self.before?.at);
        (span > Duration::ZERO).then_some(span.as_secs_f64())
    }

    /// What `count` grew by in a second; `None` where it began anew.
    pub(crate) fn rate(&self, count: impl Fn(&Sample) -> Option<u64>) -> Option<f64> {
        let before = self.before.and_then(&count)?;
        self.per_second(count(self.now)?.checked_sub(before)?)
    }

    /// What so many in this interval are in a second.
    pub(crate) fn per_second(&self, count: u64) -> Option<f64> {
        per(count, self.seconds()?)
    }

    /// What a tunnel received and sent in a second since it was `before`.
    pub(crate) fn between(&self, before: &TunnelStatus, now: &TunnelStatus) -> Option<[Rate; 2]> {
        let seconds = self.seconds()?;
        let ways: [(&str, Total); 2] =
            [("in", |tunnel| tunnel.received), ("out", |tunnel| tunnel.sent)];
        let mut rates = [Rate::default(); 2];
        for (rate, (way, total)) in rates.iter_mut().zip(ways) {
            let (packets, bytes) = match has_all_states(before) && has_all_states(now) {
                true => grown_by_state(before, now, way),
                false => grown(total(before), total(now))?,
            };
            *rate = Rate { packets: per(packets, seconds)?, bytes: per(bytes, seconds)? };
        }
        Some(rates)
    }

    /// Each worker with what it was, if both were published, and at different times.
    pub(crate) fn workers(
        &self,
    ) -> impl Iterator<Item = (&'s WorkerStatus, Option<&'s WorkerStatus>)> {
        let before = self.before.and_then(|sample| sample.workers.as_ref());
        let now = self.now.workers.iter().flat_map(|report| &report.workers);
        now.map(move |worker| {
            let was = before.and_then(|report| {
                report.workers.iter().find(|other| other.worker == worker.worker)
            });
            (worker, was.filter(|was| was.measured_ns != 0 && worker.measured_ns > was.measured_ns))
        })
    }
}

type Total = fn(&TunnelStatus) -> TrafficStatus;

/// What a worker did between two of its publications.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerRates {
    /// Seconds between them.
    pub(crate) seconds: f64,
    /// Packets from the host in a second, and their bytes.
    pub(crate) outbound: Rate,
    /// Packets to the host in a second, and their bytes.
    pub(crate) inbound: Rate,
    /// Batches in a second.
    pub(crate) batches: f64,
    /// Packets of a batch.
    pub(crate) packets_per_batch: Option<f64>,
    /// Share of the time in which it had a processor, from 0 to 1.
    pub(crate) busy: Option<f64>,
    /// Nanoseconds of processor time for a packet.
    pub(crate) ns_per_packet: Option<f64>,
    /// Cycles of the time-stamp counter for a packet.
    pub(crate) cycles_per_packet: Option<f64>,
    /// Packets dropped in a second.
    pub(crate) dropped: f64,
}

impl WorkerRates {
    /// Of a worker that was `before`; `None` where its counts began anew.
    pub(crate) fn between(before: &WorkerStatus, now: &WorkerStatus) -> Option<Self> {
        let span = now.measured_ns.checked_sub(before.measured_ns).filter(|span| *span > 0)?;
        let seconds = span as f64 / 1e9;
        let rate = |count: fn(&WorkerStatus) -> u64| {
            Some(count(now).checked_sub(count(before))? as f64 / seconds)
        };
        let packets = rate(WorkerStatus::packets)?;
        let batches = rate(|worker| worker.batches)?;
        // Another thread's time begins anew.
        let busy = now.cpu_ns.checked_sub(before.cpu_ns).map(|cpu| cpu as f64 / span as f64);
        let ns_per_packet = busy.filter(|_| packets > 0.0).map(|busy| busy * 1e9 / packets);
        let per_ns = now
            .time_stamp
            .zip(before.time_stamp)
            .and_then(|(now, before)| Some(now.checked_sub(before)? as f64 / span as f64));
        Some(Self {
            seconds,
            outbound: Rate {
                packets: rate(|worker| worker.outbound.received)?,
                bytes: rate(|worker| worker.outbound.received_bytes)?,
            },
            inbound: Rate {
                packets: rate(|worker| worker.inbound.sent)?,
                bytes: rate(|worker| worker.inbound.sent_bytes)?,
            },
            batches,
            packets_per_batch: (batches > 0.0).then(|| packets / batches),
            busy: busy.map(|busy| busy.min(1.0)),
            ns_per_packet,
            cycles_per_packet: ns_per_packet.zip(per_ns).map(|(ns, cycles)| ns * cycles),
            dropped: rate(|worker| worker.outbound.dropped + worker.inbound.dropped)?,
        })
    }
}

/// Whether both are the same tunnel at different times.
pub(crate) fn is_same(one: &TunnelStatus, other: &TunnelStatus) -> bool {
    let name = |tunnel: &TunnelStatus| (tunnel.local, tunnel.remote, tunnel.reqid, tunnel.if_id);
    name(one) == name(other) && one.mode == other.mode
}

fn has_all_states(tunnel: &TunnelStatus) -> bool {
    tunnel.states_total == tunnel.states.len() as u64
}

/// What the present states carried since: a state that came has carried all it has; one that went
/// takes with it what it carried last.
fn grown_by_state(before: &TunnelStatus, now: &TunnelStatus, way: &str) -> (u64, u64) {
    let is_of_way = |state: &&StateStatus| state.direction.as_deref() == Some(way);
    let (mut packets, mut bytes) = (0, 0);
    for state in now.states.iter().filter(is_of_way) {
        let is_it = |other: &&StateStatus| {
            (&other.spi, other.destination) == (&state.spi, state.destination)
        };
        let was = before.states.iter().find(is_it).map(|was| was.traffic).unwrap_or_default();
        let (more_packets, more_bytes) =
            grown(was, state.traffic).unwrap_or((state.traffic.packets, state.traffic.bytes));
        packets += more_packets;
        bytes += more_bytes;
    }
    (packets, bytes)
}

fn grown(before: TrafficStatus, now: TrafficStatus) -> Option<(u64, u64)> {
    Some((now.packets.checked_sub(before.packets)?, now.bytes.checked_sub(before.bytes)?))
}

fn per(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn rates_are_of_what_grew() {
        let (before, now) = fixture::pair();
        let interval = Interval { now: &now, before: Some(&before) };
        let [received, sent] =
            interval.between(&before.status.tunnels[0], &now.status.tunnels[0]).unwrap();
        assert_eq!((received.packets, received.bytes), (1000.0, 1_250_000.0));
        assert_eq!(sent.packets, 500.0);
        assert_eq!(interval.rate(|sample| sample.counters.reasons.of("in_no_state")), Some(2.0));
        assert_eq!(interval.rate(|sample| sample.counters.reasons.of("no such")), None);
        let single = Interval { now: &now, before: None };
        assert_eq!(single.between(&before.status.tunnels[0], &now.status.tunnels[0]), None);
    }

    #[test]
    fn a_state_that_comes_or_goes_makes_no_leap() {
        let (before, mut now) = fixture::pair();
        let tunnel = &mut now.status.tunnels[0];
        // Rekeyed: the old states are gone, the new ones have carried 10 and 20 packets.
        tunnel.states =
            vec![fixture::state("in", "0x00000030", 10), fixture::state("out", "0x00000031", 20)];
        tunnel.received.packets = 10;
        tunnel.sent.packets = 20;
        let interval = Interval { now: &now, before: Some(&before) };
        let [received, sent] =
            interval.between(&before.status.tunnels[0], &now.status.tunnels[0]).unwrap();
        assert_eq!((received.packets, sent.packets), (5.0, 10.0));
    }

    #[test]
    fn cycles_are_processor_time_by_packets() {
        let (before, now) = fixture::pair();
        let interval = Interval { now: &now, before: Some(&before) };
        let (worker, was) = interval.workers().next().unwrap();
        let rates = WorkerRates::between(was.unwrap(), worker).unwrap();
        // A second of two with a processor of 3 GHz, for 3,000 packets in 100 batches.
        assert_eq!((rates.seconds, rates.busy), (2.0, Some(0.5)));
        assert_eq!(rates.ns_per_packet, Some(1e9 / 3000.0));
        assert_eq!(rates.cycles_per_packet.map(f64::round), Some(1e6));
        assert_eq!((rates.batches, rates.packets_per_batch), (50.0, Some(30.0)));
        let moved = WorkerStatus { cpu_ns: 1, ..worker.clone() };
        let rates = WorkerRates::between(was.unwrap(), &moved).unwrap();
        assert_eq!((rates.busy, rates.cycles_per_packet), (None, None), "another thread has it");
    }
}
