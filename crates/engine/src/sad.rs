//! The security association database as workers see it: immutable, found by SPI on the way in and by template on the way out.

mod bucket;
pub(crate) mod change_log;
mod hash;
mod index;
mod page;
mod page_table;
mod page_tree;

use std::{net::IpAddr, sync::Arc};

use crate::sa::address::Address;
use crate::sa::config::SaFlags;
use crate::sa::shared_config::SaWords;
use crate::sa::usage::Lifecycle;
use crate::{
    Cpu, DeviceId, Direction, DropReason, Family, FlowKey, Handle, IfId, Mode, Reqid, Sa, SaId,
    SaProtocol, Spi,
};
use hash::HashSeed;
use index::{Index, IndexKey, LOOKUP_BATCH};

/// All states of one generation. Cloning shares all that does not change afterwards.
#[derive(Clone, Debug, Default)]
pub struct Sad {
    by_id: Index<SaId>,
    /// Those with `wildrecv`.
    wild: Index<WildcardKey>,
    /// Those without.
    outbound: Index<OutboundKey>,
    /// Those on devices.
    attached: Index<DeviceKey>,
    wild_len: usize,
    len: usize,
    turns: u64,
}

/// What must be a template's own in a state that serves it; a source may be wildcards on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutboundKey {
    destination: Address,
    reqid: Reqid,
    if_id: IfId,
    mode: Mode,
    protocol: SaProtocol,
}

/// What names a state with `wildrecv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WildcardKey {
    spi: Spi,
    family: Family,
    protocol: SaProtocol,
}

/// A device, and what it calls a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceKey(Option<(DeviceId, Handle)>);

/// What an outbound packet wants of a state: a template with its addresses worked out, and the packet's flow.
#[derive(Clone, Copy, Debug)]
pub struct OutboundQuery<'a> {
    /// Source of the outer header; unspecified when nobody knows it yet: fits any.
    pub source: IpAddr,
    /// Destination of the outer header.
    pub destination: IpAddr,
    /// The template's protocol.
    pub protocol: SaProtocol,
    /// The template's SPI; 0 fits any.
    pub spi: Spi,
    /// The template's mode.
    pub mode: Mode,
    /// The template's reqid; must be the state's own, also 0.
    pub reqid: Reqid,
    /// The policy's XFRM interface id.
    pub if_id: IfId,
    /// The policy's mark; the packet's does not count (`xfrm_state_find`).
    pub mark: u32,
    /// Who sends: states of another processor do not serve it.
    pub cpu: Cpu,
    /// The packet.
    pub flow: &'a FlowKey,
}

impl Sad {
    /// The state of an inbound packet. Among those whose mark fits, the youngest (`__xfrm_state_lookup`); a state with `wildrecv`
    /// when none has the destination. In constant time.
    #[must_use]
    #[inline]
    pub fn inbound(
        &self,
        destination: IpAddr,
        spi: Spi,
        protocol: SaProtocol,
        mark: u32,
    ) -> Option<&Arc<Sa>> {
        let id = SaId { destination, spi, protocol };
        self.find(id, mark).or_else(|| self.wild(id, mark))
    }

    /// As [`Sad::inbound`], for ids and marks of many packets, which wait for memory together: `found` is told of each, in turn.
    #[inline]
    pub fn inbound_each<'a>(
        &'a self,
        wanted: &[(SaId, u32)],
        mut found: impl FnMut(Option<&'a Arc<Sa>>),
    ) {
        for wanted in wanted.chunks(LOOKUP_BATCH) {
            let probes = self.by_id.probes(wanted.iter().map(|(id, _)| *id));
            for ((id, mark), probe) in wanted.iter().zip(probes) {
                let own = probe.youngest(id, |sa| sa.config().mark.fits(*mark));
                found(own.or_else(|| self.wild(*id, *mark)));
            }
        }
    }

    #[inline]
    fn wild(&self, SaId { destination, spi, protocol }: SaId, mark: u32) -> Option<&Arc<Sa>> {
        if self.wild_len == 0 {
            return None;
        }
        let any = WildcardKey { spi, family: Family::of(destination), protocol };
        self.wild.youngest(&any, |sa| sa.config().mark.fits(mark))
    }

    /// Whether there are so many that finding one means waiting for memory: then [`Sad::inbound_each`] and [`Sad::fetch_outbound`] pay.
    #[must_use]
    #[inline]
    pub const fn is_far(&self) -> bool {
        self.len > CACHED_SAS
    }

    /// Brings the states for these packets into the processor's cache, together: for a batch that is about to ask [`Sad::outbound`] for each.
    #[inline]
    pub fn fetch_outbound<'a>(&self, queries: impl Iterator<Item = OutboundQuery<'a>>) {
        self.outbound.fetch(queries.map(|query| query.outbound_key()));
    }

    /// The state for an outbound packet, as `net/xfrm/xfrm_state.c: xfrm_state_find` and `xfrm_state_look_at` choose: one with
    /// the source before one with a wildcard source, one that is not dying before one that is, then the youngest. So a rekey that adds before it
    /// deletes never leaves a packet without a state.
    ///
    /// # Errors
    /// [`DropReason::OutNoState`]; [`DropReason::OutStateDirection`] when the choice has `dir in`.
    pub fn outbound(&self, query: &OutboundQuery<'_>) -> Result<&Arc<Sa>, DropReason> {
        self.outbound_on(None, query)
    }

    /// As [`Sad::outbound`], for a policy that a device has: only states of kind *packet* that the same device has. Without a device only those
    /// that are none's.
    ///
    /// # Errors
    /// As [`Sad::outbound`].
    pub fn outbound_on(
        &self,
        device: Option<DeviceId>,
        query: &OutboundQuery<'_>,
    ) -> Result<&Arc<Sa>, DropReason> {
        self.find_outbound(query, |sa| sa.packet_device() == device)
    }

    /// Whether packets between the same addresses may want different states here: some are for certain protocols, ports or interfaces only.
    pub(crate) fn tells_flows_apart(&self, query: &OutboundQuery<'_>) -> bool {
        self.outbound.fold(&query.outbound_key(), false, |any, sa| {
            any || sa.config().selector.as_ref().is_some_and(|one| !one.is_of_addresses())
        })
    }

    /// Whether there is a state for a packet but for the device that has it, or has it not.
    #[must_use]
    pub fn is_elsewhere(&self, query: &OutboundQuery<'_>) -> bool {
        self.find_outbound(query, |_| true).is_ok()
    }

    fn find_outbound(
        &self,
        query: &OutboundQuery<'_>,
        is_there: impl Fn(&Sa) -> bool,
    ) -> Result<&Arc<Sa>, DropReason> {
        let best = self.outbound.fold(&query.outbound_key(), None, |best: Option<&Arc<Sa>>, sa| {
            let is_better = || best.is_none_or(|best| query.prefers(sa, best));
            if is_there(sa) && query.fits(sa) && is_better() { Some(sa) } else { best }
        });
        let sa = best.ok_or(DropReason::OutNoState)?;
        if sa.config().direction == Some(Direction::In) {
            return Err(DropReason::OutStateDirection);
        }
        Ok(sa)
    }

    /// The state that a device calls so.
    #[must_use]
    #[inline]
    pub fn attached(&self, device: DeviceId, handle: Handle) -> Option<&Arc<Sa>> {
        self.attached.youngest(&DeviceKey(Some((device, handle))), |_| true)
    }

    /// All states that devices have, in no order.
    pub fn all_attached(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.attached.states()
    }

    /// The state that an id and a mark find (`XFRM_MSG_GETSA`).
    #[must_use]
    pub fn find(&self, id: SaId, mark: u32) -> Option<&Arc<Sa>> {
        self.by_id.youngest(&id, |sa| sa.config().mark.fits(mark))
    }

    /// All states with an id; they differ in their marks. Youngest first.
    pub fn with_id(&self, id: SaId) -> impl Iterator<Item = &Arc<Sa>> {
        let mut all = self.by_id.fold(&id, Vec::new(), |mut all, sa| {
            all.push(sa);
            all
        });
        all.sort_unstable_by_key(|sa| std::cmp::Reverse(sa.turn()));
        all.into_iter()
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All states, in no order. Nothing is collected first: the first costs as little as the next.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.by_id.states()
    }
}

impl Sad {
    /// Puts a state before all others that look-ups cannot tell from it.
    pub(crate) fn insert(&mut self, sa: &Arc<Sa>) {
        self.turns += 1;
        sa.set_turn(self.turns);
        self.by_id.insert(sa);
        self.insert_by_role(sa);
        if sa.attachment().is_some() {
            self.attached.insert(sa);
        }
        self.len += 1;
    }

    /// Takes a state out, whichever generation of it is in: that is the answer. One that is not in is no error.
    pub(crate) fn remove(&mut self, sa: &Arc<Sa>) -> Option<Arc<Sa>> {
        let held = self.generation(sa).cloned()?;
        self.by_id.remove(&held);
        self.remove_by_role(&held);
        if held.attachment().is_some() {
            self.attached.remove(&held);
        }
        self.len -= 1;
        Some(held)
    }

    /// Whether this very generation of a state is in.
    pub(crate) fn holds(&self, sa: &Arc<Sa>) -> bool {
        self.generation(sa).is_some_and(|held| Arc::ptr_eq(held, sa))
    }

    /// Puts `new` in the place of an older generation of itself, with the same id; the one that was in.
    pub(crate) fn replace(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) -> Option<Arc<Sa>> {
        let held = self.generation(old).cloned()?;
        new.set_turn(held.turn());
        self.by_id.replace(new);
        if new.attachment().is_some() {
            self.attached.replace(new);
        }
        if is_wild(&held) == is_wild(new) && OutboundKey::of(&held) == OutboundKey::of(new) {
            match is_wild(new) {
                true => self.wild.replace(new),
                false => self.outbound.replace(new),
            }
        } else {
            self.remove_by_role(&held);
            self.insert_by_role(new);
        }
        Some(held)
    }

    /// Becomes what `newer` is, of which it was a copy before these states came, went or changed; shares with it only what is new.
    pub(crate) fn follow(&mut self, newer: &Self, changed: &[Arc<Sa>]) {
        for sa in changed {
            self.by_id.follow(&newer.by_id, sa);
            match is_wild(sa) {
                true => self.wild.follow(&newer.wild, sa),
                false => self.outbound.follow(&newer.outbound, sa),
            }
            if sa.attachment().is_some() {
                self.attached.follow(&newer.attached, sa);
            }
        }
        let Self { wild_len, len, turns, .. } = *newer;
        (self.wild_len, self.len, self.turns) = (wild_len, len, turns);
    }

    /// The generation of a state that is in.
    fn generation(&self, sa: &Sa) -> Option<&Arc<Sa>> {
        self.by_id.fold(
            &sa.id(),
            None,
            |found, held| {
                if held.is_same(sa) { Some(held) } else { found }
            },
        )
    }

    fn insert_by_role(&mut self, sa: &Arc<Sa>) {
        if is_wild(sa) {
            self.wild.insert(sa);
            self.wild_len += 1;
        } else {
            self.outbound.insert(sa);
        }
    }

    fn remove_by_role(&mut self, sa: &Arc<Sa>) {
        if is_wild(sa) {
            self.wild.remove(sa);
            self.wild_len -= 1;
        } else {
            self.outbound.remove(sa);
        }
    }
}

/// So many states are in the processor's own caches, more or less (`uxfrm bench states`).
const CACHED_SAS: usize = 4096;

fn is_wild(sa: &Sa) -> bool {
    sa.config().flags.contains(SaFlags::WILDRECV)
}

impl IndexKey for SaId {
    #[inline]
    fn of(sa: &Sa) -> Self {
        sa.id()
    }

    #[inline]
    fn is_of(&self, sa: &Sa) -> bool {
        sa.id() == *self
    }

    #[inline]
    fn hash(&self, seed: HashSeed) -> u64 {
        seed.hash_address(self.destination.into(), self.spi.0, self.protocol as u64)
    }

    #[inline]
    fn fetch(sa: &Sa) {
        sa.fetch_name();
    }
}

impl IndexKey for OutboundKey {
    #[inline]
    fn of(sa: &Sa) -> Self {
        let SaId { destination, protocol, .. } = sa.id();
        let SaWords { if_id, mode, .. } = *sa.config();
        Self { destination: destination.into(), reqid: sa.reqid(), if_id, mode, protocol }
    }

    #[inline]
    fn is_of(&self, sa: &Sa) -> bool {
        let (id, words) = (sa.id(), sa.config());
        sa.reqid() == self.reqid
            && sa.leads_to(self.destination)
            && id.protocol == self.protocol
            && words.if_id == self.if_id
            && words.mode == self.mode
    }

    #[inline]
    fn hash(&self, seed: HashSeed) -> u64 {
        let kind = (self.mode as u64) << 8 | self.protocol as u64;
        let more = u64::from(self.if_id.0) << 32 | kind;
        seed.hash_address(self.destination, self.reqid.0, more)
    }

    #[inline]
    fn fetch(sa: &Sa) {
        sa.fetch();
    }
}

impl IndexKey for DeviceKey {
    #[inline]
    fn of(sa: &Sa) -> Self {
        Self(sa.attachment().map(|place| (place.device, place.handle)))
    }

    #[inline]
    fn is_of(&self, sa: &Sa) -> bool {
        *self == Self::of(sa)
    }

    #[inline]
    fn hash(&self, seed: HashSeed) -> u64 {
        let word =
            |(device, handle): (DeviceId, Handle)| u64::from(device.0) << 32 | u64::from(handle.0);
        seed.hash_words(self.0.map_or(0, word), 0)
    }

    #[inline]
    fn fetch(sa: &Sa) {
        sa.fetch();
    }
}

impl IndexKey for WildcardKey {
    #[inline]
    fn of(sa: &Sa) -> Self {
        let SaId { destination, spi, protocol } = sa.id();
        Self { spi, family: Family::of(destination), protocol }
    }

    #[inline]
    fn is_of(&self, sa: &Sa) -> bool {
        *self == Self::of(sa)
    }

    #[inline]
    fn hash(&self, seed: HashSeed) -> u64 {
        let kind = (self.family as u64) << 8 | self.protocol as u64;
        seed.hash_words(self.spi.0.into(), kind)
    }

    #[inline]
    fn fetch(sa: &Sa) {
        sa.fetch_name();
    }
}

impl OutboundQuery<'_> {
    #[inline]
    fn outbound_key(&self) -> OutboundKey {
        let Self { destination, protocol, mode, reqid, if_id, .. } = *self;
        OutboundKey { destination: destination.into(), reqid, if_id, mode, protocol }
    }

    /// Whether a state serves it that has what its [`OutboundKey`] says.
    #[inline]
    fn fits(&self, sa: &Sa) -> bool {
        let (config, source) = (sa.config(), sa.source());
        matches!(sa.lifecycle(), Lifecycle::Valid | Lifecycle::Dying)
            && (source == self.source || source.is_unspecified() || self.source.is_unspecified())
            && (self.spi == Spi(0) || sa.id().spi == self.spi)
            && config.pcpu.is_none_or(|cpu| cpu == self.cpu)
            && config.mark.fits(self.mark)
            && config.selector.as_ref().is_none_or(|selector| selector.matches(self.flow))
    }

    /// Of two that fit: the one whose source is no wildcard, then the one for this processor, then one that is not dying, then the younger, then the one put in later.
    #[inline(never)]
    fn prefers(&self, one: &Sa, other: &Sa) -> bool {
        let rank = |sa: &Sa| {
            let own = sa.config().pcpu == Some(self.cpu);
            let is_named = !sa.source().is_unspecified();
            (is_named, own, sa.lifecycle() != Lifecycle::Dying, sa.added(), sa.turn())
        };
        rank(one) > rank(other)
    }
}

#[cfg(test)]
mod tests;
