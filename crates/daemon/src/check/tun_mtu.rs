//! A fixed MTU of the TUN that is not what tunnels take.

use uxfrm_engine::HostAddresses;

use super::{Finding, Subject};
use crate::{
    config::Mtu,
    reconcile::tun_mtu::{UNJUDGED, largest, relay::relays},
};

/// What mends either.
const AUTO: &str = "remove it: `[host] mtu` is \"auto\" then, and follows the tunnels";

/// `[host] mtu` that is more than fits into any tunnel, or on a hub less than the network takes.
pub(super) fn does_not_fit(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    let (Mtu::Fixed(mtu), Some(paths)) = (host.mtu, &host.paths) else { return Vec::new() };
    if relays(&subject.snapshot.spd) {
        let network = paths.usual.max(UNJUDGED);
        let is_small = mtu < network;
        return is_small.then(|| of_hub(mtu, network)).into_iter().collect();
    }
    let own: HostAddresses = host.addresses.iter().flatten().copied().collect();
    let largest = largest(&subject.snapshot.sad, &own, paths).filter(|most| *most < mtu);
    largest.map(|most| larger(mtu, most.max(Mtu::LEAST))).into_iter().collect()
}

fn of_hub(mtu: u16, network: u16) -> Finding {
    Finding::warning(
        format!(
            "`[host] mtu = {mtu}` is less than the {network} bytes of the network, and policies let \
             packets pass from tunnel to tunnel: the kernel tells their senders PLAIN what is too \
             large, with a quote of what came in ESP"
        ),
        AUTO.to_owned(),
    )
}

fn larger(mtu: u16, most: u16) -> Finding {
    Finding::warning(
        format!(
            "`[host] mtu = {mtu}` is more than the {most} bytes that fit into a tunnel: programs \
             of this host begin with packets that are too large"
        ),
        AUTO.to_owned(),
    )
}
