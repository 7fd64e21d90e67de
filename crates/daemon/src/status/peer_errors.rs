//! What the network says of the ESP to one peer, as far as it explains why nothing comes back.

use std::{cmp::Reverse, net::IpAddr, time::Duration};

use uxfrm_engine::Moment;
use uxfrm_status::{icmp_error::IcmpErrorStatus, tunnel::TunnelStatus};

use crate::reconcile::esp_errors::NotedError;

/// When packets leave so long after an error, and none of them meets another, it has passed.
/// Routers limit how many they send.
const PASSED: Duration = Duration::from_secs(30);
/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// ICMP errors about ESP of the last minutes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerErrors<'a> {
    pub(super) now: Moment,
    /// In the order of peers.
    pub(super) noted: &'a [NotedError],
}

impl PeerErrors<'_> {
    /// Those about ESP to `peer`, the latest first: none from before it was heard last, and none
    /// that packets sent later did not meet.
    pub(super) fn since(&self, peer: IpAddr, heard: Moment, sent: Moment) -> Vec<IcmpErrorStatus> {
        let from = self.noted.partition_point(|one| one.peer < peer);
        let theirs = self.noted[from..].iter().take_while(|one| one.peer == peer);
        let is_present = |one: &&NotedError| one.at > heard && one.at.plus(PASSED) >= sent;
        let mut theirs: Vec<_> = theirs.filter(is_present).collect();
        theirs.sort_by_key(|one| Reverse(one.at));
        theirs.into_iter().map(|one| one.status(self.now)).collect()
    }

    /// Adds them to a tunnel, and the latest to what explains it.
    pub(super) fn explain(&self, tunnel: &mut TunnelStatus) {
        let ago = |seconds: u64| Moment(self.now.0.saturating_sub(seconds.saturating_mul(SECOND)));
        let heard = tunnel.received.last_seconds_ago.map(ago).unwrap_or_default();
        let Some(sent) = tunnel.sent.last_seconds_ago.map(ago) else { return };
        tunnel.icmp_errors = self.since(tunnel.remote, heard, sent);
        let Some(latest) = tunnel.icmp_errors.first() else { return };
        let words = latest.words(tunnel.local, tunnel.remote);
        let parts: Vec<_> = tunnel.explanation.take().into_iter().chain([words]).collect();
        tunnel.explanation = Some(parts.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_status::icmp_error::IcmpErrorKind;

    use super::*;

    fn noted(peer: [u8; 4], kind: IcmpErrorKind, at: u64) -> NotedError {
        let (peer, told_by) = (peer.into(), [10, 9, 1, 254].into());
        NotedError { peer, kind, told_by, errors: 3, at: Moment::from_secs(at) }
    }

    #[test]
    fn errors_are_told_of_their_peer_until_it_is_heard_or_packets_pass() {
        let (peer, other) = ([10, 9, 2, 9], [10, 9, 2, 10]);
        let noted = [
            noted([10, 9, 2, 8], IcmpErrorKind::NetUnreachable, 1000),
            noted(peer, IcmpErrorKind::HostUnreachable, 1000),
            noted(peer, IcmpErrorKind::AdminProhibited, 1005),
            noted(other, IcmpErrorKind::PortUnreachable, 1000),
        ];
        let at = Moment::from_secs;
        let errors = PeerErrors { now: at(1010), noted: &noted };
        let told = |heard, sent| -> Vec<_> {
            let told = errors.since(peer.into(), at(heard), at(sent));
            told.iter().map(|one| (one.kind, one.last_seconds_ago)).collect()
        };
        let (host, filter) = (IcmpErrorKind::HostUnreachable, IcmpErrorKind::AdminProhibited);
        assert_eq!(told(0, 1009), [(filter, 5), (host, 10)], "the latest first");
        assert_eq!(told(1002, 1009), [(filter, 5)], "heard since");
        assert_eq!(told(0, 1032), [(filter, 5)], "packets passed since");
        assert_eq!(told(1005, 1009), []);
    }
}
