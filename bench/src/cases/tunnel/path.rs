//! The paths from one site to the other.

use std::num::NonZeroUsize;

use super::peer::Peer;
use super::relay::RelayEncap;
use super::results;
use crate::CaseFilter;
use crate::pair::{
    EspEncapsulation, EspTransform, GatewayMode, GatewayTuning, Protection, WireFrames, is_root,
};
use crate::report::{Case, Row};

/// A path that is tested: one frame size, and a tunnel or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TestPath {
    pub(crate) frames: WireFrames,
    pub(crate) tunnel: TunnelKind,
}

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelKind {
    /// The bare wire.
    Clear,
    /// A bare relay at each end: the floor under every tunnel in user space.
    Relays(RelayEncap),
    /// Two uxfrm gateways.
    Gateways(GatewaySetup),
    /// Another program that is installed here.
    Peer(Peer),
}

/// How the two uxfrm gateways are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GatewaySetup {
    pub(crate) protection: Protection,
    pub(crate) tuning: GatewayTuning,
}

const GCM_UDP: Protection =
    Protection { transform: EspTransform::Gcm128, encapsulation: EspEncapsulation::Udp };
const GCM_ESP: Protection = Protection { encapsulation: EspEncapsulation::Ip, ..GCM_UDP };
const CBC_UDP: Protection = Protection { transform: EspTransform::Cbc128Sha1, ..GCM_UDP };

const ONE: GatewayTuning = GatewayTuning {
    workers: NonZeroUsize::MIN,
    queue_delay: 0,
    mode: GatewayMode::Host,
    gather: None,
};
const TWO: GatewayTuning = GatewayTuning { workers: NonZeroUsize::MIN.saturating_add(1), ..ONE };
/// One worker and short queues.
const SHORT_QUEUE: GatewayTuning = GatewayTuning { queue_delay: 350, ..ONE };
/// Host mode with ESP by AF_XDP.
const AF_XDP: GatewayTuning = GatewayTuning { mode: GatewayMode::HostXdp, ..ONE };
/// AF_XDP with no wait for more frames, and with a wait of 100 µs whether that pays or not.
const AF_XDP_UNGATHERED: GatewayTuning = GatewayTuning { gather: Some(0), ..AF_XDP };
const AF_XDP_GATHERED: GatewayTuning = GatewayTuning { gather: Some(100), ..AF_XDP };
/// Inline gateways, each in front of a host of its own.
const INLINE: GatewayTuning = GatewayTuning { mode: GatewayMode::Inline, ..ONE };
const INLINE_XDP: GatewayTuning = GatewayTuning { mode: GatewayMode::InlineXdp, ..ONE };

/// A row for each of these paths, none of which can be measured here.
pub(crate) fn refused(paths: &[TestPath], only: &CaseFilter) -> Vec<Row> {
    let cases = paths.iter().map(TestPath::case).filter(|case| only.lists_path(case));
    cases.map(|case| results::unmeasured(case, "needs root")).collect()
}

impl TestPath {
    /// All of them, in the order of the rows: clear, relays, uxfrm, and the peers that are
    /// installed.
    pub(crate) fn all() -> Vec<Self> {
        let peers: Vec<Peer> = Peer::ALL.into_iter().filter(|peer| peer.is_installed()).collect();
        [WireFrames::Super, WireFrames::Real]
            .into_iter()
            .flat_map(|frames| {
                let own = Self::own().into_iter().filter(move |path| path.frames == frames);
                let peers =
                    peers.iter().map(|peer| Self { frames, tunnel: TunnelKind::Peer(*peer) });
                let peers = peers.collect::<Vec<_>>();
                own.chain(peers)
            })
            .collect()
    }

    fn own() -> Vec<Self> {
        let clear = |frames| Self { frames, tunnel: TunnelKind::Clear };
        let relay = |frames, encap| Self { frames, tunnel: TunnelKind::Relays(encap) };
        let gateways = |frames, protection, tuning| Self {
            frames,
            tunnel: TunnelKind::Gateways(GatewaySetup { protection, tuning }),
        };
        vec![
            clear(WireFrames::Super),
            relay(WireFrames::Super, RelayEncap::Udp),
            relay(WireFrames::Super, RelayEncap::Esp),
            gateways(WireFrames::Super, GCM_UDP, ONE),
            gateways(WireFrames::Super, GCM_ESP, ONE),
            gateways(WireFrames::Super, CBC_UDP, ONE),
            gateways(WireFrames::Super, GCM_UDP, TWO),
            gateways(WireFrames::Super, GCM_ESP, TWO),
            gateways(WireFrames::Super, GCM_UDP, SHORT_QUEUE),
            gateways(WireFrames::Super, GCM_ESP, SHORT_QUEUE),
            clear(WireFrames::Real),
            relay(WireFrames::Real, RelayEncap::Udp),
            relay(WireFrames::Real, RelayEncap::Esp),
            gateways(WireFrames::Real, GCM_UDP, ONE),
            gateways(WireFrames::Real, GCM_ESP, ONE),
            gateways(WireFrames::Real, GCM_UDP, SHORT_QUEUE),
            gateways(WireFrames::Real, GCM_ESP, AF_XDP),
            gateways(WireFrames::Real, GCM_ESP, AF_XDP_UNGATHERED),
            gateways(WireFrames::Real, GCM_ESP, AF_XDP_GATHERED),
            gateways(WireFrames::Real, GCM_ESP, INLINE),
            gateways(WireFrames::Real, GCM_ESP, INLINE_XDP),
        ]
    }

    /// Whether this process may build it: AF_XDP needs root outside any user namespace.
    pub(crate) fn is_possible(&self) -> bool {
        let TunnelKind::Gateways(gateways) = self.tunnel else { return true };
        match gateways.tuning.mode {
            GatewayMode::Host | GatewayMode::Inline => true,
            GatewayMode::HostXdp | GatewayMode::InlineXdp => is_root(),
        }
    }

    /// The keys that the cases of all its rows have.
    pub(crate) fn case(&self) -> Case {
        let frames = match self.frames {
            WireFrames::Super => "super",
            WireFrames::Real => "1500",
        };
        match self.tunnel {
            TunnelKind::Clear => Case::new().with("path", "clear").with("frames", frames),
            TunnelKind::Relays(encap) => {
                Case::new().with("path", encap.name()).with("frames", frames)
            }
            TunnelKind::Peer(peer) => Case::new().with("path", peer.name()).with("frames", frames),
            TunnelKind::Gateways(GatewaySetup { protection, tuning }) => {
                let case = Case::new()
                    .with("path", path_name(protection, tuning.mode))
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

/// The `path` key; modes other than host mode are measured with raw ESP only.
fn path_name(protection: Protection, mode: GatewayMode) -> &'static str {
    match mode {
        GatewayMode::Host => protection.path(),
        GatewayMode::HostXdp => "uxfrm-af_xdp",
        GatewayMode::Inline => "uxfrm-inline",
        GatewayMode::InlineXdp => "uxfrm-xdp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_distinct_case() {
        let cases: Vec<Case> = TestPath::all().iter().map(TestPath::case).collect();
        for (nth, case) in cases.iter().enumerate() {
            assert!(!cases[..nth].contains(case), "{case:?}");
        }
    }
}
