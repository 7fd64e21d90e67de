//! Two namespaces with a wire between them, and a gateway in each: `uxfrm run` of this very program. All goes when it is dropped.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, anyhow, bail};
use tempfile::TempDir;
use uxfrm_daemon::upgrade::gateway_of;
use uxfrm_io::Namespace;
use uxfrm_io::rtnetlink::{Prefix, Rtnetlink};

use super::plan::{Side, Tunnel};

/// CPU time of processes.
pub(super) type CpuTime = Duration;

const WIRE: &str = "wire0";
/// The line by which a gateway says that it forwards.
const READY: &str = "uxfrm: ready";

/// Both gateways.
#[derive(Debug)]
pub(super) struct Gateways {
    left: Gateway,
    right: Gateway,
    _files: TempDir,
}

/// The two ends of a connection through a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends<'a> {
    pub(super) from: &'a Namespace,
    pub(super) to: (&'a Namespace, IpAddr),
}

#[derive(Debug)]
struct Gateway {
    namespace: Namespace,
    child: Child,
}

impl Gateways {
    /// Wires the namespaces and starts gateways with these tunnels.
    pub(super) fn start(tunnels: &[Tunnel]) -> anyhow::Result<Self> {
        let (left, right) = (namespace()?, namespace()?);
        left.enter(|| Rtnetlink::open()?.add_veth(WIRE, WIRE, right.as_fd()))??;
        let files = tempfile::tempdir()?;
        Ok(Self {
            left: Gateway::start(left, Side::Left, tunnels, files.path())?,
            right: Gateway::start(right, Side::Right, tunnels, files.path())?,
            _files: files,
        })
    }

    /// From left to right through a tunnel.
    pub(super) fn ends(&self, tunnel: Tunnel) -> Ends<'_> {
        let to = (&self.right.namespace, tunnel.inner(Side::Right).0);
        Ends { from: &self.left.namespace, to }
    }

    /// What both have used up to now.
    pub(super) fn cpu_time(&self) -> anyhow::Result<CpuTime> {
        let used =
            |child: &Child| of_process(gateway_of(child.id()).context("a gateway has no process")?);
        Ok(used(&self.left.child)? + used(&self.right.child)?)
    }
}

impl Gateway {
    fn start(
        namespace: Namespace,
        side: Side,
        tunnels: &[Tunnel],
        files: &Path,
    ) -> anyhow::Result<Self> {
        namespace.enter(|| settle(side, tunnels))??;
        let config = write(side, tunnels, files)?;
        let mut command = Command::new(env::current_exe()?);
        command.args(["run", "--until-stdin-ends"]).arg(config);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = namespace.enter(|| command.spawn())?.context("cannot start a gateway")?;
        let mut gateway = Self { namespace, child };
        gateway.wait_until_ready()?;
        gateway.namespace.enter(|| address(side, tunnels))??;
        Ok(gateway)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let stderr = self.child.stderr.take().ok_or_else(|| anyhow!("a gateway has no stderr"))?;
        let (mut reader, mut said) = (BufReader::new(stderr), String::new());
        loop {
            let before = said.len();
            if reader.read_line(&mut said)? == 0 {
                bail!("a gateway ended at its start:\n{said}");
            }
            if said[before..].trim() == READY {
                break;
            }
        }
        // Nobody reads on; a gateway that logs must not wait for that.
        thread::spawn(move || reader.read_to_end(&mut Vec::new()));
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It ends with its standard input. Nobody is left to tell if it doesn't.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn namespace() -> anyhow::Result<Namespace> {
    Namespace::new().context("the bench needs root, for network namespaces and TUN devices")
}

/// Gives the wire its addresses, one for each tunnel, in the namespace of the calling thread.
fn settle(side: Side, tunnels: &[Tunnel]) -> anyhow::Result<()> {
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

/// Gives the tunnels theirs, which are their routes as well.
fn address(side: Side, tunnels: &[Tunnel]) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    for tunnel in tunnels {
        let (own, length) = tunnel.inner(side);
        let index = kernel.link(&tunnel.name())?.index;
        kernel.add_address(index, prefix(own, length)?)?;
    }
    Ok(())
}

fn prefix(address: IpAddr, length: u8) -> anyhow::Result<Prefix> {
    Prefix::new(address, length).with_context(|| format!("{address}/{length}"))
}

/// The configuration of one gateway; its path.
fn write(side: Side, tunnels: &[Tunnel], files: &Path) -> anyhow::Result<PathBuf> {
    let directory = files.join(format!("{side:?}"));
    fs::create_dir(&directory)?;
    let lines: String = tunnels.iter().map(|tunnel| tunnel.lines(side)).collect();
    fs::write(directory.join("tunnels.batch"), lines)?;
    let config = directory.join("config.toml");
    let text = "host.guard = 'off'\ncontrol.enabled = false\ntunnel.batch = ['tunnels.batch']\nxfrm.sequences = 'sequences'\n";
    fs::write(&config, text)?;
    Ok(config)
}

/// What all threads of a process have used: the first number of `/proc/PID/task/TID/schedstat`, in nanoseconds.
fn of_process(pid: u32) -> anyhow::Result<CpuTime> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("a gateway has ended")? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_ascii_whitespace().next();
        nanoseconds += first.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds))
}
