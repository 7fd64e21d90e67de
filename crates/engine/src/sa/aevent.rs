//! Aevents: when listeners are told of an SA's counters (`XFRM_MSG_NEWAE`):
//! `net/xfrm/xfrm_replay.c: xfrm_replay_notify`.
//!
//! The kernel checks with every packet. Here the netlink server checks now and then, so packets pay
//! nothing, and a listener hears of an SA at most once per check.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use super::Sa;
use crate::Moment;

/// Thresholds of one SA, and what was reported last. One thread reports; others may read.
#[derive(Debug)]
pub struct AeventState {
    packets: AtomicU32,
    time: AtomicU32,
    told_sent: AtomicU64,
    told_received: AtomicU64,
    told_at: AtomicU64,
    mapped_port: AtomicU32,
    mapped_at: AtomicU64,
}

/// How far counters may exceed what was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AeventThresholds {
    /// Sequence numbers (`XFRMA_REPLAY_THRESH`); 0: only time decides.
    pub packets: u32,
    /// Tenths of a second (`XFRMA_ETIMER_THRESH`); 0: only packets decide.
    pub time: u32,
}

/// No time yet.
const NEVER: u64 = u64::MAX;

/// Cause of an aevent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AeventCause {
    /// Enough packets (`XFRM_AE_CR`).
    Packets,
    /// Some packets, long enough ago (`XFRM_AE_CE`).
    Time,
}

/// Defaults of `net.core.xfrm_aevent_rseqth` and `xfrm_aevent_etime`.
impl Default for AeventThresholds {
    fn default() -> Self {
        Self { packets: 2, time: 10 }
    }
}

impl AeventState {
    /// For an SA whose counters all listeners know.
    pub(crate) fn new(sent: u64, received: u64, now: Moment) -> Self {
        let AeventThresholds { packets, time } = AeventThresholds::default();
        Self {
            packets: packets.into(),
            time: time.into(),
            told_sent: sent.into(),
            told_received: received.into(),
            told_at: now.0.into(),
            mapped_port: 0.into(),
            mapped_at: NEVER.into(),
        }
    }

    /// The thresholds.
    #[must_use]
    pub fn thresholds(&self) -> AeventThresholds {
        AeventThresholds {
            packets: self.packets.load(Ordering::Relaxed),
            time: self.time.load(Ordering::Relaxed),
        }
    }

    /// Sets the thresholds.
    pub(crate) fn set_thresholds(&self, thresholds: AeventThresholds) {
        self.packets.store(thresholds.packets, Ordering::Relaxed);
        self.time.store(thresholds.time, Ordering::Relaxed);
    }

    /// Whether an aevent about these numbers is due. If so, they count as reported.
    #[must_use]
    pub fn due(&self, sent: u64, received: u64, now: Moment) -> Option<AeventCause> {
        let told = |told: &AtomicU64| told.load(Ordering::Relaxed);
        let ahead = sent.saturating_sub(told(&self.told_sent));
        let ahead = ahead.max(received.saturating_sub(told(&self.told_received)));
        let AeventThresholds { packets, time } = self.thresholds();
        let pause = Duration::from_millis(100) * time;
        let cause = match ahead {
            0 => return None,
            _ if packets != 0 && ahead >= u64::from(packets) => AeventCause::Packets,
            _ if time != 0 && now >= Moment(told(&self.told_at)).plus(pause) => AeventCause::Time,
            _ => return None,
        };
        self.tell(sent, received, now);
        Some(cause)
    }

    /// Whether a mapping event is due for packets from another address or from `port`
    /// (`XFRM_MSG_MAPPING`; `net/xfrm/xfrm_state.c: km_new_mapping`). If so, it counts as reported.
    /// `age` is the SA's [`mapping_age`](crate::SaConfig::mapping_age): without it every packet
    /// causes an event.
    #[must_use]
    pub fn mapping_due(&self, port: u16, age: Option<NonZeroU32>, now: Moment) -> bool {
        let Some(age) = age else { return true };
        let (told_port, told_at) =
            (self.mapped_port.load(Ordering::Relaxed), self.mapped_at.load(Ordering::Relaxed));
        let age = Duration::from_secs(age.get().into());
        let due =
            told_at == NEVER || told_port != u32::from(port) || now.since(Moment(told_at)) > age;
        if due {
            self.mapped_port.store(port.into(), Ordering::Relaxed);
            self.mapped_at.store(now.0, Ordering::Relaxed);
        }
        due
    }

    /// All listeners know these numbers.
    pub(crate) fn tell(&self, sent: u64, received: u64, now: Moment) {
        self.told_sent.store(sent, Ordering::Relaxed);
        self.told_received.store(received, Ordering::Relaxed);
        self.told_at.store(now.0, Ordering::Relaxed);
    }
}

impl Sa {
    /// Whether an aevent is due now. If so, the counters count as reported.
    #[must_use]
    pub fn due(&self, now: Moment) -> Option<AeventCause> {
        let (sent, received) = (self.sequence().last(), self.highest_received());
        if (sent, received) == (0, 0) {
            return None;
        }
        self.live().aevents.due(sent, received, now)
    }

    /// Whether a mapping event is due for packets from `port` of a new source:
    /// [`AeventState::mapping_due`].
    #[must_use]
    pub fn mapping_due(&self, port: u16, now: Moment) -> bool {
        self.live().aevents.mapping_due(port, self.shared.mapping_age, now)
    }

    /// Aevent thresholds.
    #[must_use]
    pub fn thresholds(&self) -> AeventThresholds {
        self.live_if_used().map_or_else(AeventThresholds::default, |live| live.aevents.thresholds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aevent_is_due_by_packets_or_time() {
        let at = Moment::from_secs;
        let aevents = AeventState::new(5, 0, at(100));
        assert_eq!(aevents.due(5, 0, at(1000)), None, "nothing new, however long ago");
        assert_eq!(aevents.due(6, 0, at(100)), None);
        assert_eq!(aevents.due(7, 0, at(100)), Some(AeventCause::Packets));
        assert_eq!(aevents.due(7, 0, at(100)), None, "told once");
        assert_eq!(aevents.due(7, 1, at(100)), None);
        assert_eq!(aevents.due(7, 1, at(101)), Some(AeventCause::Time));
        aevents.set_thresholds(AeventThresholds { packets: 0, time: 0 });
        assert_eq!(aevents.due(700, 1, at(1000)), None, "switched off");
        aevents.set_thresholds(AeventThresholds { packets: 0, time: 1 });
        assert_eq!(aevents.due(700, 1, at(1000)), Some(AeventCause::Time));
    }

    #[test]
    fn mapping_event_is_due_once_per_age_or_new_port() {
        let at = Moment::from_secs;
        let (aevents, age) = (AeventState::new(0, 0, at(0)), NonZeroU32::new(10));
        let due = [(4500, 1), (4500, 11), (4500, 12), (4501, 13), (4500, 13), (4500, 23)]
            .map(|(port, second)| aevents.mapping_due(port, age, at(second)));
        assert_eq!(due, [true, false, true, true, true, false]);
        assert!(aevents.mapping_due(4500, None, at(23)), "without an age every packet tells");
    }
}
