//! Neighbours to which nothing is done but what one state does: they are wrapped and sealed where they lie, with what holds for all of them
//! looked at once. All others become [items](super::Item).

use std::iter::Zip;
use std::ops::{Range, RangeFrom};
use std::slice::IterMut;
use std::vec::Drain;

use uxfrm_crypto::Iv;
use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{PacketBuf, Version};

use super::pre_parsed::Run;
use super::seal_jobs::{self, Jobs};
use super::{Head, Item, Numbering, Outbound, fold_half};
use crate::bundle::Bundle;
use crate::datapath::context::Bench;
use crate::esp::encap::{Inside, Layer, UdpShape};
use crate::esp::encap_layout::{Headers, Wrapped};
use crate::esp::headers::{self, HeaderEnd, Stamp};
use crate::flow_cache::Known;
use crate::{DropReason, Ruling, Stage, Watch};

/// Packets that are worth sealing those before them first, lest they overtake them.
const WORTH: u32 = 16;

impl Outbound {
    /// Whether runs from `first` on may go at once, as none before them are left or they are many enough to have those go first.
    pub(super) fn may_overtake(&mut self, first: usize, bench: &Bench<'_>) -> bool {
        if self.items.is_empty() {
            return true;
        }
        let plain = self.ahead.runs[first..].iter().take_while(|run| run.plain);
        let mut packets = 0;
        let many = plain.map(|run| run.packets).any(|more| {
            packets += more;
            packets >= WORTH
        });
        many && self.express_run(first, bench).is_some()
    }

    /// 1 Receive to 10 Transmit, of as many runs from `first` on as go this way: says how many. None may have gone before and be left.
    pub(super) fn send_express(
        &mut self,
        first: usize,
        packets: &mut Drain<'_, PacketBuf>,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) -> usize {
        debug_assert!(self.items.is_empty() && self.together.is_empty());
        let mut end = first;
        while end < self.ahead.runs.len()
            && let Some(place) = self.express_run(end, bench)
        {
            self.admit_run(end, place);
            end += 1;
        }
        if end > first {
            self.seal_express(first..end, packets, bench, watch);
        }
        end - first
    }

    #[inline(always)]
    fn express_run(&mut self, run: usize, bench: &Bench<'_>) -> Option<u32> {
        let (run, known) = (self.ahead.runs[run], *self.ahead.known.get(run)?);
        self.express(&run, known, bench)
    }

    /// The bundle by which a run goes this way.
    #[inline(always)]
    pub(super) fn express(&mut self, run: &Run, known: Known, bench: &Bench<'_>) -> Option<u32> {
        if known.answer.ruling() != Ruling::Protect {
            return None;
        }
        let place = known.bundle().filter(|place| self.is_working(*place, bench))?;
        self.cache.bundle(place).takes(run).then_some(place)
    }

    #[inline(always)]
    fn admit_run(&mut self, run: usize, place: u32) {
        let version = self.ahead.flows[run].version();
        let (run, known) = (self.ahead.runs[run], self.ahead.known[run]);
        self.admit_express(&run, version, known, place);
    }

    /// What a run counts for.
    #[inline(always)]
    pub(super) fn count_express(&mut self, run: &Run, known: Known) {
        self.traffic.received += u64::from(run.packets);
        self.traffic.received_bytes += run.received as u64;
        self.tally(known.answer, run.packets, run.bytes as u64);
    }

    /// What a run counts for, and wants of its state.
    #[inline(always)]
    fn admit_express(&mut self, run: &Run, version: Version, known: Known, place: u32) {
        self.count_express(run, known);
        if let Some((account, layer)) = self.cache.draw(place, 0) {
            let kept = layer.kept_of(version) * run.packets as usize;
            account.want(&mut self.drawn, run.packets, (run.bytes - kept) as u64);
        }
    }

    /// 6 Number to 10 Transmit.
    fn seal_express(
        &mut self,
        runs: Range<usize>,
        packets: &mut Drain<'_, PacketBuf>,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        let count = self.ahead.runs[runs.clone()].iter().map(|run| run.packets as usize).sum();
        self.together.extend(packets.take(count));
        watch.passed(Stage::Frame);
        self.grant_all(bench);
        watch.passed(Stage::Number);
        if self.numbering == Numbering::Short {
            return self.seal_short(runs, bench, watch);
        }
        self.seal_runs(runs, bench);
        watch.passed(Stage::Seal);
        self.send_together(bench);
        watch.passed(Stage::Transmit);
    }

    /// Where some get no number each is an item after all.
    #[cold]
    fn seal_short(&mut self, runs: Range<usize>, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        let mut packets = std::mem::take(&mut self.together);
        let mut rest = packets.drain(..);
        for run in runs {
            let Some(place) = self.ahead.known[run].bundle() else { continue };
            for packet in rest.by_ref().take(self.ahead.runs[run].packets as usize) {
                self.admit_granted(packet, place, bench);
            }
        }
        drop(rest);
        self.together = packets;
        self.send_short(bench);
        watch.passed(Stage::Transmit);
    }

    /// 6 Number to 10 Transmit, of items that are of one layer each, with what their states were charged.
    #[cold]
    pub(super) fn send_short(&mut self, bench: &mut Bench<'_>) {
        self.share_out(0, bench);
        self.seal(0, bench);
        self.finish(0);
        self.transmit(bench);
    }

    /// An item of a packet that its state was charged already.
    pub(super) fn admit_granted(
        &mut self,
        mut packet: PacketBuf,
        place: u32,
        bench: &mut Bench<'_>,
    ) {
        let bundle = self.cache.bundle(place);
        let frame = Head::with_flow(&packet).and_then(|(head, _)| {
            let len = head.total_len as usize;
            Some((bundle.frame(len, &head.inside)?, head.inside, len))
        });
        match frame {
            Some((frame, inside, len)) => {
                packet.reframe(frame.prefix, frame.total);
                self.items.push(Item::new(packet, place, frame, inside, len));
            }
            // It was parsed, and has room.
            None => self.discard(packet, 1, DropReason::OutNoRoom, bench),
        }
    }

    /// 7 Wrap to 9 Finish.
    fn seal_runs(&mut self, runs: Range<usize>, bench: &mut Bench<'_>) {
        let Self { ahead, cache, together, failed, ident, traffic, .. } = self;
        let is_far = cache.is_far();
        let (bundles, accounts) = cache.parts();
        let mut jobs = Jobs::new(bench.crypter, failed);
        let (mut packets, mut place) = (together.as_mut_slice(), 0);
        let mut fetched = runs.start;
        for run in runs {
            if is_far && run == fetched {
                fetched = ahead.runs.len().min(run + seal_jobs::CHUNK);
                fetch_keys(bundles, &ahead.known[run..fetched]);
            }
            let version = ahead.flows[run].version();
            let count = ahead.runs[run].packets;
            // There are as many packets together as their runs count.
            let (these, rest) = std::mem::take(&mut packets).split_at_mut(count as usize);
            let from = place;
            (packets, place) = (rest, place + these.len());
            let layer = only_layer(bundles, ahead.known[run]);
            let Some((layer, account)) =
                layer.and_then(|layer| Some((layer, accounts[layer.account as usize].as_mut()?)))
            else {
                // A run is only let in with both.
                jobs.failed.extend(from..place);
                continue;
            };
            let number = account.grant.hand_out(count);
            let seal = Seal { layer, version, ident, ivs: None, jobs: &mut jobs };
            traffic.sent_bytes += if layer.needs_finish_of(version) {
                seal.all_and_finish(these, from, number)
            } else {
                seal.all(these, from, number)
            } as u64;
        }
        jobs.run();
    }

    /// 10 Transmit.
    pub(super) fn send_together(&mut self, bench: &mut Bench<'_>) {
        if !self.failed.is_empty() {
            self.refuse_together(bench);
        }
        self.traffic.sent += self.together.len() as u64;
        bench.out.wire.append(&mut self.together);
    }

    /// Takes out what was not sealed.
    #[cold]
    fn refuse_together(&mut self, bench: &mut Bench<'_>) {
        let mut failed = std::mem::take(&mut self.failed);
        // Noted as they were wrapped and as they were sealed. From the last on, so that those before it stay where they are.
        failed.sort_unstable_by_key(|place| std::cmp::Reverse(*place));
        failed.dedup();
        for place in failed {
            let packet = self.together.remove(place);
            self.discard(packet, 1, DropReason::OutCrypto, bench);
        }
    }
}

/// How a run's packets are sealed, and where the jobs go that this is.
struct Seal<'s, 'p, 'c> {
    layer: &'p Layer,
    /// Of the packets inside.
    version: Version,
    ident: &'s mut u32,
    /// What turns a number into its IV counter, where one thing does for all of them.
    ivs: Option<u64>,
    jobs: &'s mut Jobs<'p, 'c>,
}

/// Packets, each with its place among those that go together and its number.
type Numbered<'p> = Zip<Zip<IterMut<'p, PacketBuf>, RangeFrom<usize>>, RangeFrom<u64>>;

/// Bytes that are sealed before they are read once more: half of what the first-level cache has room for.
const NEAR: usize = 24 << 10;
/// Packets that the crypto library takes together; fewer take it longer.
const BURST: usize = 16;

// Each way is a function of its own: how well its loop is laid out must not hang on what else stands beside it.
impl<'p> Seal<'_, 'p, '_> {
    /// Wraps packets whose places and numbers begin with these. Says how many bytes leave.
    #[inline(always)]
    fn all(mut self, packets: &'p mut [PacketBuf], place: usize, number: u64) -> usize {
        self.ivs = self.layer.iv_prefix.over(number, packets.len());
        let packets = packets.iter_mut().zip(place..).zip(number..);
        match (self.layer.tunnel_headers(), self.version) {
            (Some(Headers::V4(end, sum, None)), Version::V4) => {
                self.all_v4_in_v4(packets, end, sum)
            }
            (Some(Headers::V6(template, None)), Version::V6) => {
                self.all_v6_in_v6(packets, template)
            }
            (Some(Headers::V4(end, sum, Some(udp))), Version::V4) => {
                self.all_v4_in_udp(packets, (end, sum, udp))
            }
            (Some(Headers::V6(template, Some(udp))), Version::V6) => {
                self.all_v6_in_udp(packets, template, udp)
            }
            (Some(headers), _) => self.all_in_tunnel(packets, headers),
            (None, _) => self.all_in_transport(packets),
        }
    }

    /// The same, of a layer whose packets are to be [finished](headers::finish) when they are sealed.
    #[inline(never)]
    fn all_and_finish(self, packets: &mut [PacketBuf], place: usize, number: u64) -> usize {
        let Self { layer, version, ident, ivs: _, jobs: others } = self;
        let after = layer.after(&Inside::plain(version));
        let pseudo = headers::pseudo_header(layer);
        let len = packets.first().map_or(1, |packet| packet.len().max(1));
        let piece = (NEAR / len / BURST * BURST).clamp(BURST, seal_jobs::CHUNK);
        let starts = (place..).step_by(piece).zip((number..).step_by(piece));
        let pieces = packets.chunks_mut(piece).zip(starts);
        let mut sent = 0;
        for (piece, (place, number)) in pieces {
            {
                let mut jobs = others.anew();
                let seal = Seal { layer, version, ident: &mut *ident, ivs: None, jobs: &mut jobs };
                sent += seal.all(piece, place, number);
                jobs.run();
            }
            match pseudo {
                Some(pseudo) => piece.iter_mut().for_each(|packet| {
                    headers::fill_checksum(packet.bytes_mut(), ipv6::HEADER_LEN, pseudo);
                }),
                None => piece.iter_mut().for_each(|packet| {
                    headers::finish(packet.bytes_mut(), layer, &after);
                }),
            }
        }
        sent
    }

    #[inline(always)]
    fn each(
        self,
        packets: Numbered<'p>,
        wrap: impl Fn(&'p mut PacketBuf, Stamp) -> Option<Wrapped<'p>>,
    ) -> usize {
        let (layer, key, ivs) = (self.layer, self.layer.sa.key(), self.ivs);
        let (mut sent, mut ident) = (0, *self.ident);
        for ((packet, place), sequence) in packets {
            ident = ident.wrapping_add(1);
            match wrap(packet, Stamp { sequence, id: fold_half(ident) }) {
                Some((len, esp)) => {
                    sent += len;
                    let iv =
                        ivs.map_or_else(|| layer.sa.iv_counter(sequence), |ivs| sequence ^ ivs);
                    let counted = (layer.high(sequence), Iv::Counter(iv));
                    self.jobs.push(place, key, counted, esp);
                }
                None => self.jobs.failed.push(place),
            }
        }
        *self.ident = ident;
        sent
    }

    #[inline(never)]
    fn all_v4_in_v4(self, packets: Numbered<'p>, end: &HeaderEnd, sum: Sum) -> usize {
        let (layer, headers) = (self.layer, Headers::V4(end, sum, None));
        self.each(packets, |packet, stamp| {
            layer.wrap_in_tunnel(headers, packet, Version::V4, stamp)
        })
    }

    #[inline(never)]
    fn all_v4_in_udp(
        self,
        packets: Numbered<'p>,
        (end, sum, udp): (&HeaderEnd, Sum, &UdpShape),
    ) -> usize {
        let (layer, headers) = (self.layer, Headers::V4(end, sum, Some(udp)));
        self.each(packets, |packet, stamp| {
            layer.wrap_in_tunnel(headers, packet, Version::V4, stamp)
        })
    }

    #[inline(never)]
    fn all_v6_in_v6(self, packets: Numbered<'p>, template: &Ipv6Header) -> usize {
        let (layer, headers) = (self.layer, Headers::V6(template, None));
        self.each(packets, |packet, stamp| {
            layer.wrap_in_tunnel(headers, packet, Version::V6, stamp)
        })
    }

    #[inline(never)]
    fn all_v6_in_udp(self, packets: Numbered<'p>, template: &Ipv6Header, udp: &UdpShape) -> usize {
        let (layer, headers) = (self.layer, Headers::V6(template, Some(udp)));
        self.each(packets, |packet, stamp| {
            layer.wrap_in_tunnel(headers, packet, Version::V6, stamp)
        })
    }

    #[inline(never)]
    fn all_in_tunnel(self, packets: Numbered<'p>, headers: Headers<'_>) -> usize {
        let (layer, version) = (self.layer, self.version);
        self.each(packets, |packet, stamp| layer.wrap_in_tunnel(headers, packet, version, stamp))
    }

    #[inline(never)]
    fn all_in_transport(self, packets: Numbered<'p>) -> usize {
        let layer = self.layer;
        match self.version {
            Version::V4 => {
                self.each(packets, |packet, stamp| layer.wrap_transport(packet, Version::V4, stamp))
            }
            Version::V6 => {
                self.each(packets, |packet, stamp| layer.wrap_transport(packet, Version::V6, stamp))
            }
        }
    }
}

fn only_layer(bundles: &[Bundle], known: Known) -> Option<&Layer> {
    bundles[known.bundle()? as usize].layers.first()
}

/// Asks for the keys that seal these flows' packets next; what leads there is at hand already.
fn fetch_keys(bundles: &[Bundle], known: &[Known]) {
    let layers = || known.iter().filter_map(|known| only_layer(bundles, *known));
    layers().for_each(|layer| layer.sa.fetch_key_head());
    layers().for_each(|layer| layer.sa.fetch_keys());
}

impl Bundle {
    /// Whether all packets of a run need nothing but what its one state does.
    #[inline(always)]
    fn takes(&self, run: &Run) -> bool {
        self.express.is_some_and(|room| {
            run.plain
                && run.longest <= self.inner_mtu
                && run.headroom >= room.before
                && run.tailroom >= room.behind
        })
    }
}
