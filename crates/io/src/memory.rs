//! Two ports connected in memory: the wire of tests and benchmarks.
//!
//! Buffers change sides without a copy. The receiver pays for each with an empty one of its own
//! pool, which returns to the sender's, so a one-way stream drains no pool and allocates nothing
//! once warm.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uxfrm_packet::{Batch, PacketBuf, Pool, SizeClass};

use crate::port::{Accepts, Port, Transmitted, wire_packets};

/// One end of a connection in memory.
#[derive(Debug)]
pub struct Memory {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    accepts: Accepts,
}

/// One direction: buffers in flight, and empty ones on their way back.
#[derive(Debug)]
struct Pipe {
    full: VecDeque<PacketBuf>,
    empty: Vec<PacketBuf>,
    room: usize,
}

impl Memory {
    /// Two connected ports; each direction holds up to `room` buffers and refuses more as busy.
    ///
    /// Both accept every kind of buffer and pass it on unchanged.
    #[must_use]
    pub fn pair(room: usize) -> (Self, Self) {
        let there = Arc::new(Mutex::new(Pipe::new(room)));
        let back = Arc::new(Mutex::new(Pipe::new(room)));
        let a = Self {
            incoming: Arc::clone(&back),
            outgoing: Arc::clone(&there),
            accepts: Accepts::ALL,
        };
        let b = Self { incoming: there, outgoing: back, accepts: Accepts::ALL };
        (a, b)
    }

    /// Limits the port to the kinds that `accepts` names, as a device with fewer offloads.
    #[must_use]
    pub fn accepting(mut self, accepts: Accepts) -> Self {
        self.accepts = accepts;
        self
    }

    /// Buffers that wait to be received here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.incoming).full.len()
    }
}

impl Port for Memory {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let mut pipe = lock(&self.incoming);
        let count = pipe.full.len().min(into.room());
        for _ in 0..count {
            let Some(packet) = pipe.full.pop_front() else { break };
            if pipe.empty.len() < pipe.room {
                pipe.empty.push(pool.take(SizeClass::holding(packet.len())));
            }
            into.push(packet);
        }
        Ok(count)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut done = Transmitted::default();
        let mut pipe = lock(&self.outgoing);
        for packet in batch.drain() {
            if !self.accepts.takes(&packet) {
                done.unsupported(&packet);
                pool.give(packet);
            } else if pipe.full.len() == pipe.room {
                done.refused.busy += wire_packets(&packet);
                pool.give(packet);
            } else {
                done.sent(&packet);
                pipe.full.push_back(packet);
                pipe.empty.pop().into_iter().for_each(|empty| pool.give(empty));
            }
        }
        done
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Pipe {
    fn new(room: usize) -> Self {
        Self { full: VecDeque::with_capacity(room), empty: Vec::with_capacity(room), room }
    }
}

/// A panic leaves the pipe consistent, so poisoning is ignored.
fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uxfrm_packet::Segments;

    fn batch(count: u8) -> Batch {
        (0..count).map(|n| PacketBuf::from_slice(&[n; 60])).collect()
    }

    #[test]
    fn packets_arrive_in_order_at_the_other_end_only() {
        let (mut a, mut b) = Memory::pair(8);
        let (mut pool, mut got) = (Pool::new(), Batch::new());
        assert_eq!(a.transmit(&mut batch(3), &mut pool).packets, 3);
        assert_eq!(a.receive(&mut pool, &mut got).unwrap(), 0);
        assert_eq!(b.receive(&mut pool, &mut got).unwrap(), 3);
        assert_eq!(
            got.as_slice().iter().map(|packet| packet.bytes()[0]).collect::<Vec<_>>(),
            [0, 1, 2]
        );
    }

    #[test]
    fn memory_port_counts_full_and_unsupported() {
        let (a, b) = Memory::pair(2);
        let mut a = a.accepting(Accepts::PLAIN);
        let mut pool = Pool::new();
        let mut packets = batch(4);
        packets.as_mut_slice()[0].segments = Segments::Burst { stride: 20 };
        let done = a.transmit(&mut packets, &mut pool);
        assert_eq!((done.packets, done.refused.busy, done.refused.unsupported), (2, 1, 3));
        assert!(packets.is_empty());
        assert_eq!(b.waiting(), 2);
    }

    #[test]
    fn a_one_way_stream_allocates_nothing_once_warm() {
        let (mut a, mut b) = Memory::pair(64);
        let (mut near, mut far, mut got) = (Pool::new(), Pool::new(), Batch::new());
        let mut round = || {
            let mut packets: Batch = (0..32).map(|_| near.take(SizeClass::Packet)).collect();
            let sent = a.transmit(&mut packets, &mut near);
            assert_eq!(sent.packets, 32);
            b.receive(&mut far, &mut got).unwrap();
            far.give_all(&mut got);
            near.stats().allocated + far.stats().allocated
        };
        let warm = (0..4).map(|_| round()).last();
        assert_eq!((0..10).map(|_| round()).last(), warm);
    }
}
