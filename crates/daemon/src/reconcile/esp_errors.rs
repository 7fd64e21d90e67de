//! What the network says of ESP that it does not deliver: ICMP errors by peer and kind.
//!
//! Anybody can send them. They count only if they quote an outbound state's ends and SPI, and even
//! then they are good for texts alone.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use uxfrm_engine::{Moment, SaId, SaProtocol, Sad, Spi};
use uxfrm_io::icmp_errors::IcmpError;
use uxfrm_status::icmp_error::{IcmpErrorKind, IcmpErrorStatus};

/// Those that are older explain nothing of today.
const RECENT: Duration = Duration::from_secs(300);
/// A peer and kind has a line in the log at most so often.
const LOGGED: Duration = Duration::from_secs(10);
/// How often the table is swept while it is full.
const SWEEP: Duration = Duration::from_secs(1);
/// Peers and kinds that are remembered.
const MOST: usize = 4096;

/// ICMP errors about ESP to one peer, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedError {
    /// Where the ESP went.
    pub(crate) peer: IpAddr,
    /// What they say.
    pub(crate) kind: IcmpErrorKind,
    /// Who sent the latest.
    pub(crate) told_by: IpAddr,
    /// How many.
    pub(crate) errors: u64,
    /// When the latest came.
    pub(crate) at: Moment,
}

/// ICMP errors about ESP of the last minutes.
#[derive(Debug, Default)]
pub(crate) struct EspErrors {
    /// Each with when it was logged last.
    noted: BTreeMap<(IpAddr, IcmpErrorKind), (NotedError, Moment)>,
    swept: Moment,
}

impl NotedError {
    /// As it is told at this time.
    pub(crate) fn status(&self, now: Moment) -> IcmpErrorStatus {
        IcmpErrorStatus {
            kind: self.kind,
            told_by: self.told_by,
            errors: self.errors,
            last_seconds_ago: now.since(self.at).as_secs(),
        }
    }
}

impl EspErrors {
    /// Notes and logs an error, if it is about a packet of one of these states.
    pub(super) fn note(&mut self, sad: &Sad, error: &IcmpError, now: Moment) {
        if let Some(kind) = kind(error).filter(|_| is_of_state(sad, error)) {
            self.add(kind, error, now);
        }
    }

    fn add(&mut self, kind: IcmpErrorKind, error: &IcmpError, now: Moment) {
        let key = (error.to, kind);
        if !self.noted.contains_key(&key) && !self.make_room(now) {
            return;
        }
        let IcmpError { told_by, to: peer, .. } = *error;
        let fresh = NotedError { peer, kind, told_by, errors: 0, at: now };
        let (noted, logged) = self.noted.entry(key).or_insert((fresh, Moment(0)));
        if now.since(noted.at) >= RECENT {
            *noted = fresh;
        }
        (noted.told_by, noted.errors, noted.at) = (told_by, noted.errors + 1, now);
        if *logged == Moment(0) || now.since(*logged) >= LOGGED {
            *logged = now;
            log(noted, error);
        }
    }

    /// Whether one more has a place.
    fn make_room(&mut self, now: Moment) -> bool {
        if self.noted.len() >= MOST && now.since(self.swept) >= SWEEP {
            self.swept = now;
            self.noted.retain(|_, (noted, _)| now.since(noted.at) < RECENT);
        }
        self.noted.len() < MOST
    }

    /// Those of the last minutes, by peer.
    pub(crate) fn recent(&self, now: Moment) -> Vec<NotedError> {
        let all = self.noted.values().map(|(noted, _)| *noted);
        all.filter(|noted| now.since(noted.at) < RECENT).collect()
    }
}

fn kind(error: &IcmpError) -> Option<IcmpErrorKind> {
    match error.told_by {
        IpAddr::V4(_) => IcmpErrorKind::of_v4(error.kind, error.code),
        IpAddr::V6(_) => IcmpErrorKind::of_v6(error.kind, error.code),
    }
}

fn is_of_state(sad: &Sad, error: &IcmpError) -> bool {
    let Some(spi) = error.spi.map(Spi) else { return false };
    let id = SaId { destination: error.to, spi, protocol: SaProtocol::Esp };
    let is_from = |source: IpAddr| source == error.from || source.is_unspecified();
    sad.with_id(id).any(|sa| is_from(sa.source()))
}

fn log(noted: &NotedError, error: &IcmpError) {
    let NotedError { peer, kind, told_by, errors, at } = *noted;
    let meaning = noted.status(at).words(error.from, peer);
    let kind = kind.name();
    tracing::warn!(%peer, icmp = kind, %told_by, errors, "ICMP error about ESP: {meaning}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(peer: [u8; 4], code: u8) -> IcmpError {
        let (told_by, from) = ([10, 9, 1, 254].into(), [10, 9, 1, 1].into());
        IcmpError { kind: 3, code, told_by, from, to: peer.into(), spi: Some(0x1001) }
    }

    #[test]
    fn errors_are_counted_by_peer_and_kind_until_they_are_old() {
        let (mut errors, at) = (EspErrors::default(), Moment::from_secs);
        let kind = IcmpErrorKind::HostUnreachable;
        errors.add(kind, &error([10, 9, 2, 9], 1), at(1000));
        errors.add(kind, &error([10, 9, 2, 9], 1), at(1001));
        errors.add(IcmpErrorKind::AdminProhibited, &error([10, 9, 2, 9], 13), at(1002));
        errors.add(kind, &error([10, 9, 2, 8], 1), at(1003));
        let told: Vec<_> =
            errors.recent(at(1010)).iter().map(|one| (one.peer, one.kind, one.errors)).collect();
        let (one, other) = (IpAddr::from([10, 9, 2, 8]), IpAddr::from([10, 9, 2, 9]));
        let prohibited = IcmpErrorKind::AdminProhibited;
        assert_eq!(told, [(one, kind, 1), (other, kind, 2), (other, prohibited, 1)]);
        assert_eq!(errors.recent(at(1302)).len(), 1);
        errors.add(kind, &error([10, 9, 2, 9], 1), at(2000));
        assert_eq!(errors.recent(at(2000))[0].errors, 1, "those before are forgotten");
    }

    #[test]
    fn table_is_bounded_and_old_errors_make_room() {
        let (mut errors, kind) = (EspErrors::default(), IcmpErrorKind::HostUnreachable);
        let at = Moment::from_secs;
        for peer in 0..5000_u32 {
            errors.add(kind, &error(peer.to_be_bytes(), 1), at(1000));
        }
        assert_eq!(errors.recent(at(1000)).len(), MOST);
        errors.add(kind, &error([10, 9, 2, 9], 1), at(1400));
        assert_eq!(errors.recent(at(1400)).len(), 1);
        assert_eq!(errors.noted.len(), 1);
    }
}
