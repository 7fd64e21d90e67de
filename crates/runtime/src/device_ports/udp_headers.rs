//! Restores IP and UDP headers of ESP in UDP, which sockets strip, for a device that has its SA.

use std::net::{IpAddr, SocketAddr};

use uxfrm_engine::{DeviceId, Spi};
use uxfrm_offload::Nics;
use uxfrm_packet::{
    PacketBuf, Pool, Protocol, Segments, SizeClass, UdpPath,
    esp::Esp,
    ipv4,
    ipv4::Ipv4Header,
    ipv6::Ipv6Header,
    udp::{self, UdpHeader},
};
use zerocopy::IntoBytes as _;

/// The device that has the SA of a UDP payload; of a GSO burst the first match.
pub(super) fn device_of(nics: &Nics, packet: &PacketBuf) -> Option<DeviceId> {
    let path = packet.udp?;
    packet.bytes().chunks(stride(packet)).find_map(|payload| {
        let esp = Esp::parse(payload).ok()?;
        nics.device_of(path.local.ip(), Spi(esp.header.spi.get()))
    })
}

fn stride(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::Burst { stride } if stride > 0 => usize::from(stride),
        Segments::Burst { .. } | Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => {
            packet.len().max(1)
        }
    }
}

/// Turns a datagram or burst into whole packets; returns the number of packets left out.
pub(super) fn add_headers(packet: PacketBuf, pool: &mut Pool, into: &mut Vec<PacketBuf>) -> u64 {
    let mut lost = 0;
    if let Some(path) = packet.udp {
        for payload in packet.bytes().chunks(stride(&packet)) {
            let mut whole = pool.take(SizeClass::holding(payload.len() + 48));
            whole.mark = packet.mark;
            match write(payload, &path, &mut whole) {
                Some(()) => into.push(whole),
                None => {
                    lost += 1;
                    pool.give(whole);
                }
            }
        }
    }
    pool.give(packet);
    lost
}

fn write(payload: &[u8], path: &UdpPath, whole: &mut PacketBuf) -> Option<()> {
    let length = u16::try_from(udp::HEADER_LEN + payload.len()).ok()?;
    match (path.remote.ip(), path.local.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = length.checked_add(20)?;
            let mut header = Ipv4Header::new(source, destination, Protocol::UDP, total);
            header.tos = path.tos;
            if path.dont_fragment {
                header.flags_fragment = ipv4::DONT_FRAGMENT.into();
            }
            header.fill_checksum();
            put(whole, header.as_bytes())?;
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = Ipv6Header::new(source, destination, Protocol::UDP, length);
            header.set_traffic_class(path.tos);
            put(whole, header.as_bytes())?;
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    }
    let port = |end: SocketAddr| end.port().into();
    // The kernel has verified the checksum; 0 means none.
    let header = UdpHeader {
        source: port(path.remote),
        destination: port(path.local),
        length: length.into(),
        checksum: 0.into(),
    };
    put(whole, header.as_bytes())?;
    put(whole, payload)
}

fn put(whole: &mut PacketBuf, bytes: &[u8]) -> Option<()> {
    whole.append(bytes.len())?.copy_from_slice(bytes);
    Some(())
}

#[cfg(test)]
mod tests {
    use uxfrm_packet::IpPacket;

    use super::*;

    #[test]
    fn udp_burst_becomes_whole_packets() {
        for (local, remote, before) in
            [("10.0.0.1:4500", "10.0.0.2:4501", 28), ("[fd00::1]:4500", "[fd00::2]:4501", 48)]
        {
            let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
            let mut burst = PacketBuf::from_slice(&[7; 25]);
            burst.segments = Segments::Burst { stride: 10 };
            burst.udp = Some(UdpPath { local, remote, tos: 3, dont_fragment: true });
            let (mut pool, mut whole) = (Pool::new(), Vec::new());
            assert_eq!(add_headers(burst, &mut pool, &mut whole), 0);
            let lens: Vec<_> = whole.iter().map(PacketBuf::len).collect();
            assert_eq!(lens, [before + 10, before + 10, before + 5]);
            let ip = IpPacket::parse(whole[2].bytes()).unwrap();
            assert_eq!((ip.source, ip.destination), (remote.ip(), local.ip()));
            assert_eq!((ip.protocol, ip.total_len), (Protocol::UDP, before + 5));
            let datagram = udp::UdpDatagram::parse(ip.upper(whole[2].bytes())).unwrap();
            assert_eq!((datagram.header.source.get(), datagram.payload), (4501, &[7; 5][..]));
        }
    }
}
