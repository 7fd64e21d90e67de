//! A loaded set of policies, and rounds of look-ups in it.

use std::time::Instant;

use uxfrm_crypto::Backend;
use uxfrm_engine::{CacheMode, Database, Moment, Policy, Revision};

use super::trial::{Traffic, Trial};
use crate::Options;
use crate::clock::TscClock;
use crate::report::{Case, Row, Sample};

const MODES: [(CacheMode, &str); 3] =
    [(CacheMode::Off, "off"), (CacheMode::On, "on"), (CacheMode::Auto, "auto")];

/// How a set's policies come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loading {
    /// All at once, as from a file at start.
    Together,
    /// One by one, each published, as from `ip xfrm policy add`.
    Apart,
    /// The same, and planned anew afterwards, as gateways do.
    Revised,
}

pub(super) const LOADINGS: [(Loading, &str); 3] =
    [(Loading::Together, "together"), (Loading::Apart, "apart"), (Loading::Revised, "revised")];

pub(super) struct Set {
    pub(super) database: Database,
    pub(super) load_seconds: f64,
    pub(super) bytes_per_policy: f64,
}

impl Loading {
    /// Two of one name are one.
    fn load(self, database: &mut Database, policies: impl IntoIterator<Item = Policy>) {
        match self {
            Self::Together => database.apply(Moment(0), |change| {
                policies.into_iter().for_each(|policy| drop(change.add_policy(policy)));
            }),
            Self::Apart => policies.into_iter().for_each(|policy| {
                database.apply(Moment(0), |change| drop(change.add_policy(policy)));
                database.prepare();
            }),
            Self::Revised => {
                Self::Apart.load(database, policies);
                while let Some((due, _)) = database.poll_timeout() {
                    database.handle_timeout(due, &mut Vec::new());
                }
                let revised = database.take_revision().map(Revision::plan);
                database.adopt(revised, Moment(0));
            }
        }
    }
}

/// A case with each cache that the options leave.
pub(super) fn cases(case: &Case, options: &Options) -> Vec<(CacheMode, Case)> {
    let all = MODES.into_iter().map(|(mode, word)| (mode, case.clone().with("cache", word)));
    all.filter(|(_, case)| options.only.admits(case)).collect()
}

impl Set {
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub(super) fn load(policies: impl IntoIterator<Item = Policy>, loading: Loading) -> Self {
        let mut database = Database::new(Backend::Portable, 1);
        let start = Instant::now();
        loading.load(&mut database, policies);
        let load_seconds = start.elapsed().as_secs_f64();
        let footprint = database.snapshot().spd.footprint();
        let bytes_per_policy = footprint.bytes as f64 / footprint.policies.max(1) as f64;
        Self { database, load_seconds, bytes_per_policy }
    }

    /// Policies in it.
    pub(super) fn len(&self) -> usize {
        self.database.snapshot().spd.len()
    }

    /// One row for each cache.
    pub(super) fn measure(
        &self,
        case: &Case,
        traffic: &Traffic,
        options: &Options,
        clock: &TscClock,
        rows: &mut Vec<Row>,
    ) {
        let trials = cases(case, options).into_iter();
        let mut trials: Vec<Trial> = trials.map(|(mode, case)| Trial::new(mode, case)).collect();
        if trials.is_empty() {
            return;
        }
        let floor = self.rounds(&mut trials, traffic, options);
        let depth = self.database.snapshot().spd.footprint().depth;
        for trial in trials {
            let mut row = Row::of_packets(trial.case.clone(), &trial.sample, 64, clock.hz());
            row.figure("floor_cycles", floor.median(), 1);
            row.figure("load_seconds", self.load_seconds, 3);
            row.figure("bytes_per_policy", self.bytes_per_policy, 1);
            row.figure("depth", depth.into(), 0);
            row.figure("foretold", traffic.weigh(&self.database.snapshot()), 1);
            trial.tell(&mut row);
            rows.push(row);
        }
    }

    /// Lets all take turns; what parsing alone takes.
    fn rounds(&self, trials: &mut [Trial], traffic: &Traffic, options: &Options) -> Sample {
        let snapshot = self.database.snapshot();
        let (packets, rounds, warm) = if options.quick {
            (1 << 12, 2, 1)
        } else {
            // As often as it takes for a cache to grow and to know all flows before the first figure.
            (1 << 16, 15, (6 * traffic.flows()).div_ceil(1 << 16).max(3) + 1)
        };
        let mut floor = Sample::default();
        for round in 0..warm + rounds {
            let these = round * packets..(round + 1) * packets;
            let parsing = traffic.pass(these.clone(), |flows| flows.len());
            for trial in &mut *trials {
                let cycles = trial.round(&snapshot, traffic, these.clone());
                if round >= warm {
                    trial.sample.push(cycles);
                }
            }
            if round >= warm {
                floor.push(parsing);
            }
        }
        floor
    }
}
