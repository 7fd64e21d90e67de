//! `ip` under the library.

use std::{process::Command, sync::mpsc::Receiver};

use uxfrm_control::greeting::Greeting;

use crate::server::{GETSADINFO, NEWPOLICY, library, run, with_server, with_server_of};

fn ip(arguments: &str) -> (Option<i32>, String, String) {
    let output = run("ip", arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn kinds(heard: &Receiver<Vec<u8>>) -> Vec<u16> {
    let netlink = heard.try_iter().filter(|datagram| Greeting::parse(datagram).is_none());
    netlink.map(|datagram| u16::from_ne_bytes([datagram[4], datagram[5]])).collect()
}

#[test]
fn ip_xfrm_reaches_the_server_and_ip_link_the_kernel() {
    with_server(|heard| {
        assert_eq!(ip("xfrm state count"), (Some(0), "SAD count 3".into(), String::new()));
        let greeting = Greeting::parse(&heard.recv().unwrap()).unwrap();
        assert!(greeting.port != 0 && greeting.groups == 0);
        assert_eq!(greeting.options, 1 << libc::NETLINK_EXT_ACK);
        assert_eq!(kinds(heard), [GETSADINFO]);

        assert_eq!(ip("xfrm state list"), (Some(0), String::new(), String::new()));
        assert_eq!(ip("xfrm policy list"), (Some(0), String::new(), String::new()));
        let add = "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode tunnel";
        assert_eq!(ip(add), (Some(0), String::new(), String::new()));
        assert_eq!(*kinds(heard).last().unwrap(), NEWPOLICY);

        let (code, out, _) = ip("-o link show lo");
        assert!(code == Some(0) && out.contains("LOOPBACK"), "{out}");
        assert_eq!(kinds(heard), []);
    });
}

#[test]
fn errors_and_overruns_look_like_the_kernels() {
    with_server(|_| {
        let add = "xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 1 mode tunnel enc ecb(cipher_null) 0x";
        let (code, _, err) = ip(add);
        assert_eq!((code, err.as_str()), (Some(2), "RTNETLINK answers: File exists"));
        // It listens to all groups; the server reports an overrun and keeps the connection.
        let monitor = run("timeout", "1 ip xfrm monitor");
        let err = String::from_utf8_lossy(&monitor.stderr);
        assert!(err.contains("netlink receive error No buffer space available (105)"), "{err}");
    });
}

/// Anybody may take the gateway's name while there is no gateway.
#[test]
fn process_with_the_gateways_name_is_not_trusted() {
    with_server_of(65534, |heard| {
        let (_, _, err) = ip("xfrm state");
        assert!(err.contains("Cannot open netlink socket: Operation not permitted"), "{err}");
        assert!(heard.try_recv().is_err(), "it was told something");
    });
}

#[test]
fn socket_without_server_fails() {
    with_server(|_| {
        let status = Command::new("unshare")
            .args(["-n", "ip", "xfrm", "state"])
            .env("LD_PRELOAD", library())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&status.stderr);
        assert!(err.contains("Cannot open netlink socket: Connection refused"), "{err}");
    });
}
