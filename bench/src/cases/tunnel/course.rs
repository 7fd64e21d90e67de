//! One way, all tests: what a round does.

use std::time::Duration;

use anyhow::Context;

use super::findings::{Figure, Findings};
use super::relay::Relays;
use super::way::{Gateways, Through, Way};
use crate::Filter;
use crate::pair::iperf::{self, Load, Run, Transfer};
use crate::pair::processor::{self, CpuTime, Task};
use crate::pair::{
    self, A, B, Congestion, Frames, Gateway, Interrupt, Keys, Mode, Pinger, Topology,
};
use crate::report::Case;

/// How long the first ping may take to be answered.
const FIRST_PING: Duration = Duration::from_secs(5);

/// How long TCP runs before its load is one.
const SLOW_START: Duration = Duration::from_millis(500);

/// Pings of a figure, 10 ms apart.
const PINGS: u32 = 100;

/// Datagrams offered per second, in order; then as many as the client can.
const RATES: [u32; 4] = [160_000, 240_000, 320_000, 400_000];

/// The stage, and what is done on it.
#[derive(Debug)]
pub(crate) struct Course {
    topology: Topology,
    seconds: u32,
    only: Filter,
    interrupt: Interrupt,
}

impl Course {
    pub(crate) fn build(seconds: u32, only: &Filter, interrupt: Interrupt) -> anyhow::Result<Self> {
        Ok(Self { topology: Topology::build()?, seconds, only: only.clone(), interrupt })
    }

    /// Builds a way, measures it and takes it down.
    pub(crate) fn go(&self, way: &Way, findings: &mut Findings) -> anyhow::Result<()> {
        let case = way.case();
        self.topology.carry(way.frames)?;
        match way.through {
            Through::Clear => {
                self.topology.open_clear_path()?;
                self.measure(&case, &[], findings)?;
                self.topology.close_clear_path()
            }
            Through::Relays(carriage) => {
                let relays = Relays::start(carriage, &self.topology)?;
                let measured = self.measure(&case, &relays.threads(), findings);
                relays.stop(measured)
            }
            Through::Gateways(gateways) => match gateways.tuning.mode {
                Mode::Host | Mode::HostXdp => {
                    self.go_protected(&self.topology, gateways, &case, findings)
                }
                Mode::Inline | Mode::InlineXdp => {
                    let (between, hosts) = self.behind(way.frames)?;
                    hosts.go_protected(&between, gateways, &case, findings)
                }
            },
            Through::Peer(peer) => {
                let mut running = peer.start(&self.topology, &self.interrupt)?;
                let ends = running.pids().map(Task::Process);
                self.measure(&case, &ends, findings).map_err(|error| running.explain(error))
            }
        }
        .with_context(|| format!("{case:?}"))
    }

    /// With gateways in these namespaces.
    fn go_protected(
        &self,
        between: &Topology,
        Gateways { protection, tuning }: Gateways,
        case: &Case,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let directory = pair::private_directory("bench")?;
        let keys = Keys::random()?;
        let start = |here, there, namespace| {
            let config = pair::write(directory.path(), protection, &keys, (here, there), tuning)?;
            Gateway::start(here.name, namespace, &config, &self.interrupt)
        };
        let mut gateways = [start(&A, &B, &between.a)?, start(&B, &A, &between.b)?];
        let ends = gateways.each_ref().map(|gateway| Task::Process(gateway.pid()));
        self.measure(case, &ends, findings).map_err(|error| {
            gateways.iter_mut().fold(error, |error, gateway| gateway.explain(error))
        })?;
        gateways.into_iter().try_for_each(Gateway::stop)
    }

    /// Where gateways have the hosts behind them: their own namespaces, and those of the hosts as the stage.
    fn behind(&self, frames: Frames) -> anyhow::Result<(Topology, Self)> {
        let between = Topology::wired()?;
        between.carry(frames)?;
        let topology = between.behind()?;
        let (only, interrupt) = (self.only.clone(), self.interrupt.clone());
        Ok((between, Self { topology, seconds: self.seconds, only, interrupt }))
    }

    fn measure(&self, case: &Case, ends: &[Task], findings: &mut Findings) -> anyhow::Result<()> {
        let mut pinger = self.topology.a.enter(|| Pinger::new(A.lan, B.lan))??;
        pinger.wait_for_path(FIRST_PING, &self.interrupt)?;
        self.round_trip(&case.clone().with("load", "idle"), &mut pinger, None, findings)?;
        for congestion in Congestion::here() {
            self.tcp_tests(case, congestion, ends, &mut pinger, findings)?;
        }
        for (test, bytes) in [("udp64", 64), ("udp1300", 1300)] {
            let case = case.clone().with("test", test);
            if self.only.may_admit(&case) {
                self.udp(&case, bytes, ends, findings)?;
            }
        }
        Ok(())
    }

    /// Pings beside one stream, then one stream and four; where this machine's TCP can't do so, rows that say why.
    fn tcp_tests(
        &self,
        case: &Case,
        congestion: Congestion,
        ends: &[Task],
        pinger: &mut Pinger,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let case = case.clone().with("congestion", congestion.name());
        let beside = case.clone().with("load", "tcp1");
        let streams = [("tcp1", 1), ("tcp4", 4)];
        let mut streams = streams
            .map(|(test, streams)| (case.clone().with("test", test), streams))
            .into_iter()
            .filter(|(case, _)| self.only.admits(case));
        if let Some(reason) = congestion.refusal(&self.topology.a) {
            let pings = beside.with("test", "rtt");
            let pings = self.only.admits(&pings).then_some(pings);
            let cases = pings.into_iter().chain(streams.map(|(case, _)| case));
            cases.for_each(|case| findings.excuse(&case, &reason));
            return Ok(());
        }
        self.round_trip(&beside, pinger, Some(Load::Tcp { streams: 1, congestion }), findings)?;
        streams.try_for_each(|(case, streams)| {
            findings.note(&case, &self.tcp(Load::Tcp { streams, congestion }, ends)?);
            Ok(())
        })
    }

    /// Pings, beside a load or alone.
    fn round_trip(
        &self,
        case: &Case,
        pinger: &mut Pinger,
        load: Option<Load>,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let case = case.clone().with("test", "rtt");
        if !self.only.admits(&case) {
            return Ok(());
        }
        let start = |load| Run::start(&self.topology, load, self.seconds + 2);
        let run = load.map(start).transpose()?;
        if run.is_some() {
            self.interrupt.sleep(SLOW_START)?;
        }
        let times = pinger.measure(PINGS, &self.interrupt)?;
        let lost = 100.0 * f64::from(times.sent - times.received) / f64::from(times.sent);
        let figures =
            [("rtt_us", times.avg_us, 1), ("best_us", times.min_us, 1), ("loss_percent", lost, 2)];
        findings.note(&case, &figures);
        Ok(())
    }

    fn tcp(&self, load: Load, ends: &[Task]) -> anyhow::Result<Vec<Figure>> {
        let (transfer, cost) = self.run(load, ends)?;
        let gigabytes = transfer.bytes / 1e9;
        let mut figures = vec![("gbps", transfer.gbps(), 2)];
        if !ends.is_empty() {
            figures.push(("cpu_s_per_gb", cost.ends.as_secs_f64() / gigabytes, 3));
        }
        figures.push(("machine_s_per_gb", cost.machine.as_secs_f64() / gigabytes, 3));
        figures.extend(memory(ends)?);
        Ok(figures)
    }

    /// 160,000 per second, the peak over all rates, and what is left of that at twice the peak.
    fn udp(
        &self,
        case: &Case,
        bytes: u32,
        ends: &[Task],
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let offer = |rate| self.run(Load::Udp { bytes, packets_per_second: rate }, ends);
        let wanted = |load: &str| self.only.admits(&case.clone().with("load", load));
        let mut peak: Option<Transfer> = None;
        for rate in RATES.into_iter().map(Some).chain([None]) {
            if rate != Some(RATES[0]) && !wanted("peak") && !wanted("2xpeak") {
                break;
            }
            let (transfer, _) = offer(rate)?;
            if rate == Some(RATES[0]) && wanted("160k") {
                findings.note(&case.clone().with("load", "160k"), &datagrams(&transfer));
            }
            if peak.is_none_or(|peak| peak.received_pps() < transfer.received_pps()) {
                peak = Some(transfer);
            }
        }
        let Some(peak) = peak else { return Ok(()) };
        if wanted("peak") {
            findings.note(&case.clone().with("load", "peak"), &datagrams(&peak));
        }
        if wanted("2xpeak") {
            let (transfer, _) = offer(Some(twice(peak.received_pps())))?;
            let mut figures = datagrams(&transfer);
            let of_peak = 100.0 * transfer.received_pps() / peak.received_pps();
            figures.push(("percent_of_peak", of_peak, 1));
            figures.extend(memory(ends)?);
            findings.note(&case.clone().with("load", "2xpeak"), &figures);
        }
        Ok(())
    }

    fn run(&self, load: Load, ends: &[Task]) -> anyhow::Result<(Transfer, Cost)> {
        let before = Cost::so_far(ends)?;
        let transfer = iperf::run(&self.topology, load, self.seconds, &self.interrupt)?;
        Ok((transfer, Cost::so_far(ends)?.since(before)))
    }
}

/// CPU time.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Of what carries the packets at both ends.
    ends: CpuTime,
    machine: CpuTime,
}

impl Cost {
    fn so_far(ends: &[Task]) -> anyhow::Result<Self> {
        let ends = ends.iter().map(|&task| processor::of(task)).sum::<anyhow::Result<_>>()?;
        Ok(Self { ends, machine: processor::of_machine()? })
    }

    fn since(self, before: Self) -> Self {
        Self {
            ends: self.ends.saturating_sub(before.ends),
            machine: self.machine.saturating_sub(before.machine),
        }
    }
}

fn datagrams(transfer: &Transfer) -> Vec<Figure> {
    vec![
        ("kpps", transfer.received_pps() / 1e3, 1),
        ("offered_kpps", transfer.sent_pps() / 1e3, 1),
        ("loss_percent", transfer.loss_percent(), 2),
        ("out_of_order", transfer.out_of_order, 0),
        ("gbps", transfer.gbps(), 3),
    ]
}

/// The larger of both gateways' peaks. A relay, being a thread of this process, has none of its own.
fn memory(ends: &[Task]) -> anyhow::Result<Option<Figure>> {
    let processes = ends.iter().filter_map(|end| match end {
        Task::Process(pid) => Some(*pid),
        Task::Thread(_) => None,
    });
    let peaks = processes.map(processor::peak_memory);
    let peaks = peaks.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(peaks.into_iter().max().map(|bytes| ("rss_mb", bytes as f64 / 1e6, 1)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "packets per second are few"
)]
fn twice(pps: f64) -> u32 {
    (pps * 2.0) as u32
}
