//! From the opened ESP packet back to the IP packet: the inner one in tunnel mode, the restored one in transport mode.

use std::net::IpAddr;

use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, SizeClass, UdpPath, Version};
use zerocopy::IntoBytes;

use super::outer;
use crate::datapath::context::Bench;
use crate::datapath::inbound::rx_cache::{Around, Load};
use crate::datapath::inbound::{Fate, Inbound, Sealed, narrow};
use crate::esp::decap::{self, Shell, Stripped};
use crate::{DropReason, Event, Mode};

/// Whether a next header is an IP packet in tunnel mode.
pub(crate) const fn is_ip(next_header: Protocol) -> bool {
    matches!(next_header, Protocol::IPIP | Protocol::IPV6)
}

impl Inbound {
    /// 7 Strip: takes off what is around the packet, and notes what its state carried.
    #[inline(never)]
    pub(crate) fn strip(
        &mut self,
        packet: &mut Sealed,
        load: &mut Load,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let around = &load.around;
        let buffer = self.buffers[packet.buffer as usize].as_ref().ok_or(DropReason::InRunt)?;
        // Long enough for all of these, says the crypto library.
        let (at, end) = (packet.at + around.lead, packet.at + packet.len - around.icv);
        let text = buffer.bytes().get(at as usize..end as usize).ok_or(DropReason::InRunt)?;
        let stripped = decap::strip(text)?;
        if around.mode == Mode::Tunnel && !is_ip(stripped.next_header) {
            return Err(DropReason::InModeMismatch);
        }
        let len = narrow(stripped.len);
        packet.carried = Some(len);
        load.packets += 1;
        load.bytes += u64::from(len);
        match around.mode {
            Mode::Tunnel => {
                let item = &mut self.items[packet.item as usize];
                (item.start, item.len) = (at, len);
                item.mark = around.output_mark.applied_to(item.mark);
                item.path.push(packet.used);
                let inner = (buffer, &text[..stripped.len]);
                let announced = stripped.next_header;
                let (questions, state) = (&mut self.questions, (&mut self.used, packet.used));
                match decap::usual_tunnelled(inner.1, announced, packet.tos, around.flags) {
                    Some(ip) => Ok(questions.ask_of_inner(item, &ip, inner, state, bench.settings)),
                    None => self.unwrap_v6(packet, announced, around, bench),
                }
            }
            Mode::Transport => self.unwrap_transport(packet, at as usize, stripped, around, bench),
            Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
                Err(DropReason::InModeMismatch)
            }
        }
    }

    /// Packets whose states let them pass and that came from elsewhere than those say.
    #[cold]
    pub(crate) fn tell_of_moves(&mut self, sealed: &[Sealed], bench: &mut Bench<'_>) {
        for (item, from) in self.movers.drain(..) {
            let passed = |packet: &&Sealed| packet.item == item && packet.carried.is_some();
            if let Some(packet) = sealed.iter().find(passed) {
                let state = self.used[packet.used as usize].sa.id();
                bench.tell(Event::Mapping { state, from });
            }
        }
    }

    /// The packet inside a tunnel, which is not IPv4 without options: plain, unless more ESP may be in it. TFC padding is behind its own length.
    #[inline(never)]
    fn unwrap_v6(
        &mut self,
        packet: &Sealed,
        announced: Protocol,
        around: &Around,
        bench: &Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        let inner = (buffer, item.bytes(buffer));
        match decap::usual_tunnelled_v6(inner.1, announced, packet.tos, around.flags) {
            Some(ip) => {
                let state = (&mut self.used, packet.used);
                Ok(self.questions.ask_of_inner(item, &ip, inner, state, bench.settings))
            }
            None => self.unwrap_closely(packet, announced, around, bench),
        }
    }

    /// As [`Self::unwrap_v6`], of whatever it may be.
    #[inline(never)]
    fn unwrap_closely(
        &mut self,
        packet: &Sealed,
        announced: Protocol,
        around: &Around,
        bench: &Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &mut self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        let bytes = item.bytes_mut(buffer);
        let ip = decap::check_tunnelled(bytes, announced, packet.tos, around.flags)?;
        if ip.version == Version::V4 && !outer::checksum_is_right(bytes) {
            return Err(DropReason::InMalformed);
        }
        let inner = (&*buffer, item.bytes(buffer));
        let state = (&mut self.used, packet.used);
        Ok(self.questions.ask_of_inner(item, &ip, inner, state, bench.settings))
    }

    #[inline(never)]
    fn unwrap_transport(
        &mut self,
        packet: &Sealed,
        text_at: usize,
        stripped: Stripped,
        around: &Around,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        match packet.manner.shell {
            Some(shell) => self.restore(packet, shell, text_at, stripped)?,
            None => self.rebuild(packet, text_at, stripped, bench)?,
        }
        if packet.manner.in_udp {
            self.renew_checksum(packet)?;
        }
        let item = &mut self.items[packet.item as usize];
        item.mark = around.output_mark.applied_to(item.mark);
        item.path.push(packet.used);
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return Ok(Fate::New) };
        let inner = (buffer, item.bytes(buffer));
        let (questions, state) = (&mut self.questions, (&mut self.used, packet.used));
        let looks = state.0.looks_mut(packet.used);
        if let Some((question, len)) =
            looks.and_then(|looks| looks.question(item.mark, around.spi, inner, questions))
        {
            item.len = narrow(len);
            return Ok(Fate::Plain(question));
        }
        match IpPacket::parse_fixed(inner.1) {
            // Its checksum was written just now.
            Some(ip) => Ok(questions.ask_of_inner(item, &ip, inner, state, bench.settings)),
            None => self.look_at_restored(packet, bench),
        }
    }

    /// A packet as transport mode had it, which is not IPv4 without options: plain, unless more ESP may be in it.
    #[inline(never)]
    fn look_at_restored(&mut self, packet: &Sealed, bench: &Bench<'_>) -> Result<Fate, DropReason> {
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return Ok(Fate::New) };
        let inner = (buffer, item.bytes(buffer));
        if let Some(ip) = IpPacket::parse_fixed_v6(inner.1) {
            let state = (&mut self.used, packet.used);
            return Ok(self.questions.ask_of_inner(item, &ip, inner, state, bench.settings));
        }
        IpPacket::parse(inner.1).map_err(|_| DropReason::InInnerMalformed)?;
        Ok(Fate::New)
    }

    /// What was in UDP may have come through a NAT, which changed the addresses.
    #[inline(never)]
    fn renew_checksum(&mut self, packet: &Sealed) -> Result<(), DropReason> {
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &mut self.buffers[item.buffer as usize] else { return Ok(()) };
        let bytes = item.bytes_mut(buffer);
        let ip = IpPacket::parse(bytes).map_err(|_| DropReason::InInnerMalformed)?;
        if decap::renew_checksum(bytes, &ip) {
            item.is_verified = true;
        }
        Ok(())
    }

    /// Moves the packet's own header to its payload.
    fn restore(
        &mut self,
        packet: &Sealed,
        shell: Shell,
        text_at: usize,
        stripped: Stripped,
    ) -> Result<(), DropReason> {
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &mut self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        let old = item.start as usize;
        let until = text_at + stripped.len;
        let new = decap::restore(&mut buffer.bytes_mut()[old..until], shell, stripped);
        (item.start, item.len) = (narrow(old + new), narrow(until - old - new));
        Ok(())
    }

    /// A packet whose header the kernel kept for itself gets a new one, in a buffer of its own.
    fn rebuild(
        &mut self,
        packet: &Sealed,
        text_at: usize,
        stripped: Stripped,
        bench: &mut Bench<'_>,
    ) -> Result<(), DropReason> {
        let item = &self.items[packet.item as usize];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        // Only what came from a socket has no header.
        let Some(path) = buffer.udp else { return Err(DropReason::InInnerMalformed) };
        let payload = &buffer.bytes()[text_at..text_at + stripped.len];
        let mut whole = bench.pool.take(SizeClass::holding(payload.len() + 40));
        (whole.mark, whole.if_id) = (buffer.mark, buffer.if_id);
        write_rebuilt(&mut whole, &path, stripped.next_header, payload)?;
        self.settle(packet.item as usize, whole);
        Ok(())
    }
}

fn write_rebuilt(
    whole: &mut PacketBuf,
    path: &UdpPath,
    protocol: Protocol,
    payload: &[u8],
) -> Result<(), DropReason> {
    let malformed = |_| DropReason::InInnerMalformed;
    let mut write = |header: &[u8]| {
        let bytes =
            whole.append(header.len() + payload.len()).ok_or(DropReason::InInnerMalformed)?;
        bytes[..header.len()].copy_from_slice(header);
        bytes[header.len()..].copy_from_slice(payload);
        Ok(())
    };
    match (path.remote.ip(), path.local.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let len = u16::try_from(payload.len() + 20).map_err(malformed)?;
            let mut header = Ipv4Header::new(source, destination, protocol, len);
            header.tos = path.tos;
            // The sender's id and DF are lost. It has arrived, so DF takes nothing away, and says that the id means nothing (RFC 6864 §4.1).
            header.flags_fragment = ipv4::DONT_FRAGMENT.into();
            header.fill_checksum();
            write(header.as_bytes())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let len = u16::try_from(payload.len()).map_err(malformed)?;
            let mut header = Ipv6Header::new(source, destination, protocol, len);
            header.set_traffic_class(path.tos);
            write(header.as_bytes())
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            Err(DropReason::InInnerMalformed)
        }
    }
}
