//! The security association database (SAD) as workers see it: immutable, with look-up by SPI
//! inbound and by template outbound.

mod bucket;
pub(crate) mod change_log;
mod hash;
mod index;
mod page;
mod page_table;
mod page_tree;

use std::{net::IpAddr, sync::Arc};

use crate::sa::address::PackedAddress;
use crate::sa::config::SaFlags;
use crate::sa::shared_config::SharedSaConfig;
use crate::sa::usage::Lifecycle;
use crate::{
    Cpu, DeviceId, Direction, DropReason, Family, FlowKey, Handle, IfId, Mode, Reqid, Sa, SaId,
    SaProtocol, Spi,
};
use hash::HashSeed;
use index::{Index, IndexKey, LOOKUP_BATCH};

/// All SAs of one generation. Clones share all that does not change afterwards.
#[derive(Clone, Debug, Default)]
pub struct Sad {
    by_id: Index<SaId>,
    /// SAs with `wildrecv`.
    wild: Index<WildcardKey>,
    /// SAs without.
    outbound: Index<OutboundKey>,
    /// SAs offloaded to devices.
    attached: Index<DeviceKey>,
    wild_len: usize,
    len: usize,
    last_seq: u64,
}

/// Fields in which an SA must equal the template; the source may be a wildcard on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutboundKey {
    destination: PackedAddress,
    reqid: Reqid,
    if_id: IfId,
    mode: Mode,
    protocol: SaProtocol,
}

/// Identity of an SA with `wildrecv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WildcardKey {
    spi: Spi,
    family: Family,
    protocol: SaProtocol,
}

/// A device and its handle of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceKey(Option<(DeviceId, Handle)>);

/// What an outbound packet demands of an SA: a template with resolved addresses, and the packet's
/// flow.
#[derive(Clone, Copy, Debug)]
pub struct OutboundQuery<'a> {
    /// Source of the outer header; unspecified (not known yet) matches any.
    pub source: IpAddr,
    /// Destination of the outer header.
    pub destination: IpAddr,
    /// The template's protocol.
    pub protocol: SaProtocol,
    /// The template's SPI; 0 matches any.
    pub spi: Spi,
    /// The template's mode.
    pub mode: Mode,
    /// The template's reqid; must equal the SA's, even if 0.
    pub reqid: Reqid,
    /// The policy's XFRM interface id.
    pub if_id: IfId,
    /// The policy's mark; the packet's does not count (`xfrm_state_find`).
    pub mark: u32,
    /// The sending CPU: SAs of another one do not match.
    pub cpu: Cpu,
    /// The packet's flow.
    pub flow: &'a FlowKey,
}

impl Sad {
    /// The SA of an inbound packet: among those whose mark matches the youngest
    /// (`__xfrm_state_lookup`); one with `wildrecv` if none has the destination. In constant time.
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

    /// [`Sad::inbound`] for many packets, with overlapping cache misses; `found` is called for
    /// each, in order.
    #[inline]
    pub fn lookup_inbound_batch<'a>(
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

    /// Whether there are so many SAs that look-ups miss the CPU cache: then
    /// [`Sad::lookup_inbound_batch`] and [`Sad::prefetch_outbound`] pay.
    #[must_use]
    #[inline]
    pub const fn exceeds_cpu_cache(&self) -> bool {
        self.len > CACHED_SAS
    }

    /// Prefetches the SAs for a batch that will call [`Sad::outbound`] for each packet.
    #[inline]
    pub fn prefetch_outbound<'a>(&self, queries: impl Iterator<Item = OutboundQuery<'a>>) {
        self.outbound.fetch(queries.map(|query| query.outbound_key()));
    }

    /// The SA for an outbound packet, chosen as in `net/xfrm/xfrm_state.c: xfrm_state_find` and
    /// `xfrm_state_look_at`: one with the source before one with a wildcard source, a valid one
    /// before a dying one, then the youngest. So a rekey that adds before it deletes never leaves a
    /// packet without SA.
    ///
    /// # Errors
    /// [`DropReason::OutNoState`]; [`DropReason::OutStateDirection`] when the choice has `dir in`.
    pub fn outbound(&self, query: &OutboundQuery<'_>) -> Result<&Arc<Sa>, DropReason> {
        self.lookup_outbound_on(None, query)
    }

    /// [`Sad::outbound`] for a policy that a device has: only SAs of kind *packet* on the same
    /// device. Without a device only SAs on none.
    ///
    /// # Errors
    /// As [`Sad::outbound`].
    pub fn lookup_outbound_on(
        &self,
        device: Option<DeviceId>,
        query: &OutboundQuery<'_>,
    ) -> Result<&Arc<Sa>, DropReason> {
        self.find_outbound(query, |sa| sa.packet_device() == device)
    }

    /// Whether flows between the same addresses may use different SAs, as some have selectors with
    /// protocol, ports or interface.
    pub(crate) fn has_flow_selectors(&self, query: &OutboundQuery<'_>) -> bool {
        self.outbound.fold(&query.outbound_key(), false, |any, sa| {
            any || sa.config().selector.as_ref().is_some_and(|one| !one.is_of_addresses())
        })
    }

    /// Whether an SA matches apart from the device that it is on.
    #[must_use]
    pub fn exists_on_other_device(&self, query: &OutboundQuery<'_>) -> bool {
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

    /// The SA with a device's handle.
    #[must_use]
    #[inline]
    pub fn attached(&self, device: DeviceId, handle: Handle) -> Option<&Arc<Sa>> {
        self.attached.youngest(&DeviceKey(Some((device, handle))), |_| true)
    }

    /// All SAs on devices, in no order.
    pub fn all_offloaded(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.attached.states()
    }

    /// The SA with an id and a mark (`XFRM_MSG_GETSA`).
    #[must_use]
    pub fn find(&self, id: SaId, mark: u32) -> Option<&Arc<Sa>> {
        self.by_id.youngest(&id, |sa| sa.config().mark.fits(mark))
    }

    /// All SAs with an id, which differ in their marks. Youngest first.
    pub fn with_id(&self, id: SaId) -> impl Iterator<Item = &Arc<Sa>> {
        let mut all = self.by_id.fold(&id, Vec::new(), |mut all, sa| {
            all.push(sa);
            all
        });
        all.sort_unstable_by_key(|sa| std::cmp::Reverse(sa.insertion_seq()));
        all.into_iter()
    }

    /// Number of SAs.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no SAs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All SAs in no order, without collecting them first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.by_id.states()
    }
}

impl Sad {
    /// Inserts an SA before all others that look-ups cannot distinguish from it.
    pub(crate) fn insert(&mut self, sa: &Arc<Sa>) {
        self.last_seq += 1;
        sa.set_insertion_seq(self.last_seq);
        self.by_id.insert(sa);
        self.insert_by_role(sa);
        if sa.attachment().is_some() {
            self.attached.insert(sa);
        }
        self.len += 1;
    }

    /// Removes an SA in whatever generation, and returns that. A missing one is no error.
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

    /// Whether this very generation of an SA is present.
    pub(crate) fn holds(&self, sa: &Arc<Sa>) -> bool {
        self.generation(sa).is_some_and(|held| Arc::ptr_eq(held, sa))
    }

    /// Replaces an older generation of an SA, with the same id; returns the one that was present.
    pub(crate) fn replace(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) -> Option<Arc<Sa>> {
        let held = self.generation(old).cloned()?;
        new.set_insertion_seq(held.insertion_seq());
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

    /// Brings this older copy of `newer` up to it, given the SAs that changed; shares with it only
    /// what is new.
    pub(crate) fn sync_from(&mut self, newer: &Self, changed: &[Arc<Sa>]) {
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
        let Self { wild_len, len, last_seq, .. } = *newer;
        (self.wild_len, self.len, self.last_seq) = (wild_len, len, last_seq);
    }

    /// The present generation of an SA.
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

/// Number of SAs that roughly fit the CPU caches (`uxfrm bench states`).
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
        let SharedSaConfig { if_id, mode, .. } = *sa.config();
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

    /// Whether an SA that equals its [`OutboundKey`] matches.
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

    /// Order of two matches: with a source, for this CPU, not dying, younger, inserted later.
    #[inline(never)]
    fn prefers(&self, one: &Sa, other: &Sa) -> bool {
        let rank = |sa: &Sa| {
            let own = sa.config().pcpu == Some(self.cpu);
            let is_named = !sa.source().is_unspecified();
            (is_named, own, sa.lifecycle() != Lifecycle::Dying, sa.added(), sa.insertion_seq())
        };
        rank(one) > rank(other)
    }
}

#[cfg(test)]
mod tests;
