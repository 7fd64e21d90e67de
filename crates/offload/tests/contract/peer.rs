//! The other end: software without limits, which sends any number and opens what comes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use uxfrm_engine::{Counters, HostAddresses, LifetimeLimits, Mark, Settings};
use uxfrm_packet::PacketBuf;
use uxfrm_packet::checksum::Sum;
use uxfrm_testkit::{IpsecSetup, PairDirection, TestGateway, packets};

/// The peer of one generation of states.
pub(crate) struct Peer {
    wrapping: IpsecSetup,
    /// One that opens; it forgets what it received with each question.
    sent: BTreeMap<u64, Vec<u8>>,
    spi: u32,
    /// Where it moved to.
    moved: Option<IpAddr>,
}

/// How the plain packet of a number begins, so that each is known again.
const TEXT: &[u8] = b"number ";

impl Peer {
    pub(crate) fn new(wrapping: &IpsecSetup, spi: u32) -> Self {
        let wrapping = IpsecSetup { limits: LifetimeLimits::default(), ..wrapping.clone() };
        Self { wrapping, sent: BTreeMap::new(), spi, moved: None }
    }

    fn gateway(&self) -> TestGateway {
        let wrapping = &self.wrapping;
        let addresses: HostAddresses = [
            wrapping.gateways(PairDirection::RightToLeft).0,
            wrapping.hosts(PairDirection::RightToLeft).0,
        ]
        .into_iter()
        .collect();
        let mut gateway = TestGateway::new(Settings { addresses, ..wrapping.settings.clone() });
        gateway
            .add_policy(wrapping.policy(uxfrm_engine::Direction::Out, PairDirection::RightToLeft));
        gateway
            .add_policy(wrapping.policy(uxfrm_engine::Direction::In, PairDirection::LeftToRight));
        gateway.add_policy(
            wrapping.policy(uxfrm_engine::Direction::Forward, PairDirection::LeftToRight),
        );
        gateway
    }

    /// It goes on from another address.
    pub(crate) fn move_to(&mut self, address: IpAddr) {
        self.moved = Some(address);
    }

    /// ESP with this number, the same each time but for the address that it comes from.
    pub(crate) fn esp(&mut self, number: u64) -> Vec<u8> {
        let mut esp = self.sealed(number);
        if let Some(address) = self.moved {
            readdress(&mut esp, End::Source, address);
        }
        esp
    }

    fn sealed(&mut self, number: u64) -> Vec<u8> {
        if let Some(known) = self.sent.get(&number) {
            return known.clone();
        }
        let mut gateway = self.gateway();
        let sa = self.wrapping.sa(PairDirection::RightToLeft, self.spi + 1);
        let (id, before) = (sa.id, number.saturating_sub(1));
        gateway.add_sa(sa);
        let counters = Counters { sent: Some(before), ..Counters::default() };
        gateway
            .database
            .apply(gateway.now, |change| change.set_counters(id, Mark::default(), counters))
            .unwrap();
        let (source, destination) = self.wrapping.hosts(PairDirection::RightToLeft);
        let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
        let text = [TEXT, number.to_string().as_bytes()].concat();
        let plain = packets::udp(&end(source, 5), &end(destination, 9), &text);
        let wire = gateway.outbound(vec![whole(plain)]).0;
        assert_eq!(wire.len(), 1, "{:?}", gateway.reasons());
        let bytes = wire[0].bytes().to_vec();
        self.sent.insert(number, bytes.clone());
        bytes
    }

    /// What is in ESP that the other end sent, whatever its number and its outer addresses.
    pub(crate) fn open(&self, esp: &[u8], number: u64) -> Option<Vec<u8>> {
        let mut gateway = self.gateway();
        let mut sa = self.wrapping.sa(PairDirection::LeftToRight, self.spi);
        sa.replay.window = sa.replay.window.max(64);
        let id = sa.id;
        gateway.add_sa(sa);
        let counters = Counters { received: Some(number.saturating_sub(1)), ..Counters::default() };
        gateway
            .database
            .apply(gateway.now, |change| change.set_counters(id, Mark::default(), counters))
            .unwrap();
        // It opens by SPI, whichever address the other end was told.
        let mut packet = esp.to_vec();
        let destination = self.wrapping.gateways(PairDirection::LeftToRight).1;
        readdress(&mut packet, End::Destination, destination);
        let opened = gateway.inbound(vec![PacketBuf::from_slice(&packet)]);
        opened.first().map(|packet| packet.bytes().to_vec())
    }
}

/// One that is not to be cut on its way; of IPv6 none is.
pub(crate) fn whole(packet: PacketBuf) -> PacketBuf {
    if packet.bytes()[0] >> 4 == 4 { packets::dont_fragment(packet) } else { packet }
}

#[derive(Clone, Copy)]
enum End {
    Source,
    Destination,
}

/// Another address in an IP header, and the header's checksum.
fn readdress(packet: &mut [u8], end: End, address: IpAddr) {
    match (address, end) {
        (IpAddr::V4(address), End::Source) => packet[12..16].copy_from_slice(&address.octets()),
        (IpAddr::V4(address), End::Destination) => {
            packet[16..20].copy_from_slice(&address.octets());
        }
        (IpAddr::V6(address), End::Source) => packet[8..24].copy_from_slice(&address.octets()),
        (IpAddr::V6(address), End::Destination) => {
            packet[24..40].copy_from_slice(&address.octets());
        }
    }
    if address.is_ipv4() {
        packet[10..12].fill(0);
        let checksum = Sum::of(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
