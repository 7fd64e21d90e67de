//! Security associations: what they say ([`config`]), what changes with every packet, and how they are found ([`sad`]).

pub mod aevent;
pub mod config;
pub mod iv;
pub mod keepalive;
pub mod replay;
pub mod sad;
pub mod sequence;
pub mod usage;

pub(crate) mod check;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use uxfrm_crypto::SaKey;

use crate::{Direction, DropReason, Moment, SaConfig, SaId};
use aevent::Aevents;
use config::SaFlags;
use iv::IvSpace;
use replay::{Numbers, ReplayWindow};
use sequence::Sequence;
use usage::{Charge, Lifecycle, Usage};

/// A state. What it says never changes: an update (`XFRM_MSG_UPDSA`) makes a new `Sa` that shares keys, numbers and counts with
/// the old one, so that workers which still hold the old one neither repeat a number nor lose a count.
#[derive(Debug)]
pub struct Sa {
    live: Arc<Live>,
    config: Box<SaConfig>,
    /// Among all of a database, the one put in later has the higher; set before others see it.
    turn: AtomicU64,
}

/// What all generations of one state share. The fields that every batch touches come first.
#[derive(Debug)]
#[repr(C, align(64))]
struct Live {
    sequence: Sequence,
    ivs: IvSpace,
    usage: Usage,
    replay: ReplayWindow,
    key: SaKey,
    added: AtomicU64,
    aevents: Aevents,
}

/// Counters of a state as another knows them, who has carried its packets; what is `None` stays as it is (`XFRM_MSG_NEWAE`).
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The last number sent.
    pub sent: Option<u64>,
    /// The highest number received.
    pub received: Option<u64>,
    /// Numbers in the window that were received.
    pub window: Vec<u64>,
    /// Bytes, packets, when it was added and when it was used first.
    pub usage: Option<(u64, u64, Moment, Option<Moment>)>,
    /// From how many packets on others are told.
    pub packets_threshold: Option<u32>,
    /// After how many tenths of a second others are told.
    pub time_threshold: Option<u32>,
}

impl Sa {
    /// A state that starts where `config.replay` says, added `now`.
    #[must_use]
    pub fn new(config: SaConfig, key: SaKey, now: Moment) -> Self {
        let live = Live {
            ivs: IvSpace::of(&config),
            sequence: Sequence::new(config.replay.sent, config.last_number()),
            usage: Usage::new(Lifecycle::Valid),
            replay: ReplayWindow::new(
                config.replay.window,
                numbers(&config),
                config.replay.received,
            ),
            key,
            added: now.0.into(),
            aevents: Aevents::new(config.replay.sent, config.replay.received, now),
        };
        Self { live: Arc::new(live), config: Box::new(config), turn: AtomicU64::new(0) }
    }

    /// A state that goes on where `old` ends, with other words and the same key: `old` sends nothing more.
    pub(crate) fn continuing(old: &Self, mut config: SaConfig, key: SaKey) -> Self {
        config.replay.sent = old.live.sequence.end();
        let new = Self::new(config, key, old.added());
        let (replay, usage) = (old.replay(), old.usage());
        let highest = replay.highest();
        let lowest = highest.saturating_sub(u64::from(replay.window()));
        new.replay().learn(highest, (lowest..=highest).filter(|number| replay.has(*number)));
        new.usage().set(usage.bytes(), usage.packets(), usage.first_used());
        new.usage().advance(usage.lifecycle());
        new.aevents().set_thresholds(old.aevents().thresholds());
        new
    }

    /// What it says.
    #[must_use]
    #[inline]
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// Destination, SPI and protocol.
    #[must_use]
    #[inline]
    pub fn id(&self) -> SaId {
        self.config.id
    }

    /// Its keys.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &SaKey {
        &self.live.key
    }

    /// Outbound numbers.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> &Sequence {
        &self.live.sequence
    }

    /// Where the IVs of its numbers lie.
    #[must_use]
    #[inline]
    pub fn ivs(&self) -> IvSpace {
        self.live.ivs
    }

    /// Inbound numbers.
    #[must_use]
    #[inline]
    pub fn replay(&self) -> &ReplayWindow {
        &self.live.replay
    }

    /// Counts and failures.
    #[must_use]
    #[inline]
    pub fn usage(&self) -> &Usage {
        &self.live.usage
    }

    /// How far it is in its life.
    #[must_use]
    #[inline]
    pub fn lifecycle(&self) -> Lifecycle {
        self.live.usage.lifecycle()
    }

    /// When it was added.
    #[must_use]
    pub fn added(&self) -> Moment {
        Moment(self.live.added.load(Ordering::Relaxed))
    }

    /// When others are told of its counters.
    #[must_use]
    pub fn aevents(&self) -> &Aevents {
        &self.live.aevents
    }

    /// Whether its numbers have 64 bits.
    #[must_use]
    #[inline]
    pub fn extended(&self) -> bool {
        self.config.flags.contains(SaFlags::ESN)
    }

    /// Counts packets against its limits: [`Usage::charge`]. Outbound before encryption, with the length before encapsulation;
    /// inbound after authentication, with the length after decapsulation.
    #[inline]
    pub fn charge(&self, packets: u32, bytes: u64, now: Moment) -> Charge {
        self.live.usage.charge(&self.config.limits, packets, bytes, now)
    }

    /// Whether an inbound packet may be given to it: the checks of `net/xfrm/xfrm_input.c` that come before replay.
    ///
    /// # Errors
    /// [`DropReason::InStateDirection`], [`DropReason::InStateExpired`], [`DropReason::InNoState`] while it is larval.
    #[inline]
    pub fn receives(&self) -> Result<(), DropReason> {
        if self.config.direction == Some(Direction::Out) {
            return Err(DropReason::InStateDirection);
        }
        match self.lifecycle() {
            Lifecycle::Valid | Lifecycle::Dying => Ok(()),
            Lifecycle::Expired => Err(DropReason::InStateExpired),
            Lifecycle::Acquire | Lifecycle::Error => Err(DropReason::InNoState),
        }
    }

    /// Whether two are generations of one state.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.live, &other.live)
    }

    /// When it was put in, counted in states.
    #[inline]
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// For the database that takes it in.
    pub(crate) fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Takes over counters. Numbers go on only: none is sent or accepted that was before.
    pub(crate) fn set_counters(&self, counters: Counters, now: Moment) {
        let Live { sequence, usage, replay, aevents, added, .. } = &*self.live;
        if let Some(sent) = counters.sent {
            sequence.skip_to(sent);
        }
        if let Some(received) = counters.received {
            replay.learn(received, counters.window);
        }
        if let Some((bytes, packets, since, first_used)) = counters.usage {
            usage.set(bytes, packets, first_used);
            added.store(since.0, Ordering::Relaxed);
        }
        let mut thresholds = aevents.thresholds();
        thresholds.packets = counters.packets_threshold.unwrap_or(thresholds.packets);
        thresholds.time = counters.time_threshold.unwrap_or(thresholds.time);
        aevents.set_thresholds(thresholds);
        aevents.tell(sequence.last(), replay.highest(), now);
    }

    /// The next generation: this state with other words.
    pub(crate) fn renewed(&self, config: SaConfig) -> Self {
        Self { live: Arc::clone(&self.live), config: Box::new(config), turn: self.turn().into() }
    }
}

fn numbers(config: &SaConfig) -> Numbers {
    if config.flags.contains(SaFlags::ESN) { Numbers::Extended } else { Numbers::Short }
}

/// An ESP tunnel with AES-GCM from 10.0.0.1 to `destination`, for tests.
#[cfg(test)]
pub(crate) fn sample(destination: &str, spi: u32) -> SaConfig {
    use uxfrm_crypto::{KeyMaterial, Transform};

    use crate::{
        Family, IfId, Limits, Mark, Mode, Reqid, SaProtocol, SaTransform, Spi,
        sa::config::{ReplayConfig, SaExtraFlags},
    };

    let destination: std::net::IpAddr = destination.parse().unwrap();
    let source = match Family::of(destination) {
        Family::V4 => "10.0.0.1",
        Family::V6 => "fd00::1",
    };
    SaConfig {
        id: SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp },
        source: source.parse().unwrap(),
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        transform: SaTransform {
            transform: Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap(),
            encryption_key: KeyMaterial::new(&[7; 20]),
            authentication_key: KeyMaterial::empty(),
        },
        selector: None,
        mark: Mark::default(),
        output_mark: Mark::default(),
        if_id: IfId(0),
        replay: ReplayConfig { window: 32, sent: 0, received: 0 },
        limits: Limits::default(),
        flags: SaFlags::empty(),
        extra_flags: SaExtraFlags::empty(),
        encap: None,
        nat_keepalive: None,
        mapping_age: None,
        tfc_padding: 0,
        direction: None,
        pcpu: None,
        care_of: None,
        acquire_seq: 0,
        offload: None,
    }
}
