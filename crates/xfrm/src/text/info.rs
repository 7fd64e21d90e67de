//! Counts and defaults (`ip/xfrm_state.c: print_sadinfo`, `ip/xfrm_policy.c: print_spdinfo`).

use uxfrm_netlink::client::{RawDefaults, RawHashInfo, RawSpdInfo, RawThreshold, ReplyAttributes};

use super::WipedText;
use crate::names;

/// `XFRMA_SAD_CNT`, `_HINFO`
pub(crate) const SAD_COUNT: u16 = 1;
pub(crate) const SAD_HASH: u16 = 2;
/// `XFRMA_SPD_INFO`, `_HINFO`, `_IPV4_HTHRESH`, `_IPV6_HTHRESH`
pub(crate) const SPD_COUNTS: u16 = 1;
pub(crate) const SPD_HASH: u16 = 2;
pub(crate) const THRESHOLDS: [(u16, &str); 2] = [(3, "IPv4"), (4, "IPv6")];

impl WipedText<'_> {
    pub(super) fn sad_info(&mut self, found: &ReplyAttributes<'_>) {
        let Some(count) = found.read::<u32>(SAD_COUNT) else {
            return self.raw("BAD SAD info returned\n");
        };
        self.put(format_args!("\t SAD count {count}"));
        if self.shows_statistics()
            && let Some(hash) = found.read::<RawHashInfo>(SAD_HASH)
        {
            let (buckets, most) = (hash.buckets, hash.most);
            self.put(format_args!(" (buckets count {buckets} Max {most})"));
        }
        self.raw("\n");
    }

    pub(super) fn spd_info(&mut self, found: &ReplyAttributes<'_>) {
        self.raw("\t SPD");
        if let Some(raw) = found.read::<RawSpdInfo>(SPD_COUNTS) {
            let RawSpdInfo { inbound, outbound, forward, .. } = raw;
            self.put(format_args!(" IN  {inbound} OUT {outbound} FWD {forward}"));
            if self.shows_statistics() {
                let (inbound, outbound) = (raw.socket_inbound, raw.socket_outbound);
                let forward = raw.socket_forward;
                self.put(format_args!(" (Sock: IN {inbound} OUT {outbound} FWD {forward})"));
            }
            self.end_line();
        }
        if self.style.statistics > 1 {
            self.spd_hashes(found);
        }
        self.end_answer();
    }

    fn spd_hashes(&mut self, found: &ReplyAttributes<'_>) {
        if let Some(RawHashInfo { buckets, most }) = found.read(SPD_HASH) {
            self.put(format_args!("\t SPD buckets: count {buckets} Max {most}"));
            self.end_line();
        }
        for (number, family) in THRESHOLDS {
            if let Some(RawThreshold { local, remote }) = found.read(number) {
                let words =
                    format_args!("\t SPD {family} thresholds: local {local} remote {remote}");
                self.put(words);
                self.end_line();
            }
        }
    }

    pub(super) fn defaults(&mut self, defaults: &RawDefaults) {
        self.put(format_args!(
            "Default policies:\n in:  {}\n fwd: {}\n out: {}\n",
            names::default_action(defaults.inbound),
            names::default_action(defaults.forward),
            names::default_action(defaults.outbound),
        ));
    }
}
