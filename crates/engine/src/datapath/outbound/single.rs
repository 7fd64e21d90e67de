//! A packet that comes alone, as on a quiet link they all do: with no lists of what only many share.

use uxfrm_crypto::{SealJob, Sealing};
use uxfrm_packet::{PacketBuf, Version};

use super::pre_parsed::{Run, UNREADABLE};
use super::{Head, Numbering, Outbound, fold_half};
use crate::bundle::Grant;
use crate::datapath::context::Bench;
use crate::esp::encap::Inside;
use crate::esp::headers::{self, Stamp};
use crate::flow_cache::Known;
use crate::{Direction, DropReason, Spi, Stage, Watch};

impl Outbound {
    /// 2 Flow key to 5 PMTU, of a packet that has no others to be looked up with; mostly all that follows, too.
    #[inline(always)]
    pub(super) fn receive_alone(
        &mut self,
        packet: PacketBuf,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        let head = Head::with_flow(&packet);
        watch.passed(Stage::Parse);
        let flow = head.as_ref().map_or(&UNREADABLE, |(_, flow)| flow);
        let known = self.policies.know(&bench.snapshot.spd, Direction::Out, flow, Spi(0));
        if self.cache.is_far() {
            self.cache.fetch(known.bundle().into_iter());
        }
        watch.passed(Stage::LookUp);
        let run = Run::alone(&packet, head.as_ref());
        match self.express(&run, known, bench).filter(|_| self.items.is_empty()) {
            Some(place) => self.send_alone(packet, &run, (known, place), flow.version(), bench),
            None => self.receive(packet, head.as_ref(), known, bench),
        }
    }

    /// 6 Number to 10 Transmit, of a packet that comes alone.
    #[inline(always)]
    fn send_alone(
        &mut self,
        mut packet: PacketBuf,
        run: &Run,
        (known, place): (Known, u32),
        version: Version,
        bench: &mut Bench<'_>,
    ) {
        self.count_express(run, known);
        self.grant_alone(run, place, version, bench);
        if self.numbering == Numbering::Short {
            self.admit_granted(packet, place, bench);
            return self.send_short(bench);
        }
        match self.seal_alone(&mut packet, place, version, bench) {
            Some(()) => {
                self.traffic.sent += 1;
                self.traffic.sent_bytes += packet.len() as u64;
                bench.out.wire.push(packet);
            }
            None => self.discard(packet, 1, DropReason::OutCrypto, bench),
        }
    }

    /// 6 Number. What is counted on counters that all workers share takes as long as a header: it waits, where the state may count it whenever it may be.
    #[inline(always)]
    fn grant_alone(&mut self, run: &Run, place: u32, version: Version, bench: &mut Bench<'_>) {
        let Self { cache, arrears, numbering, .. } = self;
        *numbering = Numbering::Whole;
        let Some((account, layer)) = cache.draw(place, 0) else { return };
        let bytes = (run.bytes - layer.kept_of(version)) as u64;
        account.grant = if arrears.note(&mut account.debt, &account.sa, 1, bytes) {
            Grant::of_noted(&account.sa, 1)
        } else {
            Grant::of(&account.sa, 1, bytes, bench)
        };
        if account.grant.left == 0 {
            *numbering = Numbering::Short;
        }
    }

    /// 7 Wrap, 8 Seal, 9 Finish; `None` when it was not sealed.
    #[inline(always)]
    fn seal_alone(
        &mut self,
        packet: &mut PacketBuf,
        place: u32,
        version: Version,
        bench: &mut Bench<'_>,
    ) -> Option<()> {
        let (bundles, accounts) = self.cache.parts();
        let layer = bundles[place as usize].layers.first()?;
        let account = accounts[layer.account as usize].as_mut()?;
        self.ident = self.ident.wrapping_add(1);
        let stamp = Stamp { sequence: account.grant.hand_out(1), id: fold_half(self.ident) };
        let (_, esp) = layer.wrap_plain(packet, version, stamp)?;
        let (high, iv) = layer.counted(stamp.sequence);
        let mut job = SealJob::in_place(layer.sa.key(), high, iv, esp);
        bench.crypter.seal(std::slice::from_mut(&mut job));
        if job.verdict != Sealing::Sealed {
            return None;
        }
        if layer.needs_finish() {
            headers::finish(packet.bytes_mut(), layer, &layer.after(&Inside::plain(version)));
        }
        Some(())
    }
}
