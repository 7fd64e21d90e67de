//! The TUN's MTU: that of the largest packet that fits into a tunnel in use
//! (`docs/decisions/0030-tun-mtu-follows-bundles.md`).
//!
//! With one tunnel the kernel itself then tells all senders what fits, its own from the first SYN
//! on. With several nobody gets less than what fits; who gets more than that hears from the engine.

pub(crate) mod relay;

use std::{sync::Arc, time::Duration};

use uxfrm_engine::{Direction, HostAddresses, HostView, Moment, Sa, Sad, Snapshot};

use super::kernel_tables::Routes;
use crate::{clock::now, config::Mtu, routes::LastingMtus};

/// For so long another MTU has to be right before the TUN gets it: a state that goes before the
/// next one comes changes nothing. The first one is there at once.
const SETTLED: Duration = Duration::from_secs(10);

/// The TUN's least MTU where the engine judges sizes, and not the kernel.
pub(crate) const UNJUDGED: u16 = 1500;

/// Looking through all states takes at most one part in so many of the control thread's time.
const SHARE: u32 = 100;

/// The MTU that the TUN is to have, and has.
#[derive(Debug)]
pub(crate) struct TunMtu {
    setting: Mtu,
    /// Whether states or paths may lead to another one than the one wanted.
    is_outdated: bool,
    /// When all states may be looked through again.
    look: Moment,
    /// The paths that were last looked at.
    host: Option<Arc<HostView>>,
    /// The one that is right, and since when it is.
    wanted: Option<(u16, Moment)>,
    /// The one that was set.
    current: Option<u16>,
}

impl TunMtu {
    /// To be set soon.
    pub(super) fn new(setting: Mtu) -> Self {
        Self {
            setting,
            is_outdated: true,
            look: Moment(0),
            host: None,
            wanted: None,
            current: None,
        }
    }

    /// Another setting, if it is another.
    pub(crate) fn set(&mut self, setting: Mtu) {
        if setting != self.setting {
            *self = Self::new(setting);
        }
    }

    /// States have come or gone.
    pub(super) fn outdate(&mut self) {
        self.is_outdated = true;
    }

    /// Sets what is to be set by now.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, routes: &mut dyn Routes, at: Moment) {
        match self.setting {
            Mtu::Auto => self.look_through(snapshot, routes, at),
            Mtu::Fixed(bytes) => self.want(bytes, at),
        }
        let Some(mtu) = self.take_due(at) else { return };
        if let Err(error) = routes.fit_tun(mtu) {
            tracing::warn!(%error, mtu, "the TUN does not get another MTU");
        }
    }

    /// Another MTU that has been right for long enough; once.
    fn take_due(&mut self, at: Moment) -> Option<u16> {
        let (mtu, since) = self.wanted?;
        let is_settled = self.current.is_none() || at.since(since) >= SETTLED;
        let is_due = is_settled && self.current != Some(mtu);
        is_due.then(|| *self.current.insert(mtu))
    }

    fn look_through(&mut self, snapshot: &Snapshot, routes: &dyn Routes, at: Moment) {
        let is_same = match (&snapshot.host, &self.host) {
            (Some(is), Some(was)) => Arc::ptr_eq(is, was),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.is_outdated |= !is_same;
        if !self.is_outdated || at < self.look {
            return;
        }
        (self.is_outdated, self.host) = (false, snapshot.host.clone());
        let begun = now();
        let own = routes.own().iter().copied().collect();
        let paths = routes.lasting_mtus();
        if relay::relays(&snapshot.spd) {
            // At once: until then the kernel may quote what came in ESP.
            self.wanted = Some((paths.usual.max(UNJUDGED), Moment(0)));
        } else if let Some(mtu) = largest(&snapshot.sad, &own, &paths) {
            self.want(mtu.max(Mtu::LEAST), at);
        }
        self.look = at.plus(now().since(begun) * SHARE);
    }

    fn want(&mut self, mtu: u16, at: Moment) {
        if self.wanted.is_none_or(|(wanted, _)| wanted != mtu) {
            self.wanted = Some((mtu, at));
        }
    }
}

/// The largest packet that fits into one of the states that lead elsewhere; `None` without any.
///
/// Of a chain of states the outermost alone counts: it takes more than the chain does.
pub(crate) fn largest(sad: &Sad, own: &HostAddresses, paths: &LastingMtus) -> Option<u16> {
    let mut largest = None;
    for sa in sad.iter().filter(|sa| leads_out(sa, own)) {
        let Some(overhead) = sa.overhead() else { continue };
        // A narrow path only takes less: most states need no look-up of theirs.
        if largest.is_none_or(|most| overhead.inner_mtu(paths.usual.into()) > most) {
            let mtu = paths.to(sa.id().destination);
            largest = largest.max(Some(overhead.inner_mtu(mtu.into())));
        }
    }
    largest.map(|most| u16::try_from(most).unwrap_or(u16::MAX))
}

fn leads_out(sa: &Sa, own: &HostAddresses) -> bool {
    sa.config().direction != Some(Direction::In) && !own.holds(sa.id().destination)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use uxfrm_crypto::Backend;
    use uxfrm_engine::{Database, PathMtus};

    use super::*;
    use crate::batch::apply;

    const GCM: &str = "aead rfc4106(gcm(aes)) 0x4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b4d1b 128";
    const CBC: &str = "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f auth-trunc \
                       hmac(sha256) 0x000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f 128";

    fn states(lines: &[(&str, &str, &str)]) -> Database {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for (spi, (ends, rest, cipher)) in (0x1000..).zip(lines) {
            let line = format!("xfrm state add {ends} proto esp spi {spi} reqid 1 {rest} {cipher}");
            writeln!(file, "{line}").unwrap();
        }
        let mut database = Database::new(Backend::Portable, 1);
        apply::load(&mut database, &[file.path().to_owned()], now()).unwrap();
        database
    }

    #[test]
    fn largest_by_table() {
        let own = ["10.9.0.1".parse().unwrap(), "fd09::1".parse().unwrap()].into_iter().collect();
        let (a, b) = ("src 10.9.0.1 dst 10.9.0.2", "src 10.9.0.1 dst 10.9.0.3");
        let back = "src 10.9.0.2 dst 10.9.0.1";
        let udp = "mode tunnel encap espinudp 4500 4500 0.0.0.0";
        type Row<'a> = (&'a [(&'a str, &'a str, &'a str)], &'a [(&'a str, u16)], Option<u16>);
        let table: [Row<'_>; 10] = [
            (&[], &[], None),
            (&[(back, "mode transport", GCM)], &[], None),
            (&[(a, "mode tunnel", GCM)], &[], Some(1446)),
            (&[(a, udp, GCM)], &[], Some(1438)),
            (&[(a, "mode tunnel", CBC)], &[], Some(1438)),
            (&[(a, "mode transport", GCM), (back, "mode tunnel", GCM)], &[], Some(1466)),
            (&[("src fd09::1 dst fd09::2", "mode tunnel", GCM)], &[], Some(1426)),
            // Nobody gets less than what fits.
            (&[(a, udp, GCM), (b, "mode tunnel", GCM)], &[], Some(1446)),
            (&[(a, udp, GCM), (b, "mode tunnel", GCM)], &[("10.9.0.3", 1400)], Some(1438)),
            (&[(a, "mode tunnel", GCM)], &[("10.9.0.2", 1300)], Some(1246)),
        ];
        for (lines, narrow, expected) in table {
            let narrow: PathMtus =
                narrow.iter().map(|(peer, mtu)| (peer.parse().unwrap(), *mtu)).collect();
            let paths = LastingMtus { usual: 1500, narrow };
            let database = states(lines);
            assert_eq!(largest(&database.current().sad, &own, &paths), expected, "{lines:?}");
        }
    }

    #[test]
    fn the_first_is_due_at_once_and_others_when_they_stay() {
        let at = Moment::from_secs;
        let mut tun = TunMtu::new(Mtu::Auto);
        assert_eq!(tun.take_due(at(1)), None, "there is no tunnel");
        tun.want(1446, at(2));
        assert_eq!(tun.take_due(at(2)), Some(1446));
        assert_eq!(tun.take_due(at(50)), None, "it has it");
        // A state goes before the next one comes.
        tun.want(1438, at(60));
        assert_eq!(tun.take_due(at(65)), None);
        tun.want(1446, at(66));
        assert_eq!(tun.take_due(at(80)), None);
        tun.want(1438, at(90));
        tun.want(1438, at(95));
        assert_eq!(tun.take_due(at(99)), None);
        assert_eq!(tun.take_due(at(100)), Some(1438));
    }

    #[test]
    fn another_setting_is_due_at_once() {
        let mut tun = TunMtu::new(Mtu::Fixed(1400));
        tun.want(1400, Moment::from_secs(1));
        assert_eq!(tun.take_due(Moment::from_secs(1)), Some(1400));
        tun.set(Mtu::Fixed(1400));
        assert_eq!(tun.current, Some(1400), "it is the same");
        tun.set(Mtu::Auto);
        tun.want(1446, Moment::from_secs(2));
        assert_eq!(tun.take_due(Moment::from_secs(2)), Some(1446));
    }
}
