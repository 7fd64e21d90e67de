//! A round of requests whose write fails leaves everything as it was: states, with their numbers
//! and windows, policies, larval states, devices.

use std::collections::BTreeSet;

use tempfile::TempDir;
use uxfrm_engine::{OffloadKind, Sa};
use uxfrm_netlink::{NetlinkMessages, client::ReplyStatus};
use uxfrm_testkit::Rng;

use super::{
    client::{self, Clients, GROUPS, IKE, Purpose, SCRIPT},
    machine::{self, Health},
    names::{PLACES, PolicyName, PolicySide, outer},
    site::{Run, Site, pick},
};
use crate::protocol::Outbox;

const SEEDS: u64 = 60;
const ROUNDS: usize = 30;
const REQID: u32 = 7;
/// The errno for a full disk that reports none.
const EIO: i32 = 5;
/// Few of each, so that requests meet.
const SPIS: usize = 5;
const NETS: usize = 3;

/// What a round must not change: dumps, states as workers see them, and the device's.
#[derive(Debug, PartialEq, Eq)]
struct Observed {
    shown: BTreeSet<(u16, Vec<u8>)>,
    states: BTreeSet<String>,
    on_device: BTreeSet<String>,
}

struct RoundFixture {
    rng: Rng,
    site: Site,
    clients: Clients,
    outbox: Outbox,
    last_spi: u32,
    _scratch: TempDir,
}

impl RoundFixture {
    fn new(seed: u64) -> Self {
        machine::begin(seed);
        let mut rng = Rng::new(seed);
        let scratch = TempDir::new().unwrap();
        let batch = scratch.path().join("batch");
        std::fs::write(&batch, "").unwrap();
        // Each state names its kind itself.
        let offload = (rng.below(3) > 0).then_some(OffloadKind::Packet);
        let mut site = Site::new(0, batch, 1, offload);
        site.start().unwrap();
        let run = site.run.as_mut().unwrap();
        run.join(IKE, GROUPS);
        run.join(SCRIPT, 0);
        let (clients, outbox) = (Clients::default(), Outbox::default());
        Self { rng, site, clients, outbox, last_spi: 0x9000, _scratch: scratch }
    }

    fn run(&mut self) -> &mut Run {
        self.site.run.as_mut().unwrap()
    }

    /// Runs one round of all queued requests; returns the errnos.
    fn round(&mut self) -> Vec<i32> {
        let taken = self.clients.take(usize::MAX);
        let requests: Vec<_> = taken.into_iter().map(|(from, _, bytes)| (from, bytes)).collect();
        let run = self.site.run.as_mut().unwrap();
        let answers = run.round(&requests, &mut self.outbox);
        let messages = answers.iter().flat_map(|(_, datagram)| NetlinkMessages::of(datagram));
        let refused = messages.filter_map(|message| match ReplyStatus::of(&message) {
            ReplyStatus::Refused(refusal) => Some(refusal.errno),
            ReplyStatus::Content | ReplyStatus::Done { .. } | ReplyStatus::Broken => None,
        });
        refused.collect()
    }

    fn observe(&mut self) -> Observed {
        for line in ["state list", "policy list"] {
            self.clients.ask(SCRIPT, line, Purpose::Dump);
        }
        let mut shown = BTreeSet::new();
        for _ in 0..2 {
            let taken = self.clients.take(1);
            let requests: Vec<_> =
                taken.into_iter().map(|(from, _, bytes)| (from, bytes)).collect();
            let run = self.site.run.as_mut().unwrap();
            let answers = run.round(&requests, &mut self.outbox);
            let messages = answers.iter().flat_map(|(_, datagram)| NetlinkMessages::of(datagram));
            shown.extend(messages.map(|message| (message.header.kind, message.body().to_vec())));
        }
        let run = self.run();
        let states = run.database.snapshot().sad.iter().map(|sa| state_line(sa)).collect();
        let on_device = run.nic.iter().flat_map(|nic| nic.state_lines()).collect();
        Observed { shown, states, on_device }
    }

    fn place(&mut self) -> u8 {
        u8::try_from(self.rng.below(PLACES.into())).unwrap()
    }

    /// Two ends of a tunnel, from here or to here.
    fn ends(&mut self, side: PolicySide) -> (std::net::IpAddr, std::net::IpAddr) {
        let (here, there) = (outer(0, self.place()).into(), outer(1, self.place()).into());
        if side == PolicySide::Out { (here, there) } else { (there, here) }
    }

    fn side(&mut self) -> PolicySide {
        if self.rng.below(2) == 0 { PolicySide::Out } else { PolicySide::In }
    }

    fn policy(&mut self) -> PolicyName {
        let net = u8::try_from(self.rng.below(NETS)).unwrap();
        match self.side() {
            PolicySide::Out => (PolicySide::Out, (0, net), (1, net)),
            PolicySide::In => (PolicySide::In, (1, net), (0, net)),
        }
    }

    /// A state, new or other, perhaps on the device.
    fn ask_state(&mut self, verb: &str, spi: u32) {
        let side = self.side();
        let (source, destination) = self.ends(side);
        // Each third state shares its key.
        let mut key = [u8::try_from(spi % 251).unwrap(); 20];
        if spi.is_multiple_of(3) {
            key = [1; 20];
        }
        let limit = 1000 + self.rng.below(3);
        let words = format!("reqid {REQID} replay-window 64 limit packet-soft {limit}");
        let line = client::state(verb, source, (destination, spi), &key, &words);
        let nic = self.site.run.as_ref().and_then(|run| run.nic.as_ref());
        let kind =
            *pick(&mut self.rng, &[None, Some(OffloadKind::Crypto), Some(OffloadKind::Packet)])
                .unwrap();
        let device = nic.map(|nic| nic.index).zip(kind);
        let device =
            device.map(|(index, kind)| client::offload(index, kind, side == PolicySide::In));
        self.clients.ask_with(IKE, &line, device, Purpose::Flush);
    }

    fn some_spi(&mut self) -> u32 {
        0x1000 + u32::try_from(self.rng.below(SPIS)).unwrap()
    }

    fn ask_something(&mut self) {
        let (spi, side) = (self.some_spi(), self.side());
        let (source, destination) = self.ends(side);
        match self.rng.below(12) {
            0..3 => self.ask_state("add", spi),
            3 => self.ask_state("update", spi),
            4 | 5 => {
                let line = format!("state delete dst {destination} proto esp spi {spi:#x}");
                self.clients.ask(SCRIPT, &line, Purpose::Flush);
            }
            6 => {
                let line = format!(
                    "state allocspi src {source} dst {destination} proto esp reqid {REQID} mode tunnel min 0x1000 max 0x1004"
                );
                self.clients.ask(IKE, &line, Purpose::Flush);
            }
            7 | 8 => {
                let (name, ends) = (self.policy(), (source, destination));
                let verb = ["add", "update"][self.rng.below(2)];
                self.clients.ask(SCRIPT, &client::policy(verb, name, ends, REQID), Purpose::Flush);
            }
            9 => {
                let (side, from, to) = self.policy();
                let direction = if side == PolicySide::Out { "out" } else { "in" };
                let (from, to) = (client::words(from), client::words(to));
                let line = format!("policy delete dir {direction} src {from} dst {to}");
                self.clients.ask(SCRIPT, &line, Purpose::Flush);
            }
            10 => {
                let name = self.policy();
                let [old, new] = [self.ends(name.0), self.ends(name.0)];
                self.clients.migrate(name, REQID, [old, new], Purpose::Flush);
            }
            _ if self.rng.below(3) == 0 => {
                let what = ["state flush proto esp", "policy flush"][self.rng.below(2)];
                self.clients.ask(SCRIPT, what, Purpose::Flush);
            }
            _ => {}
        }
    }

    /// Passes some packets.
    fn traffic(&mut self) {
        let snapshot = self.run().database.snapshot();
        for sa in snapshot.sad.iter().filter(|sa| !sa.device_counts()) {
            let packets = u32::try_from(1 + self.rng.below(9)).unwrap();
            let _held = sa.sequence().take(packets);
            let next = u32::try_from(sa.highest_received()).unwrap() + packets;
            let _beyond = sa.replay().check(next).and_then(|new| sa.replay().accept(new));
            let _limited = sa.charge(packets, 100, crate::clock::now());
        }
    }
}

/// What a dump does not show of a state.
fn state_line(sa: &Sa) -> String {
    let numbers = (sa.sequence().last(), sa.sequence().reserved(), sa.next_iv_prefix());
    let window = (sa.received_in_window(), sa.reserved_to_receive());
    let place = sa.attachment().map(|place| (place.device, place.kind));
    format!("{:?} {numbers:?} {window:?} {place:?} {}", sa.id(), sa.usage().packets())
}

#[test]
fn round_that_fails_leaves_everything_as_it_was() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let mut fixture = RoundFixture::new(seed);
        for round in 0..ROUNDS {
            fixture.traffic();
            let count = 1 + fixture.rng.below(8);
            if fixture.rng.below(2) == 0 {
                (0..count).for_each(|_| fixture.ask_something());
                fixture.round();
                continue;
            }
            let before = fixture.observe();
            // From here on requests wait for the disk.
            fixture.last_spi += 1;
            fixture.ask_state("add", fixture.last_spi);
            (0..count).for_each(|_| fixture.ask_something());
            fixture.site.disk.set_health(Health::Full(round));
            let refused = fixture.round();
            fixture.site.disk.set_health(Health::Good);
            // The device took the first one, or nothing waited.
            if refused.first() != Some(&EIO) {
                continue;
            }
            failed += 1;
            let after = fixture.observe();
            assert_eq!(before.states, after.states, "seed {seed}, round {round}");
            assert_eq!(before.on_device, after.on_device, "seed {seed}, round {round}");
            assert_eq!(before.shown, after.shown, "seed {seed}, round {round}");
            machine::pass(std::time::Duration::from_millis(300));
            let outbox = &mut Outbox::default();
            fixture.site.run.as_mut().unwrap().run_housekeeping(outbox);
            let file = fixture.site.disk.file_in_place().unwrap();
            fixture.run().check_reservations(&file);
        }
    }
    assert!(failed > 200, "only {failed} rounds failed");
}
