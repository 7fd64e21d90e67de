//! Samples flows while the cache is bypassed, to tell whether they recur and how much room they
//! need.
//!
//! Sampling has rounds of several lengths; in long ones only some flows are sampled, chosen by
//! fields that are cheap to read. A sample counts as reuse if the flow's next packet comes within
//! the round, so that long rounds detect many flows and short ones detect few flows soon. A scan
//! leaves samples that are never found. Between rounds it rests, as even a glance at each packet
//! costs.

use std::net::IpAddr;

use crate::FlowKey;

/// Sampling state of a bypassed cache.
#[derive(Debug, Default)]
pub(crate) struct ReuseSampler {
    /// By flow hash.
    samples: Box<[Sample]>,
    /// Selects other flows in each round.
    salt: u32,
    /// Flows whose number is above are not sampled: one in 2^`log2_ratio` is.
    limit: u32,
    log2_ratio: u32,
    /// Packets until the round ends, and until the next begins.
    left: usize,
    is_resting: usize,
    /// Rounds so far: every second one has the shortest length, every fourth the next, and so on.
    rounds: u32,
    /// Packets of sampled flows in this block, and those that recurred.
    asked: u32,
    found: u32,
    /// Flows sampled in this round.
    distinct: usize,
}

/// A sampled packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    /// Part of its hash; 0 for none.
    hash: u16,
    /// Epoch of the policies.
    policies: u16,
}

/// Parameters of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SamplerSettings {
    /// Upper limit of flows.
    pub(crate) most: usize,
    /// Percentage of packets that must recur.
    pub(crate) min_reuse: u32,
    /// Length of rests, in rounds.
    pub(crate) rest: usize,
}

const SAMPLES: usize = 8192;
/// Packets of the shortest round, all of which are sampled, and the samples of longer rounds.
const SHORTEST_ROUND: usize = 4096;
/// Each longer round is 2^`ROUND_GROWTH` times as long.
const ROUND_GROWTH: u32 = 3;
/// Sampled packets per judgement.
const JUDGE_AFTER: u32 = 128;

impl ReuseSampler {
    /// Table slots per flow.
    pub(crate) const ROOM: usize = 4;

    /// Starts over, after `rests` packets.
    pub(crate) fn begin(&mut self, is_resting: usize) {
        if self.samples.is_empty() {
            self.samples = vec![Sample::default(); SAMPLES].into();
        }
        self.rounds = 0;
        self.is_resting = is_resting;
        self.prepare(0);
    }

    /// Counts packets; true while resting.
    #[inline]
    pub(crate) fn is_resting(&mut self, packets: usize) -> bool {
        let is_resting = self.is_resting > 0;
        self.is_resting = self.is_resting.saturating_sub(packets);
        is_resting
    }

    /// Whether a flow is sampled.
    #[inline]
    pub(crate) fn is_sampled(&self, flow: &FlowKey) -> bool {
        let ports = u32::from(flow.source_port) << 16 | u32::from(flow.destination_port);
        let ends = fold(flow.source).rotate_left(7) ^ fold(flow.destination);
        (ends ^ ports ^ flow.mark).wrapping_mul(self.salt) <= self.limit
    }

    /// Samples a packet, in an epoch of policies. A sample from an epoch whose verdict is stale
    /// does not count as reuse.
    #[expect(clippy::cast_possible_truncation, reason = "parts of a hash")]
    pub(crate) fn note(&mut self, hash: u64, policies: u16, outdated: impl Fn(u16) -> bool) {
        let note = Sample { hash: (hash >> 32) as u16 | 1, policies };
        let Some(distinct) = self.samples.get_mut(hash as usize % SAMPLES) else { return };
        self.asked += 1;
        self.found += u32::from(distinct.hash == note.hash && !outdated(distinct.policies));
        self.distinct += usize::from(distinct.hash == 0);
        *distinct = note;
    }

    /// Table size, if the cache should be used again. To be called after `packets` packets.
    pub(crate) fn decide_resume(
        &mut self,
        packets: usize,
        sampler_settings: SamplerSettings,
    ) -> Option<usize> {
        let flows = self.distinct << self.log2_ratio;
        let min_reuse = self.asked >= JUDGE_AFTER
            && self.found * 100 >= self.asked * sampler_settings.min_reuse;
        if min_reuse && flows <= sampler_settings.most {
            // So that hardly any flow overflows its line.
            return Some(Self::ROOM * flows);
        }
        if self.asked >= JUDGE_AFTER {
            (self.asked, self.found) = (0, 0);
        }
        self.left = self.left.saturating_sub(packets);
        if self.left == 0 {
            self.is_resting = (SHORTEST_ROUND << self.log2_ratio) * sampler_settings.rest;
            self.rounds = self.rounds.wrapping_add(1);
            // Flows that would fit recur within this many packets, or too rarely.
            let longest =
                (4 * sampler_settings.most / SHORTEST_ROUND).max(1).ilog2() / ROUND_GROWTH;
            self.prepare((self.rounds + 1).trailing_zeros().min(longest));
        }
        None
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.samples)
    }

    fn prepare(&mut self, length: u32) {
        self.samples.fill(Sample::default());
        self.salt = self.salt.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15) | 1;
        self.log2_ratio = ROUND_GROWTH * length;
        self.left = SHORTEST_ROUND << self.log2_ratio;
        self.limit = u32::MAX >> self.log2_ratio;
        (self.asked, self.found, self.distinct) = (0, 0, 0);
    }
}

/// Folds an address to a word.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "all parts are used")]
fn fold(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => v4.to_bits(),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            let halves = (bits >> 64) as u64 ^ bits as u64;
            (halves >> 32) as u32 ^ halves as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use uxfrm_classify::mix;

    const ORDERS: SamplerSettings = SamplerSettings { most: 1 << 20, min_reuse: 60, rest: 0 };

    fn decide_resume(
        flows: u32,
        sampler_settings: SamplerSettings,
        packets: u32,
    ) -> Option<(u32, usize)> {
        report_beside(u32::MAX, flows, sampler_settings, packets)
    }

    /// Number of packets until it resumes, and the table size, for flows in turn and policies that
    /// change every `changes` packets.
    fn report_beside(
        changes: u32,
        flows: u32,
        sampler_settings: SamplerSettings,
        packets: u32,
    ) -> Option<(u32, usize)> {
        let mut sampler = ReuseSampler::default();
        sampler.begin(0);
        (0..packets).find_map(|serial| {
            let [a, b, c, d] = (serial % flows).to_be_bytes();
            let source = IpAddr::from([10 + a, b, c, d]);
            let flow = FlowKey::between(source, IpAddr::from([10, 0, 0, 1]));
            if sampler.is_resting(1) {
                return None;
            }
            if sampler.is_sampled(&flow) {
                let hash = mix(u64::from(serial % flows) ^ 0x1234_5678_9abc, !0x9e37_79b9);
                let epoch = u16::try_from(serial / changes).unwrap_or(0);
                sampler.note(hash, epoch, |since| since < epoch);
            }
            sampler.decide_resume(1, sampler_settings).map(|room| (serial, room))
        })
    }

    #[test]
    fn reuse_sampler_recurring_flows_resume_with_fitting_size() {
        for flows in [100, 1000, 16_384, 200_000] {
            let (packets, room) =
                decide_resume(flows, ORDERS, 8_000_000).expect("they min_reuse again");
            assert!(packets < 20 * flows.max(4096), "{flows} flows after {packets}");
            let flows = flows as usize;
            assert!((2 * flows..8 * flows).contains(&room), "room for {room} of {flows} flows");
        }
    }

    #[test]
    fn reuse_sampler_few_flows_resume_within_one_round() {
        for flows in 1..9 {
            assert!(decide_resume(flows, ORDERS, 5000).is_some(), "{flows}");
        }
    }

    #[test]
    fn reuse_sampler_scan_never_resumes() {
        assert_eq!(decide_resume(u32::MAX, ORDERS, 4_000_000), None);
    }

    #[test]
    fn reuse_sampler_too_many_flows_never_resume() {
        assert_eq!(
            decide_resume(100_000, SamplerSettings { most: 16_384, ..ORDERS }, 4_000_000),
            None
        );
    }

    #[test]
    fn reuse_sampler_flows_stale_on_return_never_resume() {
        for (changes, flows) in [(100, 16_384), (10_000, 16_384), (10_000, 50_000)] {
            assert_eq!(report_beside(changes, flows, ORDERS, 4_000_000), None, "{changes}");
        }
        assert!(report_beside(1000, 16, ORDERS, 10_000).is_some());
    }
}
