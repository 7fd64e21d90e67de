//! What an ordinary user can do once [`become_root`] was called, in a process of its own without other threads.
#![expect(clippy::unwrap_used, reason = "a test's own set-up")]

use std::os::fd::AsFd;

use uxfrm_io::netns::{become_root, set_sysctl};
use uxfrm_io::{Namespace, Raw, RawOptions, Rtnetlink, Tun, TunOptions, Udp, UdpOptions};
use uxfrm_packet::Version;

fn main() {
    if let Err(error) = become_root() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "must run in CI: {error}");
        eprintln!("not run: no user namespace: {error}");
        return;
    }
    let far = Namespace::new().unwrap();
    let mut kernel = Rtnetlink::open().unwrap();
    assert_eq!(kernel.links().unwrap().len(), 1, "a network namespace of its own");
    kernel.add_veth("wire", "wire", far.as_fd()).unwrap();
    assert!(far.enter(|| Rtnetlink::open().unwrap().link("wire").is_ok()).unwrap());
    far.enter(|| set_sysctl("net/ipv4/ip_forward", "1").unwrap()).unwrap();
    assert!(set_sysctl("net/no/such", "1").unwrap_err().to_string().contains("net/no/such"));
    Udp::open(&UdpOptions { mark: 1, ..UdpOptions::new("127.0.0.1:4500".parse().unwrap()) })
        .unwrap();
    for version in [Version::V4, Version::V6] {
        Raw::open(&RawOptions { mark: 1, ..RawOptions::new(version) }).unwrap();
    }
    match Tun::open(&TunOptions::new("uxio%d")) {
        Ok(tun) => assert!(kernel.link(tun.name()).is_ok()),
        Err(error) => eprintln!("not run: /dev/net/tun: {error}"),
    }
    eprintln!("an ordinary user's namespace: ok");
}
