//! Why nothing comes back from a peer to which packets leave, the likeliest cause first.
//!
//! What the peer drops shows at the peer alone. What this end knows ranks the causes: whether the
//! state was ever answered, and whether ESP of the peer comes by another one.

use uxfrm_engine::{Sa, Snapshot, explain::outbound::ProtectedPath};
use uxfrm_status::quantity::span;

use crate::clock::now;

/// What may be the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspect {
    /// The peer has another key or SPI.
    Key,
    /// The peer's policies, selector or reqid differ.
    Policy,
    /// The peer's state expired or was deleted.
    Expired,
    /// The host behind the peer has no way back.
    WayBack,
    /// A packet filter drops the ESP.
    Filter,
    /// There is a NAT, and the ESP is not in UDP.
    Nat,
    /// The peer's address is another.
    Address,
}

/// The causes for a silent tunnel: what is known here, and then each with what asks about it.
pub(super) fn suspects(
    snapshot: &Snapshot,
    path: &ProtectedPath,
    out: &Sa,
    back: &Sa,
) -> Vec<String> {
    let other = answered_elsewhere(snapshot, path, back);
    let was_answered = back.usage().packets() > 0;
    let ranked = ranked(was_answered, other.is_some(), out.config().encap.is_some());
    let known = known(back, other);
    let words = ranked
        .iter()
        .zip(1..)
        .map(|(suspect, number)| format!("{number}. {}", suspect.words(path, out)));
    std::iter::once(known).chain(words).collect()
}

/// Another state by which this peer sends to this end, the latest.
fn answered_elsewhere<'a>(
    snapshot: &'a Snapshot,
    path: &ProtectedPath,
    back: &Sa,
) -> Option<&'a Sa> {
    let (own, peer) = path.ends;
    let others = snapshot
        .sad
        .iter()
        .filter(|sa| sa.source() == peer && sa.id().destination == own && sa.id() != back.id());
    let used = others.filter(|sa| sa.usage().packets() > 0);
    used.max_by_key(|sa| sa.usage().last_used()).map(|sa| &**sa)
}

/// What this end knows.
fn known(back: &Sa, other: Option<&Sa>) -> String {
    let ago = |sa: &Sa| sa.usage().last_used().map(|last| span(now().since(last).as_secs()));
    let own = back.id().spi;
    let own = match ago(back) {
        Some(ago) => format!("{own} was answered until {ago} ago"),
        None => format!("{own} has never been answered"),
    };
    match other.and_then(|other| Some((other.id().spi, ago(other)?))) {
        Some((spi, ago)) => format!("{own}; {spi} of the same peer was, {ago} ago"),
        None => own,
    }
}

/// The likeliest first.
fn ranked(was_answered: bool, is_heard: bool, is_in_udp: bool) -> Vec<Suspect> {
    use Suspect::{Address, Expired, Filter, Key, Nat, Policy, WayBack};
    let all: &[Suspect] = match (was_answered, is_heard) {
        // It worked: keys, addresses and a NAT are as they were.
        (true, false) => &[Expired, Filter, WayBack, Policy, Key],
        // ESP gets through between both.
        (true, true) => &[Expired, WayBack, Policy, Key],
        (false, true) => &[Key, Policy, WayBack, Expired],
        (false, false) => &[Key, Filter, Nat, Policy, WayBack, Address, Expired],
    };
    all.iter().copied().filter(|suspect| !(is_in_udp && *suspect == Nat)).collect()
}

impl Suspect {
    /// What it is, and what asks about it.
    fn words(self, path: &ProtectedPath, out: &Sa) -> String {
        let (peer, spi) = (path.ends.1, out.id().spi);
        match self {
            Self::Key => format!(
                "has the peer another key or SPI? It drops what comes by {spi} then: run `uxfrm \
                 drops` there, or on Linux `nstat -az 'Xfrm*'` (XfrmInStateProtoError: another \
                 key; XfrmInNoStates: another SPI)"
            ),
            Self::Policy => "do the peer's policies `in` and `fwd`, its state's selector or its \
                 reqid differ? `uxfrm drops` there, or XfrmInNoPols, XfrmInTmplMismatch and \
                 XfrmInStateMismatch"
                .to_owned(),
            Self::Expired => format!(
                "did state {spi} expire at the peer, or was it deleted? `uxfrm status` or `ip -s \
                 xfrm state` there"
            ),
            Self::WayBack => "has the host behind the peer a way back? It needs a route to this \
                 side by the peer, and the peer needs a policy `out` for it and \
                 `net.ipv4.ip_forward`"
                .to_owned(),
            Self::Filter if out.config().encap.is_some() => {
                format!("is UDP filtered on the path to {peer}, here or there? `nft list ruleset`")
            }
            Self::Filter => format!(
                "is ESP (IP protocol 50) filtered on the path to {peer}, here or there? `nft list \
                 ruleset`"
            ),
            Self::Nat => "is there a NAT on the path? Then ESP needs UDP: `encap espinudp 4500 \
                 4500 0.0.0.0`"
                .to_owned(),
            Self::Address => format!(
                "is {peer} the peer? There `tcpdump -ni any esp or udp port 4500` shows what \
                 arrives"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Suspect::*, *};

    #[test]
    fn suspects_are_ranked_by_what_is_known() {
        let first = |was_answered, is_heard| ranked(was_answered, is_heard, false)[0];
        assert_eq!((first(false, false), first(false, true)), (Key, Key));
        assert_eq!((first(true, false), first(true, true)), (Expired, Expired));
        let has = |suspect, was_answered, is_heard, is_in_udp| {
            ranked(was_answered, is_heard, is_in_udp).contains(&suspect)
        };
        assert!(has(Nat, false, false, false) && !has(Nat, false, false, true));
        assert!(!has(Filter, false, true, false), "ESP of this peer comes in");
        for (was_answered, is_heard) in [(false, false), (false, true), (true, false)] {
            assert!(has(WayBack, was_answered, is_heard, false));
            assert!(has(Policy, was_answered, is_heard, false));
            assert!(has(Expired, was_answered, is_heard, false));
        }
    }
}
