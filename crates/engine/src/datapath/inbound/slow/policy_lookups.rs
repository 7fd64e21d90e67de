//! What the policies are asked about packets on their way in.

use uxfrm_packet::{IpPacket, PacketBuf};

use super::outer;
use crate::datapath::inbound::inner_template::Inner;
use crate::datapath::inbound::rx_cache::UsedStates;
use crate::datapath::inbound::{Fate, Item, narrow};
use crate::flow_cache::Known;
use crate::{Direction, FlowKey, Settings, Spi};

/// What the policies are asked about the batch's plain packets, one place for neighbours of one flow, and what they say.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    pub(crate) flows: Vec<FlowKey>,
    /// Of the innermost state that each came by.
    pub(crate) spis: Vec<Spi>,
    pub(crate) directions: Vec<Direction>,
    pub(crate) known: Vec<Known>,
}

impl Questions {
    /// Asks about what came out of ESP, unless more of that may be in it. Its state remembers how it looks if it is of the flow of the one before.
    #[inline(always)]
    pub(crate) fn ask_of_inner(
        &mut self,
        item: &mut Item,
        ip: &IpPacket,
        (buffer, bytes): (&PacketBuf, &[u8]),
        (states, used): (&mut UsedStates, u32),
        settings: &Settings,
    ) -> Fate {
        let flow = FlowKey { mark: item.mark, ..FlowKey::of(buffer, ip, bytes) };
        let direction = outer::direction(ip.destination, settings);
        let is_piece = direction == Direction::In && ip.is_fragment();
        if is_piece || outer::may_hold_esp(ip, &flow, direction, settings) {
            return Fate::New;
        }
        // What is behind its own length is not its own.
        item.len = narrow(ip.total_len);
        let state = &mut states[used as usize];
        let place = self.place(flow, state.around.spi, direction);
        let before = state.asked.replace(place);
        if before.is_none_or(|before| before == place) {
            let whole = bytes.get(..ip.total_len);
            states.note_inner(used, || Inner::of(whole?, flow, direction, place));
        }
        Fate::Plain(place)
    }

    /// The place of a packet's question, which is its predecessor's if that is of the same flow and came by the same state.
    #[inline(always)]
    pub(crate) fn place(&mut self, flow: FlowKey, spi: Spi, direction: Direction) -> u32 {
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
    fn neighbours_of_one_flow_and_state_ask_once() {
        let flow = |port| {
            let ends = ["10.1.0.1", "10.2.0.1"].map(|end| end.parse().unwrap());
            FlowKey { source_port: port, ..FlowKey::between(ends[0], ends[1]) }
        };
        let mut questions = Questions::default();
        let (own, other) = (Direction::In, Direction::Forward);
        let asked = [(1, 7, own), (1, 7, own), (2, 7, own), (1, 7, own), (1, 8, other)];
        let places = asked.map(|(port, spi, way)| questions.place(flow(port), Spi(spi), way));
        assert_eq!(places, [0, 0, 1, 2, 3]);
        assert_eq!(questions.flows, [flow(1), flow(2), flow(1), flow(1)]);
        assert_eq!(questions.spis, [Spi(7), Spi(7), Spi(7), Spi(8)]);
        assert_eq!(questions.directions, [own, own, own, other]);
    }
}
