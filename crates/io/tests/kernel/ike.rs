use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::mpsc::{Receiver, sync_channel};

use uxfrm_io::ike::{Buffer, DeliveryError, IkeDatagram, IkeExchange};
use uxfrm_io::{Port, Udp, UdpOptions};
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, UdpPath};

use crate::{in_namespace, receive_until};

const STRIDE: u16 = 1000;
const HEADER: usize = 48;
const GATEWAY: &str = "uxfrm/udp/4500";

/// The gateway's half, and a peer on the other end of the wire.
struct Scene {
    exchange: IkeExchange,
    near: Udp,
    messages: Receiver<IkeDatagram>,
    far: Udp,
}

impl Scene {
    fn new(any: &str, far: &str) -> Self {
        let exchange = IkeExchange::open(4500, 0, None).unwrap();
        let (daemons, messages) = sync_channel(8);
        let open = |address: &str, shared| {
            Udp::open(&UdpOptions { shared, ..UdpOptions::new(address.parse().unwrap()) }).unwrap()
        };
        let near = open(any, true).sharing_with(daemons);
        Self { exchange, near, messages, far: open(far, false) }
    }

    /// Sends a burst of these datagrams to `here`; what the engine gets of it.
    fn receive(&mut self, burst: &[Vec<u8>], here: &str) -> Vec<u8> {
        let mut packet = PacketBuf::from_slice(&burst.concat());
        packet.segments = Segments::Burst { stride: STRIDE };
        packet.udp = Some(UdpPath {
            local: self.far.local(),
            remote: here.parse().unwrap(),
            tos: 0,
            dont_fragment: false,
        });
        let mut batch: Batch = [packet].into_iter().collect();
        let done = self.far.transmit(&mut batch, &mut Pool::new());
        assert_eq!(done.packets, burst.len() as u64, "{done:?}");
        let got = receive_until(&mut self.near, |got| !got.is_empty());
        assert_eq!(got.len(), 1, "one burst arrives as one");
        got[0].bytes().to_vec()
    }

    /// Lets a daemon say something; where the peer has it from.
    fn carry(&mut self, payload: &[u8]) -> SocketAddr {
        let message = self.exchange.next(&mut Buffer::default()).unwrap().unwrap();
        assert_eq!(message.payload, payload);
        self.exchange.send(&message).unwrap();
        let got = receive_until(&mut self.far, |got| !got.is_empty());
        assert_eq!(got[0].bytes(), payload);
        got[0].udp.unwrap().remote
    }
}

fn named(name: &str) -> UnixAddress {
    UnixAddress::from_abstract_name(name).unwrap()
}

fn daemon(digits: &str) -> UnixDatagram {
    UnixDatagram::bind_addr(&named(&format!("{GATEWAY}/{digits}"))).unwrap()
}

fn heard(daemon: &UnixDatagram) -> Vec<u8> {
    let mut bytes = [0; 4096];
    let length = daemon.recv(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

fn esp(number: u8) -> Vec<u8> {
    vec![number; STRIDE.into()]
}

fn ike(length: u16) -> Vec<u8> {
    let mut bytes = vec![0x5a; length.into()];
    bytes[..4].fill(0);
    bytes
}

/// `here`, the peer, and the names of who is bound to `here` and to any address.
fn there_and_back(any: &str, here: &str, far: &str, own: &str) {
    let mut scene = Scene::new(any, far);
    // GRO asks nobody before it joins IKE and ESP: neither may be lost.
    let kept = scene.receive(&[esp(1), ike(STRIDE), esp(2), ike(STRIDE), esp(3)], here);
    assert_eq!(kept, [esp(1), esp(2), esp(3)].concat());
    let messages: Vec<_> = scene.messages.try_iter().collect();
    assert_eq!(messages.len(), 2);

    let any = daemon(&"0".repeat(own.len()));
    let before = scene.exchange.owner_questions();
    for _ in 0..8 {
        scene.exchange.deliver(&messages[1]).unwrap();
        assert_eq!(heard(&any)[HEADER..], ike(STRIDE));
    }
    assert_eq!(scene.exchange.owner_questions() - before, 1);
    scene.exchange.deliver(&messages[0]).unwrap();
    let message = heard(&any);
    assert_eq!(message[HEADER..], ike(STRIDE));
    let bound = daemon(own);
    scene.exchange.deliver(&messages[1]).unwrap();
    assert_eq!(heard(&bound), message);
    drop((any, bound));
    let refused = scene.exchange.deliver(&messages[0]).unwrap_err();
    assert!(matches!(refused, DeliveryError::Unclaimed), "{refused}");

    // What came, sent back with other words; then without a source.
    let back = daemon(own);
    let mut answer = [&message[..HEADER], &ike(3000)].concat();
    back.send_to_addr(&answer, &named(GATEWAY)).unwrap();
    assert_eq!(scene.carry(&ike(3000)), here.parse().unwrap());
    answer[16..32].fill(0);
    back.send_to_addr(&answer, &named(GATEWAY)).unwrap();
    assert_eq!(scene.carry(&ike(3000)).port(), 4500);
}

#[test]
fn ike_of_ipv4_finds_its_daemon_and_its_way_out() {
    in_namespace(|| {
        there_and_back("0.0.0.0:4500", "127.0.0.1:4500", "127.0.0.2:0", "7f000001");
    });
}

#[test]
fn ike_of_ipv6_finds_its_daemon_and_its_way_out() {
    let own = format!("{:032}", 1);
    in_namespace(|| there_and_back("[::]:4500", "[::1]:4500", "[::1]:0", &own));
}

#[test]
fn ike_exchange_ignores_strangers_and_ends_when_closed() {
    in_namespace(|| {
        let exchange = IkeExchange::open(4500, 0, None).unwrap();
        assert_eq!(
            IkeExchange::open(4500, 0, None).unwrap_err().kind(),
            io::ErrorKind::AddrInUse,
            "one gateway has the port"
        );
        let mut message = [&b"uxd1\x04\0\0\0"[..], &[0; HEADER - 8], b"from nobody"].concat();
        let words = message.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the call takes numbers only, and concerns this thread.
                let other = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                if other == 0 {
                    let socket = UnixDatagram::unbound().unwrap();
                    socket.send_to_addr(&words, &named(GATEWAY)).unwrap();
                }
            });
        });
        message.truncate(HEADER);
        message.extend(b"from root");
        let socket = UnixDatagram::unbound().unwrap();
        socket.send_to_addr(b"no message", &named(GATEWAY)).unwrap();
        socket.send_to_addr(&message, &named(GATEWAY)).unwrap();
        let mut buffer = Buffer::default();
        assert_eq!(exchange.next(&mut buffer).unwrap().unwrap().payload, b"from root");
        exchange.close();
        assert_eq!(exchange.next(&mut buffer).unwrap(), None);
    });
}
