//! Offloaded states and policies: attached when added, detached when removed; events of devices.
//!
//! Mirrors `net/xfrm/xfrm_device.c`. One difference: when a device goes down, Linux removes its
//! policies, and their traffic continues in plaintext. Here a blocking stand-in replaces each until
//! a policy of its name is added again ([`LinkDown`]).

use std::{collections::HashMap, sync::Arc};

use super::Database;
use crate::device::control::NoDevices;
use crate::{
    Action, Attachment, ChargeOutcome, DeviceEvent, DeviceId, DeviceRefusal, Error, Event, Handle,
    Moment, OffloadDevices, OffloadKind, Policy, PolicyEntry, PolicyIndex, Sa, SaConfig, SaHistory,
    SaProgress, SaRequest,
};

/// What happens to the traffic of offloaded policies when their device goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkDown {
    /// It is blocked until a policy of the same name is added again, by a stand-in without
    /// templates and with action block.
    #[default]
    Block,
    /// As in Linux: other policies decide, or the default.
    Release,
}

/// The devices, and the policies they have.
#[derive(Debug)]
pub(super) struct DeviceOffloads {
    devices: Box<dyn OffloadDevices>,
    policies: HashMap<PolicyIndex, (DeviceId, Handle)>,
    link_down: LinkDown,
    /// Attached states that are opened at the end of the change under way.
    opening: Vec<Arc<Sa>>,
    /// Devices that went down since the last query.
    lost: Vec<DeviceId>,
}

impl Default for DeviceOffloads {
    fn default() -> Self {
        Self {
            devices: Box::new(NoDevices),
            policies: HashMap::new(),
            link_down: LinkDown::default(),
            opening: Vec::new(),
            lost: Vec::new(),
        }
    }
}

/// Where a policy is offloaded.
pub(super) type DevicePlace = Option<(DeviceId, Handle)>;

impl Database {
    /// Sets the devices for states and policies added from now on.
    pub fn set_devices(&mut self, devices: Box<dyn OffloadDevices>) {
        self.offloads.devices = devices;
    }

    /// Sets what happens to traffic when a device goes down from now on.
    pub fn set_link_down(&mut self, link_down: LinkDown) {
        self.offloads.link_down = link_down;
    }

    /// Attaches a larval state, for the owner of larval states.
    ///
    /// # Errors
    /// The device's.
    pub fn attach_larval(
        &mut self,
        device: DeviceId,
        wanted: &SaRequest,
    ) -> Result<Handle, DeviceRefusal> {
        self.offloads.devices.attach_larval(device, wanted)
    }

    /// Detaches a larval state.
    pub fn detach_larval(&mut self, device: DeviceId, handle: Handle) {
        self.offloads.devices.detach_state(device, handle);
    }

    /// Devices that went down since the last call. Larval states on them are gone
    /// (`xfrm_dev_state_flush`).
    pub fn take_lost_devices(&mut self) -> Vec<DeviceId> {
        std::mem::take(&mut self.offloads.lost)
    }

    /// Sets another's history for a state that is not in use yet, on its device too.
    pub fn set_history(&mut self, sa: &Sa, history: SaHistory) {
        sa.set_history(history);
        if let Some(Attachment { device, handle, .. }) = sa.packet_place() {
            self.offloads.devices.set_history(device, handle, &history);
        }
    }

    /// Takes over a device's counters of a state with packet offload; does nothing for others
    /// (`xfrm_dev_state_update_stats`).
    pub fn update_counts(&mut self, sa: &Sa) {
        let Some(Attachment { device, handle, .. }) = sa.packet_place() else { return };
        let devices = &mut self.offloads.devices;
        if let Some(counts) = devices.counts(device, handle) {
            sa.take_over(&counts);
            sa.take_over_window(&counts, || devices.window(device, handle));
        }
    }

    /// Like [`Database::update_counts`]; if the state was moved on by others, the device continues
    /// from there.
    fn sync_with_device(&mut self, sa: &Sa, Attachment { device, handle, .. }: Attachment) {
        let devices = &mut self.offloads.devices;
        let Some(counts) = devices.counts(device, handle) else { return };
        sa.take_over(&counts);
        if counts.received.max(counts.wanted) > sa.highest_received() {
            sa.take_over_window(&counts, || devices.window(device, handle));
        }
        if sa.highest_received() > counts.received {
            devices.open_state(device, handle, &SaProgress { carried: None, ..sa.progress() });
        }
    }

    /// [`Database::update_counts`] of all offloaded states, before they are shown.
    pub fn update_all_counts(&mut self) {
        let states: Vec<_> = self.next.sad.all_offloaded().cloned().collect();
        states.iter().for_each(|sa| self.update_counts(sa));
    }

    /// Tells devices which numbers their states may use, for an owner who reserves them
    /// ([`Sequence::reserve`](crate::Sequence::reserve)): after each reservation, and now and then
    /// so that the owner sees how many are used. Also tells devices of numbers that were received
    /// before ([`Sa::continue_from`]).
    pub fn push_sequence_limits(&mut self) {
        let states: Vec<_> = self.next.sad.all_offloaded().cloned().collect();
        for sa in &states {
            self.share_iv_prefixes(sa);
            let Some(place) = sa.packet_place() else { continue };
            self.sync_with_device(sa, place);
            let (used, ceiling) = (sa.sequence().last(), sa.sequence().reserved());
            self.offloads.devices.reserve(place.device, place.handle, used, ceiling);
            self.share_edge(sa, place, sa.reserved_to_receive());
        }
    }

    /// Tells a state's device the IV prefixes of the next numbers, before the numbers.
    pub(super) fn share_iv_prefixes(&mut self, sa: &Sa) {
        let Some(place) = sa.attachment() else { return };
        let upper = sa.next_iv_prefix().upper();
        for prefix in [Some(0), Some(upper), upper.checked_add(1)]
            .into_iter()
            .flatten()
            .filter_map(|upper| sa.iv_prefix(upper))
        {
            self.offloads.devices.set_iv_prefix(place.device, place.handle, prefix);
        }
    }

    /// Tells devices the progress of states with crypto offload and extended numbers
    /// (`net/xfrm/xfrm_replay.c: xfrm_dev_state_advance_esn`, which Linux calls when the upper half
    /// is about to change; here now and then, as workers count).
    pub fn advance_numbers(&mut self) {
        let states: Vec<_> = self.next.sad.all_offloaded().cloned().collect();
        for sa in &states {
            let Some(place) = sa.attachment().filter(|_| sa.extended() && !sa.device_counts())
            else {
                continue;
            };
            self.share_iv_prefixes(sa);
            let number = sa.sequence().last().max(sa.highest_received());
            self.offloads.devices.advance_esn(place.device, place.handle, number);
        }
    }

    /// For a new state with packet offload: its device uses no number before some are reserved.
    pub(super) fn hold_numbers(&mut self, sa: &Sa) {
        if let Some(place) = sa.packet_place() {
            self.offloads.devices.reserve(place.device, place.handle, 0, 0);
            self.share_edge(sa, place, 0);
        }
    }

    /// Tells a device the reserved edge of a state, if received numbers are kept.
    fn share_edge(&mut self, sa: &Sa, place: Attachment, edge: u64) {
        if sa.reserved_to_receive() != u64::MAX {
            let before = sa.restarted_at();
            self.offloads.devices.reserve_received(place.device, place.handle, before, edge);
        }
    }

    /// Opens a new state on its device at the end of the change, from its progress then.
    pub(super) fn open_soon(&mut self, sa: &Arc<Sa>) {
        if sa.attachment().is_some() {
            self.offloads.opening.push(Arc::clone(sa));
        }
    }

    /// At the end of a change, before workers see it.
    pub(super) fn open_states(&mut self) {
        let DeviceOffloads { devices, opening, .. } = &mut self.offloads;
        for sa in opening.drain(..) {
            if let Some(Attachment { device, handle, .. }) = sa.attachment() {
                devices.open_state(device, handle, &sa.progress());
            }
        }
    }

    /// Tells a device a state's new progress, unless it is about to be opened with it.
    pub(super) fn move_on_device(&mut self, sa: &Arc<Sa>, position: &SaProgress) {
        let opens = self.offloads.opening.iter().any(|opening| opening.is_same(sa));
        if let Some(Attachment { device, handle, .. }) = sa.attachment().filter(|_| !opens) {
            self.offloads.devices.open_state(device, handle, position);
        }
    }

    /// Tells a device of an updated state.
    pub(super) fn update_on_device(&mut self, sa: &Sa, config: &SaConfig) {
        if let Some(Attachment { device, handle, .. }) = sa.attachment() {
            self.offloads.devices.update_state(device, handle, config);
        }
    }

    /// Detaches a state. The device may have used any of the reserved numbers, and packets in
    /// flight still leave: all reserved numbers count as used.
    pub(super) fn leave_device(&mut self, sa: &Sa) {
        self.update_counts(sa);
        if sa.device_counts() && self.tracking.is_owner() {
            sa.sequence().skip_to(sa.sequence().reserved());
        }
        self.detach_state(sa.attachment());
        // Packets that it carried until then.
        self.update_counts(sa);
    }

    /// Recovers reserved but unused numbers of a state that [left](Database::leave_device) its
    /// device and returns to it.
    pub(super) fn recover_numbers(&mut self, sa: &Sa, before: Attachment) {
        if before.kind != OffloadKind::Packet {
            return;
        }
        let Attachment { device, handle, .. } = before;
        let devices = &mut self.offloads.devices;
        // Packets handed over before must not leave either: their numbers would be unknown.
        devices.close_state(device, handle);
        if let Some(counts) = devices.counts(device, handle) {
            sa.take_over(&counts);
            sa.sequence().reopen(counts.sent, sa.sequence().reserved());
        }
    }

    /// Closes a state that continues elsewhere: its device's counters are final.
    pub(super) fn close_on_device(&mut self, sa: &Sa) {
        match sa.packet_place() {
            Some(Attachment { device, handle, .. }) => {
                self.offloads.devices.close_state(device, handle);
                self.update_counts(sa);
            }
            None => self.detach_state(sa.attachment()),
        }
    }

    /// Handles an event of a device. Events for key managers are added to `events`.
    pub fn hear(
        &mut self,
        device: DeviceId,
        event: DeviceEvent,
        now: Moment,
        events: &mut Vec<Event>,
    ) {
        let changed = match event {
            DeviceEvent::SoftLimit(handle) => {
                let sa = self.next.sad.attached(device, handle).cloned();
                sa.into_iter().for_each(|sa| self.check_soft_limit(&sa, events));
                false
            }
            DeviceEvent::HardLimit(handle) => {
                let sa = self.next.sad.attached(device, handle).cloned();
                sa.is_some_and(|sa| self.check_device_limits(&sa, events))
            }
            DeviceEvent::Down => self.lose(device, now),
        };
        if changed {
            self.insert_new_policies();
            self.advance();
        }
    }

    /// Checks a device's counters against a state's limits, the soft one first. Returns true if the
    /// state is removed.
    pub(super) fn check_device_limits(&mut self, sa: &Arc<Sa>, events: &mut Vec<Event>) -> bool {
        self.check_soft_limit(sa, events);
        self.check_limits(sa, events)
    }

    fn check_soft_limit(&mut self, sa: &Arc<Sa>, events: &mut Vec<Event>) {
        self.update_counts(sa);
        if sa.check_soft_limit() {
            events.push(Event::SaSoftLimit(sa.id()));
        }
    }

    /// `xfrm_state_check_expire`. Returns true if the state is removed.
    pub(super) fn check_limits(&mut self, sa: &Arc<Sa>, events: &mut Vec<Event>) -> bool {
        self.update_counts(sa);
        let outcome = sa.check_limits();
        events.extend(Event::of_charge(outcome, sa));
        let is_past = outcome == ChargeOutcome::HardLimit;
        if is_past {
            self.remove_sa(sa);
        }
        is_past
    }

    /// `xfrm_dev_down`. Returns true if anything was on the device.
    fn lose(&mut self, device: DeviceId, now: Moment) -> bool {
        self.offloads.lost.push(device);
        let is_on = |place: Attachment| place.device == device;
        let states: Vec<_> = self.next.sad.all_offloaded().cloned().collect();
        let states: Vec<_> =
            states.into_iter().filter(|sa| sa.attachment().is_some_and(is_on)).collect();
        for sa in &states {
            // So that its successor has the last counters.
            self.update_counts(sa);
            self.remove_sa(sa);
        }
        let has = |entry: &&Arc<PolicyEntry>| {
            let place = self.offloads.policies.get(&entry.index());
            place.is_some_and(|(on, _)| *on == device)
        };
        let policies: Vec<_> = self.policy_store.iter().filter(has).cloned().collect();
        for entry in &policies {
            self.lose_policy(entry, device, now);
        }
        !states.is_empty() || !policies.is_empty()
    }

    fn lose_policy(&mut self, entry: &Arc<PolicyEntry>, device: DeviceId, now: Moment) {
        self.unseat(entry);
        match self.offloads.link_down {
            LinkDown::Release => self.remove_policy(entry),
            LinkDown::Block => {
                let policy = Policy {
                    action: Action::Block,
                    templates: Vec::new(),
                    limits: crate::LifetimeLimits::default(),
                    ..entry.policy()
                };
                // A policy without templates and with an existing name is valid.
                let Ok((stand_in, old)) = self.policy_store.update(&policy, Some(device), now)
                else {
                    return;
                };
                if let Some(old) = &old {
                    self.unlink_policy(old);
                }
                self.link_policy(&stand_in);
            }
        }
    }

    /// Whether there is any stand-in for an offloaded policy.
    pub fn has_stand_ins(&self) -> bool {
        self.policy_store.iter().any(|entry| self.is_stand_in(entry))
    }

    /// Whether a policy is a stand-in for an offloaded one.
    pub(super) fn is_stand_in(&self, entry: &PolicyEntry) -> bool {
        entry.device().is_some() && !self.offloads.policies.contains_key(&entry.index())
    }

    /// Attaches a state to its device. If software does the work, the offload request is removed.
    pub(super) fn attach_state(
        &mut self,
        config: &mut SaConfig,
    ) -> Result<Option<Attachment>, Error> {
        let Some(offload) = &config.offload else { return Ok(None) };
        let refused = |refusal: DeviceRefusal| match offload.kind {
            OffloadKind::Packet if refusal.text.is_empty() => {
                Error::PacketOffload(offload.device.clone())
            }
            OffloadKind::Packet | OffloadKind::Crypto => Error::Device(refusal),
        };
        let place = self.offloads.devices.attach_state(config).map_err(refused)?;
        if place.is_none() {
            config.offload = None;
        }
        Ok(place)
    }

    pub(super) fn detach_state(&mut self, place: Option<Attachment>) {
        if let Some(Attachment { device, handle, .. }) = place {
            self.offloads.devices.detach_state(device, handle);
        }
    }

    /// Attaches a policy to its device, if it names one.
    pub(super) fn attach_policy(&mut self, policy: &Policy) -> Result<DevicePlace, Error> {
        if policy.offload.is_none() {
            return Ok(None);
        }
        crate::spd::validate::verify(policy)?;
        self.offloads.devices.attach_policy(policy).map(Some).map_err(Error::Device)
    }

    pub(super) fn detach_policy(&mut self, seat: DevicePlace) {
        if let Some((device, handle)) = seat {
            self.offloads.devices.detach_policy(device, handle);
        }
    }

    /// Sets where a policy is offloaded; the previous one with its index is detached.
    pub(super) fn seat(&mut self, index: PolicyIndex, seat: DevicePlace) {
        let old = match seat {
            Some(seat) => self.offloads.policies.insert(index, seat),
            None => self.offloads.policies.remove(&index),
        };
        self.detach_policy(old);
    }

    /// Detaches a policy.
    pub(super) fn unseat(&mut self, entry: &PolicyEntry) {
        if entry.device().is_some() {
            self.seat(entry.index(), None);
        }
    }
}
