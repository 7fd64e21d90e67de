//! Dropped packets that concern one peer, so that `why` and `status` can name the cause of a
//! silence.
//!
//! ESP by an SPI that is unknown here belongs to no state, and of packets that the kernel refuses
//! to send the state is not always known. They are told by the outer addresses of their records, or
//! by when they were dropped.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use foldhash::fast::RandomState;
use uxfrm_engine::{DropReason, DropRecord, Moment, Sa, SaId, SaProtocol, Spi};
use uxfrm_status::{
    health::{Health, HealthReason},
    quantity::{span, things},
    tunnel::TunnelStatus,
};

use super::{
    board::ExpiredState,
    refusals::is_behind,
    refused_send::{RefusedSend, words},
};

/// Records that are older explain nothing of today.
const RECENT: Duration = Duration::from_secs(300);
/// From so many packets on a state refuses all that comes.
const ENOUGH: u64 = 3;
/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// A packet is charged to its state, and refused soon after.
const SLACK: Duration = Duration::from_secs(2);

/// The recent records of dropped packets, by what peers are told of. Those of one list are in
/// order, the oldest first.
#[derive(Debug)]
pub(super) struct PeerDrops<'a> {
    now: Moment,
    /// Of packets that came by a state, or were to leave by one.
    by_state: HashMap<SaId, Vec<&'a DropRecord>, RandomState>,
    /// Of ESP by an unknown SPI, by its outer source.
    unknown: HashMap<IpAddr, Vec<&'a DropRecord>, RandomState>,
    /// Of packets that the kernel refused to send.
    refused: Vec<&'a DropRecord>,
    /// Of packets that were to leave and that no state took.
    unsent: Vec<&'a DropRecord>,
    /// States that passed their hard limit, the latest last.
    expired: &'a [ExpiredState],
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
    /// Seconds since the state that had this SPI passed its hard limit.
    expired_seconds_ago: Option<u64>,
    /// What the kernel said, where it refused to send them.
    errno: Option<i32>,
}

impl<'a> PeerDrops<'a> {
    /// Of these records, the oldest first.
    pub(super) fn of(records: &'a VecDeque<DropRecord>, now: Moment) -> Self {
        let mut drops = Self {
            now,
            by_state: HashMap::default(),
            unknown: HashMap::default(),
            refused: Vec::new(),
            unsent: Vec::new(),
            expired: &[],
        };
        for record in records.iter().filter(|record| now.since(record.at) < RECENT) {
            if let Some(sa) = record.subject.sa.as_ref().filter(|_| is_refusal(record.reason)) {
                drops.by_state.entry(sa.id).or_default().push(record);
            }
            let source = record.esp.as_ref().map(|esp| esp.source);
            if let Some(source) = source.filter(|_| record.reason == DropReason::InNoState) {
                drops.unknown.entry(source).or_default().push(record);
            }
            if record.reason == DropReason::PortRefused {
                drops.refused.push(record);
            }
            if record.reason == DropReason::OutNoState {
                drops.unsent.push(record);
            }
        }
        drops
    }

    /// The same, by which states that are gone are known.
    pub(super) fn with_expired(self, expired: &'a [ExpiredState]) -> Self {
        Self { expired, ..self }
    }

    /// Seconds since the state by which a packet came passed its hard limit.
    fn expired_seconds_ago(&self, record: &DropRecord) -> Option<u64> {
        let esp = record.esp.as_ref().filter(|_| record.reason == DropReason::InNoState)?;
        let is_it =
            |gone: &&ExpiredState| gone.id.spi == esp.spi && gone.id.destination == esp.destination;
        let gone = self.expired.iter().rev().find(is_it)?;
        Some(self.now.since(gone.at).as_secs())
    }

    /// Packets that were to leave and that no state took.
    pub(super) fn unsent(&self) -> &[&'a DropRecord] {
        &self.unsent
    }

    /// What came by this state and was dropped since it last took a packet, the latest reason.
    pub(super) fn by_state(&self, sa: &Sa) -> Option<DroppedPackets> {
        self.by_name(sa.id(), sa.usage().last_used().unwrap_or_default())
    }

    /// What came by the state of this name and was dropped since then, the latest reason.
    fn by_name(&self, id: SaId, since: Moment) -> Option<DroppedPackets> {
        let theirs = self.by_state.get(&id)?;
        self.latest(theirs, |record| record.at >= since)
    }

    /// The same of the states of a tunnel, by which nothing has passed since.
    fn by_states_of(&self, tunnel: &TunnelStatus, since: Moment) -> Option<DroppedPackets> {
        let inbound = tunnel.states.iter().filter_map(|state| {
            let spi = u32::from_str_radix(state.spi.strip_prefix("0x")?, 16).ok()?;
            let id = SaId { destination: tunnel.local, spi: Spi(spi), protocol: SaProtocol::Esp };
            self.by_name(id, since)
        });
        inbound.max_by_key(|dropped| dropped.at)
    }

    /// What came between these outer addresses by an SPI that is unknown here, since then.
    pub(super) fn by_unknown_spi(
        &self,
        (peer, own): (IpAddr, IpAddr),
        since: Moment,
    ) -> Option<DroppedPackets> {
        let is_here = |record: &DropRecord| {
            let destination = record.esp.as_ref().map(|esp| esp.destination);
            own.is_unspecified() || destination == Some(own)
        };
        let theirs = self.unknown.get(&peer)?;
        self.latest(theirs, |record| record.at >= since && is_here(record))
    }

    /// What this host refused to send to a peer about when, or after, a packet was last sealed.
    /// Not all of their records have addresses.
    pub(super) fn refused_since(&self, sealed: Moment, peer: IpAddr) -> Option<DroppedPackets> {
        let is_theirs = |record: &DropRecord| {
            record.esp.as_ref().is_none_or(|esp| esp.destination == peer)
                && record.at.plus(SLACK) >= sealed
        };
        self.latest(&self.refused, is_theirs)
    }

    /// Adds to a tunnel what of its peer was dropped last, and to one that is not well what belongs
    /// to no state.
    pub(super) fn explain(&self, tunnel: &mut TunnelStatus) {
        let ago = |seconds: u64| Moment(self.now.0.saturating_sub(seconds.saturating_mul(SECOND)));
        let heard = tunnel.received.last_seconds_ago.map(ago).unwrap_or_default();
        // The last one heard may be the one dropped, and its time has whole seconds.
        let by_state = self.by_states_of(tunnel, Moment(heard.0.saturating_sub(SECOND)));
        // Its health has said so.
        let is_told = matches!(tunnel.reason, Some(HealthReason::ReceivedDropped { .. }));
        let by_state = by_state.filter(|_| !is_told).map(|dropped| dropped.state_words());
        let is_well = tunnel.health == Health::Up;
        let unknown = self.by_unknown_spi((tunnel.remote, tunnel.local), heard);
        let unknown = unknown.filter(|_| !is_well);
        let unknown = unknown.map(|dropped| dropped.unknown_spi_words(tunnel.remote));
        let sent = tunnel.sent.last_seconds_ago.map(ago);
        let refused = sent.and_then(|sent| self.refused_since(sent, tunnel.remote));
        // A tunnel that has missed no answer has not missed packets of nobody known.
        let refused = refused.filter(|refused| refused.has_state() || tunnel.health.is_bad());
        let refused = refused.map(|dropped| dropped.refused_words());
        let parts = [tunnel.explanation.take(), by_state, unknown, refused];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        tunnel.explanation = (!parts.is_empty()).then(|| parts.join("; "));
    }

    /// The latest of those records, with how many packets all of its reason and SPI stand for.
    fn latest(
        &self,
        records: &[&DropRecord],
        is_meant: impl Fn(&DropRecord) -> bool,
    ) -> Option<DroppedPackets> {
        let mut meant = records.iter().rev().filter(|record| is_meant(record));
        let spi = |record: &DropRecord| record.esp.as_ref().map(|esp| esp.spi);
        let last = meant.next()?;
        let is_like = |one: &&&DropRecord| one.reason == last.reason && spi(one) == spi(last);
        let like = records.iter().filter(is_like);
        Some(DroppedPackets {
            reason: last.reason,
            spi: spi(last),
            packets: like.map(|record| record.packets).sum(),
            seconds_ago: self.now.since(last.at).as_secs(),
            at: last.at,
            expired_seconds_ago: self.expired_seconds_ago(last),
            errno: last.errno,
        })
    }
}

impl DroppedPackets {
    /// What `peer` sent by an SPI that is unknown here.
    pub(super) fn unknown_spi_words(&self, peer: IpAddr) -> String {
        let Self { spi, seconds_ago, expired_seconds_ago, .. } = *self;
        let state = match expired_seconds_ago {
            Some(seconds) => format!("whose state expired {} ago", span(seconds)),
            None => "which no state here has".to_owned(),
        };
        let spi = spi.map_or_else(String::new, |spi| format!(" {spi}"));
        format!(
            "{} came from {peer} by SPI{spi}, {state}, the last {} ago ({})",
            self.many(),
            span(seconds_ago),
            self.reason.as_str()
        )
    }

    /// What came by a state that is known, and was dropped.
    pub(super) fn state_words(&self) -> String {
        let spi = self.spi.map_or_else(String::new, |spi| format!(" by {spi}"));
        let (ago, reason) = (span(self.seconds_ago), self.reason.as_str());
        let were = if self.packets == 1 { "was" } else { "were" };
        format!("{} that came{spi} {were} dropped, the last {ago} ago: {reason}", self.many())
    }

    /// What this host refused to send.
    pub(super) fn refused_words(&self) -> String {
        let (ago, reason) = (span(self.seconds_ago), self.reason.as_str());
        let said = self.errno.map_or_else(String::new, |errno| format!(" ({})", words(errno)));
        format!("this host's kernel refused to send {}, {ago} ago: {reason}{said}", self.many())
    }

    /// Whether the state refused them as ESP, and they are so many that this is no accident.
    pub(super) const fn are_refused(&self) -> bool {
        self.packets >= ENOUGH && !is_behind(self.reason)
    }

    /// Why they were dropped.
    pub(super) const fn reason_word(&self) -> &'static str {
        self.reason.as_str()
    }

    /// Whether it is known whose they were.
    pub(super) const fn has_state(&self) -> bool {
        self.spi.is_some()
    }

    /// Whether a state that was used last then may have sealed them.
    pub(super) fn may_be_of(&self, last_used: Moment) -> bool {
        last_used.plus(SLACK) >= self.at
    }

    /// Why, and what to do.
    pub(super) fn advice(&self) -> Vec<String> {
        let (cause, next) = match self.errno.and_then(RefusedSend::of) {
            Some(refused) => (refused.cause(), refused.next_step()),
            None => (self.reason.cause(), self.reason.next_step()),
        };
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
        DropRecord { at, reason, packets: 2, subject, esp, sequence, flow, errno: None, packet }
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
        assert!(words.ends_with("the last 10 s ago (in_no_state)"), "{words}");
        let heard = Moment::from_secs(1002);
        assert_eq!(at(1011).by_unknown_spi((PEER, OWN), heard), None);
        assert_eq!(at(1011).by_unknown_spi((PEER, other), Moment(0)), None);
        assert_eq!(at(1400).by_unknown_spi((PEER, OWN), Moment(0)), None, "too old");
        let id = SaId { destination: OWN, spi: Spi(0x1009), protocol: SaProtocol::Esp };
        let expired = [ExpiredState { id, at: Moment::from_secs(990) }];
        let drops = at(1011);
        let drops = drops.with_expired(&expired);
        let words = drops.by_unknown_spi((PEER, OWN), Moment(0)).unwrap().unknown_spi_words(PEER);
        assert!(words.contains("by SPI 0x00001009, whose state expired 21 s ago, the"), "{words}");
    }

    #[test]
    fn refused_packets_are_those_of_the_last_one_sealed() {
        let records = VecDeque::from([record(1000, DropReason::PortRefused, None)]);
        let drops = PeerDrops::of(&records, Moment::from_secs(1010));
        let refused = drops.refused_since(Moment::from_secs(1001), PEER).unwrap();
        assert!(refused.refused_words().contains("2 packets, 10 s ago: port_refused"));
        assert!(refused.advice()[1].contains("nft list ruleset"));
        let mut downed = records.clone();
        downed[0].errno = Some(nix::errno::Errno::ENETDOWN as i32);
        let drops_of_down = PeerDrops::of(&downed, Moment::from_secs(1010));
        let down = drops_of_down.refused_since(Moment::from_secs(1001), PEER).unwrap();
        assert!(down.refused_words().ends_with(
            "port_refused (ENETDOWN: the interface towards the \
             peer is down, or gone)"
        ));
        assert!(down.advice()[1].contains("ip link"));
        assert!(refused.may_be_of(Moment::from_secs(999)) && !refused.has_state());
        assert!(!refused.may_be_of(Moment::from_secs(900)));
        assert_eq!(drops.refused_since(Moment::from_secs(1005), PEER), None, "later ones left");
    }

    #[test]
    fn refused_packets_of_known_ends_are_their_peers_alone() {
        let mut to_peer = record(1000, DropReason::PortRefused, Some((OWN, 0x1001)));
        to_peer.esp = to_peer.esp.map(|esp| EspEnds { destination: PEER, ..esp });
        let records = VecDeque::from([to_peer]);
        let drops = PeerDrops::of(&records, Moment::from_secs(1010));
        let sealed = Moment::from_secs(1001);
        assert!(drops.refused_since(sealed, PEER).unwrap().has_state());
        assert_eq!(drops.refused_since(sealed, OWN), None);
    }
}
