//! The way into a tunnel: its device, up, and a route to the other end's network through it. Both go with the device.

use anyhow::Context;
use uxfrm_io::rtnetlink::{Prefix, Route, Rtnetlink, Via};

use crate::pair::{PREFIX_LEN, Site};

/// Leads from `here` to the network behind `there` through the device `tun`, in the namespace of the calling thread.
///
/// # Errors
/// The kernel's.
pub(super) fn through(tun: &str, mtu: u32, (here, there): (&Site, &Site)) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let tun = kernel.link(tun)?;
    kernel.set_mtu(tun.index, mtu)?;
    kernel.set_up(tun.index)?;
    let net = Prefix::new(there.lan_net.into(), PREFIX_LEN).context("24 of 32 bits")?;
    let mut route = Route::new(net, Via::Link(tun.index));
    route.source = Some(here.lan.into());
    Ok(kernel.add_route(&route)?)
}
