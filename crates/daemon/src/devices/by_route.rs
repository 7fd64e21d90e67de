//! States that name a device which is not there: the kernel takes the one by which the route
//! between their ends leads (`net/xfrm/xfrm_device.c: xfrm_dev_state_add`). Policies must name
//! theirs.

use std::net::IpAddr;

use uxfrm_engine::{
    Attachment, DeviceId, DeviceRefusal, DeviceSaCounters, Direction, Handle, IvPrefix, Mark,
    Offload, OffloadDevices, Policy, SaConfig, SaHistory, SaProgress, SaRequest,
};
use uxfrm_io::rtnetlink::Rtnetlink;
use uxfrm_offload::Nics;

use super::interface::by_number;

/// The devices, for the database.
#[derive(Debug)]
pub(super) struct ByRoute {
    nics: Nics,
    /// That of uxfrm's own sockets: others are led into its TUN.
    mark: u32,
}

impl ByRoute {
    pub(super) const fn new(nics: Nics, mark: u32) -> Self {
        Self { nics, mark }
    }

    /// The device by which a state's route leads; `None` where it names an interface that is there,
    /// or there is no route.
    fn found(&self, state: &SaConfig) -> Option<String> {
        let offload = state.offload.as_ref()?;
        let number: u32 = offload.device.strip_prefix("if")?.parse().ok()?;
        if self.nics.nic(&offload.device).is_some() || is_there(number) {
            return None;
        }
        let mark = if state.output_mark == Mark::default() {
            self.mark
        } else {
            state.output_mark.applied_to(0)
        };
        let route = Rtnetlink::open().ok()?.route_to(peer(state, offload), mark).ok()?;
        Some(by_number(route.link))
    }
}

impl OffloadDevices for ByRoute {
    fn attach_state(&mut self, state: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal> {
        match self.found(state) {
            Some(name) => self.nics.attach_to(&name, state),
            None => self.nics.attach_state(state),
        }
    }

    fn open_state(&mut self, device: DeviceId, handle: Handle, position: &SaProgress) {
        self.nics.open_state(device, handle, position);
    }

    fn set_history(&mut self, device: DeviceId, handle: Handle, history: &SaHistory) {
        self.nics.set_history(device, handle, history);
    }

    fn update_state(&mut self, device: DeviceId, handle: Handle, state: &SaConfig) {
        self.nics.update_state(device, handle, state);
    }

    fn attach_larval(
        &mut self,
        device: DeviceId,
        wanted: &SaRequest,
    ) -> Result<Handle, DeviceRefusal> {
        self.nics.attach_larval(device, wanted)
    }

    fn reserve(&mut self, device: DeviceId, handle: Handle, used: u64, ceiling: u64) {
        self.nics.reserve(device, handle, used, ceiling);
    }

    fn reserve_received(&mut self, device: DeviceId, handle: Handle, before: u64, edge: u64) {
        self.nics.reserve_received(device, handle, before, edge);
    }

    fn set_iv_prefix(&mut self, device: DeviceId, handle: Handle, prefix: IvPrefix) {
        self.nics.set_iv_prefix(device, handle, prefix);
    }

    fn detach_state(&mut self, device: DeviceId, handle: Handle) {
        self.nics.detach_state(device, handle);
    }

    fn close_state(&mut self, device: DeviceId, handle: Handle) {
        self.nics.close_state(device, handle);
    }

    fn attach_policy(&mut self, policy: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal> {
        self.nics.attach_policy(policy)
    }

    fn detach_policy(&mut self, device: DeviceId, handle: Handle) {
        self.nics.detach_policy(device, handle);
    }

    fn advance_esn(&mut self, device: DeviceId, handle: Handle, number: u64) {
        self.nics.advance_esn(device, handle, number);
    }

    fn counts(&mut self, device: DeviceId, handle: Handle) -> Option<DeviceSaCounters> {
        self.nics.counts(device, handle)
    }

    fn window(&mut self, device: DeviceId, handle: Handle) -> Vec<u64> {
        self.nics.window(device, handle)
    }
}

/// Where packets of a state go, or come from.
fn peer(state: &SaConfig, offload: &Offload) -> IpAddr {
    match offload.direction {
        Direction::In => state.source,
        Direction::Out | Direction::Forward => state.id.destination,
    }
}

/// Whether an interface of this number is there; there is none of number 0.
fn is_there(number: u32) -> bool {
    number != 0
        && Rtnetlink::open().is_ok_and(|mut rtnetlink| rtnetlink.link_of_index(number).is_ok())
}
