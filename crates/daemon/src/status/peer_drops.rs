//! Dropped packets that concern one peer, so that `why` and `status` can name the cause of a
//! silence.
//!
//! ESP by an SPI that is unknown here, and packets that the kernel refuses to send, belong to no
//! state. They are told by the outer addresses of their records, or by when they were dropped.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use uxfrm_engine::{DropReason, DropRecord, Moment, Sa, Spi};
use uxfrm_status::{
    health::Health,
    quantity::{span, things},
    tunnel::TunnelStatus,
};

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

    /// Adds to a tunnel that is not well what belongs to its peer and to no state.
    pub(super) fn explain(self, tunnel: &mut TunnelStatus) {
        if tunnel.health == Health::Up {
            return;
        }
        let ago =
            |seconds: u64| Moment(self.now.0.saturating_sub(seconds.saturating_mul(1_000_000_000)));
        let heard = tunnel.received.last_seconds_ago.map(ago).unwrap_or_default();
        let unknown = self.by_unknown_spi((tunnel.remote, tunnel.local), heard);
        let unknown = unknown.map(|dropped| dropped.unknown_spi_words(tunnel.remote));
        // An idle tunnel has not missed an answer.
        let sent = tunnel.sent.last_seconds_ago.filter(|_| tunnel.health.is_bad()).map(ago);
        let refused = sent.and_then(|sent| self.refused_since(sent));
        let refused = refused.map(|dropped| dropped.refused_words());
        let parts = [tunnel.explanation.take(), unknown, refused];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        tunnel.explanation = (!parts.is_empty()).then(|| parts.join("; "));
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

#[cfg(test)]
mod tests {
    use uxfrm_engine::{DropSubject, EspEnds};

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 2, 1));
    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 1, 1));

    fn record(seconds: u64, reason: DropReason, from: Option<(IpAddr, u32)>) -> DropRecord {
        let esp = from.map(|(source, spi)| EspEnds {
            source,
            destination: OWN,
            spi: Spi(spi),
            ports: None,
        });
        let at = Moment::from_secs(seconds);
        let (subject, sequence, flow, packet) = (DropSubject::NOBODY, None, None, None);
        DropRecord { at, reason, packets: 2, subject, esp, sequence, flow, packet }
    }

    #[test]
    fn unknown_spi_is_told_of_its_peer_alone_and_since_it_was_heard() {
        let unknown = DropReason::InNoState;
        let other = IpAddr::from([10, 9, 3, 1]);
        let records = VecDeque::from([
            record(1000, unknown, Some((PEER, 0x1009))),
            record(1001, unknown, Some((PEER, 0x1009))),
            record(1002, unknown, Some((other, 0x2002))),
            record(1003, DropReason::InForged, Some((PEER, 0x1002))),
        ]);
        let at = |seconds| PeerDrops::of(&records, Moment::from_secs(seconds));
        let dropped = at(1011).by_unknown_spi((PEER, OWN), Moment(0)).unwrap();
        let words = dropped.unknown_spi_words(PEER);
        assert!(words.starts_with("4 packets came from 10.9.2.1 by SPI 0x00001009"), "{words}");
        assert!(words.ends_with("10 s ago (in_no_state)"), "{words}");
        let heard = Moment::from_secs(1002);
        assert_eq!(at(1011).by_unknown_spi((PEER, OWN), heard), None);
        assert_eq!(at(1011).by_unknown_spi((PEER, other), Moment(0)), None);
        assert_eq!(at(1400).by_unknown_spi((PEER, OWN), Moment(0)), None, "too old");
    }

    #[test]
    fn refused_packets_are_those_of_the_last_one_sealed() {
        let records = VecDeque::from([record(1000, DropReason::PortRefused, None)]);
        let drops = PeerDrops::of(&records, Moment::from_secs(1010));
        let refused = drops.refused_since(Moment::from_secs(1001)).unwrap();
        assert!(refused.refused_words().contains("2 packets, 10 s ago: port_refused"));
        assert!(refused.advice()[1].contains("nft list ruleset"));
        assert!(refused.may_be_of(Moment::from_secs(999)));
        assert!(!refused.may_be_of(Moment::from_secs(900)));
        assert_eq!(drops.refused_since(Moment::from_secs(1005)), None, "later ones left");
    }
}
