use uxfrm_engine::{Database, Moment};

use super::*;
use crate::batch::apply;

/// What is said of policies in the words of `ip xfrm`, for a host with some addresses: a line for
/// each source.
fn planned(lines: &[&str], own: &[&str]) -> Vec<String> {
    plan(lines, own, &[]).sources.iter().map(ToString::to_string).collect()
}

/// Where unbound sockets' packets to groups are led, which have these sources by themselves.
fn planned_for_groups(lines: &[&str], ways: &[(&str, u8, &str)]) -> Vec<String> {
    plan(lines, &[], ways).groups.iter().map(ToString::to_string).collect()
}

fn plan(lines: &[&str], own: &[&str], ways: &[(&str, u8, &str)]) -> AddressPlan {
    let name = format!("uxfrm-plan-{}-{:?}", std::process::id(), std::thread::current().id());
    let batch = std::env::temp_dir().join(name);
    std::fs::write(&batch, lines.join("\n")).unwrap();
    let mut database = Database::new(uxfrm_crypto::Backend::Auto, 1);
    apply::load(&mut database, std::slice::from_ref(&batch), Moment(0)).unwrap();
    std::fs::remove_file(batch).unwrap();
    let own: Vec<IpAddr> = own.iter().map(|own| own.parse().unwrap()).collect();
    let address = |text: &str| text.parse().unwrap();
    let ways = ways.iter().map(|(net, length, from)| ((address(net), *length), address(from)));
    AddressPlan::of(&database.snapshot().spd, &own, &MulticastGroups(ways.collect()))
}

const PROTECTS: &str = "tmpl src 192.0.2.1 dst 198.51.100.1 proto esp mode tunnel";

#[test]
fn plan_excludes_lan_of_road_warrior() {
    let all =
        format!("xfrm policy add src 10.3.0.1/32 dst 0.0.0.0/0 dir out priority 9 {PROTECTS}");
    let lan = "xfrm policy add dst 192.168.1.0/24 dir out priority 1";
    assert_eq!(
        planned(&[&all, lan], &["192.168.1.5", "10.3.0.1"]),
        ["from 10.3.0.1/32: 0.0.0.0/0 to uxfrm, 192.168.1.0/24 as ever"]
    );
}

#[test]
fn plan_any_source_is_each_host_address() {
    let all = format!("xfrm policy add dst 10.2.0.0/16 dir out {PROTECTS}");
    assert_eq!(
        planned(&[&all], &["127.0.0.1", "192.0.2.1", "10.3.0.1"]),
        ["from 192.0.2.1/32: 10.2.0.0/16 to uxfrm", "from 10.3.0.1/32: 10.2.0.0/16 to uxfrm"]
    );
}

/// What is refused once the TUN is gone: of what programs here send, and of what anybody does.
fn closed(lines: &[&str], own: &[&str]) -> [String; 2] {
    let closing = plan(lines, own, &[]).closing;
    [closing.own, closing.everyone].map(|leads| {
        let told: Vec<_> = leads.into_iter().map(|(net, lead)| told(net, lead)).collect();
        told.join(", ")
    })
}

#[test]
fn plan_without_tun_refuses_destinations() {
    let from = |source: &str| {
        format!("xfrm policy add {source} dst 10.2.0.0/16 dir out priority 9 {PROTECTS}")
    };
    let to_uxfrm = "10.2.0.0/16 to uxfrm";
    let (own, none) = (["10.1.0.1", "127.0.0.1", "fd09::1"], "");
    assert_eq!(closed(&[&from("")], &own), [to_uxfrm; 2]);
    assert_eq!(closed(&[&from("")], &[]), [none, to_uxfrm]);
    assert_eq!(closed(&[&from("src 10.1.0.0/16")], &own), [to_uxfrm, none]);
    let with_another = ["10.1.0.1", "192.0.2.1"];
    assert_eq!(closed(&[&from("src 10.1.0.0/16")], &with_another), [none; 2]);
    let passing = "xfrm policy add dst 10.2.7.0/24 proto tcp dport 22 dir out priority 1";
    let but = "10.2.0.0/16 to uxfrm, 10.2.7.0/24 as ever";
    assert_eq!(closed(&[&from(""), passing], &own), [but; 2]);
    let of_others = "xfrm policy add src 10.8.0.0/16 dst 10.2.7.0/24 dir out priority 1";
    assert_eq!(closed(&[&from(""), of_others], &own), [to_uxfrm, but]);
}

/// Those have a table by source, which leads more than they are for, and uxfrm lets that pass.
#[test]
fn plan_without_tun_ignores_port_policies() {
    let l2tp = "xfrm policy add src 192.0.2.1/32 dst 198.51.100.1/32 proto udp dport 1701 dir out";
    let l2tp = format!("{l2tp} tmpl proto esp mode transport");
    assert_eq!(closed(&[&l2tp], &["192.0.2.1"]), [""; 2]);
}

#[test]
fn plan_leaves_port_policies_to_chain() {
    let web = format!(
        "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 80 dir out {PROTECTS}"
    );
    assert!(planned(&[&web], &[]).is_empty());
    let rest =
        format!("xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/15 dir out priority 5 {PROTECTS}");
    assert_eq!(planned(&[&web, &rest], &[]), ["from 10.1.0.0/16: 10.2.0.0/15 to uxfrm"]);
    let plain = "xfrm policy add src 10.1.0.0/16 dst 10.2.7.0/24 proto tcp dport 22 dir out";
    assert_eq!(
        planned(&[&rest, plain], &[]),
        ["from 10.1.0.0/16: 10.2.0.0/15 to uxfrm, 10.2.7.0/24 as ever"]
    );
}

/// The kernel notes the TUN's MTU for a path whose packets it has not led there by a route, and
/// would hold ESP to it.
#[test]
fn plan_leads_all_ports_between_peers() {
    let ends = "src 192.0.2.1/32 dst 198.51.100.1/32 proto udp dport 1701";
    for template in [PROTECTS, "tmpl proto esp mode transport"] {
        let l2tp = format!("xfrm policy add {ends} dir out {template}");
        assert_eq!(planned(&[&l2tp], &[]), ["from 192.0.2.1/32: 198.51.100.1/32 to uxfrm"]);
    }
}

#[test]
fn plan_follows_priority_not_prefix_length() {
    let wide =
        format!("xfrm policy add src 10.1.0.0/16 dst 10.0.0.0/8 dir out priority 1 {PROTECTS}");
    let narrow = "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 2";
    assert_eq!(planned(&[&wide, narrow], &[]), ["from 10.1.0.0/16: 10.0.0.0/8 to uxfrm"]);
}

#[test]
fn plan_leaves_excess_sources_to_chain() {
    let of_net =
        |net| format!("xfrm policy add src 10.{net}.0.0/16 dst 10.200.0.0/16 dir out {PROTECTS}");
    let many: Vec<_> = (0..40).map(of_net).collect();
    let lines: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(planned(&lines, &[]).len(), MOST_SOURCES);
    let many: Vec<_> = (0..=MOST_POLICIES)
        .map(|net| {
            format!(
                "xfrm policy add src 10.1.0.0/16 dst 10.7.{}.{}/32 dir out {PROTECTS}",
                net >> 8,
                net & 255
            )
        })
        .collect();
    let lines: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(planned(&lines, &[]).is_empty());
    assert_eq!(planned(&lines[1..], &[]).len(), 1);
}

#[test]
fn plan_leads_protected_multicast() {
    let all = ("224.0.0.0", 4, "192.0.2.1");
    let from =
        |source| format!("xfrm policy add {source} dst 0.0.0.0/0 dir out priority 9 {PROTECTS}");
    let (any, virtual_) = (from(""), from("src 10.3.0.1/32"));
    assert_eq!(planned_for_groups(&[&any], &[all]), ["224.0.0.0/4 to uxfrm from 192.0.2.1"]);
    assert!(planned_for_groups(&[&virtual_], &[all]).is_empty());
    let local = "xfrm policy add dst 224.0.0.0/24 dir out priority 1";
    let ways = [all, ("224.0.0.0", 24, "192.0.2.1")];
    assert_eq!(
        planned_for_groups(&[&any, local], &ways),
        ["224.0.0.0/4 to uxfrm from 192.0.2.1", "224.0.0.0/24 as ever from 192.0.2.1"]
    );
    let port = format!("xfrm policy add dst 239.1.1.1/32 proto udp dport 9 dir out {PROTECTS}");
    assert!(planned_for_groups(&[&port], &[("239.1.1.1", 32, "192.0.2.1")]).is_empty());
}

#[test]
fn plan_keeps_multicast_source_of_other_device() {
    let any = format!("xfrm policy add dst 0.0.0.0/0 dir out priority 9 {PROTECTS}");
    let narrow = format!("xfrm policy add dst 239.1.0.0/16 dir out priority 5 {PROTECTS}");
    let ways = [("224.0.0.0", 4, "192.0.2.1"), ("239.1.0.0", 16, "198.51.100.1")];
    assert_eq!(
        planned_for_groups(&[&any, &narrow], &ways),
        ["224.0.0.0/4 to uxfrm from 192.0.2.1", "239.1.0.0/16 to uxfrm from 198.51.100.1"]
    );
}
