//! The figures of all cases: as a table and as one JSON object.

use std::fmt;

use serde::{Serialize, Serializer};
use uxfrm_bench::pair::RoundTrips;
use uxfrm_bench::{Machine, TscClock};

use super::throughput::Throughput;
use super::wire::{PacketKind, WireCapture};
use crate::demo_case::CaseName;

/// The demo's results. Its JSON has the shape of the benches' (`bench`, `machine`, `rows`).
#[derive(Debug, Serialize)]
pub(crate) struct DemoReport {
    bench: &'static str,
    machine: Machine,
    rows: Vec<DemoRow>,
}

/// The figures of one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DemoRow {
    #[serde(serialize_with = "as_case_object")]
    case: CaseName,
    /// TCP payload from a to b, one stream.
    #[serde(serialize_with = "rounded")]
    gbps: f64,
    /// `gbps` relative to the clear case's.
    #[serde(serialize_with = "rounded")]
    ratio: f64,
    /// CPU seconds of both gateways per gigabyte; 0 in the clear, where there are none.
    #[serde(serialize_with = "rounded")]
    cpu_s_per_gb: f64,
    /// CPU seconds of the whole machine per gigabyte, both ends of TCP included.
    #[serde(serialize_with = "rounded")]
    machine_cpu_s_per_gb: f64,
    ping: RoundTrips,
    plaintext_on_wire: bool,
    wire: WireCapture,
}

impl DemoRow {
    /// The row of a case; `clear_gbps` is the clear case's rate.
    pub(crate) fn new(
        case: CaseName,
        throughput: &Throughput,
        clear_gbps: f64,
        ping: RoundTrips,
        wire: WireCapture,
    ) -> Self {
        Self {
            case,
            gbps: throughput.gbps(),
            ratio: throughput.gbps() / clear_gbps,
            cpu_s_per_gb: throughput.gateways_per_gb(),
            machine_cpu_s_per_gb: throughput.machine_per_gb(),
            ping,
            plaintext_on_wire: wire.shows_plaintext(),
            wire,
        }
    }

    pub(crate) fn gbps(&self) -> f64 {
        self.gbps
    }

    /// The failure on the wire, if any: plaintext or no ESP in a protected case.
    pub(crate) fn breach(&self) -> Option<String> {
        let case = self.case;
        case.protection()?;
        if self.plaintext_on_wire {
            return Some(format!("{case}: plaintext could be read on the wire"));
        }
        let has_esp = self.wire.has(PacketKind::Esp) || self.wire.has(PacketKind::EspInUdp);
        (!has_esp).then(|| format!("{case}: no ESP was seen on the wire"))
    }
}

impl DemoReport {
    /// The report of this machine.
    pub(crate) fn new(rows: Vec<DemoRow>) -> Self {
        let machine = Machine::here(TscClock::calibrate().hz());
        Self { bench: "demo", machine, rows }
    }

    /// The failures on the wire of all cases.
    pub(crate) fn breaches(&self) -> Vec<String> {
        self.rows.iter().filter_map(DemoRow::breach).collect()
    }
}

/// The table.
impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        writeln!(f, "{cpu}, {cores} cores, Linux {kernel}; one TCP stream from a to b")?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<16} {:>7} {:>9} {:>10} {:>9} {:>9}  on the wire",
            "case", "Gbit/s", "of clear", "CPU s/GB*", "machine", "ping ms"
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        writeln!(f)?;
        writeln!(f, "* of both gateways; machine: of everything, both ends of TCP included")
    }
}

impl fmt::Display for DemoRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateways = match self.case.protection() {
            Some(_) => format!("{:.2}", self.cpu_s_per_gb),
            None => "-".to_owned(),
        };
        write!(
            f,
            "{:<16} {:>7.2} {:>7.1} % {gateways:>10} {:>9.2} {:>9.3}  {}",
            self.case.to_string(),
            self.gbps,
            self.ratio * 100.0,
            self.machine_cpu_s_per_gb,
            self.ping.avg_us / 1e3,
            self.wire.in_short()
        )
    }
}

/// The case as in rows of `bench tunnel`.
fn as_case_object<S: Serializer>(case: &CaseName, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Case {
        name: String,
        path: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        transform: Option<&'static str>,
        test: &'static str,
    }
    let transform = case.protection().map(|protection| protection.transform.key());
    Case { name: case.to_string(), path: case.path(), transform, test: "tcp1" }
        .serialize(serializer)
}

/// Rounds to four decimals.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn rounded<S: Serializer>(figure: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((figure * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(case: CaseName, bytes: u64, packet: &[u8]) -> DemoRow {
        let throughput = Throughput {
            bytes,
            time: Duration::from_secs(1),
            gateways: Duration::from_millis(1500),
            machine: Duration::from_secs(2),
        };
        let ping = RoundTrips { sent: 2, received: 2, min_us: 30.0, avg_us: 123.4 };
        let mut wire = WireCapture::default();
        wire.record(packet);
        DemoRow::new(case, &throughput, 40.0, ping, wire)
    }

    /// An IPv4 packet with `upper` behind its header.
    fn packet(protocol: u8, upper: &[u8]) -> Vec<u8> {
        let len = u8::try_from(20 + upper.len()).unwrap();
        let mut packet = vec![0x45, 0, 0, len, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend(upper);
        packet
    }

    fn ping_in_clear() -> Vec<u8> {
        packet(1, &[&[8, 0, 0, 0, 0, 0, 0, 0][..], &uxfrm_bench::pair::marker::fill(56)].concat())
    }

    #[test]
    fn row_is_a_line_of_the_table() {
        assert_eq!(
            row(CaseName::Gcm128Esp, 500_000_000, &packet(50, &[1; 40])).to_string(),
            "gcm128-esp          4.00    10.0 %       3.00      4.00     0.123  ESP"
        );
        assert_eq!(
            row(CaseName::Clear, 5_000_000_000, &ping_in_clear()).to_string(),
            "clear              40.00   100.0 %          -      0.40     0.123  ICMP; plaintext readable"
        );
    }

    #[test]
    fn json_has_the_shape_of_the_benches() {
        let report =
            DemoReport::new(vec![row(CaseName::Gcm128Udp, 500_000_000, &packet(50, &[1; 12]))]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["bench"], "demo");
        assert!(json["machine"]["tsc_hz"].as_f64() > Some(0.0));
        let row = &json["rows"][0];
        let case = serde_json::json!({
            "name": "gcm128-udp", "path": "uxfrm-udp", "transform": "gcm128", "test": "tcp1"
        });
        assert_eq!(row["case"], case);
        assert_eq!((row["gbps"].as_f64(), row["ratio"].as_f64()), (Some(4.0), Some(0.1)));
        assert_eq!(row["cpu_s_per_gb"], 3.0);
        assert_eq!(row["plaintext_on_wire"], false);
        assert_eq!(row["wire"][0]["kind"], "esp");
        assert!(row["wire"][0]["head"].as_str().unwrap().starts_with("4500"));
    }

    #[test]
    fn plaintext_is_a_breach_only_in_protected_cases() {
        let breach = |case, packet: &[u8]| row(case, 1, packet).breach();
        assert_eq!(breach(CaseName::Clear, &ping_in_clear()), None);
        assert_eq!(breach(CaseName::Gcm128Esp, &packet(50, &[1; 40])), None);
        assert!(breach(CaseName::Gcm128Esp, &ping_in_clear()).unwrap().contains("plaintext"));
        assert!(breach(CaseName::Gcm128Esp, &packet(47, &[1; 40])).unwrap().contains("no ESP"));
    }
}
