//! What a request is answered with: from the snapshot, the workers' counters and the latest post.

use std::{sync::Arc, time::Duration};

use uxfrm_engine::{
    ByDirection, ByFamily, CacheStats, DropCounts, DropReason, DropTallies, KeyManagers, Moment,
    PacketTap, Published, Settings, Snapshot, XfrmCounter,
};
use uxfrm_status::{
    counters::{CacheReport, CounterList, CounterReport},
    drops::DropStatus,
    explanation::{FlowExplanation, FlowQuery},
    gateway::{GatewayIdentity, GatewayStatus, StatusQuery},
    protocol::{RequestRefusal, StatusAnswer, StatusRequest},
};

use super::{
    access::Access,
    board::{Board, Post, Posted},
    drops::{DropRing, ROUND},
    explanation::{Lately, explain},
    grouping::Grouping,
    peer_errors::PeerErrors,
    refusals::Refusals,
    survey::{Cursor, DropFacts, ReadAt, Survey, parse_cursor},
    watch::{PacketSource, Watch, Watcher},
    workers,
};
use crate::{
    clock::{epoch, now},
    config::Mtu,
    ports::workers::DropFeed,
};

/// Where answers come from.
#[derive(Debug)]
pub(super) struct Sources {
    published: Published,
    identity: GatewayIdentity,
    /// A worker's.
    settings: Settings,
    /// When the gateway started.
    started: Moment,
    drops: DropRing,
    /// What states opened, and was dropped.
    refusals: Refusals,
    /// When that was looked at last.
    refusals_at: Moment,
    /// The tunnels as they were asked for last, and when.
    grouping: Option<(Grouping, Moment)>,
    taps: Vec<Arc<PacketTap>>,
}

/// A grouping that nobody asks for is forgotten after this.
const FORGOTTEN: Duration = Duration::from_secs(60);

impl Sources {
    /// The gateway that publishes there, when it started, its workers, and the records of drops
    /// that the process before it had.
    pub(super) fn new(
        published: Published,
        identity: GatewayIdentity,
        settings: Settings,
        started: Moment,
        (feeds, earlier): (&[DropFeed], &[DropStatus]),
    ) -> Self {
        let taps = feeds.iter().map(|feed| Arc::clone(&feed.tap)).collect();
        let drops = DropRing::new(feeds, earlier);
        Self {
            published,
            identity,
            settings,
            started,
            drops,
            refusals: Refusals::default(),
            refusals_at: Moment(0),
            grouping: None,
            taps,
        }
    }

    /// Takes records of dropped packets, workers' and the guard's, now and then, and forgets what
    /// is not needed.
    pub(super) fn collect(&mut self, board: &Board) {
        self.drops.collect_due();
        self.drops.note_guard(board);
        if now().since(self.refusals_at) >= ROUND {
            let (snapshot, posted) = (self.published.load_full(), board.posted());
            let read = ReadAt { now: now(), posted: &posted };
            self.note_refusals(&snapshot, &self.drops.tallies(), &read);
        }
        self.grouping.take_if(|(_, used)| now().since(*used) >= FORGOTTEN);
    }

    fn note_refusals(&mut self, snapshot: &Snapshot, tallies: &DropTallies, read: &ReadAt<'_>) {
        self.refusals_at = read.now;
        self.refusals.note(snapshot, tallies, read);
    }

    /// The last records of dropped packets, for the process that takes over.
    pub(super) fn last_drops(&mut self, posted: &Posted) -> Vec<DropStatus> {
        self.drops.last(posted)
    }

    /// The answer to a request. A new request of the protocol gets its arm here.
    pub(super) fn answer(
        &mut self,
        request: &StatusRequest,
        posted: &Posted,
        access: Access,
    ) -> StatusAnswer {
        let answer = match request {
            StatusRequest::Workers => Ok(StatusAnswer::Workers(workers::report(posted))),
            StatusRequest::Counters => Ok(StatusAnswer::Counters(counters(posted))),
            StatusRequest::Status(query) => {
                self.status(query, posted).map(|status| StatusAnswer::Status(Box::new(status)))
            }
            StatusRequest::Why(query) => self
                .explain(query, posted)
                .map(|explanation| StatusAnswer::Why(Box::new(explanation))),
            StatusRequest::Drops(query) => {
                self.drops.report(query, posted, access).map(StatusAnswer::Drops)
            }
            StatusRequest::DropTallies(query) => {
                Ok(StatusAnswer::DropTallies(self.drops.tally_report(query.by, posted)))
            }
            // They belong to a client: `Sources::watch`.
            StatusRequest::Capture(_) | StatusRequest::Trace(_) => {
                Err(RequestRefusal::new("packets are shown on a connection of their own"))
            }
        };
        answer.unwrap_or_else(StatusAnswer::Refusal)
    }

    /// The answer to a request that a client goes on with: it begins a watch, or takes what has
    /// come since. `None` for other requests.
    pub(super) fn watch(
        &self,
        watch: &mut Option<Watch>,
        request: &StatusRequest,
        watcher: Watcher<'_>,
    ) -> Option<StatusAnswer> {
        let source = PacketSource {
            taps: &self.taps,
            published: &self.published,
            identity: &self.identity,
            settings: &self.settings,
        };
        Watch::answer(watch, request, watcher, source)
            .map(|answer| answer.unwrap_or_else(StatusAnswer::Refusal))
    }

    fn explain(
        &mut self,
        query: &FlowQuery,
        posted: &Posted,
    ) -> Result<FlowExplanation, RequestRefusal> {
        let snapshot = self.published.load_full();
        let is_inline = self.identity.mode == "inline";
        let tun = if is_inline { String::new() } else { self.identity.tun.clone() };
        let expired = posted.post.expired.as_slice();
        let drops = self.drops.peers().with_expired(expired);
        let errors = PeerErrors { now: now(), noted: &posted.post.esp_errors };
        let lately = Lately { drops: &drops, expired, errors };
        let mut explanation = explain(&snapshot, &self.settings, query, lately)?;
        if let Some(outer) = explanation.encapsulation.as_mut().filter(|_| is_inline) {
            outer.too_big = None;
        }
        if let (Some(outer), Mtu::Fixed(bytes)) = (&mut explanation.encapsulation, posted.post.mtu)
        {
            outer.fixed_tun_mtu = Some(bytes);
        }
        Ok(FlowExplanation { tun, ..explanation })
    }

    fn status(
        &mut self,
        query: &StatusQuery,
        posted: &Posted,
    ) -> Result<GatewayStatus, RequestRefusal> {
        let after = query.after.as_deref().map(parse_cursor).transpose()?;
        let from = after.unwrap_or(Cursor::Worst(query.order));
        let filter = query.peer.as_ref();
        // Held as short as can be: it keeps deleted states and their keys.
        let snapshot = self.published.load_full();
        let read = ReadAt { now: now(), posted };
        let tallies = self.drops.tallies();
        let grouping = match filter {
            Some(_) => Grouping::of(&snapshot, filter),
            None => self.grouping(&snapshot),
        };
        self.note_refusals(&snapshot, &tallies, &read);
        let gateway = self.identity_now(&snapshot, posted);
        let drops = self.drops.peers().with_expired(&posted.post.expired);
        let facts =
            DropFacts { tallies: &tallies, refusals: &self.refusals, unsent: drops.unsent() };
        let survey = Survey::of(&snapshot, &grouping, filter, facts, read);
        let (states, policies) = (snapshot.sad.len() as u64, snapshot.spd.len() as u64);
        let mut totals = survey.totals();
        (totals.states, totals.policies) = (states, policies);
        let dropped = drop_counts(&posted.post);
        totals.dropped_by_reason = reasons(&dropped).nonzero();
        totals.dropped = totals.dropped_by_reason.total();
        let mut page = survey.page(from, query.limit());
        let errors = PeerErrors { now: read.now, noted: &posted.post.esp_errors };
        for tunnel in &mut page.tunnels {
            drops.explain(tunnel);
            errors.explain(tunnel);
        }
        let status = GatewayStatus {
            gateway,
            at: unix_seconds(),
            age_seconds: age_seconds(posted),
            totals,
            plain: grouping.plain,
            tunnels: page.tunnels,
            next: page.next,
            unmatched_states: survey.unmatched_states(),
            unmatched_states_total: survey.unmatched_states_total(),
            notices: notices(&posted.post),
        };
        if filter.is_none() {
            self.grouping = Some((grouping, now()));
        }
        Ok(status)
    }

    /// The tunnels of a snapshot, by those of the last answer as far as they hold.
    fn grouping(&mut self, snapshot: &Snapshot) -> Grouping {
        match self.grouping.take() {
            Some((grouping, _)) => grouping.renewed(snapshot),
            None => Grouping::of(snapshot, None),
        }
    }

    fn identity_now(&self, snapshot: &Snapshot, posted: &Posted) -> GatewayIdentity {
        let devices = posted.post.devices.iter().map(|(_, name)| name.clone()).collect();
        let key_manager_listens = match snapshot.acquires.key_managers {
            KeyManagers::Listening => true,
            KeyManagers::Absent => false,
        };
        let uptime_seconds = now().since(self.started).as_secs();
        GatewayIdentity { uptime_seconds, devices, key_manager_listens, ..self.identity.clone() }
    }
}

/// Whole seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    (epoch() + now().0) / 1_000_000_000
}

pub(super) fn age_seconds(posted: &Posted) -> u64 {
    now().since(posted.at).as_secs()
}

fn notices(post: &Post) -> Vec<String> {
    post.notices.lines().map(str::to_owned).collect()
}

fn drop_counts(post: &Post) -> DropCounts {
    let mut counts = DropCounts::sum(post.drops.iter().map(Arc::as_ref));
    for reason in DropReason::ALL {
        counts.add(*reason, post.others.of(*reason));
    }
    counts
}

fn reasons(counts: &DropCounts) -> CounterList {
    let all = DropReason::ALL.iter();
    CounterList(all.map(|reason| (reason.as_str().to_owned(), counts.of(*reason))).collect())
}

fn counters(posted: &Posted) -> CounterReport {
    let counts = drop_counts(&posted.post);
    let kernel = XfrmCounter::ALL.iter();
    let kernel = kernel.map(|counter| (format!("Xfrm{counter:?}"), counts.line(*counter)));
    CounterReport {
        at: unix_seconds(),
        age_seconds: age_seconds(posted),
        kernel: CounterList(kernel.collect()),
        reasons: reasons(&counts),
        tunnels: CounterList(posted.post.tunnels.clone()),
        caches: caches(&posted.post),
        notices: notices(&posted.post),
    }
}

/// Each worker's, direction's and family's; what was never used is left out.
fn caches(post: &Post) -> Vec<CacheReport> {
    let mut reports = Vec::new();
    for (worker, counts) in (0..).zip(&post.caches) {
        let ByDirection { outbound, inbound } = counts.read();
        for (direction, ByFamily { v4, v6 }) in [("out", outbound), ("in", inbound)] {
            for (family, stats) in [("ipv4", v4), ("ipv6", v6)] {
                if stats.hits + stats.misses + stats.stale + stats.bypassed > 0 {
                    reports.push(cache(worker, (direction, family), &stats));
                }
            }
        }
    }
    reports
}

fn cache(worker: u32, (direction, family): (&str, &str), stats: &CacheStats) -> CacheReport {
    let CacheStats { entries, room, bytes, hits, misses, stale, evicted, bypassed } = *stats;
    CacheReport {
        worker,
        direction: direction.to_owned(),
        family: family.to_owned(),
        entries,
        room,
        bytes,
        hits,
        misses,
        stale,
        evicted,
        bypassed,
    }
}

#[cfg(test)]
mod tests;
