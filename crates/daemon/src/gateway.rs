//! The running gateway: databases, lanes, routes and sockets brought up in order, kept, and taken down in order.
//!
//! Up: databases from the batch files → TUN (still without routes) → wire sockets → lanes → guard → routes, so that no
//! packet is brought to a gateway that is not there yet. Down: lanes → TUN; routes that refuse and the guard stay, unless `[host] at_exit` is `open`: then
//! routes → lanes → guard → TUN.

mod succession;

use std::{
    net::IpAddr,
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    sys::{prctl, signal::Signal},
    unistd::{AccessFlags, Pid, access},
};
use sd_notify::NotifyState;
use uxfrm_engine::{
    CacheCounts, Changes, Database, DropCounts, Drops, Event, Host, Keeper, Senses,
};
use uxfrm_io::{
    dump, heap,
    nftables::Watch,
    path_errors::PathErrors,
    poll::{Poller, Waker},
    random,
    rtnetlink::{Monitor, Rtnetlink},
    signal::{Request, Signals},
    tun::{Place, Queues, Tun, TunOptions},
    uevents::Uevents,
};
use uxfrm_runtime::{Events, Running};

use crate::{
    config::{AtExit, Config, TunName},
    control::{Control, Outbox, Serving, Terms, Xfrm, awaken},
    descriptor_store::DescriptorStore,
    devices::{self, Devices, Making},
    express::Express,
    following::{AnyFilter, Following},
    guard::Guard,
    guidance::Asked,
    held::{self, Files, keeping::Keeping},
    host::{self, Before, HostRoutes, LedBy},
    inline::{self, KeepOut},
    keepalive::Keepalives,
    lanes, load,
    planner::Planner,
    reload::{self, Reload, Written},
    round::{Round, Waiting},
    sandbox,
    sequences::{self, SequenceStore},
    stat::{self, StatSocket, Statistics},
    time::now,
    train,
    tunnels::{Carrying, Plan},
    upgrade::{self, Supervisor, Upgrade},
};

/// What the gateway waits for.
const SIGNALS: u8 = 0;
const STAT: u8 = 1;
const CONTROL: u8 = 2;
const NETWORK: u8 = 3;
const PATHS: u8 = 4;
const SUPERVISOR: u8 = 5;
const SUCCESSOR: u8 = 6;
const SNAPSHOT: u8 = 7;
const FILTER: u8 = 8;

/// The longest that nobody looks after time limits and events.
const TICK: Duration = Duration::from_millis(200);
/// Packets that wait in the TUN at the most. The kernel's 500 small ones are gone in 2 ms, for which a worker may well have to wait for a
/// processor; of larger ones a sender's own window lets fewer wait.
pub(crate) const QUEUE: u32 = 4000;

/// What becomes of a host whose gateway ends by a fault.
const STAYS: &str = "protected destinations stay unreachable until uxfrm runs again";

/// And of what would pass between the devices of inline mode: their table stays.
const KEPT_OUT: &str = "nothing passes between the devices of [inline] until uxfrm runs again";

/// Runs the gateway of a configuration file in the foreground until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps it from starting, everything else that ends it.
pub fn run(path: &Path) -> anyhow::Result<()> {
    dump::forbid().context("can't keep keys out of core dumps")?;
    keep_from_swap();
    let signals = Signals::block()?;
    run_with(path, &signals, None)
}

/// The same as the process that a supervisor has started at its standard input: it may take another's place, and another
/// its own.
///
/// # Errors
/// As [`run`]; without a supervisor there.
pub fn run_under_supervisor(path: &Path, supervisor: u32) -> anyhow::Result<()> {
    end_with(supervisor)?;
    dump::forbid().context("can't keep keys out of core dumps")?;
    keep_from_swap();
    let signals = Signals::block()?;
    let (supervisor, before) =
        Supervisor::at_standard_input().context("no supervisor is at standard input")?;
    match before {
        None => run_with(path, &signals, Some(supervisor)),
        Some(before) => succession::take_over(path, &signals, supervisor, before),
    }
}

/// However the supervisor ends, this process does: who kills `uxfrm run` kills the gateway.
fn end_with(supervisor: u32) -> anyhow::Result<()> {
    prctl::set_name(upgrade::GATEWAY)?;
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let parent = u32::try_from(Pid::parent().as_raw()).ok();
    anyhow::ensure!(parent == Some(supervisor), "the supervisor has ended");
    Ok(())
}

fn run_with(path: &Path, signals: &Signals, supervisor: Option<Supervisor>) -> anyhow::Result<()> {
    let config = Config::load(path)?;
    sandbox::begin(&config);
    if let Some(supervisor) = &supervisor {
        supervisor.declare_written(&sandbox::written(path, &config))?;
    }
    let stat = StatSocket::open().context("another uxfrm runs in this network namespace")?;
    let poller = Poller::new()?;
    let mut descriptors = DescriptorStore::default();
    // Its lock is held until the last number is written down.
    let mut store = open_store(&config, poller.waker(), &mut descriptors)?;
    let (mut database, devices) = read(&config, Making::Real, Some(&store))?;
    let plan = Plan::read(&config)?;
    let control = control(&config)?;
    let reload = Reload::new(path, config.clone(), Written::all(&database), plan.clone());
    take_up(&config, &mut database)?;
    reserve(&mut database, &mut store)?;
    let mut xfrm = xfrm(&config)?;
    xfrm.miss(store.lost());
    let destinations = Vec::new();
    let parts = Parts { poller, database, store, devices, reload, descriptors, xfrm, destinations };
    let mut gateway = Gateway::open(&config, parts, Before::Gone)?.start(&config)?;
    match plan.start() {
        Ok(tunnels) => gateway.tunnels = tunnels,
        Err(error) => return Err(gateway.fail(error)),
    }
    gateway.upgrade = Upgrade::under(supervisor);
    gateway.descriptors.keep(stat::DESCRIPTOR, stat.as_fd())?;
    if control.is_some() {
        awaken::wake_waiting_clients();
    }
    let _confined = sandbox::close(path, &config);
    gateway.go_on(signals, &stat, control)
}

/// What the last run's policies protected stays refused.
fn take_up(config: &Config, database: &mut Database) -> anyhow::Result<()> {
    let at_start = config.host.at_start;
    held::take_up(database, sequences(config)?, at_start, Files::Decide);
    let policies = held::refuses(database);
    if policies > 0 {
        tracing::warn!(
            policies,
            "what programs' policies protected in the last run is refused until policies of the same selectors come; `uxfrm stat` says \
             which, `uxfrm release` lets go of them"
        );
    }
    Ok(())
}

/// Keys are in requests, databases and stacks as well as in boxes: all memory is locked
/// (`docs/decisions/0003-locked-memory.md`).
fn keep_from_swap() {
    match dump::lock_memory() {
        Ok(hold) => tracing::debug!(?hold, "all memory is kept out of swap"),
        Err(error) => tracing::warn!(
            %error,
            "keys may be written to swap: memory is not locked, which needs LimitMEMLOCK=infinity (systemd), \
             `ulimit -l unlimited` or CAP_IPC_LOCK"
        ),
    }
}

/// Gives free memory back to the system.
fn release_free() {
    if let Err(error) = dump::unlocked(heap::release_free) {
        tracing::warn!(%error, "keys may be written to swap: memory can't be locked again");
    }
}

/// Reads a configuration and its batch files as [`run`] does, and does nothing. How packets would find their way into the TUN, line by line.
///
/// # Errors
/// All that is wrong with them.
pub fn check(path: &Path) -> anyhow::Result<Vec<String>> {
    let config = Config::load(path)?;
    let store = inspect_store(&config).err();
    let (tun, mark) = (config.host.tun.as_str(), config.wire.mark.get());
    let ways = read(&config, Making::Imagined, None)
        .map(|(database, ..)| host::describe(&database.snapshot().spd, tun, mark));
    let (ways, fault) = ways.map_or_else(|fault| (Vec::new(), Some(fault)), |ways| (ways, None));
    let held = held::describe(sequences(&config)?, config.host.at_start);
    let faults = store.into_iter().chain(fault).chain(Plan::read(&config).err());
    let faults: Vec<_> = faults.map(|fault| format!("{fault:#}")).collect();
    anyhow::ensure!(faults.is_empty(), faults.join("\n"));
    Ok(ways.into_iter().chain(held).chain(sandbox::inspect(&config)?).collect())
}

/// The databases that a configuration describes, of which nobody sees anything.
///
/// # Errors
/// All that is wrong with its batch files.
pub(crate) fn imagine(config: &Config) -> anyhow::Result<Database> {
    read(config, Making::Imagined, None).map(|(database, _)| database)
}

/// The same without what files say.
///
/// # Errors
/// As [`imagine`], of the rest of the configuration.
pub(crate) fn imagine_none(config: &Config) -> anyhow::Result<Database> {
    let mut database = empty(config, None)?;
    Devices::plug(&config.device, Making::Imagined, config.wire.mark.get(), &mut database)?;
    Ok(database)
}

/// Removes what a gateway that has ended left in this network namespace, so that nothing is protected or blocked any more. With a
/// configuration its next start knows nothing of what programs' policies protected.
///
/// # Errors
/// While a gateway runs; the kernel's.
pub fn clean(path: Option<&Path>) -> anyhow::Result<()> {
    let config = path.map(Config::load).transpose()?;
    let _alone =
        StatSocket::open().context("uxfrm runs in this network namespace: stop it first")?;
    if let Some(config) = &config {
        held::forget(sequences(config)?)
            .context("can't remove what the last run's policies protected")?;
    }
    HostRoutes::clean().context("can't remove what refuses protected destinations")?;
    Guard::clean().context("can't take down the guard")?;
    KeepOut::sweep();
    Ok(())
}

/// The store of sequence numbers, for this gateway alone.
fn open_store(
    config: &Config,
    waker: Waker,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<SequenceStore> {
    let path = sequences(config)?;
    let store = SequenceStore::open(path, waker, descriptors)
        .with_context(|| format!("can't have used sequence numbers in {}", path.display()))?;
    store.report();
    Ok(store)
}

/// Looks at the store of sequence numbers without touching it.
fn inspect_store(config: &Config) -> anyhow::Result<()> {
    let path = sequences(config)?;
    let condition = sequences::inspect(path)
        .with_context(|| format!("can't read used sequence numbers from {}", path.display()))?;
    if condition.is_incomplete() {
        sequences::report(condition, path);
    }
    if access(path, AccessFlags::W_OK) == Err(Errno::EROFS) {
        // No start comes that far.
        anyhow::bail!(sequences::unwritten(path, &Errno::EROFS.into()));
    }
    Ok(())
}

/// The directory that outlives the process.
pub(crate) fn sequences(config: &Config) -> anyhow::Result<&Path> {
    config.xfrm.sequences.as_deref().context("a configuration that was loaded names it")
}

/// The databases that a configuration describes, and the devices. Workers see nothing of it yet.
fn read(
    config: &Config,
    making: Making,
    store: Option<&SequenceStore>,
) -> anyhow::Result<(Database, Devices)> {
    let mut database = empty(config, store)?;
    let devices = Devices::plug(&config.device, making, config.wire.mark.get(), &mut database)?;
    load::load(&mut database, &config.xfrm.batch, now()).map_err(joined)?;
    Ok((database, devices))
}

/// Databases without devices, and without what files say.
fn empty(config: &Config, store: Option<&SequenceStore>) -> anyhow::Result<Database> {
    let mut database = Database::new(config.crypto.backend.into(), iv_seed()?);
    let senses = if config.inline.is_some() { Senses::BytesOnly } else { Senses::Filtered };
    database.set_senses(senses);
    database.attend_with(store.map_or_else(Keeper::default, SequenceStore::keeper));
    Ok(database)
}

/// Random, for IV prefixes of states until their owner draws them.
fn iv_seed() -> anyhow::Result<u64> {
    let mut seed = [0; 8];
    random::fill(&mut seed).context("no random numbers")?;
    Ok(u64::from_ne_bytes(seed))
}

/// Opens the control socket, if there is to be one; requests wait there until the gateway is up.
fn control(config: &Config) -> anyhow::Result<Option<Control>> {
    if !config.control.enabled {
        return Ok(None);
    }
    let terms = Terms { user: config.control.user, mark: config.wire.mark.get() };
    let path = config.control.socket.as_deref();
    Control::open(path, terms).map(Some).with_context(|| match path {
        Some(path) => format!("can't open the control socket {}", path.display()),
        None => "can't open the control socket of this network namespace".to_owned(),
    })
}

/// The devices of inline mode, and what keeps the host's stack away from what passes between them.
fn sides(
    config: &Config,
    own: &[IpAddr],
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Option<(Arc<inline::Devices>, KeepOut)>> {
    let Some(inline) = &config.inline else { return Ok(None) };
    let sides = Arc::new(inline::Devices::find(config, inline, own, descriptors)?);
    sides.warn_of_forwarding();
    let keep_out = KeepOut::put_up(&sides, lanes::numbers(config), own, descriptors)?;
    Ok(Some((sides, keep_out)))
}

/// The device past the kernel's network stack, if there is to be one.
fn express(
    config: &Config,
    own: &[IpAddr],
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Option<Express>> {
    let find = |name: &TunName| Express::find(config, name.as_str(), own, descriptors);
    config.wire.af_xdp.as_ref().map(find).transpose()
}

/// What the lanes must know of the host, which is told how much it may hand over by the TUN of this index at a time.
fn surroundings(
    routes: &HostRoutes,
    index: u32,
    destinations: Vec<IpAddr>,
) -> anyhow::Result<lanes::Surroundings> {
    let Host { addresses: own, mtu, .. } = routes.host();
    train::fit(&mut Rtnetlink::open()?, index, mtu.into());
    Ok(lanes::Surroundings { mtu: mtu.into(), own, destinations })
}

/// What a gateway is made of.
struct Parts {
    poller: Poller,
    /// Workers see what is in it.
    database: Database,
    store: SequenceStore,
    devices: Devices,
    reload: Reload,
    descriptors: DescriptorStore,
    xfrm: Xfrm,
    /// Destinations that the gateway before has ways to, past the host's stack.
    destinations: Vec<IpAddr>,
}

/// A gateway whose lanes have yet to start.
struct Opening {
    gateway: Gateway,
    lanes: lanes::Opened,
}

impl Opening {
    fn start(self, config: &Config) -> anyhow::Result<Gateway> {
        let Self { mut gateway, lanes } = self;
        let stays = if config.inline.is_some() { KEPT_OUT } else { STAYS };
        gateway.devices.resume().context(stays)?;
        let lanes::Started { lanes, drops, caches, guidance, asked } =
            lanes.start(config).context(stays)?;
        (gateway.lanes, gateway.guidance, gateway.asked) = (lanes, guidance, asked);
        gateway.drops.extend(drops);
        gateway.caches.extend(caches);
        Ok(gateway)
    }
}

/// The netlink server, without clients.
fn xfrm(config: &Config) -> anyhow::Result<Xfrm> {
    Xfrm::new(config.control.acquire_expires.get()).context("no random numbers")
}

#[derive(Debug)]
struct Gateway {
    database: Database,
    following: Following,
    lanes: Vec<Running>,
    /// Who tells lanes their ways past the host's stack.
    guidance: Option<Running>,
    /// The destinations that lanes ask for.
    asked: Asked,
    tunnels: Carrying,
    drops: Vec<Arc<Drops>>,
    caches: Vec<Arc<CacheCounts>>,
    events: Receiver<Event>,
    poller: Poller,
    /// Word of links and addresses.
    network: Monitor,
    paths: PathErrors,
    /// Word of tables of the packet filter that go, where others may take ours.
    filter: Option<Watch>,
    /// Word that the machine goes on from a snapshot, where the kernel tells.
    uevents: Option<Uevents>,
    keepalives: Keepalives,
    planner: Planner,
    keeping: Keeping,
    xfrm: Xfrm,
    devices: Devices,
    /// What key managers are to hear of what clients did to devices.
    happened: Vec<Event>,
    at_exit: AtExit,
    reload: Reload,
    upgrade: Upgrade,
    /// What another process will go on with.
    descriptors: DescriptorStore,
}

impl Gateway {
    fn open(config: &Config, parts: Parts, before: Before) -> anyhow::Result<Opening> {
        let Parts { poller, mut database, store, mut devices, reload, .. } = parts;
        let Parts { mut descriptors, xfrm, destinations, .. } = parts;
        let (tun, index) = open_tun(config, &mut descriptors)?;
        let (table, mark) = (config.wire.table.number(), config.wire.mark.get());
        let mut routes = HostRoutes::open(index, table, mark, before)?;
        let (sides, keep_out) = sides(config, routes.own(), &mut descriptors)?.unzip();
        let snapshot = database.snapshot();
        let (sender, events) = mpsc::channel();
        let sender = Events::new(sender, poller.waker());
        let planner = Planner::new(poller.waker());
        let keeping = Keeping::new(sequences(config)?, poller.waker());
        let network = routes.watch()?;
        let around = surroundings(&routes, index, destinations)?;
        let express = express(config, routes.own(), &mut descriptors)?;
        let bay = devices.bay();
        let stored = &mut descriptors;
        let lanes = match &sides {
            None => {
                let beside = lanes::Beside { bay, express: express.as_ref() };
                lanes::open_all(config, tun, &database, &around, &sender, beside, stored)?
            }
            Some(sides) => {
                let beside = inline::Beside { devices: sides, bay };
                inline::open(config, beside, tun, &database, &around, &sender, stored)
                    .context(KEPT_OUT)?
            }
        };
        let mode = sides.as_ref().map_or(devices::Mode::Host, |_| devices::Mode::Inline);
        let (events_of_devices, tun) = (sender.clone(), config.host.tun.to_string());
        devices.open(devices::Surroundings { mark, mode, events: events_of_devices, tun })?;
        // The last of what may fail while nothing of the host's has changed.
        let paths = PathErrors::open().context("no socket for ICMP errors (needs CAP_NET_RAW)")?;
        let guard = Guard::open(config, &snapshot.spd, &mut descriptors)?;
        let led_by = Guard::led_by(guard.as_ref());
        if led_by == LedBy::Destinations {
            let tun = &config.host.tun;
            tracing::warn!(
                "packets are led into {tun} by their destinations alone, as they can't be marked: what no policy protects there passes \
                 uxfrm as well, and a socket without an address gets the one that a policy names"
            );
        }
        routes.lead(led_by)?;
        routes.follow(&snapshot.spd).context(STAYS)?;
        routes.sweep().context("can't let go of what an earlier run left").context(STAYS)?;
        if keep_out.is_none() {
            KeepOut::sweep();
        }
        database.set_host(routes.host());
        database.publish();
        let filter = guard.as_ref().and_then(Guard::watch);
        let guard = guard.map(|guard| Box::new(guard) as AnyFilter);
        let routes = Box::new(routes);
        let following = Following::new(store, guard, keep_out, express, routes, &snapshot.spd);
        let keepalives = Keepalives::new(config.wire.mark.get());
        let tunnels = Carrying::default();
        let gateway = Self {
            database,
            following,
            lanes: Vec::new(),
            guidance: None,
            asked: Asked::default(),
            tunnels,
            drops: Vec::new(),
            caches: Vec::new(),
            events,
            poller,
            network,
            paths,
            filter,
            uevents: listen_for_snapshots(),
            keepalives,
            planner,
            keeping,
            xfrm,
            devices,
            happened: Vec::new(),
            at_exit: config.host.at_exit,
            reload,
            upgrade: Upgrade::default(),
            descriptors,
        };
        Ok(Opening { gateway, lanes })
    }

    /// Says that it is ready, and looks after everything until told to end.
    fn go_on(
        mut self,
        signals: &Signals,
        stat: &StatSocket,
        mut control: Option<Control>,
    ) -> anyhow::Result<()> {
        self.say_ready();
        let ended = self.serve(signals, stat, control.as_mut());
        self.notify(&[NotifyState::Stopping]);
        match ended {
            Ok(()) => self.stop(),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Tells the service manager, if there is one.
    fn notify(&self, states: &[NotifyState<'_>]) {
        match self.upgrade.supervisor() {
            Some(supervisor) => supervisor.notify(states),
            None => drop(sd_notify::notify(states)),
        }
    }

    fn say_ready(&self) {
        self.notify(&[NotifyState::Ready]);
        use std::io::Write as _;
        // Whoever started us and closed our standard error does not want to know.
        let _closed = writeln!(std::io::stderr(), "uxfrm: ready");
    }

    /// Looks after signals, counters, events and time limits until told to stop or a lane ends.
    fn serve(
        &mut self,
        signals: &Signals,
        stat: &StatSocket,
        mut control: Option<&mut Control>,
    ) -> anyhow::Result<()> {
        self.poller.add(signals.as_fd(), SIGNALS)?;
        if let Some(supervisor) = self.upgrade.supervisor() {
            self.poller.add(supervisor.as_fd(), SUPERVISOR)?;
        }
        self.poller.add(stat.as_fd(), STAT)?;
        self.poller.add(self.network.as_fd(), NETWORK)?;
        self.paths.descriptors().try_for_each(|paths| self.poller.add(paths, PATHS))?;
        if let Some(control) = &control {
            self.poller.add(control.as_fd(), CONTROL)?;
        }
        if let Some(uevents) = &self.uevents {
            self.poller.add(uevents.as_fd(), SNAPSHOT)?;
        }
        if let Some(filter) = &self.filter {
            self.poller.add(filter.as_fd(), FILTER)?;
        }
        loop {
            let patience = self.patience();
            let ready = self.poller.wait(Some(patience))?;
            if ready.has(STAT) {
                let tunnels = self.tunnels.counts();
                stat.answer(|| Statistics {
                    counts: self.counts(),
                    tunnels: tunnels.clone(),
                    caches: stat::caches(&self.caches),
                    notices: self.following.notices(&self.database),
                });
            }
            if ready.has(NETWORK) {
                self.following.look_around(&self.network, &mut self.database);
            }
            if ready.has(FILTER) && self.filter.as_mut().is_some_and(Watch::take_gone) {
                self.following.put_guard_back(&self.database.snapshot().spd);
            }
            // First: what is asked for next may have states send.
            if ready.has(SNAPSHOT)
                && self.uevents.as_ref().is_some_and(Uevents::take_new_generation)
            {
                self.following.leave_snapshot(&mut self.database);
            }
            if ready.has(PATHS) {
                self.following.hear_of_paths(&self.paths, &self.database);
            }
            if let Some(control) = control.as_mut().filter(|_| ready.has(CONTROL)) {
                let mut serving = self.serving();
                control.serve(&mut serving).context("the control socket is broken")?;
            }
            while ready.has(SIGNALS)
                && let Some(request) = signals.next()?
            {
                match request {
                    Request::Stop => return Ok(()),
                    Request::Reload => self.reload(control.as_deref_mut()),
                }
            }
            if let Some(control) = control.as_deref_mut() {
                self.upgrade_by(&ready, control)?;
            }
            self.keep_time(control.as_deref_mut());
            self.tunnels.look_after();
            let lane_ends = self.lanes.iter().chain(&self.guidance).any(Running::has_ended);
            let ends = lane_ends || self.tunnels.has_ended() || self.devices.has_ended();
            anyhow::ensure!(!ends, "a worker ended by itself");
        }
    }

    /// SIGHUP, as from `systemctl reload`.
    fn reload(&mut self, control: Option<&mut Control>) {
        if let Ok(since) = NotifyState::monotonic_usec_now() {
            self.notify(&[NotifyState::Reloading, since]);
        }
        let mut serving = self.serving();
        let mut reload = |outbox: &mut Outbox| serving.reload(reload::Request::Apply, outbox);
        let outcome = match control {
            Some(control) => control.publish(reload),
            None => reload(&mut Outbox::default()),
        };
        outcome.log();
        self.notify(&[NotifyState::Ready]);
    }

    /// What requests work on.
    fn serving(&mut self) -> Serving<'_> {
        let until = now().plus(self.patience());
        let Self { xfrm, database, following, tunnels, devices, happened, poller, .. } = self;
        let (reload, at_exit) = (&mut self.reload, &mut self.at_exit);
        let upgrade = &mut self.upgrade;
        Serving {
            xfrm,
            database,
            following,
            tunnels,
            devices,
            happened,
            reload,
            at_exit,
            upgrade,
            poller,
            until,
        }
    }

    /// Lets events and time limits take effect, and tells who listens.
    fn keep_time(&mut self, mut control: Option<&mut Control>) {
        let Self { database, following, xfrm, keepalives, planner, devices, happened, .. } = self;
        let events = self.events.try_iter().chain(happened.drain(..)).collect();
        let mut round = Round { database, following, xfrm, keepalives, planner, devices };
        let news = round.keep_time(events);
        let unread = control.as_deref_mut().is_some_and(Control::take_freed);
        if round.database.take_freed() || unread {
            release_free();
        }
        if let Some(control) = control {
            control.publish(|outbox| round.tell(&news, outbox));
        }
        if round.settle() == Waiting::Served {
            self.lanes.iter().for_each(Running::nudge);
        }
        self.keeping.look_after(&self.database, self.reload.written());
    }

    /// All drops: the lanes', devices', and the kernel's on behalf of the guard.
    fn counts(&mut self) -> DropCounts {
        let mut counts = self.counts_but_devices();
        self.devices.add_to(&mut counts);
        counts
    }

    /// The same without what devices dropped themselves.
    fn counts_but_devices(&mut self) -> DropCounts {
        let mut counts =
            DropCounts::sum(self.drops.iter().chain(self.devices.drops()).map(Arc::as_ref));
        self.following.add_to(&mut counts);
        counts
    }

    fn patience(&self) -> Duration {
        let of_limits = self.database.poll_timeout().map(|(deadline, _)| deadline);
        let next = of_limits.into_iter().chain(self.xfrm.poll_timeout()).min();
        next.map_or(TICK, |next| next.since(now()).min(TICK))
    }

    /// The orderly end. One that opens: routes first, so that nothing is brought to lanes that are
    /// gone; the guard last. Else both stay.
    fn stop(mut self) -> anyhow::Result<()> {
        // The TUN goes with its last descriptor.
        self.descriptors.close();
        let (guard, keep_out, store) = match self.at_exit {
            AtExit::Open => self.following.close_routes()?,
            AtExit::Block => (None, None, self.following.leave_routes()),
        };
        self.lanes.into_iter().chain(self.guidance).try_for_each(Running::stop)?;
        self.devices.stop()?;
        self.tunnels.stop()?;
        self.keeping.end(&self.database, self.reload.written(), self.at_exit);
        if self.at_exit == AtExit::Block {
            tracing::info!(
                "what is protected stays refused until the next start; `uxfrm clean` opens it"
            );
        }
        guard.map_or(Ok(()), |guard| guard.close())?;
        keep_out.map_or(Ok(()), KeepOut::take_down)?;
        let mut database = self.database;
        close_store(&mut database, store).context("can't write down used sequence numbers")
    }

    /// The end by a fault. Routes stay: beneath those to the TUN lie unreachable ones, and nothing leaves plain. The guard
    /// stays: nothing comes in plain.
    fn fail(mut self, error: anyhow::Error) -> anyhow::Error {
        self.descriptors.close();
        let error = match self.lanes.into_iter().chain(self.guidance).try_for_each(Running::stop) {
            Ok(()) => error,
            Err(cause) => anyhow::Error::new(cause).context(error),
        };
        error.context(STAYS)
    }
}

fn listen_for_snapshots() -> Option<Uevents> {
    let opened = Uevents::open();
    let told = opened.inspect_err(|error| {
        tracing::debug!(%error, "the kernel's word that a virtual machine was restored is not heard");
    });
    told.ok()
}

/// Lets workers see what was read, once the numbers that its states may use are written down.
pub(crate) fn reserve(database: &mut Database, store: &mut SequenceStore) -> anyhow::Result<()> {
    let Changes { added, .. } = database.take_changes();
    added.iter().for_each(|sa| store.admit(sa, now()));
    store.commit().map_err(|error| anyhow::anyhow!(store.unwritten(&error)))?;
    database.share_numbers();
    database.publish();
    Ok(())
}

/// Writes down the very numbers that were used, by devices as well, now that all are at rest.
pub(crate) fn close_store(database: &mut Database, store: SequenceStore) -> std::io::Result<()> {
    database.update_all_counts();
    store.close(&database.snapshot().sad)
}

/// The TUN, up, and its index.
fn open_tun(config: &Config, descriptors: &mut DescriptorStore) -> anyhow::Result<(Tun, u32)> {
    let are_several = config.runtime.workers.count().get() > 1;
    let queues = if are_several { Queues::Several } else { Queues::Single };
    let name = &config.host.tun;
    let is_there = if_nametoindex(name.as_str()).is_ok();
    let why = if is_there {
        ", as there is an interface of that name, no TUN or in use"
    } else {
        " (needs CAP_NET_ADMIN and /dev/net/tun)"
    };
    let options = TunOptions { queues, ..TunOptions::new(name.as_str()) };
    let tun = match descriptors.take(&lanes::tun_queue(0)) {
        Some(queue) => Tun::of_queue(queue, &options, Place::First),
        None => Tun::open(&options),
    };
    let tun = tun.with_context(|| format!("can't open the TUN {name}{why}"))?;
    let index = bring_up(&tun, config.host.mtu.bytes())?;
    Ok((tun, index))
}

/// Gives the TUN its MTU and brings it up, without addresses of its own making. Its index.
pub(crate) fn bring_up(tun: &Tun, mtu: u16) -> anyhow::Result<u32> {
    let mut rtnetlink = Rtnetlink::open()?;
    let link = rtnetlink.link(tun.name())?;
    // A link-local address would make the kernel send neighbour and router solicitations into the tunnel.
    // Where the host has switched IPv6 off, what is tunnelled over IPv4 may be IPv6 all the same.
    for (setting, value) in [("addr_gen_mode", "1"), ("disable_ipv6", "0")] {
        let setting = format!("net/ipv6/conf/{}/{setting}", tun.name());
        if let Err(error) = uxfrm_io::netns::set_sysctl(&setting, value) {
            tracing::debug!(%error, "the kernel has no IPv6 on the TUN");
        }
    }
    rtnetlink.set_mtu(link.index, u32::from(mtu))?;
    rtnetlink.set_queue_length(link.index, QUEUE)?;
    rtnetlink.set_up(link.index)?;
    Ok(link.index)
}

/// All faults as one error, a line each.
fn joined(faults: Vec<load::Error>) -> anyhow::Error {
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    anyhow::anyhow!(lines.join("\n"))
}
