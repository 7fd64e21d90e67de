//! Reassembly of fragments for this host.

use uxfrm_packet::IpPacket;

use super::classify_outer::parse_whole;
use super::match_sa::match_sa;
use super::parse_outer::OuterClass;
use crate::datapath::context::BatchContext;
use crate::datapath::inbound::{Fate, RxBatch, RxItem};
use crate::fragments::datagram::LostFragment;
use crate::fragments::origin::FragmentOrigin;
use crate::fragments::reassembly::{Reassembled, Reassembly};
use crate::{Direction, DropReason, DropSubject, FlowKey, PolicyKind, Spi};

/// Datagrams for this host that came in fragments.
#[derive(Debug, Default)]
pub(crate) struct Reassembler {
    reassembly: Reassembly,
}

impl Reassembler {
    /// Drops incomplete datagrams after the time-out.
    pub(crate) fn expire(&mut self, ctx: &mut BatchContext<'_>) {
        if self.reassembly.expire(ctx.now) > 0 {
            self.discard_lost(ctx);
        }
    }

    /// Drops the fragments that were given up.
    #[cold]
    fn discard_lost(&mut self, ctx: &mut BatchContext<'_>) {
        for LostFragment { packet, by } in self.reassembly.take_lost() {
            let known = DropSubject { sa: by, ..DropSubject::NOBODY };
            ctx.discard_of(packet, 1, DropReason::InFragment, known);
        }
    }

    /// Fragments that wait for others.
    pub(crate) fn held(&self) -> u64 {
        self.reassembly.held()
    }

    /// Holds a fragment for this host until its datagram is complete, also one that came out of
    /// ESP: in the host's own stack anybody could mix plain fragments into it.
    #[inline(never)]
    pub(crate) fn reassemble(
        &mut self,
        place: usize,
        ip: &IpPacket,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> Result<Fate, DropReason> {
        // The SAs that the fragment came by so far.
        let path = rx.items[place].path.iter();
        let origin: FragmentOrigin = path.map(|entry| &*rx.rx_cache[*entry as usize].sa).collect();
        let packet = rx.take(place, ctx);
        let outcome = self.reassembly.add(packet, ip, &origin, ctx.now, ctx.pool);
        self.discard_lost(ctx);
        match outcome {
            Reassembled::Held | Reassembled::Refused => Ok(Fate::Gone),
            Reassembled::Whole { packet, pieces, longest: _, spans_rekey } => {
                ctx.traffic.absorbed += pieces - 1;
                rx.move_to_new_buffer(place, packet);
                match parse_whole(place, rx, ctx)? {
                    OuterClass::Fragment(_) => Err(DropReason::InFragment),
                    OuterClass::Plain(ip, direction) => {
                        if spans_rekey {
                            reject_spi_template(&rx.items[place], &ip, direction, rx, ctx)?;
                        }
                        Ok(rx.plain(place, &ip, direction))
                    }
                    // Only the inner packet's policies could tell which SA the ESP came by.
                    OuterClass::Esp(_) if spans_rekey => Err(DropReason::InFragment),
                    OuterClass::Esp(location) => match_sa(place, &location, &mut None, rx, ctx),
                }
            }
        }
    }
}

/// The policy check sees the SAs of the last fragment, while earlier ones may have come by the SAs
/// before a rekey. These differ in SPI only, so a template with an SPI is not satisfied.
fn reject_spi_template(
    item: &RxItem,
    ip: &IpPacket,
    direction: Direction,
    rx: &RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<(), DropReason> {
    let buffer = rx.buffers[item.buffer as usize].as_ref();
    let flow = FlowKey::of_bytes(ip, buffer.map(|buffer| item.bytes(buffer)).unwrap_or_default());
    let spd = &ctx.snapshot.spd;
    let deciding = [PolicyKind::Sub, PolicyKind::Main]
        .into_iter()
        .filter_map(|kind| spd.lookup_kind(kind, direction, &flow));
    let is_wanted = deciding.flat_map(|entry| entry.templates()).any(|wanted| wanted.spi != Spi(0));
    if is_wanted { Err(DropReason::InOtherState) } else { Ok(()) }
}
