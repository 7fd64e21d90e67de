//! Options behind `type` (`ip/link_iptnl.c`, `ip/link_gre.c`, `ip/link_ip6tnl.c`,
//! `ip/link_gre6.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use uxfrm_cli_grammar::{self as words, Cursor};
use uxfrm_packet::Version;
use uxfrm_tunnel::config::{
    CarriedVersions, FlowLabel, GreField, InnerDf, PathMtuDiscovery, RemoteOffload, SourcePort,
    TunnelUdpEncap, UdpChecksum, UdpFraming,
};
use uxfrm_tunnel::{SixRd, TunnelConfig, TunnelKind};

use crate::Error;
use crate::help::ENCAPS;
use crate::values::Values as _;

const PLACEHOLDER: NonZeroU16 = NonZeroU16::MAX;

/// What is collected before it is a [`TunnelConfig`].
struct TunnelOptions {
    config: TunnelConfig,
    framing: Option<UdpFraming>,
    encap: TunnelUdpEncap,
    port: Option<NonZeroU16>,
    six_rd: Option<(Ipv6Addr, u8)>,
    relay: (Ipv4Addr, u8),
}

/// A tunnel of which nothing is said: as iproute2 asks for it, so a `sit` carries IPv4, too.
pub(crate) fn fresh(kind: TunnelKind) -> TunnelConfig {
    let any = TunnelConfig::any(kind.outer());
    let config = TunnelConfig::new(kind, any, any);
    match kind {
        TunnelKind::Sit => TunnelConfig { carries: CarriedVersions::Both, ..config },
        TunnelKind::Ipip | TunnelKind::Gre | TunnelKind::Ip6tnl | TunnelKind::Ip6gre => config,
    }
}

/// Reads the options that are different from those of `config`.
pub(crate) fn read(
    config: TunnelConfig,
    cursor: &mut Cursor<'_, '_>,
) -> Result<TunnelConfig, Error> {
    let mut words = TunnelOptions {
        framing: config.udp.map(|udp| udp.framing),
        encap: config.udp.unwrap_or_else(|| unsaid(config.kind)),
        port: config.udp.map(|udp| udp.destination_port),
        config,
        six_rd: None,
        relay: (Ipv4Addr::UNSPECIFIED, 0),
    };
    while let Some(word) = cursor.take() {
        if !(words.ends(word, cursor)?
            || words.outer(word, cursor)?
            || words.gre(word, cursor)?
            || words.encap(word, cursor)?)
        {
            return Err(unknown(word));
        }
    }
    words.finish()
}

/// UDP of which nothing is said: as iproute2 asks for it, so over IPv6 it has a checksum.
fn unsaid(kind: TunnelKind) -> TunnelUdpEncap {
    let checksum6 = match kind.outer() {
        Version::V4 => UdpChecksum::Zero,
        Version::V6 => UdpChecksum::Computed,
    };
    TunnelUdpEncap { checksum6, ..TunnelUdpEncap::new(UdpFraming::Fou, PLACEHOLDER) }
}

impl TunnelOptions {
    fn ends(&mut self, word: &str, cursor: &mut Cursor<'_, '_>) -> Result<bool, Error> {
        match word {
            "remote" => self.config.remote = self.end(cursor)?,
            "local" => self.config.local = self.end(cursor)?,
            "mode" => self.config.carries = self.mode(cursor)?,
            "6rd-prefix" => self.six_rd = Some(cursor.prefix(128, "an IPv6 prefix")?),
            "6rd-relay_prefix" => self.relay = cursor.prefix(32, "an IPv4 prefix")?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn outer(&mut self, word: &str, cursor: &mut Cursor<'_, '_>) -> Result<bool, Error> {
        let config = &mut self.config;
        match word {
            "ttl" | "hoplimit" | "hlim" => {
                config.ttl = cursor.octet("a TTL, 1 to 255, or inherit")?
            }
            "tos" | "tclass" | "tc" | "dsfield" => config.tos = cursor.class()?,
            "pmtudisc" => config.path_mtu = PathMtuDiscovery::On,
            "nopmtudisc" => config.path_mtu = PathMtuDiscovery::Off,
            "ignore-df" => config.inner_df = InnerDf::Ignore,
            "noignore-df" => config.inner_df = InnerDf::Copy,
            "flowlabel" | "fl" => config.flow_label = flow_label(cursor)?,
            "encaplimit" => config.encap_limit = limit(cursor)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn gre(&mut self, word: &str, cursor: &mut Cursor<'_, '_>) -> Result<bool, Error> {
        if !self.config.kind.is_gre() {
            return Ok(false);
        }
        let TunnelConfig { input, output, .. } = &mut self.config;
        match word {
            "key" => {
                let key = Some(cursor.key()?);
                (input.key, output.key) = (key, key);
            }
            "ikey" => input.key = Some(cursor.key()?),
            "okey" => output.key = Some(cursor.key()?),
            "seq" => (input.sequence, output.sequence) = (GreField::With, GreField::With),
            "iseq" => input.sequence = GreField::With,
            "oseq" => output.sequence = GreField::With,
            "csum" => (input.checksum, output.checksum) = (GreField::With, GreField::With),
            "icsum" => input.checksum = GreField::With,
            "ocsum" => output.checksum = GreField::With,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn encap(&mut self, word: &str, cursor: &mut Cursor<'_, '_>) -> Result<bool, Error> {
        let encap = &mut self.encap;
        match word {
            "encap" => self.framing = framing(cursor)?,
            "noencap" => self.framing = None,
            "encap-sport" if cursor.skip("auto") => encap.source_port = SourcePort::Auto,
            "encap-sport" => encap.source_port = SourcePort::Fixed(port(cursor)?),
            "encap-dport" => self.port = Some(port(cursor)?),
            "encap-csum" | "encap-udp-csum" => encap.checksum4 = UdpChecksum::Computed,
            "noencap-csum" | "noencap-udp-csum" => encap.checksum4 = UdpChecksum::Zero,
            "encap6-csum" | "encap-csum6" | "encap-udp6-csum" => {
                encap.checksum6 = UdpChecksum::Computed
            }
            "noencap6-csum" | "noencap-csum6" | "noencap-udp6-csum" => {
                encap.checksum6 = UdpChecksum::Zero
            }
            "encap-remcsum" => encap.remote_checksum = RemoteOffload::On,
            "noencap-remcsum" => encap.remote_checksum = RemoteOffload::Off,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(mut self) -> Result<TunnelConfig, Error> {
        self.config.udp = None;
        if let Some(framing) = self.framing {
            let destination_port = self.port.ok_or(Error::EncapPort)?;
            self.config.udp = Some(TunnelUdpEncap { framing, destination_port, ..self.encap });
        }
        if let Some((prefix, len)) = self.six_rd {
            self.config.six_rd = SixRd::new(prefix, len, self.relay.0, self.relay.1)?;
        }
        Ok(self.config)
    }

    /// An end, of the family of the outer header.
    fn end(&self, cursor: &mut Cursor<'_, '_>) -> Result<IpAddr, words::Error> {
        let address = match self.config.kind.outer() {
            Version::V4 => cursor.address::<Ipv4Addr>("an IPv4 address")?.map(IpAddr::V4),
            Version::V6 => cursor.address::<Ipv6Addr>("an IPv6 address")?.map(IpAddr::V6),
        };
        Ok(address.unwrap_or_else(|| TunnelConfig::any(self.config.kind.outer())))
    }

    fn mode(&self, cursor: &mut Cursor<'_, '_>) -> Result<CarriedVersions, words::Error> {
        let word = cursor.next("a mode")?;
        match (self.config.kind, word) {
            (TunnelKind::Ipip, "any" | "any/ipv4") => Ok(CarriedVersions::V4),
            (TunnelKind::Ipip | TunnelKind::Sit, "ipip" | "ipv4/ipv4" | "ip4ip4")
            | (TunnelKind::Ip6tnl, "ipip6" | "ip4ip6" | "ipv4/ipv6") => Ok(CarriedVersions::V4),
            (TunnelKind::Sit, "ip6ip" | "ipv6/ipv4")
            | (TunnelKind::Ip6tnl, "ip6ip6" | "ipv6/ipv6") => Ok(CarriedVersions::V6),
            (TunnelKind::Sit, "any" | "any/ipv4") | (TunnelKind::Ip6tnl, "any" | "any/ipv6") => {
                Ok(CarriedVersions::Both)
            }
            (
                TunnelKind::Ipip
                | TunnelKind::Sit
                | TunnelKind::Gre
                | TunnelKind::Ip6tnl
                | TunnelKind::Ip6gre,
                _,
            ) => Err(words::Error::argument(word, "no mode of this type")),
        }
    }
}

fn framing(cursor: &mut Cursor<'_, '_>) -> Result<Option<UdpFraming>, words::Error> {
    let word = cursor.next(ENCAPS)?;
    let framing = UdpFraming::from_word(word);
    if framing.is_none() && word != "none" {
        return Err(words::Error::argument(word, ENCAPS));
    }
    Ok(framing)
}

fn port(cursor: &mut Cursor<'_, '_>) -> Result<NonZeroU16, words::Error> {
    const WHAT: &str = "a port, 1 to 65535";
    NonZeroU16::new(cursor.number(WHAT)?).ok_or_else(|| words::Error::argument("0", WHAT))
}

fn flow_label(cursor: &mut Cursor<'_, '_>) -> Result<FlowLabel, words::Error> {
    const WHAT: &str = "a flow label in hex, up to fffff, or inherit";
    if cursor.skip("inherit") {
        return Ok(FlowLabel::Inherit);
    }
    match cursor.hex::<u32>(WHAT)? {
        0 => Ok(FlowLabel::Auto),
        label @ 1..=0xf_ffff => Ok(FlowLabel::Fixed(label)),
        label => Err(words::Error::argument(&format!("{label:x}"), WHAT)),
    }
}

fn limit(cursor: &mut Cursor<'_, '_>) -> Result<Option<u8>, words::Error> {
    if cursor.skip("none") {
        return Ok(None);
    }
    cursor.number("an encapsulation limit, 0 to 255, or none").map(Some)
}

fn unknown(word: &str) -> Error {
    const UNSUPPORTED: [&str; 6] =
        ["external", "fwmark", "isatap", "erspan", "allow-localremote", "dev"];
    match UNSUPPORTED.into_iter().find(|known| *known == word) {
        Some(known) => Error::Unsupported(known),
        None => {
            let known = "an option of this type of tunnel (remote, local, ttl, tos, encap …)";
            words::Error::option(word, known).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_tunnel::config::{GreOptions, HeaderByte};

    use super::*;
    use crate::{LinkAction, TunnelCommand, TunnelLink, command};

    fn parsed(line: &str) -> Result<TunnelLink, Error> {
        match command(&line.split_whitespace().collect::<Vec<_>>())? {
            TunnelCommand::Link(LinkAction::Add(link)) => Ok(link),
            TunnelCommand::Link(
                LinkAction::Change(_) | LinkAction::Delete { .. } | LinkAction::Show(_),
            )
            | TunnelCommand::Fou(_) => unreachable!("not asked for"),
        }
    }

    #[test]
    fn fou_series_command_parses() {
        let line = "ip link add name tun1 type ipip remote 192.168.1.1 local 192.168.1.2 ttl 225 \
                    encap fou encap-sport auto encap-dport 5555";
        let ends = ([192, 168, 1, 2].into(), [192, 168, 1, 1].into());
        let config = TunnelConfig {
            ttl: HeaderByte::Fixed(225),
            udp: Some(TunnelUdpEncap::new(UdpFraming::Fou, NonZeroU16::new(5555).unwrap())),
            ..TunnelConfig::new(TunnelKind::Ipip, ends.0, ends.1)
        };
        assert_eq!(
            parsed(line),
            Ok(TunnelLink { name: "tun1".to_owned(), mtu: None, admin: None, config })
        );
    }

    #[test]
    fn every_tunnel_option_parses() {
        let read = |line: &str| parsed(line).unwrap().config;
        let gre = read(
            "l a t mtu 1400 type gre remote 1.2.3.4 local any key 0.0.1.2 oseq icsum tos inherit \
             nopmtudisc ignore-df encap gue encap-dport 7 encap-sport 9 encap-csum encap-remcsum",
        );
        assert_eq!(
            gre.input,
            GreOptions { key: Some(258), sequence: GreField::Without, checksum: GreField::With }
        );
        assert_eq!(
            gre.output,
            GreOptions { key: Some(258), sequence: GreField::With, checksum: GreField::Without }
        );
        assert_eq!((gre.tos, gre.path_mtu), (HeaderByte::Inherit, PathMtuDiscovery::Off));
        let udp = gre.udp.unwrap();
        assert_eq!((udp.framing, udp.remote_checksum), (UdpFraming::Gue, RemoteOffload::On));
        assert_eq!(udp.source_port, SourcePort::Fixed(NonZeroU16::new(9).unwrap()));
        assert_eq!((udp.checksum4, udp.checksum6), (UdpChecksum::Computed, UdpChecksum::Zero));
        let tnl = read(
            "link add t type ip6tnl mode ipip6 remote fd00::1 local fd00::2 hoplimit inherit encaplimit none flowlabel 0x1234",
        );
        assert_eq!((tnl.carries, tnl.encap_limit), (CarriedVersions::V4, None));
        assert_eq!((tnl.ttl, tnl.flow_label), (HeaderByte::Inherit, FlowLabel::Fixed(0x1234)));
        let checksums = |encap: &str| {
            let line =
                format!("link add t type ip6gre remote fd00::1 encap gue encap-dport 7 {encap}");
            let udp = read(&line).udp.unwrap();
            (udp.checksum4, udp.checksum6)
        };
        assert_eq!(checksums(""), (UdpChecksum::Zero, UdpChecksum::Computed));
        assert_eq!(checksums("noencap-csum6"), (UdpChecksum::Zero, UdpChecksum::Zero));
        let sit = read("link add t type sit 6rd-prefix 2001:db8::/32 6rd-relay_prefix 10.0.0.0/8");
        let six_rd = SixRd::new("2001:db8::".parse().unwrap(), 32, [10, 0, 0, 0].into(), 8);
        assert_eq!(Ok(sit.six_rd), six_rd);
        assert_eq!(read("link add t type sit mode any").carries, CarriedVersions::Both);
    }

    #[test]
    fn link_change_keeps_omitted_options() {
        let before = parsed(
            "link add t type gre remote 10.0.0.2 ttl 9 tos 10 key 5 encap gue encap-dport 7 encap-csum",
        );
        let before = before.unwrap().config;
        assert_eq!(before.tos, HeaderByte::Fixed(0x10), "TOS is in hex, as iproute2 reads it");
        let changed = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            match command(&words) {
                Ok(TunnelCommand::Link(LinkAction::Change(change))) => change.onto(&before),
                other => panic!("{line}: {other:?}"),
            }
        };
        let encap = before.udp.map(|udp| TunnelUdpEncap { framing: UdpFraming::Fou, ..udp });
        let expected = TunnelConfig { ttl: HeaderByte::Inherit, udp: encap, ..before.clone() };
        let link = changed("link change t up type gre ttl inherit encap fou").unwrap();
        assert_eq!((link.config, link.admin), (expected, Some(crate::Admin::Up)));
        let expected = TunnelConfig { udp: None, ..before.clone() };
        assert_eq!(changed("link ch dev t type gre encap none").unwrap().config, expected);
        assert_eq!(changed("link change t type gre").unwrap().config, before);
        let other = changed("link change t type sit").unwrap().config;
        assert_eq!(other, fresh(TunnelKind::Sit));
        assert!(changed("link change t type gre bogus").is_err());
    }

    #[test]
    fn parse_error_has_a_text() {
        for (line, text) in [
            ("link add type ipip", "Not enough information: \"dev\" argument is required."),
            ("link add t", "Not enough information: \"type\" argument is required"),
            (
                "link add t type vxlan",
                "argument \"vxlan\" is wrong: the type is ipip, sit, gre, ip6tnl or ip6gre",
            ),
            (
                "link add 0123456789abcdef type ipip",
                "argument \"0123456789abcdef\" is wrong: not a valid ifname",
            ),
            (
                "link add t type ipip remote fd00::1",
                "argument \"fd00::1\" is wrong: an IPv4 address",
            ),
            ("link add t type ipip encap fou", "Must specify encap-dport with encap fou or gue"),
            ("link add t type ipip encap mpls", "argument \"mpls\" is wrong: fou, gue or none"),
            ("link add t type gre external", "\"external\" is not supported by uxfrm"),
            (
                "link add t type gre ttl 256",
                "argument \"256\" is wrong: a TTL, 1 to 255, or inherit",
            ),
            ("link add t type gre mode any", "argument \"any\" is wrong: no mode of this type"),
            ("link add t type gre ignore-df", "RTNETLINK answers: ignore-df needs nopmtudisc"),
            ("link set t up", "Command \"set\" is unknown, try add, change, del or show"),
            (
                "link add t type ip6tnl fl 100000",
                "argument \"100000\" is wrong: a flow label in hex, up to fffff, or inherit",
            ),
        ] {
            assert_eq!(parsed(line).unwrap_err().to_string(), text, "{line}");
        }
        let text = parsed("link add t type ipip key 5").unwrap_err().to_string();
        assert!(text.starts_with("\"key\"? expected"), "{text}");
    }
}
