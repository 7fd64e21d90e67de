//! The control half of a device: what it holds, and what becomes of a state or policy that asks for it.
//!
//! Order of checks, errnos and texts are those of `net/xfrm/xfrm_device.c: xfrm_dev_state_add`, `xfrm_dev_policy_add` from where the
//! device is known; what comes before (flags, directions, `if_id`, TFC padding) the engine checks with the rest of the request.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use uxfrm_engine::{Direction, Handle, OffloadKind, Policy, SaConfig, SaFlags};

use crate::{
    Errno, Profile, Refusal,
    profile::{Table, TableSizes},
};

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
    /// Receiving states by destination.
    addresses: HashMap<IpAddr, usize>,
    receiving: usize,
    next: u32,
}

/// A state that a device holds.
#[derive(Clone, Copy, Debug)]
struct Row {
    direction: Direction,
    destination: IpAddr,
}

/// How full the tables of a device are.
#[derive(Debug)]
pub(crate) struct Rooms<'a> {
    sizes: TableSizes,
    receiving: usize,
    transmitting: usize,
    addresses: &'a HashMap<IpAddr, usize>,
}

impl Registry {
    /// A device of this kind that holds nothing.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            states: BTreeMap::new(),
            policies: BTreeMap::new(),
            addresses: HashMap::new(),
            receiving: 0,
            next: 1,
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
        (self.receiving, self.states.len() - self.receiving)
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
        if offload.kind == OffloadKind::Crypto
            && sa.flags.contains(SaFlags::ESN)
            && !device.profile.esn
        {
            return Err(Refusal::invalid("Device doesn't support offload with ESN"));
        }
        match device.profile.check_state(sa, offload.kind, &device.rooms()) {
            Ok(()) => {
                Ok(Attached::Device(device.insert_state(offload.direction, sa.id.destination)))
            }
            Err(refusal)
                if refusal.errno == Errno::NotSupported && offload.kind == OffloadKind::Crypto =>
            {
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
            .profile
            .check_policy(policy)
            .map_err(|refusal| refusal.or_text("Device failed to offload this policy"))?;
        let handle = device.take_handle();
        device.policies.insert(handle, policy.direction);
        Ok(handle)
    }

    /// Takes a state away; `false` when the device does not have it (any more).
    pub fn detach_state(&mut self, handle: Handle) -> bool {
        let Some(row) = self.states.remove(&handle) else { return false };
        if row.direction == Direction::In {
            self.receiving -= 1;
            self.leave_address(row.destination);
        }
        true
    }

    /// Takes a policy away; `false` when the device does not have it (any more).
    pub fn detach_policy(&mut self, handle: Handle) -> bool {
        self.policies.remove(&handle).is_some()
    }

    /// Takes all away, as when the link goes down.
    pub fn flush(&mut self) {
        self.states.clear();
        self.policies.clear();
        self.addresses.clear();
        self.receiving = 0;
    }

    fn insert_state(&mut self, direction: Direction, destination: IpAddr) -> Handle {
        let handle = self.take_handle();
        self.states.insert(handle, Row { direction, destination });
        if direction == Direction::In {
            self.receiving += 1;
            *self.addresses.entry(destination).or_default() += 1;
        }
        handle
    }

    fn leave_address(&mut self, destination: IpAddr) {
        if let Some(count) = self.addresses.get_mut(&destination) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&destination);
            }
        }
    }

    /// Numbers are used anew only after all 2^32 have been; those in use are passed over.
    fn take_handle(&mut self) -> Handle {
        loop {
            let handle = Handle(self.next);
            self.next = self.next.wrapping_add(1).max(1);
            if !self.states.contains_key(&handle) && !self.policies.contains_key(&handle) {
                return handle;
            }
        }
    }

    fn rooms(&self) -> Rooms<'_> {
        let (receiving, transmitting) = self.states();
        Rooms { sizes: self.profile.tables, receiving, transmitting, addresses: &self.addresses }
    }
}

impl Refusal {
    /// `NL_SET_ERR_MSG_WEAK`: words for a refusal that has none.
    fn or_text(mut self, text: &str) -> Self {
        if self.text.is_empty() {
            text.clone_into(&mut self.text);
        }
        self
    }
}

impl Rooms<'_> {
    /// Whether `table` takes one more, a state to `destination`.
    pub(crate) fn has(&self, table: Table, destination: IpAddr) -> bool {
        let below = |used: usize, size: Option<usize>| size.is_none_or(|size| used < size);
        match table {
            Table::Receive => below(self.receiving, self.sizes.receive),
            Table::Transmit => below(self.transmitting, self.sizes.transmit),
            Table::Both => below(self.receiving + self.transmitting, self.sizes.both),
            Table::Addresses => {
                self.addresses.contains_key(&destination)
                    || below(self.addresses.len(), self.sizes.addresses)
            }
        }
    }
}

#[cfg(test)]
mod tests;
