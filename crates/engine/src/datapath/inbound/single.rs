//! A packet that comes alone, as on a quiet link they all do, and looks as an earlier one of its state did: with no lists of what only many
//! share. Wherever it turns out to be otherwise, it goes on the long way from there.

use uxfrm_crypto::{Authenticity, OpenJob};
use uxfrm_packet::{Batch, PacketBuf};

use super::deliver::is_train;
use super::inner_template::{Bare, Inner};
use super::open::charge;
use super::outer_template::Known;
use super::rx_cache::{Standing, Used};
use super::{Fate, Inbound, Item, Sealed};
use crate::datapath::context::Bench;
use crate::{DropReason, HostPort, Mode, Stage, Watch};

impl Inbound {
    /// 1 Receive to 10 Transmit, of the packet that is alone in a batch. False, with nothing done, unless there is one that looks as its state's do.
    #[inline(always)]
    pub(super) fn run_alone(
        &mut self,
        batch: &mut Batch,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) -> bool {
        let [packet] = batch.as_slice() else { return false };
        self.used.begin(bench.snapshot);
        let Some(sealed) = self.claim_alone(packet) else { return false };
        let Some(packet) = batch.take_alone() else { return false };
        self.traffic.received += 1;
        self.traffic.received_bytes += packet.len() as u64;
        watch.passed(Stage::Peel);
        self.go_on_alone(packet, sealed, bench, watch);
        self.finish_some();
        true
    }

    /// 2 Peel, 3 State, 4 Replay check: what is to be opened of a packet, whose state this batch has met then.
    #[inline(always)]
    fn claim_alone(&mut self, packet: &PacketBuf) -> Option<Sealed> {
        if is_train(packet) || !self.marks.is_empty() {
            return None;
        }
        let item = Item::new(0, 0, packet.len(), packet.mark);
        let latest = Known::of(&self.used, self.used.latest()?)?;
        let known = latest.or_earlier(&item, packet, &self.used)?;
        let sealed = known.claim_one(0, &item, packet)?;
        self.receives(sealed.used).then_some(sealed)
    }

    /// 5 Open to 10 Transmit.
    #[inline(always)]
    fn go_on_alone(
        &mut self,
        mut packet: PacketBuf,
        sealed: Sealed,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        self.used.note_latest(Some(sealed.used));
        let verdict = self.open_alone(&mut packet, &sealed, bench);
        watch.passed(Stage::Open);
        let bare = match verdict {
            Authenticity::Authentic => self.bare(&packet, &sealed),
            Authenticity::Forged | Authenticity::Runt | Authenticity::Pending => None,
        };
        let Some(bare) = bare else {
            return self.accept_closely(packet, sealed, verdict, bench, watch);
        };
        let accepted = self.accept_alone(&sealed, &bare, bench);
        watch.passed(Stage::Accept);
        match accepted {
            Ok(()) => self.deliver_alone(packet, sealed.used, &bare, bench, watch),
            Err(reason) => self.discard(packet, reason, bench),
        }
    }

    #[cold]
    pub(super) fn discard(&mut self, packet: PacketBuf, reason: DropReason, bench: &mut Bench<'_>) {
        bench.refuse(&mut self.traffic, 1, reason);
        bench.pool.give(packet);
    }

    /// 5 Open.
    #[inline(always)]
    fn open_alone(
        &self,
        packet: &mut PacketBuf,
        sealed: &Sealed,
        bench: &mut Bench<'_>,
    ) -> Authenticity {
        let state = &self.used[sealed.used as usize];
        let places = sealed.at as usize..(sealed.at + sealed.len) as usize;
        let Some(esp) = packet.bytes_mut().get_mut(places) else { return Authenticity::Runt };
        let mut job = OpenJob::in_place(state.sa.key(), state.high_of(sealed.number), esp);
        bench.crypter.open(std::slice::from_mut(&mut job));
        job.verdict
    }

    /// 7 Strip, of a packet that was opened; `None` if it does not look inside as an earlier one of its tunnel.
    #[inline(always)]
    fn bare(&self, packet: &PacketBuf, sealed: &Sealed) -> Option<Bare> {
        let around = &self.used[sealed.used as usize].around;
        let inner = self.used.looks(sealed.used)?.inner.as_ref()?;
        let lies = (sealed.at, sealed.len, sealed.tos);
        inner.bare(around, lies, packet.mark, packet).filter(|_| around.mode == Mode::Tunnel)
    }

    /// 6 Replay advance; and its state is charged.
    #[inline(always)]
    fn accept_alone(
        &mut self,
        sealed: &Sealed,
        bare: &Bare,
        bench: &mut Bench<'_>,
    ) -> Result<(), DropReason> {
        let Used { sa, debt, .. } = &mut self.used[sealed.used as usize];
        let accepted = sa.replay().accept(sealed.number);
        accepted.inspect_err(|reason| sa.count_failure(*reason))?;
        if self.arrears.note(debt, sa, 1, bare.carried.into()) {
            return Ok(());
        }
        match charge(sa, 1, bare.carried.into(), bench) {
            Standing::Good => Ok(()),
            // Of one packet not only some pass.
            Standing::OneByOne | Standing::Expired => Err(DropReason::InStateExpired),
        }
    }

    /// 8 Check to 10 Transmit.
    #[inline(always)]
    fn deliver_alone(
        &mut self,
        packet: PacketBuf,
        used: u32,
        bare: &Bare,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        let state = &self.used[used as usize];
        let looks = self.used.looks(used).and_then(|looks| looks.inner.as_ref());
        let Some(Inner { flow, direction, .. }) = looks else {
            return self.discard(packet, DropReason::InUnexpected, bench);
        };
        let (spd, spi) = (&bench.snapshot.spd, state.around.spi);
        let known = self.policies.know(spd, *direction, flow, spi);
        watch.passed(Stage::LookUp);
        let mut item = Item::new(0, bare.at as usize, bare.len as usize, bare.mark);
        if bench.settings.host == HostPort::Packets && state.lets_pass(known) {
            self.policies.count_first(known.answer, 1, bare.len.into());
            self.traffic.sent += 1;
            self.traffic.sent_bytes += u64::from(bare.len);
            return bench.out.host.push(item.released(packet));
        }
        item.path.push(used);
        item.fate = Fate::Plain(self.questions.place(*flow, spi, *direction));
        self.questions.known.push(known);
        self.items.push(item);
        self.buffers.push(Some(packet));
        self.hand_on_all(bench);
    }

    /// 6 Replay advance to 10 Transmit, of a packet that was opened and is not as an earlier one was.
    #[inline(never)]
    fn accept_closely(
        &mut self,
        packet: PacketBuf,
        sealed: Sealed,
        verdict: Authenticity,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        let item = Item::new(0, 0, packet.len(), packet.mark);
        self.items.push(Item { fate: Fate::Sealed, ..item });
        self.buffers.push(Some(packet));
        self.sealed.push(sealed);
        self.verdicts.clear();
        self.verdicts.push(verdict);
        self.go_on_opened(bench, watch);
    }

    /// 6 Replay advance to 10 Transmit, of items that were opened.
    pub(super) fn go_on_opened(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        let more = self.accept(bench);
        watch.passed(Stage::Accept);
        if more {
            self.take_off_layers(bench, watch);
        }
        self.deliver(bench, watch);
    }
}
