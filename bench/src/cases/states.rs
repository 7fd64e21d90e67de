//! `uxfrm bench states`: cycles to look up an SA inbound and outbound, one by one and in batches;
//! microseconds to add, delete and publish one, also during a dump; and bytes of an SA before its
//! first packet and in use.
//!
//! Beside that, the cost of memory itself: cycles to read one cache line anywhere in as many bytes,
//! when many are prefetched at once.

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
/// Look-ups whose SAs are prefetched together, as by workers.
const GROUP: usize = 64;
/// SAs that are added one by one, and deleted again.
const CHANGES: u32 = 200;
/// SAs that a datagram of a dump shows.
const DUMP_PART: usize = 16;
/// Bytes of memory of an SA, roughly.
const STATE_BYTES: usize = 200;
/// SAs that are activated to measure their bytes in use.
const USED_STATES: usize = 20_000;

/// Measures what the options leave.
///
/// # Errors
/// Keys that the crypto library does not take.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    // All are kept, so that none is built in memory that another freed.
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
        let line = line_cycles(size as usize * STATE_BYTES, if options.quick { 4 } else { 400 });
        for mut row in of_size {
            row.figure("insert_us", insert, 2);
            row.figure("insert_dumping_us", insert_dumping, 2);
            row.figure("delete_us", delete, 2);
            row.figure("load_seconds", load_seconds, 3);
            row.figure("line_cycles", line, 1);
            // With few SAs the figure means nothing: the process grows by pages.
            let shown = |bytes| if size < 10_000 { f64::NAN } else { bytes };
            row.figure("bytes_per_state", shown(each), 0);
            row.figure("bytes_in_use", shown(in_use), 0);
            rows.push(row);
        }
        databases.push(database);
    }
    Ok(BenchReport { bench: "states", machine: Machine::here(clock.hz()), rows })
}

/// A look-up's direction, how many SAs are looked up at once, and the row's case.
type LookUpCase = (&'static str, usize, Case);

/// The numbers of SAs that the options leave, and the look-ups in each.
fn wanted_sizes(options: &BenchOptions) -> Vec<(u32, Vec<LookUpCase>)> {
    let sizes = SIZES.into_iter().filter(|size| !options.quick || *size <= 1000);
    let wanted = sizes.map(|size| {
        let look_ups = [("in", 1), ("in", GROUP), ("out", 1), ("out", GROUP)];
        let cases = look_ups.map(|(direction, batch)| {
            let case = Case::new().with("states", size).with("direction", direction);
            (direction, batch, case.with("batch", batch))
        });
        (size, cases.into_iter().filter(|(.., case)| options.only.admits(case)).collect())
    });
    wanted.filter(|(_, cases): &(_, Vec<_>)| !cases.is_empty()).collect()
}

/// Cycles per look-up of random SAs, `batch` at a time.
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
            "in" => numbers.chunks(batch).map(|some| find_inbound(snapshot, some)).sum(),
            _ => numbers.chunks(batch).map(|some| find_outbound(snapshot, some)).sum(),
        };
        let cycles = TscClock::per_packet(from, BATCH);
        assert_eq!(black_box(found), BATCH, "every state is found");
        if round >= 8 {
            sample.push(cycles);
        }
    }
    sample
}

/// Cycles to read each of many random cache lines out of `bytes`, prefetched long before.
fn line_cycles(bytes: usize, rounds: usize) -> f64 {
    let memory = vec![CacheLine([1; 8]); bytes.div_ceil(size_of::<CacheLine>())];
    let mut random = Random::new(10);
    let mut sample = Samples::default();
    for _ in 0..rounds {
        let line = |_| &memory[random.word() as usize % memory.len()];
        let lines: Vec<&CacheLine> = (0..BATCH + GROUP).map(line).collect();
        let from = TscClock::now();
        for (this, next) in lines.iter().zip(&lines[GROUP..]) {
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
struct CacheLine([u64; 8]);

fn find_inbound(snapshot: &Snapshot, numbers: &[u32]) -> usize {
    if numbers.len() > 1 && snapshot.sad.exceeds_cpu_cache() {
        let mut wanted = [(id(0), 0); GROUP];
        wanted.iter_mut().zip(numbers).for_each(|(place, number)| place.0 = id(*number));
        let mut count = 0;
        let wanted = &wanted[..numbers.len().min(GROUP)];
        snapshot.sad.lookup_inbound_batch(wanted, |found| count += usize::from(found.is_some()));
        return count;
    }
    let is_found = |SaId { destination, spi, protocol }| {
        snapshot.sad.inbound(destination, spi, protocol, 0).is_some()
    };
    numbers.iter().filter(|number| is_found(id(**number))).count()
}

fn find_outbound(snapshot: &Snapshot, numbers: &[u32]) -> usize {
    if numbers.len() > 1 && snapshot.sad.exceeds_cpu_cache() {
        snapshot.sad.prefetch_outbound(numbers.iter().map(|number| query(*number)));
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

/// Microseconds to add an SA, to add one between the parts of a dump, and to delete one, each with
/// publishing, while a worker holds the snapshot before.
fn changes(database: &mut Database, size: u32) -> anyhow::Result<(f64, f64, f64)> {
    let _held = database.snapshot();
    let new = (size..size + 2 * CHANGES).map(state).collect::<anyhow::Result<Vec<_>>>()?;
    let ids: Vec<SaId> = new.iter().map(|config| config.id).collect();
    let mut cursor = StateCursor::default();
    let mut seconds = [0.0, 0.0];
    for (number, config) in new.into_iter().enumerate() {
        let dumping = number % 2;
        if dumping == 1 {
            let part = database.states_from(cursor).take(DUMP_PART).last();
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

/// Each SA has its own peer.
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

/// Bytes that an SA takes more once it carries packets: counters, replay window and expanded keys.
fn bytes_of_use(snapshot: &Snapshot) -> f64 {
    let before = resident();
    let used: Vec<_> = snapshot.sad.iter().take(USED_STATES).map(Arc::clone).collect();
    used.iter().for_each(|sa| sa.activate());
    #[expect(clippy::cast_precision_loss, reason = "20,000 at the most")]
    let count = used.len() as f64;
    (resident() - before) / count
}

/// Resident bytes of this process.
fn resident() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    heap::resident().map_or(f64::NAN, |bytes| bytes as f64)
}
