//! Whether the kernel takes what peers send. Where it checks ways back strictly (`rp_filter` 1) it
//! drops, and nobody hears of it, what comes from an address that our routes lead to the TUN: ESP
//! and IKE too, where the policies protect all traffic with a peer, or all traffic.
//!
//! The kernel looks ways back up without our mark. So this can't be mended here, but it can be
//! said.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs,
    net::IpAddr,
};

use uxfrm_io::rtnetlink::{Error, Rtnetlink};

/// Peers that are asked about in one go: two questions each.
const AT_ONCE: usize = 64;

/// Peers that are remembered until then; others are much like these.
const MOST: usize = 4096;

/// Peers whose reverse path is still to be checked.
#[derive(Debug, Default)]
pub(super) struct RpFilterCheck {
    doubtful: Vec<IpAddr>,
    /// Whether it was told: once is enough.
    is_told: bool,
}

impl RpFilterCheck {
    /// Something comes from there, and perhaps it is not taken. IPv6 has no such check.
    pub(super) fn mark_unverified(&mut self, peer: IpAddr) {
        if peer.is_ipv4() && !self.is_told && self.doubtful.len() < MOST {
            self.doubtful.push(peer);
        }
    }

    /// Looks at some of them. Packets with `mark` go past `tun`.
    pub(super) fn check(&mut self, rtnetlink: &mut Rtnetlink, tun: u32, mark: u32) {
        let some = self.doubtful.len().saturating_sub(AT_ONCE);
        let mut strict = HashMap::new();
        for peer in self.doubtful.split_off(some) {
            let device = dropping(rtnetlink, peer, [tun, mark], &mut strict);
            if let Ok(Some(device)) = device {
                tracing::warn!(
                    "net.ipv4.conf.{device}.rp_filter is 1: the kernel drops all that comes from {peer} by {device}, ESP too, as what goes there is led to uxfrm; set it to 2"
                );
                self.is_told = true;
                self.doubtful = Vec::new();
                return;
            }
        }
    }
}

/// The device by which packets of a peer come that the kernel does not take.
fn dropping(
    rtnetlink: &mut Rtnetlink,
    peer: IpAddr,
    [tun, mark]: [u32; 2],
    strict: &mut HashMap<u32, Option<String>>,
) -> Result<Option<String>, Error> {
    let way = rtnetlink.route_to(peer, mark)?;
    if way.is_local || way.link == tun {
        return Ok(None);
    }
    let device = match strict.entry(way.link) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => {
            let name = rtnetlink.link_of_index(way.link)?.name;
            unknown.insert(is_strict(&name).then_some(name))
        }
    };
    let Some(device) = device else { return Ok(None) };
    // As the kernel asks: for a packet from the address that the peer sends to.
    let back = rtnetlink.route_between(way.source, peer, 0)?;
    Ok((back.link == tun).then(|| device.clone()))
}

/// The kernel goes by the larger of the two numbers.
fn is_strict(device: &str) -> bool {
    let number = |of: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/rp_filter");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0_u8)
    };
    number("all").max(number(device)) == 1
}
