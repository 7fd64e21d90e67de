//! MIGRATE_STATE (Linux 7.2): errno and text of each check in the kernel's order, and the resulting
//! state, after `Documentation/networking/xfrm/xfrm_migrate_state.rst`.

use std::net::IpAddr;

use uxfrm_engine::{Mark, Moment, Reqid, Sa, SaId, SaProtocol, Spi};

use crate::stage::{Stage, attribute, golden, message, take_apart};

const MIGRATE_STATE: u16 = 0x29;
const GET_SA: u16 = 0x12;

const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ESRCH: i32 = 3;

const MARK: u16 = 21;
const ENCAP: u16 = 4;
const REPLAY_ESN: u16 = 23;
const OFFLOAD: u16 = 28;
const SET_MARK: u16 = 29;
const MTIMER: u16 = 32;
const DIRECTION: u16 = 33;
const KEEPALIVE: u16 = 34;

fn address(text: &str) -> Vec<u8> {
    let mut bytes = match text.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    bytes.resize(16, 0);
    bytes
}

fn family(text: &str) -> u16 {
    if text.contains(':') { 10 } else { 2 }
}

/// `struct xfrm_user_migrate_state` and what follows it.
#[derive(Clone)]
struct Request {
    spi: u32,
    destination: &'static str,
    new: (&'static str, &'static str),
    new_family: Option<u16>,
    mark: (u32, u32),
    /// Family, prefix lengths, source and destination.
    selector: (u16, u8, &'static str, &'static str),
    reqid: u32,
    flags: u32,
    reserved: u16,
    more: Vec<u8>,
}

impl Request {
    fn new() -> Self {
        Self {
            spi: 0x1000,
            destination: "192.0.2.2",
            new: ("192.0.2.3", "192.0.2.4"),
            new_family: None,
            mark: (0, 0),
            selector: (2, 0, "0.0.0.0", "0.0.0.0"),
            reqid: 77,
            flags: 0,
            reserved: 0,
            more: Vec::new(),
        }
    }

    fn with(kind: u16, value: &[u8]) -> Self {
        Self { more: attribute(kind, value), ..Self::new() }
    }

    fn and(mut self, kind: u16, value: &[u8]) -> Self {
        self.more.extend(attribute(kind, value));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut body = address(self.destination);
        body.extend(self.spi.to_be_bytes());
        body.extend(family(self.destination).to_ne_bytes());
        body.extend([50, 0]);
        body.extend([address(self.new.1), address(self.new.0)].concat());
        body.extend(self.mark.0.to_ne_bytes());
        body.extend(self.mark.1.to_ne_bytes());
        let (family_of_selector, len, from, to) = self.selector;
        body.extend([address(to), address(from), vec![0; 8]].concat());
        body.extend(family_of_selector.to_ne_bytes());
        body.extend([len, len]);
        body.extend([0; 12]);
        body.extend(self.reqid.to_ne_bytes());
        body.extend(self.flags.to_ne_bytes());
        body.extend(self.new_family.unwrap_or_else(|| family(self.new.1)).to_ne_bytes());
        body.extend(self.reserved.to_ne_bytes());
        assert_eq!(body.len(), 132);
        message(MIGRATE_STATE, 5, &[body, self.more.clone()].concat())
    }
}

fn encap(kind: u16) -> Vec<u8> {
    [&kind.to_ne_bytes()[..], &[0x11, 0x94, 0x04, 0x00, 0, 0], &[0; 16]].concat()
}

/// A tunnel from 192.0.2.1 to 192.0.2.2 with SPI 0x1000; `fit` edits its structure, `more` follows
/// it.
fn add(stage: &mut Stage, fit: impl FnOnce(&mut [u8]), more: &[u8]) {
    let command = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000";
    let (_, mut request) =
        golden().into_iter().find(|(line, _)| line.starts_with(command)).unwrap();
    fit(&mut request[16..]);
    request.extend(more);
    let len = u32::try_from(request.len()).unwrap();
    request[..4].copy_from_slice(&len.to_ne_bytes());
    assert_eq!(stage.ask(&request)[0].verdict(), Some((0, String::new())));
}

/// Outbound, in UDP, with a keepalive every 20 seconds.
fn through_nat(stage: &mut Stage) {
    let more = [
        attribute(ENCAP, &encap(2)),
        attribute(DIRECTION, &[2]),
        attribute(KEEPALIVE, &20_u32.to_ne_bytes()),
        // The last one counts: a window is for the way in.
        attribute(REPLAY_ESN, &[0; 24]),
    ];
    add(stage, |_| {}, &more.concat());
}

fn find(stage: &Stage, destination: &str, mark: u32) -> Option<std::sync::Arc<Sa>> {
    let destination = destination.parse().unwrap();
    let id = SaId { destination, spi: Spi(0x1000), protocol: SaProtocol::Esp };
    stage.database.snapshot().sad.find(id, mark).cloned()
}

/// Two faults at once: that of the later row is never named.
#[test]
fn migrate_state_checks_are_the_kernels_in_its_order() {
    let new = Request::new;
    let table: &[(&str, Request, i32, &str)] = &[
        ("spi 0", Request { spi: 0, reserved: 1, ..new() }, EINVAL, "Invalid SPI 0x0"),
        (
            "reserved",
            Request { reserved: 1, flags: 12, ..new() },
            EINVAL,
            "Reserved field must be zero",
        ),
        (
            "flags",
            Request { flags: 13, new_family: Some(7), ..new() },
            EINVAL,
            "Unknown flags: 0xc",
        ),
        (
            "offload and none",
            Request { flags: 1, ..Request::with(OFFLOAD, &[0; 8]) },
            EINVAL,
            "OFFLOAD_DEV and CLEAR_OFFLOAD exclude each other",
        ),
        (
            "family",
            Request { new_family: Some(7), selector: (2, 33, "0.0.0.0", "0.0.0.0"), ..new() },
            EINVAL,
            "Invalid address family",
        ),
        (
            "selector's prefix",
            Request { selector: (2, 33, "0.0.0.0", "0.0.0.0"), spi: 9, ..new() },
            EINVAL,
            "Invalid prefix length in selector (must be <= 32 for IPv4)",
        ),
        (
            "selector's family",
            Request { selector: (7, 0, "0.0.0.0", "0.0.0.0"), spi: 9, ..new() },
            EINVAL,
            "Invalid address family in selector",
        ),
        ("spi", Request { spi: 9, flags: 2, ..new() }, ESRCH, "Can not find state"),
        ("destination", Request { destination: "192.0.2.9", ..new() }, ESRCH, "Can not find state"),
        (
            "host to host",
            Request { flags: 2, ..Request::with(ENCAP, &encap(1)) },
            EINVAL,
            "SA selector is not a single-host match for SA addresses",
        ),
        (
            "encapsulation",
            Request::with(ENCAP, &encap(1)).and(MTIMER, &[1, 0, 0, 0]),
            EINVAL,
            "Unsupported encapsulation type",
        ),
        (
            "age without encapsulation",
            Request::with(MTIMER, &[1, 0, 0, 0]).and(KEEPALIVE, &[9, 0, 0, 0]),
            EINVAL,
            "MTIMER_THRESH requires encapsulation",
        ),
        (
            "keepalive without encapsulation",
            Request { new: ("192.0.2.5", "192.0.2.5"), ..Request::with(KEEPALIVE, &[9, 0, 0, 0]) },
            EINVAL,
            "NAT_KEEPALIVE_INTERVAL requires encapsulation",
        ),
        (
            "occupied",
            Request { new: ("192.0.2.5", "192.0.2.5"), ..new() },
            EEXIST,
            "New SA tuple already occupied",
        ),
        (
            "keepalive of no direction",
            Request::with(ENCAP, &encap(2)).and(KEEPALIVE, &[9, 0, 0, 0]),
            EINVAL,
            "NAT keepalive is only supported for outbound SAs",
        ),
        (
            "direction is not to be changed",
            Request::with(DIRECTION, &[1]),
            EINVAL,
            "Invalid attribute SA_DIR",
        ),
    ];
    let mut stage = Stage::new();
    add(&mut stage, |_| {}, &[]);
    add(&mut stage, |sa| sa[56..60].copy_from_slice(&[192, 0, 2, 5]), &[]);
    for (what, request, errno, text) in table {
        let answer = stage.ask(&request.bytes()).remove(0);
        assert_eq!(answer.verdict(), Some((*errno, (*text).to_owned())), "{what}");
    }
    let short = message(MIGRATE_STATE, 5, &Request::new().bytes()[16..140]);
    assert_eq!(stage.ask(&short)[0].verdict(), Some((EINVAL, "Invalid header length".to_owned())));
    assert!(find(&stage, "192.0.2.2", 0).is_some(), "nothing moved");
    assert_eq!(stage.database.snapshot().sad.len(), 2);
}

#[test]
fn migrate_state_refuses_mapping_age_of_output_state() {
    let mut stage = Stage::new();
    through_nat(&mut stage);
    let request = Request::with(MTIMER, &[1, 0, 0, 0]);
    let verdict = stage.ask(&request.bytes()).remove(0).verdict();
    assert_eq!(verdict, Some((EINVAL, "MTIMER_THRESH should not be set on output SA".to_owned())));
}

/// IKE daemons probe for the message so.
#[test]
fn migrate_state_probe_finds_support() {
    let probe =
        Request { spi: 1, destination: "0.0.0.0", new: ("0.0.0.0", "0.0.0.0"), ..Request::new() };
    assert_eq!(Stage::new().ask(&probe.bytes()).remove(0).verdict().unwrap().0, ESRCH);
}

#[test]
fn migrate_state_keeps_omitted_values_and_sequence_numbers() {
    let mut stage = Stage::new();
    through_nat(&mut stage);
    let old = find(&stage, "192.0.2.2", 0).unwrap();
    old.sequence().take(5).unwrap();
    assert_eq!(stage.database.take_keepalives().count(), 1);
    stage.heard.clear();
    let request = Request {
        selector: (10, 64, "2001:db8:1::", "2001:db8:2::"),
        ..Request::with(SET_MARK, &[7, 0, 0, 0])
    };
    assert_eq!(stage.ask(&request.bytes())[0].verdict(), Some((0, String::new())));
    assert!(find(&stage, "192.0.2.2", 0).is_none());
    let new = find(&stage, "192.0.2.4", 0).unwrap();
    let (was, is) = (old.config(), new.config());
    assert_eq!((new.source(), new.reqid()), ("192.0.2.3".parse().unwrap(), Reqid(77)));
    assert_eq!(
        is.selector.as_ref().unwrap().source.address(),
        "2001:db8:1::".parse::<IpAddr>().unwrap()
    );
    assert_eq!((is.mark, is.encap, is.nat_keepalive), (was.mark, was.encap, was.nat_keepalive));
    assert_eq!(is.output_mark, Mark { value: 7, mask: u32::MAX });
    assert!(old.sequence().take(1).is_err(), "the old one sends nothing more");
    assert_eq!(new.sequence().take(1).unwrap().first, 6);
    let ends: Vec<_> = stage.database.take_keepalives().map(|ends| ends.destination).collect();
    assert_eq!(ends, ["192.0.2.4:1024".parse().unwrap()], "the new NAT learns of it at once");

    // Listeners get the request with the resulting selector, then ENCAP, SET_MARK and its mask,
    // interval, direction.
    let heard = take_apart(&stage.heard[0]).remove(0);
    assert_eq!((heard.kind, heard.seq), (MIGRATE_STATE, 7));
    assert_eq!(heard.body[..64], request.bytes()[16..80]);
    let attributes: Vec<_> =
        uxfrm_netlink::RawAttributes::of(&heard.body[132..]).map(|one| one.kind).collect();
    assert_eq!(attributes, [ENCAP, SET_MARK, 30, KEEPALIVE, DIRECTION]);
    let listed = stage.ask(&message(GET_SA, 0x301, &[]));
    let kinds: Vec<_> =
        uxfrm_netlink::RawAttributes::of(&listed[0].body[224..]).map(|one| one.kind).collect();
    assert!(kinds.ends_with(&[DIRECTION, KEEPALIVE]), "{kinds:?}");
}

#[test]
fn migrate_state_drops_settings_of_removed_encap() {
    let mut stage = Stage::new();
    through_nat(&mut stage);
    stage.heard.clear();
    let request = Request::with(ENCAP, &encap(0));
    assert_eq!(stage.ask(&request.bytes())[0].verdict(), Some((0, String::new())));
    let new = find(&stage, "192.0.2.4", 0).unwrap();
    assert_eq!((new.config().encap, new.config().nat_keepalive), (None, None));
    let heard = take_apart(&stage.heard[0]).remove(0);
    let first = uxfrm_netlink::RawAttributes::of(&heard.body[132..]).next().unwrap();
    assert_eq!((first.kind, first.value), (ENCAP, &encap(0)[..]), "as it was asked for");
}

#[test]
fn migrate_state_changes_mark_alone() {
    let mut stage = Stage::new();
    let mark = |value: u32, mask: u32| [value.to_ne_bytes(), mask.to_ne_bytes()].concat();
    add(&mut stage, |_| {}, &attribute(MARK, &mark(1, 0xff)));
    add(&mut stage, |_| {}, &attribute(MARK, &mark(2, 0xff)));
    let stay = Request { mark: (1, 0xff), new: ("192.0.2.1", "192.0.2.2"), ..Request::new() };
    let taken = stay.clone().and(MARK, &mark(2, 0xff)).bytes();
    let words = "New SA tuple already occupied".to_owned();
    assert_eq!(stage.ask(&taken)[0].verdict(), Some((EEXIST, words)));
    let free = stay.and(MARK, &mark(3, 0xff)).bytes();
    assert_eq!(stage.ask(&free)[0].verdict(), Some((0, String::new())));
    assert!(find(&stage, "192.0.2.2", 1).is_none() && find(&stage, "192.0.2.2", 3).is_some());
}

#[test]
fn migrate_state_updates_host_selector() {
    let mut stage = Stage::new();
    let hosts = |sa: &mut [u8]| {
        sa[..4].copy_from_slice(&[192, 0, 2, 2]);
        sa[16..20].copy_from_slice(&[192, 0, 2, 1]);
        sa[40..42].copy_from_slice(&2_u16.to_ne_bytes());
        sa[42..44].copy_from_slice(&[32, 32]);
    };
    add(&mut stage, hosts, &[]);
    let request = Request { flags: 2, new: ("2001:db8::3", "2001:db8::4"), ..Request::new() };
    assert_eq!(stage.ask(&request.bytes())[0].verdict(), Some((0, String::new())));
    let new = find(&stage, "2001:db8::4", 0).unwrap();
    let selector = new.config().selector.unwrap();
    assert_eq!(format!("{:?}", selector.source), "2001:db8::3/128");
    assert_eq!(format!("{:?}", selector.destination), "2001:db8::4/128");
}

/// `km_new_mapping`: without an age each packet from elsewhere notifies, with one the first of an
/// age or port.
#[test]
fn mapping_age_limits_notifications() {
    let mut stage = Stage::new();
    let more = [
        attribute(ENCAP, &encap(2)),
        attribute(DIRECTION, &[1]),
        attribute(MTIMER, &60_u32.to_ne_bytes()),
    ];
    add(&mut stage, |_| {}, &more.concat());
    stage.heard.clear();
    let snapshot = stage.database.snapshot();
    let state = snapshot.sad.iter().next().unwrap().id();
    let mut hears = |port: u16, second| {
        let from = std::net::SocketAddr::new("198.51.100.7".parse().unwrap(), port);
        let mut out = uxfrm_netlink::Outbox::default();
        let event = uxfrm_engine::Event::Mapping { state, from };
        stage.server.announce(
            &event,
            &snapshot,
            &mut stage.database,
            Moment::from_secs(second),
            &mut out,
        );
        stage.sort(&mut out);
        stage.heard()
    };
    assert_eq!(hears(4500, 10), [0x26]);
    assert_eq!(hears(4500, 11), [0; 0]);
    assert_eq!(hears(4501, 12), [0x26]);
    assert_eq!(hears(4501, 72), [0; 0]);
    assert_eq!(hears(4501, 73), [0x26]);
}
