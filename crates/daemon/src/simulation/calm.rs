//! When faults end, traffic comes back.

use std::time::Duration;

use uxfrm_engine::OffloadKind;
use uxfrm_offload::Fault;

use super::{
    machine::{self, Health},
    names::{Name, Net},
    world::World,
};

impl World {
    /// Ends all faults and has all requests answered.
    pub(super) fn calm_down(&mut self) {
        self.note(|| "all faults end".to_owned());
        self.wire.mend();
        self.is_calm = true;
        for site in 0..self.sites.len() {
            self.sites[site].disk.set_health(Health::Good);
            self.sites[site].kernel.refuse(0);
            self.start(site);
            let run = self.sites[site].run.as_mut().expect("it starts");
            for fault in [
                Fault::FullTables(0),
                Fault::Busy(0),
                Fault::WrongDecryptions(0),
                Fault::Reorder(0),
            ] {
                run.nic.iter_mut().for_each(|nic| nic.inject(fault));
            }
        }
        for turn in 0..14 {
            if turn > 8 {
                self.reconnect();
                (0..self.sites.len()).for_each(|site| self.missing_statics_once(site, turn));
            }
            self.settle();
            machine::pass(Duration::from_secs(4));
        }
        self.reconnect();
        self.settle();
        self.sites.iter().for_each(|site| site.expect_tun_fits());
        for from in 0..self.sites.len() {
            for to in (0..self.sites.len()).filter(|to| *to != from) {
                self.expect((from, 0), (to, 0), None);
            }
        }
        for (name, from, to) in self.static_flows() {
            // A device counts for itself: only traffic moves its numbers.
            if self.sites[from.0].offload == Some(OffloadKind::Packet) {
                continue;
            }
            self.expect(from, to, Some(name));
        }
    }

    fn missing_statics_once(&mut self, site: usize, turn: usize) {
        if turn == 9 {
            self.missing_statics(site);
        }
    }

    /// Runs until no request waits and the wire is empty.
    fn settle(&mut self) {
        for _ in 0..40 {
            let mut is_done = true;
            for site in 0..self.sites.len() {
                is_done &= self.clients[site].is_idle();
                self.requests(site, 100);
                self.run_housekeeping(site);
                machine::pass(Duration::from_millis(30));
            }
            is_done &= self.wire.is_empty();
            self.wire_brings(1000);
            if is_done {
                return;
            }
        }
        panic!("requests do not come to an end: {:?}", self.clients);
    }

    /// Asserts that a host's packet reaches another. Senders first pass peers' windows, as traffic
    /// would.
    fn expect(&mut self, from: Net, to: Net, state: Option<Name>) {
        for _ in 0..12 {
            if let Some(name) = state {
                self.advance_sender(name, from.0, to.0);
            }
            let before = self.traffic.total;
            self.send_one(from, to);
            self.settle();
            if self.traffic.total > before {
                return;
            }
            self.reconnect();
            machine::pass(Duration::from_secs(4));
            self.settle();
        }
        panic!("nothing comes from {from:?} to {to:?} any more");
    }

    /// Uses up the sender's numbers up to where the receiver accepts some.
    fn advance_sender(&mut self, name: Name, from: usize, to: usize) {
        let [sender, receiver] = [from, to].map(|site| {
            let run = self.sites[site].run.as_ref();
            run.and_then(|run| run.state(name)).unwrap_or_else(|| panic!("{site} has {name:?}"))
        });
        for _ in 0..40 {
            let (last, wanted) = (sender.sequence().last(), receiver.highest_received());
            if last >= wanted {
                return;
            }
            let some = (wanted - last).min(1 << 21);
            let _short = sender.sequence().take(u32::try_from(some).unwrap());
            self.run_housekeeping(from);
            machine::pass(Duration::from_secs(1));
        }
    }
}
