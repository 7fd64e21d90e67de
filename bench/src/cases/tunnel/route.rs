//! Routes into a tunnel's TUN; they go with the device.

use anyhow::Context;
use uxfrm_io::rtnetlink::{Route, RoutePrefix, Rtnetlink, Via};

use crate::pair::{GatewaySite, PREFIX_LEN};

/// Brings the device `tun` up and adds a route from `here` to the network behind `there` through
/// it, in the namespace of the calling thread.
///
/// # Errors
/// The kernel's.
pub(super) fn add_through(
    tun: &str,
    mtu: u32,
    (here, there): (&GatewaySite, &GatewaySite),
) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let tun = kernel.link(tun)?;
    kernel.set_mtu(tun.index, mtu)?;
    kernel.set_up(tun.index)?;
    let net = RoutePrefix::new(there.lan_net.into(), PREFIX_LEN).context("24 of 32 bits")?;
    let mut route = Route::new(net, Via::Link(tun.index));
    route.source = Some(here.lan.into());
    Ok(kernel.add_route(&route)?)
}
