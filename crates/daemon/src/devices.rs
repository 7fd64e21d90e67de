//! The gateway's offload devices: model NICs between its workers and the network, each on a thread
//! of its own.
//!
//! A device is the interface of its name, so that `ip xfrm` finds it: one that is there already,
//! whose link it follows, or a TUN that is made for it and goes with it; so are its virtual
//! functions. Devices of the configuration are made before its batch files are read, others by
//! `uxfrm dev` while the gateway runs; threads start when there are workers.

mod by_route;
mod handover;
mod interface;
mod requests;

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use uxfrm_engine::{Database, DeviceEvent, DeviceId, DropCounts, Drops, Event, LinkDown, Moment};
use uxfrm_io::text_file;
use uxfrm_offload::{
    FunctionId, LinkState, ModelNic, NicDrops, NicSetup, Nics, Profile, Trust, VirtualFunction,
    dev::{Addition, DevAnswer, EventReport, ProfileChoice, TableName},
};
use uxfrm_packet::Pool;
use uxfrm_runtime::{DeviceEgress, DeviceLoop, DevicePorts, Events};

use crate::config::limits::MOST_FUNCTIONS;
use crate::{
    clock::now,
    config::{DeviceSettings, LinkDownSetting as Choice},
    pausable_thread::PausableThread,
    ports::workers,
    protocol::{ClientId, Outbox},
};
use by_route::ByRoute;
pub(crate) use handover::{DeviceFinals, DevicesHandover, drain};
pub(crate) use interface::DeviceCreation;
use interface::{Interface, LinkLookup};

/// How often interfaces are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The devices of a gateway.
#[derive(Debug)]
pub(crate) struct Devices {
    nics: Nics,
    bay: DevicePorts,
    installed: BTreeMap<String, InstalledDevice>,
    /// Who hears of events, and of which device.
    listeners: Vec<(ClientId, Option<String>)>,
    /// What they have not been told yet.
    news: Vec<EventReport>,
    /// What clients are still to be sent.
    queued: BTreeMap<ClientId, VecDeque<DevAnswer>>,
    /// What ports of devices refused, of those that are gone as well.
    drops: Vec<Arc<Drops>>,
    /// What devices dropped that are gone.
    gone: NicDrops,
    running: Option<DeviceContext>,
    /// When interfaces were looked at last.
    looked: Moment,
}

/// What device threads need.
#[derive(Clone, Debug)]
pub(crate) struct DeviceContext {
    /// `SO_MARK` of their sockets.
    pub(crate) mark: u32,
    /// How they send.
    pub(crate) mode: WireMode,
    /// Who hears what happens there.
    pub(crate) events: Events,
    /// The gateway's own interface.
    pub(crate) tun: String,
}

/// Which part of the gateway owns the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireMode {
    /// The host's network: each device has sockets of its own.
    Host,
    /// Inline mode: workers know next hops.
    Inline,
}

/// A device that is there.
#[derive(Debug)]
struct InstalledDevice {
    nic: Arc<Mutex<ModelNic>>,
    /// How it was made; a profile that was read from a file is its text.
    addition: Addition,
    /// The interface whose link it follows, where that is not its own.
    port: Option<String>,
    /// Its own and its virtual functions'.
    interfaces: Vec<Interface>,
    /// What `uxfrm dev set` said.
    admin: LinkState,
    thread: Option<PausableThread>,
}

impl Devices {
    /// Makes the configured devices, and lets the database find them; `mark` is that of uxfrm's own
    /// sockets.
    ///
    /// # Errors
    /// A profile that is neither known nor a file, an interface that can't be made, a name that is
    /// there twice.
    pub(crate) fn plug(
        devices: &[DeviceSettings],
        making: DeviceCreation,
        mark: u32,
        database: &mut Database,
    ) -> anyhow::Result<Self> {
        let mut all = Self::none();
        database.set_devices(match making {
            DeviceCreation::Real => Box::new(ByRoute::new(all.nics.clone(), mark)),
            DeviceCreation::DryRun => Box::new(all.nics.clone()),
        });
        for device in devices {
            let addition = device.addition();
            let whose = || format!("[[device]] {}", device.name);
            all.install(addition, making).with_context(whose)?;
        }
        set_up_link_down(devices, database);
        Ok(all)
    }

    fn none() -> Self {
        let nics = Nics::default();
        Self {
            bay: DevicePorts::new(nics.clone()),
            nics,
            installed: BTreeMap::new(),
            listeners: Vec::new(),
            news: Vec::new(),
            queued: BTreeMap::new(),
            drops: Vec::new(),
            gone: NicDrops::default(),
            running: None,
            looked: Moment(0),
        }
    }

    /// Lets a database find the same devices, empty and under the same names and numbers: what is
    /// put on them is on none of these.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub(crate) fn imagine(&self, database: &mut Database) -> anyhow::Result<()> {
        let mut all = Self::none();
        for installed in self.installed.values() {
            let interfaces = installed.interfaces.iter().map(Interface::imagined).collect();
            all.put_up(installed.addition.clone(), interfaces)?;
        }
        database.set_devices(Box::new(all.nics));
        Ok(())
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.installed.is_empty()
    }

    /// Where workers meet devices.
    pub(crate) fn bay(&self) -> &DevicePorts {
        &self.bay
    }

    /// Opens the sockets of the devices' threads, now that all workers are there; those of later
    /// devices as they come. Threads begin when they are [resumed](Self::resume).
    ///
    /// # Errors
    /// When sockets can't be had.
    pub(crate) fn open(&mut self, around: DeviceContext) -> anyhow::Result<()> {
        self.running = Some(around);
        let names: Vec<_> = self.installed.keys().cloned().collect();
        names.iter().try_for_each(|name| self.open_thread(name))
    }

    /// The devices themselves, which count the packets of their states.
    pub(crate) fn nics(&self) -> Nics {
        self.nics.clone()
    }

    /// Their interfaces' names, virtual functions' as well.
    pub(crate) fn interface_names(&self) -> Vec<(DeviceId, String)> {
        let interfaces = self.installed.values().flat_map(|installed| &installed.interfaces);
        interfaces.map(|interface| (interface.device(), interface.name.clone())).collect()
    }

    /// What their ports refused.
    pub(crate) fn drops(&self) -> &[Arc<Drops>] {
        &self.drops
    }

    /// What devices dropped themselves, under the engine's reasons.
    pub(crate) fn add_to(&self, counts: &mut DropCounts) {
        let add =
            |all: NicDrops, installed: &InstalledDevice| all.plus(lock(&installed.nic).drops());
        let all = self.installed.values().fold(self.gone, add);
        all.iter().for_each(|(drop, packets)| counts.add(drop.reason(), packets));
    }

    /// Lets devices follow their interfaces and know how far numbers are, and the database hear
    /// what they have to say.
    pub(crate) fn maintain(&mut self, database: &mut Database, events: &mut Vec<Event>) {
        if now().since(self.looked) >= LOOK {
            self.look();
            database.advance_numbers();
        }
        self.hear(database, events);
    }

    /// Lets devices follow their interfaces.
    fn look(&mut self) {
        self.looked = now();
        let (mut look, mut pool) = (LinkLookup::new(), Pool::new());
        for (name, installed) in &self.installed {
            let port = installed.port.as_deref().unwrap_or(name);
            let there =
                if installed.interfaces[0].is_imagined() { LinkState::Up } else { look.link(port) };
            let link = match (there, installed.admin) {
                (LinkState::Up, admin) => admin,
                (LinkState::Down, _) => LinkState::Down,
            };
            lock(&installed.nic).set_link(link, &mut pool);
            for (number, interface) in (0..).zip(&installed.interfaces) {
                let link = look.link_of(interface);
                lock(&installed.nic).set_function_link(FunctionId(number), link, &mut pool);
            }
        }
    }

    /// Lets the database hear what devices have said.
    fn hear(&mut self, database: &mut Database, events: &mut Vec<Event>) {
        let mut told = Vec::new();
        self.nics.take_events(&mut told);
        for (device, event) in told {
            let report = EventReport::of(self.name_of(device), event);
            tracing::info!(%report, "device");
            self.news.push(report);
            if let Some(event) = event.to_hear() {
                database.hear(device, event, now(), events);
            }
        }
    }

    /// Whether a thread ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        let mut threads = self.installed.values().filter_map(|installed| installed.thread.as_ref());
        threads.any(PausableThread::has_ended)
    }

    /// Tells who listens what has happened since.
    pub(crate) fn tell(&mut self, outbox: &mut Outbox) {
        for report in self.news.drain(..) {
            for (client, device) in &self.listeners {
                if device.as_ref().is_none_or(|wanted| *wanted == report.device) {
                    outbox.send(*client, requests::datagram(&DevAnswer::Event(report.clone())));
                }
            }
        }
    }

    /// Ends the threads; interfaces that were made go.
    ///
    /// # Errors
    /// What ended a thread before it was told to.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        let installed = std::mem::take(&mut self.installed).into_values();
        let threads = installed.filter_map(|installed| installed.thread);
        threads.map(PausableThread::stop).try_for_each(|ended| Ok(ended?))
    }

    /// Makes a device.
    fn install(&mut self, addition: Addition, making: DeviceCreation) -> anyhow::Result<()> {
        let Addition { name, port, functions, .. } = &addition;
        let functions = *functions;
        anyhow::ensure!(!self.has(name), "there is a device {name} already");
        anyhow::ensure!(
            functions <= MOST_FUNCTIONS,
            "{functions} virtual functions; 64 are the most"
        );
        if let Some(port) = port {
            anyhow::ensure!(making.is_there(port), "there is no interface {port} to be over");
        }
        let interfaces = names(name, functions).map(|name| making.open(&name));
        let interfaces = interfaces.collect::<anyhow::Result<Vec<_>>>()?;
        self.put_up(addition, interfaces)
    }

    /// The same, with interfaces that are there.
    fn put_up(&mut self, mut addition: Addition, interfaces: Vec<Interface>) -> anyhow::Result<()> {
        let (mut profile, choice) = read_profile(addition.profile)?;
        addition.profile = choice;
        let Addition { name, port, functions, trusted, marks, tables, .. } = addition.clone();
        profile.marks_received = marks.unwrap_or(profile.marks_received);
        for (table, size) in tables {
            let sizes = &mut profile.tables;
            let place = match table {
                TableName::Receive => &mut sizes.receive,
                TableName::Transmit => &mut sizes.transmit,
                TableName::Both => &mut sizes.both,
                TableName::Addresses => &mut sizes.addresses,
            };
            *place = Some(size);
        }
        let share = profile.tables.share(usize::from(functions) + 1);
        let trust = if trusted { Trust::Trusted } else { Trust::Untrusted };
        let mut setup = NicSetup::new(profile, interfaces[0].device());
        setup.seed = seed()?;
        setup.functions = interfaces[1..]
            .iter()
            .map(|one| VirtualFunction {
                device: one.device(),
                trust,
                share,
                addresses: Vec::new(),
            })
            .collect();
        let nic = Arc::new(Mutex::new(ModelNic::new(setup).context("no memory for a device")?));
        for (number, interface) in (0..).zip(&interfaces) {
            // By its name in batch files, by its number in netlink.
            for name in interface.names() {
                self.nics.add_function(&name, &nic, FunctionId(number));
            }
        }
        let installed =
            InstalledDevice { nic, addition, port, interfaces, admin: LinkState::Up, thread: None };
        self.installed.insert(name.clone(), installed);
        self.news.push(EventReport::bare(&name, "added"));
        Ok(())
    }

    /// Makes a device that has no thread: a simulation carries its packets.
    #[cfg(test)]
    pub(crate) fn simulate(&mut self, name: &str, seed: u16) -> (Arc<Mutex<ModelNic>>, u32) {
        let interface = DeviceCreation::DryRun.open(name).unwrap();
        let mut setup = NicSetup::new(Profile::by_name("unlimited").unwrap(), interface.device());
        setup.seed = seed;
        let nic = Arc::new(Mutex::new(ModelNic::new(setup).unwrap()));
        for name in interface.names() {
            self.nics.add_function(&name, &nic, FunctionId::PHYSICAL);
        }
        let number = interface.device().0;
        let (interfaces, taken) = (vec![interface], Arc::clone(&nic));
        let addition = Addition { name: name.to_owned(), ..Addition::default() };
        let installed = InstalledDevice {
            nic,
            addition,
            port: None,
            interfaces,
            admin: LinkState::Up,
            thread: None,
        };
        self.installed.insert(name.to_owned(), installed);
        (taken, number)
    }

    /// Opens what a device's thread needs.
    fn open_thread(&mut self, name: &str) -> anyhow::Result<()> {
        let (Some(around), Some(installed)) = (&self.running, self.installed.get_mut(name)) else {
            return Ok(());
        };
        let exit = match around.mode {
            WireMode::Host => DeviceEgress::Wire(workers::sending(around.mark)?),
            WireMode::Inline => DeviceEgress::Worker,
        };
        let devices = installed.interfaces.iter().map(Interface::device).collect();
        let lane = DeviceLoop::new(&self.bay, Arc::clone(&installed.nic), devices, exit)?;
        let lane = lane.with_events(around.events.clone());
        self.drops.push(lane.drops());
        // Names of threads have 15 letters.
        let thread = format!("nic-{}", name.get(..name.len().min(11)).unwrap_or_default());
        installed.thread = Some(PausableThread::resting(lane, thread));
        Ok(())
    }

    /// Takes a device out: its states and policies go as when its link goes down.
    fn remove(&mut self, name: &str, database: &mut Database, events: &mut Vec<Event>) -> bool {
        let Some(installed) = self.installed.remove(name) else { return false };
        self.hear(database, events);
        for interface in &installed.interfaces {
            database.hear(interface.device(), DeviceEvent::Down, now(), events);
            for name in interface.names() {
                self.nics.remove_function(&name);
            }
        }
        self.bay.remove(installed.interfaces[0].device());
        if let Some(Err(error)) = installed.thread.map(PausableThread::stop) {
            tracing::error!(%error, device = name, "the device's thread had ended by itself");
        }
        self.gone = self.gone.plus(lock(&installed.nic).drops());
        self.news.push(EventReport::bare(name, "deleted"));
        true
    }

    fn has(&self, name: &str) -> bool {
        let mut interfaces = self.installed.values().flat_map(|installed| &installed.interfaces);
        interfaces.any(|interface| interface.name == name)
    }

    fn name_of(&self, device: DeviceId) -> &str {
        let mut interfaces = self.installed.values().flat_map(|installed| &installed.interfaces);
        interfaces.find(|interface| interface.device() == device).map_or("?", |found| &found.name)
    }
}

/// Those of a device's interfaces: its own and its virtual functions'.
fn names(name: &str, functions: u16) -> impl Iterator<Item = String> {
    let functions = (0..functions).map(move |vf| format!("{name}v{vf}"));
    std::iter::once(name.to_owned()).chain(functions)
}

/// A profile, and how it may be read again: a file may be another then.
fn read_profile(choice: ProfileChoice) -> anyhow::Result<(Profile, ProfileChoice)> {
    let name = match choice {
        ProfileChoice::Text(text) => {
            let profile = Profile::from_toml(&text).context("profile")?;
            return Ok((profile, ProfileChoice::Text(text)));
        }
        ProfileChoice::Named(name) => name,
    };
    if let Some(profile) = Profile::by_name(&name) {
        return Ok((profile, ProfileChoice::Named(name)));
    }
    let text = text_file::read_to_string(Path::new(&name)).with_context(|| {
        format!("profile {name}: neither niantic, connectx6dx, netdevsim or unlimited, nor a file")
    })?;
    let profile = Profile::from_toml(&text).with_context(|| format!("profile {name}"))?;
    Ok((profile, ProfileChoice::Text(text)))
}

/// What becomes of policies as the configuration says.
fn set_up_link_down(devices: &[DeviceSettings], database: &mut Database) {
    for device in devices {
        database.set_link_down(match device.link_down {
            Choice::Block => LinkDown::Block,
            Choice::Release => LinkDown::Release,
        });
    }
}

fn seed() -> anyhow::Result<u16> {
    let [a, b, ..] = uxfrm_io::random::seed().context("can't get a random seed")?;
    Ok(u16::from_ne_bytes([a, b]))
}

fn lock(nic: &Mutex<ModelNic>) -> MutexGuard<'_, ModelNic> {
    nic.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
