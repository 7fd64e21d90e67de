//! What each SA is charged and gives: once per batch, exact at the limits.

use super::slow::device::Sealer;
use super::{Item, Numbering, Outbound};
use crate::bundle::{Account, BundleCache, Giving, Grant};
use crate::datapath::context::Bench;
use crate::{Charge, DropReason, Event, Sa};

impl Outbound {
    /// An item enters: the first layer of it is asked for.
    #[inline(always)]
    pub(super) fn admit(&mut self, item: Item) {
        want_of(&mut self.cache, &mut self.drawn, &item, 0);
        self.items.push(item);
    }

    /// As [`Self::admit`], of items that are there already: from `first` on.
    pub(super) fn want_for(&mut self, first: usize) {
        for item in &self.items[first..] {
            want_of(&mut self.cache, &mut self.drawn, item, 0);
        }
    }

    /// 6 Number. Where all get what they want, they are given it as their headers are written.
    #[inline(always)]
    pub(super) fn number(&mut self, depth: usize, bench: &mut Bench<'_>) {
        if depth > 0 {
            for item in self.items.iter().filter(|item| item.count > 0) {
                want_of(&mut self.cache, &mut self.drawn, item, depth);
            }
        }
        self.grant_all(bench);
        if self.numbering == Numbering::Short {
            self.share_out(depth, bench);
        }
    }

    /// Charges each SA that is drawn on.
    #[inline(always)]
    pub(super) fn grant_all(&mut self, bench: &mut Bench<'_>) {
        self.numbering = Numbering::Whole;
        for place in self.drawn.drain(..) {
            let Some(account) = self.cache.account(place) else { continue };
            let wanted = account.packets;
            account.settle(bench);
            if account.grant.left < wanted {
                self.numbering = Numbering::Short;
            }
        }
    }

    /// Gives each item in turn what there is.
    #[cold]
    pub(super) fn share_out(&mut self, depth: usize, bench: &mut Bench<'_>) {
        for item in self.items.iter_mut().filter(|item| item.count > 0) {
            let Some((account, layer)) = self.cache.draw(item.bundle, depth) else { continue };
            let granted = account.give(item, layer.kept(&item.inside), bench);
            if granted < item.count {
                let refused = item.count - granted;
                bench.refuse(&mut self.traffic, refused.into(), account.grant.refusal);
                item.keep(granted);
            }
        }
    }
}

/// Adds what an item wants of an SA to what the batch does.
#[inline(always)]
fn want_of(cache: &mut BundleCache, drawn: &mut Vec<u32>, item: &Item, depth: usize) {
    let Some((account, layer)) = cache.draw(item.bundle, depth) else { return };
    account.want(drawn, item.count, item.charged(layer.kept(&item.inside)));
}

impl Grant {
    /// Charges an SA for what a batch wants of it, and takes numbers for what it lets pass.
    #[inline(always)]
    pub(super) fn of(sa: &Sa, packets: u32, bytes: u64, bench: &mut Bench<'_>) -> Self {
        let mut grant = Self { refusal: DropReason::OutStateExpired, ..Self::NOTHING };
        match sa.charge(packets, bytes, bench.now) {
            Charge::Ok => grant.take(sa, packets),
            Charge::SoftLimit => {
                bench.tell(Event::SaSoftLimit(sa.id()));
                grant.take(sa, packets);
            }
            Charge::Crossing => grant.giving = Giving::OneByOne,
            Charge::HardLimit => bench.tell(Event::SaHardLimit(sa.id())),
            Charge::Expired => {}
        }
        grant
    }

    /// Numbers for so many packets of an SA that counts them later.
    #[inline(always)]
    pub(super) fn of_noted(sa: &Sa, packets: u32) -> Self {
        let mut grant = Self::NOTHING;
        grant.take(sa, packets);
        grant
    }

    /// The first of `count` numbers, of which there are enough.
    #[inline(always)]
    pub(super) fn hand_out(&mut self, count: u32) -> u64 {
        debug_assert!(self.left >= count);
        self.left -= count;
        let first = self.next;
        self.next += u64::from(count);
        first
    }

    /// Numbers for so many packets. What the block lacks is refused, as the numbers end there or none are reserved yet.
    #[inline(always)]
    fn take(&mut self, sa: &Sa, packets: u32) {
        match sa.sequence().take(packets) {
            Ok(block) if block.count == packets => {
                (self.next, self.left) = (block.first, block.count);
            }
            Ok(block) => {
                (self.next, self.left) = (block.first, block.count);
                self.refusal = sa.sequence().lack();
            }
            Err(reason) => (self.left, self.refusal) = (0, reason),
        }
    }
}

impl Account {
    /// Adds to what the batch wants of it; it is `drawn` on then.
    #[inline(always)]
    pub(super) fn want(&mut self, drawn: &mut Vec<u32>, packets: u32, bytes: u64) {
        if self.packets == 0 {
            drawn.push(self.place);
        }
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Charges the SA for all of that.
    #[inline(always)]
    fn settle(&mut self, bench: &mut Bench<'_>) {
        let (packets, bytes) = (self.packets, self.bytes);
        (self.packets, self.bytes) = (0, 0);
        self.grant = Grant::of(&self.sa, packets, bytes, bench);
    }

    /// Numbers for an item: how many of its packets got one.
    fn give(&mut self, item: &mut Item, kept: usize, bench: &mut Bench<'_>) -> u32 {
        if self.grant.giving == Giving::OneByOne {
            self.grant.left = 0;
            match self.charge_each(item, kept, bench) {
                0 => {}
                passed => self.grant.take(&self.sa, passed),
            }
        }
        let granted = item.count.min(self.grant.left);
        item.sequence = self.grant.hand_out(granted);
        granted
    }

    /// Charges packet by packet until a limit is met.
    fn charge_each(&self, item: &Item, kept: usize, bench: &mut Bench<'_>) -> u32 {
        let id = self.sa.id();
        for k in 0..item.count {
            let len = if k + 1 == item.count { item.last_len } else { item.len } as usize;
            match self.sa.charge(1, (len - kept) as u64, bench.now) {
                Charge::Ok => {}
                Charge::SoftLimit => bench.tell(Event::SaSoftLimit(id)),
                Charge::HardLimit => {
                    bench.tell(Event::SaHardLimit(id));
                    return k;
                }
                Charge::Crossing | Charge::Expired => return k,
            }
        }
        item.count
    }
}

impl Item {
    /// Bytes that its SA is charged: the text without padding, as in `net/xfrm/xfrm_output.c: xfrm_output_one`.
    fn charged(&self, kept: usize) -> u64 {
        let (len, last_len) = (self.len as usize - kept, self.last_len as usize - kept);
        len as u64 * u64::from(self.count - 1) + last_len as u64
    }

    /// Keeps the first `count` packets.
    fn keep(&mut self, count: u32) {
        // A device that cuts is told how many to send.
        if self.sealer != Sealer::Cutter {
            self.packet.trim(self.stride as usize * count as usize);
        }
        self.last_len = self.len;
        self.count = count;
    }
}
