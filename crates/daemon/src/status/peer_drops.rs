//! Dropped packets that concern one peer, so that `why` and `status` can name the cause of a
//! silence.
//!
//! ESP by an SPI that is unknown here, and packets that the kernel refuses to send, belong to no
//! state. They are told by the outer addresses of their records, or by when they were dropped.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use uxfrm_engine::{DropReason, DropRecord, Moment, Sa, Spi};
use uxfrm_status::quantity::{span, things};

/// Records that are older explain nothing of today.
const RECENT: Duration = Duration::from_secs(300);
/// A packet is charged to its state, and refused soon after.
const SLACK: Duration = Duration::from_secs(2);

/// The records of dropped packets at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerDrops<'a> {
    records: &'a VecDeque<DropRecord>,
    now: Moment,
}

/// Packets that were dropped for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DroppedPackets {
    reason: DropReason,
    /// By which they came, where they came in ESP.
    spi: Option<Spi>,
    packets: u64,
    seconds_ago: u64,
    at: Moment,
}

impl<'a> PeerDrops<'a> {
    /// These records, the oldest first.
    pub(super) const fn of(records: &'a VecDeque<DropRecord>, now: Moment) -> Self {
        Self { records, now }
    }

    /// What came by this state and was dropped since it last took a packet, the latest reason.
    pub(super) fn by_state(self, sa: &Sa) -> Option<DroppedPackets> {
        let since = sa.usage().last_used().unwrap_or_default();
        let is_theirs = |record: &DropRecord| {
            let is_by_state = record.subject.sa.as_ref().is_some_and(|by| by.id == sa.id());
            is_by_state && record.at >= since && is_refusal(record.reason)
        };
        self.latest(is_theirs)
    }

    /// What came between these outer addresses by an SPI that is unknown here, since then.
    pub(super) fn by_unknown_spi(
        self,
        (peer, own): (IpAddr, IpAddr),
        since: Moment,
    ) -> Option<DroppedPackets> {
        self.latest(|record| {
            let is_theirs = record.esp.as_ref().is_some_and(|esp| {
                esp.source == peer && (own.is_unspecified() || esp.destination == own)
            });
            record.reason == DropReason::InNoState && is_theirs && record.at >= since
        })
    }

    /// What this host refused to send about when, or after, a packet was last sealed. Their records
    /// have no addresses.
    pub(super) fn refused_since(self, sealed: Moment) -> Option<DroppedPackets> {
        self.latest(|record| {
            record.reason == DropReason::PortRefused && record.at.plus(SLACK) >= sealed
        })
    }

    /// The latest of those records, with how many packets those of its reason and SPI stand for.
    fn latest(self, is_meant: impl Fn(&DropRecord) -> bool) -> Option<DroppedPackets> {
        let is_recent = |record: &&DropRecord| self.now.since(record.at) < RECENT;
        let meant = || self.records.iter().rev().filter(is_recent).filter(|one| is_meant(one));
        let spi = |record: &DropRecord| record.esp.as_ref().map(|esp| esp.spi);
        let last = meant().next()?;
        let like = meant().filter(|one| one.reason == last.reason && spi(one) == spi(last));
        Some(DroppedPackets {
            reason: last.reason,
            spi: spi(last),
            packets: like.map(|record| record.packets).sum(),
            seconds_ago: self.now.since(last.at).as_secs(),
            at: last.at,
        })
    }
}

impl DroppedPackets {
    /// What `peer` sent by an SPI that is unknown here.
    pub(super) fn unknown_spi_words(&self, peer: IpAddr) -> String {
        let Self { spi, seconds_ago, .. } = *self;
        let spi = spi.map_or_else(String::new, |spi| format!(" {spi}"));
        format!(
            "{} came from {peer} by SPI{spi}, which no state here has, {} ago ({})",
            self.many(),
            span(seconds_ago),
            self.reason.as_str()
        )
    }

    /// What came by a state that is known, and was dropped.
    pub(super) fn state_words(&self) -> String {
        let spi = self.spi.map_or_else(String::new, |spi| format!(" by {spi}"));
        let (ago, reason) = (span(self.seconds_ago), self.reason.as_str());
        format!("{} that came{spi} were dropped, {ago} ago: {reason}", self.many())
    }

    /// What this host refused to send.
    pub(super) fn refused_words(&self) -> String {
        let (ago, reason) = (span(self.seconds_ago), self.reason.as_str());
        format!("this host's kernel refused to send {}, {ago} ago: {reason}", self.many())
    }

    /// Whether a state that was used last then may have sealed them.
    pub(super) fn may_be_of(&self, last_used: Moment) -> bool {
        last_used.plus(SLACK) >= self.at
    }

    /// Why, and what to do.
    pub(super) fn advice(&self) -> Vec<String> {
        let (cause, next) = (self.reason.cause(), self.reason.next_step());
        vec![format!("cause: {cause}"), format!("next: {next}")]
    }

    fn many(&self) -> String {
        things(self.packets, "packet", "packets")
    }
}

/// Whether packets that are dropped for it were meant to pass.
const fn is_refusal(reason: DropReason) -> bool {
    !matches!(reason, DropReason::InDummy | DropReason::InKeepalive)
}
