//! What is shown of a port or a tunnel, whatever it is written as.

use std::net::IpAddr;

use uxfrm_netlink::{NamedCounters, fou::PortAttributes};
use uxfrm_packet::Version;
use uxfrm_tunnel::config::{
    CarriedVersions, FlowLabel, GreField, HeaderByte, InnerDf, PathMtuDiscovery, RemoteOffload,
    SourcePort, TunnelUdpEncap, UdpChecksum, UdpFraming,
};
use uxfrm_tunnel::{TunnelConfig, TunnelKind};

use crate::json::{Json, Members};

/// `AF_INET6`
pub(crate) const INET6: u8 = 10;

/// Local address and peer of a port; none where it is any.
pub(crate) fn ends(port: &PortAttributes) -> (Option<IpAddr>, Option<IpAddr>) {
    let said = |end: Option<IpAddr>| end.filter(|end| !end.is_unspecified());
    if port.family == Some(INET6) {
        (said(port.local6.map(IpAddr::V6)), said(port.peer6.map(IpAddr::V6)))
    } else {
        (said(port.local4.map(IpAddr::V4)), said(port.peer4.map(IpAddr::V4)))
    }
}

/// The word of a port whose datagrams name their protocol.
pub(crate) fn framing(port: &PortAttributes) -> Option<&'static str> {
    let framing = UdpFraming::from_number(port.kind?.into())?.properties();
    framing.names_protocol.then_some(framing.word)
}

/// The index of a port's device; none where it is any.
pub(crate) fn device(port: &PortAttributes) -> Option<u32> {
    port.ifindex.and_then(|index| u32::try_from(index).ok()).filter(|index| *index != 0)
}

/// The counters of a port that are drop reasons.
pub(crate) fn drops(counts: &NamedCounters) -> impl Iterator<Item = (String, u64)> {
    counts.0.iter().filter(|(name, _)| name.starts_with("tunnel_")).cloned()
}

/// Whether a number of a device stands before its tunnel, by its name.
pub(crate) fn stands_before(name: &str) -> bool {
    ["promiscuity", "allmulti", "min_mtu", "max_mtu"].contains(&name)
}

/// What is said of a tunnel, in iproute2's order: as text, and as members of an object.
#[derive(Default)]
pub(crate) struct Info {
    text: String,
    members: Members,
}

impl Info {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn json(self) -> Json {
        self.members.object()
    }

    fn put(&mut self, text: impl AsRef<str>, name: &str, value: Json) {
        self.say(text);
        self.members.put(name, value);
    }

    fn say(&mut self, text: impl AsRef<str>) {
        self.text += text.as_ref();
        self.text += " ";
    }

    fn flag(&mut self, word: &str, name: &str) {
        self.put(word, name, Json::Flag(true));
    }
}

/// What is said of a tunnel (`ip/link_iptnl.c: iptunnel_print_opt` and its like).
pub(crate) fn of(config: &TunnelConfig) -> Info {
    let mut info = Info::default();
    if !config.kind.is_gre() {
        let proto = proto(config);
        info.put(proto, "proto", Json::text(proto));
    }
    for (name, end) in [("remote", config.remote), ("local", config.local)] {
        let end = if end.is_unspecified() { "any".to_owned() } else { end.to_string() };
        info.put(format!("{name} {end}"), name, Json::Text(end));
    }
    match config.kind.outer() {
        Version::V4 => over_v4(config, &mut info),
        Version::V6 => over_v6(config, &mut info),
    }
    if config.kind.is_gre() {
        gre(config, &mut info);
    }
    if config.kind == TunnelKind::Sit {
        six_rd(config, &mut info);
    }
    if let Some(udp) = config.udp {
        encap(udp, &mut info);
    }
    info
}

fn proto(config: &TunnelConfig) -> &'static str {
    match (config.kind, config.carries) {
        (TunnelKind::Ipip, _) | (_, CarriedVersions::Both) => "any",
        (TunnelKind::Ip6tnl, CarriedVersions::V4) => "ipip6",
        (TunnelKind::Ip6tnl, CarriedVersions::V6) => "ip6ip6",
        (_, CarriedVersions::V4) => "ipip",
        (_, CarriedVersions::V6) => "ip6ip",
    }
}

fn over_v4(config: &TunnelConfig, info: &mut Info) {
    match config.ttl {
        HeaderByte::Inherit => info.put("ttl inherit", "ttl", Json::Number(0)),
        HeaderByte::Fixed(ttl) => info.put(format!("ttl {ttl}"), "ttl", Json::number(ttl)),
    }
    match config.tos {
        HeaderByte::Inherit => info.put("tos inherit", "tos", Json::text("0x1")),
        HeaderByte::Fixed(0) => {}
        HeaderByte::Fixed(tos) => {
            info.put(format!("tos {tos:#x}"), "tos", Json::Text(format!("{tos:#x}")))
        }
    }
    match (config.path_mtu, config.kind) {
        (PathMtuDiscovery::On, TunnelKind::Gre) => info.members.put("pmtudisc", Json::Flag(true)),
        (PathMtuDiscovery::On, _) => info.put("pmtudisc", "pmtudisc", Json::Flag(true)),
        (PathMtuDiscovery::Off, _) => info.put("nopmtudisc", "pmtudisc", Json::Flag(false)),
    }
    if config.inner_df == InnerDf::Ignore {
        info.flag("ignore-df", "ignore_df");
    }
}

fn over_v6(config: &TunnelConfig, info: &mut Info) {
    match config.ttl {
        HeaderByte::Inherit => info.put("hoplimit inherit", "ttl", Json::Number(0)),
        HeaderByte::Fixed(ttl) => info.put(format!("hoplimit {ttl}"), "ttl", Json::number(ttl)),
    }
    match config.encap_limit {
        None => info.put("encaplimit none", "ip6_tnl_f_ign_encap_limit", Json::Flag(true)),
        Some(limit) => {
            info.put(format!("encaplimit {limit}"), "encap_limit", Json::number(limit));
        }
    }
    match config.tos {
        HeaderByte::Inherit => {
            info.put("tclass inherit", "ip6_tnl_f_use_orig_tclass", Json::Flag(true))
        }
        HeaderByte::Fixed(class) => {
            info.put(format!("tclass {class:#04x}"), "tclass", Json::Text(format!("{class:#04x}")));
        }
    }
    let label = match config.flow_label {
        FlowLabel::Inherit => {
            let name = "ip6_tnl_f_use_orig_flowlabel";
            return info.put("flowlabel inherit", name, Json::Flag(true));
        }
        FlowLabel::Auto => 0,
        FlowLabel::Fixed(label) => label,
    };
    info.put(format!("flowlabel {label:#07x}"), "flowlabel", Json::Text(format!("{label:#07x}")));
}

fn gre(config: &TunnelConfig, info: &mut Info) {
    let ways = [("i", config.input), ("o", config.output)];
    for (way, fields) in ways {
        if let Some(key) = fields.key {
            let key = std::net::Ipv4Addr::from_bits(key);
            info.put(format!("{way}key {key}"), &format!("{way}key"), Json::text(key));
        }
    }
    for (way, fields) in ways {
        if fields.sequence == GreField::With {
            let word = format!("{way}seq");
            info.flag(&word, &word);
        }
    }
    for (way, fields) in ways {
        if fields.checksum == GreField::With {
            let word = format!("{way}csum");
            info.flag(&word, &word);
        }
    }
}

fn six_rd(config: &TunnelConfig, info: &mut Info) {
    let ((prefix, len), (relay, relay_len)) = (config.six_rd.prefix(), config.six_rd.relay());
    info.put(format!("6rd-prefix {prefix}/{len}"), "prefix", Json::text(prefix));
    info.members.put("prefixlen", Json::number(len));
    if !relay.is_unspecified() {
        let text = format!("6rd-relay_prefix {relay}/{relay_len}");
        info.put(text, "relay_prefix", Json::text(relay));
        info.members.put("relay_prefixlen", Json::number(relay_len));
    }
}

/// `ip/tunnel.c: tnl_print_encap`
fn encap(udp: TunnelUdpEncap, info: &mut Info) {
    let framing = udp.framing.properties().word;
    let (source, port) = match udp.source_port {
        SourcePort::Auto => ("auto".to_owned(), 0),
        SourcePort::Fixed(port) => (port.to_string(), port.get()),
    };
    info.say(format!("encap {framing} encap-sport {source} encap-dport {}", udp.destination_port));
    let mut object = Members::default();
    object.put("type", Json::text(framing));
    object.put("sport", Json::number(port));
    object.put("dport", Json::number(udp.destination_port.get()));
    for (name, is_set) in [
        ("csum", udp.checksum4 == UdpChecksum::Computed),
        ("csum6", udp.checksum6 == UdpChecksum::Computed),
        ("remcsum", udp.remote_checksum == RemoteOffload::On),
    ] {
        info.say(format!("{}encap-{name}", if is_set { "" } else { "no" }));
        object.put(name, Json::Flag(is_set));
    }
    info.members.put("encap", object.object());
}
