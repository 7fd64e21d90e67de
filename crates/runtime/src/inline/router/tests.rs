//! Compares the XDP program with the router: what it takes from the kernel must be the gateway's,
//! as nobody else gets it.

use std::os::fd::AsFd as _;

use uxfrm_io::{
    Namespace, Rtnetlink,
    xdp::{FrameSelection, Program, ProgramOptions, Queue, XdpVerdict},
};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_testkit::{Rng, packets};
use zerocopy::IntoBytes as _;

use super::*;

const FRAMES: usize = 100_000;
const PORTS: [u16; 2] = [4500, 4501];

/// Per family: two own addresses, others', groups', neighbours', impossible ones.
const ENDS: [[&str; 8]; 2] = [
    [
        "192.0.2.1",
        "10.0.0.1",
        "198.51.100.7",
        "203.0.113.9",
        "224.0.0.5",
        "255.255.255.255",
        "127.0.0.1",
        "0.0.0.0",
    ],
    ["2001:db8::1", "fd00::1", "2001:db8::7", "fec0::1", "ff02::1", "fe80::1", "::1", "::"],
];

/// Runs a program at a device, with a socket: without one it takes nothing.
fn with_program(takes: FrameSelection, test: impl FnOnce(&Program, MacAddr) + Send) {
    let namespaces = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
    let (near, far) = match namespaces {
        Ok(namespaces) => namespaces,
        Err(error) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "must run in CI: {error}");
            return eprintln!("not run: no network namespace: {error}");
        }
    };
    let run = || {
        let mut kernel = Rtnetlink::open().unwrap();
        kernel.add_veth("near", "far", far.as_fd()).unwrap();
        let link = kernel.link("near").unwrap();
        let (link, mac, mtu) = (link.index, link.mac.unwrap(), link.mtu);
        let options = ProgramOptions { link, mac, mtu, selection: takes, queues: 1 };
        let program = Program::attach(options).unwrap();
        let _queue = Queue::open(&program, 0).unwrap();
        test(&program, mac);
    };
    near.enter(run).unwrap();
}

/// An unusual packet.
fn packet(rng: &mut Rng) -> (EtherType, Vec<u8>) {
    let family = rng.below(2);
    let [source, destination] = [rng.below(8), rng.below(8)].map(|end| ENDS[family][end]);
    let mut payload = [0; 40];
    if rng.permille(800) {
        let zeros = rng.below(6);
        rng.fill(&mut payload[zeros..]);
    }
    let ends = [source.parse().unwrap(), destination.parse().unwrap()];
    let mut upper = payload.to_vec();
    let protocol = match rng.below(4) {
        0 => Protocol::TCP,
        1 => Protocol::ESP,
        _ => {
            let ports = [500_u16, 4500, 4501, 4502];
            let length = match rng.below(8) {
                0 => rng.below(100),
                _ => 8 + payload.len(),
            };
            let header = [ports[rng.below(4)], ports[rng.below(4)], length.try_into().unwrap(), 0];
            upper.splice(..0, header.into_iter().flat_map(u16::to_be_bytes));
            Protocol::UDP
        }
    };
    let mut bytes = packets::ip(ends[0], ends[1], protocol, &upper);
    if rng.permille(200) {
        bytes[rng.below(24)] = rng.next_u64().to_le_bytes()[0];
    }
    if rng.permille(100) {
        bytes.truncate(rng.below(bytes.len()));
    }
    ([EtherType::IPV4, EtherType::IPV6][family], bytes)
}

fn own() -> Vec<IpAddr> {
    ENDS.iter().flat_map(|ends| &ends[..2]).map(|end| end.parse().unwrap()).collect()
}

/// Compares the program's verdict with the router's class for all packets that parse; others are
/// dropped and counted by their receiver.
fn beside(
    program: &Program,
    mac: MacAddr,
    class_of: impl Fn(&IpPacket, &[u8]) -> PacketClass,
    mut judge: impl FnMut(XdpVerdict, PacketClass, &IpPacket),
) {
    let mut rng = Rng::new(1);
    for _ in 0..FRAMES {
        let (ether_type, bytes) = packet(&mut rng);
        let header = EthernetHeader { destination: mac, source: MacAddr([2; 6]), ether_type };
        let verdict = program.verdict(&[header.as_bytes(), &bytes].concat()).unwrap();
        if let Ok(ip) = IpPacket::parse(&bytes) {
            judge(verdict, class_of(&ip, &bytes), &ip);
        }
    }
}

#[test]
fn xdp_program_on_wire_takes_no_host_packets() {
    with_program(FrameSelection::Esp { ports: PORTS.to_vec() }, |program, mac| {
        let own: HostAddresses = own().into_iter().collect();
        let class_of = |ip: &IpPacket, bytes: &[u8]| classify_on_wire(ip, bytes, &own, &PORTS);
        let (mut taken, mut left) = (0, 0);
        beside(program, mac, class_of, |verdict, class, ip| match (verdict, class) {
            (XdpVerdict::Socket, class) => {
                taken += 1;
                assert_ne!(class, PacketClass::Host, "{ip:?}");
            }
            (XdpVerdict::Kernel, PacketClass::Esp) => {
                left += 1;
                // The kernel's path: options, fragments, limited broadcast, extension headers.
                let is_unusual = ip.is_fragment() || ip.has_options;
                assert!(is_unusual || ip.destination == IpAddr::from([255; 4]), "{ip:?}");
            }
            (
                XdpVerdict::Kernel,
                PacketClass::Forward | PacketClass::Host | PacketClass::Martian,
            ) => {}
        });
        assert!(taken > FRAMES / 10 && left > FRAMES / 1000, "{taken} taken, {left} left");
    });
}

#[test]
fn xdp_program_on_protected_side_takes_all_forwarded() {
    with_program(FrameSelection::Forwarded, |program, mac| {
        program.set_host_addresses(&own()).unwrap();
        let own: HostAddresses = own().into_iter().collect();
        let mut counts = [0; 2];
        beside(
            program,
            mac,
            |ip, _| classify(ip, &own),
            |verdict, class, ip| match verdict {
                XdpVerdict::Socket => {
                    counts[0] += 1;
                    assert_ne!(class, PacketClass::Host, "{ip:?}");
                }
                XdpVerdict::Kernel => {
                    counts[1] += 1;
                    // Class E, and packets whose header has no address.
                    assert!(class != PacketClass::Forward || is_reserved(ip.destination), "{ip:?}");
                }
            },
        );
        assert!(counts.iter().all(|count| *count > FRAMES / 10), "{counts:?}");
    });
}

fn is_reserved(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.octets()[0] >= 240)
}
