//! Converts between `IFLA_INFO_DATA` and [`TunnelConfig`] (`include/uapi/linux/if_tunnel.h`;
//! `ipip_netlink_parms`, `ipgre_netlink_parms`, `ip6_tnl_netlink_parms`, `ip6gre_netlink_parms`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use uxfrm_netlink::NetlinkError;
use uxfrm_netlink_wire::AttributeWriter;
use uxfrm_packet::Version;
use uxfrm_tunnel::config::{
    CarriedVersions, FlowLabel, GreField, GreOptions, HeaderByte, InnerDf, PathMtuDiscovery,
    RemoteOffload, SourcePort, TunnelUdpEncap, UdpChecksum, UdpFraming,
};
use uxfrm_tunnel::{SixRd, TunnelConfig, TunnelKind};

use super::attributes::Reader;

/// `IFLA_IPTUN_*` or `IFLA_GRE_*`: the same things under other numbers.
struct Numbers {
    local: u16,
    remote: u16,
    ttl: u16,
    tos: u16,
    path_mtu: u16,
    encap_limit: u16,
    flow_info: u16,
    flags: u16,
    /// Type, flags, source port, destination port.
    encap: [u16; 4],
    external: u16,
}

const IP: Numbers = Numbers {
    local: 2,
    remote: 3,
    ttl: 4,
    tos: 5,
    path_mtu: 10,
    encap_limit: 6,
    flow_info: 7,
    flags: 8,
    encap: [15, 16, 17, 18],
    external: 19,
};
const GRE: Numbers = Numbers {
    local: 6,
    remote: 7,
    ttl: 8,
    tos: 9,
    path_mtu: 10,
    encap_limit: 11,
    flow_info: 12,
    flags: 13,
    encap: [14, 15, 16, 17],
    external: 18,
};

/// `IFLA_IPTUN_PROTO`; `IFLA_IPTUN_6RD_*`: prefix, relay prefix, and their lengths.
const PROTOCOL: u16 = 9;
const SIX_RD: [u16; 4] = [11, 12, 13, 14];
/// `IFLA_GRE_*`: flags and keys of what comes in and of what goes out.
const GRE_FIELDS: [(u16, u16); 2] = [(2, 4), (3, 5)];
const IGNORE_DF: u16 = 19;

/// `GRE_CSUM`, `GRE_KEY`, `GRE_SEQ`.
const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;

/// `IP6_TNL_F_IGN_ENCAP_LIMIT`, `_USE_ORIG_TCLASS`, `_USE_ORIG_FLOWLABEL`.
const NO_LIMIT: u32 = 1;
const SAME_CLASS: u32 = 2;
const SAME_LABEL: u32 = 4;

/// `TUNNEL_ENCAP_FLAG_CSUM`, `_CSUM6`, `_REMCSUM`.
const SUMMED4: u16 = 1;
const SUMMED6: u16 = 2;
const REMOTE: u16 = 4;

/// What the TOS attribute of a tunnel over IPv4 says for "the inner header's".
const INHERIT: u8 = 1;

const fn numbers(kind: TunnelKind) -> &'static Numbers {
    if kind.is_gre() { &GRE } else { &IP }
}

/// Writes all that is said of a tunnel.
pub(super) fn encode(config: &TunnelConfig, out: &mut AttributeWriter<'_>) {
    let numbers = numbers(config.kind);
    for (number, end) in [(numbers.local, config.local), (numbers.remote, config.remote)] {
        out.address(number, end);
    }
    let ttl = match config.ttl {
        HeaderByte::Inherit => 0,
        HeaderByte::Fixed(ttl) => ttl,
    };
    out.bytes(numbers.ttl, &[ttl]);
    match config.kind.outer() {
        Version::V4 => encode_v4(config, numbers, out),
        Version::V6 => encode_v6(config, numbers, out),
    }
    if config.kind.is_gre() {
        for ((flags, key), fields) in GRE_FIELDS.into_iter().zip([config.input, config.output]) {
            out.bytes(flags, &gre_flags(fields).to_be_bytes());
            out.bytes(key, &fields.key.unwrap_or(0).to_be_bytes());
        }
        out.bytes(IGNORE_DF, &[u8::from(config.inner_df == InnerDf::Ignore)]);
    } else {
        out.bytes(PROTOCOL, &[protocol(config.kind, config.carries)]);
    }
    encode_encap(config.udp, numbers, out);
}

fn encode_v4(config: &TunnelConfig, numbers: &Numbers, out: &mut AttributeWriter<'_>) {
    let tos = match config.tos {
        HeaderByte::Inherit => INHERIT,
        HeaderByte::Fixed(tos) => tos,
    };
    out.bytes(numbers.tos, &[tos]);
    out.bytes(numbers.path_mtu, &[u8::from(config.path_mtu == PathMtuDiscovery::On)]);
    if config.kind == TunnelKind::Sit {
        let [prefix, relay, prefix_len, relay_len] = SIX_RD;
        let (ours, providers) = (config.six_rd.prefix(), config.six_rd.relay());
        out.bytes(prefix, &ours.0.octets());
        out.bytes(relay, &providers.0.octets());
        out.bytes(prefix_len, &u16::from(ours.1).to_ne_bytes());
        out.bytes(relay_len, &u16::from(providers.1).to_ne_bytes());
    }
}

fn encode_v6(config: &TunnelConfig, numbers: &Numbers, out: &mut AttributeWriter<'_>) {
    let mut flags = 0;
    let class = match config.tos {
        HeaderByte::Inherit => {
            flags |= SAME_CLASS;
            0
        }
        HeaderByte::Fixed(class) => class,
    };
    let label = match config.flow_label {
        FlowLabel::Auto => 0,
        FlowLabel::Inherit => {
            flags |= SAME_LABEL;
            0
        }
        FlowLabel::Fixed(label) => label & 0xf_ffff,
    };
    if config.encap_limit.is_none() {
        flags |= NO_LIMIT;
    }
    out.bytes(numbers.encap_limit, &[config.encap_limit.unwrap_or(0)]);
    out.bytes(numbers.flow_info, &(u32::from(class) << 20 | label).to_be_bytes());
    out.ne32(numbers.flags, flags);
}

fn encode_encap(udp: Option<TunnelUdpEncap>, numbers: &Numbers, out: &mut AttributeWriter<'_>) {
    let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
    let values = match udp {
        None => [0; 4],
        Some(udp) => [
            u16::from(udp.framing.properties().number).to_ne_bytes(),
            (bit(udp.checksum4 == UdpChecksum::Computed, SUMMED4)
                | bit(udp.checksum6 == UdpChecksum::Computed, SUMMED6)
                | bit(udp.remote_checksum == RemoteOffload::On, REMOTE))
            .to_ne_bytes(),
            match udp.source_port {
                SourcePort::Auto => [0; 2],
                SourcePort::Fixed(port) => port.get().to_be_bytes(),
            },
            udp.destination_port.get().to_be_bytes(),
        ]
        .map(u16::from_ne_bytes),
    };
    for (number, value) in numbers.encap.into_iter().zip(values) {
        out.bytes(number, &value.to_ne_bytes());
    }
}

/// Decodes a tunnel, with the kernel's defaults for omitted attributes.
///
/// # Errors
/// What [`uxfrm_tunnel`] or the kernel has no such thing for.
pub(super) fn decode(kind: TunnelKind, bytes: &[u8]) -> Result<TunnelConfig, NetlinkError> {
    let (numbers, found) = (numbers(kind), Reader::of(bytes));
    if found.value(numbers.external).is_some() {
        return Err(NetlinkError::not_yet("external tunnels are not supported by uxfrm"));
    }
    let any = TunnelConfig::any(kind.outer());
    let end = |number| -> Result<IpAddr, NetlinkError> {
        Ok(match kind.outer() {
            Version::V4 => found.bytes::<4>(number)?.map(IpAddr::from),
            Version::V6 => found.bytes::<16>(number)?.map(IpAddr::from),
        }
        .unwrap_or(any))
    };
    let mut config = TunnelConfig::new(kind, end(numbers.local)?, end(numbers.remote)?);
    config.ttl = match found.byte(numbers.ttl)? {
        None | Some(0) => HeaderByte::Inherit,
        Some(ttl) => HeaderByte::Fixed(ttl),
    };
    match kind.outer() {
        Version::V4 => decode_v4(&mut config, numbers, &found)?,
        Version::V6 => decode_v6(&mut config, numbers, &found)?,
    }
    if kind.is_gre() {
        for ((flags, key), fields) in
            GRE_FIELDS.into_iter().zip([&mut config.input, &mut config.output])
        {
            *fields = gre(found.port(flags)?.unwrap_or(0), found.bytes(key)?);
        }
        if found.byte(IGNORE_DF)?.is_some_and(|ignore| ignore != 0) {
            config.inner_df = InnerDf::Ignore;
        }
    } else if let Some(number) = found.byte(PROTOCOL)? {
        config.carries = carries(kind, number)?;
    }
    config.udp = decode_encap(numbers, &found)?;
    Ok(config)
}

fn decode_v4(
    config: &mut TunnelConfig,
    numbers: &Numbers,
    found: &Reader<'_>,
) -> Result<(), NetlinkError> {
    match found.byte(numbers.tos)? {
        None => {}
        Some(INHERIT) => config.tos = HeaderByte::Inherit,
        Some(tos) => config.tos = HeaderByte::Fixed(tos),
    }
    if found.byte(numbers.path_mtu)? == Some(0) {
        config.path_mtu = PathMtuDiscovery::Off;
    }
    let [prefix, relay, prefix_len, relay_len] = SIX_RD;
    if config.kind == TunnelKind::Sit
        && let (Some(prefix), Some(len)) = (found.bytes::<16>(prefix)?, found.half(prefix_len)?)
    {
        let relay = Ipv4Addr::from(found.bytes::<4>(relay)?.unwrap_or_default());
        let relay_len = found.half(relay_len)?.unwrap_or(0);
        let [len, relay_len] = [len, relay_len].map(|len| u8::try_from(len).unwrap_or(u8::MAX));
        config.six_rd = SixRd::new(Ipv6Addr::from(prefix), len, relay, relay_len)
            .map_err(|error| NetlinkError::bare(error.errno()))?;
    }
    Ok(())
}

fn decode_v6(
    config: &mut TunnelConfig,
    numbers: &Numbers,
    found: &Reader<'_>,
) -> Result<(), NetlinkError> {
    let flags = found.word(numbers.flags)?.unwrap_or(0);
    let info = u32::from_be_bytes(found.bytes(numbers.flow_info)?.unwrap_or_default());
    config.tos = if flags & SAME_CLASS != 0 {
        HeaderByte::Inherit
    } else {
        HeaderByte::Fixed((info >> 20).to_le_bytes()[0])
    };
    config.flow_label = match info & 0xf_ffff {
        _ if flags & SAME_LABEL != 0 => FlowLabel::Inherit,
        0 => FlowLabel::Auto,
        label => FlowLabel::Fixed(label),
    };
    config.encap_limit = match found.byte(numbers.encap_limit)? {
        _ if flags & NO_LIMIT != 0 => None,
        None => config.encap_limit,
        limit => limit,
    };
    Ok(())
}

fn decode_encap(
    numbers: &Numbers,
    found: &Reader<'_>,
) -> Result<Option<TunnelUdpEncap>, NetlinkError> {
    let [kind, flags, source, destination] = numbers.encap;
    let framing = match found.half(kind)?.unwrap_or(0) {
        0 => return Ok(None),
        number => UdpFraming::from_number(number)
            .ok_or(NetlinkError::invalid("Invalid encapsulation type"))?,
    };
    let port = found.port(destination)?.and_then(NonZeroU16::new);
    let port = port.ok_or(NetlinkError::invalid("FOU and GUE need a destination port"))?;
    let flags = found.half(flags)?.unwrap_or(0);
    let sum = |bit| if flags & bit != 0 { UdpChecksum::Computed } else { UdpChecksum::Zero };
    Ok(Some(TunnelUdpEncap {
        source_port: match found.port(source)?.and_then(NonZeroU16::new) {
            None => SourcePort::Auto,
            Some(port) => SourcePort::Fixed(port),
        },
        checksum4: sum(SUMMED4),
        checksum6: sum(SUMMED6),
        remote_checksum: if flags & REMOTE != 0 { RemoteOffload::On } else { RemoteOffload::Off },
        ..TunnelUdpEncap::new(framing, port)
    }))
}

fn gre_flags(fields: GreOptions) -> u16 {
    let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
    bit(fields.key.is_some(), KEY)
        | bit(fields.sequence == GreField::With, SEQUENCE)
        | bit(fields.checksum == GreField::With, CHECKSUM)
}

fn gre(flags: u16, key: Option<[u8; 4]>) -> GreOptions {
    let field = |bit: u16| if flags & bit != 0 { GreField::With } else { GreField::Without };
    GreOptions {
        key: (flags & KEY != 0).then(|| u32::from_be_bytes(key.unwrap_or_default())),
        sequence: field(SEQUENCE),
        checksum: field(CHECKSUM),
    }
}

/// `IFLA_IPTUN_PROTO`: what a tunnel carries, 0 for all; `ipip` has nothing else than IPv4.
fn protocol(kind: TunnelKind, carries: CarriedVersions) -> u8 {
    match carries {
        CarriedVersions::V4 if kind == TunnelKind::Ipip => 0,
        CarriedVersions::V4 => kind.protocol(Version::V4).0,
        CarriedVersions::V6 => kind.protocol(Version::V6).0,
        CarriedVersions::Both => 0,
    }
}

fn carries(kind: TunnelKind, number: u8) -> Result<CarriedVersions, NetlinkError> {
    match number {
        0 if kind == TunnelKind::Ipip => Ok(CarriedVersions::V4),
        0 => Ok(CarriedVersions::Both),
        number if number == kind.protocol(Version::V4).0 => Ok(CarriedVersions::V4),
        number if number == kind.protocol(Version::V6).0 => Ok(CarriedVersions::V6),
        _ => Err(NetlinkError::bare(22)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkAction, TunnelCommand, command};

    fn config(line: &str) -> TunnelConfig {
        match command(&line.split_whitespace().collect::<Vec<_>>()) {
            Ok(TunnelCommand::Link(LinkAction::Add(link))) => link.config,
            other => panic!("{line}: {other:?}"),
        }
    }

    const LINES: [&str; 14] = [
        "link add t type ipip",
        "link add t type ipip remote 10.0.0.2 local 10.0.0.1 ttl 9 tos inherit encap fou encap-dport 5555",
        "link add t type ipip tos 10 nopmtudisc encap gue encap-dport 1 encap-sport 7 encap-csum encap-remcsum",
        "link add t type sit remote 10.0.0.2",
        "link add t type sit mode ip6ip encap fou encap-dport 5 encap6-csum",
        "link add t type sit mode ipip 6rd-prefix 2001:db8::/32 6rd-relay_prefix 10.0.0.0/8",
        "link add t type gre remote 10.0.0.2 key 7 seq icsum",
        "link add t type gre ikey 1.2.3.4 okey 5 oseq ocsum nopmtudisc ignore-df",
        "link add t type ip6tnl remote fd00::2 local fd00::1",
        "link add t type ip6tnl mode ip6ip6 encaplimit none hoplimit inherit tclass inherit flowlabel inherit",
        "link add t type ip6tnl mode ipip6 encaplimit 0 hoplimit 1 tclass ff flowlabel fffff",
        "link add t type ip6gre remote fd00::2 key 4294967295 csum",
        "link add t type ip6gre encap gue encap-dport 6080 encap6-csum flowlabel 12345 tclass inherit",
        "link add t type ip6gre seq encaplimit 255",
    ];

    #[test]
    fn written_value_is_read_back() {
        for line in LINES {
            let config = config(line);
            let mut bytes = Vec::new();
            encode(&config, &mut AttributeWriter::new(&mut bytes));
            assert_eq!(decode(config.kind, &bytes), Ok(config), "{line}");
        }
    }

    #[test]
    fn tunnel_attributes_have_the_kernels_layout() {
        let mut bytes = Vec::new();
        encode(&config(LINES[1]), &mut AttributeWriter::new(&mut bytes));
        let found = Reader::of(&bytes);
        let values: Vec<_> =
            [2, 3, 4, 5, 9, 10, 15, 16, 17, 18].map(|kind| found.value(kind)).to_vec();
        let expected: [&[u8]; 10] = [
            &[10, 0, 0, 1],
            &[10, 0, 0, 2],
            &[9],
            &[1],
            &[0],
            &[1],
            &1_u16.to_ne_bytes(),
            &[0, 0],
            &[0, 0],
            &[0x15, 0xb3],
        ];
        assert_eq!(values, expected.map(Some));
    }

    #[test]
    fn decode_of_any_bytes_does_not_panic() {
        let mut random = 3_u64;
        for _ in 0..20_000 {
            let mut bytes = [0; 64];
            for byte in &mut bytes {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = random.to_be_bytes()[1] % 21;
            }
            for kind in TunnelKind::ALL {
                let _ = decode(kind, &bytes[..usize::from(bytes[0]) * 3]);
            }
        }
    }
}
