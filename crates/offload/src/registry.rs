//! The control half of a device: what it holds, and what becomes of a state or policy that asks for it.
//!
//! Order of checks, errnos and texts are those of `net/xfrm/xfrm_device.c: xfrm_dev_state_add`, `xfrm_dev_policy_add` from where the
//! device is known; what comes before (flags, directions, `if_id`, TFC padding) the engine checks with the rest of the request.

use std::collections::BTreeMap;
use std::net::IpAddr;

use uxfrm_engine::{Direction, Handle, Offload, OffloadKind, Policy, SaConfig, SaFlags};

use crate::{Errno, FunctionId, Profile, Refusal, profile::TableSizes};
use tally::Tally;

mod tally;

pub(crate) use tally::Rooms;

/// What became of a state that asked for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The device has it.
    Device(Handle),
    /// It is done in software, without a word, as in Linux; never for kind *packet*.
    Software,
}

/// What one device holds.
#[derive(Debug)]
pub struct Registry {
    profile: Profile,
    states: BTreeMap<Handle, Row>,
    policies: BTreeMap<Handle, Direction>,
    device: Tally,
    functions: BTreeMap<FunctionId, Tally>,
    next: u32,
    /// How many more additions find the tables full, and how many a device that is busy.
    pub(crate) pretended_full: u32,
    pub(crate) pretended_busy: u32,
}

/// Who asks: a function, and how much it may hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker {
    pub(crate) function: FunctionId,
    pub(crate) share: TableSizes,
}

/// A state that a device holds.
#[derive(Clone, Copy, Debug)]
struct Row {
    direction: Direction,
    destination: IpAddr,
    function: FunctionId,
}

impl Registry {
    /// A device of this kind that holds nothing.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            states: BTreeMap::new(),
            policies: BTreeMap::new(),
            device: Tally::default(),
            functions: BTreeMap::new(),
            next: 1,
            pretended_full: 0,
            pretended_busy: 0,
        }
    }

    /// What the device can do.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// How many states it holds, receiving and sending.
    #[must_use]
    pub fn states(&self) -> (usize, usize) {
        (self.device.receiving, self.device.transmitting)
    }

    /// How many of them are one function's.
    #[must_use]
    pub fn states_of(&self, function: FunctionId) -> (usize, usize) {
        let tally = self.functions.get(&function);
        tally.map_or((0, 0), |tally| (tally.receiving, tally.transmitting))
    }

    /// How many different destinations its receiving states have.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.device.addresses()
    }

    /// How many policies it holds.
    #[must_use]
    pub fn policies(&self) -> usize {
        self.policies.len()
    }

    /// `xfrm_dev_state_add`: gives a state to the device that it names; `device` is `None` where there is no such device or it does not
    /// do IPsec.
    ///
    /// # Errors
    /// A [`Refusal`] with the driver's words, or the kernel's where the driver has none. Nothing has changed then.
    pub fn attach_state(device: Option<&mut Self>, sa: &SaConfig) -> Result<Attached, Refusal> {
        let Some(offload) = &sa.offload else { return Ok(Attached::Software) };
        let Some(device) = device else {
            return match offload.kind {
                OffloadKind::Packet => Err(Refusal::invalid("")),
                OffloadKind::Crypto => Ok(Attached::Software),
            };
        };
        device.attach_state_of(Asker::default(), sa, offload)
    }

    /// As [`Registry::attach_state`], for one of the device's functions.
    pub(crate) fn attach_state_of(
        &mut self,
        asker: Asker,
        sa: &SaConfig,
        offload: &Offload,
    ) -> Result<Attached, Refusal> {
        let crypto = offload.kind == OffloadKind::Crypto;
        if crypto && sa.flags.contains(SaFlags::ESN) && !self.profile.esn {
            return Err(Refusal::invalid("Device doesn't support offload with ESN"));
        }
        match self.check_state(asker, sa, offload) {
            Ok(()) => {
                let (direction, destination) = (offload.direction, sa.id.destination);
                let row = Row { direction, destination, function: asker.function };
                Ok(Attached::Device(self.insert_state(row)))
            }
            Err(refusal) if crypto && refusal.errno == Errno::NotSupported => {
                Ok(Attached::Software)
            }
            Err(refusal) => Err(refusal.or_text("Device failed to offload this state")),
        }
    }

    /// `xfrm_dev_policy_add`: gives a policy to the device that it names.
    ///
    /// # Errors
    /// A [`Refusal`], as for states. Nothing has changed then.
    pub fn attach_policy(device: Option<&mut Self>, policy: &Policy) -> Result<Handle, Refusal> {
        if policy.offload.as_ref().is_none_or(|offload| offload.kind != OffloadKind::Packet) {
            return Err(Refusal::invalid("Unrecognized flags in offload request"));
        }
        let device = device.ok_or_else(|| Refusal::invalid(""))?;
        if !device.profile.policies {
            return Err(Refusal::invalid("Policy offload is not supported"));
        }
        device
            .check_policy(policy)
            .map_err(|refusal| refusal.or_text("Device failed to offload this policy"))?;
        let handle = device.take_handle();
        device.policies.insert(handle, policy.direction);
        Ok(handle)
    }

    /// A handle for what takes no place in the tables.
    pub(crate) fn take_handle(&mut self) -> Handle {
        loop {
            let handle = Handle(self.next);
            self.next = self.next.wrapping_add(1).max(1);
            if !self.states.contains_key(&handle) && !self.policies.contains_key(&handle) {
                return handle;
            }
        }
    }

    /// Takes a state away; `false` when the device does not have it (any more).
    pub fn detach_state(&mut self, handle: Handle) -> bool {
        let Some(row) = self.states.remove(&handle) else { return false };
        self.device.leave(row.direction, row.destination);
        if let Some(tally) = self.functions.get_mut(&row.function) {
            tally.leave(row.direction, row.destination);
        }
        true
    }

    /// Takes a policy away; `false` when the device does not have it (any more).
    pub fn detach_policy(&mut self, handle: Handle) -> bool {
        self.policies.remove(&handle).is_some()
    }

    /// Takes all away.
    pub fn flush(&mut self) {
        self.states.clear();
        self.policies.clear();
        self.functions.clear();
        self.device = Tally::default();
    }

    /// The driver's checks, and those of tables that it has no words for.
    fn check_state(
        &mut self,
        asker: Asker,
        sa: &SaConfig,
        offload: &Offload,
    ) -> Result<(), Refusal> {
        let full = take_one(&mut self.pretended_full);
        if offload.kind == OffloadKind::Packet && take_one(&mut self.pretended_busy) {
            return Err(Refusal::new(Errno::Busy));
        }
        let nothing = Tally::default();
        let own = self.functions.get(&asker.function).unwrap_or(&nothing);
        let rooms = Rooms {
            limits: [(self.profile.tables, &self.device), (asker.share, own)],
            pretended_full: full,
        };
        self.profile.check_state(sa, offload.kind, &rooms)?;
        if rooms.has_any(offload.direction, sa.id.destination) {
            return Ok(());
        }
        Err(Refusal::new(Errno::NoSpace))
    }

    fn check_policy(&mut self, policy: &Policy) -> Result<(), Refusal> {
        if take_one(&mut self.pretended_busy) {
            return Err(Refusal::new(Errno::Busy));
        }
        self.profile.check_policy(policy)?;
        if take_one(&mut self.pretended_full) {
            return Err(Refusal::new(Errno::NoSpace));
        }
        Ok(())
    }

    fn insert_state(&mut self, row: Row) -> Handle {
        let handle = self.take_handle();
        self.states.insert(handle, row);
        let own = self.functions.entry(row.function).or_default();
        for tally in [&mut self.device, own] {
            tally.enter(row.direction, row.destination);
        }
        handle
    }
}

/// Counts one of those that are left; whether there was one.
fn take_one(left: &mut u32) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

impl Refusal {
    /// `NL_SET_ERR_MSG_WEAK`: words for a refusal that has none.
    pub(crate) fn or_text(mut self, text: &str) -> Self {
        if self.text.is_empty() {
            text.clone_into(&mut self.text);
        }
        self
    }
}

#[cfg(test)]
mod tests;
