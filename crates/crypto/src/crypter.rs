//! A worker's end of the crate: batches of jobs in, verdicts out.
//!
//! 1. Each job's shape is checked.
//! 2. What goes one packet at a time is done at once; direct calls are made together, when all that they read is written.
//! 3. The rest waits, and is taken out by lane (packets whose algorithms agree) in bursts.
//! 4. A burst too small to pay goes one packet at a time.

use crate::error::Error;
use crate::ipsec_mb::{BURST, Calls, Lane, Worker};
use crate::job::{Authenticity, OpenJob, SealJob, Sealing};
use crate::key::{Ready, SaKey, SmallBursts};
use crate::portable::{self, Scratch};

/// One worker's crypto state. It may move to another thread, but no two use it at once.
#[derive(Debug)]
pub struct Crypter {
    scratch: Scratch,
    ipsec_mb: Option<Worker>,
    waiting: Waiting,
}

/// ipsec-mb counts a job's bytes in 16 bits, padding included; what is longer goes one packet at a time.
const LONGEST_IN_BURST: usize = 60_000;

impl Crypter {
    /// Allocates what no packet will allocate later.
    ///
    /// # Errors
    /// [`Error::Library`] when a crypto library has no memory.
    pub fn new() -> Result<Self, Error> {
        let ipsec_mb = Worker::new();
        if ipsec_mb.is_none() && crate::ipsec_mb::available() {
            return Err(Error::Library("ipsec-mb")); // keys may be expanded for it
        }
        Ok(Self { scratch: Scratch::new()?, ipsec_mb, waiting: Waiting::default() })
    }

    /// Encrypts and signs every job and sets its verdict. Whether all are sealed.
    pub fn seal(&mut self, jobs: &mut [SealJob<'_>]) -> bool {
        let direct = self.seal_each(jobs);
        direct == jobs.len() || jobs.iter().all(|job| job.verdict == Sealing::Sealed)
    }

    /// How many went by direct calls, which refuse none.
    #[inline(always)]
    fn seal_each(&mut self, jobs: &mut [SealJob<'_>]) -> usize {
        self.waiting.clear();
        let (mut calls, mut direct) = (Calls::new(), 0);
        for (i, job) in jobs.iter_mut().enumerate() {
            let Some(text_len) = job.text_len() else {
                job.verdict = portable::refused(job.esp);
                continue;
            };
            match (&job.key.ready, &mut self.ipsec_mb) {
                (Ready::Direct(key), Some(worker)) if key.authenticates_only() => {
                    worker.seal_gmac(key, job, text_len);
                }
                (Ready::Direct(key), Some(worker)) => {
                    if calls.are_others(key, job.key.shape.icv_len()) {
                        calls.run_sealing(worker);
                    }
                    calls.seal(key, job, text_len);
                    direct += 1;
                }
                (Ready::Burst { .. }, Some(_)) if job.esp.len() <= LONGEST_IN_BURST => {
                    self.waiting.push(i)
                }
                (Ready::Portable(_) | Ready::Burst { .. } | Ready::Direct(_), _) => {
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

    /// Checks every job and decrypts the authentic ones; sets its verdict.
    pub fn open(&mut self, jobs: &mut [OpenJob<'_>]) {
        self.waiting.clear();
        let mut calls = Calls::new();
        for i in 0..jobs.len() {
            let job = &mut jobs[i];
            let Some(text_len) = job.text_len() else {
                job.verdict = Authenticity::Runt;
                continue;
            };
            match (&job.key.ready, &mut self.ipsec_mb) {
                (Ready::Direct(key), Some(worker)) if key.authenticates_only() => {
                    worker.open_gmac(key, job, text_len);
                }
                (Ready::Direct(key), Some(worker)) => {
                    if calls.are_others(key, job.key.shape.icv_len()) {
                        calls.run_opening(worker, jobs);
                    }
                    // A batch has fewer than 2^32 packets.
                    calls.open(key, &mut jobs[i], text_len, u32::try_from(i).unwrap_or(0));
                }
                (Ready::Burst { .. }, Some(_)) if job.esp.len() <= LONGEST_IN_BURST => {
                    self.waiting.push(i)
                }
                (Ready::Portable(_) | Ready::Burst { .. } | Ready::Direct(_), _) => {
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

fn seal_alone(scratch: &mut Scratch, job: &mut SealJob<'_>, text_len: usize) {
    match job.key.portable() {
        Some(key) => key.seal(scratch, job, text_len),
        None => job.verdict = portable::refused(job.esp), // a direct key exists only where its worker does
    }
}

fn open_alone(scratch: &mut Scratch, job: &mut OpenJob<'_>, text_len: usize) {
    match job.key.portable() {
        Some(key) => key.open(scratch, job, text_len),
        None => job.verdict = Authenticity::Forged, // as above
    }
}

/// Jobs of a batch that wait for a burst, by index. Grows to the largest batch and stays so.
#[derive(Debug, Default)]
struct Waiting(Vec<u32>);

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

impl Waiting {
    fn clear(&mut self) {
        self.0.clear();
    }

    /// A batch has fewer than 2^32 packets.
    fn push(&mut self, i: usize) {
        self.0.extend(u32::try_from(i));
    }

    /// Takes out the first job and those like it, as many as a burst holds.
    fn next_burst<'k>(&mut self, job: impl Fn(usize) -> (&'k SaKey, usize)) -> Option<Burst> {
        let lane_of = |i: u32| lane(job(i as usize).0);
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
        burst.pays |= pays(burst.n, bytes);
        Some(burst)
    }
}

fn lane(key: &SaKey) -> Option<Lane> {
    key.burst().map(crate::ipsec_mb::BurstKey::lane)
}

fn insists(key: &SaKey) -> bool {
    match &key.ready {
        Ready::Burst { small, .. } => *small == SmallBursts::Burst,
        Ready::Portable(_) | Ready::Direct(_) => false,
    }
}

/// Whether a burst is worth it. With fewer packets most of ipsec-mb's 8 or 16 lanes stay idle; half as many do when they are
/// long enough to outweigh a job's fixed cost.
///
/// Judged, not measured: `uxfrm bench crypto` has batches of 64 packets only, which always pay.
fn pays(n: usize, bytes: usize) -> bool {
    n >= 8 || (n >= 4 && bytes >= n * 256)
}
