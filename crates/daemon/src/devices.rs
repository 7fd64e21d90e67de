//! The gateway's offload device: a model NIC that follows the link of the interface whose name it has.
//!
//! The host's network is one wire, so there is one device at the most. Its half of the work is done by the lanes, between engine and sockets.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use uxfrm_engine::{Database, DeviceId, Event, LinkDown};
use uxfrm_io::rtnetlink::Rtnetlink;
use uxfrm_offload::{FunctionId, Link, ModelNic, NicSetup, Nics, Profile};
use uxfrm_packet::Pool;

use crate::{
    config::{Device, LinkDown as Choice},
    gateway::now,
};

/// The devices of a gateway: none or one.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    nics: Nics,
    plugged: Option<(String, Arc<Mutex<ModelNic>>)>,
}

/// The index of a device whose interface is not there: above all that the kernel gives in a machine's life.
const NOWHERE: u32 = 1 << 30;

impl Devices {
    /// Makes the configured devices, and lets the database find them.
    ///
    /// # Errors
    /// More than one, or a profile that is neither known nor a file.
    pub(crate) fn plug(devices: &[Device], database: &mut Database) -> anyhow::Result<Self> {
        let [device] = devices else {
            anyhow::ensure!(devices.is_empty(), "[[device]]: there can be one device, not more");
            return Ok(Self::default());
        };
        let profile = profile(&device.profile)?;
        let id = index(&device.name)?;
        let mut setup = NicSetup::new(profile, id);
        setup.seed = seed()?;
        let nic = ModelNic::new(setup).context("no memory for a device")?;
        let (nic, nics) = (Arc::new(Mutex::new(nic)), Nics::default());
        // By its name in batch files, by its number in netlink.
        for name in [device.name.clone(), format!("if{}", id.0)] {
            nics.plug(&name, &nic, FunctionId(0));
        }
        database.set_devices(Box::new(nics.clone()));
        database.set_link_down(match device.link_down {
            Choice::Block => LinkDown::Block,
            Choice::Release => LinkDown::Release,
        });
        Ok(Self { nics, plugged: Some((device.name.clone(), nic)) })
    }

    /// What lanes send through.
    pub(crate) fn nic(&self) -> Option<Arc<Mutex<ModelNic>>> {
        self.plugged.as_ref().map(|(_, nic)| Arc::clone(nic))
    }

    /// Lets the device follow its interface, and the database hear what it has to say.
    pub(crate) fn look_after(&self, database: &mut Database, events: &mut Vec<Event>) {
        let Some((name, nic)) = &self.plugged else { return };
        let link = Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.link(name));
        let link = if link.is_ok_and(|link| link.is_up) { Link::Up } else { Link::Down };
        lock(nic).set_link(link, &mut Pool::new());
        let mut told = Vec::new();
        self.nics.take_events(&mut told);
        for (device, event) in told {
            tracing::info!(?device, ?event, "device");
            database.hear(device, event, now(), events);
        }
    }

    /// Lets the device use the numbers that are on the disk as reserved.
    pub(crate) fn share_numbers(&self, database: &mut Database) {
        if self.plugged.is_some() {
            database.share_numbers();
        }
    }
}

fn profile(name: &str) -> anyhow::Result<Profile> {
    if let Some(profile) = Profile::by_name(name) {
        return Ok(profile);
    }
    let text = fs::read_to_string(name).with_context(|| {
        format!("profile {name}: neither niantic, connectx6dx, netdevsim or unlimited, nor a file")
    })?;
    Profile::from_toml(&text).with_context(|| format!("profile {name}"))
}

fn index(name: &str) -> anyhow::Result<DeviceId> {
    let found = Rtnetlink::open()?.link(name);
    Ok(DeviceId(found.map_or_else(
        |_| {
            tracing::warn!("device {name} is down: there is no interface of that name (ip link add {name} type dummy)");
            NOWHERE
        },
        |link| link.index,
    )))
}

fn seed() -> anyhow::Result<u16> {
    let [a, b, ..] = uxfrm_io::random::seed().context("can't get a random seed")?;
    Ok(u16::from_ne_bytes([a, b]))
}

fn lock(nic: &Mutex<ModelNic>) -> std::sync::MutexGuard<'_, ModelNic> {
    nic.lock().unwrap_or_else(PoisonError::into_inner)
}
