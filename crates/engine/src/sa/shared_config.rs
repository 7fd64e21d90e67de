//! Shared configuration: most SAs of a gateway differ only in addresses, SPI, reqid and keys, so
//! everything else is stored once.

use std::{
    hash::BuildHasher,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    sync::Arc,
};

use uxfrm_crypto::{Backend, Transform};

use super::{address::PackedAddress, replay_store::ReplayKeeper};
use crate::{
    Cpu, Direction, Family, IfId, KeepaliveInterval, LifetimeLimits, Mark, Mode, Offload, SaConfig,
    SaExtraFlags, SaFlags, SaId, SaProtocol, Selector, Spi, UdpEncap,
};

/// The part of a configuration that SAs can share. The fields are those of [`SaConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedSaConfig {
    /// Look-ups find it for packets with this mark.
    pub mark: Mark,
    /// Mode.
    pub mode: Mode,
    /// `dir in|out`; `None` for both.
    pub direction: Option<Direction>,
    /// Flags.
    pub flags: SaFlags,
    /// More flags.
    pub extra_flags: SaExtraFlags,
    /// XFRM interface id.
    pub if_id: IfId,
    /// `pcpu-num`.
    pub pcpu: Option<Cpu>,
    /// The traffic it may carry; `None` for any, of either family.
    pub selector: Option<Selector>,
    /// ESP in UDP.
    pub encap: Option<UdpEncap>,
    /// Interval of NAT keepalives.
    pub nat_keepalive: Option<KeepaliveInterval>,
    /// Minimum seconds between mapping events.
    pub mapping_age: Option<NonZeroU32>,
    /// Limits.
    pub limits: LifetimeLimits,
    /// The algorithm.
    pub transform: Transform,
    /// Crypto backend.
    pub backend: Backend,
    /// Replay window in packets; 0 switches the check off.
    pub window: u32,
    /// TFC padding to this length; 0 for none.
    pub tfc_padding: u32,
    /// `output-mark`
    /// `set-mark`: set over a packet's mark once it is processed.
    pub output_mark: Mark,
    /// Care-of address, kept for listing.
    pub care_of: Option<IpAddr>,
    /// Requested offload.
    pub offload: Option<Offload>,
    /// Keeps received numbers across restarts.
    pub keeper: ReplayKeeper,
}

/// Recent configurations, so that equal ones are shared. Of fixed size: an evicted one is just not
/// shared with later ones.
#[derive(Debug)]
pub(crate) struct ConfigInterner {
    known: Box<[Option<Arc<SharedSaConfig>>]>,
    hasher: foldhash::fast::RandomState,
}

/// Both addresses, SPI and protocol, in 16 bytes for IPv4.
#[derive(Debug)]
pub(super) enum SaNames {
    V4 { protocol: SaProtocol, spi: Spi, source: Ipv4Addr, destination: Ipv4Addr },
    V6 { protocol: SaProtocol, spi: Spi, ends: Box<SaEndpoints> },
}

#[derive(Debug)]
pub(super) struct SaEndpoints {
    source: IpAddr,
    destination: IpAddr,
}

const KNOWN: usize = 1024;

impl SharedSaConfig {
    /// The shared part of a configuration with this crypto backend.
    #[must_use]
    pub fn of(config: &SaConfig, backend: Backend) -> Self {
        Self {
            mark: config.mark,
            mode: config.mode,
            direction: config.direction,
            flags: config.flags,
            extra_flags: config.extra_flags,
            if_id: config.if_id,
            pcpu: config.pcpu,
            selector: config.selector,
            encap: config.encap,
            nat_keepalive: config.nat_keepalive,
            mapping_age: config.mapping_age,
            limits: config.limits,
            transform: config.transform.transform,
            backend,
            window: config.replay.window,
            tfc_padding: config.tfc_padding,
            output_mark: config.output_mark,
            care_of: config.care_of,
            offload: config.offload.clone(),
            keeper: ReplayKeeper::default(),
        }
    }

    /// Like [`SaConfig::last_number`].
    #[must_use]
    pub fn last_number(&self) -> u64 {
        super::config::last_number(self.flags, self.extra_flags)
    }

    /// This configuration with the fields of `update` that `XFRM_MSG_UPDSA` changes.
    pub(crate) fn updated(&self, update: &SaConfig) -> Self {
        let marks = update.output_mark != Mark::default();
        Self {
            limits: update.limits,
            encap: update.encap,
            care_of: self.care_of.map(|old| update.care_of.unwrap_or(old)),
            output_mark: if marks { update.output_mark } else { self.output_mark },
            if_id: if update.if_id == IfId(0) { self.if_id } else { update.if_id },
            ..self.clone()
        }
    }
}

impl Default for ConfigInterner {
    fn default() -> Self {
        let hasher = foldhash::fast::RandomState::default();
        Self { known: vec![None; KNOWN].into(), hasher }
    }
}

impl ConfigInterner {
    /// Returns a shared copy of a configuration.
    pub(crate) fn share(&mut self, words: SharedSaConfig) -> Arc<SharedSaConfig> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let place = self.hasher.hash_one(&words) as usize % self.known.len();
        match &mut self.known[place] {
            Some(known) if **known == words => Arc::clone(known),
            other => Arc::clone(other.insert(Arc::new(words))),
        }
    }
}

impl SaNames {
    pub(super) fn new(SaId { destination, spi, protocol }: SaId, source: IpAddr) -> Self {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Self::V4 { protocol, spi, source, destination }
            }
            _ => Self::V6 { protocol, spi, ends: Box::new(SaEndpoints { source, destination }) },
        }
    }

    #[inline]
    pub(super) fn id(&self) -> SaId {
        match *self {
            Self::V4 { protocol, spi, destination, .. } => {
                SaId { destination: destination.into(), spi, protocol }
            }
            Self::V6 { protocol, spi, ref ends } => {
                SaId { destination: ends.destination, spi, protocol }
            }
        }
    }

    #[inline]
    pub(super) fn leads_to(&self, PackedAddress { family, bits }: PackedAddress) -> bool {
        match self {
            Self::V4 { destination, .. } => {
                family == Family::V4 && u128::from(destination.to_bits()) == bits
            }
            Self::V6 { ends, .. } => {
                PackedAddress::from(ends.destination) == PackedAddress { family, bits }
            }
        }
    }

    #[inline]
    pub(super) fn source(&self) -> IpAddr {
        match self {
            Self::V4 { source, .. } => (*source).into(),
            Self::V6 { ends, .. } => ends.source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sa::sample;

    fn words(window: u32) -> SharedSaConfig {
        SharedSaConfig { window, ..SharedSaConfig::of(&sample("10.0.0.2", 1), Backend::Portable) }
    }

    #[test]
    fn equal_configs_are_shared() {
        let mut interner = ConfigInterner::default();
        let first = interner.share(words(1));
        assert!(Arc::ptr_eq(&first, &interner.share(words(1))));
        // Far more than it keeps.
        for window in 0..4096 {
            assert_eq!(interner.share(words(window)).window, window);
        }
        assert_eq!(interner.share(words(1)), first);
        let kept = interner.known.iter().flatten().count();
        assert!((KNOWN / 2..=KNOWN).contains(&kept), "{kept}");
    }

    #[test]
    fn sa_name_round_trips() {
        let ends = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2"), ("0.0.0.0", "fd00::2")];
        for (source, destination) in ends {
            let id = sample(destination, 7).id;
            let name = SaNames::new(id, source.parse().unwrap());
            assert_eq!((name.id(), name.source()), (id, source.parse().unwrap()));
            let leads_to = |address: &str| name.leads_to(address.parse::<IpAddr>().unwrap().into());
            assert!(leads_to(destination) && !leads_to(source) && !leads_to("::10.0.0.2"));
        }
        assert_eq!(size_of::<SaNames>(), 16);
    }
}
