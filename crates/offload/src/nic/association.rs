//! An SA on a device, with its own keys, sequence numbers, window and counts.

use std::sync::Arc;

use uxfrm_crypto::{Backend, Iv, OpenJob, SaKey, SealJob, SeqHigh};
use uxfrm_engine::{
    Direction, DropReason, EspEncapsulator, Handle, LifetimeLimits, Moment, Offload, OffloadKind,
    Sa, SaConfig, SaId, SaProgress, SharedSaConfig,
};

use super::{FunctionId, receive_limit::ReceiveLimit};
use crate::{Errno, Refusal, StateCounts};

/// One state on a device.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) sa: Arc<Sa>,
    pub(super) handle: Handle,
    pub(super) kind: OffloadKind,
    pub(super) direction: Direction,
    pub(super) function: FunctionId,
    /// Index in the device's table, the lowest free one.
    pub(super) slot: usize,
    pub(super) phase: SaPhase,
    /// Kind *packet*, sending: encapsulation.
    pub(super) encapsulation: Option<EspEncapsulator>,
    /// Kind *crypto*, ESN: the last number that the stack reported.
    pub(super) head: u64,
    /// Kind *packet*, receiving: the reservation.
    pub(super) receive_limit: ReceiveLimit,
    /// Whether the end of its numbers was reported.
    pub(super) ended: bool,
}

/// Life cycle of an SA on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SaPhase {
    /// It has its table entry but no position yet.
    Waiting,
    /// It carries packets.
    Live,
    /// Deleted, not yet freed: packets in flight still leave, nothing is received, and its counts
    /// are readable.
    Deleted,
    /// Deleted, and moved elsewhere: nothing leaves either.
    Closed,
}

impl SaPhase {
    /// Whether it has a table entry.
    pub(super) const fn is_held(self) -> bool {
        match self {
            Self::Waiting | Self::Live => true,
            Self::Deleted | Self::Closed => false,
        }
    }
}

impl Association {
    /// The device's copy of an SA that its driver accepted.
    ///
    /// # Errors
    /// `EINVAL` for keys that do not fit the algorithm, or a tunnel without a source.
    pub(super) fn new(
        config: &SaConfig,
        offload: &Offload,
        backend: Backend,
        now: Moment,
    ) -> Result<Self, Refusal> {
        let keys = &config.transform;
        SaKey::verify(&keys.transform, &keys.encryption_key, &keys.authentication_key, backend)
            .map_err(|_| Refusal::new(Errno::Invalid))?;
        let mut words = SharedSaConfig::of(config, backend);
        if offload.kind == OffloadKind::Crypto {
            words.limits = LifetimeLimits::default();
        }
        let sa = Sa::new(config, Arc::new(words), now);
        let sends = offload.direction == Direction::Out;
        let encapsulation = sends.then(|| EspEncapsulator::new(&sa, HOP_LIMIT));
        // Kind *crypto* does not need it: then it segments nothing.
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
            phase: SaPhase::Waiting,
            receive_limit: ReceiveLimit::default(),
            ended: false,
        })
    }

    /// Continues at a position.
    pub(super) fn go_on_from(&mut self, position: &SaProgress) {
        self.sa.continue_from(position);
        let head = match self.direction {
            Direction::Out => position.sent,
            Direction::In | Direction::Forward => position.received,
        };
        self.head = self.head.max(head);
    }

    /// New limits or encapsulation; in kind *crypto* both are the engine's.
    pub(super) fn update(&mut self, state: &SaConfig) {
        if self.kind == OffloadKind::Crypto {
            return;
        }
        let sa = self.sa.updated(state);
        // An encapsulation that was possible stays so with other ports.
        if self.encapsulation.is_some()
            && let Ok(around) = EspEncapsulator::new(&sa, HOP_LIMIT)
        {
            self.encapsulation = Some(around);
        }
        self.sa = sa;
    }

    pub(super) fn id(&self) -> SaId {
        self.sa.id()
    }

    /// Whether it carries packets of a direction and kind. Packets in flight when a sending SA was
    /// deleted still leave, so that a rekey loses nothing.
    pub(super) fn serves(&self, direction: Direction, kind: OffloadKind) -> bool {
        let open = match self.phase {
            SaPhase::Live => true,
            SaPhase::Deleted => direction == Direction::Out,
            SaPhase::Waiting | SaPhase::Closed => false,
        };
        open && self.direction == direction && self.kind == kind
    }

    /// The upper half of a number, with ESN.
    pub(super) fn high(&self, number: u64) -> SeqHigh {
        if self.sa.extended() { SeqHigh::Esn(upper_half(number)) } else { SeqHigh::None }
    }

    /// Kind *crypto*: the number nearest to the last that the stack reported.
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

    /// The next number, and whether its lower half wrapped.
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
            wanted: self.receive_limit.wanted(),
            failures: usage.failures(),
            first_used: usage.first_used(),
            last_used: usage.last_used(),
        }
    }
}

/// TTL of outer headers.
const HOP_LIMIT: u8 = 64;

pub(super) const fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
