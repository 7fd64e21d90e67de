//! `uxfrm bench crypto`: cycles per packet of each transform, size, direction and backend.
//!
//! 256 packets of one SA in batches of 64, as a worker has them. `bytes` is the text (payload and
//! trailer), padded to the cipher's block. Rows of the `null` transform are the cost of a job
//! itself.

use uxfrm_crypto::{
    Backend, Crypter, Iv, KeyMaterial, OpenJob, OpenStatus, SaKey, SealJob, SealStatus, SeqHigh,
    Transform,
};

use crate::BenchOptions;
use crate::clock::TscClock;
use crate::report::{BenchReport, Case, Machine, Row, Samples};

const PACKETS: usize = 256;
const BATCH: usize = 64;
const SIZES: [u32; 5] = [64, 256, 512, 1024, 1400];

/// Measures what the options leave.
///
/// # Errors
/// [`uxfrm_crypto::Error`] from making a key, or a wrong verdict.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let (rounds, passes) = if options.quick { (2, 1) } else { (21, 10) };
    let mut measurements = measurements(options)?;
    options.ensure_all_values_select()?;
    let mut crypter = Crypter::new()?;
    let clock = TscClock::calibrate();
    for _ in 0..rounds {
        for measurement in &mut measurements {
            measurement.round(&mut crypter, passes)?;
        }
    }
    let rows = measurements
        .into_iter()
        .map(|t| Row::of_packets(t.case, &t.sample, t.bytes, clock.hz()))
        .collect();
    Ok(BenchReport { bench: "crypto", machine: Machine::here(clock.hz()), rows })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Seal,
    Open,
}

/// The measurement of one row.
struct Measurement {
    case: Case,
    op: Op,
    bytes: u32,
    key: SaKey,
    /// Sealed packets; `open` works on copies, made outside the measured time.
    sealed: Vec<Vec<u8>>,
    packets: Vec<Vec<u8>>,
    counter: u64,
    sample: Samples,
}

fn measurements(options: &BenchOptions) -> anyhow::Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (name, transform) in Transform::COMMON {
        for backend in Backend::available() {
            for bytes in SIZES {
                for (op, word) in [(Op::Seal, "seal"), (Op::Open, "open")] {
                    let case = Case::new().with("op", word).with("transform", *name);
                    let case = case.with("backend", backend.name()).with("bytes", bytes);
                    let key = key(transform, *backend)?;
                    // A transform that ipsec-mb lacks is not shown under its name.
                    if key.backend() == *backend && options.only.admits(&case) {
                        measurements.push(Measurement::new(case, op, bytes, key)?);
                    }
                }
            }
        }
    }
    Ok(measurements)
}

fn key(transform: &Transform, backend: Backend) -> Result<SaKey, uxfrm_crypto::Error> {
    let bytes = |len: usize| KeyMaterial::from((0u8..=255).cycle().take(len).collect::<Vec<u8>>());
    SaKey::new(transform, &bytes(transform.key_len()), &bytes(transform.auth_key_len()), backend)
}

impl Measurement {
    fn new(case: Case, op: Op, bytes: u32, key: SaKey) -> anyhow::Result<Self> {
        let transform = *key.transform();
        let text_len = (bytes as usize).next_multiple_of(transform.block_len());
        let mut sealed = vec![vec![0x5a; transform.overhead() + text_len]; PACKETS];
        let mut counter = 0;
        seal(&mut Crypter::new()?, &key, &mut sealed, &mut counter)?;
        let packets = sealed.clone();
        Ok(Self { case, op, bytes, key, sealed, packets, counter, sample: Samples::default() })
    }

    /// Processes all packets `passes` times.
    fn round(&mut self, crypter: &mut Crypter, passes: usize) -> anyhow::Result<()> {
        let mut total = 0.0;
        for _ in 0..passes {
            if self.op == Op::Open {
                for (packet, sealed) in self.packets.iter_mut().zip(&self.sealed) {
                    packet.copy_from_slice(sealed);
                }
            }
            let from = TscClock::now();
            match self.op {
                Op::Seal => seal(crypter, &self.key, &mut self.packets, &mut self.counter)?,
                Op::Open => open(crypter, &self.key, &mut self.packets)?,
            }
            total += TscClock::per_packet(from, PACKETS);
        }
        self.sample.push(total / f64::from(u32::try_from(passes)?));
        Ok(())
    }
}

/// Making the jobs is part of the measured time, as in a worker.
fn seal(
    crypter: &mut Crypter,
    key: &SaKey,
    packets: &mut [Vec<u8>],
    counter: &mut u64,
) -> anyhow::Result<()> {
    for batch in packets.chunks_mut(BATCH) {
        let mut jobs: Vec<SealJob<'_>> = Vec::with_capacity(BATCH);
        for esp in batch {
            *counter += 1;
            jobs.push(SealJob::in_place(key, SeqHigh::None, Iv::Counter(*counter), esp));
        }
        crypter.seal(&mut jobs);
        anyhow::ensure!(
            jobs.iter().all(|job| job.status == SealStatus::Sealed),
            "a packet was not sealed"
        );
    }
    Ok(())
}

fn open(crypter: &mut Crypter, key: &SaKey, packets: &mut [Vec<u8>]) -> anyhow::Result<()> {
    for batch in packets.chunks_mut(BATCH) {
        let mut jobs: Vec<OpenJob<'_>> = Vec::with_capacity(BATCH);
        jobs.extend(batch.iter_mut().map(|esp| OpenJob::in_place(key, SeqHigh::None, esp)));
        crypter.open(&mut jobs);
        anyhow::ensure!(
            jobs.iter().all(|job| job.status == OpenStatus::Authentic),
            "a packet was refused"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_run_has_a_row_for_each_transform() {
        let only = "op=seal,bytes=64,backend=portable".parse().unwrap();
        let report = run(&BenchOptions { only, quick: true, ..BenchOptions::default() }).unwrap();
        assert_eq!(report.rows.len(), Transform::COMMON.len());
        assert!(
            report.rows.iter().all(|row| row.figures["cycles_per_packet"].as_f64().unwrap() > 0.0)
        );
    }
}
