//! The XDP program beside the router: what it takes from the kernel must be the gateway's, as nobody else gets it.

use std::os::fd::AsFd as _;

use uxfrm_io::{
    Namespace, Rtnetlink,
    xdp::{Program, ProgramOptions, Queue, Verdict},
};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_testkit::{Rng, packets};
use zerocopy::IntoBytes as _;

use super::*;

const FRAMES: usize = 100_000;
const PORTS: [u16; 2] = [4500, 4501];

/// Of each family: two own addresses, others', groups', neighbours', nobody's.
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

/// A program at a device, with a socket: without one it would take nothing.
fn with_program(test: impl FnOnce(&Program, MacAddr) + Send) {
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
        let (mac, ports) = (link.mac.unwrap(), PORTS.to_vec());
        let options = ProgramOptions { link: link.index, mac, mtu: link.mtu, ports, queues: 1 };
        let program = Program::attach(options).unwrap();
        let _queue = Queue::open(&program, 0).unwrap();
        test(&program, mac);
    };
    near.enter(run).unwrap();
}

/// A packet of which little is as usual.
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

#[test]
fn what_the_program_takes_is_never_the_hosts() {
    with_program(|program, mac| {
        let own: HostAddresses =
            ENDS.iter().flat_map(|ends| &ends[..2]).map(|end| end.parse().unwrap()).collect();
        let (mut rng, mut taken, mut left) = (Rng::new(1), 0, 0);
        for _ in 0..FRAMES {
            let (ether_type, bytes) = packet(&mut rng);
            let header = EthernetHeader { destination: mac, source: MacAddr([2; 6]), ether_type };
            let frame = [header.as_bytes(), &bytes].concat();
            let is_taken = program.verdict(&frame).unwrap() == Verdict::Socket;
            // What can't be parsed is dropped and counted by whoever takes it.
            let Ok(ip) = IpPacket::parse(&bytes) else { continue };
            let claim = claim_on_wire(&ip, &bytes, &own, &PORTS);
            if is_taken {
                taken += 1;
                assert_ne!(claim, Claim::Host, "{ip:?} {bytes:?}");
            } else if claim == Claim::Protected {
                left += 1;
                // The longer way: options, fragments, limited broadcast, extension headers.
                let is_unusual = ip.is_fragment() || ip.has_options;
                let broadcast = ip.destination == IpAddr::from([255; 4]);
                assert!(is_unusual || broadcast, "{ip:?} {bytes:?}");
            }
        }
        assert!(taken > FRAMES / 10 && left > FRAMES / 1000, "{taken} taken, {left} left");
    });
}
