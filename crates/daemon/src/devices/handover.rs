//! Devices as they pass to another process of the gateway (`uxfrm upgrade`): how they were made and
//! set, with the TUNs that they are; and once all rests, counts. States and policies on them are
//! made anew there, as messages and final numbers say.

use std::{collections::BTreeMap, os::fd::AsFd as _};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use uxfrm_engine::{Database, DeviceId};
use uxfrm_io::Port as _;
use uxfrm_offload::{
    FunctionId, LinkState, NicCounters, Trust,
    dev::{Addition, LinkWord},
};
use uxfrm_packet::Pool;

use super::{
    DeviceCreation, Devices, InstalledDevice, interface::Interface, lock, names, set_up_link_down,
};
use crate::{
    config::DeviceSettings,
    descriptor_store::{Copies, DescriptorStore},
    protocol::ClientId,
};

/// All devices by name, and the clients that listen to them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DevicesHandover {
    devices: BTreeMap<String, DeviceHandover>,
    /// Clients, and which device they want to hear of.
    listeners: Vec<(u32, Option<String>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DeviceHandover {
    addition: Addition,
    /// Indices of its own interface and those of its virtual functions, and whether it made them.
    interfaces: Vec<(u32, bool)>,
    admin: LinkWord,
    /// Whether each virtual function is trusted now.
    trusted: Vec<bool>,
    /// Rules of the flow director, as `ethtool -U` takes them.
    rules: Vec<String>,
    /// Whether its link, and each of its functions', carries anything.
    link: LinkWord,
    links: Vec<LinkWord>,
}

/// Counts of those that are there, and of those that are gone.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeviceFinals {
    devices: BTreeMap<String, NicCounters>,
    gone: BTreeMap<String, u64>,
}

/// So many turns at the most until nothing is on its way any more: a device that has no room again
/// and again is left alone then.
const MOST_TURNS: usize = 10_000;

impl Devices {
    /// What there is, with copies of descriptors; `None` where there never was any.
    ///
    /// # Errors
    /// Too many descriptors.
    pub(crate) fn portray(&self) -> anyhow::Result<Option<(DevicesHandover, Copies)>> {
        if self.installed.is_empty() && self.gone.total() == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for interface in self.installed.values().flat_map(|installed| &installed.interfaces) {
            if let Some(tun) = interface.tun.as_ref().and_then(|tun| tun.descriptor()) {
                descriptors.push((tun_name(&interface.name), tun.as_fd().try_clone_to_owned()?));
            }
        }
        let devices =
            self.installed.iter().map(|(name, installed)| (name.clone(), installed.portray()));
        let listeners = self.listeners.iter().map(|(client, device)| (client.0, device.clone()));
        let passed = DevicesHandover { devices: devices.collect(), listeners: listeners.collect() };
        Ok(Some((passed, descriptors)))
    }

    /// What another process had, whose threads carry packets until these are
    /// [resumed](Self::resume). States come next, whoever may have asked for them;
    /// [`Self::restore_trust`] behind them.
    ///
    /// # Errors
    /// What this release does not take of it.
    pub(crate) fn of_passed(
        passed: &DevicesHandover,
        descriptors: &mut DescriptorStore,
        (configured, mark): (&[DeviceSettings], u32),
        database: &mut Database,
    ) -> anyhow::Result<Self> {
        let mut all = Self::plug(&[], DeviceCreation::Real, mark, database)?;
        set_up_link_down(configured, database);
        for (name, device) in &passed.devices {
            let expected = usize::from(device.addition.functions) + 1;
            anyhow::ensure!(device.interfaces.len() == expected, "device {name} lacks interfaces");
            let mut interfaces = Vec::new();
            let indices = device.interfaces.iter();
            for (name, (index, is_made)) in names(name, device.addition.functions).zip(indices) {
                let tun = is_made.then(|| descriptors.take(&tun_name(&name)));
                let tun = tun.map(|tun| tun.with_context(|| format!("the TUN {name} is missing")));
                interfaces.push(Interface::taken(&name, *index, tun.transpose()?)?);
            }
            let addition = Addition { trusted: true, ..device.addition.clone() };
            all.put_up(addition, interfaces).with_context(|| format!("device {name}"))?;
            if let Some(installed) = all.installed.get_mut(name) {
                installed.addition.trusted = device.addition.trusted;
                installed.restore(device).with_context(|| format!("device {name}"))?;
            }
        }
        // That devices are there and links down was told before.
        all.nics.take_events(&mut Vec::new());
        all.news.clear();
        let listeners = passed.listeners.iter();
        all.listeners =
            listeners.map(|(client, device)| (ClientId(*client), device.clone())).collect();
        Ok(all)
    }

    /// Who was not trusted any more may keep what it had.
    pub(crate) fn restore_trust(&self, passed: &DevicesHandover) {
        for (name, device) in &passed.devices {
            let Some(installed) = self.installed.get(name) else { continue };
            for (vf, trusted) in (0..).zip(&device.trusted) {
                let trust = if *trusted { Trust::Trusted } else { Trust::Untrusted };
                lock(&installed.nic).set_trust(FunctionId::of_virtual(vf), trust);
            }
        }
    }

    /// Halts all threads.
    ///
    /// # Errors
    /// What ended one before.
    pub(crate) fn rest(&mut self) -> anyhow::Result<()> {
        let mut threads = self.installed.values_mut().filter_map(|one| one.thread.as_mut());
        threads.try_for_each(|thread| thread.rest())
    }

    /// Those that are halted do what they can with what is on its way; whether there was anything.
    pub(crate) fn drain(&mut self) -> bool {
        let threads = self.installed.values_mut().filter_map(|one| one.thread.as_mut());
        threads.filter_map(|thread| thread.paused()).fold(false, |some, one| one.drain() | some)
    }

    /// All threads go on, or begin.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn resume(&mut self) -> std::io::Result<()> {
        let mut threads = self.installed.values_mut().filter_map(|one| one.thread.as_mut());
        threads.try_for_each(|thread| thread.resume())
    }

    /// What all have counted, once nothing is under way.
    pub(crate) fn finals(&self) -> DeviceFinals {
        let tally = |installed: &InstalledDevice| lock(&installed.nic).tally();
        let devices =
            self.installed.iter().map(|(name, installed)| (name.clone(), tally(installed)));
        let gone = self.gone.iter().map(|(why, packets)| (why.as_str().to_owned(), packets));
        DeviceFinals { devices: devices.collect(), gone: gone.collect() }
    }

    /// Goes on with another's counts.
    pub(crate) fn go_on_from(&mut self, finals: &DeviceFinals) {
        for (name, tally) in &finals.devices {
            if let Some(installed) = self.installed.get(name) {
                lock(&installed.nic).resume_counters(tally);
            }
        }
        self.gone.add_named(&finals.gone);
    }
}

/// Lets all that is on its way between workers and devices, which rest, come to its end.
pub(crate) fn drain(devices: &mut Devices, lanes: &mut [uxfrm_runtime::PausedWorker]) {
    if devices.is_empty() {
        return;
    }
    for _ in 0..MOST_TURNS {
        let of_lanes = lanes.iter_mut().fold(false, |some, lane| lane.drain() | some);
        if !(devices.drain() | of_lanes) {
            return;
        }
    }
    tracing::warn!("packets on their way through a device are lost");
}

impl InstalledDevice {
    fn portray(&self) -> DeviceHandover {
        let nic = lock(&self.nic);
        let functions = (0..).zip(&self.interfaces).map(|(number, _)| FunctionId(number));
        let trusted = |function| {
            let found = nic.virtual_function(function);
            found.map(|found| found.trust == Trust::Trusted)
        };
        DeviceHandover {
            addition: self.addition.clone(),
            interfaces: self.interfaces.iter().map(Interface::portray).collect(),
            admin: self.admin.into(),
            trusted: functions.clone().filter_map(trusted).collect(),
            rules: nic.rules().map(|(loc, rule)| format!("{rule} loc {}", loc.0)).collect(),
            link: nic.link().into(),
            links: functions.map(|function| nic.link_of(function).into()).collect(),
        }
    }

    /// As it was set while it ran.
    fn restore(&mut self, device: &DeviceHandover) -> anyhow::Result<()> {
        self.admin = LinkState::from(device.admin);
        let (mut nic, mut pool) = (lock(&self.nic), Pool::new());
        for rule in &device.rules {
            nic.change_rule(rule.parse().with_context(|| rule.clone())?)
                .with_context(|| rule.clone())?;
        }
        for (number, link) in (0..).zip(&device.links) {
            nic.set_function_link(FunctionId(number), LinkState::from(*link), &mut pool);
        }
        nic.set_link(LinkState::from(device.link), &mut pool);
        Ok(())
    }
}

impl Interface {
    fn portray(&self) -> (u32, bool) {
        let DeviceId(index) = self.device();
        (index, self.tun.is_some())
    }
}

fn tun_name(interface: &str) -> String {
    format!("device {interface}")
}
