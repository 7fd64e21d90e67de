//! The last dropped packets, and how many of each state, policy or device.
//!
//! Workers make records of some of the packets that they drop, and lose them where nobody takes
//! them within about a second. This takes them and keeps the last ones, with those of the process
//! that was the gateway before an upgrade.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use uxfrm_engine::{
    DeviceId, DropReason, DropRecord, DropTallies, EspEnds, FlowKey, Moment, PacketHead,
    sa::subject::SaSubject,
};
use uxfrm_status::{
    drops::{
        DropAdvice, DropQuery, DropReport, DropScope, DropStatus, DropTallyReport, DropTallyStatus,
        EspStatus, FlowStatus, StateName,
    },
    protocol::RequestRefusal,
};

use super::{
    access::Access,
    answer::unix_seconds,
    board::{Board, Posted},
    drop_lines::DropLines,
    guard_drops::GuardDrops,
    peer_drops::PeerDrops,
    refused_send,
};
use crate::{
    clock::{epoch, now},
    ports::workers::DropFeed,
};

/// Records that are kept.
const KEPT: usize = 1024;
/// How often records are taken.
pub(super) const ROUND: Duration = Duration::from_secs(1);
/// Records that pass to the process that takes over.
const PASSED: usize = 256;
/// Counts of one answer.
const TALLIES: usize = 10_000;

/// The last records of all workers.
#[derive(Debug)]
pub(super) struct DropRing {
    feeds: Vec<Feed>,
    /// What the process before this one had, the oldest first.
    earlier: VecDeque<DropStatus>,
    records: VecDeque<DropRecord>,
    guard: GuardDrops,
    /// The number of the next record; the oldest one has as many less as there are.
    next: u64,
    taken: Moment,
    lines: DropLines,
}

/// One worker's, and what was seen of it.
#[derive(Debug)]
struct Feed {
    from: DropFeed,
    dropped: u64,
    /// Whether a record may have come after its packet was counted.
    may_follow: bool,
}

impl DropRing {
    /// One for these workers, with the records that the process before this one had.
    pub(super) fn new(feeds: &[DropFeed], earlier: &[DropStatus]) -> Self {
        let feed = |from: &DropFeed| Feed { from: from.clone(), dropped: 0, may_follow: true };
        let feeds = feeds.iter().map(feed).collect();
        let (records, lines) = (VecDeque::new(), DropLines::default());
        let next = earlier.last().map_or(0, |last| last.number.saturating_add(1));
        let (earlier, guard) = (earlier.iter().cloned().collect(), GuardDrops::new(now()));
        Self { feeds, earlier, records, guard, next, taken: Moment(0), lines }
    }

    /// Takes what the guard has dropped by the latest post, and asks for another now and then.
    pub(super) fn note_guard(&mut self, board: &Board) {
        let posted = board.posted();
        if self.guard.take_due(&posted, now()) {
            // Nobody waits for it.
            let _ticket = board.ask();
        }
        let came = self.guard.take(&posted);
        self.keep(came);
    }

    /// The last records, for the process that takes over.
    pub(super) fn last(&mut self, posted: &Posted) -> Vec<DropStatus> {
        self.collect();
        let skipped = (self.earlier.len() + self.records.len()).saturating_sub(PASSED);
        self.all(posted, Access::Full).skip(skipped).collect()
    }

    /// All records, the oldest first.
    fn all<'a>(
        &'a self,
        posted: &'a Posted,
        access: Access,
    ) -> impl Iterator<Item = DropStatus> + 'a {
        let first = self.next - self.records.len() as u64;
        let earlier = self.earlier.iter().map(move |record| {
            let head = record.head.clone().filter(|_| access == Access::Full);
            DropStatus { head, ..record.clone() }
        });
        let own = (first..).zip(&self.records);
        earlier.chain(own.map(move |(number, record)| status(number, record, posted, access)))
    }

    /// Takes the records of a round that is over.
    pub(super) fn collect_due(&mut self) {
        if now().since(self.taken) >= ROUND {
            self.collect();
        }
    }

    /// Takes what records there are.
    fn collect(&mut self) {
        self.taken = now();
        let mut came: Vec<_> = self.feeds.iter_mut().flat_map(Feed::take).collect();
        came.sort_by_key(|record| record.at);
        self.keep(came);
    }

    /// Keeps records, and forgets as many of the oldest as are too many.
    fn keep(&mut self, came: Vec<DropRecord>) {
        came.iter().for_each(|record| self.lines.note(record, now()));
        self.next += came.len() as u64;
        self.records.extend(came);
        let more = (self.earlier.len() + self.records.len()).saturating_sub(KEPT);
        let of_earlier = more.min(self.earlier.len());
        self.earlier.drain(..of_earlier);
        self.records.drain(..more - of_earlier);
    }

    /// The records that are asked for.
    ///
    /// # Errors
    /// A reason that is unknown.
    pub(super) fn report(
        &mut self,
        query: &DropQuery,
        posted: &Posted,
        access: Access,
    ) -> Result<DropReport, RequestRefusal> {
        self.collect();
        let reason = query.reason.as_deref().map(named).transpose()?;
        let query =
            DropQuery { reason: reason.map(|reason| reason.as_str().to_owned()), ..query.clone() };
        let came = self.guard.take(posted);
        self.keep(came);
        let records = self.all(posted, access);
        let records: Vec<_> = records.filter(|record| query.wants(record)).collect();
        let lost = self.feeds.iter().map(|feed| feed.from.records.lost()).sum();
        Ok(DropReport {
            at: unix_seconds(),
            advice: advice(&records),
            records,
            next: self.next,
            lost,
        })
    }

    /// What is known by now of packets that were dropped for a peer.
    pub(super) fn peers(&mut self) -> PeerDrops<'_> {
        self.collect();
        PeerDrops::of(&self.records, now())
    }

    /// Counts by whose the packets were, of all workers.
    pub(super) fn tallies(&self) -> DropTallies {
        let all: Vec<_> = self.feeds.iter().map(|feed| feed.from.tallies.read()).collect();
        DropTallies::sum(all.iter().map(Arc::as_ref))
    }

    /// The same by states, policies or devices, the highest first.
    pub(super) fn tally_report(&self, by: DropScope, posted: &Posted) -> DropTallyReport {
        let all = self.tallies();
        let mut tallies: Vec<_> = match by {
            DropScope::Sa => {
                let by_state = all.by(|subject| subject.sa).into_iter();
                by_state
                    .map(|((sa, reason), packets)| DropTallyStatus {
                        state: Some(state(&sa)),
                        ..tally(reason, packets)
                    })
                    .collect()
            }
            DropScope::Policy => {
                let by_policy = all.by(|subject| subject.policy).into_iter();
                by_policy
                    .map(|((index, reason), packets)| DropTallyStatus {
                        policy: Some(index.0),
                        ..tally(reason, packets)
                    })
                    .collect()
            }
            DropScope::Device => {
                let by_device = all.by(|subject| subject.device).into_iter();
                by_device
                    .map(|((number, reason), packets)| DropTallyStatus {
                        device: Some(device(number, posted)),
                        ..tally(reason, packets)
                    })
                    .collect()
            }
        };
        let tallies_total = tallies.len() as u64;
        tallies.sort_by_key(|tally| std::cmp::Reverse(tally.packets));
        tallies.truncate(TALLIES);
        DropTallyReport { at: unix_seconds(), tallies, tallies_total }
    }
}

impl Feed {
    /// The worker's new records. One that has dropped nothing since is not asked.
    fn take(&mut self) -> Vec<DropRecord> {
        let dropped = DropReason::ALL.iter().map(|reason| self.from.drops.of(*reason)).sum();
        let has_dropped = std::mem::replace(&mut self.dropped, dropped) != dropped;
        // A packet is counted before its record is there.
        let may_follow = std::mem::replace(&mut self.may_follow, has_dropped);
        if has_dropped || may_follow { self.from.records.take() } else { Vec::new() }
    }
}

fn named(reason: &str) -> Result<DropReason, RequestRefusal> {
    let unknown = || {
        RequestRefusal::new(format!(
            "drop reason {reason:?} is unknown: `uxfrm stat --reasons` lists all"
        ))
    };
    DropReason::named(reason).ok_or_else(unknown)
}

fn status(number: u64, record: &DropRecord, posted: &Posted, access: Access) -> DropStatus {
    let DropRecord { at, reason, packets, subject, esp, sequence, flow, errno, packet } = record;
    let head = packet.as_ref().filter(|_| access == Access::Full);
    DropStatus {
        number,
        at_ms: (epoch() + at.0) / 1_000_000,
        reason: reason.as_str().to_owned(),
        packets: *packets,
        esp: esp.as_ref().map(|ends| esp_status(ends, *sequence)),
        flow: flow.as_ref().map(flow_status),
        send_error: errno.map(refused_send::words),
        state: subject.sa.as_ref().map(state),
        policy: subject.policy.map(|index| index.0),
        device: subject.device.map(|number| device(number, posted)),
        length: packet.as_ref().map(|packet| packet.len as u64),
        head: head.map(hexadecimal),
    }
}

fn esp_status(ends: &EspEnds, sequence: Option<u32>) -> EspStatus {
    let EspEnds { source, destination, spi, ports } = *ends;
    EspStatus { spi: spi.to_string(), source, destination, ports, sequence }
}

pub(super) fn flow_status(flow: &FlowKey) -> FlowStatus {
    let FlowKey { source, destination, protocol, source_port, destination_port, .. } = *flow;
    FlowStatus { source, destination, protocol, source_port, destination_port }
}

pub(super) fn state(sa: &SaSubject) -> StateName {
    let SaSubject { id, source, reqid, device: _ } = *sa;
    StateName { spi: id.spi.to_string(), source, destination: id.destination, reqid: reqid.0 }
}

pub(super) fn device(number: DeviceId, posted: &Posted) -> String {
    let known = posted.post.devices.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("if{}", number.0), |(_, name)| name.clone())
}

fn hexadecimal(head: &PacketHead) -> String {
    head.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tally(reason: DropReason, packets: u64) -> DropTallyStatus {
    let reason = reason.as_str().to_owned();
    DropTallyStatus { state: None, policy: None, device: None, reason, packets }
}

/// What the reasons of these records mean.
fn advice(records: &[DropStatus]) -> Vec<DropAdvice> {
    let is_there =
        |reason: &&DropReason| records.iter().any(|record| record.reason == reason.as_str());
    let reasons = DropReason::ALL.iter().filter(is_there);
    reasons
        .map(|reason| DropAdvice {
            reason: reason.as_str().to_owned(),
            cause: reason.cause().to_owned(),
            next: reason.next_step().to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;
    use uxfrm_engine::{Database, Output, Settings, Worker};
    use uxfrm_packet::{Batch, PacketBuf, Pool};

    use super::*;

    /// A worker, and a ring that takes what it tells.
    fn dropping() -> (Worker, DropRing) {
        let database = Database::new(Backend::Portable, 1);
        let worker = Worker::new(Settings::default(), &database.published()).unwrap();
        let ring = DropRing::new(&[DropFeed::of(&worker)], &[]);
        (worker, ring)
    }

    fn drop_one(worker: &mut Worker, at: Moment) {
        let mut batch: Batch = [PacketBuf::from_slice(b"not IP")].into_iter().collect();
        worker.outbound(&mut batch, at, &mut Pool::new(), &mut Output::default());
    }

    fn ask(ring: &mut DropRing, query: &DropQuery, access: Access) -> DropReport {
        ring.report(query, &Posted::default(), access).unwrap()
    }

    #[test]
    fn records_are_numbered_and_the_last_are_kept() {
        let (mut worker, mut ring) = dropping();
        // Far enough apart that each leaves a record.
        for second in 0..2000 {
            drop_one(&mut worker, Moment::from_secs(second));
            ring.collect();
        }
        let report = ask(&mut ring, &DropQuery::default(), Access::Full);
        assert_eq!((report.records.len(), report.next, report.lost), (KEPT, 2000, 0));
        let numbers: Vec<_> = report.records.iter().map(|record| record.number).collect();
        assert_eq!((numbers[0], numbers[KEPT - 1]), (2000 - KEPT as u64, 1999));
        assert_eq!(report.records[0].reason, "out_malformed");
        assert_eq!(report.advice.len(), 1);
        assert_eq!(report.advice[0].cause, DropReason::OutMalformed.cause());
        let later = DropQuery { from: Some(report.next), ..DropQuery::default() };
        assert_eq!(ask(&mut ring, &later, Access::Full).records, []);
        drop_one(&mut worker, Moment::from_secs(3000));
        assert_eq!(ask(&mut ring, &later, Access::Full).records[0].number, 2000);
    }

    /// As after an upgrade.
    #[test]
    fn records_of_the_process_before_come_first_and_go_first() {
        let (mut worker, mut ring) = dropping();
        for second in 0..400 {
            drop_one(&mut worker, Moment::from_secs(second));
            ring.collect();
        }
        let passed = ring.last(&Posted::default());
        assert_eq!((passed.len(), passed[0].number), (PASSED, 400 - PASSED as u64));
        let written = serde_json::to_vec(&passed).unwrap();
        let passed: Vec<DropStatus> = serde_json::from_slice(&written).unwrap();
        let mut ring = DropRing::new(&[DropFeed::of(&worker)], &passed);
        drop_one(&mut worker, Moment::from_secs(1000));
        let all = DropQuery::default();
        let told = ask(&mut ring, &all, Access::Full);
        assert_eq!((told.records.len(), told.next), (PASSED + 1, 401));
        assert_eq!(told.records[..PASSED], passed);
        assert_eq!((told.records[PASSED].number, told.advice.len()), (400, 1));
        let told = ask(&mut ring, &all, Access::Group { user: 1000 });
        assert!(told.records.iter().all(|record| record.head.is_none()));
        for second in 2000..4000 {
            drop_one(&mut worker, Moment::from_secs(second));
            ring.collect();
        }
        let told = ask(&mut ring, &all, Access::Full);
        assert_eq!((told.records.len(), told.records[0].number), (KEPT, told.next - KEPT as u64));
    }

    #[test]
    fn packets_that_the_guard_dropped_have_a_record_with_its_cause() {
        let (_worker, mut ring) = dropping();
        let mut counts = uxfrm_engine::DropCounts::default();
        counts.add(DropReason::InUnprotected, 5);
        let board = Board::new(uxfrm_io::poll::Poller::new().unwrap().waker());
        board.post(|| super::super::board::Post { guard: Some(counts), ..Default::default() });
        for told in [1, 1] {
            let report = ring.report(&DropQuery::default(), &board.posted(), Access::Full).unwrap();
            assert_eq!(report.records.len(), told);
            let record = &report.records[0];
            assert_eq!((record.reason.as_str(), record.packets), ("in_unprotected", 5));
            assert_eq!(report.advice[0].next, DropReason::InUnprotected.next_step());
        }
        ring.note_guard(&board);
        assert_eq!(ring.records.len(), 1, "once");
    }

    #[test]
    fn readers_by_group_are_not_told_of_packets_bytes() {
        let (mut worker, mut ring) = dropping();
        drop_one(&mut worker, Moment(7));
        let all = DropQuery::default();
        let told = ask(&mut ring, &all, Access::Full);
        assert_eq!(told.records[0].head.as_deref(), Some("6e6f74204950"));
        let told = ask(&mut ring, &all, Access::Group { user: 1000 });
        assert_eq!((&told.records[0].head, told.records[0].length), (&None, Some(6)));
    }

    #[test]
    fn reason_is_known_by_its_former_name_or_refused() {
        let (mut worker, mut ring) = dropping();
        drop_one(&mut worker, Moment(7));
        let mut of = |reason: &str| {
            let query = DropQuery { reason: Some(reason.to_owned()), ..DropQuery::default() };
            ring.report(&query, &Posted::default(), Access::Full)
        };
        assert_eq!(of("out_malformed").unwrap().records.len(), 1);
        assert_eq!(of("in_template_mismatch").unwrap().records.len(), 0);
        assert!(of("bad_weather").unwrap_err().message.contains("uxfrm stat --reasons"));
    }
}
