//! Two network namespaces and the wire between them. They live as long as this process and its children hold them:
//! nothing is to be removed, whatever happens.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use anyhow::Context;
use uxfrm_io::Namespace;
use uxfrm_io::capture::Capture;
use uxfrm_io::ethtool::{self, Switch, feature};
use uxfrm_io::netns;
use uxfrm_io::rtnetlink::{Prefix, Route, Rtnetlink, Via};

use super::site::{A, B, GatewaySite, LAN, PREFIX_LEN, WIRE, WIRE_MTU};

/// Bit 21 of a capability set (`linux/capability.h`).
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// What TUN devices are opened through.
const TUN: &str = "/dev/net/tun";

/// Both namespaces, wired, with addresses and without routes to each other's networks.
#[derive(Debug)]
pub struct Topology {
    /// Where [`A`] is.
    pub a: Namespace,
    /// Where [`B`] is.
    pub b: Namespace,
}

/// What travels on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFrames {
    /// Super-packets as they are, as between virtual machines of a host: what a veth does by itself.
    Super,
    /// None larger than the MTU, joined again by the receiver's GRO: as on a real wire.
    Real,
}

/// Makes sure that this process may make namespaces, in a user namespace of its own if need be.
///
/// To be called while the process has one thread.
///
/// # Errors
/// Where neither is allowed.
pub fn gain_privileges() -> anyhow::Result<()> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    if capabilities(&status) & CAP_SYS_ADMIN != 0 {
        return Ok(());
    }
    netns::become_root().context(
        "this needs root or user namespaces, and this host allows neither \
         (see user.max_user_namespaces, and on Debian and Ubuntu kernel.unprivileged_userns_clone \
         and kernel.apparmor_restrict_unprivileged_userns)",
    )
}

/// Whether this process is root to the machine, not in a user namespace alone.
#[must_use]
pub fn is_root() -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let everybody = read("uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    everybody && capabilities(&read("status")) & CAP_SYS_ADMIN != 0
}

/// Makes sure that the gateways will be able to open a TUN device.
///
/// # Errors
/// What would help.
pub fn find_tun() -> anyhow::Result<()> {
    let opened = File::options().read(true).write(true).open(TUN);
    opened.map(drop).with_context(|| {
        format!(
            "this needs {TUN}, open to this user: as root, `modprobe tun` if it is missing, \
             `chmod 0666 {TUN}` if it is closed, or run it as root"
        )
    })
}

/// The effective capabilities in a text like that of `/proc/PID/status`; none when it does not tell.
fn capabilities(status: &str) -> u64 {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(hex.trim(), 16).unwrap_or(0)
}

impl Topology {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn build() -> anyhow::Result<Self> {
        let topology = Self::wired()?;
        for (namespace, here, _there) in topology.directions() {
            namespace.enter(|| be_its_network(here))??;
        }
        Ok(topology)
    }

    /// The wire and its ends alone, for gateways that have their networks behind them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wired() -> anyhow::Result<Self> {
        let topology = Self { a: Namespace::new()?, b: Namespace::new()? };
        topology.wire().context("cannot wire the namespaces")?;
        Ok(topology)
    }

    /// A namespace behind each of these, which has the address in the protected network; [`LAN`] leads there, and the wire to the other network.
    ///
    /// # Errors
    /// The kernel's.
    pub fn behind(&self) -> anyhow::Result<Self> {
        let behind = Self { a: Namespace::new()?, b: Namespace::new()? };
        for ((gateway, here, there), host) in
            self.directions().into_iter().zip([&behind.a, &behind.b])
        {
            gateway.enter(|| lead_to(host, here, there))??;
            host.enter(|| settle_behind(here))??;
        }
        Ok(behind)
    }

    /// Lets both ends reach each other's networks in the clear.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_clear_path(&self) -> anyhow::Result<()> {
        for (namespace, here, there) in self.directions() {
            namespace.enter(|| Rtnetlink::open()?.add_route(&clear_route(here, there)))??;
        }
        Ok(())
    }

    /// Takes those routes away: from here on only a gateway brings packets across.
    ///
    /// # Errors
    /// The kernel's.
    pub fn close_clear_path(&self) -> anyhow::Result<()> {
        for (namespace, here, there) in self.directions() {
            namespace.enter(|| Rtnetlink::open()?.delete_route(&clear_route(here, there)))??;
        }
        Ok(())
    }

    /// Says what the wire carries from here on, both ways.
    ///
    /// # Errors
    /// The kernel's.
    pub fn carry(&self, frames: WireFrames) -> anyhow::Result<()> {
        let (taken, joined) = match frames {
            WireFrames::Super => (Switch::On, Switch::Off),
            WireFrames::Real => (Switch::Off, Switch::On),
        };
        for namespace in [&self.a, &self.b] {
            namespace.enter(|| -> anyhow::Result<()> {
                ethtool::switch(WIRE, feature::SUPER_PACKETS, taken)
                    .and_then(|()| ethtool::switch(WIRE, feature::GRO, joined))
                    .context("cannot switch features of the wire")
            })??;
        }
        Ok(())
    }

    /// A capture of the wire, at a's end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn capture(&self) -> anyhow::Result<Capture> {
        self.a.enter(|| {
            let wire = Rtnetlink::open()?.link(WIRE)?;
            Capture::open(wire.index).context("cannot capture what is on the wire")
        })?
    }

    fn directions(&self) -> [(&Namespace, &GatewaySite, &GatewaySite); 2] {
        [(&self.a, &A, &B), (&self.b, &B, &A)]
    }

    fn wire(&self) -> anyhow::Result<()> {
        self.a.enter(|| Rtnetlink::open()?.add_veth(WIRE, WIRE, self.b.as_fd()))??;
        for (namespace, here, _there) in self.directions() {
            namespace.enter(|| settle(here))??;
        }
        Ok(())
    }
}

/// Gives `here` its address on the wire, in the namespace of the calling thread.
fn settle(here: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let (loopback, wire) = (kernel.link("lo")?, kernel.link(WIRE)?);
    kernel.set_mtu(wire.index, WIRE_MTU)?;
    kernel.add_address(wire.index, prefix(here.wire))?;
    kernel.set_up(loopback.index)?;
    kernel.set_up(wire.index)?;
    Ok(())
}

/// Gives `here` the address in its network, in the namespace of the calling thread.
fn be_its_network(here: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let loopback = kernel.link("lo")?;
    Ok(kernel.add_address(loopback.index, Prefix::host(here.lan.into()))?)
}

/// From the gateway's namespace to the host behind it, and to the network behind the other gateway.
fn lead_to(host: &Namespace, here: &GatewaySite, there: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    kernel.add_veth(LAN, LAN, host.as_fd())?;
    let lan = kernel.link(LAN)?;
    kernel.add_address(lan.index, prefix(here.lan_gateway()))?;
    kernel.set_up(lan.index)?;
    let via = Via::Gateway(there.wire.into(), None);
    Ok(kernel.add_route(&Route::new(prefix(there.lan_net), via))?)
}

/// The host behind a gateway, in the namespace of the calling thread.
fn settle_behind(here: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let (loopback, lan) = (kernel.link("lo")?, kernel.link(LAN)?);
    kernel.add_address(lan.index, prefix(here.lan))?;
    kernel.set_up(loopback.index)?;
    kernel.set_up(lan.index)?;
    let everywhere =
        Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0).context("0 bits of an address")?;
    let via = Via::Gateway(here.lan_gateway().into(), None);
    Ok(kernel.add_route(&Route::new(everywhere, via))?)
}

fn clear_route(here: &GatewaySite, there: &GatewaySite) -> Route {
    let mut route = Route::new(prefix(there.lan_net), Via::Gateway(there.wire.into(), None));
    route.source = Some(here.lan.into());
    route
}

fn prefix(address: Ipv4Addr) -> Prefix {
    // PREFIX_LEN is not more than an IPv4 address has.
    Prefix::new(IpAddr::from(address), PREFIX_LEN).expect("24 of 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_capabilities_are_read() {
        let status = "CapPrm:\t00\nCapEff:\t000001ffffffffff\nCapBnd:\t00\n";
        assert_ne!(capabilities(status) & CAP_SYS_ADMIN, 0);
        assert_eq!(capabilities("CapEff:\t00000000ffdfffff\n") & CAP_SYS_ADMIN, 0);
        assert_eq!(capabilities(""), 0);
    }
}
