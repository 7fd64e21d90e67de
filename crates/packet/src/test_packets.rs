//! Packets for tests, written by etherparse.

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header,
    Ipv6RawExtHeader, Ipv6RoutingExtensions, TcpHeader, TransportHeader, UdpHeader,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::{Checksum, Ecn, PacketBuf, Segments};

/// A packet by its parts.
#[derive(Clone, Debug)]
pub(crate) struct TestPacket {
    pub(crate) ip: IpHeaders,
    pub(crate) transport: TransportHeader,
    pub(crate) payload: Vec<u8>,
}

impl TestPacket {
    /// The whole packet with valid lengths and checksums.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut ip, mut transport) = (self.ip.clone(), self.transport.clone());
        let upper_len = transport.header_len() + self.payload.len();
        if let TransportHeader::Udp(header) = &mut transport {
            header.length = upper_len.try_into().unwrap();
        }
        ip.set_next_headers(self.number());
        ip.set_payload_len(upper_len).unwrap();
        match &ip {
            IpHeaders::Ipv4(header, _) => {
                transport.update_checksum_ipv4(header, &self.payload).unwrap()
            }
            IpHeaders::Ipv6(header, _) => {
                transport.update_checksum_ipv6(header, &self.payload).unwrap()
            }
        }
        let mut bytes = Vec::new();
        ip.write(&mut bytes).unwrap();
        transport.write(&mut bytes).unwrap();
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// As virtio delivers it: to be segmented by `size` bytes, with the pseudo-header's sum in the
    /// checksum field.
    pub(crate) fn super_packet(&self, size: u16) -> PacketBuf {
        let start = self.ip.header_len();
        let mut bytes = self.bytes();
        let upper_len = bytes.len() - start;
        let (segments, offset) = match self.transport {
            TransportHeader::Tcp(_) => (Segments::Tcp { mss: size }, 16),
            TransportHeader::Udp(_) => (Segments::Udp { size }, 6),
            TransportHeader::Icmpv4(_) | TransportHeader::Icmpv6(_) | TransportHeader::Igmp(_) => {
                unreachable!("test packets are TCP or UDP")
            }
        };
        let sum = self.pseudo_sum(upper_len);
        bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        let mut packet = PacketBuf::from_slice(&bytes);
        packet.segments = segments;
        packet.checksum = Checksum::Partial {
            start: start.try_into().unwrap(),
            offset: offset.try_into().unwrap(),
        };
        packet
    }

    /// Segment `k` by plain cutting.
    pub(crate) fn segment(&self, k: usize, size: usize) -> Self {
        let count = self.payload.len().div_ceil(size).max(1);
        let mut piece = self.clone();
        piece.payload = self.payload.chunks(size).nth(k).unwrap_or_default().to_vec();
        if let IpHeaders::Ipv4(header, _) = &mut piece.ip {
            header.identification = header.identification.wrapping_add(k.try_into().unwrap());
        }
        if let TransportHeader::Tcp(header) = &mut piece.transport {
            header.sequence_number =
                header.sequence_number.wrapping_add((k * size).try_into().unwrap());
            header.cwr &= k == 0;
            header.fin &= k + 1 == count;
            header.psh &= k + 1 == count;
        }
        piece
    }

    pub(crate) fn set_ecn(&mut self, ecn: Ecn) {
        match &mut self.ip {
            IpHeaders::Ipv4(header, _) => header.ecn = ecn.bits().try_into().unwrap(),
            IpHeaders::Ipv6(header, _) => header.traffic_class = ecn.in_tos(header.traffic_class),
        }
    }

    pub(crate) fn tcp(&mut self) -> Option<&mut TcpHeader> {
        self.transport.mut_tcp()
    }

    fn number(&self) -> IpNumber {
        match self.transport {
            TransportHeader::Tcp(_) => IpNumber::TCP,
            TransportHeader::Udp(_) => IpNumber::UDP,
            TransportHeader::Icmpv4(_) | TransportHeader::Icmpv6(_) | TransportHeader::Igmp(_) => {
                unreachable!("test packets are TCP or UDP")
            }
        }
    }

    fn pseudo_sum(&self, upper_len: usize) -> u16 {
        let mut bytes = match &self.ip {
            IpHeaders::Ipv4(header, _) => [header.source, header.destination].concat(),
            IpHeaders::Ipv6(header, _) => [header.source, header.destination].concat(),
        };
        bytes.extend_from_slice(&u32::try_from(upper_len).unwrap().to_be_bytes());
        bytes.extend_from_slice(&[0, self.number().0]);
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum = words.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)).try_into().unwrap()
    }
}

prop_compose! {
    /// An IPv4 header of a whole datagram, with up to `words` words of options.
    pub(crate) fn ipv4(words: usize)(
        source: [u8; 4], destination: [u8; 4], tos: u8, id: u16, ttl: u8, dont_fragment: bool,
        options in vec(any::<[u8; 4]>(), 0..=words),
    ) -> IpHeaders {
        let mut header = Ipv4Header::new(0, ttl, IpNumber::UDP, source, destination).unwrap();
        header.dscp = (tos >> 2).try_into().unwrap();
        header.ecn = (tos & 3).try_into().unwrap();
        header.identification = id;
        header.dont_fragment = dont_fragment;
        header.fragment_offset = IpFragOffset::ZERO;
        header.options = options.as_flattened().try_into().unwrap();
        IpHeaders::Ipv4(header, Ipv4Extensions::default())
    }
}

prop_compose! {
    /// An IPv6 header with extension headers of any kind but fragment and AH.
    pub(crate) fn ipv6(extensions: BoxedStrategy<Ipv6Extensions>)(
        source: [u8; 16], destination: [u8; 16], traffic_class: u8, flow: u32, hop_limit: u8, extensions in extensions,
    ) -> IpHeaders {
        let flow_label = (flow & 0xf_ffff).try_into().unwrap();
        let header = Ipv6Header { traffic_class, flow_label, source, destination, hop_limit, ..Ipv6Header::default() };
        IpHeaders::Ipv6(header, extensions)
    }
}

/// Any extension headers but fragment and AH, each up to 32 bytes.
pub(crate) fn extensions() -> BoxedStrategy<Ipv6Extensions> {
    fn raw() -> impl Strategy<Value = Option<Ipv6RawExtHeader>> {
        let header = (any::<[u8; 6]>(), vec(any::<[u8; 8]>(), 0..4)).prop_map(|(first, more)| {
            let payload = [&first[..], more.as_flattened()].concat();
            Ipv6RawExtHeader::new_raw(IpNumber::UDP, &payload).unwrap()
        });
        option::of(header)
    }
    (raw(), raw(), raw(), raw())
        .prop_map(|(hop_by_hop_options, destination_options, routing, last)| Ipv6Extensions {
            hop_by_hop_options,
            destination_options,
            routing: routing
                .map(|routing| Ipv6RoutingExtensions { routing, final_destination_options: last }),
            fragment: None,
            auth: None,
        })
        .boxed()
}

prop_compose! {
    /// A TCP header with any flags and up to 40 bytes of options.
    pub(crate) fn tcp()(
        ports: [u16; 2], sequence: u32, acknowledgment: u32, window: u16, urgent: u16, flags: [bool; 9],
        options in vec(any::<[u8; 4]>(), 0..=10),
    ) -> TransportHeader {
        let mut header = TcpHeader::new(ports[0], ports[1], sequence, window);
        header.acknowledgment_number = acknowledgment;
        header.urgent_pointer = urgent;
        [header.ns, header.fin, header.syn, header.rst, header.psh, header.ack, header.urg, header.ece, header.cwr] = flags;
        header.set_options_raw(options.as_flattened()).unwrap();
        TransportHeader::Tcp(header)
    }
}

/// A UDP header.
pub(crate) fn udp() -> impl Strategy<Value = TransportHeader> {
    any::<[u16; 2]>().prop_map(|[source_port, destination_port]| {
        TransportHeader::Udp(UdpHeader { source_port, destination_port, ..UdpHeader::default() })
    })
}

/// Packets of all four kinds with up to `payload` bytes of payload.
pub(crate) fn any_packet(payload: usize) -> impl Strategy<Value = TestPacket> {
    let ip = prop_oneof![ipv4(10), ipv6(extensions())];
    let transport = prop_oneof![tcp(), udp()];
    (ip, transport, vec(any::<u8>(), 0..=payload)).prop_map(|(ip, transport, payload)| TestPacket {
        ip,
        transport,
        payload,
    })
}

/// Packets that the coalescer may join: no options before the transport header, no flags that end a
/// flow.
pub(crate) fn joinable(payload: usize) -> impl Strategy<Value = TestPacket> {
    let ip = prop_oneof![ipv4(0), ipv6(Just(Ipv6Extensions::default()).boxed())];
    let transport = prop_oneof![tcp(), udp()];
    (ip, transport, vec(any::<u8>(), 1..=payload)).prop_map(|(ip, transport, payload)| {
        let mut sample = TestPacket { ip, transport, payload };
        if let Some(tcp) = sample.tcp() {
            (tcp.ack, tcp.syn, tcp.fin, tcp.rst, tcp.urg) = (true, false, false, false, false);
        }
        sample
    })
}
