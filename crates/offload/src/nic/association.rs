//! A state as a device has it: keys, numbers, window and counts of its own.

use std::sync::Arc;

use uxfrm_crypto::{Backend, Iv, OpenJob, SaKey, SealJob, SeqHigh};
use uxfrm_engine::{
    Direction, DropReason, Encapsulation, Handle, Limits, Moment, Offload, OffloadKind, Position,
    Sa, SaConfig, SaId, SaWords,
};

use super::{FunctionId, edge::Edge};
use crate::{Errno, Refusal, StateCounts};

/// One state on a device.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) sa: Arc<Sa>,
    pub(super) handle: Handle,
    pub(super) kind: OffloadKind,
    pub(super) direction: Direction,
    pub(super) function: FunctionId,
    /// Its place in the device's table, the lowest that was free.
    pub(super) slot: usize,
    pub(super) standing: Standing,
    /// Kind *packet*, sending: what goes around packets.
    pub(super) encapsulation: Option<Encapsulation>,
    /// Kind *crypto*, extended numbers: the latest number that the stack told of.
    pub(super) head: u64,
    /// Kind *packet*, receiving: up to where.
    pub(super) edge: Edge,
    /// Whether it was told that numbers have ended.
    pub(super) ended: bool,
}

/// Whether packets go through a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not yet: it has its place, and nobody has said how far it is.
    Waiting,
    /// They do.
    Live,
    /// Deleted, not yet freed: what was on its way still leaves, nothing comes in, and its counts can be read.
    Deleted,
    /// Deleted, and goes on elsewhere: nothing leaves either.
    Closed,
}

impl Standing {
    /// Whether it has a place in the table.
    pub(super) const fn is_held(self) -> bool {
        match self {
            Self::Waiting | Self::Live => true,
            Self::Deleted | Self::Closed => false,
        }
    }
}

impl Association {
    /// The device's own copy of a state that its driver took.
    ///
    /// # Errors
    /// `EINVAL` for keys that are not the algorithm's, or a tunnel without a source.
    pub(super) fn new(
        config: &SaConfig,
        offload: &Offload,
        backend: Backend,
        now: Moment,
    ) -> Result<Self, Refusal> {
        let keys = &config.transform;
        SaKey::verify(&keys.transform, &keys.encryption_key, &keys.authentication_key, backend)
            .map_err(|_| Refusal::new(Errno::Invalid))?;
        let mut words = SaWords::of(config, backend);
        if offload.kind == OffloadKind::Crypto {
            words.limits = Limits::default();
        }
        let sa = Sa::new(config, Arc::new(words), now);
        let sends = offload.direction == Direction::Out;
        let encapsulation = sends.then(|| Encapsulation::new(&sa, HOP_LIMIT));
        // Kind *crypto* can do without: then nothing is cut for it.
        let encapsulation = match (offload.kind, encapsulation) {
            (OffloadKind::Packet, encapsulation) => encapsulation.transpose(),
            (OffloadKind::Crypto, encapsulation) => Ok(encapsulation.and_then(Result::ok)),
        };
        Ok(Self {
            head: if sends { config.replay.sent } else { config.replay.received },
            encapsulation: encapsulation.map_err(|_| Refusal::new(Errno::Invalid))?,
            sa,
            handle: Handle(0),
            kind: offload.kind,
            direction: offload.direction,
            function: FunctionId::PHYSICAL,
            slot: 0,
            standing: Standing::Waiting,
            edge: Edge::default(),
            ended: false,
        })
    }

    /// Goes on from there.
    pub(super) fn go_on_from(&mut self, position: &Position) {
        self.sa.go_on_from(position);
        let head = match self.direction {
            Direction::Out => position.sent,
            Direction::In | Direction::Forward => position.received,
        };
        self.head = self.head.max(head);
    }

    /// Other limits, another encapsulation: in kind *crypto* both are the engine's.
    pub(super) fn update(&mut self, state: &SaConfig) {
        if self.kind == OffloadKind::Crypto {
            return;
        }
        let sa = self.sa.updated(state);
        // What could be put around packets can be with other ports.
        if self.encapsulation.is_some()
            && let Ok(around) = Encapsulation::new(&sa, HOP_LIMIT)
        {
            self.encapsulation = Some(around);
        }
        self.sa = sa;
    }

    pub(super) fn id(&self) -> SaId {
        self.sa.id()
    }

    /// Whether packets go through it in a direction and kind. What was on its way when a sending state was deleted still leaves by it, so that a
    /// rekey loses nothing.
    pub(super) fn serves(&self, direction: Direction, kind: OffloadKind) -> bool {
        let open = match self.standing {
            Standing::Live => true,
            Standing::Deleted => direction == Direction::Out,
            Standing::Waiting | Standing::Closed => false,
        };
        open && self.direction == direction && self.kind == kind
    }

    /// The upper half of a number, where it counts.
    pub(super) fn high(&self, number: u64) -> SeqHigh {
        if self.sa.extended() { SeqHigh::Esn(upper_half(number)) } else { SeqHigh::None }
    }

    /// The number that a received packet of kind *crypto* must have: the nearest to what the stack told of.
    pub(super) fn nearest(&self, low: u32) -> u64 {
        if !self.sa.extended() {
            return low.into();
        }
        let same = self.head & !u64::from(u32::MAX) | u64::from(low);
        let around = [Some(same), same.checked_sub(1 << 32), same.checked_add(1 << 32)];
        let distance = |number: &u64| number.abs_diff(self.head);
        around.into_iter().flatten().min_by_key(distance).unwrap_or(same)
    }

    pub(super) fn seal_job<'a>(&'a self, sequence: u64, esp: &'a mut [u8]) -> SealJob<'a> {
        let iv = Iv::Counter(self.sa.iv_counter(sequence));
        SealJob::in_place(self.sa.key(), self.high(sequence), iv, esp)
    }

    pub(super) fn open_job<'a>(&'a self, number: u64, esp: &'a mut [u8]) -> OpenJob<'a> {
        OpenJob::in_place(self.sa.key(), self.high(number), esp)
    }

    /// The next number, and whether with it the lower half began again.
    pub(super) fn next_number(&self) -> Result<(u64, bool), DropReason> {
        let number = self.sa.sequence().take(1)?.first;
        Ok((number, number & u64::from(u32::MAX) == 0))
    }

    pub(super) fn counts(&self) -> StateCounts {
        let usage = self.sa.usage();
        StateCounts {
            packets: usage.packets(),
            bytes: usage.bytes(),
            sent: self.sa.sequence().last(),
            received: self.sa.highest_received(),
            wanted: self.edge.wanted(),
            failures: usage.failures(),
            first_used: usage.first_used(),
            last_used: usage.last_used(),
        }
    }
}

/// Of outer headers.
const HOP_LIMIT: u8 = 64;

pub(super) const fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
