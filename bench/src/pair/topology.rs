//! Two network namespaces and the wire between them. They exist as long as this process and its
//! children hold them, so nothing has to be removed.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use anyhow::Context;
use uxfrm_io::Namespace;
use uxfrm_io::capture::Capture;
use uxfrm_io::ethtool::{self, FeatureState, feature};
use uxfrm_io::netns;
use uxfrm_io::rtnetlink::{Route, RoutePrefix, Rtnetlink, Via};

use super::site::{A, B, GatewaySite, LAN, PREFIX_LEN, WIRE, WIRE_MTU};

/// Bit 21 of a capability set (`linux/capability.h`).
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The file that TUN devices are opened by.
const TUN: &str = "/dev/net/tun";

/// Both namespaces, wired, with addresses and without routes to each other's networks.
#[derive(Debug)]
pub struct Topology {
    /// Where [`A`] is.
    pub a: Namespace,
    /// Where [`B`] is.
    pub b: Namespace,
}

/// The size of frames on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFrames {
    /// Super-packets, as between virtual machines of a host: a veth's default.
    Super,
    /// None larger than the MTU, coalesced by the receiver's GRO, as on a real wire.
    Real,
}

/// Ensures that this process may make namespaces, by a user namespace if necessary.
///
/// Call it while the process has one thread.
///
/// # Errors
/// If neither is allowed.
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

/// Whether this process is root in the initial user namespace.
#[must_use]
pub fn is_root() -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let everybody = read("uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    everybody && capabilities(&read("status")) & CAP_SYS_ADMIN != 0
}

/// Checks that gateways can open a TUN device.
///
/// # Errors
/// They can't; the error says what would help.
pub fn find_tun() -> anyhow::Result<()> {
    let opened = File::options().read(true).write(true).open(TUN);
    opened.map(drop).with_context(|| {
        format!(
            "this needs {TUN}, open to this user: as root, `modprobe tun` if it is missing, \
             `chmod 0666 {TUN}` if it is closed, or run it as root"
        )
    })
}

/// The effective capabilities in a text like `/proc/PID/status`; none if it has no such line.
fn capabilities(status: &str) -> u64 {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(hex.trim(), 16).unwrap_or(0)
}

impl Topology {
    /// Builds the namespaces, the wire and both ends' networks.
    ///
    /// # Errors
    /// The kernel's.
    pub fn build() -> anyhow::Result<Self> {
        let topology = Self::wired()?;
        for (namespace, here, _there) in topology.directions() {
            namespace.enter(|| configure_loopback(here))??;
        }
        Ok(topology)
    }

    /// Builds only the namespaces and the wire, for gateways with networks behind them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wired() -> anyhow::Result<Self> {
        let topology = Self { a: Namespace::new()?, b: Namespace::new()? };
        topology.wire().context("cannot wire the namespaces")?;
        Ok(topology)
    }

    /// Builds a namespace behind each of these, with the address in the protected network. [`LAN`]
    /// connects it, and the gateway's route to the other network leads over the wire.
    ///
    /// # Errors
    /// The kernel's.
    pub fn behind(&self) -> anyhow::Result<Self> {
        let behind = Self { a: Namespace::new()?, b: Namespace::new()? };
        for ((gateway, here, there), host) in
            self.directions().into_iter().zip([&behind.a, &behind.b])
        {
            gateway.enter(|| connect_host(host, here, there))??;
            host.enter(|| configure_host(here))??;
        }
        Ok(behind)
    }

    /// Adds routes to each other's networks in the clear.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_clear_path(&self) -> anyhow::Result<()> {
        for (namespace, here, there) in self.directions() {
            namespace.enter(|| Rtnetlink::open()?.add_route(&clear_route(here, there)))??;
        }
        Ok(())
    }

    /// Deletes these routes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn close_clear_path(&self) -> anyhow::Result<()> {
        for (namespace, here, there) in self.directions() {
            namespace.enter(|| Rtnetlink::open()?.delete_route(&clear_route(here, there)))??;
        }
        Ok(())
    }

    /// Sets which frames the wire carries in both directions.
    ///
    /// # Errors
    /// The kernel's.
    pub fn carry(&self, frames: WireFrames) -> anyhow::Result<()> {
        let (taken, joined) = match frames {
            WireFrames::Super => (FeatureState::On, FeatureState::Off),
            WireFrames::Real => (FeatureState::Off, FeatureState::On),
        };
        for namespace in [&self.a, &self.b] {
            namespace.enter(|| -> anyhow::Result<()> {
                ethtool::set_features(WIRE, feature::SUPER_PACKETS, taken)
                    .and_then(|()| ethtool::set_features(WIRE, feature::GRO, joined))
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
            namespace.enter(|| configure_wire(here))??;
        }
        Ok(())
    }
}

/// Adds `here`'s address on the wire, in the namespace of the calling thread.
fn configure_wire(here: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let (loopback, wire) = (kernel.link("lo")?, kernel.link(WIRE)?);
    kernel.set_mtu(wire.index, WIRE_MTU)?;
    kernel.add_address(wire.index, prefix(here.wire))?;
    kernel.set_up(loopback.index)?;
    kernel.set_up(wire.index)?;
    Ok(())
}

/// Adds `here`'s address in its network to the loopback, in the namespace of the calling thread.
fn configure_loopback(here: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let loopback = kernel.link("lo")?;
    Ok(kernel.add_address(loopback.index, RoutePrefix::host(here.lan.into()))?)
}

/// Connects the gateway's namespace to the host behind it, and adds the route to the network behind
/// the other gateway.
fn connect_host(host: &Namespace, here: &GatewaySite, there: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    kernel.add_veth(LAN, LAN, host.as_fd())?;
    let lan = kernel.link(LAN)?;
    kernel.add_address(lan.index, prefix(here.lan_gateway()))?;
    kernel.set_up(lan.index)?;
    let via = Via::Gateway(there.wire.into(), None);
    Ok(kernel.add_route(&Route::new(prefix(there.lan_net), via))?)
}

/// Configures the host behind a gateway, in the namespace of the calling thread.
fn configure_host(here: &GatewaySite) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let (loopback, lan) = (kernel.link("lo")?, kernel.link(LAN)?);
    kernel.add_address(lan.index, prefix(here.lan))?;
    kernel.set_up(loopback.index)?;
    kernel.set_up(lan.index)?;
    let everywhere =
        RoutePrefix::new(Ipv4Addr::UNSPECIFIED.into(), 0).context("0 bits of an address")?;
    let via = Via::Gateway(here.lan_gateway().into(), None);
    Ok(kernel.add_route(&Route::new(everywhere, via))?)
}

fn clear_route(here: &GatewaySite, there: &GatewaySite) -> Route {
    let mut route = Route::new(prefix(there.lan_net), Via::Gateway(there.wire.into(), None));
    route.source = Some(here.lan.into());
    route
}

fn prefix(address: Ipv4Addr) -> RoutePrefix {
    // PREFIX_LEN fits an IPv4 address.
    RoutePrefix::new(IpAddr::from(address), PREFIX_LEN).expect("24 of 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_capabilities_are_parsed() {
        let status = "CapPrm:\t00\nCapEff:\t000001ffffffffff\nCapBnd:\t00\n";
        assert_ne!(capabilities(status) & CAP_SYS_ADMIN, 0);
        assert_eq!(capabilities("CapEff:\t00000000ffdfffff\n") & CAP_SYS_ADMIN, 0);
        assert_eq!(capabilities(""), 0);
    }
}
