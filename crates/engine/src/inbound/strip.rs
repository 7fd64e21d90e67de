//! From the opened ESP packet back to the IP packet: the inner one in tunnel mode, the restored one in transport mode.

use std::net::IpAddr;

use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol, SizeClass, UdpPath, Version};
use zerocopy::IntoBytes;

use super::{Fate, Inbound, Sealed, narrow, peel};
use crate::esp::decapsulate::{self, Shell, Stripped};
use crate::worker::Bench;
use crate::{DropReason, Event, Mode};

/// Whether a next header is an IP packet in tunnel mode.
pub(super) const fn is_ip(next_header: Protocol) -> bool {
    matches!(next_header, Protocol::IPIP | Protocol::IPV6)
}

impl Inbound {
    /// 7 Strip.
    pub(super) fn strip(&mut self, bench: &mut Bench<'_>) {
        let mut sealed = std::mem::take(&mut self.sealed);
        for packet in &sealed {
            let place = packet.item as usize;
            if self.items[place].fate != Fate::Sealed {
                continue;
            }
            match self.unwrap(packet, bench) {
                Ok(fate) => self.items[place].fate = fate,
                Err(reason) => self.drop(place, reason, bench),
            }
        }
        sealed.clear();
        self.sealed = sealed;
    }

    /// The text of an opened packet: how long it is and what it holds.
    #[inline]
    pub(super) fn text(&self, packet: &Sealed) -> Result<Stripped, DropReason> {
        let used = &self.used[packet.used as usize];
        let text = self.buffers[packet.buffer as usize].as_ref().and_then(|buffer| {
            // Long enough for all of these, says the crypto library.
            let (at, end) = (packet.at + used.lead, packet.at + packet.len - used.icv);
            buffer.bytes().get(at as usize..end as usize)
        });
        decapsulate::strip(text.ok_or(DropReason::InRunt)?)
    }

    #[inline(always)]
    fn unwrap(&mut self, packet: &Sealed, bench: &mut Bench<'_>) -> Result<Fate, DropReason> {
        if packet.moved {
            self.tell_of_move(packet, bench);
        }
        match self.used[packet.used as usize].mode {
            Mode::Tunnel => self.unwrap_tunnel(packet, bench),
            Mode::Transport => self.unwrap_transport(packet, bench),
            Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
                Err(DropReason::InModeMismatch)
            }
        }
    }

    #[cold]
    fn tell_of_move(&self, packet: &Sealed, bench: &mut Bench<'_>) {
        let state = self.used[packet.used as usize].sa.id();
        let movers = self.movers.iter().find(|(item, _)| *item == packet.item);
        if let Some(&(_, from)) = movers {
            bench.tell(Event::Mapping { state, from });
        }
    }

    /// The packet inside: plain, unless more ESP may be in it. TFC padding is behind its own length.
    #[inline(always)]
    fn unwrap_tunnel(&mut self, packet: &Sealed, bench: &Bench<'_>) -> Result<Fate, DropReason> {
        let used = &self.used[packet.used as usize];
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &mut self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        item.start = packet.at + used.lead;
        item.len = narrow(packet.stripped.len);
        item.mark = used.output_mark.applied_to(item.mark);
        item.path.push(packet.used);
        let announced = packet.stripped.next_header;
        match decapsulate::usual_tunnelled(item.bytes(buffer), announced, packet.tos, used.flags) {
            Some(ip) => {
                Ok(self.questions.ask_of_inner(item, &ip, buffer, used.spi, bench.settings))
            }
            None => self.unwrap_v6(packet, bench),
        }
    }

    /// As [`Self::unwrap_tunnel`], of all that is not IPv4 without options.
    #[inline(never)]
    fn unwrap_v6(&mut self, packet: &Sealed, bench: &Bench<'_>) -> Result<Fate, DropReason> {
        let used = &self.used[packet.used as usize];
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        let announced = packet.stripped.next_header;
        match decapsulate::usual_tunnelled_v6(item.bytes(buffer), announced, packet.tos, used.flags)
        {
            Some(ip) => {
                Ok(self.questions.ask_of_inner(item, &ip, buffer, used.spi, bench.settings))
            }
            None => self.unwrap_closely(packet, bench),
        }
    }

    /// As [`Self::unwrap_tunnel`], of whatever it may be.
    #[inline(never)]
    fn unwrap_closely(&mut self, packet: &Sealed, bench: &Bench<'_>) -> Result<Fate, DropReason> {
        let used = &self.used[packet.used as usize];
        let item = &mut self.items[packet.item as usize];
        let Some(buffer) = &mut self.buffers[item.buffer as usize] else {
            return Err(DropReason::InInnerMalformed);
        };
        let bytes = item.bytes_mut(buffer);
        let announced = packet.stripped.next_header;
        let ip = decapsulate::check_tunnelled(bytes, announced, packet.tos, used.flags)?;
        if ip.version == Version::V4 && !peel::checksum_is_right(bytes) {
            return Err(DropReason::InMalformed);
        }
        Ok(self.questions.ask_of_inner(item, &ip, buffer, used.spi, bench.settings))
    }

    fn unwrap_transport(
        &mut self,
        packet: &Sealed,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let used = &self.used[packet.used as usize];
        let (text_at, output_mark) = ((packet.at + used.lead) as usize, used.output_mark);
        let spi = used.spi;
        match packet.shell {
            Some(shell) => self.restore(packet, shell, text_at, packet.stripped)?,
            None => self.rebuild(packet, text_at, packet.stripped, bench)?,
        }
        let Self { items, buffers, questions, .. } = self;
        let item = &mut items[packet.item as usize];
        item.mark = output_mark.applied_to(item.mark);
        item.path.push(packet.used);
        let Some(buffer) = &buffers[item.buffer as usize] else { return Ok(Fate::New) };
        match IpPacket::parse_fixed(item.bytes(buffer)) {
            // Its checksum was written just now.
            Some(ip) => Ok(questions.ask_of_inner(item, &ip, buffer, spi, bench.settings)),
            None => Ok(Fate::New),
        }
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
        let around = &mut buffer.bytes_mut()[old..until];
        let (new, renewed) = decapsulate::restore(around, shell, stripped, packet.in_udp)?;
        (item.start, item.len) = (narrow(old + new), narrow(until - old - new));
        if renewed {
            item.checksum = Checksum::Verified;
        }
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
        let ip = IpPacket::parse(whole.bytes()).map_err(|_| DropReason::InInnerMalformed)?;
        let renewed = decapsulate::renew_checksum(whole.bytes_mut(), &ip);
        self.settle(packet.item as usize, whole);
        if renewed {
            self.items[packet.item as usize].checksum = Checksum::Verified;
        }
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
