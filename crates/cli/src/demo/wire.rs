//! Captured packets by kind, with one example of each.

use serde::Serialize;
use uxfrm_bench::pair::{ESP_IN_UDP, marker};
use uxfrm_packet::esp::Esp;
use uxfrm_packet::icmp::{self, Icmp};
use uxfrm_packet::tcp::Tcp;
use uxfrm_packet::udp::UdpDatagram;
use uxfrm_packet::{IpPacket, ParseError, Protocol};

/// Bytes of a packet that are kept to show.
const SHOWN: usize = 112;

/// The kinds of packets that the demo distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PacketKind {
    /// A ping, or another ICMP message, in the clear.
    Icmp,
    /// TCP in the clear.
    Tcp,
    /// UDP in the clear.
    Udp,
    /// ESP on IP.
    Esp,
    /// ESP in UDP.
    EspInUdp,
    /// Anything else on IP.
    Other,
}

/// All packets of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CapturedKind {
    pub(crate) kind: PacketKind,
    /// The number of packets; a super-packet, which the device would segment, counts once.
    pub(crate) packets: u64,
    /// Packets in which the plaintext is readable.
    pub(crate) plaintext_packets: u64,
    /// A description of the example: the first packet with readable plaintext, else the first.
    pub(crate) summary: String,
    /// Its first bytes, from the IP header on, in hexadecimal.
    #[serde(serialize_with = "in_hex")]
    pub(crate) head: Vec<u8>,
}

/// All packets on the wire in one case, by kind in the order of their first packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct WireCapture {
    pub(crate) kinds: Vec<CapturedKind>,
}

impl WireCapture {
    /// Records an IP packet, as [`PacketKind::Other`] if it cannot be parsed.
    pub(crate) fn record(&mut self, packet: &[u8]) {
        let (kind, summary) =
            describe(packet).unwrap_or_else(|error| (PacketKind::Other, error.to_string()));
        let readable = u64::from(marker::is_visible(packet));
        let head = packet[..packet.len().min(SHOWN)].to_vec();
        let seen = self.kinds.iter_mut().find(|captured| captured.kind == kind);
        let Some(seen) = seen else {
            let first =
                CapturedKind { kind, packets: 1, plaintext_packets: readable, summary, head };
            return self.kinds.push(first);
        };
        seen.packets += 1;
        seen.plaintext_packets += readable;
        if readable == 1 && seen.plaintext_packets == 1 {
            (seen.summary, seen.head) = (summary, head);
        }
    }

    /// Whether the plaintext is readable in any packet.
    pub(crate) fn shows_plaintext(&self) -> bool {
        self.kinds.iter().any(|captured| captured.plaintext_packets > 0)
    }

    /// Whether there was a packet of this kind.
    pub(crate) fn has(&self, kind: PacketKind) -> bool {
        self.kinds.iter().any(|captured| captured.kind == kind)
    }

    /// The captured kinds in a few words.
    pub(crate) fn in_short(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|captured| captured.kind.word()).collect();
        let what = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") };
        if self.shows_plaintext() { format!("{what}; plaintext readable") } else { what }
    }
}

impl PacketKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Icmp => "ICMP",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Esp => "ESP",
            Self::EspInUdp => "ESP in UDP",
            Self::Other => "other",
        }
    }
}

impl CapturedKind {
    /// A hex dump of the kept bytes: offset, hexadecimal, printable characters.
    pub(crate) fn dump(&self) -> impl Iterator<Item = String> + '_ {
        self.head.chunks(16).enumerate().map(|(line, bytes)| {
            let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let text: String = bytes.iter().map(|&byte| printable(byte)).collect();
            format!("{:04x}  {:<47}  {text}", line * 16, hex.join(" "))
        })
    }
}

fn printable(byte: u8) -> char {
    if byte == b' ' || byte.is_ascii_graphic() { char::from(byte) } else { '.' }
}

fn in_hex<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The kind of an IP packet and its description.
fn describe(packet: &[u8]) -> Result<(PacketKind, String), ParseError> {
    let ip = IpPacket::parse(packet)?;
    let (kind, upper) = describe_upper(&ip, ip.upper(packet))?;
    Ok((kind, format!("{} > {}: {upper}", ip.source, ip.destination)))
}

fn describe_upper(ip: &IpPacket, bytes: &[u8]) -> Result<(PacketKind, String), ParseError> {
    Ok(match ip.protocol {
        Protocol::ESP => (PacketKind::Esp, describe_esp(bytes)?),
        Protocol::UDP => return describe_udp(bytes),
        Protocol::ICMP => (PacketKind::Icmp, describe_icmp(bytes)?),
        Protocol::TCP => {
            let Tcp { header, payload, .. } = Tcp::parse(bytes)?;
            let ports = format!("TCP {} > {}", header.source, header.destination);
            (PacketKind::Tcp, format!("{ports}, {} bytes of data", payload.len()))
        }
        Protocol(number) => {
            (PacketKind::Other, format!("protocol {number}, {} bytes", bytes.len()))
        }
    })
}

fn describe_udp(bytes: &[u8]) -> Result<(PacketKind, String), ParseError> {
    let UdpDatagram { header, payload, .. } = UdpDatagram::parse(bytes)?;
    let (source, destination) = (header.source.get(), header.destination.get());
    let ports = format!("UDP {source} > {destination}");
    if source == ESP_IN_UDP || destination == ESP_IN_UDP {
        return Ok((PacketKind::EspInUdp, format!("{ports}, {}", describe_esp(payload)?)));
    }
    Ok((PacketKind::Udp, format!("{ports}, {} bytes of data", payload.len())))
}

fn describe_esp(bytes: &[u8]) -> Result<String, ParseError> {
    let Esp { header, body } = Esp::parse(bytes)?;
    let (spi, sequence) = (header.spi.get(), header.sequence.get());
    Ok(format!("ESP spi {spi:#x} seq {sequence}, {} bytes of IV, ciphertext and ICV", body.len()))
}

fn describe_icmp(bytes: &[u8]) -> Result<String, ParseError> {
    let Icmp { header, payload } = Icmp::parse(bytes)?;
    let what = match header.kind {
        icmp::ECHO => "echo request".to_owned(),
        icmp::ECHO_REPLY => "echo reply".to_owned(),
        kind => format!("type {kind} code {}", header.code),
    };
    Ok(format!("ICMP {what}, {} bytes of data", payload.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet from 192.0.2.1 to 192.0.2.2.
    fn packet(protocol: u8, upper: &[u8]) -> Vec<u8> {
        let len = u16::try_from(20 + upper.len()).unwrap().to_be_bytes();
        let mut packet = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend(upper);
        packet
    }

    fn udp(port: u8, payload: &[u8]) -> Vec<u8> {
        let len = u8::try_from(8 + payload.len()).unwrap();
        [&[0x11, port, 0x11, port, 0, len, 0, 0], payload].concat()
    }

    #[test]
    fn each_kind_is_told_in_words() {
        let esp = [0, 0, 0x10, 0, 0, 0, 0, 7, 1, 2, 3, 4];
        let cases: [(u8, Vec<u8>, PacketKind, &str); 5] = [
            (
                50,
                esp.to_vec(),
                PacketKind::Esp,
                "ESP spi 0x1000 seq 7, 4 bytes of IV, ciphertext and ICV",
            ),
            (
                17,
                udp(0x94, &esp),
                PacketKind::EspInUdp,
                "UDP 4500 > 4500, ESP spi 0x1000 seq 7, 4 bytes of IV, ciphertext and ICV",
            ),
            (17, udp(0x95, &esp), PacketKind::Udp, "UDP 4501 > 4501, 12 bytes of data"),
            (
                1,
                vec![8, 0, 0, 0, 0, 0, 0, 0, 9],
                PacketKind::Icmp,
                "ICMP echo request, 1 bytes of data",
            ),
            (47, vec![0; 4], PacketKind::Other, "protocol 47, 4 bytes"),
        ];
        for (protocol, upper, kind, words) in cases {
            let expected = Ok((kind, format!("192.0.2.1 > 192.0.2.2: {words}")));
            assert_eq!(describe(&packet(protocol, &upper)), expected);
        }
    }

    #[test]
    fn packets_are_counted_by_kind_and_one_is_kept() {
        let mut wire = WireCapture::default();
        let mut clear = vec![8, 0, 0, 0, 0, 0, 0, 0];
        clear.extend(marker::fill(56));
        wire.record(&packet(50, &[1; 40]));
        assert!(!wire.shows_plaintext());
        wire.record(&packet(1, &clear));
        wire.record(&packet(50, &[2; 40]));
        let seen: Vec<_> =
            wire.kinds.iter().map(|s| (s.kind, s.packets, s.plaintext_packets)).collect();
        assert_eq!(seen, [(PacketKind::Esp, 2, 0), (PacketKind::Icmp, 1, 1)]);
        assert!(wire.shows_plaintext() && wire.has(PacketKind::Icmp) && !wire.has(PacketKind::Tcp));
        assert_eq!(wire.kinds[0].head, packet(50, &[1; 40]));
        assert_eq!(wire.in_short(), "ESP, ICMP; plaintext readable");
    }

    #[test]
    fn example_with_plaintext_is_kept() {
        let (opaque, clear) = (packet(50, &[1; 40]), packet(50, &marker::fill(40)));
        let mut wire = WireCapture::default();
        for packet in [&opaque, &clear, &packet(50, &marker::fill(48))] {
            wire.record(packet);
        }
        assert_eq!(wire.kinds[0].head, clear);
        assert_eq!(wire.kinds[0].plaintext_packets, 2);
    }

    #[test]
    fn hex_dump_shows_bytes_and_characters() {
        let captured = CapturedKind {
            kind: PacketKind::Esp,
            packets: 1,
            plaintext_packets: 0,
            summary: String::new(),
            head: (0x38..0x4a).chain([0x7f]).collect(),
        };
        let lines: Vec<String> = captured.dump().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[0],
            "0000  38 39 3a 3b 3c 3d 3e 3f 40 41 42 43 44 45 46 47  89:;<=>?@ABCDEFG"
        );
        assert!(lines[1].starts_with("0010  48 49 7f  ") && lines[1].ends_with("  HI."));
    }
}
