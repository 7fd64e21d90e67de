//! GRE keys in selectors: the kernel's answer to real packets, and ours. As from Linux 6.7 on;
//! older kernels take any header for version 0.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use std::os::fd::AsRawFd;
use uxfrm_engine::{Direction, Family, FlowKey, PolicyLookup};
use uxfrm_packet::IpPacket;

use crate::judge::open_loopback;
use crate::kernel::{Kernel, against_the_kernel};
use crate::stage::{Stage, attribute, message};

const NEW_POLICY: u16 = 0x13;
const FLUSH_POLICIES: u16 = 0x1d;
const GRE: u8 = 47;
const IPV4: [u8; 2] = [0x08, 0x00];
const PPP: [u8; 2] = [0x88, 0x0b];

/// Values of the words behind the first four bytes; both halves of each differ.
const WORDS: [[u8; 4]; 3] = [[0, 5, 0, 7], [0, 6, 0, 8], [0, 9, 0, 7]];
/// 0, the words, and their lower halves.
const KEYS: [u32; 6] = [0, 0x5_0007, 0x6_0008, 0x9_0007, 7, 8];

/// GRE headers of all flags and versions, and some that are cut short.
fn headers() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (flags, version) in (0..16_u8).flat_map(|flags| (0..8).map(move |version| (flags, version)))
    {
        for protocol in [IPV4, PPP] {
            let head = [flags << 4, version, protocol[0], protocol[1]];
            all.push([&head[..], WORDS.as_flattened()].concat());
        }
    }
    let whole = [[0x20, 0, 8, 0], [0xa0, 0, 8, 0], [0x20, 1, 0x88, 0x0b], [0xa0, 1, 0x88, 0x0b]];
    for (head, length) in whole.iter().flat_map(|head| (0..12).map(move |length| (head, length))) {
        all.push([&head[..], WORDS.as_flattened()].concat()[..length].to_vec());
    }
    all
}

/// NEWPOLICY: what comes in with a key is blocked.
fn policy(key: u32) -> Vec<u8> {
    let mut info = vec![0; 168];
    let [a, b, c, d] = key.to_be_bytes();
    for (at, half) in [(32, [c, d]), (36, [a, b])] {
        info[at..at + 4].copy_from_slice(&[half[0], half[1], 0xff, 0xff]);
    }
    (info[40], info[44]) = (2, GRE);
    info[56..88].fill(255);
    info[161] = 1;
    message(NEW_POLICY, 5, &[info, attribute(16, &[0; 6])].concat())
}

fn packet(gre: &[u8]) -> Vec<u8> {
    let length = u8::try_from(20 + gre.len()).unwrap();
    let head = [0x45, 0, 0, length, 0, 1, 0, 0, 64, GRE, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
    [&head[..], gre].concat()
}

/// How many packets `in` the kernel has blocked.
fn blocked() -> u32 {
    let all = std::fs::read_to_string("/proc/thread-self/net/xfrm_stat").unwrap();
    let line = all.lines().find(|line| line.starts_with("XfrmInPolBlock")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether the kernel blocks a packet: waits for a packet that should be blocked; others arrive at
/// once.
fn is_blocked(socket: &impl AsRawFd, packet: &[u8], patience: Duration) -> bool {
    let (before, begun) = (blocked(), Instant::now());
    let to = SockaddrIn::from(SocketAddrV4::new([127, 0, 0, 1].into(), 0));
    sendto(socket.as_raw_fd(), packet, &to, MsgFlags::empty()).unwrap();
    while blocked() == before {
        if begun.elapsed() >= patience {
            return false;
        }
    }
    true
}

fn is_blocked_here(stage: &Stage, packet: &[u8]) -> bool {
    let flow = FlowKey::of_bytes(&IpPacket::parse(packet).unwrap(), packet);
    let snapshot = stage.database.snapshot();
    matches!(snapshot.spd.lookup(Direction::In, &flow), PolicyLookup::Policy(_))
}

/// Whether the kernel's flow dissector finds the key.
fn dissects() -> bool {
    let release = nix::sys::utsname::uname().unwrap();
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

fn judge(kernel: &Kernel) {
    open_loopback(Family::V4);
    let (flags, protocol) = (SockFlag::empty(), SockProtocol::Raw);
    let socket = socket(AddressFamily::Inet, SockType::Raw, flags, protocol).unwrap();
    let mut stage = Stage::new();
    let mut counts = [0; 2];
    for key in KEYS {
        let flush = message(FLUSH_POLICIES, 5, &attribute(16, &[0; 6]));
        for request in [flush, policy(key)] {
            let verdicts =
                [kernel.ask(&request), stage.ask(&request)].map(|answers| answers[0].verdict());
            assert_eq!(verdicts.map(|verdict| verdict.unwrap().0), [0, 0]);
        }
        for header in headers() {
            let packet = packet(&header);
            let ours = is_blocked_here(&stage, &packet);
            let patience = Duration::from_secs(if ours { 20 } else { 0 });
            let theirs = is_blocked(&socket, &packet, patience);
            assert_eq!(ours, theirs, "key {key:#x}, {header:02x?}; ours, the kernel's");
            counts[usize::from(ours)] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 200), "{counts:?}: too one-sided a test");
}

#[test]
fn gre_key_is_found_as_by_the_kernel() {
    if dissects() {
        against_the_kernel(judge);
    } else {
        eprintln!("not run: a kernel before 6.7 takes any GRE header for one of version 0");
    }
}
