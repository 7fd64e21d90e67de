//! Ports and set-up against the running kernel, each test in network namespaces of its own.
//!
//! Needs `CAP_SYS_ADMIN`, `CAP_NET_ADMIN`, `CAP_NET_RAW` and `/dev/net/tun`: root, or `unshare -Urn
//! cargo test`. Without them a test prints `not run: REASON`, and fails where `CI=true`.

#![expect(clippy::unwrap_used, reason = "a test's own set-up")]

mod capture;
mod ethtool;
mod ike;
mod napi;
mod nftables;
mod packet_socket;
mod path_errors;
mod raw;
mod rtnetlink;
mod tun;
mod udp;
mod xdp;
mod xdp_passed_on;

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use uxfrm_io::rtnetlink::RoutePrefix;
use uxfrm_io::{Namespace, Port, Rtnetlink};
use uxfrm_packet::{Batch, PacketBuf, Pool};

/// Runs a test in a fresh namespace whose loopback is up.
fn in_namespace(test: impl FnOnce() + Send) {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return not_run(&format!("no network namespace: {error}")),
    };
    namespace
        .enter(|| {
            let mut kernel = Rtnetlink::open().unwrap();
            let loopback = kernel.link("lo").unwrap().index;
            kernel.set_up(loopback).unwrap();
            test();
        })
        .unwrap();
}

/// The same for a test that needs TUN devices.
fn with_tun(test: impl FnOnce() + Send) {
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_usable) => in_namespace(test),
        Err(error) => not_run(&format!("/dev/net/tun: {error}")),
    }
}

/// Waits until the kernel has taken note that a device's other end is up: until then it drops what
/// is to leave by it, and says nothing.
fn await_carrier(device: &str) {
    let is_running = |found: InterfaceAddress| {
        found.interface_name == device && found.flags.contains(InterfaceFlags::IFF_RUNNING)
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !getifaddrs().unwrap().any(is_running) {
        assert!(Instant::now() < deadline, "{device} has no carrier");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn not_run(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "must run in CI: {reason}");
    eprintln!("not run: {reason}");
}

fn prefix(text: &str) -> RoutePrefix {
    let (address, length) = text.split_once('/').unwrap();
    RoutePrefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
}

/// Receives until `enough` says so or two seconds are over.
fn receive_until(port: &mut impl Port, enough: impl Fn(&[PacketBuf]) -> bool) -> Vec<PacketBuf> {
    let (mut pool, mut batch, mut all) = (Pool::new(), Batch::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(2);
    while !enough(&all) && Instant::now() < deadline {
        if port.receive(&mut pool, &mut batch).unwrap() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        all.extend(batch.drain());
    }
    all
}

/// The Internet checksum's sum (RFC 1071), folded.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}
