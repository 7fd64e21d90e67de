//! Table of larval states with the kernel's look-ups, each by an index.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use uxfrm_engine::{DeviceId, FlowKey, Handle, Mark, Moment, Sa, SaId, SaProtocol, SaRequest, Spi};

use super::larval::{AcqTemplate, Larval};
use crate::decode::common;

/// Larval states, the youngest last, with their indices.
#[derive(Debug)]
pub(super) struct LarvalTable {
    all: BTreeMap<Serial, Larval>,
    next: u64,
    /// By SPI. Destinations share an SPI only if a user assigned it by hand.
    by_spi: Index<(Spi, SaProtocol)>,
    /// Those without an SPI.
    without_spi: Index<(IpAddr, SaProtocol)>,
    by_seq: Index<u32>,
    /// Acquires of packets.
    asked: HashMap<SaRequest, Serial>,
    expiries: BTreeSet<(Moment, Serial)>,
    lifetime: u32,
    random: u64,
    acquires: u32,
    /// Acquires that devices refused, and when they are retried.
    refused: HashMap<SaRequest, Moment>,
    /// Device handles of removed larval states.
    released: Vec<(DeviceId, Handle)>,
    /// Whether `asked` or `refused` changed since workers were told.
    changed: bool,
    /// Undo log since the last commit, the latest at the end.
    undo: Vec<Undo>,
}

/// An entry of the undo log.
#[derive(Debug)]
enum Undo {
    /// It was inserted.
    Inserted(Serial),
    /// It was changed from this.
    Changed(Serial, Larval),
    /// It was removed, and these acquires were answered by it.
    Removed(Serial, Larval, Vec<SaRequest>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Serial(u64);

/// Index by a key that several larval states may share.
#[derive(Debug)]
struct Index<K>(HashMap<K, Vec<Serial>>);

/// Most acquires at a time; beyond that packets find no state, as in a kernel out of memory.
const MOST_ASKED: usize = 4096;
/// Pause before a device that refused a larval state is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl LarvalTable {
    pub(super) fn new(seed: u64, lifetime: u32) -> Self {
        Self {
            all: BTreeMap::new(),
            next: 0,
            by_spi: Index(HashMap::new()),
            without_spi: Index(HashMap::new()),
            by_seq: Index(HashMap::new()),
            asked: HashMap::new(),
            expiries: BTreeSet::new(),
            lifetime,
            random: seed,
            acquires: 0,
            refused: HashMap::new(),
            released: Vec::new(),
            changed: true,
            undo: Vec::new(),
        }
    }

    /// Length of the undo log, for [`roll_back_to`](Self::roll_back_to).
    pub(super) const fn checkpoint(&self) -> usize {
        self.undo.len()
    }

    /// Makes all changes final.
    pub(super) fn let_stand(&mut self) {
        self.undo.clear();
    }

    /// Undoes changes back to a checkpoint.
    pub(super) fn roll_back_to(&mut self, mark: usize) {
        while self.undo.len() > mark
            && let Some(undo) = self.undo.pop()
        {
            match undo {
                Undo::Inserted(serial) => {
                    let _gone = self.take_out(serial);
                }
                Undo::Changed(serial, before) => {
                    let _after = self.take_out(serial);
                    self.insert_at(serial, before);
                }
                Undo::Removed(serial, larval, asked) => {
                    self.released.retain(|place| Some(*place) != larval.device);
                    self.changed |= !asked.is_empty();
                    self.asked.extend(asked.into_iter().map(|wanted| (wanted, serial)));
                    self.insert_at(serial, larval);
                }
            }
        }
    }

    pub(super) fn set_lifetime(&mut self, seconds: u32) {
        self.changed |= self.lifetime != seconds;
        self.lifetime = seconds;
    }

    pub(super) fn lifetime(&self) -> Duration {
        Duration::from_secs(self.lifetime.into())
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Larval> {
        self.all.values()
    }

    /// Whether acquires changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Pending acquires and when they expire.
    pub(super) fn pending(&self) -> Arc<HashMap<SaRequest, Moment>> {
        let until = |serial| self.all.get(serial).map(Larval::expires);
        Arc::new(
            self.asked
                .iter()
                .filter_map(|(wanted, serial)| Some((*wanted, until(serial)?)))
                .collect(),
        )
    }

    /// Acquires that devices refused.
    pub(super) fn refused(&self) -> Arc<HashMap<SaRequest, Moment>> {
        Arc::new(self.refused.clone())
    }

    /// Takes the device handles that are no longer needed.
    pub(super) fn take_released_handles(&mut self) -> Vec<(DeviceId, Handle)> {
        std::mem::take(&mut self.released)
    }

    /// The larval state with this id; those without an SPI are not found.
    pub(super) fn find(&self, id: SaId, mark: Mark) -> Option<&Larval> {
        self.all.get(&self.place(id, mark)?)
    }

    /// Removes the larval state with this id.
    pub(super) fn take(&mut self, id: SaId, mark: Mark) -> Option<Larval> {
        self.remove(self.place(id, mark)?)
    }

    /// Removes all of a protocol number; returns how many.
    pub(super) fn flush(&mut self, protocol: u8) -> usize {
        let meant = |larval: &Larval| common::protocol_is_meant(larval.id.protocol, protocol);
        let doomed: Vec<_> = self.serials(|larval| meant(larval)).collect();
        doomed.iter().filter_map(|serial| self.remove(*serial)).count()
    }

    /// Removes all on a device that has lost its states.
    pub(super) fn remove_on_device(&mut self, device: DeviceId) {
        let is_on = |larval: &Larval| larval.device.is_some_and(|(on, _)| on == device);
        let doomed: Vec<_> = self.serials(is_on).collect();
        for serial in doomed {
            self.remove(serial);
        }
    }

    /// Removes the larval state that a new state completes: by acquire number, else one without
    /// SPI.
    pub(super) fn remove_answered_by(&mut self, sa: &Sa) {
        let (config, id) = (sa.config(), sa.id());
        let way = (id.destination, id.protocol);
        let mark = config.mark.value & config.mark.mask;
        let asked = |larval: &Larval| {
            (larval.id.destination, larval.id.protocol) == way && larval.mark.fits(mark)
        };
        let meant = |larval: &Larval| {
            larval.source == sa.source()
                && larval.mode.0 == common::mode_number(config.mode)
                && larval.mark.fits(mark)
                && larval.reqid == sa.reqid()
        };
        let by_seq = || self.youngest(&self.by_seq, &sa.acquire_seq(), asked);
        let by_words = || self.youngest(&self.without_spi, &way, meant);
        let numbered = if sa.acquire_seq() == 0 { None } else { by_seq() };
        if let Some(serial) = numbered.or_else(by_words) {
            self.remove(serial);
        }
    }

    /// Whether a packet's acquire needs a new larval state: none serves it and there is room.
    pub(super) fn needs_acquire(&mut self, wanted: &SaRequest, now: Moment) -> bool {
        let is_refused = self.refused.get(wanted).is_some_and(|again| now < *again);
        if is_refused || self.asked.contains_key(wanted) || self.asked.len() >= MOST_ASKED {
            return false;
        }
        let way = (wanted.destination, wanted.protocol);
        if let Some(serial) = self.youngest(&self.without_spi, &way, |old| old.serves(wanted)) {
            self.asked.insert(*wanted, serial);
            self.changed = true;
            return false;
        }
        true
    }

    /// Notes that a device refused a larval state.
    pub(super) fn refuse(&mut self, wanted: SaRequest, now: Moment) {
        self.refused.retain(|_, again| now < *again);
        self.refused.insert(wanted, now.plus(ASK_AGAIN));
        self.changed = true;
    }

    /// Inserts the larval state for a packet's acquire.
    pub(super) fn acquire(
        &mut self,
        wanted: &SaRequest,
        flow: &FlowKey,
        device: Option<(DeviceId, Handle)>,
        now: Moment,
    ) -> Option<&Larval> {
        self.refused.remove(wanted);
        self.acquires = self.acquires.checked_add(1).unwrap_or(1);
        let mut larval = Larval::asked(wanted, flow, self.acquires, now, self.lifetime);
        larval.device = device;
        let serial = self.insert(larval);
        self.asked.insert(*wanted, serial);
        self.changed = true;
        self.all.get(&serial)
    }

    /// Inserts one from another process, where the packet's next acquire finds it.
    pub(super) fn restore(&mut self, larval: Larval) {
        self.acquires = self.acquires.max(larval.seq);
        self.insert(larval);
        self.changed = true;
    }

    pub(super) fn first_expiry(&self) -> Option<Moment> {
        self.expiries.first().map(|(at, _)| *at)
    }

    pub(super) fn take_expired(&mut self, now: Moment) -> Option<Larval> {
        let (_, serial) = *self.expiries.first().filter(|(at, _)| *at <= now)?;
        self.remove(serial)
    }

    /// The larval state for ALLOCSPI: by acquire number, else by template without SPI, else a new
    /// one.
    pub(super) fn find_or_insert(
        &mut self,
        template: AcqTemplate,
        seq: u32,
        now: Moment,
    ) -> Serial {
        let mark = template.mark.value & template.mark.mask;
        let by_seq = |larval: &Larval| {
            larval.id.destination == template.id.destination && larval.mark.fits(mark)
        };
        let by_template = |larval: &Larval| {
            // As in the kernel, the interface id does not count.
            let same =
                AcqTemplate { mark: template.mark, if_id: template.if_id, ..larval.template() }
                    == template;
            same && larval.mark.fits(mark)
        };
        let way = (template.id.destination, template.id.protocol);
        let numbered = if seq == 0 { None } else { self.youngest(&self.by_seq, &seq, by_seq) };
        let found = numbered.or_else(|| self.youngest(&self.without_spi, &way, by_template));
        found.unwrap_or_else(|| self.insert(Larval::new(template, now, self.lifetime)))
    }

    pub(super) fn at(&self, serial: Serial) -> Option<&Larval> {
        self.all.get(&serial)
    }

    /// Changes a larval state, if it still exists.
    pub(super) fn change(&mut self, serial: Serial, change: impl FnOnce(&mut Larval)) {
        let Some(mut larval) = self.take_out(serial) else { return };
        self.undo.push(Undo::Changed(serial, larval.clone()));
        change(&mut larval);
        self.insert_at(serial, larval);
    }

    pub(super) fn has_spi(&self, spi: Spi, protocol: SaProtocol) -> bool {
        self.by_spi.0.contains_key(&(spi, protocol))
    }

    /// A number from `min..=max`. SplitMix64: SPIs need not be secret, only spread.
    pub(super) fn random(&mut self, min: u32, max: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let range = u64::from(max - min) + 1;
        min + u32::try_from((mixed ^ (mixed >> 31)) % range).unwrap_or(0)
    }

    fn place(&self, id: SaId, mark: Mark) -> Option<Serial> {
        let mark = mark.value & mark.mask;
        let fits = |larval: &Larval| larval.id == id && larval.mark.fits(mark);
        self.youngest(&self.by_spi, &(id.spi, id.protocol), fits)
    }

    fn youngest<K: Hash + Eq>(
        &self,
        index: &Index<K>,
        key: &K,
        fits: impl Fn(&Larval) -> bool,
    ) -> Option<Serial> {
        let serials = index.0.get(key)?.iter().rev().copied();
        serials.into_iter().find(|serial| self.all.get(serial).is_some_and(&fits))
    }

    fn serials(&self, fits: impl Fn(&Larval) -> bool) -> impl Iterator<Item = Serial> {
        self.all.iter().filter(move |(_, larval)| fits(larval)).map(|(serial, _)| *serial)
    }

    fn insert(&mut self, larval: Larval) -> Serial {
        self.next += 1;
        let serial = Serial(self.next);
        self.undo.push(Undo::Inserted(serial));
        self.insert_at(serial, larval);
        serial
    }

    fn remove(&mut self, serial: Serial) -> Option<Larval> {
        let larval = self.take_out(serial)?;
        self.released.extend(larval.device);
        let asked = self.asked.extract_if(|_, asked| *asked == serial);
        let asked: Vec<_> = asked.map(|(wanted, _)| wanted).collect();
        self.changed |= !asked.is_empty();
        self.undo.push(Undo::Removed(serial, larval.clone(), asked));
        Some(larval)
    }

    fn insert_at(&mut self, serial: Serial, larval: Larval) {
        self.remember(serial, &larval);
        self.all.insert(serial, larval);
    }

    fn take_out(&mut self, serial: Serial) -> Option<Larval> {
        let larval = self.all.remove(&serial)?;
        self.forget(serial, &larval);
        Some(larval)
    }

    fn remember(&mut self, serial: Serial, larval: &Larval) {
        let SaId { destination, spi, protocol } = larval.id;
        if spi == Spi(0) {
            self.without_spi.add((destination, protocol), serial);
        } else {
            self.by_spi.add((spi, protocol), serial);
        }
        if larval.seq != 0 {
            self.by_seq.add(larval.seq, serial);
        }
        self.expiries.insert((larval.expires(), serial));
    }

    fn forget(&mut self, serial: Serial, larval: &Larval) {
        let SaId { destination, spi, protocol } = larval.id;
        self.without_spi.drop(&(destination, protocol), serial);
        self.by_spi.drop(&(spi, protocol), serial);
        self.by_seq.drop(&larval.seq, serial);
        self.expiries.remove(&(larval.expires(), serial));
    }
}

impl<K: Hash + Eq + Clone> Index<K> {
    fn add(&mut self, key: K, serial: Serial) {
        self.0.entry(key).or_default().push(serial);
    }

    fn drop(&mut self, key: &K, serial: Serial) {
        if let Entry::Occupied(mut entry) = self.0.entry(key.clone()) {
            entry.get_mut().retain(|other| *other != serial);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}
