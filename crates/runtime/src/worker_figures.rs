//! What a worker has done, for other threads: published about once a second, off the data path.
//!
//! A loop counts batches with plain additions, as its engine counts packets. Once a second its
//! housekeeping writes all counts to shared memory, with the thread's processor time: that is the
//! only system call. So nothing is done per packet, and nothing that another core has to see.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use uxfrm_engine::TrafficCounters;
use uxfrm_io::{Transmitted, clock};

/// What a port of a worker carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// Times that something was received.
    pub batches: u64,
    /// Buffers received: a packet each, or several that the kernel has joined.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that the kernel did not take.
    pub refused: u64,
}

/// What a worker did, as of its latest publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerFigures {
    /// When it was published, in nanoseconds since the machine started.
    pub at: u64,
    /// Processor time of the thread in nanoseconds, in the kernel too. It begins anew where the
    /// loop is taken to another thread.
    pub cpu: u64,
    /// The time-stamp counter at that time; 0 on machines without.
    pub time_stamp: u64,
    /// Rounds of the loop.
    pub turns: u64,
    /// Buffers that wait for SAs or fragments.
    pub waiting: u64,
    /// Packets from the host.
    pub outward: TrafficCounters,
    /// Packets from the network.
    pub inward: TrafficCounters,
    /// The ports by name.
    pub ports: Vec<(String, PortTraffic)>,
}

/// [`WorkerFigures`] in memory that threads share: one writes, any may read. Who reads while it is
/// written may find figures of two publications.
#[derive(Debug, Default)]
pub struct SharedWorkerFigures {
    own: [AtomicU64; 5],
    outward: [AtomicU64; 8],
    inward: [AtomicU64; 8],
    ports: Box<[(String, [AtomicU64; 5])]>,
}

/// A worker's counts of its own, and where it publishes them.
#[derive(Debug)]
pub(crate) struct FiguresWriter {
    shared: Arc<SharedWorkerFigures>,
    /// Rounds of the loop so far.
    pub(crate) turns: u64,
}

impl SharedWorkerFigures {
    /// Figures of a worker with these ports, all zero.
    #[must_use]
    pub fn new(ports: impl IntoIterator<Item = String>) -> Self {
        let ports = ports.into_iter().map(|name| (name, Default::default())).collect();
        let (own, outward, inward) = Default::default();
        Self { own, outward, inward, ports }
    }

    /// The latest figures.
    #[must_use]
    pub fn read(&self) -> WorkerFigures {
        let [at, cpu, time_stamp, turns, waiting] = load(&self.own);
        let ports = self.ports.iter();
        let ports = ports.map(|(name, counts)| (name.clone(), port(load(counts))));
        WorkerFigures {
            at,
            cpu,
            time_stamp,
            turns,
            waiting,
            outward: traffic(load(&self.outward)),
            inward: traffic(load(&self.inward)),
            ports: ports.collect(),
        }
    }
}

impl FiguresWriter {
    /// For a worker with these ports.
    pub(crate) fn new(ports: impl IntoIterator<Item = String>) -> Self {
        Self { shared: Arc::new(SharedWorkerFigures::new(ports)), turns: 0 }
    }

    /// Where it publishes.
    pub(crate) fn shared(&self) -> Arc<SharedWorkerFigures> {
        Arc::clone(&self.shared)
    }

    /// Publishes what the calling thread's worker did: packets from the host and from the network,
    /// buffers that wait, and what the ports carried in the order of their names.
    #[cold]
    pub(crate) fn publish(
        &self,
        (outward, inward): (TrafficCounters, TrafficCounters),
        waiting: usize,
        ports: impl IntoIterator<Item = PortTraffic>,
    ) {
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        let time_stamp = clock::time_stamp_counter().unwrap_or_default();
        let own = [
            clock::boot_nanoseconds(),
            clock::thread_nanoseconds(),
            time_stamp,
            self.turns,
            waiting,
        ];
        store(&self.shared.own, own);
        store(&self.shared.outward, words(outward));
        store(&self.shared.inward, words(inward));
        for ((_, shared), traffic) in self.shared.ports.iter().zip(ports) {
            let PortTraffic { batches, received, sent, sent_bytes, refused } = traffic;
            store(shared, [batches, received, sent, sent_bytes, refused]);
        }
    }
}

impl PortTraffic {
    /// Counts what one call received.
    #[inline]
    pub(crate) fn count_received(&mut self, buffers: usize) {
        if buffers > 0 {
            self.batches += 1;
            self.received += buffers as u64;
        }
    }

    /// Counts what one call sent.
    #[inline]
    pub(crate) fn count_sent(&mut self, sent: &Transmitted) {
        self.sent += sent.packets;
        self.sent_bytes += sent.bytes;
        self.refused += sent.refused.packets();
    }
}

fn load<const N: usize>(shared: &[AtomicU64; N]) -> [u64; N] {
    shared.each_ref().map(|word| word.load(Ordering::Relaxed))
}

fn store<const N: usize>(shared: &[AtomicU64; N], words: [u64; N]) {
    for (shared, word) in shared.iter().zip(words) {
        shared.store(word, Ordering::Relaxed);
    }
}

const fn port([batches, received, sent, sent_bytes, refused]: [u64; 5]) -> PortTraffic {
    PortTraffic { batches, received, sent, sent_bytes, refused }
}

fn words(traffic: TrafficCounters) -> [u64; 8] {
    let TrafficCounters { received, sent, received_bytes, sent_bytes, .. } = traffic;
    let TrafficCounters { dropped, absorbed, held, originated, .. } = traffic;
    [received, sent, received_bytes, sent_bytes, dropped, absorbed, held, originated]
}

const fn traffic(words: [u64; 8]) -> TrafficCounters {
    let [received, sent, received_bytes, sent_bytes, dropped, absorbed, held, originated] = words;
    TrafficCounters {
        received,
        sent,
        received_bytes,
        sent_bytes,
        dropped,
        absorbed,
        held,
        originated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read_by_another_thread() {
        let mut writer = FiguresWriter::new(["tun".to_owned(), "esp4".to_owned()]);
        let shared = writer.shared();
        assert_eq!(shared.read().at, 0, "nothing is published yet");
        writer.turns = 3;
        let mut tun = PortTraffic::default();
        tun.count_received(0);
        tun.count_received(7);
        let outward = TrafficCounters {
            received: 1,
            sent: 2,
            received_bytes: 3,
            sent_bytes: 4,
            dropped: 5,
            absorbed: 6,
            held: 7,
            originated: 8,
        };
        let inward = TrafficCounters { received: 9, ..TrafficCounters::default() };
        writer.publish((outward, inward), 4, [tun, PortTraffic::default()]);
        let figures = std::thread::spawn(move || shared.read()).join().unwrap();
        assert_eq!((figures.turns, figures.waiting), (3, 4));
        assert_eq!((figures.outward, figures.inward), (outward, inward));
        assert!(figures.at > 0 && figures.cpu > 0);
        assert_eq!((tun.batches, tun.received), (1, 7));
        let ports = [("tun".to_owned(), tun), ("esp4".to_owned(), PortTraffic::default())];
        assert_eq!(figures.ports, ports);
    }
}
