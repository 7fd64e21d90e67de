//! The security association database as workers see it: immutable, found by SPI on the way in and by template on the way out.

mod index;
mod tree;

use std::{net::IpAddr, sync::Arc};

use crate::{
    Direction, DropReason, Family, FlowKey, IfId, Mode, Reqid, Sa, SaId, SaProtocol, Spi,
    sa::{config::SaFlags, usage::Lifecycle},
};
use index::{Entry, Index};

/// All states of one generation. Cloning shares all that does not change afterwards.
#[derive(Clone, Debug, Default)]
pub struct Sad {
    by_id: Index<SaId>,
    /// Those with `wildrecv`.
    by_spi: Index<(Family, Spi, SaProtocol)>,
    /// Those without.
    by_destination: Index<(IpAddr, Reqid)>,
    len: usize,
    turns: u64,
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
        let any = || (Family::of(destination), spi, protocol);
        self.find(SaId { destination, spi, protocol }, mark)
            .or_else(|| self.by_spi.youngest(&any(), |sa| sa.config().mark.fits(mark)))
    }

    /// The state for an outbound packet, as `net/xfrm/xfrm_state.c: xfrm_state_find` and `xfrm_state_look_at` choose: one with
    /// the source before one with a wildcard source, one that is not dying before one that is, then the youngest. So a rekey that adds before it
    /// deletes never leaves a packet without a state.
    ///
    /// # Errors
    /// [`DropReason::OutNoState`]; [`DropReason::OutStateDirection`] when the choice has `dir in`.
    pub fn outbound(&self, query: &OutboundQuery<'_>) -> Result<&Arc<Sa>, DropReason> {
        let (mut own, mut wildcard): (Option<&Entry>, Option<&Entry>) = (None, None);
        self.by_destination.each(&(query.destination, query.reqid), &mut |entry| {
            let best =
                if entry.sa.config().source.is_unspecified() { &mut wildcard } else { &mut own };
            if query.fits(&entry.sa) && best.is_none_or(|best| is_better(entry, best)) {
                *best = Some(entry);
            }
        });
        let Entry { sa, .. } = own.or(wildcard).ok_or(DropReason::OutNoState)?;
        if sa.config().direction == Some(Direction::In) {
            return Err(DropReason::OutStateDirection);
        }
        Ok(sa)
    }

    /// The state that an id and a mark find (`XFRM_MSG_GETSA`).
    #[must_use]
    pub fn find(&self, id: SaId, mark: u32) -> Option<&Arc<Sa>> {
        self.by_id.youngest(&id, |sa| sa.config().mark.fits(mark))
    }

    /// All states with an id; they differ in their marks. Youngest first.
    pub fn with_id(&self, id: SaId) -> impl Iterator<Item = &Arc<Sa>> {
        let mut all = Vec::new();
        self.by_id.each(&id, &mut |entry| all.push(entry));
        all.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.turn));
        all.into_iter().map(|entry| &entry.sa)
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
        self.by_id.all().into_iter().map(|entry| &entry.sa)
    }
}

impl Sad {
    /// Puts a state before all others that look-ups cannot tell from it.
    pub(crate) fn insert(&mut self, sa: &Arc<Sa>) {
        self.turns += 1;
        let entry = Entry { turn: self.turns, sa: Arc::clone(sa) };
        self.by_id.insert(sa.id(), entry.clone());
        if is_wild(sa) {
            self.by_spi.insert(spi_key(sa), entry);
        } else {
            self.by_destination.insert(destination_key(sa), entry);
        }
        self.len += 1;
    }

    /// Takes a state out; one that is not in is no error.
    pub(crate) fn remove(&mut self, sa: &Arc<Sa>) {
        let Some(turn) = self.turn(sa) else { return };
        self.by_id.remove(&sa.id(), turn);
        if is_wild(sa) {
            self.by_spi.remove(&spi_key(sa), turn);
        } else {
            self.by_destination.remove(&destination_key(sa), turn);
        }
        self.len -= 1;
    }

    /// Whether this very generation of a state is in.
    pub(crate) fn holds(&self, sa: &Arc<Sa>) -> bool {
        self.with_id(sa.id()).any(|held| Arc::ptr_eq(held, sa))
    }

    /// Puts `new` in the place of an older generation of itself, with the same keys.
    pub(crate) fn replace(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        let Some(turn) = self.turn(old) else { return };
        self.by_id.replace(&old.id(), turn, new);
        if is_wild(old) {
            self.by_spi.replace(&spi_key(old), turn, new);
        } else {
            self.by_destination.replace(&destination_key(old), turn, new);
        }
    }

    fn turn(&self, sa: &Sa) -> Option<u64> {
        let mut turn = None;
        self.by_id.each(&sa.id(), &mut |entry| {
            if entry.sa.is_same(sa) {
                turn = Some(entry.turn);
            }
        });
        turn
    }
}

fn is_wild(sa: &Sa) -> bool {
    sa.config().flags.contains(SaFlags::WILDRECV)
}

fn destination_key(sa: &Sa) -> (IpAddr, Reqid) {
    (sa.id().destination, sa.config().reqid)
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

/// Of two that fit: one that is not dying, then the younger, then the one put in later.
fn is_better(one: &Entry, other: &Entry) -> bool {
    let rank =
        |entry: &Entry| (entry.sa.lifecycle() != Lifecycle::Dying, entry.sa.added(), entry.turn);
    rank(one) > rank(other)
}

#[cfg(test)]
mod tests;
