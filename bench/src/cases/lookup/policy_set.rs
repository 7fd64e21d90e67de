//! A loaded policy set, and rounds of look-ups in it.

use std::time::Instant;

use uxfrm_crypto::Backend;
use uxfrm_engine::{CacheMode, Database, Moment, Policy, Rebuild};

use super::measurement::{LookupMeasurement, PacketStream};
use crate::BenchOptions;
use crate::clock::TscClock;
use crate::report::{Case, Row, Samples};

const MODES: [(CacheMode, &str); 3] =
    [(CacheMode::Off, "off"), (CacheMode::On, "on"), (CacheMode::Auto, "auto")];

/// How policies are added to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadOrder {
    /// All at once, as from a file at start.
    Bulk,
    /// One by one, each published, as by `ip xfrm policy add`.
    OneByOne,
    /// One by one, then rebuilt, as gateways do.
    Rebuilt,
}

pub(super) const LOAD_ORDERS: [(LoadOrder, &str); 3] = [
    (LoadOrder::Bulk, "together"),
    (LoadOrder::OneByOne, "apart"),
    (LoadOrder::Rebuilt, "revised"),
];

pub(super) struct PolicySet {
    pub(super) database: Database,
    pub(super) load_seconds: f64,
    pub(super) bytes_per_policy: f64,
}

impl LoadOrder {
    /// Adds the policies; a duplicate is dropped.
    fn load(self, database: &mut Database, policies: impl IntoIterator<Item = Policy>) {
        match self {
            Self::Bulk => database.apply(Moment(0), |change| {
                policies.into_iter().for_each(|policy| drop(change.add_policy(policy)));
            }),
            Self::OneByOne => policies.into_iter().for_each(|policy| {
                database.apply(Moment(0), |change| drop(change.add_policy(policy)));
                database.prepare();
            }),
            Self::Rebuilt => {
                Self::OneByOne.load(database, policies);
                while let Some(timeout) = database.poll_timeout() {
                    database.handle_timeout(timeout.at, &mut Vec::new());
                }
                let revised = database.take_rebuild().map(Rebuild::build);
                database.install_rebuilt(revised, Moment(0));
            }
        }
    }
}

/// A case with each cache that the options leave.
pub(super) fn cases(case: &Case, options: &BenchOptions) -> Vec<(CacheMode, Case)> {
    let all = MODES.into_iter().map(|(mode, word)| (mode, case.clone().with("cache", word)));
    all.filter(|(_, case)| options.only.admits(case)).collect()
}

impl PolicySet {
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub(super) fn load(policies: impl IntoIterator<Item = Policy>, load_order: LoadOrder) -> Self {
        let mut database = Database::new(Backend::Portable, 1);
        let start = Instant::now();
        load_order.load(&mut database, policies);
        let load_seconds = start.elapsed().as_secs_f64();
        let footprint = database.snapshot().spd.footprint();
        let bytes_per_policy = footprint.bytes as f64 / footprint.policies.max(1) as f64;
        Self { database, load_seconds, bytes_per_policy }
    }

    /// The number of policies.
    pub(super) fn len(&self) -> usize {
        self.database.snapshot().spd.len()
    }

    /// One row for each cache.
    pub(super) fn measure(
        &self,
        case: &Case,
        stream: &PacketStream,
        options: &BenchOptions,
        clock: &TscClock,
        rows: &mut Vec<Row>,
    ) {
        let measurements = cases(case, options).into_iter();
        let mut measurements: Vec<LookupMeasurement> =
            measurements.map(|(mode, case)| LookupMeasurement::new(mode, case)).collect();
        if measurements.is_empty() {
            return;
        }
        let floor = self.rounds(&mut measurements, stream, options);
        let depth = self.database.snapshot().spd.footprint().depth;
        for measurement in measurements {
            let mut row =
                Row::of_packets(measurement.case.clone(), &measurement.sample, 64, clock.hz());
            row.figure("floor_cycles", floor.median(), 1);
            row.figure("load_seconds", self.load_seconds, 3);
            row.figure("bytes_per_policy", self.bytes_per_policy, 1);
            row.figure("depth", depth.into(), 0);
            row.figure("foretold", stream.weigh(&self.database.snapshot()), 1);
            measurement.tell(&mut row);
            rows.push(row);
        }
    }

    /// Runs rounds of all measurements in turn; returns the cycles of parsing alone.
    fn rounds(
        &self,
        measurements: &mut [LookupMeasurement],
        stream: &PacketStream,
        options: &BenchOptions,
    ) -> Samples {
        let snapshot = self.database.snapshot();
        let (packets, rounds, warm) = if options.quick {
            (1 << 12, 2, 1)
        } else {
            // Enough for a cache to grow and to hold all flows before the first round that counts.
            (1 << 16, 15, (6 * stream.flows()).div_ceil(1 << 16).max(3) + 1)
        };
        let mut floor = Samples::default();
        for round in 0..warm + rounds {
            let these = round * packets..(round + 1) * packets;
            let parsing = stream.pass(these.clone(), |flows| flows.len());
            for measurement in &mut *measurements {
                let cycles = measurement.round(&snapshot, stream, these.clone());
                if round >= warm {
                    measurement.sample.push(cycles);
                }
            }
            if round >= warm {
                floor.push(parsing);
            }
        }
        floor
    }
}
