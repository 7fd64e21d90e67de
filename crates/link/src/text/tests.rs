use uxfrm_netlink::NamedCounters;

use super::*;
use crate::wire::LinkStatistics;
use crate::{FouAction, LinkAction, TunnelCommand, command, json, wire};

fn read(line: &str) -> TunnelCommand {
    command(&line.split_whitespace().collect::<Vec<_>>()).unwrap()
}

fn attributes(line: &str) -> PortAttributes {
    let TunnelCommand::Fou(FouAction::Add(port)) = read(line) else { panic!("{line}") };
    let port = uxfrm_tunnel::DecapPort::of(&port.request).unwrap();
    wire::port_attributes(&port.request())
}

fn shown(line: &str) -> TunnelInfo {
    let TunnelCommand::Link(LinkAction::Add(link)) = read(line) else { panic!("{line}") };
    TunnelInfo {
        index: 4,
        name: link.name,
        flags: 0x1_10d1,
        mtu: 1472,
        qdisc: Some("noqueue".to_owned()),
        state: [Some(0), Some(0), Some(0), Some(500)],
        details: vec![
            ("promiscuity", 0),
            ("allmulti", 0),
            ("min_mtu", 68),
            ("max_mtu", 65535),
            ("num_tx_queues", 1),
        ],
        config: link.config,
        statistics: LinkStatistics::default(),
    }
}

fn info(line: &str) -> String {
    link(&shown(line), ShowCounters::No).lines().nth(2).unwrap().trim_end().to_owned()
}

#[test]
fn port_list_is_iproute2s() {
    for (line, text) in [
        ("fou add port 5555 ipproto 4", "port 5555 ipproto 4\n"),
        ("fou add port 5556 gue", "port 5556 gue\n"),
        ("fou add port 5557 gue -6", "port 5557 gue -6\n"),
        (
            "fou add port 5558 ipproto 47 local 10.0.0.1 peer 10.0.0.2 peer_port 9",
            "port 5558 ipproto 47 local 10.0.0.1 peer 10.0.0.2 peer_port 9\n",
        ),
        ("fou add port 1 gue local fd00::1", "port 1 gue -6 local fd00::1\n"),
        ("fou add port 1 gue -6 noudp6zerocsumrx", "port 1 gue -6 noudp6zerocsumrx\n"),
        ("fou add port 1 gue -6 udp6zerocsumrx", "port 1 gue -6\n"),
    ] {
        assert_eq!(port(&attributes(line), ShowCounters::Yes, |_| String::new()), text, "{line}");
    }
    let mut on_device = attributes("fou add port 5 gue local 10.0.0.1");
    on_device.ifindex = Some(3);
    let text = port(&on_device, ShowCounters::No, |index| format!("eth{index}"));
    assert_eq!(text, "port 5 gue local 10.0.0.1 dev eth3\n");
}

#[test]
fn port_counters_are_printed_behind_the_port() {
    let mut counted = attributes("fou add port 5 gue");
    let counts = [("packets", 12), ("bytes", 12_345_678_901), ("tunnel_in_gue_control", 2)];
    let counts = counts.map(|(name, count)| (name.to_owned(), count)).to_vec();
    counted.statistics = Some(NamedCounters(counts));
    let text = port(&counted, ShowCounters::Yes, |_| String::new());
    assert_eq!(
        text,
        "port 5 gue\n    RX:   bytes packets dropped           \n    12345678901      12       2 \n    drops: tunnel_in_gue_control 2\n"
    );
    assert_eq!(port(&counted, ShowCounters::No, |_| String::new()), "port 5 gue\n");
    let json = json::port(&counted, ShowCounters::Yes, |_| String::new());
    assert_eq!(
        serde_json::to_string(&json).unwrap(),
        r#"{"port":5,"gue":null,"family":"inet","stats":{"rx":{"bytes":12345678901,"packets":12,"dropped":2}},"drops":{"tunnel_in_gue_control":2}}"#
    );
}

#[test]
fn tunnel_text_is_iproute2s() {
    let mut tunnel = shown(
        "link add tun1 type ipip remote 10.0.0.2 local 10.0.0.1 ttl 225 encap fou encap-dport 5555",
    );
    let head = "4: tun1@NONE: <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP> mtu 1472 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 500\n    \
                link/ipip 10.0.0.1 peer 10.0.0.2 promiscuity 0  allmulti 0 minmtu 68 maxmtu 65535 \n    \
                ipip any remote 10.0.0.2 local 10.0.0.1 ttl 225 pmtudisc encap fou encap-sport auto encap-dport 5555 \
                noencap-csum noencap-csum6 noencap-remcsum numtxqueues 1 \n";
    assert_eq!(link(&tunnel, ShowCounters::No), head);
    tunnel.statistics = LinkStatistics {
        received: (7, 34_352_221_717),
        sent: (3, 400),
        sent_dropped: 5,
        collisions: 4,
        drops: NamedCounters(vec![("tunnel_out_recursion".to_owned(), 4)]),
        ..LinkStatistics::default()
    };
    let counters = "    RX:   bytes packets errors dropped  missed   mcast           \n    34352221717       7      0       0       0       0 \n    \
                    TX:   bytes packets errors dropped carrier collsns           \n            400       3      0       5       0       4 \n    \
                    drops: tunnel_out_recursion 4\n";
    assert_eq!(link(&tunnel, ShowCounters::Yes), format!("{head}{counters}"));
    let json = serde_json::to_string(&json::link(&tunnel, ShowCounters::Yes)).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed["linkinfo"]["info_data"]["encap"]["dport"], 5555);
    assert_eq!(parsed["stats64"]["tx"]["collisions"], 4);
    assert_eq!(parsed["drops"]["tunnel_out_recursion"], 4);
    assert!(json.starts_with(
        r#"{"ifindex":4,"link":null,"ifname":"tun1","flags":["POINTOPOINT","MULTICAST","#
    ));
}

#[test]
fn tunnel_kind_details_are_iproute2s() {
    for (line, text) in [
        (
            "link add t type sit",
            "    sit any remote any local any ttl inherit pmtudisc 6rd-prefix 2002::/16 numtxqueues 1",
        ),
        (
            "link add t type gre remote 10.0.0.2 tos 10 key 258 oseq icsum nopmtudisc ignore-df",
            "    gre remote 10.0.0.2 local any ttl inherit tos 0x10 nopmtudisc ignore-df ikey 0.0.1.2 okey 0.0.1.2 oseq icsum numtxqueues 1",
        ),
        (
            "link add t type ip6tnl mode ip6ip6 remote fd00::2 tclass inherit encap gue encap-sport 7 encap-dport 6 encap6-csum",
            "    ip6tnl ip6ip6 remote fd00::2 local any hoplimit 64 encaplimit 4 tclass inherit flowlabel 0x00000 encap gue encap-sport 7 encap-dport 6 noencap-csum encap-csum6 noencap-remcsum numtxqueues 1",
        ),
        (
            "link add t type ip6gre encaplimit none hoplimit inherit tclass a flowlabel abc",
            "    ip6gre remote any local any hoplimit inherit encaplimit none tclass 0x0a flowlabel 0x00abc numtxqueues 1",
        ),
    ] {
        assert_eq!(info(line), text);
    }
}

#[test]
fn tunnel_flags_are_iproute2s() {
    assert_eq!(flags(0x1001).join(","), "NO-CARRIER,MULTICAST,UP");
    assert_eq!(flags(0x8_0090).join(","), "POINTOPOINT,NOARP,80000");
}
