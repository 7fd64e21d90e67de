//! `uxfrm demo`: two gateways in network namespaces, real traffic between them, and what it cost.
//!
//! Everything is done by this process and its children, `uxfrm run` twice per case: namespaces, wire, ping, TCP and
//! capture need no other program. Nothing outlives it: namespaces go with the last process in them, a gateway ends
//! with its standard input, the directory with keys and configuration is removed on the way out.

mod case;
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

use crate::arguments::DemoOptions;
use report::{Report, Row};
use screen::Screen;
use throughput::{Stream, Throughput};
use wire::Wire;

pub(crate) use case::CaseName;

/// How long the first ping of a case may take to be answered.
const FIRST_PING: Duration = Duration::from_secs(5);

/// Pings of which the times are taken.
const PINGS: u32 = 20;

/// Bytes that are sent by TCP while the capture looks on.
const SHOWN_BYTES: usize = 16 * 1024;

/// How long a capture may take to hand over what it kept.
const CAPTURED: Duration = Duration::from_millis(50);

/// Runs the demo and prints what it found.
pub(crate) fn execute(options: &DemoOptions) -> anyhow::Result<()> {
    let cases = cases(&options.only);
    pair::gain_privileges()?;
    if cases.iter().any(|case| case.protection().is_some()) {
        pair::find_tun()?;
    }
    let interrupt = Interrupt::listen()?;
    let screen = if options.json { Screen::Silent } else { Screen::story() };
    let demo = Demo {
        topology: Topology::build()?,
        seconds: Duration::from_secs(options.seconds),
        screen,
        interrupt,
    };
    let report = Report::new(demo.run(&cases)?);
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

/// The stage and the means.
#[derive(Debug)]
struct Demo {
    topology: Topology,
    seconds: Duration,
    screen: Screen,
    interrupt: Interrupt,
}

/// What a case showed.
struct CaseFindings {
    ping: RoundTrips,
    wire: Wire,
    throughput: Throughput,
}

impl Demo {
    /// Runs the cases; the first is the clear one.
    fn run(&self, cases: &[CaseName]) -> anyhow::Result<Vec<Row>> {
        self.screen.topology()?;
        let mut rows: Vec<Row> = Vec::new();
        for &case in cases {
            self.screen.line(&format!("\n{case}: {}", case.title()))?;
            let CaseFindings { ping, wire, throughput } =
                self.find(case).with_context(|| format!("case {case}"))?;
            let clear_gbps = rows.first().map_or_else(|| throughput.gbps(), Row::gbps);
            rows.push(Row::new(case, &throughput, clear_gbps, ping, wire));
        }
        Ok(rows)
    }

    fn find(&self, case: CaseName) -> anyhow::Result<CaseFindings> {
        match case.protection() {
            None => {
                self.topology.open_clear_path()?;
                let findings = self.measure(&[])?;
                self.topology.close_clear_path()?;
                Ok(findings)
            }
            Some(protection) => self.find_protected(protection),
        }
    }

    /// Starts both gateways, measures and ends them.
    fn find_protected(&self, protection: Protection) -> anyhow::Result<CaseFindings> {
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
        let findings = self.measure(&pids).map_err(|error| {
            gateways.iter_mut().fold(error, |error, gateway| gateway.explain(error))
        })?;
        for gateway in gateways {
            gateway.stop()?;
        }
        Ok(findings)
    }

    /// Pings, looks at the wire, then fills one TCP stream. The capture is over by then: it would cost.
    fn measure(&self, gateways: &[u32]) -> anyhow::Result<CaseFindings> {
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
        let wire = look(&mut capture)?;
        drop(capture);
        self.screen.wire(&wire)?;
        let tell = |gbps| self.screen.rate(gbps);
        let throughput = stream.measure(self.seconds, gateways, &self.interrupt, tell)?;
        self.screen.final_rate(throughput.gbps())?;
        Ok(CaseFindings { ping, wire, throughput })
    }
}

/// The clear case and, of the others, those in `only`, or all where it is empty.
fn cases(only: &[CaseName]) -> Vec<CaseName> {
    let wanted =
        |case: &CaseName| *case == CaseName::Clear || only.is_empty() || only.contains(case);
    CaseName::ALL.into_iter().filter(wanted).collect()
}

/// Sorts the IPv4 packets that a capture kept. The demo sends no others; what an interface says for itself is IPv6.
fn look(capture: &mut Capture) -> anyhow::Result<Wire> {
    let mut wire = Wire::default();
    let is_ipv4 = |packet: &[u8]| packet.first().is_some_and(|byte| byte >> 4 == 4);
    while let Some(frame) = capture.next(CAPTURED, is_ipv4)? {
        wire.note(&frame.bytes);
    }
    Ok(wire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clear_case_always_runs_first() {
        assert_eq!(cases(&[]), CaseName::ALL);
        assert_eq!(cases(&[CaseName::Gcm128Esp]), [CaseName::Clear, CaseName::Gcm128Esp]);
        assert_eq!(cases(&[CaseName::Clear]), [CaseName::Clear]);
    }
}
