//! netperf's `TCP_STREAM` and `TCP_RR`: one connection that is kept full, and connections with one
//! byte in flight each.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::gateways::{CpuTime, Endpoints};

/// Bytes of each write and read of a stream.
const BLOCK: usize = 128 * 1024;
/// Warm-up as a share of the measured time: past slow start.
const WARM_UP: f64 = 0.3;
/// Timeout of a read or a write.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a count that stands still is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes or transactions, seconds, and the gateways' CPU time.
type Measured = (f64, f64, CpuTime);

/// Runs one stream for `time` and counts bytes of payload that arrive.
pub(super) fn stream(
    ends: Endpoints<'_>,
    time: Duration,
    cpu_time: impl Fn() -> anyhow::Result<CpuTime>,
) -> anyhow::Result<Measured> {
    let (client, server) = connection(ends)?;
    let (received, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || write_until_done(client, done));
        scope.spawn(move || read_on(server, received));
        let measured = between(time, received, cpu_time);
        done.store(true, Ordering::Relaxed);
        measured
    })
}

/// Runs transactions of one byte each way over `connections` for `time` and counts them; appends
/// their microseconds to `latencies`.
pub(super) fn requests(
    ends: Endpoints<'_>,
    connections: usize,
    time: Duration,
    cpu_time: impl Fn() -> anyhow::Result<CpuTime>,
    latencies: &mut Vec<f64>,
) -> anyhow::Result<Measured> {
    let pairs: Vec<_> =
        (0..connections).map(|_| connection(ends)).collect::<anyhow::Result<_>>()?;
    let (count, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let clients: Vec<ScopedJoinHandle<'_, Vec<f64>>> = pairs
            .into_iter()
            .map(|(client, server)| {
                scope.spawn(move || answer(server));
                scope.spawn(move || ask(client, count, done))
            })
            .collect();
        let measured = between(time, count, cpu_time);
        done.store(true, Ordering::Relaxed);
        for client in clients {
            latencies.extend(client.join().unwrap_or_default());
        }
        measured
    })
}

/// A connection: the client's and the server's socket.
fn connection(ends: Endpoints<'_>) -> anyhow::Result<(TcpStream, TcpStream)> {
    let (server_side, to) = ends.to;
    let listener = server_side.enter(|| TcpListener::bind(SocketAddr::new(to, 0)))?;
    let listener = listener.with_context(|| format!("cannot listen on {to}"))?;
    let place = listener.local_addr()?;
    let client = ends.from.enter(|| TcpStream::connect_timeout(&place, IO_TIMEOUT))?;
    let client = client.with_context(|| format!("cannot connect to {to}"))?;
    let (server, _) = listener.accept()?;
    for end in [&client, &server] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(IO_TIMEOUT))?;
        end.set_write_timeout(Some(IO_TIMEOUT))?;
    }
    Ok((client, server))
}

/// Lets traffic warm up, then counts for `time`, or longer if nothing came through: another program
/// may have had the processor.
fn between(
    time: Duration,
    count: &AtomicU64,
    cpu_time: impl Fn() -> anyhow::Result<CpuTime>,
) -> anyhow::Result<Measured> {
    beyond(0, count).context("before the measurement")?;
    thread::sleep(time.mul_f64(WARM_UP));
    let (start, from, cpu) = (Instant::now(), count.load(Ordering::Relaxed), cpu_time()?);
    thread::sleep(time);
    let counted = beyond(from, count)? - from;
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let counted = counted as f64;
    Ok((counted, seconds, cpu_time()?.saturating_sub(cpu)))
}

/// Waits until the count is above `from`, for at most [`IO_TIMEOUT`].
fn beyond(from: u64, count: &AtomicU64) -> anyhow::Result<u64> {
    let end = Instant::now() + IO_TIMEOUT;
    loop {
        let now = count.load(Ordering::Relaxed);
        if now > from {
            return Ok(now);
        }
        if Instant::now() > end {
            bail!("TCP is stuck: nothing came through within {} s", IO_TIMEOUT.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Writes until `done`, or until the connection ends.
fn write_until_done(mut client: TcpStream, done: &AtomicBool) {
    let block = vec![0x55; BLOCK];
    while !done.load(Ordering::Relaxed) && client.write_all(&block).is_ok() {}
}

fn read_on(mut server: TcpStream, received: &AtomicU64) {
    let mut block = vec![0; BLOCK];
    loop {
        match server.read(&mut block) {
            Ok(0) => return,
            Ok(bytes) => _ = received.fetch_add(bytes as u64, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Microseconds of each transaction. A broken connection ends it early.
fn ask(mut client: TcpStream, count: &AtomicU64, done: &AtomicBool) -> Vec<f64> {
    let (mut byte, mut latencies) = ([0x55], Vec::new());
    while !done.load(Ordering::Relaxed) {
        let sent = Instant::now();
        if client.write_all(&byte).and_then(|()| client.read_exact(&mut byte)).is_err() {
            break;
        }
        latencies.push(sent.elapsed().as_secs_f64() * 1e6);
        count.fetch_add(1, Ordering::Relaxed);
    }
    latencies
}

fn answer(mut server: TcpStream) {
    let mut byte = [0];
    while server.read_exact(&mut byte).is_ok() && server.write_all(&byte).is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_waits_for_progress_on_a_busy_machine() {
        let count = &AtomicU64::new(0);
        let measured = thread::scope(|scope| {
            // The first begins the warm-up; the second is counted long after the time is over.
            scope.spawn(|| {
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(100));
                count.fetch_add(7, Ordering::Relaxed);
            });
            between(Duration::from_millis(1), count, || Ok(CpuTime::ZERO))
        });
        let (counted, seconds, _) = measured.unwrap();
        assert_eq!(counted, 7.0);
        assert!(seconds > 0.001, "the rate is that of the time that it took: {seconds}");
    }
}
