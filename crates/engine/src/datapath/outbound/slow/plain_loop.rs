//! Plain packets that the host's routes bring back.
//!
//! In host mode a packet that no policy covers goes back to the kernel. Where a route leads it into
//! the TUN again (`ip route add … dev uxfrm0` that outlives its policy) it comes back as it was,
//! without end. So a plain packet that was seen several times within a second loses one of its hop
//! limit each time, as at any router, and at zero it is dropped. Others leave as they are: hosts
//! send to their link with 1 (IGMP), and neighbours take 255 alone (RFC 5082).
//!
//! A table of fixed size has which packets were seen, by a hash of their headers. Where two share a
//! place, the one that is there mostly stays, so that each is seen often enough some time.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use uxfrm_packet::{PacketBuf, checksum};

use crate::{Moment, Settings, WireHeaders};

/// Places: more than a TUN's queue has packets.
const PLACES: usize = 4096;
/// Bytes that are compared: all headers of TCP over IPv6. Checksums cover the rest.
const COMPARED: usize = 64;
/// Sightings that cost nothing.
const FREE: u8 = 4;
/// One in two to this power takes the place of another that was just seen.
const TAKEOVER_BITS: u32 = 3;

/// What of a packet is compared.
#[derive(Clone, Copy, Debug, Default)]
struct Sighting {
    tag: u32,
    /// Second of the latest one.
    second: u32,
    count: u8,
}

/// Finds plain packets that come back.
#[derive(Debug)]
pub(crate) struct PlainLoops {
    /// None where plain packets do not go back to the kernel.
    places: Box<[Sighting]>,
    hasher: FixedState,
    /// Of a linear congruential generator.
    random: u64,
}

impl PlainLoops {
    pub(crate) fn new(settings: &Settings) -> Self {
        let places = match settings.headers {
            WireHeaders::UdpSocket => PLACES,
            WireHeaders::Engine => 0,
        };
        Self {
            places: vec![Sighting::default(); places].into_boxed_slice(),
            hasher: FixedState::with_seed(settings.seed),
            random: settings.seed,
        }
    }

    /// Whether a plain packet may leave: one that came back loses one of its hop limit, if it has
    /// more.
    pub(crate) fn lets_leave(&mut self, packet: &mut PacketBuf, now: Moment) -> bool {
        self.places.is_empty() || !self.came_back(packet.bytes(), now) || lose_hop(packet)
    }

    fn came_back(&mut self, bytes: &[u8], now: Moment) -> bool {
        let hash = self.hash(bytes);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the upper half; the place is of the lower"
        )]
        let (tag, at) = ((hash >> 32) as u32, hash as usize % self.places.len());
        let second = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        let takes_over = self.takes_over();
        let place = &mut self.places[at];
        let is_recent = second.saturating_sub(place.second) <= 1;
        match (is_recent, place.tag == tag) {
            (true, true) => {
                (place.second, place.count) = (second, place.count.saturating_add(1));
                return place.count > FREE;
            }
            (true, false) if !takes_over => {}
            (true | false, true | false) => *place = Sighting { tag, second, count: 1 },
        }
        false
    }

    /// At random: packets that come back in turn would else take each other's place for ever.
    fn takes_over(&mut self) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> (u64::BITS - TAKEOVER_BITS) == 0
    }

    /// Of what routers do not change.
    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut headers = [0; COMPARED];
        let compared = bytes.len().min(COMPARED);
        headers[..compared].copy_from_slice(&bytes[..compared]);
        match headers[0] >> 4 {
            4 => {
                headers[8] = 0;
                headers[10..12].fill(0);
            }
            _ => headers[7] = 0,
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write(&headers);
        hasher.write_usize(bytes.len());
        hasher.finish()
    }
}

/// Takes one of a packet's hop limit; whether any is left.
#[cold]
fn lose_hop(packet: &mut PacketBuf) -> bool {
    let bytes = packet.bytes_mut();
    let is_ipv4 = bytes.first().is_some_and(|first| first >> 4 == 4);
    let at = if is_ipv4 { 8 } else { 7 };
    let Some(hops) = bytes.get_mut(at).filter(|hops| **hops > 1) else { return false };
    *hops -= 1;
    let left = *hops;
    if is_ipv4 && let Some([_, protocol, high, low]) = bytes.get_mut(8..12) {
        let word = |hops| u16::from_be_bytes([hops, *protocol]);
        let sum = u16::from_be_bytes([*high, *low]);
        [*high, *low] = checksum::update(sum, word(left + 1), word(left)).to_be_bytes();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(id: u16, hops: u8) -> PacketBuf {
        let [high, low] = id.to_be_bytes();
        let mut bytes = vec![0x45, 0, 0, 28, high, low, 0, 0, hops, 17, 0, 0, 10, 0, 0, 1];
        bytes.extend([10, 9, 0, 1, 0, 7, 0, 9, 0, 8, 0, 0]);
        let words = bytes[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let folded = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[10..12].copy_from_slice(&folded.to_be_bytes());
        PacketBuf::from_slice(&bytes)
    }

    fn host_mode() -> PlainLoops {
        PlainLoops::new(&Settings { headers: WireHeaders::UdpSocket, ..Settings::default() })
    }

    /// How often packets leave that always come back, of as many as may be expected.
    fn rounds(loops: &mut PlainLoops, mut packets: Vec<PacketBuf>) -> usize {
        let mut left = 0;
        while !packets.is_empty() {
            packets.retain_mut(|packet| loops.lets_leave(packet, Moment::from_secs(1)));
            left += packets.len();
            assert!(left < 10_000_000, "without end");
        }
        left
    }

    #[test]
    fn packet_that_comes_back_ends() {
        let free = usize::from(FREE);
        assert_eq!(rounds(&mut host_mode(), vec![packet(1, 64)]), free + 63);
        assert_eq!(rounds(&mut host_mode(), vec![packet(1, 1)]), free);
        let mut six =
            PacketBuf::from_slice(&[[0x60, 0, 0, 0, 0, 0, 59, 64].as_slice(), &[1; 32]].concat());
        assert!((0..free).all(|_| host_mode().lets_leave(&mut six, Moment(0))));
        assert_eq!(rounds(&mut host_mode(), vec![six]), free + 63);
    }

    #[test]
    fn thousands_that_come_back_end() {
        let packets = (0..1500).map(|id| packet(id, 64)).collect();
        rounds(&mut host_mode(), packets);
    }

    #[test]
    fn checksum_of_ipv4_stays_right() {
        for id in 0..=u16::MAX {
            let mut one = packet(id, 64);
            assert!(lose_hop(&mut one));
            assert_eq!(one.bytes(), packet(id, 63).bytes(), "{id}");
        }
    }

    #[test]
    fn what_does_not_come_back_is_as_it_was() {
        let mut loops = host_mode();
        for second in 0..20 {
            let mut again = packet(1, 255);
            assert!(loops.lets_leave(&mut again, Moment::from_secs(2 * second)));
            assert_eq!(again.bytes(), packet(1, 255).bytes());
        }
        for id in 0..u16::MAX {
            let mut one = packet(id, 1);
            assert!(loops.lets_leave(&mut one, Moment::from_secs(100)));
            assert_eq!(one.bytes(), packet(id, 1).bytes());
        }
        let mut inline =
            PlainLoops::new(&Settings { headers: WireHeaders::Engine, ..Settings::default() });
        assert!((0..100).all(|_| inline.lets_leave(&mut packet(1, 1), Moment(0))));
    }
}
