//! Two namespaces with a wire between them and a gateway in each, `uxfrm run` of this executable.
//! They end when dropped.

use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use uxfrm_io::Namespace;
use uxfrm_io::rtnetlink::{RoutePrefix, Rtnetlink};

use super::plan::{FouTunnel, TunnelSide};
use crate::gateway_child::GatewayChild;

/// CPU time of processes.
pub(super) type CpuTime = Duration;

const WIRE: &str = "wire0";

/// Both gateways.
#[derive(Debug)]
pub(super) struct GatewayPair {
    left: TunnelGateway,
    right: TunnelGateway,
    _files: TempDir,
}

/// The two ends of a connection through a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoints<'a> {
    pub(super) from: &'a Namespace,
    pub(super) to: (&'a Namespace, IpAddr),
}

#[derive(Debug)]
struct TunnelGateway {
    /// Dropped first.
    child: GatewayChild,
    namespace: Namespace,
}

impl GatewayPair {
    /// Wires the namespaces and starts gateways with these tunnels.
    pub(super) fn start(tunnels: &[FouTunnel]) -> anyhow::Result<Self> {
        let (left, right) = (namespace()?, namespace()?);
        left.enter(|| Rtnetlink::open()?.add_veth(WIRE, WIRE, right.as_fd()))??;
        let files = tempfile::tempdir()?;
        Ok(Self {
            left: TunnelGateway::start(left, TunnelSide::Left, tunnels, files.path())?,
            right: TunnelGateway::start(right, TunnelSide::Right, tunnels, files.path())?,
            _files: files,
        })
    }

    /// The endpoints of a connection from left to right through a tunnel.
    pub(super) fn ends(&self, tunnel: FouTunnel) -> Endpoints<'_> {
        let to = (&self.right.namespace, tunnel.inner(TunnelSide::Right).0);
        Endpoints { from: &self.left.namespace, to }
    }

    /// CPU time of both so far.
    pub(super) fn cpu_time(&self) -> anyhow::Result<CpuTime> {
        Ok(self.left.child.cpu_time()? + self.right.child.cpu_time()?)
    }
}

impl TunnelGateway {
    fn start(
        namespace: Namespace,
        side: TunnelSide,
        tunnels: &[FouTunnel],
        files: &Path,
    ) -> anyhow::Result<Self> {
        namespace.enter(|| configure_wire(side, tunnels))??;
        let config = write(side, tunnels, files)?;
        let child = namespace.enter(|| GatewayChild::start(&config))??;
        namespace.enter(|| configure_tunnels(side, tunnels))??;
        Ok(Self { child, namespace })
    }
}

fn namespace() -> anyhow::Result<Namespace> {
    Namespace::new().context("the bench needs root, for network namespaces and TUN devices")
}

/// Adds the wire's addresses, one for each tunnel, in the namespace of the calling thread.
fn configure_wire(side: TunnelSide, tunnels: &[FouTunnel]) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    for link in ["lo", WIRE] {
        let index = kernel.link(link)?.index;
        kernel.set_up(index)?;
    }
    let wire = kernel.link(WIRE)?.index;
    for tunnel in tunnels {
        kernel.add_address(wire, prefix(tunnel.outer(side).into(), 24)?)?;
    }
    Ok(())
}

/// Adds the tunnels' inner addresses, whose prefixes are the routes.
fn configure_tunnels(side: TunnelSide, tunnels: &[FouTunnel]) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    for tunnel in tunnels {
        let (own, length) = tunnel.inner(side);
        let index = kernel.link(&tunnel.name())?.index;
        kernel.add_address(index, prefix(own, length)?)?;
    }
    Ok(())
}

fn prefix(address: IpAddr, length: u8) -> anyhow::Result<RoutePrefix> {
    RoutePrefix::new(address, length).with_context(|| format!("{address}/{length}"))
}

/// Writes the configuration of one gateway and returns its path.
fn write(side: TunnelSide, tunnels: &[FouTunnel], files: &Path) -> anyhow::Result<PathBuf> {
    let directory = files.join(format!("{side:?}"));
    fs::create_dir(&directory)?;
    let lines: String = tunnels.iter().map(|tunnel| tunnel.lines(side)).collect();
    fs::write(directory.join("tunnels.batch"), lines)?;
    let config = directory.join("config.toml");
    let text = "host.guard = 'off'\ncontrol.enabled = false\ntunnel.batch = ['tunnels.batch']\nxfrm.sequences = 'sequences'\n";
    fs::write(&config, text)?;
    Ok(config)
}
