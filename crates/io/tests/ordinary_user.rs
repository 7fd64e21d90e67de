//! What an ordinary user can do once [`become_root`] was called, in a process of its own without
//! other threads.
#![expect(clippy::unwrap_used, reason = "a test's own set-up")]

use std::{net::Ipv4Addr, os::fd::AsFd};

use uxfrm_io::netns::{become_root, set_sysctl};
use uxfrm_io::nftables::{
    Chain, Condition, Error, Hook, PacketFilter as _, Rule, RuleVerdict, Set, SetId, SetKeys,
    SetLookup, Table, TableChange,
};
use uxfrm_io::{Namespace, Raw, RawOptions, Rtnetlink, Tun, TunOptions, Udp, UdpOptions};
use uxfrm_io::{Nftables, rtnetlink::RoutePrefix};
use uxfrm_packet::Version;

fn main() {
    if let Err(error) = become_root() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "must run in CI: {error}");
        eprintln!("not run: no user namespace: {error}");
        return;
    }
    let far = Namespace::new().unwrap();
    let mut kernel = Rtnetlink::open().unwrap();
    assert_eq!(kernel.links().unwrap().len(), 1, "a network namespace of its own");
    kernel.add_veth("wire", "wire", far.as_fd()).unwrap();
    assert!(far.enter(|| Rtnetlink::open().unwrap().link("wire").is_ok()).unwrap());
    far.enter(|| set_sysctl("net/ipv4/ip_forward", "1").unwrap()).unwrap();
    assert!(set_sysctl("net/no/such", "1").unwrap_err().to_string().contains("net/no/such"));
    Udp::open(&UdpOptions { mark: 1, ..UdpOptions::new("127.0.0.1:4500".parse().unwrap()) })
        .unwrap();
    for version in [Version::V4, Version::V6] {
        Raw::open(&RawOptions { mark: 1, ..RawOptions::new(version) }).unwrap();
    }
    match Tun::open(&TunOptions::new("uxio%d")) {
        Ok(tun) => assert!(kernel.link(tun.name()).is_ok()),
        Err(error) => eprintln!("not run: /dev/net/tun: {error}"),
    }
    long_tables();
    eprintln!("an ordinary user's namespace: ok");
}

/// What does not fit into the largest socket buffer that an ordinary user can have goes in pieces,
/// and a table that is not there yet does not.
fn long_tables() {
    const NAME: &str = "uxfrm-long";
    let mut nftables = match Nftables::open() {
        Ok(nftables) => nftables,
        Err(error) => return eprintln!("not run: {error}"),
    };
    let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
    let most: u64 = most.trim().parse().unwrap();
    let mut keys = SetKeys::new(64);
    // A buffer may have twice as many bytes.
    (0..3 * most / 64).for_each(|key| keys.push(&[key.to_be_bytes(); 8].concat()));
    let any = RoutePrefix::new(Ipv4Addr::UNSPECIFIED.into(), 32).unwrap();
    let questions = vec![Condition::source(any).question().unwrap().0; 16];
    let set = SetId(1);
    let rule = Rule {
        conditions: vec![Condition::version(Version::V4)],
        set_lookup: Some(SetLookup { questions, set }),
        counter: None,
        verdict: RuleVerdict::Drop,
    };
    let chain = |rules| vec![Chain { name: "in", hook: Some(Hook::Input), rules }];
    let empty = Table {
        name: NAME.to_owned(),
        counters: Vec::new(),
        sets: Vec::new(),
        chains: chain(Vec::new()),
    };
    let sets = vec![Set { id: set, keys: keys.clone() }];
    let full = Table { sets, chains: chain(vec![rule]), ..empty.clone() };
    let error = nftables.install(&full).unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    nftables.install(&empty).unwrap();
    // Rules are told all at once: where they are too many, nothing of what was to come with them
    // stays.
    let rule = full.chains[0].rules[0].clone();
    let many = vec![rule; usize::try_from(most / 200).unwrap()];
    let error = nftables.replace_rules(&Table { chains: chain(many), ..full.clone() }).unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    nftables.change(NAME, &[TableChange::DeleteSet { set }]).unwrap_err();
    nftables.replace_rules(&full).unwrap();
    assert_eq!(nftables.rules(NAME, "in").unwrap().len(), 1);
    // Each of them is there, or the kernel would refuse.
    nftables.change(NAME, &[TableChange::DeleteKeys { set, keys: keys.clone() }]).unwrap();
    nftables.change(NAME, &[TableChange::AddKeys { set, keys }]).unwrap();
    nftables.replace_rules(&empty).unwrap();
    assert_eq!(nftables.rules(NAME, "in").unwrap(), []);
}
