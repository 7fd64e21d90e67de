//! Answers as iproute2's `-j` has them: members in its order, under its names.
//!
//! uxfrm's additions come last: `udp6_zero_csum_rx`, `stats` and `drops` of a port, `drops` of a
//! tunnel.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use uxfrm_netlink::{NamedCounters, fou::PortAttributes};

use crate::text::{ShowCounters, flags, hardware, state_word};
use crate::{info, wire::TunnelInfo};

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Flag(bool),
    /// A number.
    Number(u64),
    /// Text.
    Text(String),
    /// An array.
    List(Vec<Self>),
    /// An object with its members in order.
    Object(Vec<(String, Self)>),
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Flag(flag) => to.serialize_bool(*flag),
            Self::Number(number) => to.serialize_u64(*number),
            Self::Text(text) => to.serialize_str(text),
            Self::List(list) => {
                let mut seq = to.serialize_seq(Some(list.len()))?;
                list.iter().try_for_each(|one| seq.serialize_element(one))?;
                seq.end()
            }
            Self::Object(members) => {
                let mut map = to.serialize_map(Some(members.len()))?;
                members.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl Json {
    pub(crate) fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    pub(crate) fn number(number: impl Into<u64>) -> Self {
        Self::Number(number.into())
    }
}

/// Members of an object.
#[derive(Default)]
pub(crate) struct Members(Vec<(String, Json)>);

impl Members {
    pub(crate) fn put(&mut self, name: &str, value: Json) {
        self.0.push((name.to_owned(), value));
    }

    pub(crate) fn object(self) -> Json {
        Json::Object(self.0)
    }
}

/// A receive port (`ip/ipfou.c: print_fou_mapping`); `device` gives an interface's name.
#[must_use]
pub fn port(port: &PortAttributes, counted: ShowCounters, device: impl Fn(u32) -> String) -> Json {
    let mut object = Members::default();
    if let Some(number) = port.port {
        object.put("port", Json::number(number));
    }
    match (info::framing(port), port.protocol) {
        (Some(word), _) => object.put(word, Json::Null),
        (_, Some(protocol)) => object.put("ipproto", Json::number(protocol)),
        (_, None) => {}
    }
    if let Some(family) = port.family {
        object.put("family", Json::text(if family == info::INET6 { "inet6" } else { "inet" }));
    }
    let (local, peer) = info::ends(port);
    for (name, end) in [("local", local), ("peer", peer)] {
        if let Some(end) = end {
            object.put(name, Json::text(end));
        }
    }
    if let Some(number) = port.peer_port.filter(|number| *number != 0) {
        object.put("peer_port", Json::number(number));
    }
    if let Some(index) = info::device(port) {
        object.put("dev", Json::text(device(index)));
    }
    if port.checksum6 {
        object.put("udp6_zero_csum_rx", Json::Flag(false));
    }
    if let (ShowCounters::Yes, Some(counts)) = (counted, &port.statistics) {
        let of = |name| Json::Number(counts.of(name).unwrap_or(0));
        let mut received = Members::default();
        received.put("bytes", of("bytes"));
        received.put("packets", of("packets"));
        let dropped: u64 = info::drops(counts).map(|(_, count)| count).sum();
        received.put("dropped", Json::Number(dropped));
        let mut stats = Members::default();
        stats.put("rx", received.object());
        object.put("stats", stats.object());
        object.put("drops", named(&NamedCounters(info::drops(counts).collect())));
    }
    object.object()
}

/// A tunnel (`ip/ipaddress.c: print_linkinfo`).
#[must_use]
pub fn link(link: &TunnelInfo, counted: ShowCounters) -> Json {
    let mut object = Members::default();
    object.put("ifindex", Json::number(link.index));
    object.put("link", Json::Null);
    object.put("ifname", Json::text(&link.name));
    object.put("flags", Json::List(flags(link.flags).into_iter().map(Json::Text).collect()));
    object.put("mtu", Json::number(link.mtu));
    if let Some(qdisc) = &link.qdisc {
        object.put("qdisc", Json::text(qdisc));
    }
    for (at, name) in ["operstate", "linkmode", "group"].into_iter().enumerate() {
        if let Some(number) = link.state[at] {
            object.put(name, Json::Text(state_word(at, number)));
        }
    }
    if let Some(length) = link.state[3].filter(|length| *length != 0) {
        object.put("txqlen", Json::number(length));
    }
    object.put("link_type", Json::text(hardware(link.config.kind)));
    object.put("address", Json::text(link.config.local));
    object.put("link_pointtopoint", Json::Flag(true));
    object.put("broadcast", Json::text(link.config.remote));
    let (before, behind): (Vec<_>, Vec<_>) =
        link.details.iter().copied().partition(|(name, _)| info::stands_before(name));
    before.into_iter().for_each(|(name, number)| object.put(name, Json::number(number)));
    let mut info = Members::default();
    info.put("info_kind", Json::text(link.config.kind.name()));
    info.put("info_data", info::of(&link.config).json());
    object.put("linkinfo", info.object());
    behind.into_iter().for_each(|(name, number)| object.put(name, Json::number(number)));
    if counted == ShowCounters::Yes {
        object.put("stats64", statistics(link));
        object.put("drops", named(&link.statistics.drops));
    }
    object.object()
}

fn statistics(link: &TunnelInfo) -> Json {
    let way = |(packets, bytes), dropped| {
        let mut object = Members::default();
        let values = [("bytes", bytes), ("packets", packets), ("errors", 0), ("dropped", dropped)];
        values.into_iter().for_each(|(name, value)| object.put(name, Json::Number(value)));
        object
    };
    let statistics = &link.statistics;
    let mut received = way(statistics.received, statistics.received_dropped);
    received.put("over_errors", Json::Number(0));
    received.put("multicast", Json::Number(0));
    let mut sent = way(statistics.sent, statistics.sent_dropped);
    sent.put("carrier_errors", Json::Number(0));
    sent.put("collisions", Json::Number(statistics.collisions));
    let mut object = Members::default();
    object.put("rx", received.object());
    object.put("tx", sent.object());
    object.object()
}

fn named(counts: &NamedCounters) -> Json {
    Json::Object(
        counts.0.iter().map(|(name, count)| (name.clone(), Json::Number(*count))).collect(),
    )
}
