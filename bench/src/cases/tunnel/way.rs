//! The ways from one site to the other.

use std::num::NonZeroUsize;

use serde_json::Map;

use super::peer::Peer;
use super::relay::Carriage;
use crate::Filter;
use crate::pair::{Encapsulation, Frames, Mode, Protection, Transform, Tuning, is_root};
use crate::report::{Case, Row};

/// How packets get to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) frames: Frames,
    pub(crate) through: Through,
}

/// What they go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// The bare wire.
    Clear,
    /// A bare relay at each end: the floor under every tunnel in user space.
    Relays(Carriage),
    /// uxfrm.
    Gateways(Gateways),
    /// Another program, installed here.
    Peer(Peer),
}

/// A gateway at each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gateways {
    pub(crate) protection: Protection,
    pub(crate) tuning: Tuning,
}

const GCM_UDP: Protection =
    Protection { transform: Transform::Gcm128, encapsulation: Encapsulation::Udp };
const GCM_ESP: Protection = Protection { encapsulation: Encapsulation::Ip, ..GCM_UDP };
const CBC_UDP: Protection = Protection { transform: Transform::Cbc128Sha1, ..GCM_UDP };

const ONE: Tuning =
    Tuning { workers: NonZeroUsize::MIN, queue_delay: 0, mode: Mode::Host, gather: None };
const TWO: Tuning = Tuning { workers: NonZeroUsize::MIN.saturating_add(1), ..ONE };
/// One worker, and queues that are kept short.
const SHORT: Tuning = Tuning { queue_delay: 350, ..ONE };
/// ESP past the host's stack, and all else by it.
const EXPRESS: Tuning = Tuning { mode: Mode::HostXdp, ..ONE };
/// The same with each frame told at once, and with frames gathered whether that pays or not.
const EXPRESS_AT_ONCE: Tuning = Tuning { gather: Some(0), ..EXPRESS };
const EXPRESS_GATHERED: Tuning = Tuning { gather: Some(100), ..EXPRESS };
/// Gateways past the host's stack, each before a host of its own.
const INLINE: Tuning = Tuning { mode: Mode::Inline, ..ONE };
const INLINE_XDP: Tuning = Tuning { mode: Mode::InlineXdp, ..ONE };

impl Way {
    /// All of them, in the order of the rows: in the clear, through bare relays, through uxfrm, and through the peers that are there.
    pub(crate) fn all() -> Vec<Self> {
        let peers: Vec<Peer> = Peer::ALL.into_iter().filter(|peer| peer.is_there()).collect();
        [Frames::Super, Frames::Real]
            .into_iter()
            .flat_map(|frames| {
                let own = Self::own().into_iter().filter(move |way| way.frames == frames);
                let through = peers.iter().map(|peer| Through::Peer(*peer));
                let peers = through.map(|through| Self { frames, through }).collect::<Vec<_>>();
                own.chain(peers)
            })
            .collect()
    }

    fn own() -> Vec<Self> {
        let clear = |frames| Self { frames, through: Through::Clear };
        let relay = |frames, carriage| Self { frames, through: Through::Relays(carriage) };
        let tunnel = |frames, protection, tuning| Self {
            frames,
            through: Through::Gateways(Gateways { protection, tuning }),
        };
        vec![
            clear(Frames::Super),
            relay(Frames::Super, Carriage::Udp),
            relay(Frames::Super, Carriage::Esp),
            tunnel(Frames::Super, GCM_UDP, ONE),
            tunnel(Frames::Super, GCM_ESP, ONE),
            tunnel(Frames::Super, CBC_UDP, ONE),
            tunnel(Frames::Super, GCM_UDP, TWO),
            tunnel(Frames::Super, GCM_ESP, TWO),
            tunnel(Frames::Super, GCM_UDP, SHORT),
            tunnel(Frames::Super, GCM_ESP, SHORT),
            clear(Frames::Real),
            relay(Frames::Real, Carriage::Udp),
            relay(Frames::Real, Carriage::Esp),
            tunnel(Frames::Real, GCM_UDP, ONE),
            tunnel(Frames::Real, GCM_ESP, ONE),
            tunnel(Frames::Real, GCM_UDP, SHORT),
            tunnel(Frames::Real, GCM_ESP, EXPRESS),
            tunnel(Frames::Real, GCM_ESP, EXPRESS_AT_ONCE),
            tunnel(Frames::Real, GCM_ESP, EXPRESS_GATHERED),
            tunnel(Frames::Real, GCM_ESP, INLINE),
            tunnel(Frames::Real, GCM_ESP, INLINE_XDP),
        ]
    }

    /// Whether this process may build it: AF_XDP is for root alone, user namespaces or not.
    pub(crate) fn is_possible(&self) -> bool {
        let Through::Gateways(gateways) = self.through else { return true };
        match gateways.tuning.mode {
            Mode::Host | Mode::Inline => true,
            Mode::HostXdp | Mode::InlineXdp => is_root(),
        }
    }

    /// A row for each that is not possible here.
    pub(crate) fn refused(only: &Filter) -> Vec<Row> {
        let refused = Self::all().into_iter().filter(|way| !way.is_possible());
        let cases = refused.map(|way| way.case()).filter(|case| only.admits(case));
        cases
            .map(|case| {
                let mut row = Row { case, figures: Map::new() };
                row.figures.insert("note".to_owned(), "needs root".into());
                row
            })
            .collect()
    }

    /// What all its rows' cases have.
    pub(crate) fn case(&self) -> Case {
        let frames = match self.frames {
            Frames::Super => "super",
            Frames::Real => "1500",
        };
        match self.through {
            Through::Clear => Case::new().with("path", "clear").with("frames", frames),
            Through::Relays(carriage) => {
                Case::new().with("path", carriage.name()).with("frames", frames)
            }
            Through::Peer(peer) => Case::new().with("path", peer.name()).with("frames", frames),
            Through::Gateways(Gateways { protection, tuning }) => {
                let case = Case::new()
                    .with("path", path(protection, tuning.mode))
                    .with("transform", protection.transform.key())
                    .with("frames", frames)
                    .with("workers", tuning.workers.get())
                    .with("queue_delay", tuning.queue_delay);
                match tuning.gather {
                    Some(gather) => case.with("gather", gather),
                    None => case,
                }
            }
        }
    }
}

/// All modes but the first are measured with raw ESP alone.
fn path(protection: Protection, mode: Mode) -> &'static str {
    match mode {
        Mode::Host => protection.path(),
        Mode::HostXdp => "uxfrm-express",
        Mode::Inline => "uxfrm-inline",
        Mode::InlineXdp => "uxfrm-xdp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_case_of_its_own() {
        let cases: Vec<Case> = Way::all().iter().map(Way::case).collect();
        for (nth, case) in cases.iter().enumerate() {
            assert!(!cases[..nth].contains(case), "{case:?}");
        }
    }
}
