//! A state's numbers, counts and times for the next process: its netlink message lacks them, or has
//! seconds only.

use std::{num::NonZeroU32, sync::Arc};

use serde::{Deserialize, Serialize};
use uxfrm_engine::{
    AeventThresholds, Counters, Database, Error, IvPrefix, Lifecycle, Moment, Sa, SaFailures,
    SaHistory, UsageCounters,
};

use crate::reconcile::sequences::Reserved;

/// One state's numbers, counts and times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SaProgress {
    sent: u64,
    received: u64,
    /// Bit N of all words: the number N below the highest was received.
    window: Vec<u64>,
    reserved_to_send: u64,
    reserved_to_receive: u64,
    bytes: u64,
    packets: u64,
    added: u64,
    first_used: Option<u64>,
    last_used: Option<u64>,
    /// Whether its soft limit was told.
    dying: bool,
    /// Below the window, received before, with a wrong ICV.
    failures: [u32; 3],
    /// Upper half of the numbers, and the random bits.
    iv_prefixes: Vec<(u32, u32)>,
    /// Packets and tenths of seconds from which on counters are told.
    thresholds: [u32; 2],
}

/// Whether it has been told that a state passed its soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SoftLimit {
    /// As the state says.
    Settled,
    /// The state says so, and nobody has heard: the next packet is to pass it anew.
    Untold,
}

impl SaProgress {
    pub(super) fn of(sa: &Sa, limit: SoftLimit) -> Self {
        let (usage, received) = (sa.usage(), sa.highest_received());
        let SaFailures { replay_window, replay, integrity_failed } = usage.failures();
        let AeventThresholds { packets, time } = sa.thresholds();
        let sent = sa.sequence().last();
        let upper = upper_half(sent);
        let uppers = [Some(0), Some(upper), upper.checked_add(1)];
        let mut prefixes: Vec<_> = uppers
            .into_iter()
            .flatten()
            .filter_map(|upper| sa.iv_prefix(upper))
            .filter_map(|prefix| Some((prefix.upper(), prefix.bits()?.get())))
            .collect();
        prefixes.dedup();
        let is_dying = sa.lifecycle() > Lifecycle::Valid;
        Self {
            sent,
            received,
            window: bits(received, &sa.received_in_window()),
            reserved_to_send: sa.sequence().reserved(),
            reserved_to_receive: sa.reserved_to_receive(),
            bytes: usage.bytes(),
            packets: usage.packets(),
            added: sa.added().0,
            first_used: usage.first_used().map(|moment| moment.0),
            last_used: usage.last_used().map(|moment| moment.0),
            dying: is_dying && limit == SoftLimit::Settled,
            failures: [replay_window, replay, integrity_failed],
            iv_prefixes: prefixes,
            thresholds: [packets, time],
        }
    }

    /// What its numbers may be without the journal being written.
    pub(super) const fn reserved(&self) -> Reserved {
        Reserved { sent: self.reserved_to_send, received: self.reserved_to_receive }
    }

    pub(super) const fn added(&self) -> Moment {
        Moment(self.added)
    }

    /// Has a state go on from there.
    ///
    /// # Errors
    /// Where the state was further already.
    pub(super) fn resume(
        &self,
        sa: &Arc<Sa>,
        database: &mut Database,
        now: Moment,
    ) -> Result<(), Error> {
        for (upper, bits) in &self.iv_prefixes {
            let bits = NonZeroU32::new(*bits);
            bits.into_iter().for_each(|bits| sa.set_iv_prefix(IvPrefix::new(*upper, bits)));
        }
        let counters = Counters {
            sent: Some(self.sent),
            received: Some(self.received),
            window: numbers(self.received, &self.window),
            usage: Some(UsageCounters {
                bytes: self.bytes,
                packets: self.packets,
                added: self.added(),
                first_used: self.first_used.map(Moment),
            }),
            packets_threshold: Some(self.thresholds[0]),
            time_threshold: Some(self.thresholds[1]),
        };
        let (id, mark) = (sa.id(), sa.config().mark);
        database.apply(now, |change| change.set_counters(id, mark, counters))?;
        let [replay_window, replay, integrity_failed] = self.failures;
        let failures = SaFailures { replay_window, replay, integrity_failed };
        let lifecycle = if self.dying { Lifecycle::Dying } else { Lifecycle::Valid };
        let last_used = self.last_used.map(Moment);
        database.set_history(sa, SaHistory { failures, last_used, lifecycle });
        Ok(())
    }
}

const fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}

fn bits(highest: u64, received: &[u64]) -> Vec<u64> {
    let mut words = Vec::new();
    // While workers run some may have come since the highest was asked for: they are in the final
    // numbers.
    for below in received.iter().filter_map(|number| highest.checked_sub(*number)) {
        let below = usize::try_from(below).unwrap_or(usize::MAX);
        let word = below / 64;
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        words[word] |= 1 << (below % 64);
    }
    words
}

fn numbers(highest: u64, words: &[u64]) -> Vec<u64> {
    let bits = words.iter().zip(0_u64..).flat_map(|(word, number)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| number * 64 + bit)
    });
    bits.filter_map(|below| highest.checked_sub(below)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_window_handed_over_is_unchanged() {
        for received in [vec![], vec![9], vec![1, 5, 9], vec![4_000, 4_063, 4_064, 4_095]] {
            let highest = received.last().copied().unwrap_or(0);
            let mut passed = numbers(highest, &bits(highest, &received));
            passed.sort_unstable();
            assert_eq!(passed, received);
        }
    }

    /// Workers run on while a state is looked at.
    #[test]
    fn replay_window_waits_for_final_numbers() {
        assert_eq!(numbers(9, &bits(9, &[5, 9, 10, u64::MAX])), [9, 5]);
    }
}
