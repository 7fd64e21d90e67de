//! The other end: software without limits, which sends any number and opens what comes.

use std::collections::BTreeMap;

use uxfrm_engine::{Counters, HostAddresses, Limits, Mark, Settings};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{Gateway, Way, Wrapping, packets};

/// The peer of one generation of states.
pub(crate) struct Peer {
    wrapping: Wrapping,
    /// One that opens; it forgets what it received with each question.
    sent: BTreeMap<u64, Vec<u8>>,
    spi: u32,
}

/// How the plain packet of a number begins, so that each is known again.
const TEXT: &[u8] = b"number ";

impl Peer {
    pub(crate) fn new(wrapping: &Wrapping, spi: u32) -> Self {
        let wrapping = Wrapping { limits: Limits::default(), ..wrapping.clone() };
        Self { wrapping, sent: BTreeMap::new(), spi }
    }

    fn gateway(&self) -> Gateway {
        let wrapping = &self.wrapping;
        let addresses: HostAddresses =
            [wrapping.gateways(Way::Left).0, wrapping.hosts(Way::Left).0].into_iter().collect();
        let mut gateway = Gateway::new(Settings { addresses, ..wrapping.settings.clone() });
        gateway.add_policy(wrapping.policy(uxfrm_engine::Direction::Out, Way::Left));
        gateway.add_policy(wrapping.policy(uxfrm_engine::Direction::In, Way::Right));
        gateway.add_policy(wrapping.policy(uxfrm_engine::Direction::Forward, Way::Right));
        gateway
    }

    /// ESP with this number, the same each time.
    pub(crate) fn esp(&mut self, number: u64) -> Vec<u8> {
        if let Some(known) = self.sent.get(&number) {
            return known.clone();
        }
        let mut gateway = self.gateway();
        let sa = self.wrapping.sa(Way::Left, self.spi + 1);
        let (id, before) = (sa.id, number.saturating_sub(1));
        gateway.add_sa(sa);
        let counters = Counters { sent: Some(before), ..Counters::default() };
        gateway
            .database
            .apply(gateway.now, |change| change.set_counters(id, Mark::default(), counters))
            .unwrap();
        let (source, destination) = self.wrapping.hosts(Way::Left);
        let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
        let text = [TEXT, number.to_string().as_bytes()].concat();
        let plain = packets::udp(&end(source, 5), &end(destination, 9), &text);
        let wire = gateway.outbound(vec![packets::dont_fragment(plain)]).0;
        assert_eq!(wire.len(), 1, "{:?}", gateway.reasons());
        let bytes = wire[0].bytes().to_vec();
        self.sent.insert(number, bytes.clone());
        bytes
    }

    /// What is in ESP that the other end sent, whatever its number and its outer addresses.
    pub(crate) fn open(&self, esp: &[u8], number: u64) -> Option<Vec<u8>> {
        let mut gateway = self.gateway();
        let mut sa = self.wrapping.sa(Way::Right, self.spi);
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
        let destination = self.wrapping.gateways(Way::Right).1;
        readdress(&mut packet, destination);
        let opened = gateway.inbound(vec![PacketBuf::from_slice(&packet)]);
        opened.first().map(|packet| packet.bytes().to_vec())
    }
}

/// Another destination in an IPv4 header, and its checksum.
fn readdress(packet: &mut [u8], destination: std::net::IpAddr) {
    let std::net::IpAddr::V4(destination) = destination else { return };
    packet[16..20].copy_from_slice(&destination.octets());
    packet[10..12].fill(0);
    let words =
        packet[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    packet[10..12].copy_from_slice(&(!folded).to_be_bytes());
}
