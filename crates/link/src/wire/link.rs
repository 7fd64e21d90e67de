//! `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_GETLINK`: `struct ifinfomsg` and attributes (`if_link.h`).

use uxfrm_netlink::{NamedCounters, NetlinkError};
use uxfrm_netlink_wire::{AttributeWriter, RawAttributes};
use uxfrm_tunnel::{TunnelConfig, TunnelKind};

use super::attributes::Reader;
use super::config;
use crate::{Admin, TunnelLink};

/// `RTM_NEWLINK`: add or change a tunnel; the answer to [`GET`].
pub const NEW: u16 = 16;
/// `RTM_DELLINK`
pub const DELETE: u16 = 17;
/// `RTM_GETLINK`: one, or with `NLM_F_DUMP` all.
pub const GET: u16 = 18;

/// Bytes of `struct ifinfomsg`: family, padding, type, index, flags, which of them count.
const HEAD: usize = 16;
/// `IFF_UP`
const UP: u32 = 1;
/// `EINVAL`, `EOPNOTSUPP`
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// `IFLA_*`.
const ADDRESS: u16 = 1;
const BROADCAST: u16 = 2;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LINK: u16 = 5;
const QDISC: u16 = 6;
const STATS: u16 = 7;
const INFO: u16 = 18;
const STATS64: u16 = 23;
const AF_SPEC: u16 = 26;
/// `IFLA_INFO_*`
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_STATISTICS: u16 = 3;

/// Numeric attributes that are shown, with iproute2's JSON names, in the order of its text.
const DETAILS: [(u16, &str); 11] = [
    (30, "promiscuity"),
    (61, "allmulti"),
    (50, "min_mtu"),
    (51, "max_mtu"),
    (31, "num_tx_queues"),
    (32, "num_rx_queues"),
    (41, "gso_max_size"),
    (40, "gso_max_segs"),
    (59, "tso_max_size"),
    (60, "tso_max_segs"),
    (58, "gro_max_size"),
];

/// A request about a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRequest {
    /// Index of the interface; 0 where it is named.
    pub index: u32,
    /// `IFLA_IFNAME`
    pub name: Option<String>,
    /// `IFLA_MTU`
    pub mtu: Option<u16>,
    /// Whether it is to be up, where that is said.
    pub admin: Option<Admin>,
    /// The tunnel, where the request has one.
    pub config: Option<TunnelConfig>,
}

/// What a tunnel carried and dropped, as `struct rtnl_link_stats64` has it, and by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Packets that came out of the tunnel, and their bytes.
    pub received: (u64, u64),
    /// Packets that went in, and their bytes.
    pub sent: (u64, u64),
    /// Packets that came and that the host did not take.
    pub received_dropped: u64,
    /// Packets that were to go and did not.
    pub sent_dropped: u64,
    /// Those of them that were the tunnel's own (`collisions`).
    pub collisions: u64,
    /// All that was dropped, by reason.
    pub drops: NamedCounters,
}

/// What the kernel says of the device of a tunnel: the body of its own `RTM_NEWLINK`.
#[derive(Clone, Debug)]
pub struct KernelLink(pub Vec<u8>);

/// A tunnel as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// Index of the interface.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `IFF_*`
    pub flags: u32,
    /// Its MTU.
    pub mtu: u32,
    /// Its queueing discipline.
    pub qdisc: Option<String>,
    /// `IFLA_OPERSTATE`, `IFLA_LINKMODE`, `IFLA_GROUP`, `IFLA_TXQLEN`.
    pub state: [Option<u32>; 4],
    /// Other numbers of it, by iproute2's names.
    pub details: Vec<(&'static str, u32)>,
    /// The tunnel.
    pub config: TunnelConfig,
    /// What it carried and dropped.
    pub statistics: LinkStatistics,
}

/// The body of a request to add or change a tunnel.
#[must_use]
pub fn encode_new_link(link: &TunnelLink) -> Vec<u8> {
    let admin = match link.admin {
        None => (0, 0),
        Some(Admin::Up) => (UP, UP),
        Some(Admin::Down) => (0, UP),
    };
    let mut body = head(0, 0, admin);
    let mut out = AttributeWriter::new(&mut body);
    out.text(NAME, &link.name);
    if let Some(mtu) = link.mtu {
        out.ne32(MTU, u32::from(mtu));
    }
    out.nest_unflagged(INFO, |info| {
        info.text(INFO_KIND, link.config.kind.name());
        info.nest_unflagged(INFO_DATA, |data| config::encode(&link.config, data));
    });
    body
}

/// The body of a request to delete a tunnel.
#[must_use]
pub fn encode_delete_link(name: &str) -> Vec<u8> {
    encode_get_link(Some(name))
}

/// The body of a request to show one tunnel, or all.
#[must_use]
pub fn encode_get_link(name: Option<&str>) -> Vec<u8> {
    let mut body = head(0, 0, (0, 0));
    name.into_iter().for_each(|name| AttributeWriter::new(&mut body).text(NAME, name));
    body
}

impl LinkRequest {
    /// Reads a request's body.
    ///
    /// # Errors
    /// `EINVAL` without a header, `ERANGE` for a short attribute, `EOPNOTSUPP` for other kinds of
    /// devices, and errors of the tunnel's settings.
    pub fn decode(body: &[u8]) -> Result<Self, NetlinkError> {
        let (head, attributes) =
            body.split_first_chunk::<HEAD>().ok_or(NetlinkError::bare(EINVAL))?;
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let found = Reader::of(attributes);
        let mtu =
            found.word(MTU)?.map(|mtu| u16::try_from(mtu).map_err(|_| NetlinkError::bare(EINVAL)));
        let config = match found.value(INFO).map(Reader::of) {
            Some(info) => Some(tunnel(&info)?),
            None => None,
        };
        let admin = if word(8) & UP == 0 { Admin::Down } else { Admin::Up };
        Ok(Self {
            index: word(4),
            name: found.text(NAME),
            mtu: mtu.transpose()?,
            admin: (word(12) & UP != 0).then_some(admin),
            config,
        })
    }
}

fn tunnel(info: &Reader<'_>) -> Result<TunnelConfig, NetlinkError> {
    let name = info.text(INFO_KIND);
    let kind = TunnelKind::ALL.into_iter().find(|kind| name.as_deref() == Some(kind.name()));
    let kind = kind.ok_or(NetlinkError::new(EOPNOTSUPP, "Unknown device type"))?;
    config::decode(kind, info.value(INFO_DATA).unwrap_or_default())
}

impl KernelLink {
    /// Body of an answer about a tunnel: the kernel's, with the tunnel's own attributes replaced.
    #[must_use]
    pub fn with(&self, config: &TunnelConfig, statistics: &LinkStatistics) -> Vec<u8> {
        let Some((kernels, attributes)) = self.0.split_first_chunk::<HEAD>() else {
            return Vec::new();
        };
        let mut body = kernels.to_vec();
        body[2..4].copy_from_slice(&hardware(config.kind).to_ne_bytes());
        let mut out = AttributeWriter::new(&mut body);
        let replaced = [ADDRESS, BROADCAST, LINK, STATS, INFO, STATS64, AF_SPEC];
        for attribute in RawAttributes::of(attributes) {
            if !replaced.contains(&attribute.kind) {
                out.bytes(attribute.kind, attribute.value);
            }
        }
        for (number, end) in [(ADDRESS, config.local), (BROADCAST, config.remote)] {
            out.address(number, end);
        }
        out.ne32(LINK, 0);
        out.bytes(STATS64, &statistics.encode());
        out.nest_unflagged(INFO, |info| {
            info.text(INFO_KIND, config.kind.name());
            info.nest_unflagged(INFO_DATA, |data| config::encode(config, data));
            info.bytes(INFO_STATISTICS, &statistics.drops.encode());
        });
        body
    }
}

impl TunnelInfo {
    /// Decodes an answer's body; `None` if it is no tunnel.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (head, attributes) = body.split_first_chunk::<HEAD>()?;
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let found = Reader::of(attributes);
        let info = Reader::of(found.value(INFO)?);
        let number = |kind| found.word(kind).ok().flatten();
        let byte = |kind| found.byte(kind).ok().flatten().map(u32::from);
        let drops = info.value(INFO_STATISTICS).map(NamedCounters::decode).unwrap_or_default();
        Some(Self {
            index: word(4),
            name: found.text(NAME)?,
            flags: word(8),
            mtu: number(MTU)?,
            qdisc: found.text(QDISC),
            state: [byte(16), byte(17), number(27), number(13)],
            details: DETAILS
                .into_iter()
                .filter_map(|(kind, name)| Some((name, number(kind)?)))
                .collect(),
            config: tunnel(&info).ok()?,
            statistics: LinkStatistics::decode(found.value(STATS64)?, drops),
        })
    }
}

/// Word offsets in `struct rtnl_link_stats64`: packets and bytes in and out, drops, collisions.
const WORDS: usize = 25;
const PLACES: [usize; 7] = [0, 1, 2, 3, 6, 7, 9];

impl LinkStatistics {
    fn encode(&self) -> Vec<u8> {
        let mut words = [0_u64; WORDS];
        let Self { received, sent, received_dropped, sent_dropped, collisions, .. } = *self;
        let values =
            [received.0, sent.0, received.1, sent.1, received_dropped, sent_dropped, collisions];
        PLACES.into_iter().zip(values).for_each(|(place, value)| words[place] = value);
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    fn decode(value: &[u8], drops: NamedCounters) -> Self {
        let word = |place: usize| {
            let word = value.get(place * 8..).and_then(<[u8]>::first_chunk);
            word.copied().map_or(0, u64::from_ne_bytes)
        };
        let [
            packets_in,
            packets_out,
            bytes_in,
            bytes_out,
            received_dropped,
            sent_dropped,
            collisions,
        ] = PLACES.map(word);
        Self {
            received: (packets_in, bytes_in),
            sent: (packets_out, bytes_out),
            received_dropped,
            sent_dropped,
            collisions,
            drops,
        }
    }
}

/// `ARPHRD_TUNNEL`, `_SIT`, `_IPGRE`, `_TUNNEL6`, `_IP6GRE`.
const fn hardware(kind: TunnelKind) -> u16 {
    match kind {
        TunnelKind::Ipip => 768,
        TunnelKind::Sit => 776,
        TunnelKind::Gre => 778,
        TunnelKind::Ip6tnl => 769,
        TunnelKind::Ip6gre => 823,
    }
}

fn head(kind: u16, index: u32, (flags, change): (u32, u32)) -> Vec<u8> {
    let mut out = vec![0; 2];
    out.extend(kind.to_ne_bytes());
    [index, flags, change].into_iter().for_each(|word| out.extend(word.to_ne_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkAction, TunnelCommand, command};

    fn link(line: &str) -> TunnelLink {
        match command(&line.split_whitespace().collect::<Vec<_>>()) {
            Ok(TunnelCommand::Link(LinkAction::Add(link))) => link,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn new_link_request_round_trips() {
        for (line, admin, mtu) in [
            ("link add t type gre remote 10.0.0.2 key 5", None, None),
            (
                "link add t up mtu 1400 type ipip encap fou encap-dport 9",
                Some(Admin::Up),
                Some(1400),
            ),
            ("link add t down type ip6tnl remote fd00::1", Some(Admin::Down), None),
        ] {
            let link = link(line);
            let request = LinkRequest::decode(&encode_new_link(&link)).unwrap();
            assert_eq!((request.admin, request.mtu), (admin, mtu), "{line}");
            assert_eq!((request.name.as_deref(), request.index), (Some("t"), 0));
            assert_eq!(request.config, Some(link.config));
        }
        assert_eq!(
            LinkRequest::decode(&encode_delete_link("t")).unwrap().name.as_deref(),
            Some("t")
        );
        assert_eq!(LinkRequest::decode(&encode_get_link(None)).unwrap().name, None);
    }

    #[test]
    fn link_request_for_other_device_is_refused() {
        let errno = |body: &[u8]| LinkRequest::decode(body).unwrap_err().errno;
        assert_eq!(errno(&[0; 15]), 22);
        let refused = |fill: &dyn Fn(&mut AttributeWriter<'_>)| {
            let mut body = head(0, 0, (0, 0));
            fill(&mut AttributeWriter::new(&mut body));
            errno(&body)
        };
        let vxlan = |info: &mut AttributeWriter<'_>| info.text(INFO_KIND, "vxlan");
        assert_eq!(refused(&|out| out.nest_unflagged(INFO, vxlan)), 95);
        assert_eq!(refused(&|out| out.ne32(MTU, 70_000)), 22);
        assert_eq!(refused(&|out| out.bytes(MTU, &[1])), 34);
    }

    #[test]
    fn link_answer_keeps_kernel_attributes_and_adds_tunnel() {
        let mut body = head(0xfffe, 7, (0x1_0091, 0));
        let mut kernels = AttributeWriter::new(&mut body);
        kernels.text(NAME, "t");
        kernels.ne32(MTU, 1472);
        kernels.text(QDISC, "noqueue");
        kernels.bytes(16, &[0]);
        kernels.ne32(13, 500);
        kernels.bytes(STATS64, &[9; 200]);
        kernels.nest_unflagged(INFO, |info| info.text(INFO_KIND, "tun"));
        kernels.ne32(30, 0);
        let config = link("link add t type gre remote 10.0.0.2 key 5").config;
        let statistics = LinkStatistics {
            received: (1, 2),
            sent: (3, 4),
            received_dropped: 5,
            sent_dropped: 6,
            collisions: 7,
            drops: NamedCounters(vec![("tunnel_out_recursion".to_owned(), 7)]),
        };
        let body = KernelLink(body).with(&config, &statistics);
        assert_eq!(u16::from_ne_bytes([body[2], body[3]]), 778);
        let shown = TunnelInfo::decode(&body).unwrap();
        assert_eq!((shown.index, shown.mtu, shown.flags), (7, 1472, 0x1_0091));
        assert_eq!((shown.config, shown.statistics), (config, statistics));
        assert_eq!(shown.state, [Some(0), None, None, Some(500)]);
        assert_eq!(
            (shown.qdisc.as_deref(), shown.details),
            (Some("noqueue"), vec![("promiscuity", 0)])
        );
        (0..body.len()).for_each(|len| drop(TunnelInfo::decode(&body[..len])));
    }
}
