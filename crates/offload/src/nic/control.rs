//! The control half of one function.

use std::ops::RangeInclusive;

use uxfrm_engine::{Handle, IvPrefix, Moment, Policy, SaConfig, SaHistory, SaProgress, SaRequest};
use uxfrm_packet::IpPacket;

use super::association::{Association, SaPhase};
use super::{FunctionId, ModelNic, Trust};
use crate::profile::TableSizes;
use crate::registry::Requester;
use crate::{Attached, Device, Errno, NicEvent, Refusal, Registry, StateCounts};

/// One function of a device: [`ModelNic::function`].
#[derive(Debug)]
pub struct FunctionPort<'a> {
    nic: &'a mut ModelNic,
    function: FunctionId,
}

impl<'a> FunctionPort<'a> {
    pub(super) const fn new(nic: &'a mut ModelNic, function: FunctionId) -> Self {
        Self { nic, function }
    }

    /// The requester; an untrusted virtual function is refused.
    fn requester(&self) -> Result<Requester, Refusal> {
        let place = usize::from(self.function.0).checked_sub(1);
        let share = match place.and_then(|place| self.nic.functions.get(place)) {
            None => TableSizes::default(),
            Some(found) if found.trust == Trust::Untrusted => {
                return Err(Refusal::new(Errno::Denied));
            }
            Some(found) => found.share,
        };
        Ok(Requester { function: self.function, share })
    }

    /// An SA of this function.
    fn own(&self, handle: Handle) -> Option<&Association> {
        self.nic.states.of(handle).filter(|found| found.function == self.function)
    }

    /// An SA with a table entry.
    fn held(&mut self, handle: Handle) -> Option<&mut Association> {
        self.own(handle).filter(|found| found.phase.is_held())?;
        self.nic.states.of_mut(handle)
    }

    fn take_out(&mut self, handle: Handle, phase: SaPhase) {
        if self.own(handle).is_some() {
            self.nic.registry.detach_state(handle);
            self.nic.states.delete(handle, phase);
        }
    }
}

impl Device for FunctionPort<'_> {
    fn add_state(&mut self, state: &SaConfig, now: Moment) -> Result<Attached, Refusal> {
        let Some(offload) = &state.offload else { return Ok(Attached::Software) };
        let weak = |refusal: Refusal| refusal.or_text("Device failed to offload this state");
        let requester = self.requester().map_err(weak)?;
        // Refusals come after the driver's; created before registration, so that nothing must be
        // undone.
        let association = Association::new(state, offload, self.nic.backend, now);
        let attached = self.nic.registry.attach_state_of(requester, state, offload)?;
        let Attached::Device(handle) = attached else { return Ok(attached) };
        match association {
            Ok(association) => {
                let function = self.function;
                self.nic.states.insert(Association { handle, function, ..association });
                Ok(attached)
            }
            Err(refusal) => {
                self.nic.registry.detach_state(handle);
                Err(weak(refusal))
            }
        }
    }

    fn add_larval(&mut self, _wanted: &SaRequest) -> Result<Handle, Refusal> {
        let weak = |refusal: Refusal| refusal.or_text("Device failed to offload this state");
        self.requester().map_err(weak)?;
        if !self.nic.profile().policies {
            return Err(weak(Refusal::new(Errno::Invalid)));
        }
        Ok(self.nic.registry.take_handle())
    }

    fn open_state(&mut self, handle: Handle, position: &SaProgress) {
        if let Some(association) = self.held(handle) {
            association.go_on_from(position);
            self.nic.states.open(handle);
        }
    }

    fn set_history(&mut self, handle: Handle, history: &SaHistory) {
        if let Some(association) = self.held(handle) {
            association.sa.set_history(*history);
        }
    }

    fn update_state(&mut self, handle: Handle, state: &SaConfig) {
        if let Some(association) = self.held(handle) {
            association.update(state);
        }
    }

    fn delete_state(&mut self, handle: Handle) {
        self.take_out(handle, SaPhase::Deleted);
    }

    fn close_state(&mut self, handle: Handle) {
        self.take_out(handle, SaPhase::Closed);
    }

    fn free_state(&mut self, handle: Handle) {
        if self.own(handle).is_some() {
            self.nic.registry.detach_state(handle);
            self.nic.states.free(handle);
        }
    }

    fn offload_ok(&self, handle: Handle, packet: &IpPacket) -> bool {
        self.own(handle).is_some() && !packet.has_options && !packet.is_fragment()
    }

    fn advance_esn(&mut self, handle: Handle, number: u64) {
        if self.own(handle).is_some()
            && let Some(association) = self.nic.states.of_mut(handle)
        {
            association.head = association.head.max(number);
        }
    }

    fn update_stats(&self, handle: Handle) -> Option<StateCounts> {
        self.own(handle).map(Association::counts)
    }

    fn window(&self, handle: Handle) -> Vec<u64> {
        self.own(handle).map(|association| association.sa.received_in_window()).unwrap_or_default()
    }

    fn reserve(&mut self, handle: Handle, numbers: RangeInclusive<u64>) {
        if let Some(association) = self.own(handle) {
            let sequence = association.sa.sequence();
            sequence.skip_to(numbers.start().saturating_sub(1));
            sequence.reserve(*numbers.end());
        }
    }

    fn reserve_received(&mut self, handle: Handle, numbers: RangeInclusive<u64>) {
        if self.own(handle).is_some()
            && let Some(association) = self.nic.states.of_mut(handle)
        {
            association.receive_limit.reserve(&numbers, association.sa.highest_received());
        }
    }

    fn set_iv_prefix(&mut self, handle: Handle, prefix: IvPrefix) {
        self.own(handle).iter().for_each(|association| association.sa.set_iv_prefix(prefix));
    }

    fn add_policy(&mut self, policy: &Policy) -> Result<Handle, Refusal> {
        self.requester()
            .map_err(|refusal| refusal.or_text("Device failed to offload this policy"))?;
        let handle = Registry::attach_policy(Some(&mut self.nic.registry), policy)?;
        self.nic.policies.insert(handle, policy.clone());
        Ok(handle)
    }

    fn delete_policy(&mut self, handle: Handle) {
        self.nic.registry.detach_policy(handle);
        self.nic.policies.delete(handle);
    }

    fn free_policy(&mut self, handle: Handle) {
        self.delete_policy(handle);
    }

    fn take_events(&mut self, events: &mut Vec<NicEvent>) {
        let function = self.function;
        self.nic.events.retain(|(whose, event)| {
            if *whose == function {
                events.push(*event);
            }
            *whose != function
        });
    }
}
