//! The running gateway: databases, workers, routes and sockets brought up, kept, and taken down, in
//! the order that `resources.rs` has.

pub mod boot;
mod event_loop;
pub(crate) mod housekeeping;
pub(crate) mod requests;
mod resources;
mod startup;
mod takeover;

use std::{
    path::Path,
    sync::{Arc, mpsc::Receiver},
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sys::{prctl, signal::Signal},
    unistd::{AccessFlags, Pid, access},
};
use uxfrm_engine::{Database, Drops, Event, Settings, SharedCacheStats};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_io::{
    icmp_errors::IcmpErrors, nftables::TableWatch, poll::Poller, rtnetlink::RtnlMonitor,
    secret_memory, signal::Signals, uevents::Uevents,
};
use uxfrm_runtime::{SharedWorkerFigures, WorkerThread};
use uxfrm_status::drops::DropStatus;

use self::startup::{GatewayParts, control, open_store, take_up, xfrm};
use crate::reconcile::databases::{read, reserve, state_directory};
use crate::{
    batch::provenance::FileOwned,
    check::{self, HostSettings},
    config::{AtExit, Config},
    control::{XfrmServer, wake_clients},
    descriptor_store::DescriptorStore,
    devices::{DeviceCreation, Devices},
    fallback_socket,
    firewall::{Firewall, host_bypass::HostBypass},
    ports::{
        keepalive::Keepalives,
        next_hops::RequestedDestinations,
        workers::{DropFeed, PreparedWorkers},
    },
    reconcile::{
        Reconciler,
        fail_closed::{self, saver::PolicySaver},
        rebuild::PolicyRebuild,
        sequences::{self},
    },
    reload::{self, Reload},
    routes::{self, HostRoutes, PreviousGateway},
    sandbox,
    status::{board::ExpiredStates, socket::StatusSocket},
    tunnels::{TunnelService, TunnelSpec},
    upgrade::{self, Supervisor, Upgrade},
};

/// How a gateway says on standard error that it is ready, whatever level the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadyLine {
    /// `uxfrm: ready`, for whoever waits for it.
    #[default]
    Text,
    /// An event of [`READY_TARGET`], as a log of JSON has nothing but objects.
    Event,
}

/// The target of [`ReadyLine::Event`]: a filter that lets it pass at any level names it.
pub const READY_TARGET: &str = "uxfrm_ready";

/// Runs the gateway of a configuration file in the foreground until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps it from starting, everything else that ends it.
pub fn run(path: &Path) -> anyhow::Result<()> {
    secret_memory::forbid().context("can't keep keys out of core dumps")?;
    lock_memory();
    let signals = Signals::block()?;
    run_with(path, &signals, None, ReadyLine::Text)
}

/// The same as the process that a supervisor has started at its standard input: it may take
/// another's place, and another its own.
///
/// # Errors
/// As [`run`]; without a supervisor there.
pub fn run_under_supervisor(path: &Path, supervisor: u32, ready: ReadyLine) -> anyhow::Result<()> {
    end_with_supervisor(supervisor)?;
    secret_memory::forbid().context("can't keep keys out of core dumps")?;
    lock_memory();
    let signals = Signals::block()?;
    let (supervisor, before) =
        Supervisor::at_standard_input().context("no supervisor is at standard input")?;
    match before {
        None => run_with(path, &signals, Some(supervisor), ready),
        Some(before) => takeover::take_over(path, &signals, (supervisor, before), ready),
    }
}

/// However the supervisor ends, this process does: who kills `uxfrm run` kills the gateway.
fn end_with_supervisor(supervisor: u32) -> anyhow::Result<()> {
    prctl::set_name(upgrade::GATEWAY)?;
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let parent = u32::try_from(Pid::parent().as_raw()).ok();
    anyhow::ensure!(parent == Some(supervisor), "the supervisor has ended");
    Ok(())
}

fn run_with(
    path: &Path,
    signals: &Signals,
    supervisor: Option<Supervisor>,
    ready: ReadyLine,
) -> anyhow::Result<()> {
    let config = Config::load(path)?;
    sandbox::begin(&config);
    if let Some(supervisor) = &supervisor {
        supervisor.declare_written(&sandbox::written(path, &config))?;
    }
    let mut socket =
        StatusSocket::open().context("another uxfrm runs in this network namespace")?;
    // Before files are out of reach.
    let subordinates = SubordinateUsers::read();
    let _directory = fallback_socket::hold();
    let group = config.status.group.as_ref().map(|group| group.number());
    socket.admit(group).context("can't let [status] group ask")?;
    let poller = Poller::new()?;
    let mut descriptors = DescriptorStore::default();
    // Its lock is held until the last number is written down.
    let mut store = open_store(&config, poller.waker(), &mut descriptors)?;
    let (mut database, devices) = read(&config, DeviceCreation::Real, Some(&store))?;
    let plan = TunnelSpec::read(&config)?;
    let control = control(&config)?;
    let reload = Reload::new(path, config.clone(), FileOwned::all(&database), plan);
    let said = database.snapshot();
    take_up(&config, &mut database)?;
    reserve(&mut database, &mut store)?;
    let mut xfrm = xfrm(&config)?;
    xfrm.miss(store.lost());
    let destinations = Vec::new();
    let parts =
        GatewayParts { poller, database, store, devices, reload, descriptors, xfrm, destinations };
    let mut gateway = Gateway::open(&config, parts, PreviousGateway::Gone)?;
    gateway.start(&config, PreviousGateway::Gone)?;
    // Paths to peers are known by now.
    reload::warn_of(&config, &said, &gateway.reconciler);
    drop(said);
    gateway.upgrade = Upgrade::under(supervisor);
    gateway.ready = ready;
    socket.keep_in(&mut gateway.descriptors)?;
    if control.is_some() {
        wake_clients::wake_waiting();
    }
    let _confined = sandbox::close(path, &config);
    let status = gateway.answer_status(path, &config, &socket, subordinates)?;
    gateway.run_until_stopped(signals, status, control)
}

/// Keys are in requests, databases and stacks as well as in boxes: all memory is locked
/// (`docs/decisions/0003-locked-memory.md`).
fn lock_memory() {
    match secret_memory::lock_memory() {
        Ok(hold) => tracing::debug!(?hold, "all memory is kept out of swap"),
        Err(error) => tracing::warn!(
            %error,
            "keys may be written to swap: memory is not locked, which needs LimitMEMLOCK=infinity (systemd), \
             `ulimit -l unlimited` or CAP_IPC_LOCK"
        ),
    }
}

/// Reads a configuration and its batch files as [`run`] does, and does nothing. How packets would
/// find their way into the TUN, line by line, and what will not work though each line is right.
///
/// # Errors
/// All that is wrong with them.
pub fn check(path: &Path) -> anyhow::Result<Vec<String>> {
    let config = Config::load(path)?;
    let store = inspect_store(&config).err();
    let (tun, mark) = (config.host.tun.as_str(), config.wire.mark.get());
    let ways = read(&config, DeviceCreation::DryRun, None).map(|(database, ..)| {
        let snapshot = database.snapshot();
        let ways = routes::describe(&snapshot.spd, tun, mark);
        let host = HostSettings::read(&config, &snapshot);
        ways.into_iter().chain(check::findings(&snapshot, &host)).collect()
    });
    let (ways, fault) = ways.map_or_else(|fault| (Vec::new(), Some(fault)), |ways| (ways, None));
    let held = fail_closed::describe(state_directory(&config)?, config.host.at_start);
    let faults = store.into_iter().chain(fault).chain(TunnelSpec::read(&config).err());
    let faults: Vec<_> = faults.map(|fault| format!("{fault:#}")).collect();
    anyhow::ensure!(faults.is_empty(), faults.join("\n"));
    Ok(ways.into_iter().chain(held).chain(sandbox::inspect(&config)?).collect())
}

/// Removes what a gateway that has ended left in this network namespace, so that nothing is
/// protected or blocked any more. With a configuration its next start knows nothing of what
/// programs' policies protected.
///
/// # Errors
/// While a gateway runs; the kernel's.
pub fn clean(path: Option<&Path>) -> anyhow::Result<()> {
    let config = path.map(Config::load).transpose()?;
    let _alone =
        StatusSocket::open().context("uxfrm runs in this network namespace: stop it first")?;
    if let Some(config) = &config {
        fail_closed::forget(state_directory(config)?)
            .context("can't remove what the last run's policies protected")?;
    }
    HostRoutes::clean().context("can't remove what refuses protected destinations")?;
    Firewall::clean().context("can't take down the guard")?;
    HostBypass::sweep();
    Ok(())
}

/// Looks at the store of sequence numbers without touching it.
fn inspect_store(config: &Config) -> anyhow::Result<()> {
    let path = state_directory(config)?;
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

struct Gateway {
    database: Database,
    reconciler: Reconciler,
    /// Those that are open and not started.
    prepared: PreparedWorkers,
    workers: Vec<WorkerThread>,
    /// Who tells workers their ways past the host's stack.
    resolver: Option<WorkerThread>,
    /// The destinations that workers ask for.
    requested: RequestedDestinations,
    tunnels: TunnelService,
    drops: Vec<Arc<Drops>>,
    /// What workers tell of the packets that they drop.
    feeds: Vec<DropFeed>,
    /// Records of dropped packets that the process had whose place this one took.
    earlier_drops: Vec<DropStatus>,
    caches: Vec<Arc<SharedCacheStats>>,
    /// What workers do.
    figures: Vec<Arc<SharedWorkerFigures>>,
    /// Of the first worker.
    settings: Settings,
    events: Receiver<Event>,
    poller: Poller,
    /// Word of links and addresses.
    network: RtnlMonitor,
    icmp_errors: IcmpErrors,
    /// Word of tables of the packet filter that go, where others may take ours.
    filter: Option<TableWatch>,
    /// Word that the machine goes on from a snapshot, where the kernel tells.
    uevents: Option<Uevents>,
    keepalives: Keepalives,
    policy_rebuild: PolicyRebuild,
    policy_saver: PolicySaver,
    xfrm: XfrmServer,
    devices: Devices,
    /// What key managers are to hear of what clients did to devices.
    device_events: Vec<Event>,
    /// States that passed their hard limit lately.
    expired: ExpiredStates,
    at_exit: AtExit,
    reload: Reload,
    upgrade: Upgrade,
    /// What another process will go on with.
    descriptors: DescriptorStore,
    ready: ReadyLine,
}
