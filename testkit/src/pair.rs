//! Two gateways that protect traffic between them.

use std::time::Duration;

use uxfrm_engine::{Direction, HostAddresses, Settings};
use uxfrm_packet::PacketBuf;

use crate::setup::PairDirection;
use crate::wire::split_burst;
use crate::{IpsecSetup, TestGateway};

/// Two gateways with the same SAs, each with its policies.
#[derive(Debug)]
pub struct TestGatewayPair {
    /// Protects 10.1.0.0/16 and fd00:1::/32.
    pub left: TestGateway,
    /// Protects 10.2.0.0/16 and fd00:2::/32.
    pub right: TestGateway,
    /// The packets between them of the last transfer.
    pub last_on_wire: Vec<PacketBuf>,
}

/// SPI of the SA from left to right; the other direction's is one more.
pub const FIRST_SPI: u32 = 0x1000;

impl TestGatewayPair {
    /// Gateways with SAs and policies for one setup.
    #[must_use]
    pub fn new(wrapping: &IpsecSetup) -> Self {
        let mut pair = Self::without_sas(wrapping);
        pair.add_sas(wrapping, FIRST_SPI);
        pair
    }

    /// Gateways with policies but no SAs.
    #[must_use]
    pub fn without_sas(wrapping: &IpsecSetup) -> Self {
        let own = |way| {
            let addresses: HostAddresses =
                [wrapping.gateways(way).0, wrapping.hosts(way).0].into_iter().collect();
            let seed = way as u64;
            Settings { addresses, seed, ..wrapping.settings.clone() }
        };
        let mut pair = Self {
            left: TestGateway::new(own(PairDirection::LeftToRight)),
            right: TestGateway::new(own(PairDirection::RightToLeft)),
            last_on_wire: Vec::new(),
        };
        for (gateway, out, back) in [
            (&mut pair.left, PairDirection::LeftToRight, PairDirection::RightToLeft),
            (&mut pair.right, PairDirection::RightToLeft, PairDirection::LeftToRight),
        ] {
            gateway.add_policy(wrapping.policy(Direction::Out, out));
            gateway.add_policy(wrapping.policy(Direction::In, back));
            gateway.add_policy(wrapping.policy(Direction::Forward, back));
        }
        pair
    }

    /// Adds an SA for each direction, with `spi` and `spi + 1`.
    pub fn add_sas(&mut self, wrapping: &IpsecSetup, spi: u32) {
        for gateway in [&mut self.left, &mut self.right] {
            gateway.add_sa(wrapping.sa(PairDirection::LeftToRight, spi));
            gateway.add_sa(wrapping.sa(PairDirection::RightToLeft, spi + 1));
        }
    }

    /// Advances the clocks of both sides.
    pub fn wait(&mut self, duration: Duration) {
        self.left.now = self.left.now.plus(duration);
        self.right.now = self.right.now.plus(duration);
    }

    /// Sends packets from the left host to the right one; keeps those on the wire in `on_the_wire`.
    pub fn left_to_right(&mut self, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        self.last_on_wire = self.left.outbound(packets).0;
        self.right.inbound(self.last_on_wire.iter().flat_map(split_burst).collect())
    }

    /// Sends packets from the right host to the left one.
    pub fn right_to_left(&mut self, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        self.last_on_wire = self.right.outbound(packets).0;
        self.left.inbound(self.last_on_wire.iter().flat_map(split_burst).collect())
    }

    /// Checks that both sides account for every packet.
    ///
    /// # Panics
    /// If a packet is neither sent nor held nor dropped.
    pub fn assert_accounts(&self) {
        self.left.assert_packets_accounted();
        self.right.assert_packets_accounted();
    }
}
