//! SAs and policies of two gateways that protect traffic between them.

use std::net::IpAddr;

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::sa::config::{ReplayConfig, SaExtraFlags, SaFlags};
use uxfrm_engine::{
    Action, Direction, Family, IfId, LifetimeLimits, Mark, Mode, Policy, PolicyFlags, PolicyIndex,
    PolicyKind, Prefix, Priority, Reqid, SaConfig, SaId, SaProtocol, SaTransform, Selector,
    Settings, Spi, Template, TemplateLevel, UdpEncap, UdpEncapKind,
};

use crate::Rng;

/// ESP algorithms: one of [`Transform::COMMON`] by its name, or the null cipher with HMAC-SHA1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspSuite(&'static str);

#[expect(missing_docs, non_upper_case_globals, reason = "read as variants; the names say it")]
impl EspSuite {
    pub const Gcm128: Self = Self("gcm128");
    pub const Gcm256: Self = Self("gcm256");
    pub const Gmac128: Self = Self("gmac128");
    pub const ChaCha20: Self = Self("chacha20poly1305");
    pub const CbcSha1: Self = Self("cbc128-sha1");
    pub const CbcSha256: Self = Self("cbc128-sha256");
    pub const CtrSha1: Self = Self("ctr128-sha1");
    pub const NullSha1: Self = Self("null-sha1");
}

impl EspSuite {
    /// All of them; the transform that does not authenticate is left out.
    pub const ALL: [Self; Transform::COMMON.len()] = {
        let mut all = [Self::NullSha1; Transform::COMMON.len()];
        let mut at = 0;
        while at < all.len() {
            let (name, transform) = &Transform::COMMON[at];
            if transform.authenticates() {
                all[at] = Self(name);
            }
            at += 1;
        }
        all
    };

    fn transform(self) -> Transform {
        if self == Self::NullSha1 {
            let hmac = Some(("hmac(sha1)", 160, None));
            return Transform::cipher_auth(None, hmac).expect("the kernel's name");
        }
        let mut common = Transform::COMMON.iter();
        common.find(|(name, _)| *name == self.0).expect("a name of the table").1
    }

    /// The transform with keys made from `seed`.
    #[must_use]
    pub fn with_keys(self, seed: u64) -> SaTransform {
        let transform = self.transform();
        let mut rng = Rng::new(seed);
        let mut key = |len| {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            KeyMaterial::from(bytes)
        };
        SaTransform {
            transform,
            encryption_key: key(transform.key_len()),
            authentication_key: key(transform.auth_key_len()),
        }
    }

    /// Whether the payload is encrypted.
    #[must_use]
    pub fn encrypts(self) -> bool {
        self.transform().encrypts()
    }
}

/// How two gateways protect traffic between them.
#[derive(Clone, Debug)]
pub struct IpsecSetup {
    /// Transport mode between the gateways, or tunnel mode between the networks behind them.
    pub mode: Mode,
    /// Family of the plain packets.
    pub inner: Family,
    /// Family of the gateways' addresses; the same as `inner` in transport mode.
    pub outer: Family,
    /// Algorithms.
    pub suite: EspSuite,
    /// Replay window; 0 disables the check.
    pub window: u32,
    /// Flags of the SAs.
    pub flags: SaFlags,
    /// Extra flags of the SAs.
    pub extra_flags: SaExtraFlags,
    /// ESP in UDP, port 4500 to 4500.
    pub encap: Option<UdpEncapKind>,
    /// TFC padding.
    pub tfc_padding: u32,
    /// Lifetime limits of the SAs.
    pub limits: LifetimeLimits,
    /// Both gateways' settings, except for addresses.
    pub settings: Settings,
}

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairDirection {
    /// From left to right.
    LeftToRight,
    /// From right to left.
    RightToLeft,
}

impl IpsecSetup {
    /// AES-GCM-128 in tunnel mode, IPv4 in IPv4.
    #[must_use]
    pub fn tunnel4() -> Self {
        Self::new(Mode::Tunnel, Family::V4, Family::V4)
    }

    /// AES-GCM-128 in transport mode between IPv4 hosts.
    #[must_use]
    pub fn transport4() -> Self {
        Self::new(Mode::Transport, Family::V4, Family::V4)
    }

    /// AES-GCM-128 with a replay window of 64.
    #[must_use]
    pub fn new(mode: Mode, inner: Family, outer: Family) -> Self {
        Self {
            mode,
            inner,
            outer,
            suite: EspSuite::Gcm128,
            window: 64,
            flags: SaFlags::empty(),
            extra_flags: SaExtraFlags::empty(),
            encap: None,
            tfc_padding: 0,
            limits: LifetimeLimits::default(),
            settings: Settings::default(),
        }
    }

    /// The gateways' outer addresses: source and destination.
    #[must_use]
    pub fn gateways(&self, way: PairDirection) -> (IpAddr, IpAddr) {
        let ends = match self.outer {
            Family::V4 => (address("192.0.2.1"), address("192.0.2.2")),
            Family::V6 => (address("2001:db8::1"), address("2001:db8::2")),
        };
        reversed(ends, way)
    }

    /// The hosts, source and destination: behind the gateways in tunnel mode, the gateways
    /// themselves in transport mode.
    #[must_use]
    pub fn hosts(&self, way: PairDirection) -> (IpAddr, IpAddr) {
        match (self.mode, self.inner) {
            (Mode::Tunnel, Family::V4) => reversed((address("10.1.0.1"), address("10.2.0.1")), way),
            (Mode::Tunnel, Family::V6) => {
                reversed((address("fd00:1::1"), address("fd00:2::1")), way)
            }
            _ => self.gateways(way),
        }
    }

    /// The networks of the policies: source and destination.
    ///
    /// # Panics
    /// Never: the lengths are those of the families.
    #[must_use]
    pub fn networks(&self, way: PairDirection) -> (Prefix, Prefix) {
        let (source, destination) = self.hosts(way);
        let len = match (self.mode, self.inner) {
            (Mode::Tunnel, Family::V4) => 16,
            (Mode::Tunnel, Family::V6) => 32,
            (_, Family::V4) => 32,
            (_, Family::V6) => 128,
        };
        let network = |address| Prefix::new(address, len).expect("length of the family");
        (network(source), network(destination))
    }

    /// The SA of one direction, the same at both ends.
    #[must_use]
    pub fn sa(&self, way: PairDirection, spi: u32) -> SaConfig {
        let (source, destination) = self.gateways(way);
        SaConfig {
            mode: self.mode,
            reqid: Reqid(1),
            selector: Some(Selector::any(self.inner)),
            replay: ReplayConfig { window: self.window, sent: 0, received: 0 },
            limits: self.limits,
            flags: self.flags,
            extra_flags: self.extra_flags,
            encap: self.encap.map(|kind| UdpEncap {
                kind,
                source_port: 4500,
                destination_port: 4500,
                original_address: self.outer.unspecified(),
            }),
            tfc_padding: self.tfc_padding,
            ..SaConfig::new(
                SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp },
                source,
                self.suite.with_keys(u64::from(spi)),
            )
        }
    }

    /// The template of one direction.
    #[must_use]
    pub fn template(&self, way: PairDirection) -> Template {
        let (source, destination) = self.gateways(way);
        Template {
            source,
            destination,
            protocol: SaProtocol::Esp,
            spi: Spi(0),
            mode: self.mode,
            reqid: Reqid(1),
            level: TemplateLevel::Required,
        }
    }

    /// A policy of one direction with that template.
    #[must_use]
    pub fn policy(&self, direction: Direction, way: PairDirection) -> Policy {
        let (source, destination) = self.networks(way);
        let selector = Selector { source, destination, ..Selector::any(self.inner) };
        Policy {
            direction,
            kind: PolicyKind::Main,
            index: PolicyIndex(0),
            selector,
            priority: Priority(100),
            action: Action::Allow,
            templates: vec![self.template(way)],
            mark: Mark::default(),
            if_id: IfId(0),
            flags: PolicyFlags::empty(),
            limits: LifetimeLimits::default(),
            offload: None,
        }
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn reversed(ends: (IpAddr, IpAddr), way: PairDirection) -> (IpAddr, IpAddr) {
    match way {
        PairDirection::LeftToRight => ends,
        PairDirection::RightToLeft => (ends.1, ends.0),
    }
}
