//! ESP for single packets, for senders without bundles, such as devices. The bytes are the same as
//! a worker's.
//!
//! Outbound: [`EspEncapsulator::measure`] the packet, place it in a buffer,
//! [`EspEncapsulator::wrap`] it there, seal the returned range, and [`EspEncapsulator::finish`].
//! Inbound: open, then [`decapsulate`].

use std::{ops::Range, sync::Arc};

use uxfrm_packet::{IpPacket, Protocol, Version, udp};

use super::decap::{self, OuterHeader};
use super::encap::{EncapLayer, EncapMode, InnerInfo, OuterForm};
use super::headers::{self, SeqAndId};
use crate::{DropReason, Family, FlowKey, Mode, Sa, SourcePorts};

/// Encapsulation by one SA.
#[derive(Debug)]
pub struct EspEncapsulator(EncapLayer);

/// Lengths of a packet that is to be encapsulated.
#[derive(Clone, Copy, Debug)]
pub struct EncapPlan {
    inner: InnerInfo,
    after: InnerInfo,
    len: usize,
    before: usize,
    clear_len: usize,
    total: usize,
}

impl EncapPlan {
    /// Bytes of new headers before the packet.
    #[must_use]
    pub const fn before(&self) -> usize {
        self.before
    }

    /// Total length.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Bytes charged to the SA: ESP payload without padding.
    #[must_use]
    pub const fn charged(&self) -> usize {
        self.len - self.clear_len
    }
}

impl EspEncapsulator {
    /// Encapsulation by `sa`. Its tunnel source must be known.
    ///
    /// # Errors
    /// [`DropReason::OutBundle`] without a source, or for ESP in TCP;
    /// [`DropReason::OutModeMismatch`] for an unsupported mode.
    pub fn new(sa: &Arc<Sa>, hop_limit: u8) -> Result<Self, DropReason> {
        EncapLayer::new(sa, None, OuterForm::Packet, hop_limit).map(Self)
    }

    /// The SA.
    #[must_use]
    pub fn sa(&self) -> &Sa {
        &self.0.sa
    }

    /// Measures a whole IP packet.
    ///
    /// # Errors
    /// [`DropReason::OutMalformed`]; [`DropReason::OutModeMismatch`] in transport mode for a packet
    /// of the other family; [`DropReason::OutNoRoom`] if the result would exceed an IP packet.
    pub fn measure(&self, packet: &[u8]) -> Result<EncapPlan, DropReason> {
        let ip = IpPacket::parse(packet).map_err(|_| DropReason::OutMalformed)?;
        if ip.total_len != packet.len() {
            return Err(DropReason::OutMalformed);
        }
        if matches!(self.0.wrap, EncapMode::Transport)
            && Family::of(ip.source) != self.0.sa.family()
        {
            return Err(DropReason::OutModeMismatch);
        }
        let mut inner = InnerInfo::of(&ip);
        if self.0.uses_flow_ports() {
            // Default seed and range: a device has no host's.
            inner.source_port = FlowKey::of_bytes(&ip, packet).source_port(&SourcePorts::default());
        }
        let total = self.0.sealed_len(packet.len(), &inner);
        if total > usize::from(u16::MAX) {
            return Err(DropReason::OutNoRoom);
        }
        Ok(EncapPlan {
            inner,
            after: self.0.after(&inner),
            len: packet.len(),
            before: self.0.headroom(),
            clear_len: self.0.clear_len(&inner),
            total,
        })
    }

    /// Writes headers, padding and trailer around the packet at offset [`EncapPlan::before`] of
    /// `room`, which has [`EncapPlan::total`] bytes. Returns the range to seal: from the SPI to the
    /// end of the ICV. `id` is the identification of an outer IPv4 header without DF.
    pub fn wrap(
        &self,
        measured: &EncapPlan,
        room: &mut [u8],
        sequence: u64,
        id: u16,
    ) -> Range<usize> {
        let EncapPlan { inner, after, len, .. } = measured;
        headers::wrap(room, *len, &self.0, (inner, after), SeqAndId { sequence, id })
    }

    /// Writes the UDP checksum over IPv6, which covers sealed bytes.
    pub fn finish(&self, measured: &EncapPlan, packet: &mut [u8]) {
        headers::finish(packet, &self.0, &measured.after);
    }
}

/// Result of decapsulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecapResult {
    /// Range of the plain packet. There may be TFC padding beyond its own length.
    pub plain: Range<usize>,
    /// Bytes charged to the SA: ESP payload without padding.
    pub charged: usize,
    /// Whether the transport checksum was rewritten because of a NAT.
    pub renewed: bool,
}

/// Removes the opened ESP at `esp` (from the SPI to the end of the ICV) from `packet`, an IP packet
/// without options that begins with it or with UDP.
///
/// # Errors
/// [`DropReason::InRunt`], [`DropReason::InPadding`], [`DropReason::InDummy`],
/// [`DropReason::InModeMismatch`], [`DropReason::InInnerMalformed`], [`DropReason::InEcn`].
pub fn decapsulate(
    packet: &mut [u8],
    esp: Range<usize>,
    sa: &Sa,
) -> Result<DecapResult, DropReason> {
    let ip = IpPacket::parse(packet).map_err(|_| DropReason::InMalformed)?;
    let (transform, words) = (sa.transform(), sa.config());
    let esp_header_len = uxfrm_packet::esp::HEADER_LEN + transform.iv_len();
    let text_at = esp.start + esp_header_len;
    let text = packet.get(text_at..esp.end.saturating_sub(transform.icv_len()));
    let stripped = decap::strip(text.ok_or(DropReason::InRunt)?)?;
    let until = text_at + stripped.len;
    let mut renewed = false;
    let from = match words.mode {
        Mode::Tunnel if !matches!(stripped.next_header, Protocol::IPIP | Protocol::IPV6) => {
            return Err(DropReason::InModeMismatch);
        }
        Mode::Tunnel => {
            let plain = &mut packet[text_at..until];
            decap::check_tunnelled(plain, stripped.next_header, ip.tos, words.flags)?;
            text_at
        }
        Mode::Transport => {
            let next_header_at = match ip.version {
                Version::V4 => 9,
                Version::V6 => 6,
            };
            // Bounded by the packet, which is below 64 KiB.
            let len = u16::try_from(ip.header_len).map_err(|_| DropReason::InMalformed)?;
            let outer_hdr = OuterHeader { version: ip.version, len, next_header_at };
            let in_udp = esp.start >= ip.header_len + udp::HEADER_LEN;
            let at = decap::restore(&mut packet[..until], outer_hdr, stripped);
            let plain = &mut packet[at..until];
            let ip = IpPacket::parse(plain).map_err(|_| DropReason::InInnerMalformed)?;
            renewed = in_udp && decap::rewrite_checksum(plain, &ip);
            at
        }
        Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
            return Err(DropReason::InModeMismatch);
        }
    };
    Ok(DecapResult { plain: from..until, charged: stripped.len, renewed })
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::{Backend, Crypter, Iv, OpenJob, SealJob, SeqHigh};
    use uxfrm_packet::ipv4::Ipv4Header;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::{Moment, SaConfig, SharedSaConfig, UdpEncap, UdpEncapKind, sa::sample};

    fn plain() -> Vec<u8> {
        let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut header = Ipv4Header::new(ends.0, ends.1, Protocol::ICMP, 20 + 9);
        header.fill_checksum();
        [header.as_bytes(), b"\x08\0\0\0\0\0\0\0!"].concat()
    }

    fn sa(mode: Mode, encap: Option<UdpEncap>) -> Arc<Sa> {
        let config = SaConfig { mode, encap, ..sample("10.0.0.2", 7) };
        let words = SharedSaConfig::of(&config, Backend::Portable);
        Sa::new(&config, Arc::new(words), Moment(0))
    }

    #[test]
    fn encapsulated_packet_opens_to_the_same_packet() {
        let udp = UdpEncap {
            kind: UdpEncapKind::Esp,
            source_port: 4500,
            destination_port: 4500,
            original_address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        };
        let spread = UdpEncap { source_port: 0, ..udp };
        let mut crypter = Crypter::new().unwrap();
        for (mode, encap, before) in [
            (Mode::Tunnel, None, 36),
            (Mode::Transport, None, 16),
            (Mode::Tunnel, Some(udp), 44),
            (Mode::Transport, Some(udp), 24),
            (Mode::Tunnel, Some(spread), 44),
        ] {
            let encapsulation = EspEncapsulator::new(&sa(mode, encap), 64).unwrap();
            let measured = encapsulation.measure(&plain()).unwrap();
            assert_eq!(measured.before(), before);
            let mut room = vec![0; measured.total()];
            room[before..before + plain().len()].copy_from_slice(&plain());
            let esp = encapsulation.wrap(&measured, &mut room, 5, 9);
            let key = encapsulation.sa().key();
            let job = SealJob::in_place(key, SeqHigh::None, Iv::Counter(5), &mut room[esp.clone()]);
            crypter.seal(&mut [job]);
            encapsulation.finish(&measured, &mut room);
            assert_eq!(usize::from(u16::from_be_bytes([room[2], room[3]])), room.len());
            let flow_has_port = encap.is_some_and(|encap| encap.source_port == 0);
            let source = u16::from_be_bytes([room[20], room[21]]);
            assert!(!flow_has_port || ![0, 4500].contains(&source));
            let job = OpenJob::in_place(key, SeqHigh::None, &mut room[esp.clone()]);
            crypter.open(&mut [job]);
            let got = decapsulate(&mut room, esp, encapsulation.sa()).unwrap();
            assert_eq!(room[got.plain], plain(), "{mode:?}");
            assert_eq!(got.charged, measured.charged());
        }
    }

    #[test]
    fn unsuitable_packet_gives_drop_reason() {
        let transport = EspEncapsulator::new(&sa(Mode::Transport, None), 64).unwrap();
        let mut long = plain();
        long.push(0);
        assert_eq!(transport.measure(&long).unwrap_err(), DropReason::OutMalformed);
        let mut v6 = vec![0; 40];
        v6[0] = 0x60;
        v6[6] = 59;
        assert_eq!(transport.measure(&v6).unwrap_err(), DropReason::OutModeMismatch);
    }
}
