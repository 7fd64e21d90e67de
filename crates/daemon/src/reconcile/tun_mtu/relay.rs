//! Whether what comes out of one tunnel may go into another: a hub.
//!
//! There the kernel must not judge sizes: its ICMP errors leave plain, from an address that no
//! policy protects, and quote what came in ESP. The engine's go back into the tunnel.

use uxfrm_engine::{Direction, Selector, Spd};

/// Pairs of policies that are compared at most, in some milliseconds; of more it is assumed.
const MOST_PAIRS: usize = 1_000_000;

/// Whether a policy `fwd` and one `out` protect packets in common.
pub(crate) fn relays(spd: &Spd) -> bool {
    let (forwarded, sent) = (protected(spd, Direction::Forward), protected(spd, Direction::Out));
    if forwarded.len().saturating_mul(sent.len()) > MOST_PAIRS {
        return true;
    }
    forwarded.iter().any(|from| sent.iter().any(|into| have_packets_in_common(from, into)))
}

fn protected(spd: &Spd, direction: Direction) -> Vec<Selector> {
    let all = spd.iter().filter(|entry| entry.direction() == direction);
    let protecting = all.filter(|entry| entry.templates().next().is_some());
    protecting.map(|entry| entry.selector()).collect()
}

/// By addresses alone: ports and protocols of what is relayed are not known.
fn have_packets_in_common(one: &Selector, other: &Selector) -> bool {
    one.source.overlaps(other.source) && one.destination.overlaps(other.destination)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use uxfrm_crypto::Backend;
    use uxfrm_engine::Database;

    use super::*;
    use crate::{batch::apply, clock::now};

    fn relaying(policies: &[&str]) -> bool {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for words in policies {
            let (selector, template) = words.split_once(" via ").unwrap_or((words, ""));
            let template = match template {
                "" => String::new(),
                peer => format!("tmpl src 10.9.0.1 dst {peer} proto esp reqid 1 mode tunnel"),
            };
            writeln!(file, "xfrm policy add {selector} {template}").unwrap();
        }
        let mut database = Database::new(Backend::Portable, 1);
        apply::load(&mut database, &[file.path().to_owned()], now()).unwrap();
        relays(&database.current().spd)
    }

    #[test]
    fn hubs_relay_and_sites_do_not() {
        let site = [
            "src 10.1.0.0/24 dst 10.2.0.0/24 dir out via 10.9.0.2",
            "src 10.2.0.0/24 dst 10.1.0.0/24 dir fwd via 10.9.0.2",
            "src 10.1.0.0/24 dst 10.3.0.0/24 dir out via 10.9.0.3",
            "src 10.3.0.0/24 dst 10.1.0.0/24 dir fwd via 10.9.0.3",
        ];
        assert!(!relaying(&site) && !relaying(&[]));
        let leaves = [&site[..], &["src 10.2.0.0/24 dst 10.3.0.0/24 dir out"]].concat();
        assert!(!relaying(&leaves), "what site 2 sends to site 3 leaves plain");
        let hub = [
            "src 10.2.0.0/16 dst 10.3.0.0/24 dir fwd via 10.9.0.2",
            "src 10.2.0.0/24 dst 10.3.0.0/24 dir out via 10.9.0.3",
        ];
        assert!(relaying(&hub));
        assert!(!relaying(&hub[..1]) && !relaying(&hub[1..]));
        let full = "src 0.0.0.0/0 dst 10.1.0.0/24 dir fwd via 10.9.0.4";
        assert!(
            !relaying(&[site[0], full]),
            "the site's packets are not from 10.1.0.0/24 to there"
        );
        assert!(relaying(&["src 10.1.0.0/24 dst 0.0.0.0/0 dir out via 10.9.0.4", full]));
    }
}
