//! One TCP stream from a to b, as fast as it goes, and its CPU time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use uxfrm_bench::pair::processor::{self, CpuTime};
use uxfrm_bench::pair::{Interrupt, marker};
use uxfrm_io::Namespace;

/// Bytes per write and read, as in iperf3.
const BLOCK: usize = 128 * 1024;

/// Timeout of a read or a write, after which its thread checks whether to end.
const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// Timeout of connecting, and of the next bytes: allows for lost packets, path MTU discovery and a
/// busy machine.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a count that stands still is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Warm-up before the measurement: past slow start.
const WARM_UP: Duration = Duration::from_millis(500);

/// How often the current rate is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// An established stream, its ends in two namespaces.
#[derive(Debug)]
pub(crate) struct Stream {
    client: TcpStream,
    server: TcpStream,
}

/// Bytes and CPU time between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Throughput {
    /// Bytes that the server read.
    pub(crate) bytes: u64,
    /// The time between the readings.
    pub(crate) time: Duration,
    /// CPU time of the gateways.
    pub(crate) gateways: CpuTime,
    /// CPU time of the whole machine.
    pub(crate) machine: CpuTime,
}

impl Throughput {
    /// Gigabits of TCP payload per second.
    pub(crate) fn gbps(&self) -> f64 {
        gbps(self.bytes, self.time)
    }

    /// CPU seconds of the gateways per gigabyte (10⁹ bytes) of TCP payload.
    pub(crate) fn gateways_per_gb(&self) -> f64 {
        self.gateways.as_secs_f64() / (self.bytes as f64 / 1e9)
    }

    /// CPU seconds of the whole machine per gigabyte of TCP payload.
    pub(crate) fn machine_per_gb(&self) -> f64 {
        self.machine.as_secs_f64() / (self.bytes as f64 / 1e9)
    }
}

impl Stream {
    /// Connects from an address in one namespace to an address in another.
    pub(crate) fn connect(
        (client_side, from): (&Namespace, Ipv4Addr),
        (server_side, to): (&Namespace, Ipv4Addr),
    ) -> anyhow::Result<Self> {
        let listener = server_side
            .enter(|| TcpListener::bind((to, 0)))?
            .with_context(|| format!("cannot listen on {to}"))?;
        let port = listener.local_addr()?.port();
        let client = client_side
            .enter(|| connect_from(from, SocketAddrV4::new(to, port)))?
            .with_context(|| format!("cannot connect from {from} to {to} by TCP"))?;
        let (server, _) = listener.accept()?;
        server.set_read_timeout(Some(IO_TIMEOUT))?;
        Ok(Self { client, server })
    }

    /// Sends `len` bytes through the stream, for a capture to see.
    pub(crate) fn send(&mut self, len: usize) -> anyhow::Result<()> {
        self.client.write_all(&marker::fill(len)).context("cannot send by TCP")?;
        let mut received = vec![0; len];
        self.server.read_exact(&mut received).context("cannot receive by TCP")
    }

    /// Keeps the stream full for `seconds` after a warm-up. `gateways` are the processes whose CPU
    /// time counts; `on_rate` gets the current Gbit/s.
    pub(crate) fn measure(
        self,
        seconds: Duration,
        gateways: &[u32],
        interrupt: &Interrupt,
        on_rate: impl FnMut(f64) -> io::Result<()>,
    ) -> anyhow::Result<Throughput> {
        let Self { client, server } = self;
        server.set_read_timeout(Some(STOP_INTERVAL))?;
        client.set_write_timeout(Some(STOP_INTERVAL))?;
        let (received, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(move || write_until(client, done));
            scope.spawn(move || read_until(server, received, done));
            let result = watch(received, seconds, gateways, interrupt, on_rate);
            done.store(true, Ordering::Relaxed);
            result
        })
    }
}

/// Measures while other threads move the bytes.
fn watch(
    received: &AtomicU64,
    seconds: Duration,
    gateways: &[u32],
    interrupt: &Interrupt,
    mut on_rate: impl FnMut(f64) -> io::Result<()>,
) -> anyhow::Result<Throughput> {
    arrival(received, 0, interrupt)?;
    interrupt.sleep(WARM_UP)?;
    let start = Meters::take(received, gateways)?;
    let mut last = (start.bytes, start.moment);
    while let Some(left) =
        seconds.checked_sub(start.moment.elapsed()).filter(|left| !left.is_zero())
    {
        interrupt.sleep(left.min(REPORT_INTERVAL))?;
        let now = (received.load(Ordering::Relaxed), Instant::now());
        on_rate(gbps(now.0 - last.0, now.1 - last.1))?;
        last = now;
    }
    arrival(received, start.bytes, interrupt)?;
    Ok(Meters::take(received, gateways)?.since(&start))
}

/// Waits until more than `bytes` have arrived: another program may have had the processors.
fn arrival(received: &AtomicU64, bytes: u64, interrupt: &Interrupt) -> anyhow::Result<()> {
    let end = Instant::now() + IO_TIMEOUT;
    while received.load(Ordering::Relaxed) <= bytes {
        if Instant::now() > end {
            bail!("TCP is stuck: nothing came through within {} s", IO_TIMEOUT.as_secs());
        }
        interrupt.sleep(POLL_INTERVAL)?;
    }
    Ok(())
}

/// All counters, read at one moment.
#[derive(Clone, Copy, Debug)]
struct Meters {
    moment: Instant,
    bytes: u64,
    gateways: CpuTime,
    machine: CpuTime,
}

impl Meters {
    fn take(received: &AtomicU64, gateways: &[u32]) -> anyhow::Result<Self> {
        let gateways =
            gateways.iter().map(|&pid| processor::of_process(pid)).sum::<anyhow::Result<_>>()?;
        let machine = processor::of_machine()?;
        Ok(Self {
            moment: Instant::now(),
            bytes: received.load(Ordering::Relaxed),
            gateways,
            machine,
        })
    }

    fn since(&self, start: &Self) -> Throughput {
        Throughput {
            bytes: self.bytes - start.bytes,
            time: self.moment - start.moment,
            gateways: self.gateways.saturating_sub(start.gateways),
            machine: self.machine.saturating_sub(start.machine),
        }
    }
}

fn gbps(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e9 / time.as_secs_f64()
}

/// Like `TcpStream::connect`, from a given address.
fn connect_from(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let socket: OwnedFd =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(
        &socket,
        sockopt::SendTimeout,
        &TimeVal::seconds(IO_TIMEOUT.as_secs().cast_signed()),
    )?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(socket.into())
}

/// Writes until `done`. A broken stream ends it too, and the measuring thread sees that nothing
/// arrives.
fn write_until(mut client: TcpStream, done: &AtomicBool) {
    let block = marker::fill(BLOCK);
    while !done.load(Ordering::Relaxed) {
        match client.write(&block) {
            Err(error) if !is_timeout(&error) => return,
            Ok(_) | Err(_) => {}
        }
    }
}

/// Reads and counts until `done`, or until the stream ends.
fn read_until(mut server: TcpStream, received: &AtomicU64, done: &AtomicBool) {
    let mut block = vec![0; BLOCK];
    while !done.load(Ordering::Relaxed) {
        match server.read(&mut block) {
            Ok(0) => return,
            Ok(len) => drop(received.fetch_add(len as u64, Ordering::Relaxed)),
            Err(error) if !is_timeout(&error) => return,
            Err(_) => {}
        }
    }
}

/// Whether the error is only a timeout or an interruption.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_per_second_and_per_gigabyte() {
        let throughput = Throughput {
            bytes: 2_000_000_000,
            time: Duration::from_secs(4),
            gateways: Duration::from_secs(3),
            machine: Duration::from_secs(6),
        };
        assert_eq!(throughput.gbps(), 4.0);
        assert_eq!(throughput.gateways_per_gb(), 1.5);
        assert_eq!(throughput.machine_per_gb(), 3.0);
    }

    #[test]
    fn stream_over_loopback_is_measured() {
        let here = Namespace::current().unwrap();
        let local = (&here, Ipv4Addr::LOCALHOST);
        let mut stream = Stream::connect(local, local).unwrap();
        stream.send(1000).unwrap();
        let (seconds, interrupt) = (Duration::from_millis(100), Interrupt::default());
        let result =
            stream.measure(seconds, &[std::process::id()], &interrupt, |_| Ok(())).unwrap();
        assert!(result.bytes > 0 && result.time >= seconds && result.gbps() > 0.0);
    }

    #[test]
    fn interrupt_ends_a_stream() {
        let here = Namespace::current().unwrap();
        let local = (&here, Ipv4Addr::LOCALHOST);
        let stream = Stream::connect(local, local).unwrap();
        let interrupt = Interrupt::set();
        let result = stream.measure(Duration::from_secs(3600), &[], &interrupt, |_| Ok(()));
        assert!(result.unwrap_err().is::<uxfrm_bench::pair::Interrupted>());
    }
}
