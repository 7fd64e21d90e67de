//! IKE messages of a program that does not wait for room, while somebody floods the gateway's name.

use std::{
    net::UdpSocket,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use crate::server::inside;

const MESSAGES: usize = 300;
/// Bytes before a message.
const ENDS: usize = 48;

#[test]
fn messages_of_a_program_that_does_not_wait_arrive_in_a_flood() {
    inside("flood::inside_flood");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_flood() {
    let name = SocketAddr::from_abstract_name("uxfrm/udp/4500").unwrap();
    let gateway = UnixDatagram::bind_addr(&name).unwrap();
    let program = UdpSocket::bind("0.0.0.0:4500").unwrap();
    program.set_nonblocking(true).unwrap();
    let (ends, sent) = (AtomicBool::new(false), AtomicUsize::new(usize::MAX));
    let (results, heard) = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| flood(&name, &ends));
        }
        let heard = scope.spawn(|| hear(gateway, &sent));
        let results: Vec<_> =
            (0..MESSAGES).map(|_| program.send_to(&[7; 40], "192.0.2.1:500")).collect();
        sent.store(results.iter().filter(|result| result.is_ok()).count(), Ordering::Release);
        let heard = heard.join().unwrap();
        ends.store(true, Ordering::Release);
        (results, heard)
    });
    let lost: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(lost.is_empty(), "{} lost: {:?}", lost.len(), lost.first());
    assert_eq!(heard, MESSAGES);
}

fn flood(name: &SocketAddr, ends: &AtomicBool) {
    let stranger = UnixDatagram::unbound().unwrap();
    while !ends.load(Ordering::Acquire) {
        let _full = stranger.send_to_addr(b"flood", name);
    }
}

/// Messages of the program until all that it has sent are there. Those who flood are refused then.
fn hear(gateway: UnixDatagram, sent: &AtomicUsize) -> usize {
    let (mut bytes, mut heard) = ([0; 256], 0);
    while heard < sent.load(Ordering::Acquire) {
        let length = gateway.recv(&mut bytes).unwrap();
        heard += usize::from(length == ENDS + 40 && bytes.starts_with(b"uxd1"));
    }
    heard
}
