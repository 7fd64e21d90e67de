//! Packets that were longer than a path takes: whom to ask the kernel about, and when.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use uxfrm_engine::{Moment, SaId, SaProtocol, Sad, Spi};
use uxfrm_io::icmp_errors::IcmpError;

use super::kernel_tables::{KernelTables, Routes};
use crate::clock::now;

/// Paths that are asked about in one go.
const MOST_AT_ONCE: usize = 256;

/// The kernel hands an ICMP error out before it has heeded it itself.
const BELIEVED: Duration = Duration::from_millis(10);

/// How often it is looked whether narrow paths are so still.
const MEASURE: Duration = Duration::from_secs(10);

/// Destinations to which packets were too long.
#[derive(Debug)]
pub(crate) struct PathMtuReports {
    /// As far as the kernel was not asked about them.
    reported: BTreeSet<IpAddr>,
    /// When the first of them came.
    since: Moment,
    remeasure: Moment,
}

impl PathMtuReports {
    pub(super) fn new() -> Self {
        Self { reported: BTreeSet::new(), since: now(), remeasure: now() }
    }

    /// A packet to there was longer than the network takes: workers are told soon.
    pub(crate) fn note(&mut self, to: IpAddr) {
        if self.reported.is_empty() {
            self.since = now();
        }
        if self.reported.len() < MOST_AT_ONCE {
            self.reported.insert(to);
        }
    }

    /// Routers say what paths take. Anybody can say so of anybody: it is worth asking only of
    /// tunnels' ends and of where a state leads whose packet is quoted, as templates of transport
    /// mode name no end.
    pub(super) fn note_told(&mut self, error: &IcmpError, tables: &KernelTables, sad: &Sad) {
        if tables.routes.is_peer(error.to) || is_sent_by_state(sad, error) {
            self.note(error.to);
        }
    }

    /// Asks about paths that have become narrow, and now and then about those that are so no more.
    pub(super) fn remeasure(&mut self, routes: &mut dyn Routes) {
        if now().since(self.since) >= BELIEVED {
            let reported = std::mem::take(&mut self.reported);
            reported.into_iter().for_each(|peer| routes.note_path_mtu(peer));
        }
        if now() >= self.remeasure {
            self.remeasure = now().plus(MEASURE);
            routes.remeasure_path_mtu();
        }
    }
}

fn is_sent_by_state(sad: &Sad, &IcmpError { to, spi, .. }: &IcmpError) -> bool {
    let id = |spi| SaId { destination: to, spi: Spi(spi), protocol: SaProtocol::Esp };
    spi.is_some_and(|spi| sad.with_id(id(spi)).next().is_some())
}
