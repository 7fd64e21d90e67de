//! `uxfrm demo`: two gateways in network namespaces, real traffic between them, and its cost.
//!
//! This process and its children, `uxfrm run` twice per case, do everything: namespaces, wire,
//! ping, TCP and capture need no other program. Nothing outlives it: namespaces end with the last
//! process in them, a gateway ends with its standard input, and the directory with keys and
//! configuration is removed at the end.

mod report;
mod screen;
mod throughput;
mod wire;

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use uxfrm_bench::pair::{
    self, A, B, GatewayProcess, GatewayTuning, Interrupt, Pinger, Protection, RoundTrips,
    SaKeyPair, Topology,
};
use uxfrm_io::capture::Capture;

use crate::{arguments::DemoOptions, demo_case::CaseName};
use report::{DemoReport, DemoRow};
use screen::Screen;
use throughput::{Stream, Throughput};
use wire::WireCapture;

/// Timeout of the first ping of a case.
const FIRST_PING: Duration = Duration::from_secs(5);

/// Pings that are measured.
const PINGS: u32 = 20;

/// Bytes that are sent by TCP during the capture.
const SHOWN_BYTES: usize = 16 * 1024;

/// Timeout of reading captured packets.
const CAPTURED: Duration = Duration::from_millis(50);

/// Runs the demo and prints its report.
pub(crate) fn execute(options: &DemoOptions) -> anyhow::Result<()> {
    let cases = cases(&options.only);
    pair::gain_privileges()?;
    if cases.iter().any(|case| case.protection().is_some()) {
        pair::find_tun()?;
    }
    let interrupt = Interrupt::listen()?;
    let screen = if options.json { Screen::Silent } else { Screen::text() };
    let demo = Demo {
        topology: Topology::build()?,
        seconds: Duration::from_secs(options.seconds),
        screen,
        interrupt,
    };
    let report = DemoReport::new(demo.run(&cases)?);
    let mut stdout = io::stdout();
    if options.json {
        serde_json::to_writer_pretty(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "\n{report}")?;
    }
    let breaches = report.breaches();
    if !breaches.is_empty() {
        bail!("{}", breaches.join("; "));
    }
    Ok(())
}

/// The namespaces, and how to measure and print.
#[derive(Debug)]
struct Demo {
    topology: Topology,
    seconds: Duration,
    screen: Screen,
    interrupt: Interrupt,
}

/// The result of a case.
struct CaseResult {
    ping: RoundTrips,
    wire: WireCapture,
    throughput: Throughput,
}

impl Demo {
    /// Runs the cases; the first is the clear one.
    fn run(&self, cases: &[CaseName]) -> anyhow::Result<Vec<DemoRow>> {
        self.screen.topology()?;
        let mut rows: Vec<DemoRow> = Vec::new();
        for &case in cases {
            self.screen.line(&format!("\n{case}: {}", case.title()))?;
            let CaseResult { ping, wire, throughput } =
                self.run_case(case).with_context(|| format!("case {case}"))?;
            let clear_gbps = rows.first().map_or_else(|| throughput.gbps(), DemoRow::gbps);
            rows.push(DemoRow::new(case, &throughput, clear_gbps, ping, wire));
        }
        Ok(rows)
    }

    fn run_case(&self, case: CaseName) -> anyhow::Result<CaseResult> {
        match case.protection() {
            None => {
                self.topology.open_clear_path()?;
                let result = self.measure(&[])?;
                self.topology.close_clear_path()?;
                Ok(result)
            }
            Some(protection) => self.run_protected(protection),
        }
    }

    /// Starts both gateways, measures and stops them.
    fn run_protected(&self, protection: Protection) -> anyhow::Result<CaseResult> {
        let directory = pair::private_directory("demo")?;
        let keys = SaKeyPair::random()?;
        let start = |here, there, namespace| {
            let config = pair::write(
                directory.path(),
                protection,
                &keys,
                (here, there),
                GatewayTuning::default(),
            )?;
            GatewayProcess::start(here.name, namespace, &config, &self.interrupt)
        };
        let mut gateways = [start(&A, &B, &self.topology.a)?, start(&B, &A, &self.topology.b)?];
        let pids = gateways.each_ref().map(GatewayProcess::pid);
        self.screen.line(&format!("  uxfrm run in a (pid {}) and b (pid {})", pids[0], pids[1]))?;
        let result = self.measure(&pids).map_err(|error| {
            gateways.iter_mut().fold(error, |error, gateway| gateway.explain(error))
        })?;
        for gateway in gateways {
            gateway.stop()?;
        }
        Ok(result)
    }

    /// Pings, captures the wire, then fills one TCP stream. The capture has ended by then, because
    /// it costs CPU time.
    fn measure(&self, gateways: &[u32]) -> anyhow::Result<CaseResult> {
        let mut pinger = self.topology.a.enter(|| Pinger::new(A.lan, B.lan))??;
        pinger.wait_for_path(FIRST_PING, &self.interrupt)?;
        let mut capture = self.topology.capture()?;
        let ping = pinger.measure(PINGS, &self.interrupt)?;
        self.screen.line(&format!(
            "  ping  {} of {} answered, {:.3} ms on average, {:.3} at best",
            ping.received,
            ping.sent,
            ping.avg_us / 1e3,
            ping.min_us / 1e3
        ))?;
        let (a, b) = ((&self.topology.a, A.lan), (&self.topology.b, B.lan));
        let mut stream = Stream::connect(a, b)?;
        stream.send(SHOWN_BYTES)?;
        let wire = read_capture(&mut capture)?;
        drop(capture);
        self.screen.wire(&wire)?;
        let tell = |gbps| self.screen.rate(gbps);
        let throughput = stream.measure(self.seconds, gateways, &self.interrupt, tell)?;
        self.screen.final_rate(throughput.gbps())?;
        Ok(CaseResult { ping, wire, throughput })
    }
}

/// The clear case and, of the others, those in `only`, or all where it is empty.
fn cases(only: &[CaseName]) -> Vec<CaseName> {
    let wanted =
        |case: &CaseName| *case == CaseName::Clear || only.is_empty() || only.contains(case);
    CaseName::ALL.into_iter().filter(wanted).collect()
}

/// Sorts the captured IPv4 packets. The demo sends no others; IPv6 packets are of the interfaces
/// themselves.
fn read_capture(capture: &mut Capture) -> anyhow::Result<WireCapture> {
    let mut wire = WireCapture::default();
    let is_ipv4 = |packet: &[u8]| packet.first().is_some_and(|byte| byte >> 4 == 4);
    while let Some(frame) = capture.next(CAPTURED, is_ipv4)? {
        wire.record(&frame.bytes);
    }
    Ok(wire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_case_always_runs_first() {
        assert_eq!(cases(&[]), CaseName::ALL);
        assert_eq!(cases(&[CaseName::Gcm128Esp]), [CaseName::Clear, CaseName::Gcm128Esp]);
        assert_eq!(cases(&[CaseName::Clear]), [CaseName::Clear]);
    }
}
