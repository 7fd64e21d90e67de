//! `uxfrm bench inline`: what a gateway forwards into ESP and out of it, inline and in host mode.
//!
//! ```text
//!   packet socket ─► veth ─► gateway: uxfrm, one worker ─► veth ─► counted        three namespaces for each path
//! ```
//!
//! The sender offers as much as it can; a row has what comes out behind the gateway in a second, in ESP or decrypted, and that divided by the
//! time that the gateway's threads had on a core: packets per second and core. The kernel's part before the gateway's sockets is the sender's
//! time. Rounds take turns.

mod network;
mod sealer;

use std::time::{Duration, Instant};

use uxfrm_io::affinity;
use uxfrm_packet::Pool;

use crate::clock::TscClock;
use crate::report::{Case, Machine, Report, Row, Sample};
use crate::{Filter, Options};
use network::Network;

/// By which way packets come to uxfrm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// By routes into a TUN, and out by a raw socket.
    Host,
    /// By packet sockets on both devices.
    Inline,
    /// By a packet socket to the protected side, and by `AF_XDP` to the wire.
    XdpWire,
    /// By `AF_XDP` on both; what leaves by the protected side does so by a packet socket.
    Xdp,
}

const PATHS: [Path; 4] = [Path::Host, Path::Inline, Path::XdpWire, Path::Xdp];

/// Which way packets pass the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the protected side into ESP.
    Out,
    /// From ESP to the protected side.
    In,
}

/// Bytes of the plain IP packets.
const SIZES: [u16; 2] = [64, 1400];

/// One row.
#[derive(Debug)]
struct Trial {
    way: Way,
    path: Path,
    bytes: u16,
    arrived: Sample,
    per_core: Sample,
    offered: Sample,
}

/// Measures what the options leave.
///
/// # Errors
/// What making namespaces and gateways has: it needs root, and `/dev/net/tun`.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let (rounds, seconds) = if options.quick { (1, 0.1) } else { (5, 1.0) };
    // Asked before the sender is tied to one core.
    let machine = Machine::here(TscClock::calibrate().hz());
    let mut trials = trials(&options.only);
    options.ensure_all_values_select()?;
    let mut networks = Vec::new();
    for path in PATHS {
        if trials.iter().any(|trial| trial.path == path) {
            networks.push((path, Network::start(path)?));
        }
    }
    if let Some(cpu) = affinity::allowed()?.first() {
        affinity::pin(*cpu)?;
    }
    for _ in 0..rounds {
        for trial in &mut trials {
            if let Some((_, network)) = networks.iter_mut().find(|(path, _)| *path == trial.path) {
                trial.round(network, Duration::from_secs_f64(seconds))?;
            }
        }
    }
    let rows = trials.iter().map(Trial::row).collect();
    Ok(Report { bench: "inline", machine, rows })
}

fn trials(only: &Filter) -> Vec<Trial> {
    let cases = [Way::Out, Way::In].into_iter().flat_map(|way| SIZES.map(|bytes| (way, bytes)));
    let all = cases.flat_map(|(way, bytes)| {
        PATHS.map(|path| Trial {
            way,
            path,
            bytes,
            arrived: Sample::default(),
            per_core: Sample::default(),
            offered: Sample::default(),
        })
    });
    all.filter(|trial| only.admits(&trial.case())).collect()
}

impl Path {
    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Inline => "inline",
            Self::XdpWire => "inline-xdp-wire",
            Self::Xdp => "inline-xdp",
        }
    }
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

impl Trial {
    fn case(&self) -> Case {
        Case::new()
            .with("way", self.way.name())
            .with("path", self.path.name())
            .with("bytes", self.bytes)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of packets of a second")]
    fn round(&mut self, network: &mut Network, time: Duration) -> anyhow::Result<()> {
        let mut pool = Pool::new();
        // Neighbours are found, and caches warm, before it counts.
        network.offer(self.way, self.bytes, &mut pool)?;
        std::thread::sleep(Duration::from_millis(100));
        let (before, used) = (network.arrived(self.way)?, network.cpu_time()?);
        let start = Instant::now();
        let mut offered = 0;
        while start.elapsed() < time {
            offered += network.offer(self.way, self.bytes, &mut pool)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let arrived = (network.arrived(self.way)? - before) as f64;
        let used = (network.cpu_time()? - used).as_secs_f64();
        self.arrived.push(arrived / seconds);
        self.per_core.push(arrived / used);
        self.offered.push(offered as f64 / seconds);
        Ok(())
    }

    fn row(&self) -> Row {
        let mut row = Row { case: self.case(), figures: serde_json::Map::new() };
        row.figure("pps", self.arrived.median(), 0);
        row.figure("min", self.arrived.quantile(0.0), 0);
        row.figure("max", self.arrived.quantile(1.0), 0);
        row.figure("pps_per_core", self.per_core.median(), 0);
        row.figure("offered_pps", self.offered.median(), 0);
        row
    }
}
