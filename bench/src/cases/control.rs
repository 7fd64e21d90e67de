//! `uxfrm bench control`: the cost of requests of the control protocol without sockets, from bytes
//! in to bytes out; of batch files, by unmodified `ip -batch` beside the machine's own kernel
//! (`batch`); and of dumps (`dump`).
//!
//! Without sockets each request comes from its own client, which joins and leaves, as `ip -batch`
//! opens a socket per command. `count` requests of one kind go to databases that the kinds before
//! have filled, so `newsa` at 100,000 ends with 100,000 SAs. Comparing with 1,000 in the same run
//! shows whether a request costs more in a large database.

mod batch;
mod dump;

use std::time::Instant;

use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, Moment};
use uxfrm_netlink::{ClientId, Groups, Outbox, Server, ServerSettings, SocketOptions};

use crate::BenchOptions;
use crate::cases::lookup::Random;
use crate::clock::TscClock;
use crate::report::{BenchReport, Case, Machine, Row, Samples};

const COUNTS: [u32; 3] = [100, 1000, 100_000];

/// Listeners that hear every change.
const LISTENERS: [(u32, &str); 2] = [(0, "none"), (1, "one")];

/// Requests between two publications. The gateway publishes after each turn, and a client that does
/// not wait for answers has many requests in one.
const TURNS: [u32; 2] = [1, 64];

/// Makes the request of a number.
type MakeRequest = fn(u32) -> Vec<u8>;

/// The kinds of request in the order of each round: later ones use what earlier ones add.
const REQUESTS: [(&str, MakeRequest); 8] = [
    ("newpolicy", |nth| policy(0x13, nth)),
    ("updpolicy", |nth| policy(0x19, nth)),
    ("newsa", new_sa),
    ("getsa", |nth| message(0x12, &sa_id(nth))),
    ("allocspi", allocate_spi),
    ("getpolicy", |nth| message(0x15, &policy_id(nth))),
    ("delsa", |nth| message(0x11, &sa_id(nth))),
    ("delpolicy", |nth| message(0x14, &policy_id(nth))),
];

/// Measures what the options leave.
///
/// # Errors
/// A request that is refused, and the errors of `batch`.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    let wanted = wanted_settings(options);
    let dumps = dump::wanted(options);
    let files = batch::wanted(options);
    options.ensure_all_values_select()?;
    for (case, settings) in wanted {
        measure(&case, settings, options, &clock, &mut rows)?;
    }
    rows.extend(dump::run(dumps)?);
    rows.extend(batch::run(&files, options)?);
    Ok(BenchReport { bench: "control", machine: Machine::here(clock.hz()), rows })
}

/// The numbers of requests, of listeners and of requests a turn that the options leave, with what
/// the cases of each have in common.
fn wanted_settings(options: &BenchOptions) -> Vec<(Case, (u32, u32, u32))> {
    let mut wanted = Vec::new();
    for count in COUNTS.into_iter().filter(|count| !options.quick || *count < 100_000) {
        for (listeners, word) in LISTENERS {
            for turn in TURNS {
                let case = Case::new().with("count", count).with("listeners", word);
                let case = case.with("turn", turn);
                let cases = REQUESTS.map(|(name, _)| case.clone().with("request", name));
                // Each is offered to the filter, admitted or not.
                if cases.iter().filter(|case| options.only.admits(case)).count() > 0 {
                    wanted.push((case, (count, listeners, turn)));
                }
            }
        }
    }
    wanted
}

fn measure(
    case: &Case,
    (count, listeners, turn): (u32, u32, u32),
    options: &BenchOptions,
    clock: &TscClock,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let rounds = if options.quick || count == 100_000 { 3 } else { 21 };
    let mut samples = vec![Samples::default(); REQUESTS.len()];
    let requests = REQUESTS.map(|(_, make)| (0..count).map(make).collect::<Vec<_>>());
    for _ in 0..rounds {
        let mut server = InProcessServer::new(listeners, turn);
        for (sample, requests) in samples.iter_mut().zip(&requests) {
            let from = TscClock::now();
            for request in requests {
                server.request(request)?;
            }
            sample.push(TscClock::per_packet(from, requests.len()));
        }
    }
    for ((name, _), sample) in REQUESTS.iter().zip(&samples) {
        let case = case.clone().with("request", *name);
        if options.only.admits(&case) {
            rows.push(Row::of_requests(case, sample, count, clock.hz()));
        }
    }
    Ok(())
}

/// A control server with its database, without sockets.
struct InProcessServer {
    server: Server,
    database: Database,
    out: Outbox,
    start: Instant,
    connection: u32,
    turn: u32,
}

impl InProcessServer {
    fn new(listeners: u32, turn: u32) -> Self {
        let settings = ServerSettings { epoch: 0, seed: 1, acquire_expires: 30, cpus: 2 };
        let mut server = Server::new(settings);
        for listener in 0..listeners {
            let client = ClientId { connection: listener, port: 1 };
            server.join(client, Groups::all(), SocketOptions::empty());
        }
        let mut database = Database::new(Backend::default(), 1);
        database.track_changes();
        Self {
            server,
            database,
            out: Outbox::default(),
            start: Instant::now(),
            connection: listeners,
            turn,
        }
    }

    fn request(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let now = Moment(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.connection = self.connection.wrapping_add(1).max(16);
        let client = ClientId { connection: self.connection, port: 4711 };
        self.server.join(client, Groups::empty(), SocketOptions::EXT_ACK);
        self.server.handle(client, request, &mut self.database, now, &mut self.out);
        self.server.leave(client);
        if self.connection.is_multiple_of(self.turn) {
            drop(self.database.take_changes());
            self.database.publish();
        }
        for delivery in self.out.drain() {
            let bytes = delivery.datagram.bytes();
            let refused = bytes[4..6] == [2, 0] && bytes[16..20] != [0; 4];
            anyhow::ensure!(!refused, "request {request:02x?} was refused: {bytes:02x?}");
        }
        Ok(())
    }
}

/// A request with an acknowledgement.
fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let (flags, seq, pid) = (5_u16, 7_u32, 0_u32);
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    bytes.extend([seq.to_ne_bytes(), pid.to_ne_bytes()].concat());
    bytes.extend(body);
    bytes
}

/// The selector of a block policy between networks, as `xfrm_policy_add_speed.sh` adds them,
/// distinct for each `nth`.
fn selector(nth: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(nth));
    let mut bytes = vec![0; 56];
    let lengths = [24_u8, 24, 16, 32, 28];
    bytes[0..4].copy_from_slice(&nth.to_be_bytes());
    bytes[16..20].copy_from_slice(&nth.wrapping_mul(0x9e37_79b1).to_be_bytes());
    bytes[40..42].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[42] = 32;
    bytes[43] = lengths[random.below(lengths.len())];
    bytes
}

fn policy(kind: u16, nth: u32) -> Vec<u8> {
    let mut bytes = selector(nth);
    bytes.extend([0xff; 32]);
    bytes.extend([0; 64]);
    bytes.extend(100_u32.to_ne_bytes());
    bytes.extend([0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]);
    message(kind, &bytes)
}

fn policy_id(nth: u32) -> Vec<u8> {
    [selector(nth), vec![0, 0, 0, 0, 1, 0, 0, 0]].concat()
}

/// Peers with 256 SAs each, as in a large gateway.
fn peer(nth: u32) -> [u8; 4] {
    (0x0a00_0000 | nth >> 8).to_be_bytes()
}

fn sa_id(nth: u32) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[0..4].copy_from_slice(&peer(nth));
    bytes[16..20].copy_from_slice(&(0x1000 + nth).to_be_bytes());
    bytes[20..22].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[22] = 50;
    bytes
}

/// A whole `struct xfrm_usersa_info` without SPI.
fn sa(nth: u32) -> Vec<u8> {
    let mut bytes = vec![0; 224];
    bytes[56..60].copy_from_slice(&peer(nth));
    bytes[76] = 50;
    bytes[80..84].copy_from_slice(&[192, 0, 2, 1]);
    bytes[96..128].fill(0xff);
    bytes[208..212].copy_from_slice(&(nth + 1).to_ne_bytes());
    bytes[212..214].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[214] = 1;
    bytes
}

fn new_sa(nth: u32) -> Vec<u8> {
    let mut bytes = sa(nth);
    bytes[72..76].copy_from_slice(&(0x1000 + nth).to_be_bytes());
    bytes.extend([4 + 72 + 20, 0, 18, 0]);
    let mut name = b"rfc4106(gcm(aes))".to_vec();
    name.resize(64, 0);
    bytes.extend(name);
    bytes.extend([160_u32.to_ne_bytes(), 128_u32.to_ne_bytes()].concat());
    bytes.extend([7; 16]);
    bytes.extend(nth.to_ne_bytes());
    message(0x10, &bytes)
}

fn allocate_spi(nth: u32) -> Vec<u8> {
    let range = [0x0100_0000_u32.to_ne_bytes(), 0xcfff_ffff_u32.to_ne_bytes()];
    message(0x16, &[sa(nth), range.concat()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_succeeds_and_a_refusal_is_an_error() {
        let mut server = InProcessServer::new(1, 1);
        for (_, make) in REQUESTS {
            (0..20).for_each(|nth| server.request(&make(nth)).unwrap());
        }
        let snapshot = server.database.snapshot();
        assert!(snapshot.sad.is_empty() && snapshot.spd.is_empty(), "what was added is deleted");
        assert!(server.request(&message(0x11, &sa_id(1))).is_err(), "a refusal is no figure");
    }
}
