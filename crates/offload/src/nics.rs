//! A gateway's devices by name, for the engine's database ([`uxfrm_engine::OffloadDevices`]).
//!
//! A device is shared by its controller and the thread that carries its packets; each locks it for
//! one call or batch.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uxfrm_engine::{
    Attachment, DeviceId, DeviceRefusal, DeviceSaCounters, Direction, Handle, IvPrefix, Mode,
    Moment, OffloadDevices, OffloadKind, Policy, SaConfig, SaHistory, SaProgress, SaRequest,
    Segmentation, Spi,
};

use crate::{Attached, Device, FunctionId, ModelNic, Refusal, Registry};

/// All devices of a gateway; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Nics(Arc<Mutex<NicMap>>);

#[derive(Debug, Default)]
struct NicMap {
    plugs: BTreeMap<String, PluggedFunction>,
    /// SAs removed recently, to be freed: their counts remain readable until then.
    leaving: VecDeque<(DeviceId, Handle)>,
    /// Receiving device and handle by destination and SPI.
    receiving: HashMap<(IpAddr, Spi), (DeviceId, Handle)>,
    /// Destination and SPI of receiving SAs, including inactive ones.
    names: HashMap<(DeviceId, Handle), (IpAddr, Spi)>,
}

/// A function of a device, as an interface.
#[derive(Clone, Debug)]
struct PluggedFunction {
    nic: Arc<Mutex<ModelNic>>,
    function: FunctionId,
    device: DeviceId,
}

impl Nics {
    /// Gives a device function a name for SAs and policies; `false` if there is no such function or
    /// the name is taken.
    pub fn add_function(
        &self,
        name: &str,
        nic: &Arc<Mutex<ModelNic>>,
        function: FunctionId,
    ) -> bool {
        let Some(device) = lock(nic).device_of(function) else { return false };
        let plugs = &mut lock(&self.0).plugs;
        let free = !plugs.contains_key(name);
        if free {
            plugs.insert(
                name.to_owned(),
                PluggedFunction { nic: Arc::clone(nic), function, device },
            );
        }
        free
    }

    /// Removes a name, and returns its interface: the database must hear
    /// [`DeviceEvent::Down`](uxfrm_engine::DeviceEvent::Down) of it *before*, so that SAs and
    /// policies are removed.
    pub fn remove_function(&self, name: &str) -> Option<DeviceId> {
        lock(&self.0).plugs.remove(name).map(|plug| plug.device)
    }

    /// The names and their interfaces.
    #[must_use]
    pub fn names(&self) -> Vec<(String, DeviceId)> {
        lock(&self.0).plugs.iter().map(|(name, plug)| (name.clone(), plug.device)).collect()
    }

    /// The device and function of a name.
    #[must_use]
    pub fn nic(&self, name: &str) -> Option<(Arc<Mutex<ModelNic>>, FunctionId)> {
        lock(&self.0).plugs.get(name).map(|plug| (Arc::clone(&plug.nic), plug.function))
    }

    /// Takes the devices' events, by interface; the database must [hear](crate::NicEvent::to_hear)
    /// some of them.
    pub fn take_events(&self, events: &mut Vec<(DeviceId, crate::NicEvent)>) {
        let mut own = Vec::new();
        for plug in self.plugs() {
            plug.with(|port| port.take_events(&mut own));
            events.extend(own.drain(..).map(|event| (plug.device, event)));
        }
    }

    /// The interface with the SA that receives ESP of this destination and SPI.
    #[must_use]
    pub fn device_of(&self, destination: IpAddr, spi: Spi) -> Option<DeviceId> {
        lock(&self.0).receiving.get(&(destination, spi)).map(|(device, _)| *device)
    }

    /// Adds an SA to the device of this name, whatever its own configuration names.
    ///
    /// # Errors
    /// As [`OffloadDevices::attach_state`].
    pub fn attach_to(
        &self,
        name: &str,
        state: &SaConfig,
    ) -> Result<Option<Attachment>, DeviceRefusal> {
        let Some(offload) = &state.offload else { return Ok(None) };
        let Some(plug) = self.named(name) else {
            Registry::attach_state(None, state)?;
            return Ok(None);
        };
        // The device counts uses, not age: the database knows when it was added.
        let attached = plug.with(|port| port.add_state(state, Moment(0)));
        let handle = match attached.transpose()? {
            Some(Attached::Device(handle)) => handle,
            Some(Attached::Software) | None => return Ok(None),
        };
        if offload.direction == Direction::In {
            let name = (state.id.destination, state.id.spi);
            lock(&self.0).names.insert((plug.device, handle), name);
        }
        let cuts = lock(&plug.nic).profile().segmentation && wraps(state, offload.kind);
        let segmentation = if cuts { Segmentation::Device } else { Segmentation::Engine };
        Ok(Some(Attachment { device: plug.device, handle, kind: offload.kind, segmentation }))
    }

    fn plugs(&self) -> Vec<PluggedFunction> {
        lock(&self.0).plugs.values().cloned().collect()
    }

    fn named(&self, name: &str) -> Option<PluggedFunction> {
        lock(&self.0).plugs.get(name).cloned()
    }

    /// The counts of recently removed SAs remain readable, so that a sender's last counts are
    /// exact.
    fn take_off(&self, device: DeviceId, handle: Handle, off: impl FnOnce(&mut dyn Device)) {
        let counted = self.on(device, |port| {
            let counted = port.update_stats(handle).is_some();
            off(port);
            counted
        });
        let freed = {
            let NicMap { leaving, receiving, names, .. } = &mut *lock(&self.0);
            if let Some(name) = names.remove(&(device, handle))
                && receiving.get(&name) == Some(&(device, handle))
            {
                receiving.remove(&name);
            }
            // Not a larval SA, nor one of a device that is gone.
            if counted == Some(true) {
                leaving.push_back((device, handle));
            }
            if leaving.len() > COUNTABLE { leaving.pop_front() } else { None }
        };
        if let Some((device, handle)) = freed {
            self.on(device, |port| port.free_state(handle));
        }
    }

    fn on<R>(&self, device: DeviceId, does: impl FnOnce(&mut dyn Device) -> R) -> Option<R> {
        let plug = self.plugs().into_iter().find(|plug| plug.device == device)?;
        plug.with(does)
    }
}

impl OffloadDevices for Nics {
    fn attach_state(&mut self, state: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal> {
        let Some(offload) = &state.offload else { return Ok(None) };
        self.attach_to(&offload.device, state)
    }

    fn attach_larval(
        &mut self,
        device: DeviceId,
        wanted: &SaRequest,
    ) -> Result<Handle, DeviceRefusal> {
        match self.on(device, |port| port.add_larval(wanted)) {
            Some(added) => Ok(added?),
            None => Err(DeviceRefusal::invalid("")),
        }
    }

    fn reserve(&mut self, device: DeviceId, handle: Handle, used: u64, ceiling: u64) {
        self.on(device, |port| port.reserve(handle, used.saturating_add(1)..=ceiling));
    }

    fn reserve_received(&mut self, device: DeviceId, handle: Handle, before: u64, edge: u64) {
        self.on(device, |port| port.reserve_received(handle, before.saturating_add(1)..=edge));
    }

    fn set_iv_prefix(&mut self, device: DeviceId, handle: Handle, prefix: IvPrefix) {
        self.on(device, |port| port.set_iv_prefix(handle, prefix));
    }

    fn open_state(&mut self, device: DeviceId, handle: Handle, position: &SaProgress) {
        self.on(device, |port| port.open_state(handle, position));
        let shelf = &mut *lock(&self.0);
        if let Some(name) = shelf.names.get(&(device, handle)) {
            shelf.receiving.insert(*name, (device, handle));
        }
    }

    fn set_history(&mut self, device: DeviceId, handle: Handle, history: &SaHistory) {
        self.on(device, |port| port.set_history(handle, history));
    }

    fn update_state(&mut self, device: DeviceId, handle: Handle, state: &SaConfig) {
        self.on(device, |port| port.update_state(handle, state));
    }

    fn detach_state(&mut self, device: DeviceId, handle: Handle) {
        self.take_off(device, handle, |port| port.delete_state(handle));
    }

    fn close_state(&mut self, device: DeviceId, handle: Handle) {
        self.take_off(device, handle, |port| port.close_state(handle));
    }

    fn attach_policy(&mut self, policy: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal> {
        let plug = policy.offload.as_ref().and_then(|offload| self.named(&offload.device));
        let added = plug.as_ref().and_then(|plug| {
            plug.with(|port| port.add_policy(policy)).map(|added| (plug.device, added))
        });
        match added {
            Some((device, added)) => Ok((device, added?)),
            // An interface without a driver for IPsec, as far as we know.
            None => Err(DeviceRefusal::invalid("Policy offload is not supported")),
        }
    }

    fn detach_policy(&mut self, device: DeviceId, handle: Handle) {
        self.on(device, |port| {
            port.delete_policy(handle);
            port.free_policy(handle);
        });
    }

    fn advance_esn(&mut self, device: DeviceId, handle: Handle, number: u64) {
        self.on(device, |port| port.advance_esn(handle, number));
    }

    fn counts(&mut self, device: DeviceId, handle: Handle) -> Option<DeviceSaCounters> {
        self.on(device, |port| port.update_stats(handle)).flatten().map(DeviceSaCounters::from)
    }

    fn window(&mut self, device: DeviceId, handle: Handle) -> Vec<u64> {
        self.on(device, |port| port.window(handle)).unwrap_or_default()
    }
}

/// Whether a device could encapsulate for an SA by itself.
fn wraps(state: &SaConfig, kind: OffloadKind) -> bool {
    let has_ends = state.mode == Mode::Transport || !state.source.is_unspecified();
    kind == OffloadKind::Packet || (state.encap.is_none() && has_ends)
}

/// Removed SAs that are not yet freed.
const COUNTABLE: usize = 256;

impl PluggedFunction {
    fn with<R>(&self, does: impl FnOnce(&mut dyn Device) -> R) -> Option<R> {
        lock(&self.nic).function(self.function).map(|mut port| does(&mut port))
    }
}

impl From<Refusal> for DeviceRefusal {
    fn from(refusal: Refusal) -> Self {
        Self { errno: refusal.errno.number(), text: refusal.text }
    }
}

/// A panic leaves the device consistent, so poisoning is ignored.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
