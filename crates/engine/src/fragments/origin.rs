//! The SAs that a fragment came by.

use std::net::IpAddr;

use crate::ids::MAX_DEPTH;
use crate::{DeviceId, IfId, Mark, Mode, Reqid, Sa, SaProtocol, SaSubject, Selector, UdpEncap};
use uxfrm_crypto::Transform;

/// Insertion sequence numbers of the SAs that a fragment came by, outermost first; 0 for none.
pub(crate) type SaSeqs = [u64; MAX_DEPTH];

/// The SAs that a fragment came by, outermost first; none for plain fragments.
///
/// Only fragments of the same [family](SaFamily) are reassembled: neither plain fragments nor those
/// of another peer's SA mix with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FragmentOrigin {
    pub(super) kin: Vec<SaFamily>,
    /// Which SAs of the family.
    pub(super) insertion_seqs: SaSeqs,
    /// The innermost of them.
    pub(super) last: Option<SaSubject>,
}

/// Properties that an SA shares with its successor after a rekey: the same peer, policy and filter
/// rules. So a datagram may span a rekey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SaFamily {
    /// The SA's own sequence number if it has no family: no reqid, or a wildcard peer.
    alone: Option<u64>,
    reqid: Reqid,
    ends: (IpAddr, IpAddr),
    protocol: SaProtocol,
    mode: Mode,
    /// Includes the peer's port: several peers may share one address.
    encap: Option<UdpEncap>,
    selector: Option<Selector>,
    if_id: IfId,
    mark: Mark,
    output_mark: Mark,
    flags: u8,
    device: Option<DeviceId>,
    /// Strength of the authentication.
    transform: Transform,
    has_window: bool,
}

impl SaFamily {
    fn of(sa: &Sa) -> Self {
        let config = sa.config();
        let is_anybody =
            sa.source().is_unspecified() || config.encap.is_some_and(|encap| encap.spreads_flows());
        Self {
            alone: (sa.reqid() == Reqid(0) || is_anybody).then(|| sa.insertion_seq()),
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
impl SaFamily {
    /// An SA without a family.
    pub(super) fn alone(insertion_seq: u64) -> Self {
        let nowhere = IpAddr::from([0; 4]);
        Self {
            alone: Some(insertion_seq),
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

impl<'a> FromIterator<&'a Sa> for FragmentOrigin {
    fn from_iter<T: IntoIterator<Item = &'a Sa>>(states: T) -> Self {
        let mut origin = Self::default();
        for (insertion_seq, sa) in origin.insertion_seqs.iter_mut().zip(states) {
            *insertion_seq = sa.insertion_seq();
            origin.kin.push(SaFamily::of(sa));
            origin.last = Some(sa.into());
        }
        origin
    }
}
