//! Stage 1 for fragments from the host: datagrams are reassembled before the policy look-up, where
//! some policy needs whole datagrams to match or to protect.
//!
//! The host fragments before the TUN, whereas the kernel's XFRM sees the whole datagram
//! (`net/ipv4/ip_output.c: ip_finish_output` runs after `xfrm4_output`). Only the first fragment
//! has ports, so the others would miss every policy that selects by port, and leave in plaintext.

use uxfrm_packet::{IpPacket, PacketBuf};

use crate::DropReason;
use crate::datapath::context::BatchContext;
use crate::fragments::origin::FragmentOrigin;
use crate::fragments::reassembly::{Reassembled, Reassembly};

/// Datagrams that the host has fragmented.
#[derive(Debug, Default)]
pub(crate) struct Defragmenter {
    reassembly: Reassembly,
}

impl Defragmenter {
    /// Incomplete datagrams.
    pub(crate) fn datagrams(&self) -> usize {
        self.reassembly.datagrams()
    }

    /// Queues a fragment. The last missing one completes the datagram, which is returned with the
    /// length of its longest fragment.
    #[cold]
    pub(crate) fn add(
        &mut self,
        packet: PacketBuf,
        ctx: &mut BatchContext<'_>,
    ) -> Option<(PacketBuf, usize)> {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            ctx.discard(packet, 1, DropReason::OutMalformed);
            return None;
        };
        let before = self.reassembly.held();
        let outcome =
            self.reassembly.add(packet, &ip, &FragmentOrigin::default(), ctx.now, ctx.pool);
        ctx.traffic.held = ctx.traffic.held + self.reassembly.held() - before;
        self.discard_lost(ctx);
        match outcome {
            Reassembled::Held | Reassembled::Refused => None,
            Reassembled::Whole { packet, pieces, longest, spans_rekey: _ } => {
                ctx.traffic.absorbed += pieces - 1;
                Some((packet, longest))
            }
        }
    }

    /// Drops incomplete datagrams after the time-out.
    #[inline]
    pub(crate) fn expire(&mut self, ctx: &mut BatchContext<'_>) {
        let late = self.reassembly.expire(ctx.now);
        if late > 0 {
            ctx.traffic.held -= late;
            self.discard_lost(ctx);
        }
    }

    /// Drops the fragments that were given up.
    #[cold]
    fn discard_lost(&mut self, ctx: &mut BatchContext<'_>) {
        for lost in self.reassembly.take_lost() {
            ctx.discard(lost.packet, 1, DropReason::OutFragment);
        }
    }
}
