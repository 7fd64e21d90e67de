use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, sync_channel};

use super::*;

#[path = "../../../redirect/src/ends.rs"]
#[expect(unreachable_pub, reason = "it is the preload library's, which uses no crate of ours")]
mod ends;

const IKE: [u8; 40] = {
    let mut bytes = [7; 40];
    (bytes[0], bytes[1], bytes[2], bytes[3]) = (0, 0, 0, 0);
    bytes
};
const ESP: [u8; 40] = [9; 40];

fn path() -> UdpPath {
    UdpPath {
        local: "192.0.2.1:4500".parse().unwrap(),
        remote: "192.0.2.2:4501".parse().unwrap(),
        tos: 3,
        dont_fragment: false,
    }
}

/// What is left of a burst of datagrams, and what was passed on, by first bytes.
fn taken(burst: &[&[u8]], room: usize) -> (Option<Vec<u8>>, Segments, Vec<usize>) {
    let mut packet = PacketBuf::from_slice(&burst.concat());
    packet.udp = Some(path());
    if burst.len() > 1 {
        packet.segments = Segments::Burst { stride: 40 };
    }
    let (daemons, messages) = sync_channel(room);
    let kept = take(&mut packet, &daemons);
    let lengths = |messages: Receiver<IkeDatagram>| {
        messages.try_iter().map(|message| message.payload.len()).collect()
    };
    (kept.then(|| packet.bytes().to_vec()), packet.segments, lengths(messages))
}

#[test]
fn ike_messages_are_removed_from_burst() {
    let burst = Segments::Burst { stride: 40 };
    let short = &IKE[..36];
    let last = &ESP[..20];
    type Case<'a> = (&'a [&'a [u8]], Option<Vec<u8>>, Segments, &'a [usize]);
    let cases: &[Case<'_>] = &[
        (&[&ESP], Some(ESP.to_vec()), Segments::One, &[]),
        (&[&IKE], None, Segments::One, &[40]),
        (&[&ESP, &ESP, last], Some([&ESP[..], &ESP, last].concat()), burst, &[]),
        (&[&ESP, &IKE, last], Some([&ESP[..], last].concat()), burst, &[40]),
        (&[&IKE, &ESP, &IKE, &ESP, short], Some([ESP, ESP].concat()), burst, &[40, 40, 36]),
        (&[&IKE, &ESP], Some(ESP.to_vec()), Segments::One, &[40]),
        (&[&ESP, &IKE], Some(ESP.to_vec()), Segments::One, &[40]),
        (&[&IKE, last], Some(last.to_vec()), Segments::One, &[40]),
        (&[&IKE, &IKE], None, Segments::One, &[40, 40]),
    ];
    for (number, (burst, left, segments, handed)) in cases.iter().enumerate() {
        let (kept, shape, lengths) = taken(burst, 8);
        assert_eq!((&kept, &*lengths), (left, *handed), "case {number}");
        if kept.is_some() {
            assert_eq!(shape, *segments, "case {number}");
        }
    }
}

#[test]
fn ike_message_stays_when_queue_is_full() {
    let (kept, _, lengths) = taken(&[&IKE, &IKE, &ESP], 1);
    assert_eq!((kept.unwrap(), lengths), ([&IKE[..], &ESP].concat(), vec![40]));
    let (daemons, messages) = sync_channel(1);
    drop(messages);
    let mut packet = PacketBuf::from_slice(&IKE);
    packet.udp = Some(path());
    assert!(take(&mut packet, &daemons) && packet.len() == 40);
}

#[test]
fn ike_has_a_marker_a_spi_and_a_header() {
    assert!(is_ike(&IKE) && is_ike(&IKE[..32]));
    for other in [&IKE[..31], &[0xff], &[0; 64], &ESP, &[]] {
        assert!(!is_ike(other), "{other:?}");
    }
}

#[test]
fn daemon_bound_to_address_precedes_wildcard() {
    let names = |end: &str| names(end.parse().unwrap());
    assert_eq!(names("192.0.2.1:4500"), ["uxfrm/udp/4500/c0000201", "uxfrm/udp/4500/00000000"]);
    let [own, any] = names("[2001:db8::1]:4501");
    assert_eq!(own, "uxfrm/udp/4501/20010db8000000000000000000000001");
    assert_eq!(any, format!("uxfrm/udp/4501/{:032}", 0));
}

/// The preload library writes and reads the same bytes.
#[test]
fn gateway_and_preload_message_formats_agree() {
    for (local, remote) in
        [("192.0.2.1:4500", "192.0.2.2:4501"), ("[fe80::1%3]:4500", "[fe80::2%3]:500")]
    {
        let (local, remote): (SocketAddr, SocketAddr) =
            (local.parse().unwrap(), remote.parse().unwrap());
        let path = UdpPath { local, remote, ..path() };
        let header = message::header(&path);
        assert_eq!(message::parse(&[&header[..], b"x"].concat()), Some((path, &b"x"[..])));
        let ends = ends::Ends::parse(&header).unwrap();
        assert_eq!(ends.to_bytes(), header);
        assert_eq!((ends.local.port, ends.remote.port, ends.tos), (local.port(), remote.port(), 3));
        let mut name = [0; ends::NAME];
        let length = ends::name(local.port(), Some((ends.family, &ends.local.address)), &mut name);
        assert_eq!(name[..length], *names(local)[0].as_bytes());
        let length = ends::name(local.port(), None, &mut name);
        assert_eq!(name[..length], *super::name(local.port()).as_bytes());
    }
    assert_eq!(message::parse(&[0; 60]), None);
    assert_eq!(message::parse(b"uxd1"), None);
    assert_eq!(ends::Ends::parse(&[0; ends::LENGTH]), None);
}
