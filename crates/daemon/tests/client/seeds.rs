//! What the corpus of `client` began with: one of each, as clients say it.

use uxfrm_control::greeting::{Dialect, Greeting, GreetingKind};
use uxfrm_link::{FouAction, LinkAction, TunnelCommand, wire};
use uxfrm_netlink::fou::{CONTROL, FAMILY_ID, PortAttributes};

/// Their names and bytes.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |kind: u8, name: &str, bytes: &[u8]| {
        seeds.push((name.to_owned(), [&[kind][..], bytes].concat()));
    };
    let greeting = Greeting {
        kind: GreetingKind::Ask,
        port: 4711,
        groups: 3,
        options: 1 << 11,
        value: Dialect::Generic as u32,
    };
    add(0, "greeting", &greeting.to_bytes());
    add(1, "page", &PAGE.concat());
    add(
        1,
        "page-hostile",
        &[&PAGE[..4], &[[10, 1, 255], [2, 0, 0], [11, 0, 1]], &PAGE[4..]].concat().concat(),
    );
    add(2, "fou", &ports());
    for (number, line) in LINKS.iter().enumerate() {
        add(3, &format!("link-{number}"), &link(line));
    }
    add(4, "commands", COMMANDS.as_bytes());
    for (number, answer) in ANSWERS.iter().enumerate() {
        add(5, &format!("answer-{number}"), answer.as_bytes());
    }
    for (name, profile) in PROFILES {
        add(6, &format!("profile-{name}"), profile.as_bytes());
    }
    add(7, "reload", b"\"apply\"");
    add(7, "reload-lines", br#"{"lines":["+ state","! [host] tun"]}"#);
    seeds
}

/// Open, ask, take, answer, collect; ask, close; open, ask, take, decline.
const PAGE: [[u8; 3]; 14] = [
    [0, 0, 0],
    [1, 40, 0],
    [2, 0, 0],
    [3, 36, 0],
    [4, 0, 0],
    [1, 1, 1],
    [6, 0, 0],
    [0, 0, 0],
    [1, 9, 0],
    [2, 0, 0],
    [3, 60, 0],
    [5, 0, 0],
    [7, 0, 0],
    [8, 0, 0],
];

/// Who is `fou`, two ports, one of them asked for, all of them, one deleted.
fn ports() -> Vec<u8> {
    let mut datagram = Vec::new();
    let who = [3, 1, 0, 0, 8, 0, 2, 0, b'f', b'o', b'u', 0];
    message(CONTROL, 5, &who, &mut datagram);
    for (command, flags, line) in [
        (1, 5, "fou add port 5555 ipproto 4"),
        (1, 5, "fou add port 5556 gue local 10.0.0.1 peer 10.0.0.2 peer_port 7"),
        (1, 5, "fou add port 5557 ipproto 41 -6"),
        (3, 1, "fou del port 5555"),
        (3, 0x301, "fou del port 1"),
        (2, 5, "fou del port 5556 local 10.0.0.1 peer 10.0.0.2 peer_port 7"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let attributes = match uxfrm_link::command(&words) {
            Ok(TunnelCommand::Fou(FouAction::Add(port) | FouAction::Delete(port))) => {
                wire::port_attributes(&port.request)
            }
            _ => PortAttributes::default(),
        };
        let mut body = Vec::new();
        attributes.encode(uxfrm_netlink::fou::FouCommand::Get, &mut body);
        body[0] = command;
        message(FAMILY_ID, flags, &body, &mut datagram);
    }
    datagram
}

fn message(kind: u16, flags: u16, body: &[u8], datagram: &mut Vec<u8>) {
    let length = u32::try_from(16 + body.len()).expect("a short message");
    datagram.extend(length.to_ne_bytes());
    datagram.extend(kind.to_ne_bytes());
    datagram.extend(flags.to_ne_bytes());
    datagram.extend(7_u32.to_ne_bytes());
    datagram.extend(4711_u32.to_ne_bytes());
    datagram.extend(body);
}

/// A request behind its length, and a device behind it as the kernel tells of one.
fn link(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let Ok(TunnelCommand::Link(LinkAction::Add(link))) = uxfrm_link::command(&words) else {
        panic!("{line}: no tunnel");
    };
    let body = wire::encode_new_link(&link);
    let length = u16::try_from(body.len()).expect("a short request");
    [&length.to_le_bytes()[..], &body, &body].concat()
}

const LINKS: [&str; 5] = [
    "link add t up mtu 1400 type ipip remote 10.0.0.2 encap fou encap-sport auto encap-dport 5555",
    "link add t type gre remote 10.0.0.2 key 5 icsum ocsum iseq oseq ttl 64 tos inherit",
    "link add t type sit remote any local 10.0.0.1 6rd-prefix 2001:db8::/32",
    "link add t type ip6tnl mode any remote fd00::1 encaplimit none flowlabel inherit",
    "link add t type ip6gre remote fd00::1 key 7 encap gue encap-dport 9 encap-csum6 encap-remcsum",
];

const COMMANDS: &str = "\
add nic0 profile niantic vfs 2 trust on
show nic0 states
set nic0 link down
set nic0 vf 1 trust on
set nic0 fault delay 500
flow nic0 -U flow-type udp4 dst-port 4500 action 1
{\"add\":{\"name\":\"nic0\",\"port\":null,\"profile\":{\"text\":\"name = 'a'\"},\"functions\":2,\"trusted\":false,\"marks\":null,\"tables\":{\"receive\":3}}}
{\"set\":{\"device\":\"nic0\",\"settings\":[{\"link\":\"down\"},{\"trust\":{\"vf\":1,\"trusted\":true}},{\"fault\":\"full-table 3\"}]}}
{\"flow\":{\"device\":\"nic0\",\"rule\":\"flow-type ip4 src-ip 10.0.0.1 m 0.0.0.255 user-def 0x10 action -1 loc 3\"}}
{\"flow\":{\"device\":\"nic0\",\"rule\":\"delete 3\"}}
{\"show\":{\"device\":null,\"part\":\"debugfs\"}}
{\"events\":\"nic0\"}
";

const ANSWERS: [&str; 4] = [
    r#"{"event":{"device":"nic0","event":"soft-limit","handle":3,"spi":4096,"dst":"fd00::1"}}"#,
    r#"{"refused":{"errno":22,"text":"no"}}"#,
    r#"{"states":[{"slot":0,"handle":1,"kind":"packet","dir":"in","dst":"10.0.0.1","spi":7,"vf":null,"packets":1,"bytes":2,"oseq":3,"seq":4,"replay":5,"replay_window":6,"integrity_failed":7}]}"#,
    r#"{"device":{"name":"nic0","ifindex":3,"port":"eth0","profile":"niantic","link":"up","features":["esn"],"tables":{"both":{"used":1,"size":null}},"policies":0,"functions":[{"vf":0,"name":"nic0v0","ifindex":4,"link":"down","trusted":true,"receive":{"used":0,"size":1},"transmit":{"used":0,"size":1}}],"queues":[1,2],"rules":{"used":1,"size":2},"flows":[{"loc":1,"rule":"flow-type udp4 action 1"}],"tx":{"received":1,"passed":1,"bytes":1,"dropped":0,"held":0},"rx":{"received":1,"passed":1,"bytes":1,"dropped":0,"held":0},"drops":{"link_down":3},"states":[]}}"#,
];

const PROFILES: [(&str, &str); 4] = [
    ("niantic", include_str!("../../../offload/profiles/niantic.toml")),
    ("connectx6dx", include_str!("../../../offload/profiles/connectx6dx.toml")),
    ("netdevsim", include_str!("../../../offload/profiles/netdevsim.toml")),
    ("unlimited", include_str!("../../../offload/profiles/unlimited.toml")),
];
