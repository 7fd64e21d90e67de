use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, LazyLock},
};

use uxfrm_crypto::{Backend, KeyMaterial};
use uxfrm_engine::{
    Database, DropSubject, Family, LifetimeLimits, Mark, Mode, Output, Policy, Prefix, SaConfig,
    SaProtocol, SaTransform, Settings, SoftHardLimit, Spi, Template, TemplateLevel, Worker,
};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_status::{
    gateway::PlainPolicies,
    health::{Health, HealthReason},
    tunnel::{PolicyTally, TrafficStatus},
};

use super::*;
use crate::status::board::{Board, ExpiredStates, Post};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const WORST: Cursor = Cursor::Worst(TunnelOrder::Name);
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn posted(post: Post) -> Arc<Posted> {
    let board = Board::new(uxfrm_io::poll::Poller::new().unwrap().waker());
    board.post(|| post);
    board.posted()
}

fn net(text: &str) -> Prefix {
    let (address, len) = text.split_once('/').unwrap();
    Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn state(source: IpAddr, destination: IpAddr, spi: u32, reqid: u32) -> SaConfig {
    let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20])).unwrap();
    SaConfig::esp_tunnel(source, destination, Spi(spi), keys).with_reqid(Reqid(reqid))
}

fn out(reqid: u32) -> Policy {
    let template = Template::esp_tunnel(HERE, THERE).with_reqid(Reqid(reqid));
    Policy::protect(Direction::Out, net("10.1.0.0/16"), net("10.2.0.0/16"), template)
}

fn into(reqid: u32) -> Policy {
    let template = Template::esp_tunnel(THERE, HERE).with_reqid(Reqid(reqid));
    Policy::protect(Direction::In, net("10.2.0.0/16"), net("10.1.0.0/16"), template)
}

fn database(policies: Vec<Policy>, states: Vec<SaConfig>) -> Database {
    let mut database = Database::new(Backend::Portable, 1);
    database.apply(Moment(0), |change| {
        for policy in policies {
            change.add_policy(policy).unwrap();
        }
        for state in states {
            change.add_sa(state).unwrap();
        }
    });
    database
}

fn no_drops() -> DropFacts<'static> {
    static NONE: LazyLock<(DropTallies, Refusals)> = LazyLock::new(Default::default);
    let (tallies, refusals) = &*NONE;
    DropFacts { tallies, refusals, unsent: &[] }
}

/// The tunnels of a database, so many seconds after all was added.
fn tunnels(database: &Database, seconds: u64) -> Vec<TunnelStatus> {
    tell(database, seconds, Post::default())
}

fn tell(database: &Database, seconds: u64, post: Post) -> Vec<TunnelStatus> {
    let (snapshot, posted) = (database.snapshot(), posted(post));
    let read = ReadAt { now: Moment::from_secs(seconds), posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let survey = Survey::of(&snapshot, &grouping, None, no_drops(), read);
    survey.page(WORST, 1000).tunnels
}

#[test]
fn policies_and_states_of_both_directions_are_one_tunnel() {
    let limits = LifetimeLimits {
        added_seconds: SoftHardLimit { soft: 3000, hard: 3600 },
        ..LifetimeLimits::default()
    };
    let mut forward = into(7);
    forward.direction = Direction::Forward;
    let states =
        vec![SaConfig { limits, ..state(HERE, THERE, 0x1001, 7) }, state(THERE, HERE, 0x1002, 7)];
    let database = database(vec![out(7), into(7), forward], states);
    for sa in database.snapshot().sad.iter() {
        let _charged = sa.charge(3, 300, Moment::from_secs(10));
    }
    let [tunnel] = &tunnels(&database, 12)[..] else { panic!("one tunnel") };
    assert_eq!((tunnel.local, tunnel.remote, tunnel.reqid), (HERE, THERE, 7));
    let PolicyTally { outbound, inbound, forward } = tunnel.policies;
    assert_eq!((outbound, inbound, forward), (1, 1, 1));
    let [nets] = &tunnel.nets[..] else { panic!("{:?}", tunnel.nets) };
    assert_eq!((&nets.local[..], &nets.remote[..]), ("10.1.0.0/16", "10.2.0.0/16"));
    assert_eq!((tunnel.health, &tunnel.reason), (Health::Up, &None));
    assert_eq!(tunnel.cipher.as_deref(), Some("rfc4106(gcm(aes)) 128"));
    let carried = TrafficStatus { packets: 3, bytes: 300, last_seconds_ago: Some(2) };
    assert_eq!((tunnel.sent, tunnel.received), (carried, carried));
    assert_eq!(tunnel.rekey.map(|limit| limit.left), Some(2988));
    assert_eq!(tunnel.expiry.map(|limit| limit.left), Some(3588));
    let states: Vec<_> =
        tunnel.states.iter().map(|state| (&state.spi[..], state.direction.as_deref())).collect();
    assert_eq!(states, [("0x00001002", Some("in")), ("0x00001001", Some("out"))]);
}

#[test]
fn tunnel_with_policies_of_one_way_says_which_is_missing() {
    let (to, from) = (|| state(HERE, THERE, 1, 7), || state(THERE, HERE, 2, 7));
    let explained = |policies| {
        let told = tunnels(&database(policies, vec![to(), from()]), 1);
        told.into_iter().map(|tunnel| tunnel.explanation.unwrap_or_default()).collect::<Vec<_>>()
    };
    let says = |policies, words: &str| {
        let told = explained(policies);
        assert!(told.len() == 1 && told[0].contains(words), "{told:?}");
    };
    says(vec![out(7)], "only out: no policy dir in or fwd");
    says(vec![into(7)], "only in: no policy dir out");
    assert_eq!(explained(vec![out(7), into(7)]), ["nothing so far"]);
}

#[test]
fn health_by_what_is_missing() {
    let both = || vec![out(7), into(7)];
    let (to, from) = (|| state(HERE, THERE, 1, 7), || state(THERE, HERE, 2, 7));
    let other_reqid = state(HERE, THERE, 1, 8);
    let of = |policies, states| {
        let told = tunnels(&database(policies, states), 1);
        told.into_iter().map(|tunnel| (tunnel.health, tunnel.reason)).collect::<Vec<_>>()
    };
    let quiet = (Health::Idle, Some(HealthReason::Quiet { seconds: None }));
    let down = |reason| (Health::Down, Some(reason));
    assert_eq!(of(both(), vec![to(), from()]), [quiet]);
    assert_eq!(of(both(), vec![from()]), [down(HealthReason::NoState)]);
    assert_eq!(of(both(), vec![to()]), [down(HealthReason::NoInboundState)]);
    assert_eq!(of(both(), vec![other_reqid, from()]), [down(HealthReason::NoState)]);
    let wrong = to().with_direction(Direction::In);
    assert_eq!(of(both(), vec![wrong, from()]), [down(HealthReason::WrongDirection)]);
    let mut optional = out(7);
    // An optional template in tunnel mode is refused.
    (optional.templates[0].level, optional.templates[0].mode) =
        (TemplateLevel::Use, Mode::Transport);
    let plain = (Health::Idle, Some(HealthReason::OptionalWithoutState));
    assert_eq!(of(vec![optional], vec![]), [plain]);
}

#[test]
fn inbound_template_of_any_reqid_joins_the_tunnel_between_its_ends() {
    let states = vec![state(HERE, THERE, 1, 7), state(THERE, HERE, 2, 9)];
    let [tunnel] = &tunnels(&database(vec![out(7), into(0)], states), 1)[..] else {
        panic!("one tunnel")
    };
    assert_eq!((tunnel.health, tunnel.states_total), (Health::Idle, 2));
}

#[test]
fn inbound_template_without_ends_joins_the_tunnel_of_its_reqid() {
    let mut any = into(7);
    any.templates[0].source = Family::V4.unspecified();
    any.templates[0].destination = Family::V4.unspecified();
    let states = vec![state(HERE, THERE, 1, 7), state(THERE, HERE, 2, 7)];
    let told = tunnels(&database(vec![out(7), any], states), 1);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0].states_total, 2);
}

#[test]
fn transport_between_hosts_has_the_packets_own_ends() {
    let (here, there) =
        (Prefix::host("fd00::1".parse().unwrap()), Prefix::host("fd00::2".parse().unwrap()));
    let template = Template::esp_transport(Family::V6).with_reqid(Reqid(1));
    let policies = vec![
        Policy::protect(Direction::Out, here, there, template),
        Policy::protect(Direction::In, there, here, template),
    ];
    let transport = |from: Prefix, to: Prefix, spi| SaConfig {
        mode: Mode::Transport,
        ..state(from.address(), to.address(), spi, 1)
    };
    let states = vec![transport(here, there, 1), transport(there, here, 2)];
    let [tunnel] = &tunnels(&database(policies, states), 1)[..] else { panic!("one tunnel") };
    assert_eq!((tunnel.local, tunnel.remote), (here.address(), there.address()));
    assert_eq!((&tunnel.mode[..], tunnel.states_total), ("transport", 2));
    assert_eq!(tunnel.nets[0].remote, "fd00::2/128");
}

#[test]
fn transport_to_a_net_takes_states_to_any_host() {
    let template = Template::esp_transport(Family::V4).with_reqid(Reqid(1));
    let (own, net) = (net("192.0.2.1/32"), net("192.0.2.0/24"));
    let policies = vec![
        Policy::protect(Direction::Out, own, net, template),
        Policy::protect(Direction::In, net, own, template),
    ];
    let transport = |from, to, spi| SaConfig { mode: Mode::Transport, ..state(from, to, spi, 1) };
    let states = vec![transport(HERE, THERE, 1), transport(THERE, HERE, 2)];
    let told = tunnels(&database(policies, states), 1);
    let [tunnel] = &told[..] else { panic!("{told:#?}") };
    assert!(tunnel.remote.is_unspecified());
    assert_eq!((tunnel.health, tunnel.states_total), (Health::Idle, 2));
}

#[test]
fn each_template_of_a_bundle_is_a_tunnel() {
    let far = IpAddr::from([198, 51, 100, 7]);
    let mut nested = out(7);
    nested.templates.push(Template::esp_tunnel(HERE, far).with_reqid(Reqid(8)));
    let states = vec![state(HERE, THERE, 1, 7)];
    let told = tunnels(&database(vec![nested], states), 1);
    let told: Vec<_> = told.iter().map(|tunnel| (tunnel.remote, tunnel.health)).collect();
    assert_eq!(told, [(far, Health::Down), (THERE, Health::Idle)], "the worst first");
}

#[test]
fn expired_state_explains_what_is_missing() {
    let mut expired = ExpiredStates::default();
    let id = |destination, spi| SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp };
    for spi in [1, 2] {
        expired.note(id(THERE, spi), Moment::from_secs(spi.into()));
    }
    expired.note(id(HERE, 3), Moment::from_secs(3));
    let post = || Post { expired: expired.all(), ..Post::default() };
    let database = database(vec![out(7), into(7)], vec![]);
    let reason = HealthReason::Expired { spi: "0x00000002".to_owned(), seconds_ago: 98 };
    assert_eq!(tell(&database, 100, post())[0].reason, Some(reason));
    assert_eq!(tell(&database, 4000, post())[0].reason, Some(HealthReason::NoState));
}

#[test]
fn state_that_came_since_explains_more_than_one_that_expired() {
    let mut expired = ExpiredStates::default();
    let id = SaId { destination: THERE, spi: Spi(1), protocol: SaProtocol::Esp };
    expired.note(id, Moment::from_secs(5));
    let mut database = database(vec![out(7), into(7)], vec![]);
    let wrong = SaConfig { mode: Mode::Transport, ..state(HERE, THERE, 2, 7) };
    database.apply(Moment::from_secs(50), |change| drop(change.add_sa(wrong).unwrap()));
    let post = Post { expired: expired.all(), ..Post::default() };
    let tunnel = &tell(&database, 100, post)[0];
    assert_eq!(tunnel.reason, Some(HealthReason::NoState));
    let words = tunnel.explanation.as_deref().unwrap();
    assert!(words.contains("nearest: 0x00000002 has mode transport, not tunnel"), "{words}");
}

#[test]
fn plain_policies_and_states_without_policy_are_counted() {
    let any = Prefix::any(Family::V4);
    let policies = vec![
        Policy::bypass(Direction::In, any, any),
        Policy::bypass(Direction::Forward, any, any),
        Policy::block(Direction::Out, any, any),
        out(7),
    ];
    let other = IpAddr::from([203, 0, 113, 1]);
    let states = vec![state(HERE, THERE, 1, 7), state(HERE, other, 2, 7)];
    let database = database(policies, states);
    let (snapshot, posted) = (database.snapshot(), posted(Post::default()));
    let read = ReadAt { now: Moment(0), posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let survey = Survey::of(&snapshot, &grouping, None, no_drops(), read);
    assert_eq!(grouping.plain, PlainPolicies { bypass: 2, block: 1, held: 0 });
    let unmatched = survey.unmatched_states();
    assert_eq!((unmatched.len(), survey.unmatched_states_total()), (1, 1));
    assert_eq!(unmatched[0].destination, other);
    let filter: PeerFilter = "192.0.2.0/24".parse().unwrap();
    let grouping = Grouping::of(&snapshot, Some(&filter));
    let survey = Survey::of(&snapshot, &grouping, Some(&filter), no_drops(), read);
    assert_eq!(survey.unmatched_states_total(), 1, "by source");
}

/// One tunnel to each of these peers; every third has its states.
fn many(count: u16) -> Database {
    let peer = |number: u16| {
        let [high, low] = number.to_be_bytes();
        (IpAddr::from([198, 18, high, low]), Prefix::host([10, 9, high, low].into()))
    };
    let (mut policies, mut states) = (Vec::new(), Vec::new());
    for number in 0..count {
        let (peer, net) = peer(number);
        let own = Prefix::host([10, 1, 0, 1].into());
        let reqid = Reqid(u32::from(number) + 1);
        let template = Template::esp_tunnel(HERE, peer).with_reqid(reqid);
        policies.push(Policy::protect(Direction::Out, own, net, template));
        if number % 3 == 0 {
            states.push(state(HERE, peer, 1000 + u32::from(number), reqid.0));
        }
    }
    database(policies, states)
}

#[test]
fn pages_by_name_have_each_tunnel_once() {
    let (database, posted) = (many(47), posted(Post::default()));
    let snapshot = database.snapshot();
    let read = ReadAt { now: Moment(0), posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let survey = Survey::of(&snapshot, &grouping, None, no_drops(), read);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = survey.page(parse_cursor(&after).unwrap(), 10);
        assert!(page.tunnels.len() <= 10);
        seen.extend(page.tunnels.into_iter().map(|tunnel| tunnel.remote));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(seen.len(), 47);
    assert!(seen.is_sorted() && seen.iter().collect::<BTreeSet<_>>().len() == 47);
}

#[test]
fn worst_tunnels_come_first_and_all_are_counted() {
    let (database, posted) = (many(30), posted(Post::default()));
    let snapshot = database.snapshot();
    let read = ReadAt { now: Moment(0), posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let survey = Survey::of(&snapshot, &grouping, None, no_drops(), read);
    let page = survey.page(WORST, 25);
    let healths: Vec<_> = page.tunnels.iter().map(|tunnel| tunnel.health).collect();
    assert!(healths.is_sorted() && page.next.is_none());
    assert_eq!(healths.iter().filter(|health| **health == Health::Down).count(), 20);
    let totals = survey.totals();
    assert_eq!((totals.tunnels, totals.down, totals.idle), (30, 20, 10));
}

#[test]
fn filter_takes_outer_and_inner_addresses() {
    let (database, posted) = (many(30), posted(Post::default()));
    let snapshot = database.snapshot();
    let read = ReadAt { now: Moment(0), posted: &posted };
    let count = |filter: &str| {
        let filter: PeerFilter = filter.parse().unwrap();
        let grouping = Grouping::of(&snapshot, Some(&filter));
        let survey = Survey::of(&snapshot, &grouping, Some(&filter), no_drops(), read);
        (survey.totals().tunnels, survey.page(WORST, 100).tunnels.len())
    };
    assert_eq!(count("198.18.0.7"), (1, 1));
    assert_eq!(count("198.18.0.0/29"), (8, 8));
    assert_eq!(count("10.9.0.7"), (1, 1));
    assert_eq!(count("203.0.113.1"), (0, 0));
}

#[test]
fn cursor_returns_from_its_text() {
    let key = TunnelKey {
        remote: "fd00::2".parse().unwrap(),
        local: HERE,
        reqid: Reqid(u32::MAX),
        mode: Mode::Beet,
        protocol: SaProtocol::Esp,
        if_id: IfId(3),
    };
    assert_eq!(parse_cursor(&cursor(&key)), Ok(Cursor::Behind(key)));
    assert_eq!(parse_cursor(""), Ok(Cursor::Begin));
    for wrong in ["x", "1.2.3.4", "1.2.3.4 1.2.3.4 1 tunnel esp", "a b c d e f"] {
        assert!(parse_cursor(wrong).is_err(), "{wrong}");
    }
}

/// By a worker that drops a packet for want of a state, and one by its state.
#[test]
fn drops_are_told_of_the_tunnel_of_state_or_policy() {
    let limit = SoftHardLimit { soft: u64::MAX, hard: 0 };
    let expired = LifetimeLimits { packets: limit, ..LifetimeLimits::default() };
    let mut elsewhere = out(8);
    elsewhere.selector.destination = net("10.3.0.0/16");
    elsewhere.templates[0].destination = [192, 0, 2, 3].into();
    let states = vec![SaConfig { limits: expired, ..state(HERE, THERE, 0x1001, 7) }];
    let database = database(vec![out(7), elsewhere], states);
    let mut worker = Worker::new(Settings::default(), &database.published()).unwrap();
    for host in [[10, 2, 0, 1], [10, 3, 0, 1], [10, 3, 0, 1]] {
        let mut plain = *b"\x45\0\0\x14\0\0\0\0\x40\xfd\0\0\x0a\x01\0\x01\0\0\0\0";
        plain[16..].copy_from_slice(&host);
        uxfrm_packet::ipv4::fill_checksum(&mut plain).unwrap();
        let mut batch: Batch = [PacketBuf::from_slice(&plain)].into_iter().collect();
        worker.outbound(&mut batch, Moment(1), &mut Pool::new(), &mut Output::default());
    }
    worker.refresh();
    let (snapshot, posted) = (database.snapshot(), posted(Post::default()));
    let read = ReadAt { now: Moment::from_secs(1), posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let tallies = worker.drop_tallies().read();
    let facts = DropFacts { tallies: &tallies, ..no_drops() };
    let survey = Survey::of(&snapshot, &grouping, None, facts, read);
    let told = survey.page(Cursor::Begin, 10).tunnels;
    let drops: Vec<_> = told.iter().map(|tunnel| (tunnel.reqid, tunnel.drops.0.clone())).collect();
    let count = |reason: &str, packets| vec![(reason.to_owned(), packets)];
    assert_eq!(drops, [(7, count("out_state_expired", 1)), (8, count("out_no_state", 2))]);
}

/// A policy `fwd` is missing: all that comes is opened and dropped.
#[test]
fn tunnel_that_opens_packets_and_lets_none_through_is_one_way() {
    let states = vec![state(HERE, THERE, 1, 7), state(THERE, HERE, 2, 7)];
    let database = database(vec![out(7), into(7)], states);
    let (snapshot, posted) = (database.snapshot(), posted(Post::default()));
    let read = ReadAt { now: Moment::from_secs(10), posted: &posted };
    for sa in snapshot.sad.iter() {
        let _charged = sa.charge(9, 900, Moment::from_secs(9));
    }
    let back = snapshot.sad.iter().find(|sa| sa.id().destination == HERE).unwrap();
    let grouping = Grouping::of(&snapshot, None);
    for (dropped, health) in [(9, Health::OneWay), (8, Health::Up), (1, Health::Up)] {
        let mut refusals = Refusals::default();
        refusals.take(&snapshot, back.id(), (dropped, DropReason::InNoPolicy), &read);
        let facts = DropFacts { refusals: &refusals, ..no_drops() };
        let survey = Survey::of(&snapshot, &grouping, None, facts, read);
        let tunnels = survey.page(WORST, 9).tunnels;
        assert_eq!(tunnels[0].health, health, "{tunnels:?}");
        assert_eq!(survey.totals().one_way, u64::from(health == Health::OneWay));
    }
}

/// The state that the template names has a selector that the packets do not fit.
#[test]
fn tunnel_whose_state_takes_no_packet_is_down() {
    let states = vec![state(HERE, THERE, 1, 7), state(THERE, HERE, 2, 7)];
    let database = database(vec![out(7), into(7)], states);
    let (snapshot, posted) = (database.snapshot(), posted(Post::default()));
    let grouping = Grouping::of(&snapshot, None);
    let policy = snapshot.spd.iter().find(|entry| entry.direction() == Direction::Out);
    let subject = DropSubject { policy: policy.map(|entry| entry.index()), ..DropSubject::NOBODY };
    let record = |seconds| DropRecord {
        errno: None,
        at: Moment::from_secs(seconds),
        reason: DropReason::OutNoState,
        packets: 2,
        subject,
        esp: None,
        sequence: None,
        flow: None,
        packet: None,
    };
    let (before, since) = (record(0), record(50));
    let read = ReadAt { now: Moment::from_secs(60), posted: &posted };
    let judged = |unsent: &[&DropRecord]| {
        let survey =
            Survey::of(&snapshot, &grouping, None, DropFacts { unsent, ..no_drops() }, read);
        let tunnel = survey.page(WORST, 9).tunnels.remove(0);
        (tunnel.health, tunnel.explanation.unwrap_or_default())
    };
    assert_eq!(judged(&[&before]).0, Health::Idle, "it came before the state did");
    let (health, words) = judged(&[&before, &since]);
    assert_eq!(health, Health::Down);
    assert!(words.starts_with("no state takes what is to leave: 2 packets dropped, the last 10 s"));
    let out = snapshot.sad.iter().find(|sa| sa.id().destination == THERE).unwrap();
    let _charged = out.charge(1, 100, Moment::from_secs(40));
    assert_eq!(judged(&[&since]).0, Health::Up, "others pass");
}

/// Those that carried most first, as far as they are equally well; not only of those told.
#[test]
fn busiest_of_the_worst_come_first() {
    let (database, posted) = (many(30), posted(Post::default()));
    let snapshot = database.snapshot();
    let now = Moment::from_secs(9);
    for sa in snapshot.sad.iter() {
        let last = u64::from(sa.id().spi.0 % 7);
        let _charged = sa.charge(1, 100 * last, now);
    }
    let read = ReadAt { now, posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let survey = Survey::of(&snapshot, &grouping, None, no_drops(), read);
    let rank = |tunnel: &TunnelStatus| {
        (tunnel.health, Reverse(tunnel.sent.bytes + tunnel.received.bytes), tunnel.remote)
    };
    let of = |limit| {
        let page = survey.page(Cursor::Worst(TunnelOrder::Traffic), limit);
        page.tunnels.iter().map(rank).collect::<Vec<_>>()
    };
    let all = of(30);
    assert!(all.is_sorted() && all.len() == 30, "{all:?}");
    assert!(all.iter().any(|(_, Reverse(bytes), _)| *bytes > 0), "some carried packets");
    for limit in [0, 1, 5, 23, 29, 31] {
        assert_eq!(of(limit), all[..limit.min(30)]);
    }
}

#[test]
fn totals_name_the_nearest_end() {
    let seconds = |hard| LifetimeLimits {
        added_seconds: SoftHardLimit { soft: 0, hard },
        ..LifetimeLimits::default()
    };
    let mut replaced = state(HERE, THERE, 1, 7);
    replaced.limits = seconds(100);
    let mut newest = state(HERE, THERE, 2, 7);
    newest.limits = seconds(5000);
    let mut inbound = state(THERE, HERE, 3, 7);
    inbound.limits = seconds(4000);
    let database = database(vec![out(7), into(7)], vec![replaced, newest, inbound]);
    let (snapshot, posted) = (database.snapshot(), posted(Post::default()));
    let read = ReadAt { now: Moment::from_secs(10), posted: &posted };
    let grouping = Grouping::of(&snapshot, None);
    let survey = Survey::of(&snapshot, &grouping, None, no_drops(), read);
    let totals = survey.totals();
    assert_eq!(totals.soonest_expiry_seconds, Some(3990), "of the newest of each direction");
    assert_eq!(totals.highest_sequence_ratio, Some(0.0));
}

/// What is kept of one answer tells the same as what is made anew, until something changes.
#[test]
fn grouping_holds_until_policies_or_states_change() {
    let mut database = many(5);
    let posted = posted(Post::default());
    let told = |database: &Database, grouping: &Grouping| {
        let snapshot = database.snapshot();
        let read = ReadAt { now: Moment::from_secs(1), posted: &posted };
        let survey = Survey::of(&snapshot, grouping, None, no_drops(), read);
        (survey.totals(), survey.page(WORST, 100).tunnels)
    };
    let kept = Grouping::of(&database.snapshot(), None);
    for sa in database.snapshot().sad.iter() {
        let _charged = sa.charge(3, 300, Moment::from_secs(1));
    }
    database.apply(Moment(0), |_| {});
    assert!(kept.is_of(&database.snapshot()), "nothing has changed but counts");
    let fresh = Grouping::of(&database.snapshot(), None);
    assert_eq!(told(&database, &kept), told(&database, &fresh));
    assert!(told(&database, &kept).0.sent.packets > 0);
    database.apply(Moment(0), |change| {
        change.add_sa(state(HERE, THERE, 0x7777, 7)).unwrap();
    });
    let snapshot = database.snapshot();
    assert!(!kept.is_of(&snapshot) && kept.has_policies_of(&snapshot), "a state has come");
    let (kept, fresh) = (kept.renewed(&snapshot), Grouping::of(&snapshot, None));
    assert!(kept.is_of(&snapshot));
    assert_eq!(told(&database, &kept), told(&database, &fresh));
    assert_eq!((kept.places.len(), kept.places.last()), (fresh.places.len(), fresh.places.last()));
    let last = SaId { destination: THERE, spi: Spi(0x7777), protocol: SaProtocol::Esp };
    database.apply(Moment(0), |change| {
        change.delete_sa(last, Mark::default()).unwrap();
    });
    let snapshot = database.snapshot();
    let (kept, fresh) = (kept.renewed(&snapshot), Grouping::of(&snapshot, None));
    assert_eq!(told(&database, &kept), told(&database, &fresh));
    database.apply(Moment(0), |change| {
        change.add_policy(into(7)).unwrap();
    });
    let snapshot = database.snapshot();
    assert!(!kept.has_policies_of(&snapshot), "a policy has come");
    let (kept, fresh) = (kept.renewed(&snapshot), Grouping::of(&snapshot, None));
    assert_eq!(told(&database, &kept), told(&database, &fresh));
}

/// A state between any ends is told by its use, which comes after the grouping was made.
#[test]
fn direction_by_use_is_that_of_today() {
    let template = Template::esp_transport(Family::V4).with_reqid(Reqid(1));
    let policies = vec![
        Policy::protect(Direction::Out, net("192.0.2.0/24"), net("192.0.2.0/24"), template),
        Policy::protect(Direction::In, net("192.0.2.0/24"), net("192.0.2.0/24"), template),
    ];
    let inbound = SaConfig { mode: Mode::Transport, ..state(THERE, HERE, 2, 1) };
    let (database, posted) = (database(policies, vec![inbound]), posted(Post::default()));
    let snapshot = database.snapshot();
    let kept = Grouping::of(&snapshot, None);
    let direction = || {
        let read = ReadAt { now: Moment::from_secs(1), posted: &posted };
        let survey = Survey::of(&snapshot, &kept, None, no_drops(), read);
        survey.page(WORST, 10).tunnels[0].states[0].direction.clone()
    };
    assert_eq!(direction().as_deref(), Some("out"), "for want of anything that tells");
    snapshot.sad.iter().for_each(|sa| sa.restart_at(9));
    assert_eq!(direction().as_deref(), Some("in"));
}
