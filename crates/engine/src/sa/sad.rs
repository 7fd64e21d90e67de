//! The security association database as workers see it: immutable, found by SPI on the way in and by template on the way out.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
    net::IpAddr,
    slice,
    sync::Arc,
};

use crate::{
    Direction, DropReason, Family, FlowKey, IfId, Mode, Reqid, Sa, SaId, SaProtocol, Spi,
    sa::{config::SaFlags, usage::Lifecycle},
};

/// All states of one generation. Cloning shares all that does not change afterwards.
#[derive(Clone, Debug, Default)]
pub struct Sad {
    by_id: Sharded<SaId>,
    by_spi: Sharded<(Family, Spi, SaProtocol)>,
    by_destination: Sharded<(IpAddr, Reqid)>,
    len: usize,
}

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
    /// The packet; its mark counts.
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
        let fits = |sa: &&Arc<Sa>| sa.config().mark.fits(mark);
        self.find(SaId { destination, spi, protocol }, mark)
            .or_else(|| self.by_spi.of(&(Family::of(destination), spi, protocol)).find(fits))
    }

    /// The state for an outbound packet, as `net/xfrm/xfrm_state.c: xfrm_state_find` and `xfrm_state_look_at` choose: one with
    /// the source before one with a wildcard source, one that is not dying before one that is, then the youngest. So a rekey that adds before it
    /// deletes never leaves a packet without a state.
    ///
    /// # Errors
    /// [`DropReason::OutNoState`]; [`DropReason::OutStateDirection`] when the choice has `dir in`.
    pub fn outbound(&self, query: &OutboundQuery<'_>) -> Result<&Arc<Sa>, DropReason> {
        let key = (query.destination, query.reqid);
        let best = |wildcard: bool| {
            let all = self.by_destination.of(&key);
            all.filter(|sa| sa.config().source.is_unspecified() == wildcard && query.fits(sa))
                .reduce(better)
        };
        let sa = best(false).or_else(|| best(true)).ok_or(DropReason::OutNoState)?;
        if sa.config().direction == Some(Direction::In) {
            return Err(DropReason::OutStateDirection);
        }
        Ok(sa)
    }

    /// The state that an id and a mark find (`XFRM_MSG_GETSA`).
    #[must_use]
    pub fn find(&self, id: SaId, mark: u32) -> Option<&Arc<Sa>> {
        self.with_id(id).find(|sa| sa.config().mark.fits(mark))
    }

    /// All states with an id; they differ in their marks. Youngest first.
    pub fn with_id(&self, id: SaId) -> impl Iterator<Item = &Arc<Sa>> {
        self.by_id.of(&id)
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

    /// All states, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.by_id.iter()
    }
}

impl Sad {
    /// Puts a state before all others that look-ups cannot tell from it.
    pub(crate) fn insert(&mut self, sa: &Arc<Sa>) {
        let config = sa.config();
        self.by_id.insert(config.id, sa);
        if config.flags.contains(SaFlags::WILDRECV) {
            self.by_spi.insert(spi_key(sa), sa);
        } else {
            self.by_destination.insert((config.id.destination, config.reqid), sa);
        }
        self.len += 1;
    }

    /// Takes a state out; one that is not in is no error.
    pub(crate) fn remove(&mut self, sa: &Arc<Sa>) {
        self.len -= usize::from(self.by_id.remove(&sa.id(), sa));
        self.by_spi.remove(&spi_key(sa), sa);
        self.by_destination.remove(&(sa.id().destination, sa.config().reqid), sa);
    }

    /// Whether this very generation of a state is in.
    pub(crate) fn holds(&self, sa: &Arc<Sa>) -> bool {
        self.with_id(sa.id()).any(|held| Arc::ptr_eq(held, sa))
    }

    /// Puts `new` in the place of an older generation of itself.
    pub(crate) fn replace(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        self.by_id.replace(&old.id(), old, new);
        self.by_spi.replace(&spi_key(old), old, new);
        self.by_destination.replace(&(old.id().destination, old.config().reqid), old, new);
    }
}

fn spi_key(sa: &Sa) -> (Family, Spi, SaProtocol) {
    (sa.config().family(), sa.id().spi, sa.id().protocol)
}

impl OutboundQuery<'_> {
    fn fits(&self, sa: &Sa) -> bool {
        let config = sa.config();
        matches!(sa.lifecycle(), Lifecycle::Valid | Lifecycle::Dying)
            && (config.source == self.source
                || config.source.is_unspecified()
                || self.source.is_unspecified())
            && config.id.protocol == self.protocol
            && (self.spi == Spi(0) || config.id.spi == self.spi)
            && config.mode == self.mode
            && config.if_id == self.if_id
            && config.pcpu.is_none()
            && config.mark.fits(self.flow.mark)
            && config.selector.as_ref().is_none_or(|selector| selector.matches(self.flow))
    }
}

/// Of two that fit, the first found first: a later one must be really better.
fn better<'a>(best: &'a Arc<Sa>, other: &'a Arc<Sa>) -> &'a Arc<Sa> {
    let dying = |sa: &Sa| sa.lifecycle() == Lifecycle::Dying;
    let wins = match (dying(best), dying(other)) {
        (true, false) => true,
        (false, true) => false,
        (true, true) | (false, false) => best.added() < other.added(),
    };
    if wins { other } else { best }
}

/// A hash map in [`SHARDS`] parts, each shared with the snapshots before until it changes: adding a state to a million copies a
/// small part. States with one key stand newest first.
#[derive(Clone, Debug)]
struct Sharded<K> {
    shards: Arc<[Arc<Shard<K>>]>,
    hasher: foldhash::fast::RandomState,
}

type Shard<K> = HashMap<K, Vec<Arc<Sa>>, foldhash::fast::RandomState>;

const SHARDS: usize = 256;

impl<K> Default for Sharded<K> {
    fn default() -> Self {
        let hasher = foldhash::fast::RandomState::default();
        let shards = (0..SHARDS).map(|_| Arc::new(Shard::with_hasher(hasher.clone()))).collect();
        Self { shards, hasher }
    }
}

impl<K: Hash + Eq + Clone> Sharded<K> {
    #[inline]
    fn of(&self, key: &K) -> slice::Iter<'_, Arc<Sa>> {
        self.shards[self.place(key)].get(key).map_or(&[][..], Vec::as_slice).iter()
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.shards.iter().flat_map(|shard| shard.values()).flatten()
    }

    fn insert(&mut self, key: K, sa: &Arc<Sa>) {
        self.shard(&key).entry(key).or_default().insert(0, Arc::clone(sa));
    }

    fn remove(&mut self, key: &K, sa: &Arc<Sa>) -> bool {
        let shard = self.shard(key);
        let Some(list) = shard.get_mut(key) else { return false };
        let before = list.len();
        list.retain(|other| !other.is_same(sa));
        let removed = list.len() < before;
        if list.is_empty() {
            shard.remove(key);
        }
        removed
    }

    fn replace(&mut self, key: &K, old: &Arc<Sa>, new: &Arc<Sa>) {
        let list = self.shard(key).get_mut(key);
        if let Some(place) = list.and_then(|list| list.iter_mut().find(|sa| sa.is_same(old))) {
            *place = Arc::clone(new);
        }
    }

    fn shard(&mut self, key: &K) -> &mut Shard<K> {
        let place = self.place(key);
        Arc::make_mut(&mut Arc::make_mut(&mut self.shards)[place])
    }

    /// The map inside takes its buckets from the hash's other bits.
    #[inline]
    fn place(&self, key: &K) -> usize {
        (self.hasher.hash_one(key) >> 24) as usize % SHARDS
    }
}

#[cfg(test)]
mod tests;
