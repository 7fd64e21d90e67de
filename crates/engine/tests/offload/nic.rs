//! A small device: tables, and the encryption of kind *crypto*. What it is asked and told is
//! written down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use uxfrm_crypto::{Backend, Crypter, Iv, SaKey, SealJob, SealStatus, SeqHigh};
use uxfrm_engine::{
    Attachment, DeviceId, DeviceMetadata, DeviceRefusal, DeviceSaCounters, DeviceStatus, Direction,
    Handle, IvPrefix, LifetimeLimits, Offload, OffloadDevices, OffloadKind, OffloadTask,
    OffloadedPacket, Policy, SaConfig, SaFlags, SaHistory, SaProgress, SaRequest, Segmentation,
};
use uxfrm_packet::{IpPacket, PacketBuf, Segments};

pub(crate) const NIC0: DeviceId = DeviceId(7);
pub(crate) const NIC1: DeviceId = DeviceId(8);

/// Two devices, `nic0` and `nic1`, with one table: clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nics(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) states: BTreeMap<Handle, State>,
    pub(crate) policies: BTreeMap<Handle, DeviceId>,
    /// Up to where states may have received before a restart, and may receive.
    pub(crate) received: BTreeMap<Handle, (u64, u64)>,
    /// Which numbers states may use: those above the first, up to the second.
    pub(crate) numbers: BTreeMap<Handle, (u64, u64)>,
    pub(crate) counts: BTreeMap<Handle, DeviceSaCounters>,
    /// How far the stack said that states are.
    pub(crate) heads: BTreeMap<Handle, u64>,
    /// How far states were when packets might go through them.
    pub(crate) opened: BTreeMap<Handle, SaProgress>,
    /// The limits that they were updated to.
    pub(crate) updates: BTreeMap<Handle, LifetimeLimits>,
    /// What they have received, besides the highest number.
    pub(crate) windows: BTreeMap<Handle, Vec<u64>>,
    pub(crate) larvals: BTreeMap<Handle, DeviceId>,
    /// What it answers instead of taking anything.
    pub(crate) refusal: Option<DeviceRefusal>,
    /// It leaves kind *crypto* to software.
    pub(crate) declines: bool,
    pub(crate) segmentation: Segmentation,
    next: u32,
}

/// A state on a device.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) device: DeviceId,
    key: SaKey,
    iv_prefixes: BTreeMap<u32, IvPrefix>,
    extended: bool,
}

impl Nics {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap()
    }

    /// How many states and policies there are.
    pub(crate) fn held(&self) -> (usize, usize) {
        let tables = self.tables();
        (tables.states.len(), tables.policies.len())
    }

    /// The only state's handle.
    pub(crate) fn handle(&self) -> Handle {
        let tables = self.tables();
        assert_eq!(tables.states.len(), 1);
        *tables.states.keys().next().unwrap()
    }

    /// Loses all that a device has.
    pub(crate) fn go_down(&self, device: DeviceId) {
        let mut tables = self.tables();
        tables.states.retain(|_, state| state.device != device);
        tables.policies.retain(|_, on| *on != device);
    }

    /// What a device puts on the wire of a packet of kind *crypto*; nothing when it does not have
    /// the state.
    pub(crate) fn encrypt(&self, handed: OffloadedPacket) -> Option<PacketBuf> {
        let OffloadedPacket { mut packet, handover } = handed;
        let tables = self.tables();
        let state = tables.states.get(&handover.handle)?;
        assert_eq!(handover.device, state.device);
        let OffloadTask::Encrypt { sequence } = handover.task else { panic!("{handover:?}") };
        let stride = match packet.segments {
            Segments::Burst { stride } => stride.into(),
            _ => packet.len(),
        };
        for (number, frame) in (sequence..).zip(packet.bytes_mut().chunks_mut(stride)) {
            let ip = IpPacket::parse(frame).unwrap();
            state.seal(number, &mut frame[ip.header_len..ip.total_len]);
        }
        Some(packet)
    }
}

impl State {
    fn seal(&self, number: u64, esp: &mut [u8]) {
        let high = u32::try_from(number >> 32).unwrap();
        let high = if self.extended { SeqHigh::Esn(high) } else { SeqHigh::None };
        let prefix = self.iv_prefixes[&u32::try_from(number >> 32).unwrap()];
        let iv = Iv::Counter(prefix.counter(number).unwrap());
        let mut jobs = [SealJob::in_place(&self.key, high, iv, esp)];
        Crypter::new().unwrap().seal(&mut jobs);
        assert_eq!(jobs[0].status, SealStatus::Sealed);
    }
}

impl Tables {
    fn device(&self, name: &str) -> Result<DeviceId, DeviceRefusal> {
        match (&self.refusal, name) {
            (Some(refusal), _) => Err(refusal.clone()),
            (None, "nic0") => Ok(NIC0),
            (None, "nic1") => Ok(NIC1),
            (None, _) => Err(DeviceRefusal::invalid("")),
        }
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(self.next)
    }
}

impl OffloadDevices for Nics {
    fn attach_state(&mut self, config: &SaConfig) -> Result<Option<Attachment>, DeviceRefusal> {
        let offload = config.offload.as_ref().expect("only what asks for a device");
        let mut tables = self.tables();
        let device = tables.device(&offload.device)?;
        if tables.declines && offload.kind == OffloadKind::Crypto {
            return Ok(None);
        }
        let words = &config.transform;
        let keys = (&words.encryption_key, &words.authentication_key);
        let key = SaKey::new(&words.transform, keys.0, keys.1, Backend::Portable).unwrap();
        let extended = config.flags.contains(SaFlags::ESN);
        let state = State { device, key, iv_prefixes: BTreeMap::new(), extended };
        let handle = tables.handle();
        tables.states.insert(handle, state);
        let segmentation = tables.segmentation;
        Ok(Some(Attachment { device, handle, kind: offload.kind, segmentation }))
    }

    fn open_state(&mut self, _: DeviceId, handle: Handle, position: &SaProgress) {
        self.tables().opened.insert(handle, position.clone());
    }

    fn set_history(&mut self, _: DeviceId, _: Handle, _: &SaHistory) {}

    fn update_state(&mut self, _: DeviceId, handle: Handle, state: &SaConfig) {
        self.tables().updates.insert(handle, state.limits);
    }

    fn attach_larval(&mut self, device: DeviceId, _: &SaRequest) -> Result<Handle, DeviceRefusal> {
        let mut tables = self.tables();
        let handle = tables.handle();
        match &tables.refusal {
            Some(refusal) => Err(refusal.clone()),
            None => {
                tables.larvals.insert(handle, device);
                Ok(handle)
            }
        }
    }

    fn reserve(&mut self, _: DeviceId, handle: Handle, used: u64, ceiling: u64) {
        self.tables().numbers.insert(handle, (used, ceiling));
    }

    fn reserve_received(&mut self, _: DeviceId, handle: Handle, before: u64, edge: u64) {
        self.tables().received.insert(handle, (before, edge));
    }

    fn set_iv_prefix(&mut self, _: DeviceId, handle: Handle, prefix: IvPrefix) {
        let mut tables = self.tables();
        let state = tables.states.get_mut(&handle).expect("a state that is there");
        state.iv_prefixes.insert(prefix.upper(), prefix);
    }

    fn detach_state(&mut self, _: DeviceId, handle: Handle) {
        let mut tables = self.tables();
        tables.states.remove(&handle);
        tables.larvals.remove(&handle);
    }

    fn close_state(&mut self, device: DeviceId, handle: Handle) {
        self.detach_state(device, handle);
    }

    fn attach_policy(&mut self, policy: &Policy) -> Result<(DeviceId, Handle), DeviceRefusal> {
        let mut tables = self.tables();
        let device = tables.device(&policy.offload.as_ref().unwrap().device)?;
        let handle = tables.handle();
        tables.policies.insert(handle, device);
        Ok((device, handle))
    }

    fn detach_policy(&mut self, _: DeviceId, handle: Handle) {
        self.tables().policies.remove(&handle);
    }

    fn advance_esn(&mut self, _: DeviceId, handle: Handle, number: u64) {
        self.tables().heads.insert(handle, number);
    }

    fn counts(&mut self, _: DeviceId, handle: Handle) -> Option<DeviceSaCounters> {
        self.tables().counts.get(&handle).copied()
    }

    fn window(&mut self, _: DeviceId, handle: Handle) -> Vec<u64> {
        self.tables().windows.get(&handle).cloned().unwrap_or_default()
    }
}

/// `offload KIND dev NAME dir DIRECTION`.
pub(crate) fn offload(kind: OffloadKind, device: &str, direction: Direction) -> Option<Offload> {
    Some(Offload { kind, device: device.to_owned(), direction })
}

/// What `nic0` says of a packet that it decrypted.
pub(crate) fn mark(kind: OffloadKind, handle: Handle) -> DeviceMetadata {
    DeviceMetadata {
        device: NIC0,
        handle: Some(handle),
        kind,
        status: DeviceStatus::Success,
        high: 0,
    }
}
