//! Faults: an attacker on the wire, disks, kernels, devices, and replaced stores.

use uxfrm_offload::Fault;

use super::{
    machine::Health,
    names::{NETS, PLACES, outer, site_of},
    packets::plain,
    site::pick,
    traffic_record::Esp,
    world::World,
};

impl World {
    /// Somebody on the wire replays or forges a packet.
    pub(super) fn attack(&mut self) {
        match self.rng.below(4) {
            0 => {
                let from = self.some_site();
                let to = self.another_site(from);
                let net = u8::try_from(self.rng.below(NETS.into())).unwrap();
                let payload = self.traffic.payload((from, net), (to, net));
                let packet = plain((from, net), (to, net), &payload);
                self.note(|| format!("a plain packet to {to}, net {net}"));
                self.arrive(packet.bytes());
            }
            1 => {
                let Some(mut packet) = self.wire.recorded(&mut self.rng) else { return };
                if Esp::read(&packet).is_none() {
                    return;
                }
                let at = 20 + self.rng.below(packet.len() - 20);
                packet[at] ^= 1 << self.rng.below(8);
                self.note(|| "a forged packet".to_owned());
                self.arrive(&packet);
            }
            _ => {
                for _ in 0..1 + self.rng.below(20) {
                    let Some(mut packet) = self.wire.recorded(&mut self.rng) else { return };
                    if self.rng.below(2) == 0 && Esp::read(&packet).is_some() {
                        self.lead_on(&mut packet);
                    }
                    self.arrive(&packet);
                }
            }
        }
    }

    /// Readdresses an old packet to where its gateway is now.
    fn lead_on(&mut self, packet: &mut [u8]) {
        let [from, to] = [12, 16].map(|at| {
            let place = u8::try_from(self.rng.below(PLACES.into())).unwrap();
            let old: [u8; 4] = packet[at..at + 4].try_into().unwrap();
            site_of(old.into()).map_or(old, |site| outer(site, place).octets())
        });
        packet[12..16].copy_from_slice(&from);
        packet[16..20].copy_from_slice(&to);
        uxfrm_packet::ipv4::fill_checksum(packet).unwrap();
    }

    /// Breaks or mends a disk, a kernel or the wire.
    pub(super) fn break_something(&mut self) {
        let site = self.some_site();
        match self.rng.below(8) {
            6 | 7 => self.break_device(site),
            0 => {
                let kept = self.rng.below(500);
                self.note(|| format!("{site}'s disk is full"));
                self.sites[site].disk.set_health(Health::Full(kept));
            }
            1 => self.sites[site].disk.set_health(Health::Slow(500)),
            2 | 3 => {
                self.note(|| format!("{site}'s disk is good"));
                self.sites[site].disk.set_health(Health::Good);
            }
            4 => {
                let count = 1 + self.rng.below(3);
                self.note(|| format!("{site}'s kernel refuses {count} changes"));
                self.sites[site].kernel.refuse(count);
            }
            _ => {
                let Self { wire, rng, .. } = self;
                wire.change(rng);
            }
        }
    }

    fn break_device(&mut self, site: usize) {
        let count = 1 + u32::try_from(self.rng.below(3)).unwrap();
        let fault = match self.rng.below(4) {
            0 => Fault::FullTables(count),
            1 => Fault::Busy(count),
            2 => Fault::WrongDecryptions(count),
            _ => Fault::Reorder(count),
        };
        let nic = self.sites[site].run.as_mut().and_then(|run| run.nic.as_mut());
        let Some(nic) = nic else { return };
        nic.inject(fault);
        self.note(|| format!("{site}'s device: {fault:?}"));
    }

    /// Somebody copies a store or replaces it.
    pub(super) fn touch_store(&mut self) {
        let site = self.some_site();
        let file = self.sites[site].disk.file();
        match self.rng.below(8) {
            0..4 => self.copies.extend(file.filter(|_| self.copies.len() < 8)),
            4 => self.resume_from_vm_snapshot(site),
            5 => self.spoil(site, None),
            6 => {
                let Some(mut file) = file.filter(|file| !file.is_empty()) else { return };
                let at = self.rng.below(file.len());
                file[at] ^= 1;
                self.spoil(site, Some(file));
            }
            _ => {
                let copy = pick(&mut self.rng, &self.copies).cloned();
                if copy.is_some() {
                    self.spoil(site, copy);
                }
            }
        }
    }

    /// A machine is told that it goes on from a snapshot; its disk may be of that time as well.
    fn resume_from_vm_snapshot(&mut self, site: usize) {
        let Some(run) = &mut self.sites[site].run else { return };
        run.resume_from_vm_snapshot();
        if run.nic.as_ref().is_some_and(|nic| nic.refuses) {
            // States that the device refuses are gone.
            let there = run.names();
            self.clients[site].states.retain(|name| there.contains(name));
        }
        self.note(|| format!("{site} goes on from a snapshot"));
    }

    fn spoil(&mut self, site: usize, with: Option<Vec<u8>>) {
        self.note(|| format!("{site}'s store is replaced by {:?}", with.as_ref().map(Vec::len)));
        self.sites[site].disk.put(with);
        self.known[site].is_spoiled = true;
    }
}
