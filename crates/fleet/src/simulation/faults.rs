//! What may fail.

use super::{Happening, World};

impl World {
    /// Process and machine are gone at once.
    pub(super) fn crash(&mut self, site: usize) {
        let own = &mut self.sites[site];
        own.incarnation += 1;
        own.agent = None;
        own.stopped = None;
        own.is_loaded = false;
    }

    /// The machine starts.
    pub(super) fn boot(&mut self, site: usize) {
        self.after(0, site, Happening::Start);
    }

    /// The processes stop for a while, and know nothing of it.
    pub(super) fn pause(&mut self, site: usize, millis: u64) {
        if self.sites[site].stopped.is_none() {
            self.sites[site].stopped = Some(Vec::new());
            self.after(millis, site, Happening::Resume);
        }
    }

    /// A gateway does not reach etcd.
    pub(super) fn cut_store(&mut self, site: usize) {
        self.sites[site].has_store = false;
    }

    /// It does again.
    pub(super) fn join_store(&mut self, site: usize) {
        self.sites[site].has_store = true;
    }

    /// Two gateways do not reach each other.
    pub(super) fn cut(&mut self, one: usize, other: usize) {
        self.cuts.insert((one, other));
    }

    /// All that was cut is joined, and what is down starts.
    pub(super) fn heal(&mut self) {
        self.cuts.clear();
        self.lossy = 0;
        self.store_is_up = true;
        for site in 0..self.sites.len() {
            self.join_store(site);
            if self.sites[site].agent.is_none() {
                self.boot(site);
            }
        }
    }

    /// Something fails, or comes back.
    pub(super) fn fail_somehow(&mut self) {
        let sites = self.sites.len() as u64;
        let site = usize::try_from(self.random.below(sites)).unwrap();
        let other = usize::try_from(self.random.below(sites)).unwrap();
        let what = self.random.below(12);
        self.tell(|| format!("fault {what} at {site}, {other}"));
        match what {
            0 => self.crash(site),
            1 if self.sites[site].agent.is_none() => self.boot(site),
            2 => {
                let millis = self.random.between(50, 6_000);
                self.pause(site, millis);
            }
            3 => self.cut_store(site),
            4 => self.join_store(site),
            5 if site != other => self.cut(site, other),
            6 => self.cuts.clear(),
            7 => self.store_is_up = false,
            8 => self.store_is_up = true,
            9 => self.lossy = self.random.below(400),
            10 => self.lossy = 0,
            11 => {
                let tunnels = usize::try_from(self.random.between(1, 12)).unwrap();
                if self.store_is_up {
                    self.apply(tunnels);
                }
            }
            _ => {}
        }
    }
}
