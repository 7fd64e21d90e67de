//! Builds one path and runs all tests over it.

use std::time::Duration;

use anyhow::Context;

use super::path::{GatewaySetup, TestPath, TunnelKind};
use super::relay::Relays;
use super::results::{CaseResults, Figure};
use crate::CaseFilter;
use crate::pair::iperf::{self, IperfRun, TrafficLoad, Transfer};
use crate::pair::processor::{self, CpuTask, CpuTime};
use crate::pair::{
    self, A, B, Congestion, GatewayMode, GatewayProcess, Interrupt, Interrupted, Pinger, SaKeyPair,
    Topology, WireFrames,
};
use crate::report::Case;

/// Timeout of the first ping.
const FIRST_PING: Duration = Duration::from_secs(5);

/// How long TCP runs before pings beside it count.
const SLOW_START: Duration = Duration::from_millis(500);

/// Pings of a figure, 10 ms apart.
const PINGS: u32 = 100;

/// Tests with UDP and the bytes of a datagram.
const UDP_TESTS: [(&str, u32); 2] = [("udp64", 64), ("udp1300", 1300)];

/// Datagrams offered per second, in this order; then as many as the client can.
const RATES: [u32; 4] = [160_000, 240_000, 320_000, 400_000];

/// Runs all tests over a path.
#[derive(Debug)]
pub(crate) struct PathRunner {
    topology: Topology,
    seconds: u32,
    only: CaseFilter,
    interrupt: Interrupt,
}

/// Whether the filter leaves any test of a path. Offers all of them to the filter.
pub(crate) fn tests_any(path: &TestPath, only: &CaseFilter) -> bool {
    let case = path.case();
    let with = |test: &str, load: &str| case.clone().with("test", test).with("load", load);
    let mut cases = vec![with("rtt", "idle")];
    for congestion in Congestion::here() {
        let tcp = ["tcp1", "tcp4"].map(|test| case.clone().with("test", test));
        let tcp = tcp.into_iter().chain([with("rtt", "tcp1")]);
        cases.extend(tcp.map(|case| case.with("congestion", congestion.name())));
    }
    for (test, _) in UDP_TESTS {
        cases.extend(["160k", "peak", "2xpeak"].map(|load| with(test, load)));
    }
    // Not `any`: each is offered to the filter, admitted or not.
    cases.iter().filter(|case| only.admits(case)).count() > 0
}

impl PathRunner {
    pub(crate) fn build(
        seconds: u32,
        only: &CaseFilter,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        Ok(Self { topology: Topology::build()?, seconds, only: only.clone(), interrupt })
    }

    /// Builds a path, measures it and takes it down. A peer that fails gets a row with the reason,
    /// and is skipped from then on.
    ///
    /// # Errors
    /// A failure of any other path, or an interrupt.
    pub(crate) fn run(&self, path: &TestPath, results: &mut CaseResults) -> anyhow::Result<()> {
        let case = path.case();
        if results.is_unmeasured(&case) {
            return Ok(());
        }
        let done = self.measure_path(path, &case, results);
        match (done, path.tunnel) {
            (Err(error), TunnelKind::Peer(_)) if !error.is::<Interrupted>() => {
                results.record_unmeasured(&case, &failure_note(&error));
                Ok(())
            }
            (done, _) => done.with_context(|| format!("{case:?}")),
        }
    }

    fn measure_path(
        &self,
        path: &TestPath,
        case: &Case,
        results: &mut CaseResults,
    ) -> anyhow::Result<()> {
        self.topology.carry(path.frames)?;
        match path.tunnel {
            TunnelKind::Clear => {
                self.topology.open_clear_path()?;
                self.measure(case, &[], results)?;
                self.topology.close_clear_path()
            }
            TunnelKind::Relays(encap) => {
                let relays = Relays::start(encap, &self.topology)?;
                let measured = self.measure(case, &relays.threads(), results);
                relays.stop(measured)
            }
            TunnelKind::Gateways(gateways) => match gateways.tuning.mode {
                GatewayMode::Host | GatewayMode::HostXdp => {
                    self.run_gateways(&self.topology, gateways, case, results)
                }
                GatewayMode::Inline | GatewayMode::InlineXdp => {
                    let (between, hosts) = self.behind(path.frames)?;
                    hosts.run_gateways(&between, gateways, case, results)
                }
            },
            TunnelKind::Peer(peer) => {
                let mut running = peer.start(&self.topology, &self.interrupt)?;
                let ends = running.pids().map(CpuTask::Process);
                self.measure(case, &ends, results).map_err(|error| running.explain(error))
            }
        }
    }

    /// Starts uxfrm gateways in the namespaces `between` and measures.
    fn run_gateways(
        &self,
        between: &Topology,
        GatewaySetup { protection, tuning }: GatewaySetup,
        case: &Case,
        results: &mut CaseResults,
    ) -> anyhow::Result<()> {
        let directory = pair::private_directory("bench")?;
        let keys = SaKeyPair::random()?;
        let start = |here, there, namespace| {
            let config = pair::write(directory.path(), protection, &keys, (here, there), tuning)?;
            GatewayProcess::start(here.name, namespace, &config, &self.interrupt)
        };
        let mut gateways = [start(&A, &B, &between.a)?, start(&B, &A, &between.b)?];
        let ends = gateways.each_ref().map(|gateway| CpuTask::Process(gateway.pid()));
        self.measure(case, &ends, results).map_err(|error| {
            gateways.iter_mut().fold(error, |error, gateway| gateway.explain(error))
        })?;
        gateways.into_iter().try_for_each(GatewayProcess::stop)
    }

    /// Namespaces for inline gateways, and a runner whose topology is the hosts behind them.
    fn behind(&self, frames: WireFrames) -> anyhow::Result<(Topology, Self)> {
        let between = Topology::wired()?;
        between.carry(frames)?;
        let topology = between.behind()?;
        let (only, interrupt) = (self.only.clone(), self.interrupt.clone());
        Ok((between, Self { topology, seconds: self.seconds, only, interrupt }))
    }

    fn measure(
        &self,
        case: &Case,
        ends: &[CpuTask],
        results: &mut CaseResults,
    ) -> anyhow::Result<()> {
        let mut pinger = self.topology.a.enter(|| Pinger::new(A.lan, B.lan))??;
        pinger.wait_for_path(FIRST_PING, &self.interrupt)?;
        self.round_trip(&case.clone().with("load", "idle"), &mut pinger, None, results)?;
        for congestion in Congestion::here() {
            self.tcp_tests(case, congestion, ends, &mut pinger, results)?;
        }
        for (test, bytes) in UDP_TESTS {
            let case = case.clone().with("test", test);
            if self.only.may_admit(&case) {
                self.udp(&case, bytes, ends, results)?;
            }
        }
        Ok(())
    }

    /// Pings beside one stream, then one stream, then four. Where namespaces may not choose this
    /// congestion control, the rows say so.
    fn tcp_tests(
        &self,
        case: &Case,
        congestion: Congestion,
        ends: &[CpuTask],
        pinger: &mut Pinger,
        results: &mut CaseResults,
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
            cases.for_each(|case| results.record_unmeasured(&case, &reason));
            return Ok(());
        }
        self.round_trip(
            &beside,
            pinger,
            Some(TrafficLoad::Tcp { streams: 1, congestion }),
            results,
        )?;
        streams.try_for_each(|(case, streams)| {
            results.record(&case, &self.tcp(TrafficLoad::Tcp { streams, congestion }, ends)?);
            Ok(())
        })
    }

    /// Pings, beside a load if there is one.
    fn round_trip(
        &self,
        case: &Case,
        pinger: &mut Pinger,
        load: Option<TrafficLoad>,
        results: &mut CaseResults,
    ) -> anyhow::Result<()> {
        let case = case.clone().with("test", "rtt");
        if !self.only.admits(&case) {
            return Ok(());
        }
        let start = |load| IperfRun::start(&self.topology, load, self.seconds + 2);
        let run = load.map(start).transpose()?;
        if run.is_some() {
            self.interrupt.sleep(SLOW_START)?;
        }
        let times = pinger.measure(PINGS, &self.interrupt)?;
        let lost = 100.0 * f64::from(times.sent - times.received) / f64::from(times.sent);
        let figures =
            [("rtt_us", times.avg_us, 1), ("best_us", times.min_us, 1), ("loss_percent", lost, 2)];
        results.record(&case, &figures);
        Ok(())
    }

    fn tcp(&self, load: TrafficLoad, ends: &[CpuTask]) -> anyhow::Result<Vec<Figure>> {
        let (transfer, cost) = self.run_load(load, ends)?;
        let gigabytes = transfer.bytes / 1e9;
        let mut figures = vec![("gbps", transfer.gbps(), 2)];
        if !ends.is_empty() {
            figures.push(("cpu_s_per_gb", cost.ends.as_secs_f64() / gigabytes, 3));
        }
        figures.push(("machine_s_per_gb", cost.machine.as_secs_f64() / gigabytes, 3));
        figures.extend(memory(ends)?);
        Ok(figures)
    }

    /// 160,000 per second, the peak over all rates, and what arrives at twice the peak.
    fn udp(
        &self,
        case: &Case,
        bytes: u32,
        ends: &[CpuTask],
        results: &mut CaseResults,
    ) -> anyhow::Result<()> {
        let offer =
            |rate| self.run_load(TrafficLoad::Udp { bytes, packets_per_second: rate }, ends);
        let wanted = |load: &str| self.only.admits(&case.clone().with("load", load));
        let mut peak: Option<Transfer> = None;
        for rate in RATES.into_iter().map(Some).chain([None]) {
            if rate != Some(RATES[0]) && !wanted("peak") && !wanted("2xpeak") {
                break;
            }
            let (transfer, _) = offer(rate)?;
            if rate == Some(RATES[0]) && wanted("160k") {
                results.record(&case.clone().with("load", "160k"), &datagrams(&transfer));
            }
            if peak.is_none_or(|peak| peak.received_pps() < transfer.received_pps()) {
                peak = Some(transfer);
            }
        }
        let Some(peak) = peak else { return Ok(()) };
        if wanted("peak") {
            results.record(&case.clone().with("load", "peak"), &datagrams(&peak));
        }
        if wanted("2xpeak") {
            let (transfer, _) = offer(Some(twice(peak.received_pps())))?;
            let mut figures = datagrams(&transfer);
            let of_peak = 100.0 * transfer.received_pps() / peak.received_pps();
            figures.push(("percent_of_peak", of_peak, 1));
            figures.extend(memory(ends)?);
            results.record(&case.clone().with("load", "2xpeak"), &figures);
        }
        Ok(())
    }

    fn run_load(&self, load: TrafficLoad, ends: &[CpuTask]) -> anyhow::Result<(Transfer, Cost)> {
        let before = Cost::so_far(ends)?;
        let transfer = iperf::run(&self.topology, load, self.seconds, &self.interrupt)?;
        Ok((transfer, Cost::so_far(ends)?.since(before)))
    }
}

/// CPU time.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Of the gateways, relays or peers at both ends.
    ends: CpuTime,
    machine: CpuTime,
}

impl Cost {
    fn so_far(ends: &[CpuTask]) -> anyhow::Result<Self> {
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

/// The larger peak of both ends' processes. A relay is a thread of this process and has none.
fn memory(ends: &[CpuTask]) -> anyhow::Result<Option<Figure>> {
    let processes = ends.iter().filter_map(|end| match end {
        CpuTask::Process(pid) => Some(*pid),
        CpuTask::Thread(_) => None,
    });
    let peaks = processes.map(processor::peak_memory);
    let peaks = peaks.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(peaks.into_iter().max().map(|bytes| ("rss_mb", bytes as f64 / 1e6, 1)))
}

/// The reason of a failure on one line, cut to a length that fits a table.
fn failure_note(error: &anyhow::Error) -> String {
    const MAX_CHARS: usize = 240;
    let text = format!("failed: {error:#}");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "packets per second are few"
)]
fn twice(pps: f64) -> u32 {
    (pps * 2.0) as u32
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn failure_note_is_one_short_line() {
        let error = anyhow!("boringtun-cli ended with 2; its last words:\n  error: invalid value");
        let error = error.context("cannot start");
        assert_eq!(
            failure_note(&error),
            "failed: cannot start: boringtun-cli ended with 2; its last words: error: invalid value"
        );
        assert_eq!(failure_note(&anyhow!("x".repeat(500))).chars().count(), 241);
    }
}
