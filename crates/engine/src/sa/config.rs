//! Configuration of an SA, checked: the fields of `struct xfrm_usersa_info` and its attributes.

use std::net::IpAddr;
use std::num::NonZeroU32;

use bitflags::bitflags;
use uxfrm_crypto::{KeyMaterial, Transform};

use crate::ids::{Direction, Mode, Offload, SaProtocol};
use crate::{
    Cpu, Family, IfId, KeepaliveInterval, LifetimeLimits, Mark, Reqid, Sa, Selector, Spi, UdpEncap,
};

/// Identifies an SA for inbound packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId {
    /// Destination of the outer header.
    pub destination: IpAddr,
    /// Security parameter index.
    pub spi: Spi,
    /// The protocol.
    pub protocol: SaProtocol,
}

/// Algorithm and keys of an SA. No `Clone`: key bytes stay in one place.
#[derive(Debug, PartialEq, Eq)]
pub struct SaTransform {
    /// The algorithm.
    pub transform: Transform,
    /// The cipher's key followed by its salt or nonce; empty for none.
    pub encryption_key: KeyMaterial,
    /// The authentication key; empty for AEADs and for none.
    pub authentication_key: KeyMaterial,
}

impl SaTransform {
    /// AES-GCM with a tag of 16 bytes (RFC 4106). The key's length chooses the AES key size: 20, 28
    /// or 36 bytes, of which the last 4 are the salt.
    ///
    /// # Errors
    /// [`uxfrm_crypto::Error::KeyLength`] for a key of another length.
    ///
    /// ```
    /// use uxfrm_crypto::KeyMaterial;
    /// use uxfrm_engine::SaTransform;
    ///
    /// let aes_128 = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?;
    /// assert_eq!(aes_128.transform.name(), "rfc4106(gcm(aes))");
    /// assert!(SaTransform::aes_gcm(KeyMaterial::new(&[7; 16])).is_err(), "no salt");
    /// # Ok::<(), uxfrm_crypto::Error>(())
    /// ```
    pub fn aes_gcm(key: KeyMaterial) -> Result<Self, uxfrm_crypto::Error> {
        Self::aead("rfc4106(gcm(aes))", key, 128)
    }

    /// An AEAD by the kernel's name, with its salt or nonce at the end of the key; as
    /// `ip xfrm state add … aead NAME KEY ICV-BITS`.
    ///
    /// # Errors
    /// As [`Transform::aead`].
    ///
    /// ```
    /// use uxfrm_crypto::KeyMaterial;
    /// use uxfrm_engine::SaTransform;
    ///
    /// let key = KeyMaterial::new(&[7; 36]);
    /// let chacha = SaTransform::aead("rfc7539esp(chacha20,poly1305)", key, 128)?;
    /// assert_eq!(chacha.transform.icv_len(), 16);
    /// # Ok::<(), uxfrm_crypto::Error>(())
    /// ```
    pub fn aead(name: &str, key: KeyMaterial, icv_bits: u32) -> Result<Self, uxfrm_crypto::Error> {
        let transform = Transform::aead(name, key.len() * 8, icv_bits)?;
        Ok(Self { transform, encryption_key: key, authentication_key: KeyMaterial::empty() })
    }
}

bitflags! {
    /// `flag …` of a state, with the kernel's values (`XFRM_STATE_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SaFlags: u8 {
        /// `noecn`: ECN is neither copied out nor in.
        const NOECN = 1;
        /// `decap-dscp`: the outer DSCP is copied to the inner header on the way in.
        const DECAP_DSCP = 2;
        /// `nopmtudisc`: the outer header's DF is never set.
        const NOPMTUDISC = 4;
        /// `wildrecv`: the destination address does not count on the way in.
        const WILDRECV = 8;
        /// `icmp`: ICMP errors may pass although the selector does not match them.
        const ICMP = 16;
        /// `af-unspec`: the selector's family may differ from the state's.
        const AF_UNSPEC = 32;
        /// `align4`: IPv6 AH padding; kept for listing.
        const ALIGN4 = 64;
        /// `esn`: extended sequence numbers (RFC 4303 §2.2.1).
        const ESN = 128;
    }
}

bitflags! {
    /// `extra-flag …` of a state, with the kernel's values (`XFRM_SA_XFLAG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SaExtraFlags: u32 {
        /// `dont-encap-dscp`: the outer DSCP is 0 instead of the inner one's copy.
        const DONT_ENCAP_DSCP = 1;
        /// `oseq-may-wrap`: a 32-bit sequence number may begin again at 0.
        const OSEQ_MAY_WRAP = 2;
    }
}

/// Replay protection and where the counters start (`XFRMA_REPLAY_VAL`, `XFRMA_REPLAY_ESN_VAL`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayConfig {
    /// Packets that may come late; 0 switches the check off, at most 4096.
    pub window: u32,
    /// The last sequence number sent, all 64 bits with ESN.
    pub sent: u64,
    /// The highest sequence number received, all 64 bits with ESN.
    pub received: u64,
}

/// Configuration of an SA. Comparison takes the same time wherever keys differ.
#[derive(Debug, PartialEq)]
pub struct SaConfig {
    /// Destination, SPI and protocol.
    pub id: SaId,
    /// Source of the outer header; unspecified takes the packet's own.
    pub source: IpAddr,
    /// Mode.
    pub mode: Mode,
    /// Request id that ties it to templates.
    pub reqid: Reqid,
    /// `seq`: the acquire that this state answers; 0 for none.
    pub acquire_seq: u32,
    /// Algorithm and keys.
    pub transform: SaTransform,
    /// The traffic it may carry; `None` for any, of either family.
    pub selector: Option<Selector>,
    /// Look-ups find it for packets with this mark.
    pub mark: Mark,
    /// `output-mark`
    /// `set-mark`: set over a packet's mark once it is processed.
    pub output_mark: Mark,
    /// XFRM interface id.
    pub if_id: IfId,
    /// Replay protection and counters.
    pub replay: ReplayConfig,
    /// Limits.
    pub limits: LifetimeLimits,
    /// Flags.
    pub flags: SaFlags,
    /// More flags.
    pub extra_flags: SaExtraFlags,
    /// ESP in UDP.
    pub encap: Option<UdpEncap>,
    /// Interval of NAT keepalives; outbound only, with an `encap` that allows them.
    pub nat_keepalive: Option<KeepaliveInterval>,
    /// Minimum seconds between mapping events (`XFRMA_MTIMER_THRESH`), unless the peer's port
    /// changes once more; inbound, with encapsulation only.
    pub mapping_age: Option<NonZeroU32>,
    /// TFC padding to this length, tunnel mode only; 0 for none.
    pub tfc_padding: u32,
    /// `dir in|out`; `None` for both.
    pub direction: Option<Direction>,
    /// `pcpu-num`.
    pub pcpu: Option<Cpu>,
    /// Care-of address, kept for listing.
    pub care_of: Option<IpAddr>,
    /// Requested offload.
    pub offload: Option<Offload>,
}

impl SaConfig {
    /// An SA in transport mode with defaults: no reqid, selector, mark, limit or flag, and no
    /// replay protection.
    #[must_use]
    pub fn new(id: SaId, source: IpAddr, transform: SaTransform) -> Self {
        Self {
            id,
            source,
            mode: Mode::Transport,
            reqid: Reqid(0),
            acquire_seq: 0,
            transform,
            selector: None,
            mark: Mark::default(),
            output_mark: Mark::default(),
            if_id: IfId(0),
            replay: ReplayConfig::default(),
            limits: LifetimeLimits::default(),
            flags: SaFlags::empty(),
            extra_flags: SaExtraFlags::empty(),
            encap: None,
            nat_keepalive: None,
            mapping_age: None,
            tfc_padding: 0,
            direction: None,
            pcpu: None,
            care_of: None,
            offload: None,
        }
    }
}

impl SaConfig {
    /// An ESP state in tunnel mode from one gateway to another: reqid 0, a replay window of
    /// [`SaConfig::DEFAULT_REPLAY_WINDOW`] packets, both directions, no limits.
    ///
    /// ```
    /// use uxfrm_crypto::{Backend, KeyMaterial};
    /// use uxfrm_engine::{Database, Moment, Reqid, SaConfig, SaTransform, Spi};
    ///
    /// let (here, there) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?;
    /// let state = SaConfig::esp_tunnel(here, there, Spi(0x1001), keys);
    /// let state = state.with_reqid(Reqid(7)).with_esn();
    ///
    /// let mut database = Database::new(Backend::Auto, 1);
    /// let added = database.apply(Moment(0), |change| change.add_sa(state))?;
    /// assert!(added.extended() && added.config().window == SaConfig::DEFAULT_REPLAY_WINDOW);
    /// # Ok::<(), uxfrm_engine::Error>(())
    /// ```
    #[must_use]
    pub fn esp_tunnel(
        source: IpAddr,
        destination: IpAddr,
        spi: Spi,
        transform: SaTransform,
    ) -> Self {
        let id = SaId { destination, spi, protocol: SaProtocol::Esp };
        Self { mode: Mode::Tunnel, ..Self::new(id, source, transform) }
            .with_replay_window(Self::DEFAULT_REPLAY_WINDOW)
    }

    /// An ESP state in transport mode between two hosts; otherwise as [`SaConfig::esp_tunnel`].
    #[must_use]
    pub fn esp_transport(
        source: IpAddr,
        destination: IpAddr,
        spi: Spi,
        transform: SaTransform,
    ) -> Self {
        Self { mode: Mode::Transport, ..Self::esp_tunnel(source, destination, spi, transform) }
    }

    /// Packets in the replay window where nothing else is said (RFC 4303 §3.4.3).
    pub const DEFAULT_REPLAY_WINDOW: u32 = 64;

    /// This state for templates with another reqid.
    #[must_use]
    pub fn with_reqid(self, reqid: Reqid) -> Self {
        Self { reqid, ..self }
    }

    /// This state with a replay window of so many packets, at most 4096; 0 switches the check off.
    #[must_use]
    pub fn with_replay_window(self, packets: u32) -> Self {
        Self { replay: ReplayConfig { window: packets, ..self.replay }, ..self }
    }

    /// This state with extended sequence numbers (RFC 4303 §2.2.1).
    #[must_use]
    pub fn with_esn(self) -> Self {
        Self { flags: self.flags | SaFlags::ESN, ..self }
    }

    /// This state for one direction only. One for [`Direction::Out`] has no replay window.
    ///
    /// ```
    /// use uxfrm_crypto::KeyMaterial;
    /// use uxfrm_engine::{Direction, SaConfig, SaTransform, Spi};
    ///
    /// let (here, there) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?;
    /// let state = SaConfig::esp_transport(here, there, Spi(0x1001), keys);
    /// assert_eq!(state.with_direction(Direction::Out).replay.window, 0);
    /// # Ok::<(), uxfrm_crypto::Error>(())
    /// ```
    #[must_use]
    pub fn with_direction(self, direction: Direction) -> Self {
        let window = if direction == Direction::Out { 0 } else { self.replay.window };
        Self { direction: Some(direction), ..self.with_replay_window(window) }
    }
}

/// What a migration can change: `XFRM_MSG_MIGRATE` addresses and encapsulation,
/// `XFRM_MSG_MIGRATE_STATE` all of this.
#[derive(Clone, Debug, PartialEq)]
pub struct SaMove {
    /// Source of the outer header.
    pub source: IpAddr,
    /// Destination of the outer header.
    pub destination: IpAddr,
    /// Request id that ties it to templates.
    pub reqid: Reqid,
    /// The traffic it may carry; `None` for any, of either family.
    pub selector: Option<Selector>,
    /// Look-ups find it for packets with this mark.
    pub mark: Mark,
    /// Set over a packet's mark once it is processed.
    pub output_mark: Mark,
    /// ESP in UDP; settings that need it go with it.
    pub encap: Option<UdpEncap>,
    /// [`SaConfig::nat_keepalive`]
    pub nat_keepalive: Option<KeepaliveInterval>,
    /// [`SaConfig::mapping_age`]
    pub mapping_age: Option<NonZeroU32>,
    /// Requested offload.
    pub offload: Option<Offload>,
}

impl SaMove {
    /// A migration that changes nothing.
    #[must_use]
    pub fn of(sa: &Sa) -> Self {
        let config = sa.config();
        Self {
            source: sa.source(),
            destination: sa.id().destination,
            reqid: sa.reqid(),
            selector: config.selector,
            mark: config.mark,
            output_mark: config.output_mark,
            encap: config.encap,
            nat_keepalive: config.nat_keepalive,
            mapping_age: config.mapping_age,
            offload: config.offload.clone(),
        }
    }
}

impl SaConfig {
    /// The family of the outer header.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.id.destination)
    }

    /// The last number that it may send: without ESN the number on the wire must not restart,
    /// unless `oseq-may-wrap` allows it; the IV counter never does.
    #[must_use]
    pub fn last_number(&self) -> u64 {
        last_number(self.flags, self.extra_flags)
    }

    /// This configuration after a migration.
    pub(crate) fn moved(self, to: SaMove) -> Self {
        Self {
            id: SaId { destination: to.destination, ..self.id },
            source: to.source,
            reqid: to.reqid,
            selector: to.selector,
            mark: to.mark,
            output_mark: to.output_mark,
            encap: to.encap,
            nat_keepalive: to.nat_keepalive.filter(|_| to.encap.is_some()),
            mapping_age: to.mapping_age.filter(|_| to.encap.is_some()),
            offload: to.offload,
            ..self
        }
    }
}

pub(super) const fn last_number(flags: SaFlags, extra: SaExtraFlags) -> u64 {
    let wraps = extra.contains(SaExtraFlags::OSEQ_MAY_WRAP);
    if wraps || flags.contains(SaFlags::ESN) { u64::MAX } else { u32::MAX as u64 }
}
