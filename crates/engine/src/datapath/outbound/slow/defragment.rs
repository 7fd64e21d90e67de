//! 1 Receive, of what the host has cut: datagrams are put together before policies are asked about them, where some policy can be found by whole
//! ones only, or carry only these.
//!
//! The host cuts what is too long for the TUN before the TUN, where the kernel's XFRM has it whole
//! (`net/ipv4/ip_output.c: ip_finish_output` comes behind `xfrm4_output`). Ports are in the first fragment alone, so the others would pass by
//! every policy that asks for some, and leave plain.

use uxfrm_packet::{Batch, IpPacket, PacketBuf, Version};

use super::acquire_queue::Held;
use super::verdict::Verdict;
use crate::datapath::context::Bench;
use crate::datapath::outbound::{Head, Outbound};
use crate::esp::encap::Inside;
use crate::fragments::origin::Origin;
use crate::fragments::reassembly::Outcome;
use crate::fragments::split::{Cut, split};
use crate::{Direction, DropReason, FlowKey, Spi};

impl Outbound {
    /// A fragment waits for the others of its datagram; the last one brings it on its way.
    #[cold]
    pub(crate) fn gather(&mut self, packet: PacketBuf, bench: &mut Bench<'_>) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.discard(packet, 1, DropReason::OutMalformed, bench);
        };
        let before = self.pieces.held();
        let (outcome, evicted) =
            self.pieces.add(packet, &ip, &Origin::default(), bench.now, bench.pool);
        self.traffic.held = self.traffic.held + self.pieces.held() - before;
        let mut refused = evicted;
        match outcome {
            Outcome::Held => {}
            Outcome::Refused => refused += 1,
            Outcome::Ruined { pieces } => refused += pieces,
            Outcome::Whole { packet, pieces, longest, is_astride: _ } => {
                self.traffic.absorbed += pieces - 1;
                self.receive_whole(packet, longest, bench);
            }
        }
        bench.refuse(&mut self.traffic, refused, DropReason::OutFragment);
    }

    /// Lets go of what waited too long for the rest.
    #[inline]
    pub(crate) fn expire_pieces(&mut self, bench: &mut Bench<'_>) {
        let late = self.pieces.expire(bench.now, bench.pool);
        if late > 0 {
            self.traffic.held -= late;
            bench.refuse(&mut self.traffic, late, DropReason::OutFragment);
        }
    }

    /// 2 Flow key to 5 PMTU. It may be cut again, as it was before: into pieces no longer than the `longest`.
    fn receive_whole(&mut self, packet: PacketBuf, longest: usize, bench: &mut Bench<'_>) {
        let Some((head, flow)) = Head::with_flow(&packet) else {
            return self.discard(packet, 1, DropReason::OutMalformed, bench);
        };
        // A fragment of a fragment tells no more of itself than any other (`net/ipv6/reassembly.c: ipv6_frag_rcv` refuses it, too).
        if head.fragment {
            return self.discard(packet, 1, DropReason::OutFragment, bench);
        }
        let known = self.policies.know(&bench.snapshot.spd, Direction::Out, &flow, Spi(0));
        self.tally(known.answer, 1, packet.len() as u64);
        match self.rule(&flow, known, bench) {
            Verdict::Bundle(place) => self.enter_cut(packet, longest, (head, &flow), place, bench),
            Verdict::Pass if head.options && Self::is_led_astray(&packet, &flow, bench) => {
                self.discard(packet, 1, DropReason::OutUnprotected, bench);
            }
            Verdict::Pass => self.pass_cut(packet, longest, &head.inside, bench),
            Verdict::Drop(reason) => self.discard(packet, 1, reason, bench),
            Verdict::Wait => self.wait(Held::cut(packet, longest), &flow, bench),
        }
    }

    /// 5 PMTU. It leaves whole, and is cut around ESP, but for IPv6 in a tunnel: a router behind that may not cut it, so it goes in pieces, as it came
    /// (`net/ipv6/xfrm6_output.c: __xfrm6_output`).
    pub(crate) fn enter_cut(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        (mut head, flow): (Head, &FlowKey),
        place: u32,
        bench: &mut Bench<'_>,
    ) {
        let (bundle, version) = (self.cache.bundle(place), head.inside.version);
        let in_pieces = version == Version::V6 && !bundle.is_transport();
        if !in_pieces || packet.len() <= longest {
            head.inside.dont_fragment = false;
            return self.enter(packet, None, (&head, flow), place, bench);
        }
        let mtu = longest.min(bundle.limit(version));
        let mut pieces = self.cut_again(packet, mtu, &head.inside, bench);
        // They came once, and are made once more.
        self.traffic.received += (pieces.len() as u64).saturating_sub(1);
        for piece in pieces.drain() {
            match Head::with_flow(&piece) {
                Some((head, _)) => self.enter(piece, None, (&head, flow), place, bench),
                None => self.discard(piece, 1, DropReason::OutMalformed, bench),
            }
        }
        self.cut = pieces;
    }

    /// No policy is for it after all: in pieces, as it came. Its sender may know that the way takes no longer ones (`frag_max_size` in the kernel).
    pub(crate) fn pass_cut(
        &mut self,
        packet: PacketBuf,
        longest: usize,
        inside: &Inside,
        bench: &mut Bench<'_>,
    ) {
        let mtu = longest.min(bench.settings.plain_limit());
        if packet.len() <= mtu {
            return self.pass(packet, None, bench);
        }
        let len = packet.len() as u64;
        let mut pieces = self.cut_again(packet, mtu, inside, bench);
        if !pieces.is_empty() {
            self.traffic.sent += 1;
            self.traffic.sent_bytes += len;
        }
        pieces.drain().for_each(|piece| bench.out.wire.push(piece));
        self.cut = pieces;
    }

    /// Its pieces; none where nothing but headers is in it, which is dropped.
    fn cut_again(
        &mut self,
        packet: PacketBuf,
        mtu: usize,
        inside: &Inside,
        bench: &mut Bench<'_>,
    ) -> Batch {
        let mut pieces = std::mem::take(&mut self.cut);
        self.ident = self.ident.wrapping_add(1);
        let (place, next_header_at) = (inside.esp_offset(), inside.next_header_at());
        let cut = Cut { version: inside.version, place, next_header_at, mtu, ident: self.ident };
        split(packet.bytes(), &cut, packet.mark, bench.pool, &mut pieces);
        if pieces.is_empty() {
            bench.refuse(&mut self.traffic, 1, DropReason::OutMalformed);
        }
        bench.pool.give(packet);
        pieces
    }
}
