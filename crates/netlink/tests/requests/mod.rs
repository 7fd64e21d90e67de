//! Body of the fuzz target `netlink`: a client's datagrams for a server with a listener and a
//! clock.

use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, Moment};
use uxfrm_netlink::{
    Attributes, ClientId, Groups, NetlinkMessages, Outbox, Server, ServerSettings, SocketOptions,
};

const CLIENT: ClientId = ClientId { connection: 1, port: 4711 };
const LISTENER: ClientId = ClientId { connection: 2, port: 4712 };

/// The input is datagrams, each behind its length in two bytes (the last may be shorter). No panic;
/// answers and notifications are whole messages; every request is answered; counts agree with
/// contents; a dump ends.
pub(crate) fn netlink(bytes: &[u8]) {
    let mut gateway = Gateway::new();
    let mut rest = bytes;
    while let Some((len, tail)) = rest.split_first_chunk() {
        let (datagram, tail) = tail.split_at(tail.len().min(u16::from_le_bytes(*len).into()));
        // Decoding alone, wherever attributes might begin.
        for message in NetlinkMessages::of(datagram) {
            let body = message.body();
            let heads = [0, 4, 24, 48, 64, 168, 224, 232];
            heads.iter().filter_map(|head| body.get(*head..)).for_each(|tail| {
                let _ = Attributes::parse(tail, 0);
            });
        }
        gateway.ask(datagram);
        rest = tail;
    }
}

struct Gateway {
    server: Server,
    database: Database,
    now: Moment,
    out: Outbox,
}

impl Gateway {
    fn new() -> Self {
        let settings = ServerSettings { epoch: 1, seed: 1, acquire_expires: 30, cpus: 2 };
        let mut server = Server::new(settings);
        server.join(LISTENER, Groups::all(), SocketOptions::empty());
        server.join(CLIENT, Groups::empty(), SocketOptions::EXT_ACK);
        let database = Database::new(Backend::Portable, 1);
        Self { server, database, now: Moment::from_secs(1), out: Outbox::default() }
    }

    fn ask(&mut self, datagram: &[u8]) {
        let requests = NetlinkMessages::of(datagram);
        // `NLM_F_REQUEST | NLM_F_ACK`: answered with an error message, a dump, or both an answer
        // and an error message.
        let expected = requests.filter(|message| message.header.flags & 5 == 5).count();
        self.server.handle(CLIENT, datagram, &mut self.database, self.now, &mut self.out);
        self.server.publish_acquires(&mut self.database);
        let answers = self.deliver();
        assert!(answers >= expected, "{answers} answers to {expected} requests");
        let most = 2 + self.database.current().sad.len() + self.database.current().spd.len() + 100;
        for part in 0.. {
            if !self.server.is_dumping(CLIENT) {
                break;
            }
            assert!(part < most, "a dump without end");
            self.server.resume(CLIENT, &self.database, &mut self.out);
            self.deliver();
        }
        self.go_on();
        let snapshot = self.database.snapshot();
        assert_eq!(snapshot.sad.len(), snapshot.sad.iter().count());
        assert_eq!(snapshot.spd.len(), snapshot.spd.iter().count());
    }

    /// A second passes.
    fn go_on(&mut self) {
        self.now = Moment(self.now.0 + 1_000_000_000);
        let (mut events, before) = (Vec::new(), self.database.snapshot());
        self.database.handle_timeout(self.now, &mut events);
        for event in &events {
            self.server.announce(event, &before, &mut self.database, self.now, &mut self.out);
        }
        self.server.handle_timeout(self.now, &mut self.out);
        self.server.notify_counters(&before, self.now, &mut self.out);
        self.server.publish_acquires(&mut self.database);
        self.deliver();
    }

    /// How many messages the client got.
    fn deliver(&mut self) -> usize {
        let mut answers = 0;
        for delivery in self.out.drain() {
            let bytes = delivery.datagram.bytes();
            let messages: Vec<_> = NetlinkMessages::of(bytes).collect();
            let whole = messages.iter().map(|message| message.bytes.len().next_multiple_of(4));
            assert_eq!(whole.sum::<usize>(), bytes.len(), "half a message");
            if delivery.to == CLIENT {
                assert!(messages.iter().all(|message| message.header.pid == CLIENT.port));
                answers += messages.len();
            } else {
                assert_eq!(messages.len(), 1);
            }
        }
        answers
    }
}
