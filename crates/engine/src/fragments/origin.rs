//! By what a fragment came.

use std::net::IpAddr;

use crate::ids::MAX_DEPTH;
use crate::{DeviceId, IfId, Mark, Mode, Reqid, Sa, SaProtocol, Selector, UdpEncap};
use uxfrm_crypto::Transform;

/// The states that a fragment came by, the outermost first, by their turns; 0 for none.
pub(crate) type Turns = [u64; MAX_DEPTH];

/// The states that a fragment came by, the outermost first; none for what came in the clear.
///
/// Only what came by [kin](Kin) is put together: what came in the clear, or by another peer's
/// state, becomes no part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(super) kin: Vec<Kin>,
    /// Which of all kin it were.
    pub(super) turns: Turns,
}

/// All that states have in common of which one takes the other's place: the same peer, for the same
/// policy, and by the same rules for what passes. So a datagram may come astride a rekey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kin {
    /// Its turn where nothing says which states belong together: no reqid, or a peer that may be anybody.
    alone: Option<u64>,
    reqid: Reqid,
    ends: (IpAddr, IpAddr),
    protocol: SaProtocol,
    mode: Mode,
    /// With the peer's port: several may be behind one address.
    encap: Option<UdpEncap>,
    selector: Option<Selector>,
    if_id: IfId,
    mark: Mark,
    output_mark: Mark,
    flags: u8,
    device: Option<DeviceId>,
    /// What keeps others from adding to it.
    transform: Transform,
    has_window: bool,
}

impl Kin {
    fn of(sa: &Sa) -> Self {
        let config = sa.config();
        let is_anybody =
            sa.source().is_unspecified() || config.encap.is_some_and(|encap| encap.spreads_flows());
        Self {
            alone: (sa.reqid() == Reqid(0) || is_anybody).then(|| sa.turn()),
            reqid: sa.reqid(),
            ends: (sa.source(), sa.id().destination),
            protocol: sa.id().protocol,
            mode: config.mode,
            encap: config.encap,
            selector: config.selector,
            if_id: config.if_id,
            mark: config.mark,
            output_mark: config.output_mark,
            flags: config.flags.bits(),
            device: sa.packet_device(),
            transform: config.transform,
            has_window: config.window > 0,
        }
    }
}

#[cfg(test)]
impl Kin {
    /// That of a state that no other takes the place of.
    pub(super) fn alone(turn: u64) -> Self {
        let nowhere = IpAddr::from([0; 4]);
        Self {
            alone: Some(turn),
            reqid: Reqid(0),
            ends: (nowhere, nowhere),
            protocol: SaProtocol::Esp,
            mode: Mode::Tunnel,
            encap: None,
            selector: None,
            if_id: IfId(0),
            mark: Mark::default(),
            output_mark: Mark::default(),
            flags: 0,
            device: None,
            transform: Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap(),
            has_window: false,
        }
    }
}

impl<'a> FromIterator<&'a Sa> for Origin {
    fn from_iter<T: IntoIterator<Item = &'a Sa>>(states: T) -> Self {
        let mut origin = Self::default();
        for (turn, sa) in origin.turns.iter_mut().zip(states) {
            *turn = sa.turn();
            origin.kin.push(Kin::of(sa));
        }
        origin
    }
}
