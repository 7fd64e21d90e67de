//! Who gets messages, and how often the kernel is asked for owners. Each test has local addresses
//! of its own, as abstract names are those of the whole network namespace.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::time::Duration;

use uxfrm_packet::UdpPath;

use super::*;
use crate::ike::{daemon_links::MOST, names};

/// A port that no gateway has.
const PORT: u16 = 1;

/// The nth local address of a test of this process.
fn local(test: u8, nth: u32) -> SocketAddr {
    let process = std::process::id() << 12 & 0x00ff_f000;
    let host = 0x7f00_0000 | process | u32::from(test) << 8 | nth;
    SocketAddr::new(Ipv4Addr::from(host).into(), PORT)
}

fn message(local: SocketAddr) -> IkeDatagram {
    let remote = "192.0.2.2:4500".parse().unwrap();
    let path = UdpPath { local, remote, tos: 0, dont_fragment: false };
    IkeDatagram { path, payload: b"message".to_vec() }
}

/// A daemon bound to an address.
fn daemon(local: SocketAddr) -> UnixDatagram {
    let name = UnixAddress::from_abstract_name(&names(local)[0]).unwrap();
    let socket = UnixDatagram::bind_addr(&name).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn heard(daemon: &UnixDatagram) -> usize {
    std::iter::from_fn(|| daemon.recv(&mut [0; 256]).ok()).count()
}

fn questions_of(delivery: &Delivery, work: impl FnOnce()) -> u64 {
    let before = delivery.owner_questions();
    work();
    delivery.owner_questions() - before
}

const ALL: fn(Uid) -> bool = |_| true;
const NOBODY: fn(Uid) -> bool = |_| false;

#[test]
fn owner_is_asked_for_once_for_many_messages() {
    let (delivery, local) = (Delivery::open(None).unwrap(), local(1, 0));
    let daemon = daemon(local);
    let asked = questions_of(&delivery, || {
        for _ in 0..100 {
            delivery.send(&message(local), ALL).unwrap();
            assert_eq!(heard(&daemon), 1);
        }
    });
    assert_eq!(asked, 1);
}

#[test]
fn daemons_that_take_turns_are_asked_for_once_each() {
    let delivery = Delivery::open(None).unwrap();
    let daemons: Vec<_> = (0..4).map(|nth| (local(2, nth), daemon(local(2, nth)))).collect();
    let asked = questions_of(&delivery, || {
        for _ in 0..50 {
            for (local, daemon) in &daemons {
                delivery.send(&message(*local), ALL).unwrap();
                assert_eq!(heard(daemon), 1);
            }
        }
    });
    assert_eq!(asked, 4);
}

#[test]
fn owner_that_took_over_a_name_is_asked_for_anew() {
    let (delivery, local) = (Delivery::open(None).unwrap(), local(3, 0));
    let first = daemon(local);
    delivery.send(&message(local), ALL).unwrap();
    drop(first);
    let stranger = daemon(local);
    let asked = questions_of(&delivery, || {
        for _ in 0..100 {
            let refused = delivery.send(&message(local), NOBODY).unwrap_err();
            assert!(matches!(refused, DeliveryError::Stranger { .. }), "{refused}");
        }
    });
    assert!(asked <= 2, "one in the time that a refusal holds: {asked}");
    assert_eq!(heard(&stranger), 0, "what is refused gets nothing");
    drop(stranger);
    // Whose it is next is found out when the refusal has lost its force.
    let second = daemon(local);
    while delivery.send(&message(local), ALL).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heard(&second), 1);
}

#[test]
fn message_follows_a_daemon_that_was_started_again() {
    let (delivery, local) = (Delivery::open(None).unwrap(), local(4, 0));
    for _ in 0..3 {
        let daemon = daemon(local);
        delivery.send(&message(local), ALL).unwrap();
        assert_eq!(heard(&daemon), 1);
        drop(daemon);
        let refused = delivery.send(&message(local), ALL).unwrap_err();
        assert!(matches!(refused, DeliveryError::Unclaimed), "{refused}");
    }
}

#[test]
fn so_many_daemons_stay_linked_and_more_are_reached() {
    let delivery = Delivery::open(None).unwrap();
    let most = u32::try_from(MOST).unwrap();
    let daemons: Vec<_> = (0..most + 9).map(|nth| (local(5, nth), daemon(local(5, nth)))).collect();
    for _ in 0..2 {
        for (local, daemon) in &daemons {
            delivery.send(&message(*local), ALL).unwrap();
            assert_eq!(heard(daemon), 1);
        }
        assert_eq!(delivery.known.lock().unwrap().links.len(), MOST);
    }
    let recent = daemons[9].0;
    let asked = questions_of(&delivery, || delivery.send(&message(recent), ALL).unwrap());
    assert_eq!(asked, 0, "those used last are linked");
}

/// As one of libreswan's whose name somebody else has taken.
#[test]
fn daemon_whose_name_is_taken_is_reached_by_its_file() {
    let (scratch, local) = (tempfile::tempdir().unwrap(), local(6, 0));
    let delivery = Delivery::open(Some(scratch.path().to_owned())).unwrap();
    let refused = delivery.send(&message(local), ALL).unwrap_err();
    assert!(matches!(refused, DeliveryError::Unclaimed), "{refused}");
    let stranger = daemon(local);
    let refused = delivery.send(&message(local), NOBODY).unwrap_err();
    assert!(matches!(refused, DeliveryError::Stranger { .. }), "{refused}");
    let file = scratch.path().join(names(local)[0].replace('/', ".").replace("uxfrm.", ""));
    let real = UnixDatagram::bind(&file).unwrap();
    real.set_nonblocking(true).unwrap();
    // Only the stranger is refused, who is known by now.
    let asked = questions_of(&delivery, || {
        for _ in 0..10 {
            delivery.send(&message(local), ALL).unwrap();
            assert_eq!(heard(&real), 1);
        }
    });
    assert_eq!((asked, heard(&stranger)), (1, 0));
    drop(real);
    let refused = delivery.send(&message(local), NOBODY).unwrap_err();
    assert!(
        matches!(refused, DeliveryError::Stranger { .. }),
        "its file is still there: {refused}"
    );
}
