//! Whether the kernel has nf_tables, by which the guard and marks work, and what other chains there
//! drop of what is forwarded.

use std::io;

use uxfrm_host_facts::packet_filter::{FilterHook, ForeignChains};
use uxfrm_io::nftables::Nftables;
use uxfrm_status::quantity::things;

use super::finding::Finding;
use crate::left_guard;

const CHECK: &str = "nf_tables";

/// What asking for its tables gives.
#[derive(Debug)]
enum Answer {
    /// The names of all tables.
    Tables(Vec<String>),
    Unsupported,
    NotPermitted,
    Failed(String),
}

/// Asks this network namespace's nf_tables.
pub(super) fn check() -> Finding {
    judge(&match Nftables::open().and_then(|mut tables| tables.tables()) {
        Ok(tables) => Answer::Tables(tables),
        Err(error) if error.is_unsupported() => Answer::Unsupported,
        Err(error) if error.errno() == nix::errno::Errno::EPERM as i32 => Answer::NotPermitted,
        Err(error) => Answer::Failed(error.to_string()),
    })
}

fn judge(answer: &Answer) -> Finding {
    match answer {
        Answer::Tables(tables) => {
            let own: Vec<_> = tables.iter().filter(|name| name.starts_with("uxfrm-")).collect();
            let own = if own.is_empty() { "none of uxfrm's" } else { "with uxfrm's guard" };
            Finding::ok(
                CHECK,
                format!("there, {}, {own}", things(tables.len() as u64, "table", "tables")),
            )
        }
        Answer::Unsupported => Finding::warn(
            CHECK,
            "not in this kernel: nothing keeps plain packets out, and destinations alone lead packets to uxfrm",
            "modprobe nf_tables",
        ),
        Answer::NotPermitted => {
            Finding::warn(CHECK, "not known: it answers root only", "sudo uxfrm doctor")
        }
        Answer::Failed(why) => Finding::fail(CHECK, why, "modprobe nf_tables"),
    }
}

/// Chains of others that drop what comes out of tunnels for hosts behind this one.
pub(super) fn forwarded() -> Option<Finding> {
    judge_forwarded(&ForeignChains::read(), &tuns(&left_guard::tables()))
}

/// The TUNs of the gateways here, by the tables of their guards; else the default one.
fn tuns(tables: &[String]) -> Vec<String> {
    let own = tables.iter().filter_map(|name| name.strip_prefix("uxfrm-"));
    let own: Vec<_> = own.map(str::to_owned).collect();
    if own.is_empty() { vec!["uxfrm0".to_owned()] } else { own }
}

/// `None` where it can't be read: [`check`] says so.
fn judge_forwarded(read: &io::Result<ForeignChains>, tuns: &[String]) -> Option<Finding> {
    let filter = read.as_ref().ok()?;
    let name = "own filter";
    let chains = filter.chains.iter().filter(|chain| chain.hook == FilterHook::Forward);
    let chains: Vec<_> = chains.collect();
    let names: Vec<_> = chains.iter().map(ToString::to_string).collect();
    let names = names.join("; ");
    let legacy = match &filter.legacy[..] {
        [] => String::new(),
        programs => {
            format!("; of {} no more is known than that it has rules", programs.join(" and "))
        }
    };
    let missing =
        chains.iter().flat_map(|chain| tuns.iter().flat_map(|tun| chain.missing_rules(tun)));
    let missing: Vec<_> = missing.collect();
    let closed = chains.iter().find(|chain| chain.is_closed());
    Some(match closed.or_else(|| chains.first()) {
        None => Finding::ok(name, format!("no chain with policy drop at hook forward{legacy}")),
        Some(chain) if chain.is_closed() => Finding::warn(
            name,
            format!("{names}: forwards nothing, as it has no rules{legacy}"),
            &missing.join("; "),
        ),
        Some(_) if !missing.is_empty() => Finding::warn(
            name,
            format!(
                "{names}: may drop what is forwarded from and to tunnels; `uxfrm why` tells of a \
                 packet{legacy}"
            ),
            &missing.join("; "),
        ),
        Some(_) => Finding::ok(
            name,
            format!("{names}: lets what is forwarded from and to tunnels pass{legacy}"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use uxfrm_host_facts::packet_filter::DroppingChain;

    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn chains_that_drop_what_is_forwarded_are_named() {
        let chain = |rules| DroppingChain {
            family: "inet",
            table: "firewall".to_owned(),
            chain: "forward".to_owned(),
            hook: FilterHook::Forward,
            rules,
            accepted: Vec::new(),
        };
        let tuns = tuns(&["filter".to_owned(), "uxfrm-wan".to_owned()]);
        let judged = |chains: Vec<DroppingChain>, legacy| {
            judge_forwarded(&Ok(ForeignChains { chains, legacy }), &tuns).unwrap()
        };
        let none = judged(Vec::new(), vec!["iptables-legacy"]);
        assert_eq!(none.severity, Severity::Ok);
        assert!(none.found.contains("of iptables-legacy no more is known"), "{none}");
        let open = judged(vec![chain(2)], Vec::new());
        assert_eq!(open.severity, Severity::Warn);
        assert!(open.to_string().contains("insert rule inet firewall forward oifname \"wan\""));
        assert_eq!(open.found.matches("table inet firewall, chain forward").count(), 1, "{open}");
        let accepted = ["iifname \"wan\"", "oifname \"wan\""].map(str::to_owned).to_vec();
        let mended = judged(vec![DroppingChain { accepted, ..chain(2) }], Vec::new());
        assert_eq!(mended.severity, Severity::Ok, "{mended}");
        let closed = judged(vec![chain(2), chain(0)], Vec::new());
        assert_eq!(closed.severity, Severity::Warn);
        assert_eq!(judge_forwarded(&Err(io::ErrorKind::PermissionDenied.into()), &[]), None);
    }

    #[test]
    fn answers_are_judged() {
        let tables = vec!["filter".to_owned(), "uxfrm-uxfrm0".to_owned()];
        let found = judge(&Answer::Tables(tables));
        assert_eq!(found.found, "there, 2 tables, with uxfrm's guard");
        assert_eq!(judge(&Answer::Unsupported).severity, Severity::Warn);
        assert_eq!(judge(&Answer::NotPermitted).severity, Severity::Warn);
        assert_eq!(judge(&Answer::Failed("x".to_owned())).severity, Severity::Fail);
    }
}
