//! Chains of this host's packet filter that drop what no rule of theirs accepts.
//!
//! A look at base chains and their policies by `NETLINK_NETFILTER` is cheap, and right: what a
//! chain with policy drop does not accept is gone, whatever other chains say. Of its rules those
//! are known that accept all of one condition, as uxfrm proposes them. What others accept is not
//! judged, so such a chain *may* drop a packet; one without rules does. The tables of
//! `iptables-legacy` are not among them: of those the kernel tells their names alone.

mod accept_rules;

use std::{fmt, fs, io, time::Duration};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt::ReceiveTimeout},
        time::TimeVal,
    },
};
use uxfrm_netlink_wire::{
    NLMSG_DONE, NLMSG_ERROR, NetlinkFlags, NetlinkMessage, NetlinkMessages, append_message,
    find_attribute,
};

use accept_rules::{RULE_CHAIN, RULE_TABLE, RuleEffect};

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN` and `NFT_MSG_GETCHAIN`
const CHAIN: u16 = 10 << 8 | 3;
const CHAINS: u16 = 10 << 8 | 4;
/// `NFT_MSG_NEWRULE` and `NFT_MSG_GETRULE` of them
const RULE: u16 = 10 << 8 | 6;
const RULES_OF: u16 = 10 << 8 | 7;
/// `NFTA_CHAIN_*`
const TABLE: u16 = 1;
const NAME: u16 = 3;
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const RULES: u16 = 6;
/// `NFTA_HOOK_HOOKNUM`
const NUMBER: u16 = 1;
/// `NFPROTO_*`, and as `nft` has them.
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];
/// `NF_DROP`
const DROP: u32 = 0;
/// The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// What uxfrm's own tables are named.
const OWN: &str = "uxfrm-";

/// What is known of the packet filter of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignChains {
    /// Base chains of others than uxfrm whose policy is to drop.
    pub chains: Vec<DroppingChain>,
    /// Programs whose tables `nft` does not show: `iptables-legacy`, `ip6tables-legacy`.
    pub legacy: Vec<&'static str>,
}

/// A base chain that drops what no rule of it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppingChain {
    /// Which packets it sees, as `nft` has it: `ip`, `ip6`, or `inet` for both.
    pub family: &'static str,
    /// Name of its table.
    pub table: String,
    /// Its own name.
    pub chain: String,
    /// Where it sees them.
    pub hook: FilterHook,
    /// How many rules it has.
    pub rules: u32,
    /// Conditions of which it accepts all packets, as `iifname "uxfrm0"`.
    pub accepted: Vec<String>,
}

/// Where a chain sees packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterHook {
    /// All that come in.
    Prerouting,
    /// Those for this host.
    Input,
    /// Those for others.
    Forward,
    /// Those of this host.
    Output,
    /// All that leave.
    Postrouting,
}

impl ForeignChains {
    /// Of the network namespace that the thread is in.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, or another of the kernel's.
    pub fn read() -> io::Result<Self> {
        let chains = match chains() {
            // No nf_tables: nothing is there.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Vec::new(),
            chains => chains?,
        };
        let legacy =
            [("iptables-legacy", "ip_tables_names"), ("ip6tables-legacy", "ip6_tables_names")];
        let has_filter = |file: &str| {
            let names = fs::read_to_string(format!("/proc/self/net/{file}")).unwrap_or_default();
            names.lines().any(|name| name == "filter")
        };
        let legacy = legacy.into_iter().filter(|(_, file)| has_filter(file));
        Ok(Self { chains, legacy: legacy.map(|(program, _)| program).collect() })
    }

    /// The chains that see packets of an IP version at a hook.
    pub fn at(&self, hook: FilterHook, is_ipv4: bool) -> impl Iterator<Item = &DroppingChain> {
        let version = if is_ipv4 { "ip" } else { "ip6" };
        let sees = move |family| family == version || family == "inet";
        self.chains.iter().filter(move |one| one.hook == hook && sees(one.family))
    }
}

impl DroppingChain {
    /// Whether nothing passes it.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.rules == 0
    }

    /// Whether a rule accepts all packets of a condition, and none before it may drop them.
    #[must_use]
    pub(crate) fn accepts(&self, condition: &str) -> bool {
        self.accepted.iter().any(|accepted| accepted == condition)
    }

    /// What lets packets by a device pass, as `iifname "uxfrm0"` has them: a command, or words
    /// where a shell or `nft` would not take the names as such.
    #[must_use]
    pub(crate) fn rule(&self, condition: &str) -> String {
        let Self { family, table, chain, .. } = self;
        match is_plain(table) && is_plain(chain) {
            true => format!("nft insert rule {family} {table} {chain} {condition} accept"),
            false => {
                let (table, chain) = (ShownName(table), ShownName(chain));
                format!("a rule {condition} accept, in table {family} {table}, chain {chain}")
            }
        }
    }
}

impl DroppingChain {
    /// Rules that let all from and to a device pass, as far as the chain lacks them.
    #[must_use]
    pub fn missing_rules(&self, device: &str) -> Vec<String> {
        let conditions = ["iifname", "oifname"].map(|way| format!("{way} \"{device}\""));
        let missing = conditions.iter().filter(|condition| !self.accepts(condition));
        missing.map(|condition| self.rule(condition)).collect()
    }
}

/// `table ip filter, chain FORWARD (hook forward, policy drop)`
impl fmt::Display for DroppingChain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, table, chain, hook, .. } = self;
        let (table, chain) = (ShownName(table), ShownName(chain));
        write!(out, "table {family} {table}, chain {chain} (hook {hook}, policy drop)")
    }
}

/// A name that others chose, which may have any bytes: quoted and without control characters,
/// unless it is plain.
struct ShownName<'a>(&'a str);

impl fmt::Display for ShownName<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match is_plain(self.0) {
            true => out.write_str(self.0),
            false => write!(out, "\"{}\"", self.0.escape_default()),
        }
    }
}

/// Whether terminals, shells and `nft` take a name as it is.
fn is_plain(name: &str) -> bool {
    // `nft` takes a leading one for an option.
    !name.is_empty()
        && !name.starts_with('-')
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
}

impl fmt::Display for FilterHook {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

fn chains() -> io::Result<Vec<DroppingChain>> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(PATIENCE.as_secs().cast_signed(), 0))?;
    let flags = NetlinkFlags::REQUEST | NetlinkFlags::DUMP;
    let mut request = Vec::new();
    append_message(&mut request, CHAINS, flags, 1, [0; 4], |_| {});
    let mut chains = Vec::new();
    dump(&socket, &request, CHAIN, |message| chains.extend(dropping(message)))?;
    for chain in chains.iter_mut().filter(|chain| !chain.is_closed()) {
        let mut request = Vec::new();
        let family = FAMILIES.iter().find(|(_, name)| *name == chain.family);
        let head = [family.map_or(0, |(family, _)| *family), 0, 0, 0];
        append_message(&mut request, RULES_OF, flags, 1, head, |rules| {
            rules.text(RULE_TABLE, &chain.table);
            rules.text(RULE_CHAIN, &chain.chain);
        });
        let mut effects = Vec::new();
        dump(&socket, &request, RULE, |message| effects.extend(RuleEffect::of(message)))?;
        chain.accepted = accepted(effects);
    }
    Ok(chains)
}

/// What all rules up to the first that may drop accept.
fn accepted(effects: Vec<RuleEffect>) -> Vec<String> {
    let until = effects.into_iter().take_while(|effect| *effect != RuleEffect::Other);
    let all = until.filter_map(|effect| match effect {
        RuleEffect::AcceptsAll(condition) => Some(condition),
        RuleEffect::AcceptsSome | RuleEffect::Other => None,
    });
    all.collect()
}

/// Asks the kernel for all of a kind.
fn dump(
    socket: &Socket,
    request: &[u8],
    kind: u16,
    mut take: impl FnMut(NetlinkMessage<'_>),
) -> io::Result<()> {
    socket.send(request, 0)?;
    loop {
        let (datagram, _kernel) = socket.recv_from_full()?;
        for message in NetlinkMessages::of(&datagram) {
            match message.header.kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = message.error_code().unwrap_or_default();
                    return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                }
                other if other == kind => take(message),
                _other => {}
            }
        }
    }
}

/// A base chain of others that drops by its policy.
fn dropping(message: NetlinkMessage<'_>) -> Option<DroppingChain> {
    let (head, attributes) = message.body().split_first_chunk::<4>()?;
    let (_, family) = *FAMILIES.iter().find(|(family, _)| *family == head[0])?;
    let hook = match number(find_attribute(attributes, HOOK)?, NUMBER)? {
        0 => FilterHook::Prerouting,
        1 => FilterHook::Input,
        2 => FilterHook::Forward,
        3 => FilterHook::Output,
        4 => FilterHook::Postrouting,
        _other => return None,
    };
    let table = text(attributes, TABLE)?;
    if number(attributes, POLICY)? != DROP || table.starts_with(OWN) {
        return None;
    }
    // A base chain is no target of jumps: only its rules use it.
    let rules = number(attributes, RULES).unwrap_or(1);
    let (chain, accepted) = (text(attributes, NAME)?, Vec::new());
    Some(DroppingChain { family, table, chain, hook, rules, accepted })
}

fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    find_attribute(attributes, kind)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let value = find_attribute(attributes, kind)?;
    let text = value.strip_suffix(&[0]).unwrap_or(value);
    // Names have any bytes: what cannot be shown is not.
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: u8, table: &str, hook: Option<u32>, policy: u32, rules: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let flags = NetlinkFlags::MULTI;
        append_message(&mut bytes, CHAIN, flags, 1, [family, 0, 0, 0], |chain| {
            chain.text(TABLE, table);
            chain.text(NAME, "FORWARD");
            if let Some(hook) = hook {
                chain.nest(HOOK, |nest| nest.be32(NUMBER, hook));
                chain.be32(POLICY, policy);
            }
            chain.be32(RULES, rules);
        });
        bytes
    }

    fn read(bytes: &[u8]) -> Option<DroppingChain> {
        NetlinkMessages::of(bytes).next().and_then(dropping)
    }

    #[test]
    fn base_chains_that_drop_are_found() {
        let chain = read(&message(2, "filter", Some(2), DROP, 3)).unwrap();
        assert_eq!(chain.to_string(), "table ip filter, chain FORWARD (hook forward, policy drop)");
        assert!(!chain.is_closed());
        let rule = "nft insert rule ip filter FORWARD oifname \"uxfrm0\" accept";
        assert_eq!(chain.rule("oifname \"uxfrm0\""), rule);
        assert!(read(&message(1, "filter", Some(1), DROP, 0)).unwrap().is_closed());
        for (family, table, hook, policy) in [
            (2, "filter", Some(2), 1),
            (2, "filter", None, DROP),
            (2, "uxfrm-uxfrm0", Some(2), DROP),
            (7, "filter", Some(2), DROP),
            (2, "filter", Some(9), DROP),
        ] {
            assert_eq!(read(&message(family, table, hook, policy, 3)), None, "{family} {hook:?}");
        }
    }

    #[test]
    fn names_of_others_reach_no_terminal_and_no_shell() {
        for table in ["t;touch$IFS/tmp/x;#", "t\u{1b}]0;x\u{7}", "t x", "t\n", "-f", "\u{9b}31m"] {
            let chain = read(&message(2, table, Some(2), DROP, 3)).unwrap();
            let rule = chain.rule("oifname \"uxfrm0\"");
            assert!(rule.starts_with("a rule oifname \"uxfrm0\" accept, in table ip \""), "{rule}");
            for shown in [chain.to_string(), rule] {
                assert!(!shown.contains(char::is_control), "{shown:?}");
                assert!(shown.contains(&table.escape_default().to_string()), "{shown}");
            }
        }
    }

    #[test]
    fn rules_behind_one_that_may_drop_do_not_count() {
        use RuleEffect::{AcceptsAll, AcceptsSome, Other};
        let all = |condition: &str| AcceptsAll(condition.to_owned());
        let effects = vec![AcceptsSome, all("iifname \"uxfrm0\""), Other, all("ip daddr 10.0.0.1")];
        let mut chain = read(&message(2, "filter", Some(2), DROP, 4)).unwrap();
        chain.accepted = accepted(effects);
        assert!(chain.accepts("iifname \"uxfrm0\"") && !chain.accepts("ip daddr 10.0.0.1"));
    }

    #[test]
    fn chains_see_packets_of_their_family_at_their_hook() {
        use FilterHook::{Forward, Input};
        let chains = [(2, 2), (10, 2), (1, 1)];
        let chains =
            chains.map(|(family, hook)| read(&message(family, "t", Some(hook), DROP, 1)).unwrap());
        let filter = ForeignChains { chains: chains.into(), legacy: Vec::new() };
        let seen =
            |hook, is_ipv4| filter.at(hook, is_ipv4).map(|one| one.family).collect::<Vec<_>>();
        assert_eq!(seen(Forward, true), ["ip"]);
        assert_eq!(seen(Forward, false), ["ip6"]);
        assert_eq!(seen(Input, false), ["inet"]);
    }

    #[test]
    fn kernel_answers_or_refuses() {
        match ForeignChains::read() {
            Ok(filter) => assert!(filter.chains.iter().all(|one| !one.table.starts_with(OWN))),
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}
