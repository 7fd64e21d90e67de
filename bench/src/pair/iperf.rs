//! iperf3 between the sites: a server in one namespace, a client in the other.

use std::fs;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use uxfrm_io::Namespace;

use super::congestion::Congestion;
use super::interrupt::Interrupt;
use super::site::{A, B};
use super::topology::Topology;

/// The control and data port.
const PORT: u16 = 5201;

/// Wanted socket buffers; the host's limit may be lower.
const BUFFER: u64 = 4 << 20;

/// Datagrams between two reads of the clock at a given rate. A read for each datagram costs iperf3
/// half as much as the datagram, and it would not reach the rate.
const BURST: u32 = 32;

/// Timeout of the server's start.
const START: Duration = Duration::from_secs(5);

/// How long a client may take beyond its seconds.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// What a client sends, from a to b.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrafficLoad {
    /// TCP streams, as fast as they go.
    Tcp {
        /// The number of streams.
        streams: u32,
        /// Their congestion control.
        congestion: Congestion,
    },
    /// UDP datagrams.
    Udp {
        /// Payload bytes of each.
        bytes: u32,
        /// Offered rate; `None` for as many as the client can send.
        packets_per_second: Option<u32>,
    },
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Seconds that the server measured.
    pub seconds: f64,
    /// Payload bytes that it received.
    pub bytes: f64,
    /// Datagrams that the client sent; 0 for TCP.
    pub sent: f64,
    /// Datagrams that the server received; 0 for TCP.
    pub received: f64,
    /// Datagrams that the server received out of order; 0 for TCP.
    pub out_of_order: f64,
}

impl Transfer {
    /// Gigabits of payload per second.
    #[must_use]
    pub fn gbps(&self) -> f64 {
        self.bytes * 8.0 / 1e9 / self.seconds
    }

    /// Datagrams received per second.
    #[must_use]
    pub fn received_pps(&self) -> f64 {
        self.received / self.seconds
    }

    /// Datagrams sent per second.
    #[must_use]
    pub fn sent_pps(&self) -> f64 {
        self.sent / self.seconds
    }

    /// Percent of the datagrams that did not arrive.
    #[must_use]
    pub fn loss_percent(&self) -> f64 {
        if self.sent > 0.0 { (1.0 - self.received / self.sent).max(0.0) * 100.0 } else { 0.0 }
    }
}

/// Checks that iperf3 is installed.
///
/// # Errors
/// It is not; the error says how to install it.
pub fn find() -> anyhow::Result<()> {
    let version = Command::new("iperf3").arg("--version").output();
    version.map(drop).context("this needs iperf3 (`apt-get install iperf3`)")
}

/// A started run, which ends when dropped.
#[derive(Debug)]
pub struct IperfRun {
    server: ChildProcess,
    client: ChildProcess,
    load: TrafficLoad,
    end: Instant,
}

impl IperfRun {
    /// Starts both ends.
    ///
    /// # Errors
    /// When either does not start.
    pub fn start(topology: &Topology, load: TrafficLoad, seconds: u32) -> anyhow::Result<Self> {
        let server = serve(&topology.b)?;
        let mut command = Command::new("iperf3");
        command.args(["-J", "-c"]).arg(B.lan.to_string()).args(["-B", &A.lan.to_string()]);
        command.args(["-p", &PORT.to_string(), "-t", &seconds.to_string()]);
        command.args(words(load, buffer()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let TrafficLoad::Tcp { congestion, .. } = load {
            let begun = congestion.begin_in(&topology.a);
            begun.with_context(|| format!("cannot have TCP begin with {}", congestion.name()))?;
        }
        let client =
            ChildProcess(topology.a.enter(|| command.spawn())?.context("cannot start iperf3")?);
        let end = Instant::now() + Duration::from_secs(seconds.into()) + END_TIMEOUT;
        Ok(Self { server, client, load, end })
    }

    /// Waits for the end and reads the result.
    ///
    /// # Errors
    /// iperf3's error, or an interrupt.
    pub fn finish(mut self, interrupt: &Interrupt) -> anyhow::Result<Transfer> {
        let readers = [self.client.output()?, self.server.output()?];
        while !readers.iter().all(JoinHandle::is_finished) {
            interrupt.sleep(Duration::from_millis(10))?;
            if Instant::now() > self.end {
                bail!("iperf3 does not come to an end ({:?})", self.load);
            }
        }
        let [client, server] = readers.map(|reader| {
            let text = reader.join().map_err(|_| anyhow!("iperf3's reader failed"))??;
            serde_json::from_slice(&text).context("iperf3's JSON can't be read")
        });
        transfer(&client?, &server?, self.load)
    }
}

/// A process that is killed when dropped.
#[derive(Debug)]
struct ChildProcess(Child);

impl ChildProcess {
    /// Reads its standard output to the end.
    fn output(&mut self) -> anyhow::Result<JoinHandle<io::Result<Vec<u8>>>> {
        let mut stdout = self.0.stdout.take().context("iperf3 has no output")?;
        Ok(thread::spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).map(|_| text)
        }))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A whole run.
///
/// # Errors
/// As [`IperfRun::start`] and [`IperfRun::finish`].
pub fn run(
    topology: &Topology,
    load: TrafficLoad,
    seconds: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Transfer> {
    IperfRun::start(topology, load, seconds)?.finish(interrupt)
}

/// Starts a server for one client; it listens when this returns.
fn serve(namespace: &Namespace) -> anyhow::Result<ChildProcess> {
    let mut command = Command::new("iperf3");
    command.args(["-J", "-s", "-1", "-B", &B.lan.to_string(), "-p", &PORT.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server =
        ChildProcess(namespace.enter(|| command.spawn())?.context("cannot start iperf3")?);
    let table = format!("/proc/{}/net/tcp", server.0.id());
    let end = Instant::now() + START;
    while !fs::read_to_string(&table).is_ok_and(|text| listens(&text, B.lan)) {
        if Instant::now() > end || server.0.try_wait()?.is_some() {
            bail!("iperf3's server does not listen");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

/// Whether a table like `/proc/net/tcp` has the server's socket in state LISTEN.
fn listens(table: &str, address: Ipv4Addr) -> bool {
    let local = format!("{:08X}:{PORT:04X}", u32::from_ne_bytes(address.octets()));
    table.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some(local.as_str()) && words.nth(1) == Some("0A")
    })
}

/// [`BUFFER`] or the host's limit: iperf3 fails if it does not get what it asks for.
fn buffer() -> u64 {
    let limit = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
    };
    let limits = [limit("rmem_max"), limit("wmem_max")];
    limits.into_iter().flatten().chain([BUFFER]).min().unwrap_or(BUFFER)
}

/// iperf3's options for a load. TCP buffers tune themselves.
fn words(load: TrafficLoad, buffer: u64) -> Vec<String> {
    match load {
        TrafficLoad::Tcp { streams, congestion } => {
            vec!["-P".into(), streams.to_string(), "-C".into(), congestion.name()]
        }
        TrafficLoad::Udp { bytes, packets_per_second } => {
            let rate = packets_per_second.map_or_else(
                || "0".to_owned(),
                |rate| format!("{}/{BURST}", u64::from(rate) * u64::from(bytes) * 8),
            );
            ["-u", "-l", &bytes.to_string(), "-b", &rate, "-w", &buffer.to_string()]
                .map(str::to_owned)
                .to_vec()
        }
    }
}

/// Reads both ends' JSON.
fn transfer(client: &Value, server: &Value, load: TrafficLoad) -> anyhow::Result<Transfer> {
    if let Some(error) = client["error"].as_str() {
        bail!("iperf3: {error} ({load:?})");
    }
    let (sent, received) = (&client["end"]["sum_sent"], &client["end"]["sum_received"]);
    let figure = |value: &Value| value.as_f64().context("iperf3's JSON lacks a sum");
    let (seconds, bytes) = (figure(&received["seconds"])?, figure(&received["bytes"])?);
    Ok(match load {
        TrafficLoad::Tcp { .. } => {
            Transfer { seconds, bytes, sent: 0.0, received: 0.0, out_of_order: 0.0 }
        }
        TrafficLoad::Udp { bytes: each, .. } => Transfer {
            seconds,
            bytes,
            sent: figure(&sent["packets"])?,
            received: bytes / f64::from(each),
            out_of_order: figure(&server["end"]["streams"][0]["udp"]["out_of_order"])?,
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn udp_rate_option_is_in_bits() {
        let load = TrafficLoad::Udp { bytes: 64, packets_per_second: Some(160_000) };
        assert_eq!(words(load, 7).join(" "), "-u -l 64 -b 81920000/32 -w 7");
        let load = TrafficLoad::Tcp { streams: 4, congestion: Congestion::Cubic };
        assert_eq!(words(load, 7).join(" "), "-P 4 -C cubic");
    }

    #[test]
    fn transfer_is_read_from_both_ends() {
        let client = json!({"end": {"sum_sent": {"packets": 54164, "seconds": 1.0},
            "sum_received": {"seconds": 2.0, "bytes": 1294528, "lost_packets": 32983}}});
        let server = json!({"end": {"streams": [{"udp": {"out_of_order": 3}}]}});
        let load = TrafficLoad::Udp { bytes: 64, packets_per_second: None };
        let transfer = transfer(&client, &server, load).unwrap();
        assert_eq!(transfer.out_of_order, 3.0);
        assert_eq!((transfer.received, transfer.received_pps()), (20_227.0, 10_113.5));
        assert!((transfer.loss_percent() - 62.66).abs() < 0.01);
        assert!((transfer.gbps() - 0.005_178).abs() < 1e-6);
    }

    #[test]
    fn error_of_iperf_is_returned() {
        let client = json!({"error": "unable to connect to server"});
        let load = TrafficLoad::Tcp { streams: 1, congestion: Congestion::Cubic };
        let error = transfer(&client, &Value::Null, load).unwrap_err();
        assert!(error.to_string().contains("unable to connect"));
    }

    #[test]
    fn listening_socket_is_found() {
        let table =
            "  sl  local_address rem_address   st\n   0: 0100020A:1451 00000000:0000 0A 0\n";
        assert!(listens(table, Ipv4Addr::new(10, 2, 0, 1)));
        assert!(!listens(&table.replace(" 0A ", " 01 "), Ipv4Addr::new(10, 2, 0, 1)));
    }
}
