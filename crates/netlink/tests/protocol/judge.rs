//! Look-ups against the machine's kernel: both get the same random policies, and datagrams over
//! `lo` show which policy decides there, as a blocking one drops them. Needs root and a kernel with
//! XFRM policies; no ESP.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr as NetlinkAddress, protocols::NETLINK_ROUTE};
use nix::sys::socket::{setsockopt, sockopt};
use uxfrm_engine::{
    Action, CacheMode, CacheSettings, Direction, Family, FlowKey, PolicyCache, PolicyEntry,
    PolicyKind, PolicyLookup, Spd, Spi,
};

use crate::dice::{Candidate, Dice, addresses};
use crate::kernel::{Kernel, against_the_kernel};
use crate::stage::{Answer, Stage, attribute, message, take_apart};

const SETS: u32 = 2000;
const QUERIES: u32 = 3;
const FLUSH_POLICIES: u16 = 0x1d;
/// `IFA_F_NODAD`: the address can be bound at once.
const NO_DAD: u8 = 2;

/// What else happens while policies are added. One kernel does not get both: Linux moves an updated
/// policy behind its equals when it rehashes, at a time that nobody can tell. Newer kernels (6.18;
/// not 6.1) move it behind equals in other lists of their tree: packets that depend on this are not
/// sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    /// Some take their own place once more.
    Updates,
    /// Hash thresholds change (`do_hthresh_repeat` of
    /// `tools/testing/selftests/net/xfrm_policy.sh`).
    Thresholds,
}

#[test]
fn policy_decision_is_the_kernels_in_2000_sets() {
    judge(Family::V4, Meanwhile::Updates);
}

#[test]
fn policy_decision_is_the_kernels_in_2000_sets_ipv6() {
    judge(Family::V6, Meanwhile::Updates);
}

#[test]
fn policy_decision_is_independent_of_hash_thresholds() {
    judge(Family::V4, Meanwhile::Thresholds);
}

#[test]
fn policy_decision_is_independent_of_hash_thresholds_ipv6() {
    judge(Family::V6, Meanwhile::Thresholds);
}

/// Gives both the same new policies in place of the old.
pub(crate) fn set_up(
    kernel: &Kernel,
    stage: &mut Stage,
    dice: &mut Dice,
    meanwhile: Meanwhile,
) -> Vec<Candidate> {
    for kind in [0, 1] {
        let flush = message(FLUSH_POLICIES, 5, &attribute(16, &[kind, 0, 0, 0, 0, 0]));
        kernel.ask(&flush);
        stage.ask(&flush);
    }
    let most = dice.pick(&[2, 12, 40]);
    let mut candidates: Vec<_> = (0..1 + dice.below(most)).map(|_| dice.candidate()).collect();
    for request in requests(&mut candidates, dice, meanwhile) {
        // Each has a second of its own, so that policies tell in which order they came.
        stage.now = stage.now.plus(Duration::from_secs(1));
        let (theirs, ours) = (kernel.ask(&request), stage.ask(&request));
        let verdict = |answers: &[Answer]| answers.first().and_then(Answer::verdict);
        assert_eq!(
            verdict(&ours).map(|(errno, _)| errno),
            verdict(&theirs).map(|(errno, _)| errno)
        );
    }
    candidates
}

fn requests(candidates: &mut [Candidate], dice: &mut Dice, meanwhile: Meanwhile) -> Vec<Vec<u8>> {
    let mut requests: Vec<_> = candidates.iter().map(Candidate::add).collect();
    for _ in 0..dice.below(8) {
        match meanwhile {
            Meanwhile::Updates => {
                let place = dice.below(candidates.len());
                requests.push(candidates[place].update(dice));
            }
            Meanwhile::Thresholds => {
                requests.insert(dice.below(requests.len() + 1), dice.thresholds());
            }
        }
    }
    requests
}

fn judge(family: Family, meanwhile: Meanwhile) {
    against_the_kernel(move |kernel| {
        open_loopback(family);
        let (mut stage, mut dice) = (Stage::new(), Dice::new(family, 0));
        let settings = CacheSettings { mode: CacheMode::On, flows: 64 };
        let mut cache = PolicyCache::new(settings, 1);
        let (mut sent, mut passed) = (0, 0);
        for number in 0..SETS {
            if number % (SETS / 4) == 0 {
                dice = Dice::new(family, number.into());
            }
            set_up(kernel, &mut stage, &mut dice, meanwhile);
            for query in 0..QUERIES {
                let (from, mark) = (dice.socket_address(), dice.mark());
                let mut to = dice.socket_address();
                // The policies' ports are the same numbers, under masks of twelve bits too.
                to.set_port(to.port() + u16::from(query == 0));
                let flow = flow(from, to, mark);
                if from == to || is_open(&stage.database.snapshot().spd, &flow) {
                    continue;
                }
                let ours = passes(&stage, &mut cache, &flow);
                // What should arrive is waited for; what should not is there at once if it comes.
                let patience = Duration::from_secs(if ours { 20 } else { 0 });
                let theirs = arrives(from, to, mark, number, patience);
                assert_eq!(
                    ours, theirs,
                    "set {number}: {from} to {to} mark {mark}; ours, the kernel's"
                );
                passed += u32::from(ours);
                sent += 1;
            }
        }
        assert!(sent > SETS * QUERIES * 9 / 10, "{sent} packets: too many are left out");
        let share = passed * 100 / sent;
        assert!((20..=80).contains(&share), "{share} of a hundred passed: too one-sided a test");
        assert!(cache.stats().hits > u64::from(SETS), "answers come from the cache too");
    });
}

/// Lets policies apply to `lo`, brings it up, and gives it the addresses that it has not.
pub(crate) fn open_loopback(family: Family) {
    let switches: &[_] = match family {
        Family::V4 => &["ipv4/conf/lo/disable_xfrm", "ipv4/conf/all/disable_xfrm"],
        Family::V6 => &[],
    };
    let policy = match family {
        Family::V4 => ["ipv4/conf/lo/disable_policy", "ipv4/conf/all/disable_policy"],
        Family::V6 => ["ipv6/conf/lo/disable_policy", "ipv6/conf/all/disable_policy"],
    };
    for switch in switches.iter().chain(&policy) {
        std::fs::write(format!("/proc/sys/net/{switch}"), "0").unwrap();
    }
    // RTM_NEWLINK of the first interface, with IFF_UP to be set.
    let up = [0_u32, 1, 1, 1].into_iter().flat_map(u32::to_ne_bytes);
    configure(&message(16, 5, &up.collect::<Vec<_>>()));
    for address in addresses(family) {
        if let IpAddr::V6(address) = address {
            // RTM_NEWADDR, a single address of the first interface.
            let head = vec![10, 128, NO_DAD, 0, 1, 0, 0, 0];
            let [local, remote] = [2, 1].map(|kind| attribute(kind, &address.octets()));
            configure(&message(20, 0x605, &[head, local, remote].concat()));
        }
    }
    for address in addresses(family) {
        let begun = Instant::now();
        while !is_reached(address) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nothing arrives at {address}");
        }
    }
}

/// Whether datagrams to an address arrive: the kernel adds the route of a new one a little later.
fn is_reached(address: IpAddr) -> bool {
    let Ok(socket) = UdpSocket::bind((address, 0)) else { return false };
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let own = socket.local_addr().unwrap();
    socket.send_to(&[0], own).is_ok() && socket.recv(&mut [0]).is_ok()
}

fn configure(request: &[u8]) {
    let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
    socket.bind_auto().unwrap();
    socket.send_to(request, &NetlinkAddress::new(0, 0), 0).unwrap();
    let mut bytes = Vec::with_capacity(4096);
    socket.recv(&mut bytes, 0).unwrap();
    let errno = take_apart(&bytes).first().and_then(Answer::verdict).map(|(errno, _)| errno);
    assert_eq!(errno, Some(0), "{request:?}");
}

/// Whether the kernel lets a datagram with this number through.
fn arrives(from: SocketAddr, to: SocketAddr, mark: u32, number: u32, patience: Duration) -> bool {
    let receiver = UdpSocket::bind(to).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let sender = UdpSocket::bind(from).unwrap();
    setsockopt(&sender, sockopt::Mark, &mark).unwrap();
    match sender.send_to(&number.to_ne_bytes(), to) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return false,
        Err(error) => panic!("{from} to {to}: {error}"),
    }
    let begun = Instant::now();
    let mut bytes = [0; 4];
    loop {
        match receiver.recv(&mut bytes) {
            Ok(_) => return bytes == number.to_ne_bytes(),
            Err(_) if begun.elapsed() < patience => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
}

fn flow(from: SocketAddr, to: SocketAddr, mark: u32) -> FlowKey {
    FlowKey {
        source: from.ip(),
        destination: to.ip(),
        protocol: 17,
        source_port: from.port(),
        destination_port: to.port(),
        mark,
        if_id: 0,
        ifindex: 0,
    }
}

/// What our look-up says of the same datagram, and says again when the flow is known.
fn passes(stage: &Stage, cache: &mut PolicyCache, flow: &FlowKey) -> bool {
    let snapshot = stage.database.snapshot();
    let spd = &snapshot.spd;
    let verdict = decide(spd, flow);
    cache.begin_batch(spd);
    for _ in 0..3 {
        let cached = [Direction::Out, Direction::In].into_iter().all(|direction| {
            let answer = cache.lookup(spd, direction, flow, Spi(0));
            cache.policies(answer).iter().all(|entry| entry.action() == Action::Allow)
        });
        assert_eq!(cached, verdict, "with the cache, and without: {flow:?}");
    }
    verdict
}

/// Whether another policy decides over a flow if one that was updated stands behind its equals.
fn is_open(spd: &Spd, flow: &FlowKey) -> bool {
    let kinds = [PolicyKind::Main, PolicyKind::Sub];
    let ways =
        [Direction::Out, Direction::In].into_iter().flat_map(|way| kinds.map(|kind| (way, kind)));
    let first = ways.filter_map(|(way, kind)| spd.lookup_kind(kind, way, flow));
    first.into_iter().any(|first| {
        let is_equal = |other: &&Arc<PolicyEntry>| {
            (other.direction(), other.kind(), other.precedence().priority())
                == (first.direction(), first.kind(), first.precedence().priority())
        };
        let before = |other: &Arc<PolicyEntry>| {
            other.added() < first.added() && other.action() != first.action()
        };
        spd.iter().filter(is_equal).any(|other| other.matches(flow) && before(other))
    })
}

/// A sub policy that allows leaves the word to the main one behind it.
fn decide(spd: &Spd, flow: &FlowKey) -> bool {
    [Direction::Out, Direction::In].into_iter().all(|direction| {
        let allowed = |kind| match spd.lookup_kind(kind, direction, flow) {
            Some(entry) => entry.action() == Action::Allow,
            None => true,
        };
        let first = match spd.lookup(direction, flow) {
            PolicyLookup::Policy(entry) => entry.action() == Action::Allow,
            PolicyLookup::Default(action) => action == Action::Allow,
        };
        first && allowed(PolicyKind::Main)
    })
}
