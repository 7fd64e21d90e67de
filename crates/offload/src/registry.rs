//! The control half of a device: its SAs and policies, and the outcome of requests.
//!
//! Order of checks, errnos and texts follow `net/xfrm/xfrm_device.c: xfrm_dev_state_add`,
//! `xfrm_dev_policy_add` from the point where the device is known; earlier checks (flags,
//! directions, `if_id`, TFC padding) are the engine's.

use std::collections::BTreeMap;
use std::net::IpAddr;

use uxfrm_engine::{Direction, Handle, Offload, OffloadKind, Policy, SaConfig, SaFlags};

use crate::{Errno, FunctionId, Profile, Refusal, profile::TableSizes};
use table_usage::TableUsage;

mod table_usage;

pub(crate) use table_usage::TableLimits;

/// Outcome for an SA that requested a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The device has it.
    Device(Handle),
    /// Silent fallback to software, as in Linux; never for kind *packet*.
    Software,
}

/// SAs and policies of one device.
#[derive(Debug)]
pub struct Registry {
    profile: Profile,
    states: BTreeMap<Handle, Row>,
    policies: BTreeMap<Handle, Direction>,
    device: TableUsage,
    functions: BTreeMap<FunctionId, TableUsage>,
    next: u32,
    /// Remaining additions that fail with full tables, and with a busy device.
    pub(crate) pretended_full: u32,
    pub(crate) pretended_busy: u32,
}

/// The requester: a function and its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requester {
    pub(crate) function: FunctionId,
    pub(crate) share: TableSizes,
}

/// An SA on a device.
#[derive(Clone, Copy, Debug)]
struct Row {
    direction: Direction,
    destination: IpAddr,
    function: FunctionId,
}

impl Registry {
    /// An empty device with this profile.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            states: BTreeMap::new(),
            policies: BTreeMap::new(),
            device: TableUsage::default(),
            functions: BTreeMap::new(),
            next: 1,
            pretended_full: 0,
            pretended_busy: 0,
        }
    }

    /// Its capabilities.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Number of receiving and sending SAs.
    #[must_use]
    pub fn states(&self) -> (usize, usize) {
        (self.device.receiving, self.device.transmitting)
    }

    /// The same for one function.
    #[must_use]
    pub fn states_of(&self, function: FunctionId) -> (usize, usize) {
        let tally = self.functions.get(&function);
        tally.map_or((0, 0), |tally| (tally.receiving, tally.transmitting))
    }

    /// Number of different destinations of receiving SAs.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.device.addresses()
    }

    /// Number of policies.
    #[must_use]
    pub fn policies(&self) -> usize {
        self.policies.len()
    }

    /// `xfrm_dev_state_add`: adds an SA to the device that it names; `device` is `None` if that
    /// does not exist or lacks IPsec.
    ///
    /// # Errors
    /// A [`Refusal`] with the driver's text, or else the kernel's, with nothing changed.
    pub fn attach_state(device: Option<&mut Self>, sa: &SaConfig) -> Result<Attached, Refusal> {
        let Some(offload) = &sa.offload else { return Ok(Attached::Software) };
        let Some(device) = device else {
            return match offload.kind {
                OffloadKind::Packet => Err(Refusal::invalid("")),
                OffloadKind::Crypto => Ok(Attached::Software),
            };
        };
        device.attach_state_of(Requester::default(), sa, offload)
    }

    /// As [`Registry::attach_state`], for one of the device's functions.
    pub(crate) fn attach_state_of(
        &mut self,
        requester: Requester,
        sa: &SaConfig,
        offload: &Offload,
    ) -> Result<Attached, Refusal> {
        let crypto = offload.kind == OffloadKind::Crypto;
        if crypto && sa.flags.contains(SaFlags::ESN) && !self.profile.esn {
            return Err(Refusal::invalid("Device doesn't support offload with ESN"));
        }
        match self.check_state(requester, sa, offload) {
            Ok(()) => {
                let (direction, destination) = (offload.direction, sa.id.destination);
                let row = Row { direction, destination, function: requester.function };
                Ok(Attached::Device(self.insert_state(row)))
            }
            Err(refusal) if crypto && refusal.errno == Errno::NotSupported => {
                Ok(Attached::Software)
            }
            Err(refusal) => Err(refusal.or_text("Device failed to offload this state")),
        }
    }

    /// `xfrm_dev_policy_add`: adds a policy to the device that it names.
    ///
    /// # Errors
    /// A [`Refusal`], as for SAs, with nothing changed.
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

    /// A handle without a table entry.
    pub(crate) fn take_handle(&mut self) -> Handle {
        loop {
            let handle = Handle(self.next);
            self.next = self.next.wrapping_add(1).max(1);
            if !self.states.contains_key(&handle) && !self.policies.contains_key(&handle) {
                return handle;
            }
        }
    }

    /// Removes an SA; `false` if the device does not have it.
    pub fn detach_state(&mut self, handle: Handle) -> bool {
        let Some(row) = self.states.remove(&handle) else { return false };
        self.device.leave(row.direction, row.destination);
        if let Some(tally) = self.functions.get_mut(&row.function) {
            tally.leave(row.direction, row.destination);
        }
        true
    }

    /// Removes a policy; `false` if the device does not have it.
    pub fn detach_policy(&mut self, handle: Handle) -> bool {
        self.policies.remove(&handle).is_some()
    }

    /// Removes everything.
    pub fn flush(&mut self) {
        self.states.clear();
        self.policies.clear();
        self.functions.clear();
        self.device = TableUsage::default();
    }

    /// The driver's checks, and those of tables without a check of its own.
    fn check_state(
        &mut self,
        requester: Requester,
        sa: &SaConfig,
        offload: &Offload,
    ) -> Result<(), Refusal> {
        let full = take_one(&mut self.pretended_full);
        if offload.kind == OffloadKind::Packet && take_one(&mut self.pretended_busy) {
            return Err(Refusal::new(Errno::Busy));
        }
        let nothing = TableUsage::default();
        let own = self.functions.get(&requester.function).unwrap_or(&nothing);
        let limits = TableLimits {
            limits: [(self.profile.tables, &self.device), (requester.share, own)],
            pretended_full: full,
        };
        self.profile.check_state(sa, offload.kind, &limits)?;
        if limits.has_any(offload.direction, sa.id.destination) {
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

/// Decrements `left`; whether it was above zero.
fn take_one(left: &mut u32) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

impl Refusal {
    /// `NL_SET_ERR_MSG_WEAK`: a text for a refusal without one.
    pub(crate) fn or_text(mut self, text: &str) -> Self {
        if self.text.is_empty() {
            text.clone_into(&mut self.text);
        }
        self
    }
}

#[cfg(test)]
mod tests;
