//! States (`ip/ipxfrm.c: xfrm_state_info_print`, `ip/xfrm_state.c: __do_xfrm_state_print`).

use uxfrm_netlink::{AttributeType, client::RawSa};
use zerocopy::IntoBytes as _;

use super::{
    WipedText,
    attributes::OffloadDirection,
    selector::{Outer, ShownSpi},
};
use crate::{
    answer::{Change, State},
    names::{EXTRA_FLAGS, STATE_FLAGS},
};

const PREFIX: &str = "\t";

impl WipedText<'_> {
    pub(super) fn state(&mut self, state: &State<'_>) {
        self.change(state.change);
        self.outer(&outer(&state.info), "");
        self.window_and_flags(state);
        let RawSa { family, selector, limits, usage, .. } = &*state.info;
        self.attributes(&state.found, *family, PREFIX, OffloadDirection::Own);
        if selector.as_bytes().iter().any(|byte| *byte != 0) {
            self.selector(selector, *family, "\tsel ");
        }
        if self.shows_statistics() {
            self.lifetimes(limits, usage, PREFIX);
            self.failures(&state.info);
        }
        self.security_context(&state.found);
        self.hard(state.change);
        self.end_answer();
    }

    /// What happened, before what it happened to.
    pub(super) fn change(&mut self, change: Change) {
        self.raw(match change {
            Change::Here => "",
            Change::Updated => "Updated ",
            Change::Deleted => "Deleted ",
            Change::Expired { .. } => "Expired ",
        });
    }

    /// Which limit it was.
    pub(super) fn hard(&mut self, change: Change) {
        if let Change::Expired { hard } = change {
            self.put(format_args!("\thard {hard}"));
            self.end_line();
        }
    }

    fn window_and_flags(&mut self, state: &State<'_>) {
        let RawSa { replay_window, seq, flags, .. } = *state.info;
        self.put(format_args!("{PREFIX}replay-window {replay_window} "));
        if self.shows_statistics() {
            self.put(format_args!("seq 0x{seq:08} "));
        }
        if self.shows_statistics() || flags != 0 {
            self.raw("flag ");
            self.flags(flags.into(), STATE_FLAGS);
        }
        if self.shows_statistics() {
            if let Some(extra) = state.found.read::<u32>(AttributeType::SaExtraFlags) {
                self.raw("extra_flag ");
                self.flags(extra, EXTRA_FLAGS);
            }
            self.put(format_args!(" (0x{flags:08b})"));
        }
        self.end_line();
    }

    /// `xfrm_stats_print`
    fn failures(&mut self, info: &RawSa) {
        self.put(format_args!("{PREFIX}stats:"));
        self.end_line();
        self.put(format_args!(
            "{PREFIX}  replay-window {} replay {} failed {}",
            info.replay_window_failures, info.replay_failures, info.integrity_failures
        ));
        self.end_line();
    }
}

fn outer(info: &RawSa) -> Outer {
    let is_ipsec = matches!(info.id.protocol, 50 | 51 | 108);
    Outer {
        source: info.source,
        id: info.id,
        mode: info.mode,
        reqid: info.reqid,
        family: info.family,
        spi: if is_ipsec { ShownSpi::Always } else { ShownSpi::IfAny },
    }
}
