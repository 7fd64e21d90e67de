//! What ESP costs: the largest packet that one state takes, as a function of the path's MTU.

use uxfrm_packet::{esp, ipv4, ipv6, udp};

use super::Sa;
use crate::{Family, Mode, pmtu};

/// Bytes that a state adds to a packet: all that is needed to know how large a packet may be before
/// it. States of one cipher, mode and encapsulation have the same.
///
/// Mirrors `net/xfrm/xfrm_state.c: __xfrm_state_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EspOverhead {
    /// New headers, IV and ICV.
    around: u16,
    /// The packet's own IP header, where it stays outside ESP.
    outside: u16,
    /// What ESP's payload is padded to.
    align: u16,
}

impl EspOverhead {
    /// The largest packet that fits into `mtu` bytes behind this state.
    #[must_use]
    pub const fn inner_mtu(self, mtu: usize) -> usize {
        let Self { around, outside, align } = self;
        pmtu::inner_mtu(mtu, around as usize, outside as usize, align as usize)
    }
}

impl Sa {
    /// What its packets gain; `None` in a mode that carries no packets.
    #[must_use]
    pub fn overhead(&self) -> Option<EspOverhead> {
        let (config, transform) = (self.config(), self.transform());
        let ip = match Family::of(self.id().destination) {
            Family::V4 => ipv4::HEADER_LEN,
            Family::V6 => ipv6::HEADER_LEN,
        };
        let (outer, outside) = match config.mode {
            Mode::Transport => (0, ip),
            Mode::Tunnel => (ip, 0),
            Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => return None,
        };
        let in_udp = config
            .encap
            .as_ref()
            .map_or(0, |encap| udp::HEADER_LEN + encap.kind.properties().marker.len());
        let esp = esp::HEADER_LEN + transform.iv_len() + transform.icv_len();
        let narrow = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
        Some(EspOverhead {
            around: narrow(outer + in_udp + esp),
            outside: narrow(outside),
            align: narrow(transform.block_len().max(4)),
        })
    }
}
