//! Policy look-ups for the plain packets of a batch.

use uxfrm_packet::{IpPacket, PacketBuf};

use super::parse_outer;
use crate::datapath::inbound::inner_template::InnerTemplate;
use crate::datapath::inbound::rx_cache::RxCache;
use crate::datapath::inbound::{Fate, RxItem, narrow};
use crate::flow_cache::CachedVerdict;
use crate::{Direction, FlowKey, Settings, Spi};

/// The queued look-ups and their results; consecutive packets of one flow share one.
#[derive(Debug, Default)]
pub(crate) struct PolicyLookups {
    pub(crate) flows: Vec<FlowKey>,
    /// SPI of the innermost SA of each.
    pub(crate) spis: Vec<Spi>,
    pub(crate) directions: Vec<Direction>,
    pub(crate) known: Vec<CachedVerdict>,
}

impl PolicyLookups {
    /// Queues the look-up of an inner packet, unless it may contain more ESP. The second packet of
    /// a flow becomes the SA's inner template.
    #[inline(always)]
    pub(in crate::datapath::inbound) fn queue_inner(
        &mut self,
        item: &mut RxItem,
        ip: &IpPacket,
        (buffer, bytes): (&PacketBuf, &[u8]),
        (states, entry): (&mut RxCache, u32),
        settings: &Settings,
    ) -> Fate {
        let flow = FlowKey { mark: item.mark, ..FlowKey::of(buffer, ip, bytes) };
        let direction = parse_outer::direction(ip.destination, settings);
        let is_piece = direction == Direction::In && ip.is_fragment();
        if is_piece || parse_outer::may_hold_esp(ip, &flow, direction, settings) {
            return Fate::New;
        }
        // Bytes beyond the packet's own length do not belong to it.
        item.len = narrow(ip.total_len);
        let state = &mut states[entry as usize];
        let place = self.push(flow, state.framing.spi, direction);
        let before = state.asked.replace(place);
        if before.is_none_or(|before| before == place) {
            let whole = bytes.get(..ip.total_len);
            states.store_inner(entry, || InnerTemplate::of(whole?, flow, direction, place));
        }
        Fate::Plain(place)
    }

    /// Index of a packet's look-up, which is the previous one if flow and SA are the same.
    #[inline(always)]
    pub(crate) fn push(&mut self, flow: FlowKey, spi: Spi, direction: Direction) -> u32 {
        if self.spis.last() == Some(&spi) && self.flows.last() == Some(&flow) {
            return narrow(self.flows.len() - 1);
        }
        self.flows.push(flow);
        self.directions.push(direction);
        self.spis.push(spi);
        narrow(self.flows.len() - 1)
    }

    pub(crate) fn clear(&mut self) {
        self.flows.clear();
        self.spis.clear();
        self.directions.clear();
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_packets_of_one_flow_share_a_look_up() {
        let flow = |port| {
            let ends = ["10.1.0.1", "10.2.0.1"].map(|end| end.parse().unwrap());
            FlowKey { source_port: port, ..FlowKey::between(ends[0], ends[1]) }
        };
        let mut lookups = PolicyLookups::default();
        let (own, other) = (Direction::In, Direction::Forward);
        let asked = [(1, 7, own), (1, 7, own), (2, 7, own), (1, 7, own), (1, 8, other)];
        let places = asked.map(|(port, spi, way)| lookups.push(flow(port), Spi(spi), way));
        assert_eq!(places, [0, 0, 1, 2, 3]);
        assert_eq!(lookups.flows, [flow(1), flow(2), flow(1), flow(1)]);
        assert_eq!(lookups.spis, [Spi(7), Spi(7), Spi(7), Spi(8)]);
        assert_eq!(lookups.directions, [own, own, own, other]);
    }
}
