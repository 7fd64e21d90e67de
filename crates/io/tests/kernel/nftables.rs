use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use uxfrm_io::nftables::{
    Chain, Condition, Error, Hook, PacketFilter as _, Rule, RuleVerdict, Set, SetId, SetKeys,
    SetLookup, Table, TableChange,
};
use uxfrm_io::{Namespace, Nftables, Rtnetlink, netns};
use uxfrm_packet::Version;

use crate::{in_namespace, not_run, prefix};

const NAME: &str = "uxfrm-test";
const PORT: u16 = 7007;

/// Runs a test in a fresh namespace, on kernels that have nf_tables, with the family `inet`.
fn with_nftables(test: impl FnOnce() + Send) {
    let probe = || {
        let mut nftables = Nftables::open()?;
        nftables.install(&table(Vec::new()))?;
        nftables.remove(NAME)
    };
    in_namespace(|| match probe() {
        Ok(()) => test(),
        Err(error @ Error::Unsupported { .. }) => not_run(&error.to_string()),
        Err(error) => panic!("{error}"),
    });
}

fn rule(conditions: Vec<Condition>, counter: &'static str, verdict: RuleVerdict) -> Rule {
    Rule { conditions, set_lookup: None, counter: Some(counter), verdict }
}

fn table(rules: Vec<Rule>) -> Table {
    let at_input = Chain { name: "in", hook: Some(Hook::Input), rules };
    let mut more = at_input.clone();
    (more.name, more.hook, more.rules) =
        ("more", None, vec![rule(Vec::new(), "more", RuleVerdict::Accept)]);
    let through = Chain { name: "fwd", hook: Some(Hook::Forward), rules: Vec::new() };
    let counters = vec!["hit", "all", "more"];
    let chains = vec![at_input, more, through];
    Table { name: NAME.to_owned(), counters, sets: Vec::new(), chains }
}

fn count(nftables: &mut Nftables, counter: &str) -> u64 {
    let counts = nftables.counts(NAME).unwrap();
    counts.iter().find(|count| count.name == counter).unwrap().packets
}

/// A neighbour on a link, in a namespace of its own; addresses end in 1 here and in 2 there.
struct Neighbour {
    namespace: Namespace,
    link: u32,
}

impl Neighbour {
    fn new() -> Self {
        let namespace = Namespace::new().unwrap();
        let mut here = Rtnetlink::open().unwrap();
        here.add_veth("near", "far", namespace.as_fd()).unwrap();
        let link = place(&mut here, "near", ["10.9.0.1/24", "fd09::1/64"]);
        namespace
            .enter(|| place(&mut Rtnetlink::open().unwrap(), "far", ["10.9.0.2/24", "fd09::2/64"]))
            .unwrap();
        Self { namespace, link }
    }

    /// Sends a datagram from port 4660 there to the test's port here.
    fn send(&self, to: IpAddr) {
        let any: SocketAddr =
            if to.is_ipv4() { ([0; 4], 4660).into() } else { ([0_u16; 8], 4660).into() };
        self.namespace
            .enter(|| UdpSocket::bind(any).unwrap().send_to(b"plain", (to, PORT)).unwrap())
            .unwrap();
    }
}

fn place(kernel: &mut Rtnetlink, device: &str, addresses: [&str; 2]) -> u32 {
    // Duplicate address detection would hold IPv6 back for seconds.
    netns::set_sysctl(&format!("net/ipv6/conf/{device}/accept_dad"), "0").unwrap();
    let link = kernel.link(device).unwrap().index;
    for address in addresses {
        kernel.add_address(link, prefix(address)).unwrap();
    }
    kernel.set_up(link).unwrap();
    link
}

fn here(version: Version) -> IpAddr {
    match version {
        Version::V4 => "10.9.0.1",
        Version::V6 => "fd09::1",
    }
    .parse()
    .unwrap()
}

fn wait_for(nftables: &mut Nftables, counter: &str, at_least: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let now = count(nftables, counter);
        if now >= at_least || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn table_is_added_replaced_and_removed() {
    with_nftables(|| {
        let mut nftables = Nftables::open().unwrap();
        assert!(!nftables.has(NAME).unwrap());
        nftables.remove(NAME).unwrap();
        assert_eq!(nftables.counts(NAME).unwrap(), []);
        let table = table(vec![rule(vec![Condition::protocol(17)], "all", RuleVerdict::Accept)]);
        nftables.install(&table).unwrap();
        nftables.install(&table).unwrap();
        let counts = nftables.counts(NAME).unwrap();
        assert_eq!(counts.len(), 3);
        assert!(counts.iter().all(|count| count.packets == 0));
        nftables.replace_rules(&table).unwrap();
        nftables.remove(NAME).unwrap();
        assert!(!nftables.has(NAME).unwrap());
        nftables.replace_rules(&table).unwrap();
        assert!(nftables.has(NAME).unwrap(), "a table that was gone is back");
    });
}

/// What holds after `kill -9`, too: the kernel closes the socket.
#[test]
fn a_table_outlives_its_connection_and_the_next_one_may_replace_it() {
    with_nftables(|| {
        let table = table(Vec::new());
        Nftables::open().unwrap().install(&table).unwrap();
        let mut next = Nftables::open().unwrap();
        assert!(next.has(NAME).unwrap());
        next.install(&table).unwrap();
        next.remove(NAME).unwrap();
        assert!(!next.has(NAME).unwrap());
    });
}

#[test]
fn a_refused_table_leaves_the_old_one_and_names_the_part() {
    with_nftables(|| {
        let mut nftables = Nftables::open().unwrap();
        nftables.install(&table(Vec::new())).unwrap();
        let nowhere = rule(Vec::new(), "hit", RuleVerdict::Jump("nowhere"));
        let bad = table(vec![rule(Vec::new(), "all", RuleVerdict::Accept), nowhere]);
        let error = nftables.replace_rules(&bad).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("rule 2 of chain in"), "{error}");
        assert!(nftables.install(&bad).is_err());
        assert!(nftables.has(NAME).unwrap());
        nftables.replace_rules(&table(Vec::new())).unwrap();
    });
}

/// Each condition against a datagram that meets it and, where there is one, another that does not.
#[test]
fn conditions_match_as_in_kernel() {
    with_nftables(|| {
        let far = Neighbour::new();
        let mut nftables = Nftables::open().unwrap();
        let (v4, v6) = (Version::V4, Version::V6);
        let (udp, source, port) = (17, 4660, PORT);
        for (condition, version, meets) in [
            (Condition::version(v4), v4, true),
            (Condition::version(v4), v6, false),
            (Condition::version(v6), v6, true),
            (Condition::protocol(udp), v4, true),
            (Condition::protocol(udp), v6, true),
            (Condition::protocol(6), v6, false),
            (Condition::other_protocol(6), v4, true),
            (Condition::other_protocol(udp), v4, false),
            (Condition::came_by("near"), v4, true),
            (Condition::came_by("nea"), v4, false),
            (Condition::came_by_index(far.link), v6, true),
            (Condition::came_by_index(far.link + 1), v6, false),
            (Condition::mark(0x10, 0x0f), v4, true),
            (Condition::mark(1, 1), v4, false),
            (Condition::source(prefix("10.9.0.2/32")), v4, true),
            (Condition::source(prefix("10.9.0.77/25")), v4, true),
            (Condition::source(prefix("10.9.0.1/32")), v4, false),
            (Condition::source(prefix("fd09::2/128")), v6, true),
            (Condition::source(prefix("fd09:0:0:1::/63")), v6, true),
            (Condition::source(prefix("fd09::4/127")), v6, false),
            (Condition::destination(prefix("10.9.0.0/31")), v4, true),
            (Condition::destination(prefix("10.9.0.2/31")), v4, false),
            (Condition::destination(prefix("fd09::1/128")), v6, true),
            (Condition::destination(prefix("0.0.0.0/0")), v4, true),
            (Condition::upper_pair(0, source, 0xffff), v4, true),
            (Condition::upper_pair(0, 0x1200, 0xff00), v6, true),
            (Condition::upper_pair(0, 0x1300, 0xff00), v6, false),
            (Condition::upper_pair(2, port, 0xffff), v6, true),
            (Condition::upper_pair(2, port + 1, 0xffff), v4, false),
            (Condition::other_upper_pair(2, port + 1), v6, true),
            (Condition::other_upper_pair(2, port), v4, false),
            (Condition::upper_byte(0, 0x12, 0xff), v4, true),
            (Condition::upper_byte(0, 0x13, 0x0f), v4, false),
            (Condition::network_byte(6, udp), v6, true),
            (Condition::later_fragment(), v6, false),
            (Condition::no_routing_header(), v6, true),
            (Condition::last_segment(prefix("fd09::1/128")), v6, false),
        ] {
            let udp_only = Condition::protocol(17);
            let hit = rule(vec![udp_only, condition], "hit", RuleVerdict::Accept);
            let all = rule(vec![udp_only], "all", RuleVerdict::Accept);
            // What is not accepted by "hit" is by "all".
            nftables.install(&table(vec![hit, all])).unwrap();
            far.send(here(version));
            let counter = if meets { "hit" } else { "all" };
            assert_eq!(wait_for(&mut nftables, counter, 1), 1, "{condition:?} {version:?}");
        }
    });
}

#[test]
fn nftables_drop_reaches_no_socket() {
    with_nftables(|| {
        let far = Neighbour::new();
        let mut nftables = Nftables::open().unwrap();
        for version in [Version::V4, Version::V6] {
            let socket = UdpSocket::bind((here(version), PORT)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let dropped = rule(vec![Condition::protocol(17)], "hit", RuleVerdict::Drop);
            nftables.install(&table(vec![dropped])).unwrap();
            far.send(here(version));
            assert_eq!(wait_for(&mut nftables, "hit", 1), 1);
            socket.set_nonblocking(true).unwrap();
            assert!(socket.recv(&mut [0; 16]).is_err());
            socket.set_nonblocking(false).unwrap();
            nftables.replace_rules(&table(Vec::new())).unwrap();
            far.send(here(version));
            assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 5, "with the rule gone it passes");
            assert_eq!(count(&mut nftables, "hit"), 1, "counters go on when rules change");
        }
    });
}

/// The end of a chain that was jumped to leads back; the end of one that was gone to leads out,
/// accepted.
#[test]
fn jump_comes_back_and_goto_does_not() {
    with_nftables(|| {
        let far = Neighbour::new();
        let mut nftables = Nftables::open().unwrap();
        let udp = vec![Condition::protocol(17)];
        for (verdict, goes_on) in [(RuleVerdict::Jump("more"), 1), (RuleVerdict::Goto("more"), 0)] {
            let lead = rule(udp.clone(), "hit", verdict);
            let behind = rule(udp.clone(), "all", RuleVerdict::Accept);
            let mut made = table(vec![lead, behind]);
            made.chains[1].rules =
                vec![rule(vec![Condition::protocol(6)], "more", RuleVerdict::Drop)];
            nftables.install(&made).unwrap();
            let socket = UdpSocket::bind((here(Version::V4), PORT)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            far.send(here(Version::V4));
            assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 5);
            assert_eq!(count(&mut nftables, "hit"), 1);
            assert_eq!(count(&mut nftables, "all"), goes_on);
        }
    });
}

/// Also from a chain that another one went to.
#[test]
fn return_comes_back_to_the_last_jump() {
    with_nftables(|| {
        let far = Neighbour::new();
        let mut nftables = Nftables::open().unwrap();
        let udp = || vec![Condition::protocol(17)];
        let lead = rule(udp(), "hit", RuleVerdict::Jump("more"));
        let mut made = table(vec![lead, rule(udp(), "all", RuleVerdict::Accept)]);
        made.chains[1].rules = vec![rule(udp(), "more", RuleVerdict::Goto("last"))];
        let back = rule(udp(), "more", RuleVerdict::Return);
        let drop = rule(udp(), "more", RuleVerdict::Drop);
        made.chains.push(Chain { name: "last", hook: None, rules: vec![back, drop] });
        nftables.install(&made).unwrap();
        let socket = UdpSocket::bind((here(Version::V4), PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        far.send(here(Version::V4));
        assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 5);
        assert_eq!(count(&mut nftables, "more"), 2);
        assert_eq!(count(&mut nftables, "all"), 1);
    });
}

#[test]
fn thousand_rules_fit_one_transaction() {
    with_nftables(|| {
        let some = rule(
            vec![
                Condition::version(Version::V6),
                Condition::source(prefix("fd09::/63")),
                Condition::destination(prefix("fd09::/63")),
                Condition::protocol(6),
                Condition::upper_pair(2, 80, 0xffff),
            ],
            "hit",
            RuleVerdict::Drop,
        );
        Nftables::open().unwrap().install(&table(vec![some; 1000])).unwrap();
    });
}

/// More errors than the socket has room for: the call comes back all the same, with the first.
#[test]
fn thousand_errors_return_the_first() {
    with_nftables(|| {
        let nowhere = rule(Vec::new(), "hit", RuleVerdict::Jump("nowhere"));
        let mut nftables = Nftables::open().unwrap();
        let error = nftables.install(&table(vec![nowhere; 2000])).unwrap_err();
        assert!(error.to_string().contains("rule 1 of chain in"), "{error}");
        assert!(!nftables.has(NAME).unwrap());
        nftables.install(&table(Vec::new())).unwrap();
    });
}

/// Rules come and go one by one, each in its place, while the others go on counting.
#[test]
fn single_rules_are_inserted_and_deleted() {
    with_nftables(|| {
        let mut nftables = Nftables::open().unwrap();
        let to_port = |port, counter| {
            let conditions = vec![Condition::protocol(17), Condition::upper_pair(2, port, 0xffff)];
            rule(conditions, counter, RuleVerdict::Drop)
        };
        nftables.install(&table(vec![to_port(1, "hit"), to_port(2, "hit")])).unwrap();
        let before = nftables.rules(NAME, "in").unwrap();
        assert_eq!((before.len(), nftables.rules(NAME, "more").unwrap().len()), (2, 1));

        let (first, middle, last) = (to_port(3, "all"), to_port(4, "all"), to_port(5, "all"));
        let add =
            |rule: &Rule, before| TableChange::AddRule { chain: "in", before, rule: rule.clone() };
        let changes = [
            add(&middle, Some(before[1])),
            add(&first, Some(before[0])),
            add(&last, None),
            TableChange::DeleteRule { chain: "in", rule: before[0] },
        ];
        let made = nftables.change(NAME, &changes).unwrap();
        let expected = [made[1], made[0], before[1], made[2]];
        assert_eq!(nftables.rules(NAME, "in").unwrap(), expected);

        // Of a change that fails nothing comes true.
        let gone = TableChange::DeleteRule { chain: "in", rule: before[0] };
        nftables.change(NAME, &[add(&first, None), gone]).unwrap_err();
        assert_eq!(nftables.rules(NAME, "in").unwrap(), expected);
        assert_eq!(nftables.change(NAME, &[]).unwrap(), []);
    });
}

/// The kernel tells of each, which must not be more than the socket keeps.
#[test]
fn three_thousand_single_rules_are_added() {
    with_nftables(|| {
        let mut nftables = Nftables::open().unwrap();
        let to_port = |port| {
            let there = Condition::upper_pair(2, port, u16::MAX);
            rule(vec![Condition::protocol(17), there], "hit", RuleVerdict::Accept)
        };
        nftables.install(&table(vec![to_port(1)])).unwrap();
        let last = nftables.rules(NAME, "in").unwrap()[0];
        let add =
            |port| TableChange::AddRule { chain: "in", before: Some(last), rule: to_port(port) };
        let changes: Vec<_> = (2..3002).map(add).collect();
        let mut made = nftables.change(NAME, &changes).unwrap();
        assert_eq!(made.len(), 3000);
        made.push(last);
        assert_eq!(nftables.rules(NAME, "in").unwrap(), made);
    });
}

/// A rule that counts as "hit" what answers as these conditions want, asked of a set; and the set.
fn asking(conditions: &[Condition]) -> (Rule, Set) {
    let pairs = conditions.iter().map(|condition| condition.question().unwrap());
    let (questions, replies): (Vec<_>, Vec<_>) = pairs.unzip();
    let key: Vec<u8> = replies.iter().flat_map(|reply| reply.as_bytes()).copied().collect();
    let mut keys = SetKeys::new(key.len());
    keys.push(&key);
    let set = SetId(7);
    let fixed = rule(vec![Condition::protocol(17)], "hit", RuleVerdict::Drop);
    (Rule { set_lookup: Some(SetLookup { questions, set }), ..fixed }, Set { id: set, keys })
}

/// What a rule asks a set is what conditions would: all kinds of fields, in all widths, up to the
/// longest key.
#[test]
fn set_lookup_equals_conditions() {
    with_nftables(|| {
        let far = Neighbour::new();
        let mut nftables = Nftables::open().unwrap();
        let (v4, v6) = (Version::V4, Version::V6);
        let pair = |offset, value, mask| Condition::upper_pair(offset, value, mask);
        let six = |source: &str, destination: &str| {
            vec![
                Condition::mark(0, 1),
                Condition::came_by_index(far.link),
                Condition::source(prefix(source)),
                Condition::destination(prefix(destination)),
                Condition::protocol(17),
                pair(0, 4660, 0xffff),
                pair(2, PORT, 0xffff),
                Condition::upper_byte(4, 0, 0xff),
            ]
        };
        let four = |source: &str, destination: &str| {
            vec![Condition::source(prefix(source)), Condition::destination(prefix(destination))]
        };
        for (conditions, version, meets) in [
            (four("10.9.0.2/32", "10.9.0.1/32"), v4, true),
            (four("10.9.0.2/32", "10.9.0.2/32"), v4, false),
            (four("10.9.0.128/25", "10.9.0.1/32"), v4, false),
            (four("10.8.0.0/15", "10.9.0.0/30"), v4, true),
            (
                vec![Condition::destination(prefix("10.9.0.0/31")), pair(2, 0x1b00, 0xff00)],
                v4,
                true,
            ),
            (
                vec![Condition::destination(prefix("10.9.0.0/31")), pair(2, 0x1c00, 0xff00)],
                v4,
                false,
            ),
            // Masks that are no prefixes: the port here is 0x1b5f, that there 0x1234.
            (vec![pair(2, 0x005f, 0x00ff), pair(0, 0x0204, 0x0f0f)], v4, true),
            (vec![pair(2, 0x005f, 0x00ff), pair(0, 0x0205, 0x0f0f)], v4, false),
            (vec![Condition::upper_byte(2, 0x0b, 0x0f), Condition::mark(0, 0xff00_ff00)], v6, true),
            (
                vec![Condition::upper_byte(2, 0x0b, 0x1f), Condition::mark(0, 0xff00_ff00)],
                v6,
                false,
            ),
            (vec![Condition::protocol(17)], v6, true),
            (six("fd09::2/128", "fd09::1/128"), v6, true),
            (six("fd09::3/128", "fd09::1/128"), v6, false),
            (six("fd09::/64", "fd09::/48"), v6, true),
            (six("fd09:0:0:1::/64", "fd09::/48"), v6, false),
            (six("fd09::/63", "fd09::/127"), v6, true),
            (six("fd09::/63", "fd09::2/127"), v6, false),
        ] {
            let (hit, set) = asking(&conditions);
            let all = rule(vec![Condition::protocol(17)], "all", RuleVerdict::Accept);
            nftables.install(&Table { sets: vec![set], ..table(vec![hit, all]) }).unwrap();
            far.send(here(version));
            let counter = if meets { "hit" } else { "all" };
            assert_eq!(wait_for(&mut nftables, counter, 1), 1, "{conditions:?}");
        }
    });
}

/// Sets and keys come and go one by one; what was asked of a set that goes is asked no more.
#[test]
fn set_keys_are_added_and_removed() {
    with_nftables(|| {
        let far = Neighbour::new();
        let mut nftables = Nftables::open().unwrap();
        nftables.install(&table(Vec::new())).unwrap();
        let (hit, Set { id: set, keys }) = asking(&[Condition::source(prefix("10.9.0.2/32"))]);
        let add = TableChange::AddRule { chain: "in", before: None, rule: hit };
        let made = nftables.change(NAME, &[TableChange::AddSet { set, length: 4 }, add]).unwrap();
        // What is to be dropped has been counted by then; what is to come may be late on a busy
        // machine.
        let (soon, late) = (Duration::from_millis(200), Duration::from_secs(10));
        let sent = |nftables: &mut Nftables, expected, patience| {
            let socket = UdpSocket::bind((here(Version::V4), PORT)).unwrap();
            far.send(here(Version::V4));
            assert_eq!(wait_for(nftables, "hit", expected), expected);
            socket.set_read_timeout(Some(patience)).unwrap();
            socket.recv(&mut [0; 16]).is_ok()
        };
        assert!(sent(&mut nftables, 0, late));
        nftables.change(NAME, &[TableChange::AddKeys { set, keys: keys.clone() }]).unwrap();
        assert!(!sent(&mut nftables, 1, soon));
        nftables.change(NAME, &[TableChange::DeleteKeys { set, keys: keys.clone() }]).unwrap();
        assert!(sent(&mut nftables, 1, late));
        nftables.change(NAME, &[TableChange::DeleteKeys { set, keys }]).unwrap_err();
        nftables.change(NAME, &[TableChange::DeleteSet { set }]).unwrap_err();
        let gone = TableChange::DeleteRule { chain: "in", rule: made[0] };
        nftables.change(NAME, &[gone, TableChange::DeleteSet { set }]).unwrap();
    });
}

/// Rules are replaced together with the sets that they ask, also by sets of the same names.
#[test]
fn sets_are_replaced_with_the_rules() {
    with_nftables(|| {
        let mut nftables = Nftables::open().unwrap();
        let (hit, set) = asking(&[Condition::source(prefix("10.9.0.2/32"))]);
        let first = Table { sets: vec![set.clone()], ..table(vec![hit.clone()]) };
        nftables.install(&first).unwrap();
        nftables.replace_rules(&first).unwrap();
        let other = Set { id: SetId(8), keys: set.keys };
        let among = hit.set_lookup.map(|among| SetLookup { set: other.id, ..among });
        let second = Table { sets: vec![other], ..table(vec![Rule { set_lookup: among, ..hit }]) };
        nftables.replace_rules(&second).unwrap();
        nftables.replace_rules(&table(Vec::new())).unwrap();
        assert_eq!(nftables.rules(NAME, "in").unwrap(), []);
    });
}
