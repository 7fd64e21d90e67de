//! Makes a TCP sender slow down: by ECN if it is capable, otherwise by the loss of one segment.
//!
//! Only TCP packets with data are used: for all others a drop would have no effect on the sender.

use crate::checksum::{self, Sum};
use crate::ip::{IpPacket, Version};
use crate::tcp::{Tcp, TcpFlags};
use crate::{Checksum, Ecn, PacketBuf, Protocol, Segments, ipv6};

/// How a packet signals congestion to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionSignal {
    /// By CE (RFC 3168 §5), which it may have had before.
    ByMark,
    /// Its last segment was removed.
    ByShortening,
    /// By being dropped: it has one segment only and is unchanged; the caller drops it.
    ByLoss,
}

/// Whether [`signal`] has an effect: a whole TCP packet with data that neither opens nor closes a
/// connection.
#[must_use]
pub fn can_signal(packet: &PacketBuf) -> bool {
    TcpData::of(packet).is_some()
}

/// Makes a packet or super-packet signal congestion; `None`, and nothing changed, if it
/// [cannot](can_signal).
///
/// An ECN-capable packet (RFC 3168) gets a mark and loses nothing. Another super-packet loses its
/// last segment; with one segment left it becomes a single packet. Lengths and checksums stay
/// valid.
pub fn signal(packet: &mut PacketBuf) -> Option<CongestionSignal> {
    let stretch = TcpData::of(packet)?;
    match stretch.ip.ecn() {
        Ecn::Ect0 | Ecn::Ect1 => {
            stretch.ip.set_tos(packet.bytes_mut(), Ecn::Ce.in_tos(stretch.ip.tos));
            Some(CongestionSignal::ByMark)
        }
        Ecn::Ce => Some(CongestionSignal::ByMark),
        Ecn::NotEct => Some(stretch.lose_last(packet)),
    }
}

/// TCP data in one buffer.
struct TcpData {
    ip: IpPacket,
    /// Bytes of data.
    payload: usize,
}

impl TcpData {
    fn of(packet: &PacketBuf) -> Option<Self> {
        let ip = IpPacket::parse(packet.bytes()).ok()?;
        if ip.protocol != Protocol::TCP || ip.is_fragment() || ip.trailing > 0 {
            return None;
        }
        let tcp = Tcp::parse(ip.upper(packet.bytes())).ok()?;
        let is_control =
            tcp.header.flags.has(TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST));
        let payload = tcp.payload.len();
        (payload > 0 && !is_control).then_some(Self { ip, payload })
    }

    /// Removes the last of several segments; the checksum is partial.
    fn lose_last(&self, packet: &mut PacketBuf) -> CongestionSignal {
        let (Segments::Tcp { mss }, Checksum::Partial { start, offset }) =
            (packet.segments, packet.checksum)
        else {
            return CongestionSignal::ByLoss;
        };
        let mss = usize::from(mss.max(1));
        let kept = (self.payload - 1) / mss * mss;
        if kept == 0 {
            return CongestionSignal::ByLoss;
        }
        let len = packet.len() - (self.payload - kept);
        packet.trim(len);
        if kept == mss {
            packet.segments = Segments::One;
        }
        self.renew_lengths(packet, usize::from(start) + usize::from(offset));
        CongestionSignal::ByShortening
    }

    /// Updates the lengths; the pseudo-header's sum is at `checksum_at`.
    fn renew_lengths(&self, packet: &mut PacketBuf, checksum_at: usize) {
        let bytes = packet.bytes_mut();
        let (total, upper) = (narrow(bytes.len()), narrow(bytes.len() - self.ip.header_len));
        match self.ip.version {
            Version::V4 => {
                let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                let checksum = checksum::update(word(10), word(2), total);
                bytes[2..4].copy_from_slice(&total.to_be_bytes());
                bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            Version::V6 => {
                let payload = narrow(bytes.len() - ipv6::HEADER_LEN);
                bytes[4..6].copy_from_slice(&payload.to_be_bytes());
            }
        }
        let (source, destination) = (self.ip.source, self.ip.destination);
        let sum = Sum::of_pseudo(source, destination, Protocol::TCP, upper.into());
        if let Some(field) = bytes.get_mut(checksum_at..checksum_at + 2) {
            field.copy_from_slice(&sum.fold().to_be_bytes());
        }
    }
}

/// A length that fits into 16 bits, as it did before.
fn narrow(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SegmentPlan;
    use crate::checksum::complete;
    use crate::test_packets::{TestPacket, any_packet, joinable};

    fn with_ecn(mut sample: TestPacket, ecn: Ecn) -> TestPacket {
        sample.set_ecn(ecn);
        sample
    }

    /// The wire packets, one by one.
    fn wire(packet: &PacketBuf) -> Vec<Vec<u8>> {
        if packet.segments == Segments::One {
            let mut single = PacketBuf::from_slice(packet.bytes());
            single.checksum = packet.checksum;
            complete(&mut single).unwrap();
            return vec![single.bytes().to_vec()];
        }
        let plan = SegmentPlan::new(packet).unwrap();
        let piece = |k| {
            let mut out = vec![0; plan.len(k)];
            plan.write(k, packet.bytes(), &mut out);
            out
        };
        (0..plan.count()).map(piece).collect()
    }

    proptest! {
        #[test]
        fn sender_without_ecn_loses_last_segment(
            sample in joinable(600), mss in 1_u16..300,
        ) {
            let sample = with_ecn(sample, Ecn::NotEct);
            let mut packet = sample.super_packet(mss);
            let before = packet.bytes().to_vec();
            let told = signal(&mut packet);
            let kept = (sample.payload.len() - 1) / usize::from(mss) * usize::from(mss);
            if sample.transport.clone().tcp().is_none() {
                prop_assert_eq!((told, packet.bytes()), (None, &before[..]));
            } else if kept == 0 {
                prop_assert_eq!((told, packet.bytes()), (Some(CongestionSignal::ByLoss), &before[..]));
            } else {
                prop_assert_eq!(told, Some(CongestionSignal::ByShortening));
                let left = TestPacket { payload: sample.payload[..kept].to_vec(), ..sample };
                let expected = if kept == usize::from(mss) { vec![left.bytes()] } else { wire(&left.super_packet(mss)) };
                prop_assert_eq!(wire(&packet), expected);
            }
        }

        #[test]
        fn sender_with_ecn_is_marked(
            sample in joinable(600), mss in 1_u16..300, which in 0_usize..3,
        ) {
            let ecn = [Ecn::Ect0, Ecn::Ect1, Ecn::Ce][which];
            let mut packet = with_ecn(sample.clone(), ecn).super_packet(mss);
            let told = signal(&mut packet);
            let is_tcp = sample.transport.clone().tcp().is_some();
            prop_assert_eq!(told, is_tcp.then_some(CongestionSignal::ByMark));
            let after = if is_tcp { Ecn::Ce } else { ecn };
            let expected = with_ecn(sample, after).super_packet(mss);
            prop_assert_eq!(packet.bytes(), expected.bytes());
        }

        #[test]
        fn control_and_empty_segments_are_unchanged(sample in any_packet(4)) {
            let mut packet = PacketBuf::from_slice(&sample.bytes());
            let has_data = !sample.payload.is_empty();
            let is_heard = sample.transport.clone().tcp().is_some_and(|tcp| {
                has_data && ![tcp.syn, tcp.fin, tcp.rst].contains(&true)
            });
            prop_assert_eq!(can_signal(&packet), is_heard);
            prop_assert_eq!(signal(&mut packet).is_some(), is_heard);
        }
    }

    #[test]
    fn any_bytes_are_accepted() {
        for len in 0..60 {
            let mut packet = PacketBuf::from_slice(&[0x45; 60][..len]);
            packet.segments = Segments::Tcp { mss: 0 };
            packet.checksum = Checksum::Partial { start: u16::MAX, offset: u16::MAX };
            assert_eq!(signal(&mut packet), None);
        }
    }
}
