//! `uxfrm bench inline`: what a gateway forwards into ESP and out of it, inline and in host mode.
//!
//! ```text
//!   packet socket ─► veth ─► gateway: uxfrm, one worker ─► veth ─► counter
//! ```
//!
//! Each path has three namespaces. The sender offers as much as it can. A row has the packets per
//! second that come out behind the gateway, in ESP or decrypted, and these per second of CPU time
//! of the gateway's threads. The kernel's work before the gateway's sockets is the sender's time.
//! Rounds of all cases take turns.

mod network;
mod sealer;

use std::time::{Duration, Instant};

use uxfrm_io::affinity;
use uxfrm_packet::Pool;

use crate::clock::TscClock;
use crate::direction::TestDirection;
use crate::report::{BenchReport, Case, Machine, Row, Samples};
use crate::{BenchOptions, CaseFilter};
use network::InlineNetwork;

/// How packets come to uxfrm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InlinePath {
    /// By routes into a TUN, and out by a raw socket.
    Host,
    /// By packet sockets on both devices.
    Inline,
    /// By a packet socket to the protected side, and by `AF_XDP` to the wire.
    XdpWire,
    /// By `AF_XDP` on both; packets leave by the protected side through a packet socket.
    Xdp,
}

const PATHS: [InlinePath; 4] =
    [InlinePath::Host, InlinePath::Inline, InlinePath::XdpWire, InlinePath::Xdp];

/// Bytes of the plain IP packets.
const SIZES: [u16; 2] = [64, 1400];

/// The measurement of one row.
#[derive(Debug)]
struct Measurement {
    direction: TestDirection,
    path: InlinePath,
    bytes: u16,
    arrived: Samples,
    per_core: Samples,
    offered: Samples,
}

/// Measures what the options leave.
///
/// # Errors
/// Namespaces or gateways that can't be made: it needs root and `/dev/net/tun`.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let (rounds, seconds) = if options.quick { (1, 0.1) } else { (5, 1.0) };
    // Asked before the sender is tied to one core.
    let machine = Machine::here(TscClock::calibrate().hz());
    let mut measurements = measurements(&options.only);
    options.ensure_all_values_select()?;
    let mut networks = Vec::new();
    for path in PATHS {
        if measurements.iter().any(|measurement| measurement.path == path) {
            networks.push((path, InlineNetwork::start(path)?));
        }
    }
    if let Some(cpu) = affinity::allowed()?.first() {
        affinity::pin(*cpu)?;
    }
    for _ in 0..rounds {
        for measurement in &mut measurements {
            if let Some((_, network)) =
                networks.iter_mut().find(|(path, _)| *path == measurement.path)
            {
                measurement.round(network, Duration::from_secs_f64(seconds))?;
            }
        }
    }
    let rows = measurements.iter().map(Measurement::row).collect();
    Ok(BenchReport { bench: "inline", machine, rows })
}

fn measurements(only: &CaseFilter) -> Vec<Measurement> {
    let cases =
        TestDirection::BOTH.into_iter().flat_map(|direction| SIZES.map(|bytes| (direction, bytes)));
    let all = cases.flat_map(|(direction, bytes)| {
        PATHS.map(|path| Measurement {
            direction,
            path,
            bytes,
            arrived: Samples::default(),
            per_core: Samples::default(),
            offered: Samples::default(),
        })
    });
    all.filter(|measurement| only.admits(&measurement.case())).collect()
}

impl InlinePath {
    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Inline => "inline",
            Self::XdpWire => "inline-xdp-wire",
            Self::Xdp => "inline-xdp",
        }
    }
}

impl Measurement {
    fn case(&self) -> Case {
        Case::new()
            .with("way", self.direction.name())
            .with("path", self.path.name())
            .with("bytes", self.bytes)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of packets of a second")]
    fn round(&mut self, network: &mut InlineNetwork, time: Duration) -> anyhow::Result<()> {
        let mut pool = Pool::new();
        // Resolves neighbours and warms caches.
        network.offer(self.direction, self.bytes, &mut pool)?;
        std::thread::sleep(Duration::from_millis(100));
        let (before, used) = (network.arrived(self.direction)?, network.cpu_time()?);
        let start = Instant::now();
        let mut offered = 0;
        while start.elapsed() < time {
            offered += network.offer(self.direction, self.bytes, &mut pool)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let arrived = (network.arrived(self.direction)? - before) as f64;
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
