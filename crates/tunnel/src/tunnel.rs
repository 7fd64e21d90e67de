//! A validated [`TunnelConfig`] with its sequence numbers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use uxfrm_packet::{Version, gre, ipv4, ipv6, udp};

use crate::config::{
    CarriedVersions, GreField, InnerDf, PathMtuDiscovery, RemoteOffload, TunnelConfig, TunnelKind,
};
use crate::{Error, SixRd};

/// Bytes of a destination options header with the tunnel encapsulation limit (RFC 2473 §4.1.1).
pub(crate) const LIMIT_LEN: usize = 8;

/// A tunnel, shared by workers: sequence numbers are atomic.
#[derive(Debug)]
pub struct Tunnel {
    name: Box<str>,
    config: TunnelConfig,
    overhead: usize,
    /// Next sequence number to send.
    outgoing: AtomicU32,
    /// Next sequence number expected; [`NO_SEQUENCE`] before the first packet.
    incoming: AtomicU64,
}

/// Above all 32-bit numbers.
const NO_SEQUENCE: u64 = u64::MAX;

impl Tunnel {
    /// A tunnel named `name`, as its interface is.
    ///
    /// # Errors
    /// [`Error::EndsFamily`], [`Error::Carries`], [`Error::NotGre`], [`Error::NoEncapLimit`],
    /// [`Error::NotSit`], [`Error::IgnoreDf`], [`Error::RemoteChecksum`].
    pub fn new(name: &str, config: TunnelConfig) -> Result<Self, Error> {
        check(&config)?;
        let overhead = overhead(&config);
        Ok(Self {
            name: name.into(),
            config,
            overhead,
            outgoing: AtomicU32::new(0),
            incoming: AtomicU64::new(NO_SEQUENCE),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was asked to be.
    #[must_use]
    pub fn config(&self) -> &TunnelConfig {
        &self.config
    }

    /// Most bytes around a packet: outer header, UDP, GUE, GRE.
    #[must_use]
    pub fn overhead(&self) -> usize {
        self.overhead
    }

    /// MTU of the tunnel's interface for this path MTU (`ip_tunnel_bind_dev`,
    /// `ip6_tnl_link_config`).
    #[must_use]
    pub fn device_mtu(&self, path_mtu: usize) -> usize {
        let least = match self.config.kind.outer() {
            Version::V4 => IPV4_LEAST,
            Version::V6 => ipv6::LEAST_MTU,
        };
        path_mtu.saturating_sub(self.overhead).max(least)
    }

    /// Its sequence numbers: the next one to send, and the next one expected, if any was received.
    #[must_use]
    pub fn numbers(&self) -> (u32, Option<u32>) {
        let expected = u32::try_from(self.incoming.load(Ordering::Relaxed)).ok();
        (self.outgoing.load(Ordering::Relaxed), expected)
    }

    /// Continues with a predecessor's sequence numbers, before it carries anything.
    pub fn resume_sequence(&self, (next, expected): (u32, Option<u32>)) {
        self.outgoing.store(next, Ordering::Relaxed);
        self.incoming.store(expected.map_or(NO_SEQUENCE, u64::from), Ordering::Relaxed);
    }

    /// Sequence number of the next packet sent.
    pub(crate) fn next_sequence(&self) -> u32 {
        self.outgoing.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this sequence number is not too old (`ip_tunnel_rcv`); if so, later ones must be
    /// higher.
    pub(crate) fn accepts_sequence(&self, number: u32) -> bool {
        let advance = |expected: u64| match u32::try_from(expected) {
            Ok(expected) if number.wrapping_sub(expected) > u32::MAX / 2 => None,
            Ok(_) | Err(_) => Some(u64::from(number.wrapping_add(1))),
        };
        self.incoming.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance).is_ok()
    }
}

/// `IPV4_MIN_MTU`.
pub(crate) const IPV4_LEAST: usize = 68;

fn check(config: &TunnelConfig) -> Result<(), Error> {
    let is_version = |address: IpAddr| match config.kind.outer() {
        Version::V4 => address.is_ipv4(),
        Version::V6 => address.is_ipv6(),
    };
    if !is_version(config.local) || !is_version(config.remote) {
        return Err(Error::EndsFamily(match config.kind.outer() {
            Version::V4 => "IPv4",
            Version::V6 => "IPv6",
        }));
    }
    if config.kind == TunnelKind::Ipip && config.carries != CarriedVersions::V4 {
        return Err(Error::Carries);
    }
    let none = crate::config::GreOptions::default();
    if !config.kind.is_gre() && (config.input != none || config.output != none) {
        return Err(Error::NotGre);
    }
    if config.encap_limit.is_some() && config.kind.outer() == Version::V4 {
        return Err(Error::NoEncapLimit);
    }
    if config.six_rd != SixRd::SIX_TO_FOUR && config.kind != TunnelKind::Sit {
        return Err(Error::NotSit);
    }
    if config.inner_df == InnerDf::Ignore && config.path_mtu == PathMtuDiscovery::On {
        return Err(Error::IgnoreDf);
    }
    match config.udp {
        Some(udp)
            if udp.remote_checksum == RemoteOffload::On
                && !udp.framing.properties().has_remote_checksum =>
        {
            Err(Error::RemoteChecksum)
        }
        Some(_) | None => Ok(()),
    }
}

/// As the kernel computes it (`ip_tunnel.hlen`, `gue_encap_hlen`).
fn overhead(config: &TunnelConfig) -> usize {
    let outer = match config.kind.outer() {
        Version::V4 => ipv4::HEADER_LEN,
        Version::V6 => ipv6::HEADER_LEN + config.encap_limit.map_or(0, |_| LIMIT_LEN),
    };
    let encap = config
        .udp
        .map_or(0, |encap| udp::HEADER_LEN + encap.framing.header_len(encap.remote_checksum));
    outer + encap + if config.kind.is_gre() { gre_len(config) } else { 0 }
}

/// Length of the outgoing GRE header.
pub(crate) fn gre_len(config: &TunnelConfig) -> usize {
    let fields = [
        config.output.key.is_some(),
        config.output.sequence == GreField::With,
        config.output.checksum == GreField::With,
    ];
    gre::HEADER_LEN + 4 * fields.into_iter().filter(|there| *there).count()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::config::TunnelUdpEncap;
    use crate::config::UdpFraming;

    fn ends(kind: TunnelKind) -> TunnelConfig {
        match kind.outer() {
            Version::V4 => {
                TunnelConfig::new(kind, "192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap())
            }
            Version::V6 => TunnelConfig::new(
                kind,
                "2001:db8::1".parse().unwrap(),
                "2001:db8::2".parse().unwrap(),
            ),
        }
    }

    fn in_udp(kind: TunnelKind, framing: UdpFraming) -> TunnelConfig {
        TunnelConfig {
            udp: Some(TunnelUdpEncap::new(framing, NonZeroU16::new(5555).unwrap())),
            ..ends(kind)
        }
    }

    #[test]
    fn mtus_are_the_kernels() {
        // MTUs of Linux 6.1 over Ethernet.
        for (config, mtu) in [
            (ends(TunnelKind::Ipip), 1480),
            (ends(TunnelKind::Sit), 1480),
            (ends(TunnelKind::Gre), 1476),
            (ends(TunnelKind::Ip6tnl), 1452),
            (ends(TunnelKind::Ip6gre), 1448),
            (in_udp(TunnelKind::Ipip, UdpFraming::Fou), 1472),
            (in_udp(TunnelKind::Gre, UdpFraming::Gue), 1464),
        ] {
            let name = config.kind.name();
            assert_eq!(Tunnel::new("t", config).unwrap().device_mtu(1500), mtu, "{name}");
        }
    }

    #[test]
    fn invalid_configuration_is_refused() {
        let key = crate::config::GreOptions { key: Some(1), ..Default::default() };
        let mut remote = in_udp(TunnelKind::Ipip, UdpFraming::Fou);
        remote.udp =
            remote.udp.map(|udp| TunnelUdpEncap { remote_checksum: RemoteOffload::On, ..udp });
        let ends_of = |kind, of| TunnelConfig { local: ends(of).local, ..ends(kind) };
        let six_rd = SixRd::new("2001:db8::".parse().unwrap(), 32, "0.0.0.0".parse().unwrap(), 0);
        for (config, error) in [
            (
                TunnelConfig { carries: CarriedVersions::Both, ..ends(TunnelKind::Ipip) },
                Error::Carries,
            ),
            (TunnelConfig { input: key, ..ends(TunnelKind::Ipip) }, Error::NotGre),
            (TunnelConfig { output: key, ..ends(TunnelKind::Ip6tnl) }, Error::NotGre),
            (ends_of(TunnelKind::Sit, TunnelKind::Ip6tnl), Error::EndsFamily("IPv4")),
            (ends_of(TunnelKind::Ip6gre, TunnelKind::Gre), Error::EndsFamily("IPv6")),
            (TunnelConfig { encap_limit: Some(4), ..ends(TunnelKind::Gre) }, Error::NoEncapLimit),
            (TunnelConfig { six_rd: six_rd.unwrap(), ..ends(TunnelKind::Ipip) }, Error::NotSit),
            (TunnelConfig { inner_df: InnerDf::Ignore, ..ends(TunnelKind::Ipip) }, Error::IgnoreDf),
            (remote, Error::RemoteChecksum),
        ] {
            assert_eq!(Tunnel::new("t", config).unwrap_err(), error);
        }
    }

    #[test]
    fn numbers_go_up_and_around() {
        let tunnel = Tunnel::new("t", ends(TunnelKind::Gre)).unwrap();
        let taken: Vec<bool> = [5, 5, 4, 7, 6, 8, 0x8000_0008, 0x8000_0009]
            .into_iter()
            .map(|number| tunnel.accepts_sequence(number))
            .collect();
        assert_eq!(taken, [true, false, false, true, false, true, true, true]);
        assert!(tunnel.accepts_sequence(u32::MAX) && tunnel.accepts_sequence(0));
        assert_eq!((tunnel.next_sequence(), tunnel.next_sequence()), (0, 1));
        let other = Tunnel::new("g", tunnel.config().clone()).unwrap();
        other.resume_sequence(tunnel.numbers());
        assert_eq!(
            (other.next_sequence(), other.accepts_sequence(0), other.accepts_sequence(1)),
            (2, false, true)
        );
    }
}
