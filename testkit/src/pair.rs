//! Two gateways that protect traffic between them.

use std::time::Duration;

use uxfrm_engine::{Direction, HostAddresses, Settings};
use uxfrm_packet::PacketBuf;

use crate::setup::Way;
use crate::wire::taken_apart;
use crate::{Gateway, Wrapping};

/// Two gateways with the same SAs, each with its policies.
#[derive(Debug)]
pub struct Pair {
    /// Protects 10.1.0.0/16 and fd00:1::/32.
    pub left: Gateway,
    /// Protects 10.2.0.0/16 and fd00:2::/32.
    pub right: Gateway,
    /// The packets between them of the last transfer.
    pub on_the_wire: Vec<PacketBuf>,
}

/// SPI of the SA from left to right; the other direction's is one more.
pub const FIRST_SPI: u32 = 0x1000;

impl Pair {
    /// Gateways with SAs and policies for one setup.
    #[must_use]
    pub fn new(wrapping: &Wrapping) -> Self {
        let mut pair = Self::without_states(wrapping);
        pair.add_states(wrapping, FIRST_SPI);
        pair
    }

    /// Gateways with policies but no SAs.
    #[must_use]
    pub fn without_states(wrapping: &Wrapping) -> Self {
        let own = |way| {
            let addresses: HostAddresses =
                [wrapping.gateways(way).0, wrapping.hosts(way).0].into_iter().collect();
            let seed = way as u64;
            Settings { addresses, seed, ..wrapping.settings.clone() }
        };
        let mut pair = Self {
            left: Gateway::new(own(Way::Right)),
            right: Gateway::new(own(Way::Left)),
            on_the_wire: Vec::new(),
        };
        for (gateway, out, back) in
            [(&mut pair.left, Way::Right, Way::Left), (&mut pair.right, Way::Left, Way::Right)]
        {
            gateway.add_policy(wrapping.policy(Direction::Out, out));
            gateway.add_policy(wrapping.policy(Direction::In, back));
            gateway.add_policy(wrapping.policy(Direction::Forward, back));
        }
        pair
    }

    /// Adds an SA for each direction, with `spi` and `spi + 1`.
    pub fn add_states(&mut self, wrapping: &Wrapping, spi: u32) {
        for gateway in [&mut self.left, &mut self.right] {
            gateway.add_sa(wrapping.sa(Way::Right, spi));
            gateway.add_sa(wrapping.sa(Way::Left, spi + 1));
        }
    }

    /// Advances the clocks of both sides.
    pub fn wait(&mut self, duration: Duration) {
        self.left.now = self.left.now.plus(duration);
        self.right.now = self.right.now.plus(duration);
    }

    /// Sends packets from the left host to the right one; keeps those on the wire in `on_the_wire`.
    pub fn left_to_right(&mut self, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        self.on_the_wire = self.left.outbound(packets).0;
        self.right.inbound(self.on_the_wire.iter().flat_map(taken_apart).collect())
    }

    /// Sends packets from the right host to the left one.
    pub fn right_to_left(&mut self, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        self.on_the_wire = self.right.outbound(packets).0;
        self.left.inbound(self.on_the_wire.iter().flat_map(taken_apart).collect())
    }

    /// Checks that both sides account for every packet.
    ///
    /// # Panics
    /// If a packet is neither sent nor held nor dropped.
    pub fn assert_accounts(&self) {
        self.left.assert_accounts();
        self.right.assert_accounts();
    }
}
