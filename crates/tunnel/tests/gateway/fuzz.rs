//! The body of the fuzz target `tunnel`.

use uxfrm_packet::{Checksum, IpPacket, PacketBuf};

use crate::gateway::{End, Gateway, path};

/// The first byte selects: a packet of the network, a socket's payload, or a packet of the host. No
/// panic; output is a whole IP packet; encapsulated packets come out at the other end.
pub(crate) fn tunnel(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let mut packet = PacketBuf::from_slice(bytes);
    let index = usize::from(first >> 2);
    match first & 3 {
        0 => {}
        1 => packet.udp = Some(path(index)),
        2 => return there_and_back(index, packet),
        _ => {
            packet.checksum = Checksum::Partial { start: u16::from(first), offset: 6 };
            return there_and_back(index, packet);
        }
    }
    let _ = Gateway::new(End::Right).receive(&mut packet);
}

fn there_and_back(index: usize, mut packet: PacketBuf) {
    let before = packet.bytes().to_vec();
    if Gateway::new(End::Left).send(index, &mut packet).is_err() {
        return;
    }
    let mut arrived = PacketBuf::from_slice(packet.bytes());
    // FOU of a tunnel for both versions names only one at the port, and 6to4 tunnels have any
    // destination.
    if Gateway::new(End::Right).receive(&mut arrived).is_ok() && arrived.len() <= before.len() {
        let ip = IpPacket::parse(&before).expect("it was sent");
        assert_eq!(arrived.len(), ip.total_len);
        assert_eq!(arrived.bytes()[..1], before[..1]);
    }
}
