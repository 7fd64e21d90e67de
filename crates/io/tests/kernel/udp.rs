use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use uxfrm_io::{Port, Udp, UdpOptions};
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, UdpPath};

use crate::{in_namespace, receive_until};

const STRIDE: u16 = 1000;

/// For which datagrams are left waiting.
const WAIT: Duration = Duration::from_millis(20);

fn socket(address: &str) -> Udp {
    Udp::open(&UdpOptions { mark: 7, ..UdpOptions::new(address.parse().unwrap()) }).unwrap()
}

/// A burst whose every byte tells its packet's number.
pub(crate) fn burst(packets: u8, last: u16, path: UdpPath) -> PacketBuf {
    let mut bytes: Vec<u8> = (0..packets).flat_map(|n| vec![n; usize::from(STRIDE)]).collect();
    bytes.truncate(bytes.len() - usize::from(STRIDE - last));
    let mut buf = PacketBuf::from_slice(&bytes);
    buf.segments = if packets > 1 { Segments::Burst { stride: STRIDE } } else { Segments::One };
    buf.udp = Some(path);
    buf
}

/// The datagrams of some buffers, bursts taken apart.
pub(crate) fn datagrams(buffers: &[PacketBuf]) -> Vec<&[u8]> {
    let pieces = |buf: &PacketBuf| match buf.segments {
        Segments::Burst { stride } => usize::from(stride),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => buf.len().max(1),
    };
    buffers.iter().flat_map(|buf| buf.bytes().chunks(pieces(buf))).collect()
}

fn round_trip(here: &str, there: &str) {
    let (mut near, mut far) = (socket(&format!("{here}:0")), socket(&format!("{there}:0")));
    let wildcard = if near.local().is_ipv4() { "0.0.0.0" } else { "::" };
    let local = SocketAddr::new(wildcard.parse().unwrap(), near.local().port());
    let path = UdpPath { local, remote: far.local(), tos: 0xba, dont_fragment: true };
    let mut batch: Batch = [
        burst(60, 300, path),
        burst(1, 77, UdpPath { tos: 0, ..path }),
        burst(3, 1000, UdpPath { dont_fragment: false, ..path }),
        burst(100, 1, path),
    ]
    .into_iter()
    .collect();
    let sent: Vec<Vec<u8>> = datagrams(batch.as_slice()).into_iter().map(<[u8]>::to_vec).collect();
    let done = near.transmit(&mut batch, &mut Pool::new());
    assert_eq!((done.packets, done.refused.packets()), (164, 0), "{done:?}");
    assert_eq!(done.bytes, sent.iter().map(Vec::len).sum::<usize>() as u64);

    let got = receive_until(&mut far, |got| datagrams(got).len() >= 164);
    assert!(datagrams(&got).iter().copied().eq(sent.iter()), "in order and unchanged");
    assert!(got.len() < 20, "UDP_GRO left them in bursts: {} buffers", got.len());
    for buf in &got {
        let found = buf.udp.unwrap();
        assert_eq!((found.local, found.remote), (far.local(), near.local()));
        assert_eq!(found.tos, if buf.len() == 77 { 0 } else { 0xba });
    }
}

#[test]
fn trains_of_ipv4_arrive_with_tos_and_addresses() {
    in_namespace(|| round_trip("127.0.0.1", "127.0.0.2"));
}

#[test]
fn trains_of_ipv6_arrive_with_traffic_class_and_addresses() {
    in_namespace(|| round_trip("[::1]", "[::1]"));
}

#[test]
fn local_address_is_received_and_chosen() {
    in_namespace(|| {
        let (mut any, mut peer) = (socket("0.0.0.0:0"), socket("127.0.0.1:0"));
        let to = SocketAddr::new("127.0.0.9".parse().unwrap(), any.local().port());
        let path = UdpPath { local: peer.local(), remote: to, tos: 0, dont_fragment: false };
        let mut batch: Batch = [burst(1, 40, path)].into_iter().collect();
        assert_eq!(peer.transmit(&mut batch, &mut Pool::new()).packets, 1);
        let got = receive_until(&mut any, |got| !got.is_empty());
        let there = got[0].udp.unwrap();
        assert_eq!(there.local, to);
        let back =
            UdpPath { local: there.local, remote: there.remote, tos: 1, dont_fragment: false };
        let mut batch: Batch = [burst(2, 40, back)].into_iter().collect();
        assert_eq!(any.transmit(&mut batch, &mut Pool::new()).packets, 2);
        let got = receive_until(&mut peer, |got| datagrams(got).len() == 2);
        assert_eq!(got[0].udp.unwrap().remote, to);
        assert_eq!(got[0].udp.unwrap().tos, 1);
    });
}

#[test]
fn per_address_socket_takes_its_datagrams_and_wildcard_the_rest() {
    in_namespace(|| {
        for (wildcard, [here, there]) in
            [("0.0.0.0:0", ["127.0.0.1", "127.0.0.9"]), ("[::]:0", ["::1", "::1"])]
        {
            let mut any = socket(wildcard);
            let site = any.site().unwrap();
            let mut one = site.at(there.parse().unwrap()).unwrap();
            let port = any.local().port();
            let to = |address: &str| SocketAddr::new(address.parse().unwrap(), port);
            assert_eq!(one.local(), to(there));
            let mut peer = socket(&SocketAddr::new(here.parse().unwrap(), 0).to_string());
            let mut send = |remote| {
                let path = UdpPath { local: peer.local(), remote, tos: 2, dont_fragment: false };
                let mut batch: Batch = [burst(1, 40, path)].into_iter().collect();
                assert_eq!(peer.transmit(&mut batch, &mut Pool::new()).packets, 1);
                UdpPath { local: remote, remote: peer.local(), tos: 2, dont_fragment: false }
            };
            let path = send(to(there));
            assert_eq!(receive_until(&mut one, |got| !got.is_empty())[0].udp, Some(path));
            if here != there {
                let path = send(to(here));
                assert_eq!(receive_until(&mut any, |got| !got.is_empty())[0].udp, Some(path));
            }
            drop(one);
            let path = send(to(there));
            assert_eq!(receive_until(&mut any, |got| !got.is_empty())[0].udp, Some(path));
        }
    });
}

#[test]
fn other_program_cannot_bind_between_per_address_sockets() {
    in_namespace(|| {
        let any = socket("0.0.0.0:0");
        let site = any.site().unwrap();
        let one = site.at("127.0.0.9".parse().unwrap()).unwrap();
        let in_use = |found: std::io::Error| found.kind() == std::io::ErrorKind::AddrInUse;
        assert!(in_use(site.at("127.0.0.9".parse().unwrap()).unwrap_err()));
        assert!(site.at("192.0.2.1".parse().unwrap()).is_err(), "no address of this host");
        for address in ["127.0.0.8", "127.0.0.9", "0.0.0.0"] {
            let stranger = sharing(&format!("{address}:{}", one.local().port()));
            assert!(in_use(stranger.unwrap_err()), "{address}");
        }
    });
}

/// A socket of a program that would share its port with everybody.
fn sharing(address: &str) -> std::io::Result<()> {
    use nix::sys::socket as sockets;
    let address: sockets::SockaddrIn = address.parse().unwrap();
    let (family, kind) = (sockets::AddressFamily::Inet, sockets::SockType::Datagram);
    let fd = sockets::socket(family, kind, sockets::SockFlag::empty(), None)?;
    sockets::setsockopt(&fd, sockets::sockopt::ReuseAddr, &true)?;
    sockets::setsockopt(&fd, sockets::sockopt::ReusePort, &true)?;
    Ok(sockets::bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &address)?)
}

#[test]
fn emsgsize_reports_path_mtu() {
    in_namespace(|| {
        let mut kernel = uxfrm_io::Rtnetlink::open().unwrap();
        let lo = kernel.link("lo").unwrap().index;
        kernel.set_mtu(lo, 1280).unwrap();
        for (here, mtu) in [("127.0.0.1:0", 1280), ("[::1]:0", 1280)] {
            let (mut near, mut far) = (socket(here), socket(here));
            let path =
                UdpPath { local: near.local(), remote: far.local(), tos: 0, dont_fragment: true };
            let big = |dont_fragment| {
                let mut buf = PacketBuf::from_slice(&[1; 4200]);
                buf.segments = Segments::Burst { stride: 1400 };
                buf.udp = Some(UdpPath { dont_fragment, ..path });
                buf
            };
            let mut batch: Batch =
                [big(true), burst(5, 1000, path), big(false)].into_iter().collect();
            let done = near.transmit(&mut batch, &mut Pool::new());
            assert_eq!((done.packets, done.refused.too_big), (8, 3), "{done:?}");
            let path = done.refused.path.unwrap();
            assert_eq!((path.to, path.mtu), (far.local().ip(), mtu));
            let got = receive_until(&mut far, |got| datagrams(got).len() == 8);
            assert_eq!(datagrams(&got).len(), 8);
        }
    });
}

#[test]
fn unsendable_udp_buffer_is_counted() {
    in_namespace(|| {
        let mut near = socket("127.0.0.1:0");
        let path = UdpPath {
            local: near.local(),
            remote: "[::1]:9".parse().unwrap(),
            tos: 0,
            dont_fragment: true,
        };
        let mut tcp = PacketBuf::from_slice(&[0x45; 100]);
        tcp.segments = Segments::Tcp { mss: 10 };
        tcp.udp = Some(path);
        let mut batch: Batch =
            [PacketBuf::from_slice(&[0x45; 20]), tcp, burst(2, 5, path)].into_iter().collect();
        let done = near.transmit(&mut batch, &mut Pool::new());
        assert_eq!((done.refused.unsupported, done.refused.failed), (2, 2), "{done:?}");
        assert_eq!(done.refused.errno, Some(97), "EAFNOSUPPORT");
    });
}

#[test]
fn datagrams_of_every_size_arrive_unchanged() {
    in_namespace(|| {
        let (mut near, mut far) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
        let path =
            UdpPath { local: near.local(), remote: far.local(), tos: 0, dont_fragment: true };
        let mut pool = Pool::new();
        for len in [0, 1, 1500, 2047, 2048, 2049, 4096, 9000, 65_507] {
            let bytes: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let mut packet = PacketBuf::from_slice(&bytes);
            packet.udp = Some(path);
            assert_eq!(near.transmit(&mut [packet].into_iter().collect(), &mut pool).packets, 1);
            let got = receive_until(&mut far, |got| !got.is_empty());
            assert!(got[0].bytes() == bytes, "{len} bytes");
            assert_eq!(got[0].segments, Segments::One);
            assert_eq!(got[0].capacity() > 4096, len > 2048, "{len} bytes in the class that fits");
        }
    });
}

#[test]
fn single_datagrams_of_one_size_travel_as_trains() {
    in_namespace(|| {
        let (mut near, mut far) = (socket("127.0.0.1:0"), socket("127.0.0.2:0"));
        let path = UdpPath {
            local: SocketAddr::new("0.0.0.0".parse().unwrap(), near.local().port()),
            remote: far.local(),
            tos: 0,
            dont_fragment: true,
        };
        let single = |(nth, len): (u8, usize)| {
            let mut buf = PacketBuf::from_slice(&vec![nth; len]);
            // One goes another way in between, so nothing may be joined across it.
            buf.udp = Some(UdpPath { tos: if nth == 120 { 4 } else { 0 }, ..path });
            buf
        };
        let lens = (0..200_u8).map(|nth| (nth, if nth == 70 || nth == 71 { 9 } else { 120 }));
        let mut batch: Batch = lens.clone().map(single).collect();
        let done = near.transmit(&mut batch, &mut Pool::new());
        assert_eq!((done.packets, done.refused.packets()), (200, 0), "{done:?}");
        assert_eq!(done.bytes, 198 * 120 + 2 * 9);
        let got = receive_until(&mut far, |got| datagrams(got).len() >= 200);
        let sent = lens.map(|(nth, len)| vec![nth; len]);
        assert!(datagrams(&got).iter().copied().eq(sent), "in order and unchanged");
        assert!(got.len() < 12, "{} buffers", got.len());
    });
}

#[test]
fn timed_udp_socket_reports_waiting_time() {
    in_namespace(|| {
        for address in ["127.0.0.2:0", "[::1]:0"] {
            for timed in [true, false] {
                let options = UdpOptions { timed, ..UdpOptions::new(address.parse().unwrap()) };
                let mut far = Udp::open(&options).unwrap();
                let near = std::net::UdpSocket::bind((far.local().ip(), 0)).unwrap();
                // The kernel begins to note times a moment after it was asked to.
                sleep(WAIT);
                near.send_to(&[1], far.local()).unwrap();
                near.send_to(&[1; 2], far.local()).unwrap();
                sleep(WAIT);
                assert_eq!(receive_until(&mut far, |got| got.len() == 2).len(), 2);
                assert_eq!(far.waited() >= WAIT, timed, "{address}: {:?}", far.waited());
                near.send_to(&[1], far.local()).unwrap();
                let sent = Instant::now();
                assert_eq!(receive_until(&mut far, |got| !got.is_empty()).len(), 1);
                assert!(far.waited() <= sent.elapsed() + WAIT / 2, "the next one's own time");
            }
        }
    });
}

#[test]
fn full_queue_losses_are_counted() {
    in_namespace(|| {
        let local = "127.0.0.1:0".parse().unwrap();
        let mut port = Udp::open(&UdpOptions { buffer: 4096, ..UdpOptions::new(local) }).unwrap();
        let (sender, sent) = (std::net::UdpSocket::bind(local).unwrap(), 500);
        for _ in 0..sent {
            sender.send_to(b"a datagram", port.local()).unwrap();
        }
        let (mut pool, mut lost, mut came) = (Pool::new(), 0, 0);
        let deadline = Instant::now() + Duration::from_secs(10);
        while came + lost < sent && Instant::now() < deadline {
            lost += port.overflowed();
            if lost > 0 {
                let mut batch = Batch::new();
                port.receive(&mut pool, &mut batch).unwrap();
                came += batch.len() as u64;
            }
        }
        assert!(came > 0 && lost > 0, "{came} came, {lost} lost");
        assert_eq!((came + lost, port.overflowed()), (sent, 0));
    });
}
