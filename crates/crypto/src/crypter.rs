//! A worker's crypto engine: takes batches of jobs and sets their statuses.
//!
//! 1. Each job's lengths are checked.
//! 2. Single-packet transforms run at once; direct calls are made together, after all their inputs
//!    are written.
//! 3. Other jobs wait, grouped by [`BurstKind`] (same algorithms), and run in bursts.
//! 4. A burst too small to be worthwhile runs one packet at a time.

use crate::error::Error;
use crate::ipsec_mb::{BURST, BurstKind, DirectCalls, Worker};
use crate::job::{OpenJob, OpenStatus, SealJob, SealStatus};
use crate::key::{ExpandedKeys, SaKey, SmallBursts};
use crate::portable::{self, Scratch};

/// One worker's crypto state. It may move to another thread, but no two use it at once.
#[derive(Debug)]
pub struct Crypter {
    scratch: Scratch,
    ipsec_mb: Option<Worker>,
    waiting: BurstQueue,
}

/// ipsec-mb counts a job's bytes in 16 bits, padding included; longer packets run singly.
const MAX_BURST_LEN: usize = 60_000;

impl Crypter {
    /// Allocates everything in advance.
    ///
    /// # Errors
    /// [`Error::Library`] when a crypto library has no memory.
    pub fn new() -> Result<Self, Error> {
        let ipsec_mb = Worker::new();
        if ipsec_mb.is_none() && crate::ipsec_mb::available() {
            return Err(Error::Library("ipsec-mb")); // keys may be expanded for it
        }
        Ok(Self { scratch: Scratch::new()?, ipsec_mb, waiting: BurstQueue::default() })
    }

    /// Encrypts and authenticates every job and sets its status; whether all succeeded.
    pub fn seal(&mut self, jobs: &mut [SealJob<'_>]) -> bool {
        let direct = self.seal_each(jobs);
        direct == jobs.len() || jobs.iter().all(|job| job.status == SealStatus::Sealed)
    }

    /// Number of jobs sealed by direct calls, none of which fail.
    #[inline(always)]
    fn seal_each(&mut self, jobs: &mut [SealJob<'_>]) -> usize {
        self.waiting.clear();
        let (mut calls, mut direct) = (DirectCalls::new(), 0);
        for (i, job) in jobs.iter_mut().enumerate() {
            let Some(text_len) = job.text_len() else {
                job.status = portable::refused(job.esp);
                continue;
            };
            match (&job.key.expanded, &mut self.ipsec_mb) {
                (ExpandedKeys::Direct(key), Some(worker)) if key.authenticates_only() => {
                    worker.seal_gmac(key, job, text_len);
                }
                (ExpandedKeys::Direct(key), Some(worker)) => {
                    if calls.are_others(key, job.key.shape.icv_len()) {
                        calls.run_sealing(worker);
                    }
                    calls.seal(key, job, text_len);
                    direct += 1;
                }
                (ExpandedKeys::Burst { .. }, Some(_)) if job.esp.len() <= MAX_BURST_LEN => {
                    self.waiting.push(i)
                }
                (
                    ExpandedKeys::Portable(_)
                    | ExpandedKeys::Burst { .. }
                    | ExpandedKeys::Direct(_),
                    _,
                ) => {
                    seal_alone(&mut self.scratch, job, text_len);
                }
            }
        }
        let Some(worker) = &mut self.ipsec_mb else { return direct };
        if !calls.is_empty() {
            calls.run_sealing(worker);
        }
        while let Some(burst) = self.waiting.next_burst(|i| (jobs[i].key, jobs[i].esp.len())) {
            if burst.pays {
                worker.seal_burst(jobs, burst.chosen());
                continue;
            }
            for i in burst.chosen() {
                let job = &mut jobs[*i as usize];
                let text_len = job.text_len().unwrap_or(0); // checked above
                seal_alone(&mut self.scratch, job, text_len);
            }
        }
        direct
    }

    /// Verifies every job, decrypts the authentic ones, and sets the statuses.
    pub fn open(&mut self, jobs: &mut [OpenJob<'_>]) {
        self.waiting.clear();
        let mut calls = DirectCalls::new();
        for i in 0..jobs.len() {
            let job = &mut jobs[i];
            let Some(text_len) = job.text_len() else {
                job.status = OpenStatus::TooShort;
                continue;
            };
            match (&job.key.expanded, &mut self.ipsec_mb) {
                (ExpandedKeys::Direct(key), Some(worker)) if key.authenticates_only() => {
                    worker.open_gmac(key, job, text_len);
                }
                (ExpandedKeys::Direct(key), Some(worker)) => {
                    if calls.are_others(key, job.key.shape.icv_len()) {
                        calls.run_opening(worker, jobs);
                    }
                    // A batch has fewer than 2^32 packets.
                    calls.open(key, &mut jobs[i], text_len, u32::try_from(i).unwrap_or(0));
                }
                (ExpandedKeys::Burst { .. }, Some(_)) if job.esp.len() <= MAX_BURST_LEN => {
                    self.waiting.push(i)
                }
                (
                    ExpandedKeys::Portable(_)
                    | ExpandedKeys::Burst { .. }
                    | ExpandedKeys::Direct(_),
                    _,
                ) => {
                    open_alone(&mut self.scratch, job, text_len);
                }
            }
        }
        let Some(worker) = &mut self.ipsec_mb else { return };
        if !calls.is_empty() {
            calls.run_opening(worker, jobs);
        }
        while let Some(burst) = self.waiting.next_burst(|i| (jobs[i].key, jobs[i].esp.len())) {
            if burst.pays {
                worker.open_burst(jobs, burst.chosen());
                continue;
            }
            for i in burst.chosen() {
                let job = &mut jobs[*i as usize];
                let text_len = job.text_len().unwrap_or(0); // checked above
                open_alone(&mut self.scratch, job, text_len);
            }
        }
    }
}

#[inline(always)]
fn seal_alone(scratch: &mut Scratch, job: &mut SealJob<'_>, text_len: usize) {
    match job.key.portable() {
        Some(key) => key.seal(scratch, job, text_len),
        None => job.status = portable::refused(job.esp), // a direct key exists only where its worker does
    }
}

#[inline(always)]
fn open_alone(scratch: &mut Scratch, job: &mut OpenJob<'_>, text_len: usize) {
    match job.key.portable() {
        Some(key) => key.open(scratch, job, text_len),
        None => job.status = OpenStatus::Forged, // likewise
    }
}

/// Indices of jobs that wait for a burst. Grows to the largest batch.
#[derive(Debug, Default)]
struct BurstQueue(Vec<u32>);

struct Burst {
    chosen: [u32; BURST],
    n: usize,
    pays: bool,
}

impl Burst {
    fn chosen(&self) -> &[u32] {
        &self.chosen[..self.n]
    }
}

impl BurstQueue {
    fn clear(&mut self) {
        self.0.clear();
    }

    /// A batch has fewer than 2^32 packets.
    fn push(&mut self, i: usize) {
        self.0.extend(u32::try_from(i));
    }

    /// Removes the first job and others of its kind, up to a burst's size.
    fn next_burst<'k>(&mut self, job: impl Fn(usize) -> (&'k SaKey, usize)) -> Option<Burst> {
        let lane_of = |i: u32| kind(job(i as usize).0);
        let first = lane_of(*self.0.first()?);
        let mut burst = Burst { chosen: [0; BURST], n: 0, pays: false };
        let mut bytes = 0;
        self.0.retain(|i| {
            let taken = burst.n < BURST && lane_of(*i) == first;
            if taken {
                let (key, len) = job(*i as usize);
                burst.chosen[burst.n] = *i;
                burst.n += 1;
                burst.pays |= insists(key);
                bytes += len;
            }
            !taken
        });
        burst.pays |= is_worthwhile(burst.n, bytes);
        Some(burst)
    }
}

fn kind(key: &SaKey) -> Option<BurstKind> {
    key.burst().map(crate::ipsec_mb::BurstKey::kind)
}

fn insists(key: &SaKey) -> bool {
    match &key.expanded {
        ExpandedKeys::Burst { small, .. } => *small == SmallBursts::Burst,
        ExpandedKeys::Portable(_) | ExpandedKeys::Direct(_) => false,
    }
}

/// Whether a burst is worthwhile. With fewer packets most of ipsec-mb's 8 or 16 lanes idle; half as
/// many suffice if they are long enough to outweigh a job's fixed cost.
///
/// An estimate: `uxfrm bench crypto` only has batches of 64 packets, which always are.
fn is_worthwhile(n: usize, bytes: usize) -> bool {
    n >= 8 || (n >= 4 && bytes >= n * 256)
}
