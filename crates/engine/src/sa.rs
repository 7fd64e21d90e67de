//! Security associations: configuration ([`config`]) and the state that changes with every packet.

pub mod aevent;
pub mod config;
pub(crate) mod deferred_counters;
pub mod iv;
pub mod keepalive;
mod lazy_keys;
mod prefetch;
pub mod progress;
pub mod replay;
pub mod replay_store;
pub(crate) mod request;
pub mod sequence;
pub mod shared_config;
pub mod udp_encap;
pub mod usage;
pub(crate) mod validate;

pub(crate) mod address;

use std::{
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use once_cell::race::OnceBox;
use uxfrm_crypto::{SaKey, Transform};

use crate::{
    Attachment, DeviceId, Direction, DropReason, Family, LifetimeLimits, Moment, OffloadKind,
    ReplayConfig, Reqid, SaConfig, SaId, SaTransform, SoftHardLimit,
};
use address::PackedAddress;
use aevent::{AeventCause, AeventState, AeventThresholds};
use config::SaFlags;
use iv::IvPrefixes;
use lazy_keys::LazyKeys;
use replay::{FIRST_RESERVED, ReplayWindow, SeqWidth};
use sequence::Sequence;
use shared_config::{SaNames, SharedSaConfig};
#[cfg(test)]
pub(crate) use test_sa::sample;
use usage::{ChargeOutcome, LateCount, Lifecycle, SaUsage};

/// A security association (a state in the kernel's words). Its configuration never changes: an
/// update (`XFRM_MSG_UPDSA`) makes a new `Sa` that shares keys, sequence numbers and counters with
/// the old one, so that workers which still hold the old one neither repeat a number nor lose a
/// count.
///
/// Of a million SAs few carry packets at a time, so an unused one is small: counters, window and
/// expanded keys are allocated for its first packet.
#[derive(Debug)]
#[repr(C)]
pub struct Sa {
    // Fields that look-ups read come first: with the reference counts before them they fill one
    // cache line.
    name: SaNames,
    shared: Arc<SharedSaConfig>,
    active: OnceBox<Active>,
    reqid: Reqid,
    attachment: Option<Attachment>,
    // Next to `active`, which outbound packets need too.
    sequence: Sequence,
    /// Insertion sequence number within its database; set before others see the SA.
    turn: AtomicU64,
    keys: LazyKeys,
    added: AtomicU64,
    acquire_seq: u32,
    /// For the first 2^32 sequence numbers; 0 if none was drawn.
    iv_prefix: AtomicU32,
}

/// Allocated for the first packet.
#[derive(Debug)]
enum Active {
    Live(Live),
    /// An updated generation: numbers, counters and keys are those of the first one.
    Of(Arc<Sa>),
}

/// The fields that every batch uses come first.
#[derive(Debug)]
#[repr(C, align(64))]
struct Live {
    usage: SaUsage,
    key: OnceLock<Arc<SaKey>>,
    // The second cache line begins here.
    replay: ReplayWindow,
    /// For sequence numbers above the first 2^32.
    ivs: IvPrefixes,
    aevents: AeventState,
    /// The SA that continues in its place and takes late counts.
    heir: OnceBox<Heir>,
}

/// The SA that continues in another's place, and where that one ended.
#[derive(Debug)]
struct Heir {
    sa: Arc<Sa>,
    /// The last number that it sent.
    sent: u64,
    /// The last number reserved for it.
    reserved: u64,
}

impl Live {
    #[cold]
    fn charge_heir(&self, late: LateCount) -> ChargeOutcome {
        let Some(Heir { sa: heir, .. }) = self.heir.get() else { return ChargeOutcome::Expired };
        let live = heir.live();
        let charged = live.usage.charge_late(&heir.shared.limits, late);
        charged.unwrap_or_else(|late| live.charge_heir(late))
    }
}

/// Counters of an unused SA. Never written.
static UNUSED: SaUsage = SaUsage::new(Lifecycle::Valid);

/// Counters of an SA as set from outside (`XFRM_MSG_NEWAE`), for example by a peer that carried its
/// packets; `None` leaves a value unchanged.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The last number sent.
    pub sent: Option<u64>,
    /// The highest number received.
    pub received: Option<u64>,
    /// Received numbers in the window.
    pub window: Vec<u64>,
    /// Lifetime counters.
    pub usage: Option<UsageCounters>,
    /// Aevent threshold in packets.
    pub packets_threshold: Option<u32>,
    /// Aevent threshold in tenths of a second.
    pub time_threshold: Option<u32>,
}

/// What a state has carried, and since when (`struct xfrm_lifetime_cur`).
#[derive(Clone, Copy, Debug)]
pub struct UsageCounters {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was added.
    pub added: Moment,
    /// When it was used first.
    pub first_used: Option<Moment>,
}

/// Where a state's numbers ended, in whose place another went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAt {
    /// The last number that it sent.
    pub sent: u64,
    /// The last number that was reserved for it.
    pub reserved: u64,
}

impl Sa {
    /// A new SA that starts at `config.replay`, added `now`. `words` are those of `config`.
    #[must_use]
    pub fn new(config: &SaConfig, words: Arc<SharedSaConfig>, now: Moment) -> Arc<Self> {
        let ReplayConfig { sent, received, .. } = config.replay;
        let mut new = Arc::new(Self {
            name: SaNames::new(config.id, config.source),
            turn: AtomicU64::new(0),
            active: OnceBox::new(),
            sequence: Sequence::new(sent, words.last_number()),
            shared: words,
            keys: LazyKeys::none(),
            added: now.0.into(),
            reqid: config.reqid,
            acquire_seq: config.acquire_seq,
            iv_prefix: AtomicU32::new(0),
            attachment: None,
        });
        if let Some(sa) = Arc::get_mut(&mut new) {
            let SaTransform { encryption_key, authentication_key, .. } = &config.transform;
            sa.keys.copy(encryption_key.expose(), authentication_key.expose());
            if (sent, received) != (0, 0) {
                sa.begin(sent, received);
            }
        }
        new
    }

    /// An SA that continues where `old` ends, with another configuration and the same key, perhaps
    /// offloaded: `old` sends and accepts nothing more.
    pub(crate) fn continuing(
        old: &Self,
        config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> Arc<Self> {
        let (new, sent) = Self::ending(old, config, words, place);
        new.keep_iv_prefixes(old, sent);
        new
    }

    /// The same without `old`'s IV prefixes, for an owner who draws new ones, as other machines may
    /// use the old ones.
    pub(crate) fn begun_anew(
        old: &Self,
        config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> Arc<Self> {
        let (new, _sent) = Self::ending(old, config, words, place);
        new.live().usage.set_history(old.usage().failures(), old.usage().last_used());
        new
    }

    /// An SA that continues where `old` ends, without IV prefixes yet, and the last number that
    /// `old` sent.
    fn ending(
        old: &Self,
        config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> (Arc<Self>, u64) {
        let reserved = old.sequence().reserved();
        let sent = old.sequence().end();
        (Self::taking_over(old, (sent, reserved), config, words, place), sent)
    }

    /// Restores `old` after an SA that continued in its place and sent nothing: its configuration
    /// and numbers, and the other's counters. `None` if nothing continued in its place.
    pub(crate) fn returning(old: &Self, place: Option<Attachment>) -> Option<Arc<Self>> {
        let &Heir { sent, reserved, .. } = old.heir()?;
        let last = old.last_heir();
        let _none = last.sequence().end();
        let (config, words) = (old.to_config(), old.shared_words());
        let back = Self::taking_over(last, (sent, reserved), config, words, place);
        back.keep_iv_prefixes(old, sent);
        back.live().usage.set_history(old.usage().failures(), old.usage().last_used());
        back.sequence().reserve(reserved);
        if old.reserved_to_receive() != u64::MAX {
            back.replay().reserve(old.reserved_to_receive());
        }
        Some(back)
    }

    /// An SA with the window and counters of `old`, which accepts and counts nothing more.
    fn taking_over(
        old: &Self,
        (sent, reserved): (u64, u64),
        mut config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> Arc<Self> {
        config.replay.sent = config.replay.sent.max(sent);
        let new = Self::new(&config, words, old.added()).on(place);
        // An unused SA too: a worker may be about to use it.
        let Live { usage, replay, aevents: theirs, heir, .. } = old.live();
        let (highest, received) = replay.end();
        let Live { usage: counts, replay: window, aevents, .. } = new.live();
        window.mark_received(highest, received);
        // Set before the counters are closed: late counts must find it.
        let _first = heir.set(Box::new(Heir { sa: Arc::clone(&new), sent, reserved }));
        let (bytes, packets) = usage.end();
        counts.go_on(bytes, packets, usage.first_used());
        counts.advance(usage.lifecycle());
        aevents.set_thresholds(theirs.thresholds());
        new
    }

    fn heir(&self) -> Option<&Heir> {
        self.live_if_used()?.heir.get()
    }

    /// The last SA in the chain of continuations, itself if there is none.
    fn last_heir(&self) -> &Self {
        self.heir().map_or(self, |heir| heir.sa.last_heir())
    }

    /// The last number sent and the last one reserved, if another SA continues in its place.
    #[must_use]
    pub fn ended_at(&self) -> Option<EndedAt> {
        self.heir().map(|&Heir { sent, reserved, .. }| EndedAt { sent, reserved })
    }

    /// The shared configuration.
    #[must_use]
    #[inline]
    pub fn config(&self) -> &SharedSaConfig {
        &self.shared
    }

    /// The shared configuration, for another generation.
    pub(crate) fn shared_words(&self) -> Arc<SharedSaConfig> {
        Arc::clone(&self.shared)
    }

    /// The full configuration, keys included, as for adding it again. Numbers begin at 0 there.
    #[must_use]
    pub fn to_config(&self) -> SaConfig {
        let words = &*self.shared;
        SaConfig {
            id: self.id(),
            source: self.source(),
            mode: words.mode,
            reqid: self.reqid,
            acquire_seq: self.acquire_seq,
            transform: self.secrets(),
            selector: words.selector,
            mark: words.mark,
            output_mark: words.output_mark,
            if_id: words.if_id,
            replay: ReplayConfig { window: words.window, sent: 0, received: 0 },
            limits: words.limits,
            flags: words.flags,
            extra_flags: words.extra_flags,
            encap: words.encap,
            nat_keepalive: words.nat_keepalive,
            mapping_age: words.mapping_age,
            tfc_padding: words.tfc_padding,
            direction: words.direction,
            pcpu: words.pcpu,
            care_of: words.care_of,
            offload: words.offload.clone(),
        }
    }

    /// Destination, SPI and protocol.
    #[must_use]
    #[inline]
    pub fn id(&self) -> SaId {
        self.name.id()
    }

    /// Whether its destination is this one.
    #[inline]
    pub(crate) fn leads_to(&self, destination: PackedAddress) -> bool {
        self.name.leads_to(destination)
    }

    /// Source of the outer header; unspecified takes the packet's own.
    #[must_use]
    #[inline]
    pub fn source(&self) -> IpAddr {
        self.name.source()
    }

    /// The family of the outer header.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.id().destination)
    }

    /// Request id that ties it to templates.
    #[must_use]
    #[inline]
    pub fn reqid(&self) -> Reqid {
        self.reqid
    }

    /// The acquire that it answers; 0 for none.
    #[must_use]
    pub fn acquire_seq(&self) -> u32 {
        self.acquire_seq
    }

    /// Its algorithm.
    #[must_use]
    #[inline]
    pub fn transform(&self) -> &Transform {
        &self.shared.transform
    }

    /// Algorithm and keys as given: for dumps with keys, and for callers that compare keys.
    #[must_use]
    pub fn secrets(&self) -> SaTransform {
        let (encryption_key, authentication_key) = self.keys.material();
        SaTransform { transform: self.shared.transform, encryption_key, authentication_key }
    }

    /// Its keys, expanded on the first call.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &SaKey {
        self.shared_key()
    }

    /// Like [`Sa::key`], for callers that keep them.
    #[inline]
    pub(crate) fn shared_key(&self) -> &Arc<SaKey> {
        self.live().key.get_or_init(|| Arc::new(self.expand()))
    }

    /// Allocates what the first packet needs.
    pub fn activate(&self) {
        let _ = self.key();
    }

    /// Outbound sequence numbers.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> &Sequence {
        match self.active.get() {
            Some(Active::Of(first)) => &first.sequence,
            Some(Active::Live(_)) | None => &self.sequence,
        }
    }

    /// Begins after a restart: numbers up to `received` may have been received before it.
    pub fn restart_at(&self, received: u64) {
        let live = self.live_if_used().unwrap_or_else(|| self.begin(0, received));
        live.replay.restart_at(received);
    }

    /// The replay window, for a packet. Queries use [`Sa::highest_received`] and
    /// [`Sa::has_received`].
    #[must_use]
    #[inline]
    pub fn replay(&self) -> &ReplayWindow {
        &self.live().replay
    }

    /// The highest number received.
    #[must_use]
    pub fn highest_received(&self) -> u64 {
        self.live_if_used().map_or(0, |live| live.replay.highest())
    }

    /// The cell where the highest number received outlives the process, if there is one.
    #[must_use]
    pub fn received_cell(&self) -> Option<&'static AtomicU64> {
        self.live_if_used().and_then(|live| live.replay.cell())
    }

    /// The number up to which it accepts packets; `u64::MAX` without a
    /// [`ReplayStore`](replay_store::ReplayStore).
    #[must_use]
    pub fn reserved_to_receive(&self) -> u64 {
        match self.live_if_used() {
            Some(live) => live.replay.reserved(),
            None if self.shared.keeper.is_some() && self.shared.window > 0 => FIRST_RESERVED,
            None => u64::MAX,
        }
    }

    /// Highest number that may have been received before a restart; 0 without one.
    #[must_use]
    pub fn restarted_at(&self) -> u64 {
        self.live_if_used().map_or(0, |live| live.replay.restarted_at())
    }

    /// Whether a number in the window was received.
    #[must_use]
    pub fn has_received(&self, number: u64) -> bool {
        self.live_if_used().is_some_and(|live| live.replay.has(number))
    }

    /// Counters and failures so far.
    #[must_use]
    #[inline]
    pub fn usage(&self) -> &SaUsage {
        self.live_if_used().map_or(&UNUSED, |live| &live.usage)
    }

    /// Its lifecycle state.
    #[must_use]
    #[inline]
    pub fn lifecycle(&self) -> Lifecycle {
        self.usage().lifecycle()
    }

    /// When it was added.
    #[must_use]
    pub fn added(&self) -> Moment {
        Moment(self.first().added.load(Ordering::Relaxed))
    }

    /// Whether an aevent is due now. If so, the counters count as reported.
    #[must_use]
    pub fn due(&self, now: Moment) -> Option<AeventCause> {
        let (sent, received) = (self.sequence().last(), self.highest_received());
        if (sent, received) == (0, 0) {
            return None;
        }
        self.live().aevents.due(sent, received, now)
    }

    /// Whether a mapping event is due for packets from `port` of a new source:
    /// [`AeventState::mapping_due`].
    #[must_use]
    pub fn mapping_due(&self, port: u16, now: Moment) -> bool {
        self.live().aevents.mapping_due(port, self.shared.mapping_age, now)
    }

    /// Aevent thresholds.
    #[must_use]
    pub fn thresholds(&self) -> AeventThresholds {
        self.live_if_used().map_or_else(AeventThresholds::default, |live| live.aevents.thresholds())
    }

    /// Whether sequence numbers have 64 bits.
    #[must_use]
    #[inline]
    pub fn extended(&self) -> bool {
        self.shared.flags.contains(SaFlags::ESN)
    }

    /// Charges packets against its limits. Outbound before encryption, with the length before
    /// encapsulation; inbound after authentication, with the length after decapsulation.
    #[inline]
    pub fn charge(&self, packets: u32, bytes: u64, now: Moment) -> ChargeOutcome {
        let live = self.live();
        live.usage
            .charge(&self.shared.limits, packets, bytes, now)
            .unwrap_or_else(|late| live.charge_heir(late))
    }

    /// Whether counting may be deferred: it has only time limits, and its first use, from which it
    /// ages, is counted.
    #[inline]
    pub(crate) fn counts_whenever(&self) -> bool {
        self.shared.limits.are_of_time() && self.usage().is_used()
    }

    /// Counts packets that have passed.
    pub(crate) fn count(&self, packets: u32, bytes: u64, latest: Moment) {
        let live = self.live();
        if let Err(late) = live.usage.count(packets, bytes, latest) {
            live.charge_heir(late);
        }
    }

    /// Whether an inbound packet may be given to it: the checks of `net/xfrm/xfrm_input.c` before
    /// the replay check.
    ///
    /// # Errors
    /// [`DropReason::InStateDirection`], [`DropReason::InStateExpired`], [`DropReason::InNoState`]
    /// while it is larval.
    #[inline]
    pub fn receives(&self) -> Result<(), DropReason> {
        if self.shared.direction == Some(Direction::Out) {
            return Err(DropReason::InStateDirection);
        }
        match self.lifecycle() {
            Lifecycle::Valid | Lifecycle::Dying => Ok(()),
            Lifecycle::Expired => Err(DropReason::InStateExpired),
            Lifecycle::Acquire | Lifecycle::Error => Err(DropReason::InNoState),
        }
    }

    /// Whether both are generations of one SA.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.first(), other.first())
    }

    /// Counts a failure of an inbound packet.
    #[cold]
    pub fn count_failure(&self, reason: DropReason) {
        self.live().usage.count_failure(reason);
    }

    /// Where it is offloaded; `None` if it is not.
    #[must_use]
    #[inline]
    pub fn attachment(&self) -> Option<Attachment> {
        self.attachment
    }

    /// The device of packet offload; `None` without.
    #[must_use]
    #[inline]
    pub fn packet_device(&self) -> Option<DeviceId> {
        self.attachment.filter(|place| place.kind == OffloadKind::Packet).map(|place| place.device)
    }

    /// Attachment of packet offload.
    pub(crate) fn packet_place(&self) -> Option<Attachment> {
        self.attachment.filter(|place| place.kind == OffloadKind::Packet)
    }

    /// The SA with its attachment, before others see it.
    pub(crate) fn on(mut self: Arc<Self>, place: Option<Attachment>) -> Arc<Self> {
        if let Some(sa) = Arc::get_mut(&mut self) {
            sa.attachment = place;
        }
        self
    }

    /// Whether a device counts its packets.
    #[must_use]
    pub fn counts_elsewhere(&self) -> bool {
        self.packet_device().is_some()
    }

    /// Whether it has limits and a device's counters are to be checked against them.
    pub(crate) fn looks_elsewhere(&self) -> bool {
        let LifetimeLimits { bytes, packets, .. } = self.shared.limits;
        let ends = |budget: SoftHardLimit| budget.soft.min(budget.hard) != u64::MAX;
        self.counts_elsewhere() && (ends(bytes) || ends(packets))
    }

    /// Checks its counters against its limits: [`SaUsage::check`].
    pub(crate) fn check_limits(&self) -> ChargeOutcome {
        self.live().usage.check(&self.shared.limits)
    }

    /// Whether it passes its soft limit now, by a device's counters: [`SaUsage::check_soft`].
    pub(crate) fn check_soft_limit(&self) -> bool {
        self.live().usage.check_soft(&self.shared.limits)
    }

    /// Advances to the lifecycle state `next`: [`SaUsage::advance`].
    pub(crate) fn advance(&self, next: Lifecycle) -> bool {
        self.live().usage.advance(next)
    }

    /// For new limits: [`SaUsage::revive`].
    pub(crate) fn revive(&self) {
        self.live_if_used().iter().for_each(|live| live.usage.revive());
    }

    /// Insertion sequence number: unchanged by updates, unique within its database.
    #[must_use]
    #[inline]
    pub fn insertion_seq(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// Called by the database that inserts it.
    pub(crate) fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Takes over counters. Numbers only rise: none is sent or accepted twice.
    pub(crate) fn set_counters(&self, counters: Counters, now: Moment) {
        let Live { usage, replay, aevents, .. } = self.live();
        let (sequence, added) = (self.sequence(), &self.first().added);
        if let Some(sent) = counters.sent {
            sequence.skip_to(sent);
        }
        if let Some(received) = counters.received {
            replay.mark_received(received, counters.window);
        }
        if let Some(carried) = counters.usage {
            usage.set(carried.bytes, carried.packets, carried.first_used);
            added.store(carried.added.0, Ordering::Relaxed);
        }
        let mut thresholds = aevents.thresholds();
        thresholds.packets = counters.packets_threshold.unwrap_or(thresholds.packets);
        thresholds.time = counters.time_threshold.unwrap_or(thresholds.time);
        aevents.set_thresholds(thresholds);
        aevents.tell(sequence.last(), replay.highest(), now);
    }

    /// The next generation: this SA with another configuration.
    pub(crate) fn renewed(self: &Arc<Self>, words: Arc<SharedSaConfig>) -> Arc<Self> {
        let first = match self.active.get() {
            Some(Active::Of(first)) => first,
            Some(Active::Live(_)) | None => self,
        };
        let mut new = Arc::new(Self {
            name: SaNames::new(self.id(), self.source()),
            turn: self.insertion_seq().into(),
            active: OnceBox::with_value(Box::new(Active::Of(Arc::clone(first)))),
            sequence: Sequence::new(0, 0),
            shared: words,
            keys: LazyKeys::none(),
            added: AtomicU64::new(0),
            reqid: self.reqid,
            acquire_seq: self.acquire_seq,
            iv_prefix: AtomicU32::new(0),
            attachment: self.attachment,
        });
        if let Some(sa) = Arc::get_mut(&mut new) {
            let (encryption, authentication) = self.keys.expose();
            sa.keys.copy(encryption, authentication);
        }
        new
    }

    /// The generation that has numbers, counters and expanded keys.
    #[inline]
    fn first(&self) -> &Self {
        match self.active.get() {
            Some(Active::Of(first)) => first,
            Some(Active::Live(_)) | None => self,
        }
    }

    #[inline]
    fn live(&self) -> &Live {
        match self.active.get() {
            Some(Active::Live(live)) => live,
            Some(Active::Of(first)) => first.live(),
            None => self.begin(0, 0),
        }
    }

    #[inline]
    fn live_if_used(&self) -> Option<&Live> {
        match self.active.get()? {
            Active::Live(live) => Some(live),
            Active::Of(first) => first.live_if_used(),
        }
    }

    /// Starts behind numbers that were sent and received already.
    #[cold]
    fn begin(&self, sent: u64, received: u64) -> &Live {
        let words = &*self.shared;
        let live = || {
            Box::new(Active::Live(Live {
                usage: SaUsage::new(Lifecycle::Valid),
                key: OnceLock::new(),
                replay: ReplayWindow::new(words.window, numbers(words), received)
                    .kept(&words.keeper, words.keeper.claim(self)),
                ivs: IvPrefixes::default(),
                aevents: AeventState::new(sent, received, self.added()),
                heir: OnceBox::new(),
            }))
        };
        match self.active.get_or_init(live) {
            Active::Live(live) => live,
            Active::Of(first) => first.live(),
        }
    }

    #[cold]
    fn expand(&self) -> SaKey {
        let (encryption, authentication) = self.keys.material();
        let words = &*self.shared;
        // Cannot fail: `SaKey::verify` accepted these keys when the SA was added.
        SaKey::new(&words.transform, &encryption, &authentication, words.backend)
            .expect("keys that were verified")
    }
}

fn numbers(words: &SharedSaConfig) -> SeqWidth {
    if words.flags.contains(SaFlags::ESN) { SeqWidth::Esn } else { SeqWidth::Bits32 }
}

#[cfg(test)]
mod test_sa;
