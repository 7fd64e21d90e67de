//! `uxfrm bench states`: cycles to find a state on the way in and on the way out, alone and in batches, microseconds to add and delete one with
//! all workers told, also while a dump goes on, and what a state takes: before its first packet, with its keys as they were given, and once it is in use.
//! Beside that, what memory itself takes: cycles for one cache line anywhere in as many bytes, when many are asked for at once.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use uxfrm_crypto::{Backend, KeyMaterial, Transform};
use uxfrm_engine::{
    Cpu, Database, FlowKey, IfId, Mark, Mode, Moment, OutboundQuery, ReplayConfig, Reqid, SaConfig,
    SaId, SaProtocol, SaTransform, Snapshot, Spi, StateCursor,
};
use uxfrm_io::heap;

use crate::BenchOptions;
use crate::cases::lookup::Random;
use crate::clock::TscClock;
use crate::report::{BenchReport, Case, Machine, Row, Samples};

const SIZES: [u32; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
/// Look-ups per measurement.
const BATCH: usize = 256;
/// Look-ups whose states are fetched together, as workers do.
const TOGETHER: usize = 64;
/// States that are added, and deleted again, one at a time.
const CHANGES: u32 = 200;
/// States that a datagram of a dump shows.
const PART: usize = 16;
/// Bytes of memory that a state may take, more or less.
const BYTES: usize = 200;
/// States that are used, to see what that takes.
const USED: usize = 20_000;

/// Measures what the options leave.
///
/// # Errors
/// Keys that the crypto library does not take.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    // Kept, so that no database is built in what another left behind.
    let mut databases = Vec::new();
    let wanted = wanted_sizes(options);
    options.ensure_all_values_select()?;
    for (size, cases) in wanted {
        let before = resident();
        let mut database = Database::new(Backend::Auto, 1);
        let start = Instant::now();
        database.apply(Moment(0), |change| {
            (0..size).try_for_each(|number| {
                change.add_sa(state(number)?).map(drop).map_err(anyhow::Error::from)
            })
        })?;
        let load_seconds = start.elapsed().as_secs_f64();
        let each = (resident() - before) / f64::from(size);
        let (insert, insert_dumping, delete) = changes(&mut database, size)?;
        let snapshot = database.snapshot();
        let mut of_size = Vec::new();
        for (direction, batch, case) in cases {
            let rounds = if options.quick { 4 } else { 400 };
            let sample = look_ups(&snapshot, size, direction, batch, rounds);
            of_size.push(Row::of_packets(case, &sample, 64, clock.hz()));
        }
        let in_use = each + bytes_of_use(&snapshot);
        let line = line_cycles(size as usize * BYTES, if options.quick { 4 } else { 400 });
        for mut row in of_size {
            row.figure("insert_us", insert, 2);
            row.figure("insert_dumping_us", insert_dumping, 2);
            row.figure("delete_us", delete, 2);
            row.figure("load_seconds", load_seconds, 3);
            row.figure("line_cycles", line, 1);
            // Of a few states nothing can be said: the process grows by pages.
            let shown = |bytes| if size < 10_000 { f64::NAN } else { bytes };
            row.figure("bytes_per_state", shown(each), 0);
            row.figure("bytes_in_use", shown(in_use), 0);
            rows.push(row);
        }
        databases.push(database);
    }
    Ok(BenchReport { bench: "states", machine: Machine::here(clock.hz()), rows })
}

/// A look-up's direction, how many states are looked up at once, and the row's case.
type LookUpCase = (&'static str, usize, Case);

/// The numbers of states that the options leave, and the look-ups in each.
fn wanted_sizes(options: &BenchOptions) -> Vec<(u32, Vec<LookUpCase>)> {
    let sizes = SIZES.into_iter().filter(|size| !options.quick || *size <= 1000);
    let wanted = sizes.map(|size| {
        let look_ups = [("in", 1), ("in", TOGETHER), ("out", 1), ("out", TOGETHER)];
        let cases = look_ups.map(|(direction, batch)| {
            let case = Case::new().with("states", size).with("direction", direction);
            (direction, batch, case.with("batch", batch))
        });
        (size, cases.into_iter().filter(|(.., case)| options.only.admits(case)).collect())
    });
    wanted.filter(|(_, cases): &(_, Vec<_>)| !cases.is_empty()).collect()
}

/// Cycles per look-up of random states, some at a time.
fn look_ups(
    snapshot: &Snapshot,
    size: u32,
    direction: &str,
    batch: usize,
    rounds: usize,
) -> Samples {
    let mut random = Random::new(9);
    let mut sample = Samples::default();
    for round in 0..rounds + 8 {
        let numbers: Vec<u32> = (0..BATCH).map(|_| random.word() % size).collect();
        let from = TscClock::now();
        let found: usize = match direction {
            "in" => numbers.chunks(batch).map(|some| found_inward(snapshot, some)).sum(),
            _ => numbers.chunks(batch).map(|some| found_outward(snapshot, some)).sum(),
        };
        let cycles = TscClock::per_packet(from, BATCH);
        assert_eq!(black_box(found), BATCH, "every state is found");
        if round >= 8 {
            sample.push(cycles);
        }
    }
    sample
}

/// Cycles for each of many cache lines out of so many bytes, all of which are asked for long before they are read.
fn line_cycles(bytes: usize, rounds: usize) -> f64 {
    let memory = vec![Line([1; 8]); bytes.div_ceil(size_of::<Line>())];
    let mut random = Random::new(10);
    let mut sample = Samples::default();
    for _ in 0..rounds {
        let line = |_| &memory[random.word() as usize % memory.len()];
        let lines: Vec<&Line> = (0..BATCH + TOGETHER).map(line).collect();
        let from = TscClock::now();
        for (this, next) in lines.iter().zip(&lines[TOGETHER..]) {
            uxfrm_packet::prefetch_far(*next);
            black_box(this.0[0]);
        }
        sample.push(TscClock::per_packet(from, BATCH));
    }
    sample.median()
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

fn found_inward(snapshot: &Snapshot, numbers: &[u32]) -> usize {
    if numbers.len() > 1 && snapshot.sad.is_far() {
        let mut wanted = [(id(0), 0); TOGETHER];
        wanted.iter_mut().zip(numbers).for_each(|(place, number)| place.0 = id(*number));
        let mut count = 0;
        let wanted = &wanted[..numbers.len().min(TOGETHER)];
        snapshot.sad.inbound_each(wanted, |found| count += usize::from(found.is_some()));
        return count;
    }
    let is_found = |SaId { destination, spi, protocol }| {
        snapshot.sad.inbound(destination, spi, protocol, 0).is_some()
    };
    numbers.iter().filter(|number| is_found(id(**number))).count()
}

fn found_outward(snapshot: &Snapshot, numbers: &[u32]) -> usize {
    if numbers.len() > 1 && snapshot.sad.is_far() {
        snapshot.sad.fetch_outbound(numbers.iter().map(|number| query(*number)));
    }
    numbers.iter().filter(|number| snapshot.sad.outbound(&query(**number)).is_ok()).count()
}

const fn id(number: u32) -> SaId {
    SaId { destination: peer(number), spi: spi(number), protocol: SaProtocol::Esp }
}

const fn query(number: u32) -> OutboundQuery<'static> {
    const FLOW: FlowKey = FlowKey {
        source: SOURCE,
        destination: SOURCE,
        protocol: 17,
        source_port: 7,
        destination_port: 9,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    };
    OutboundQuery {
        source: SOURCE,
        destination: peer(number),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        if_id: IfId(0),
        mark: 0,
        cpu: Cpu(0),
        flow: &FLOW,
    }
}

/// Microseconds of one addition, of one between the parts of a dump, and of one deletion, each published; a worker holds the
/// snapshot before.
fn changes(database: &mut Database, size: u32) -> anyhow::Result<(f64, f64, f64)> {
    let _held = database.snapshot();
    let new = (size..size + 2 * CHANGES).map(state).collect::<anyhow::Result<Vec<_>>>()?;
    let ids: Vec<SaId> = new.iter().map(|config| config.id).collect();
    let mut cursor = StateCursor::default();
    let mut seconds = [0.0, 0.0];
    for (number, config) in new.into_iter().enumerate() {
        let dumping = number % 2;
        if dumping == 1 {
            let part = database.states_from(cursor).take(PART).last();
            cursor = part.map_or(cursor, |sa| StateCursor::behind(sa));
        }
        let start = Instant::now();
        database.apply(Moment(0), |change| change.add_sa(config).map(drop))?;
        seconds[dumping] += start.elapsed().as_secs_f64();
    }
    let start = Instant::now();
    for id in ids {
        database.apply(Moment(0), |change| change.delete_sa(id, Mark::default()).map(drop))?;
    }
    let delete = start.elapsed().as_secs_f64() / 2.0;
    let [insert, insert_dumping] = seconds;
    let each = |seconds: f64| seconds * 1e6 / f64::from(CHANGES);
    Ok((each(insert), each(insert_dumping), each(delete)))
}

const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Each state has a peer of its own.
const fn peer(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
}

const fn spi(number: u32) -> Spi {
    Spi(0x1000 + number)
}

fn transform() -> anyhow::Result<SaTransform> {
    Ok(SaTransform {
        transform: Transform::aead("rfc4106(gcm(aes))", 160, 128)?,
        encryption_key: KeyMaterial::new(&[7; 20]),
        authentication_key: KeyMaterial::empty(),
    })
}

fn state(number: u32) -> anyhow::Result<SaConfig> {
    Ok(SaConfig {
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        replay: ReplayConfig { window: 32, sent: 0, received: 0 },
        ..SaConfig::new(id(number), SOURCE, transform()?)
    })
}

/// What a state takes more once it carries packets: counts, window, and the keys as the crypto library wants them.
fn bytes_of_use(snapshot: &Snapshot) -> f64 {
    let before = resident();
    let used: Vec<_> = snapshot.sad.iter().take(USED).map(Arc::clone).collect();
    used.iter().for_each(|sa| sa.activate());
    #[expect(clippy::cast_precision_loss, reason = "20,000 at the most")]
    let count = used.len() as f64;
    (resident() - before) / count
}

/// Bytes of memory that this process has.
fn resident() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    heap::resident().map_or(f64::NAN, |bytes| bytes as f64)
}
