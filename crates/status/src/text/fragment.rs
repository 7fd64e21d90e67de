//! Whether a packet that is shown is a fragment.

/// Where a fragment stands in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// At its begin, with the headers of the upper layer.
    First,
    /// So many bytes behind it.
    Later(u16),
}

/// IPv6's Fragment header, and those that may stand before it: Hop-by-Hop, Destination, Routing.
const FRAGMENT: u8 = 44;
const BEFORE: [u8; 3] = [0, 60, 43];
/// Length of IPv6's fixed header, in bytes.
const FIXED: usize = 40;

/// What the bytes of an IP packet say; nothing of a whole one, or of one that is cut off.
pub(super) fn fragment(packet: &[u8]) -> Option<Fragment> {
    match packet.first()? >> 4 {
        4 => {
            let field = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]);
            placed(8 * (field & 0x1fff), field & 0x2000 != 0)
        }
        6 => {
            let (mut next, mut at) = (*packet.get(6)?, FIXED);
            while BEFORE.contains(&next) {
                let length = 8 * (usize::from(*packet.get(at + 1)?) + 1);
                (next, at) = (*packet.get(at)?, at + length);
            }
            let header = packet.get(at..at + 8).filter(|_| next == FRAGMENT)?;
            let field = u16::from_be_bytes([header[2], header[3]]);
            placed(field & 0xfff8, field & 1 != 0)
        }
        _other => None,
    }
}

const fn placed(offset: u16, has_more: bool) -> Option<Fragment> {
    match (offset, has_more) {
        (0, false) => None,
        (0, true) => Some(Fragment::First),
        (offset, _) => Some(Fragment::Later(offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(field: u16) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        packet
    }

    /// A Fragment header behind a Destination header.
    fn v6(field: u16) -> Vec<u8> {
        let mut packet = vec![0; 56];
        (packet[0], packet[6], packet[40]) = (0x60, 60, FRAGMENT);
        packet[50..52].copy_from_slice(&field.to_be_bytes());
        packet
    }

    #[test]
    fn fragments_by_table() {
        for (packet, found) in [
            (v4(0), None),
            (v4(0x4000), None), // DF
            (v4(0x2000), Some(Fragment::First)),
            (v4(0x2000 | 185), Some(Fragment::Later(1480))),
            (v4(185), Some(Fragment::Later(1480))),
            (v6(0), None), // an atomic one
            (v6(1), Some(Fragment::First)),
            (v6(1480), Some(Fragment::Later(1480))),
        ] {
            assert_eq!(fragment(&packet), found, "{packet:02x?}");
            for length in 0..packet.len() {
                // None of what is cut off is read beyond its end.
                let _cut = fragment(&packet[..length]);
            }
        }
        assert_eq!(fragment(&[0x6f; 48]), None);
    }
}
