//! The process that hands over. It runs on unchanged whatever happens to the successor, until the
//! supervisor decides for the successor and ends this process.

use std::{
    net::IpAddr,
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use uxfrm_control_client::upgrade::{UpgradeAnswer, UpgradeRequest};
use uxfrm_engine::{
    Action, Database, DefaultActions, DropCounts, DropReason, Event, Moment, PolicyCursor,
    PolicyEntry, Sa,
};
use uxfrm_io::fd_channel::FdChannel;
use uxfrm_netlink::{NetlinkDatagram, Server};
use uxfrm_runtime::{PausedWorker, WorkerThread};
use uxfrm_status::drops::DropStatus;
use zeroize::Zeroizing;

use super::{
    Supervisor,
    channel::Order,
    manifest::{
        self, CONTROL, CONTROL_RESERVED, DEVICES, Finals, Hello, Manifest, Readiness,
        SessionHandover, TUNNELS, TablesConfig, VERSION, WAITING,
    },
    queued_packets::QueuedPackets,
    sa_progress::{SaProgress, SoftLimit},
};
use crate::{
    batch::provenance::FileOwned,
    clock::now,
    config::Config,
    control::Control,
    descriptor_store::{Copies, DescriptorStore},
    devices::{self, Devices},
    protocol::ClientId,
    tunnels::{self, TunnelService, TunnelSpec},
};

/// A successor that has not asked for anything by then is given up.
const FIRST_WORD: Duration = Duration::from_secs(60);
/// Between two steps of the hand-over while the workers run. The control socket rests meanwhile,
/// and nothing is reserved, which was done for longer (`sequences/adopt.rs`).
const STEP: Duration = Duration::from_secs(10);
/// While the workers rest: for a successor that hangs. A slow machine takes its time, and one that
/// has ended closes the link.
const REST: Duration = Duration::from_secs(30);
const REST_OF_A_STATE: Duration = Duration::from_micros(50);

/// What a process said that has ended is there already.
const LAST_WORD: Duration = Duration::from_millis(100);
/// Bytes of messages in a parcel: no message is as long.
const PARCEL: usize = 16 * 1024;

/// Why a gateway can't be upgraded without loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    /// Nobody could start another process.
    NoSupervisor,
    /// A policy that blocks in place of one that a device had, which messages do not tell from
    /// others.
    StandIn,
}

impl Obstacle {
    const fn text(self) -> &'static str {
        match self {
            Self::NoSupervisor => "this gateway was not started by `uxfrm run`",
            Self::StandIn => {
                "a policy blocks in place of one on a device that went down, until that one is added again: add it before, or"
            }
        }
    }
}

/// Upgrades, of which there is one at a time.
#[derive(Debug, Default)]
pub(crate) struct Upgrade {
    supervisor: Option<Supervisor>,
    under_way: Option<OngoingUpgrade>,
}

#[derive(Debug)]
struct OngoingUpgrade {
    client: ClientId,
    /// To the successor, once it was started.
    link: Option<FdChannel>,
    until: Moment,
    /// Why it has come to nothing. The client is told when the successor has ended.
    failed: Option<String>,
}

/// The parts of a gateway that are handed over.
pub(crate) struct HandoverSource<'a> {
    pub(crate) config: &'a Config,
    pub(crate) database: &'a mut Database,
    pub(crate) server: &'a Server,
    pub(crate) control: &'a Control,
    pub(crate) descriptors: &'a mut DescriptorStore,
    pub(crate) written: &'a FileOwned,
    pub(crate) tunnels: &'a mut TunnelService,
    pub(crate) devices: &'a mut Devices,
    /// What files say of them.
    pub(crate) plan: &'a TunnelSpec,
    pub(crate) drops: DropCounts,
    /// The last records of dropped packets.
    pub(crate) drop_records: Vec<DropStatus>,
    /// The highest rate at which a state receives, in numbers a second.
    pub(crate) fastest: u64,
    /// Those that workers ask for.
    pub(crate) destinations: Vec<IpAddr>,
    pub(crate) workers: &'a mut Vec<WorkerThread>,
    /// Who tells workers their ways, and has devices gather frames.
    pub(crate) resolver: &'a mut Option<WorkerThread>,
    pub(crate) events: &'a Receiver<Event>,
    /// Events that are to be told.
    pub(crate) device_events: &'a mut Vec<Event>,
}

impl Upgrade {
    pub(crate) fn under(supervisor: Option<Supervisor>) -> Self {
        Self { supervisor, under_way: None }
    }

    pub(crate) fn supervisor(&self) -> Option<&Supervisor> {
        self.supervisor.as_ref()
    }

    /// To the successor, while it has yet to ask.
    pub(crate) fn link(&self) -> Option<&FdChannel> {
        self.under_way.as_ref()?.link.as_ref()
    }

    /// A client asks for an upgrade, which is answered when it is done. An answer at once says why
    /// there is none.
    pub(crate) fn ask(
        &mut self,
        client: ClientId,
        request: &[u8],
        obstacles: impl IntoIterator<Item = Obstacle>,
    ) -> Option<UpgradeAnswer> {
        self.try_ask(client, request, obstacles)
            .err()
            .map(|why| UpgradeAnswer::Failed(format!("{why:#}")))
    }

    fn try_ask(
        &mut self,
        client: ClientId,
        request: &[u8],
        obstacles: impl IntoIterator<Item = Obstacle>,
    ) -> anyhow::Result<()> {
        let UpgradeRequest { binary } =
            serde_json::from_slice(request).context("that is no request")?;
        ensure!(self.under_way.is_none(), "an upgrade is under way");
        let supervisor = self.supervisor.as_ref();
        let none = supervisor.is_none().then_some(Obstacle::NoSupervisor);
        if let Some(obstacle) = obstacles.into_iter().chain(none).min() {
            bail!("{}: restart it instead", obstacle.text());
        }
        let supervisor = supervisor.context(Obstacle::NoSupervisor.text())?;
        let binary = binary.map_or_else(own_program, Ok)?;
        ensure!(binary.is_absolute(), "{} is no absolute path", binary.display());
        supervisor.start(&binary)?;
        tracing::info!(binary = %binary.display(), "another process is to take over");
        self.under_way = Some(OngoingUpgrade::begun_by(client));
        Ok(())
    }

    /// Takes in what the supervisor says: where the link to the successor is to be waited at, if
    /// anywhere now. Who asked, and why there is no successor.
    pub(crate) fn hear_supervisor(&mut self) -> anyhow::Result<Option<(ClientId, UpgradeAnswer)>> {
        let Some(supervisor) = &self.supervisor else { return Ok(None) };
        match supervisor.next()?.context("the supervisor has ended")? {
            Order::HandOver(link) => {
                if let Some(under_way) = &mut self.under_way {
                    under_way.link = Some(link);
                }
                Ok(None)
            }
            Order::Failed(why) => Ok(self.end(why)),
            Order::Ended => {
                let why = self.link().and_then(last_word);
                let why = why.unwrap_or_else(|| "the other process has ended".to_owned());
                Ok(self.end(format!("{why}: the gateway runs on as it was")))
            }
            Order::Begin | Order::TakeOver(_) | Order::GoOn => Ok(None),
        }
    }

    /// Gives up a successor that says nothing.
    pub(crate) fn look(&mut self) {
        let late =
            |under_way: &OngoingUpgrade| under_way.failed.is_none() && now() >= under_way.until;
        if self.under_way.as_ref().is_some_and(late) {
            self.give_up(format!(
                "the other process has said nothing for {} s",
                FIRST_WORD.as_secs()
            ));
        }
    }

    /// Has the successor ended. Nobody is told before it has: there is one upgrade at a time.
    fn give_up(&mut self, why: String) {
        let Some(under_way) = &mut self.under_way else { return };
        under_way.link = None;
        under_way.failed.get_or_insert(why);
        // Without a supervisor there is no successor either.
        let _gone = self.supervisor.iter().try_for_each(Supervisor::abandon);
    }

    /// There is no successor any more: whom to tell, and why.
    fn end(&mut self, why: String) -> Option<(ClientId, UpgradeAnswer)> {
        let OngoingUpgrade { client, failed, .. } = self.under_way.take()?;
        let why = failed.unwrap_or(why);
        tracing::error!(why, "no upgrade: the gateway runs on");
        Some((client, UpgradeAnswer::Failed(why)))
    }

    /// Hands over to the successor, which has said its first word. When this returns it has come to
    /// nothing: the workers run as before, and where the successor has ended there is somebody to
    /// be told why.
    ///
    /// # Errors
    /// When workers that came to rest can't go on.
    pub(crate) fn hand_over(
        &mut self,
        mut source: HandoverSource<'_>,
    ) -> anyhow::Result<Option<(ClientId, UpgradeAnswer)>> {
        let Some(OngoingUpgrade { client, link: Some(link), .. }) = &self.under_way else {
            return Ok(None);
        };
        let prepared = match prepare(*client, link, &mut source) {
            Ok(prepared) => prepared,
            Err(why) => {
                self.give_up(format!("{why:#}: the gateway runs on as it was"));
                return Ok(None);
            }
        };
        let resolver = source.resolver.take().map(WorkerThread::pause).transpose()?.flatten();
        let rested = now();
        let mut paused = halt(source.workers)?;
        link.set_timeout(REST)?;
        let told = pause_carriers(&mut source, &mut paused)
            .inspect(|()| paused.iter_mut().for_each(PausedWorker::save_state))
            .and_then(|()| finish(link, &mut source, &prepared, &paused, rested));
        let supervisor = self.supervisor.as_ref().context(Obstacle::NoSupervisor.text())?;
        // One that was not told all is not waited for.
        let states = u32::try_from(prepared.states.len()).unwrap_or(u32::MAX);
        let patience = told.as_ref().map_or(Duration::ZERO, |()| REST + REST_OF_A_STATE * states);
        supervisor.await_end(patience).context("the supervisor has ended")?;
        source.devices.resume()?;
        *source.workers = paused.into_iter().map(PausedWorker::resume).collect::<Result<_, _>>()?;
        *source.resolver = resolver.map(PausedWorker::resume).transpose()?;
        source.tunnels.resume()?;
        let why = told.err().map_or_else(
            || "the other process did not take over".to_owned(),
            |error| format!("{error:#}"),
        );
        Ok(self.end(format!("{why}: the gateway runs on as it was")))
    }
}

impl OngoingUpgrade {
    fn begun_by(client: ClientId) -> Self {
        Self { client, link: None, until: now().plus(FIRST_WORD), failed: None }
    }
}

/// Why a successor that has ended could not take over, where it said so: its end may be heard of
/// first.
fn last_word(link: &FdChannel) -> Option<String> {
    link.set_timeout(LAST_WORD).ok()?;
    let hello: Hello = manifest::receive(link).ok()?;
    Some(hello.suits(std::iter::empty()).err()?.to_string())
}

fn own_program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("it is not known where this program is")?;
    // What stands there now, where the file was replaced (`/usr/bin/uxfrm (deleted)`).
    let name = own.to_string_lossy();
    Ok(name.strip_suffix(" (deleted)").map_or_else(|| own.clone(), PathBuf::from))
}

/// Both ends must have the same.
pub(super) fn place(config: &Config) -> TablesConfig {
    TablesConfig {
        tun: config.host.tun.to_string(),
        table: config.wire.table.number(),
        mark: config.wire.mark.get(),
        sequences: config.xfrm.sequences.clone(),
        is_controlled: config.control.enabled,
        devices: devices(config),
    }
}

/// The network devices that are read past the host's stack, and by what.
fn devices(config: &Config) -> Vec<String> {
    let of_inline = config.inline.iter().flat_map(|inline| {
        let both = [(inline.protected(), inline.protected_by()), (inline.wire(), inline.wire_by())];
        both.map(|(name, by)| format!("{name} {by:?}"))
    });
    of_inline.chain(config.wire.af_xdp.iter().map(ToString::to_string)).collect()
}

type States = [(Arc<Sa>, NetlinkDatagram)];

/// States as the successor was told of them.
struct Prepared {
    states: Vec<(Arc<Sa>, NetlinkDatagram)>,
    carried: Vec<SaProgress>,
    /// Whether it takes packets that wait for states.
    takes_waiting: bool,
}

/// Tells the successor all that it can be told while the workers run. When this returns it is
/// ready.
fn prepare(
    client: ClientId,
    link: &FdChannel,
    source: &mut HandoverSource<'_>,
) -> anyhow::Result<Prepared> {
    link.set_timeout(STEP)?;
    let hello: Hello = manifest::receive(link)?;
    source.descriptors.keep(CONTROL, source.control.listener())?;
    if let Some(reserved) = source.control.reserved_listener() {
        source.descriptors.keep(CONTROL_RESERVED, reserved)?;
    }
    let beside = Beside { tunnels: source.tunnels.portray()?, devices: source.devices.portray()? };
    let there = [(beside.tunnels.is_some(), TUNNELS), (beside.devices.is_some(), DEVICES)];
    hello.suits(there.into_iter().filter_map(|(is_there, what)| is_there.then_some(what)))?;
    let states = source.server.export_states(source.database);
    let carried = carry(&states);
    let told = answer_all(client, link, source, beside, (&states, &carried));
    // One that has refused has ended perhaps before it was told all.
    match manifest::receive(link) {
        Ok(Readiness::Ready) => {
            told.map(|()| Prepared { states, carried, takes_waiting: hello.takes(WAITING) })
        }
        Ok(Readiness::Refused(why)) => bail!("the other process can't take over: {why}"),
        Err(error) => told.and(Err(error)),
    }
}

/// What carries packets beside the workers, with copies of its descriptors.
struct Beside {
    tunnels: Option<(tunnels::TunnelsHandover, Copies)>,
    devices: Option<(devices::DevicesHandover, Copies)>,
}

/// What is beside the workers rests as they do. What was on its way between workers and devices has
/// left, or is with the host.
fn pause_carriers(
    source: &mut HandoverSource<'_>,
    paused: &mut [PausedWorker],
) -> anyhow::Result<()> {
    source.tunnels.rest()?;
    source.devices.rest()?;
    devices::drain(source.devices, paused);
    Ok(())
}

/// What is, while the workers run on: descriptors, clients, states and policies.
fn answer_all(
    client: ClientId,
    link: &FdChannel,
    source: &HandoverSource<'_>,
    Beside { tunnels, devices }: Beside,
    (states, carried): (&States, &[SaProgress]),
) -> anyhow::Result<()> {
    let HandoverSource { config, database, server, control, descriptors, written, .. } = source;
    let ((tunnels, of_tunnels), (devices, of_devices)) = (tunnels.unzip(), devices.unzip());
    let copies: Vec<_> = [of_tunnels, of_devices].into_iter().flatten().flatten().collect();
    let sessions: Vec<_> = control.sessions().collect();
    let named = descriptors.kept().map(|(name, fd)| (name.to_owned(), fd));
    let sockets = sessions.iter().enumerate();
    let sockets = sockets.filter_map(|(n, session)| Some((client_name(n), session.as_ref()?.0)));
    let copies = copies.iter().map(|(name, fd)| (name.clone(), fd.as_fd()));
    let (names, fds): (Vec<_>, Vec<_>) = named.chain(sockets).chain(copies).unzip();
    let dropped = DropReason::ALL.iter();
    let dropped = dropped.map(|why| (why.as_str().to_owned(), source.drops.of(*why)));
    let whole = Manifest {
        version: VERSION,
        descriptors: names,
        clients: sessions
            .iter()
            .map(|session| Some(SessionHandover::from(session.as_ref()?.1)))
            .collect(),
        asked_by: client.0,
        states: carried.to_vec(),
        states_of_files: places(states.iter().map(|(sa, _)| written.has_state(sa))),
        policies_of_files: places(policies(database).map(|entry| written.has_policy(entry))),
        blocks_of_files: blocks(written.defaults()),
        drops: dropped.collect(),
        drop_records: source.drop_records.clone(),
        workers: config.runtime.workers.count().get(),
        fastest: source.fastest,
        destinations: source.destinations.clone(),
        place: place(config),
        tunnels,
        tunnels_of_files: Some(source.plan.portray()),
        devices,
    };
    link.send(&serde_json::to_vec(&whole)?, &fds).context("the other process went away")?;
    let others = server.export_others(database);
    send_messages(link, states.iter().map(|(_, datagram)| datagram).chain(&others))
}

/// Tells how far states are now that the workers rest. The successor's are about to run.
fn finish(
    link: &FdChannel,
    source: &mut HandoverSource<'_>,
    Prepared { states, carried, takes_waiting }: &Prepared,
    paused: &[PausedWorker],
    rested: Moment,
) -> anyhow::Result<()> {
    source.database.update_all_counts();
    source.device_events.extend(source.events.try_iter());
    let states = finals(states, carried, source.device_events);
    let (waiting, bytes) = match takes_waiting {
        true => QueuedPackets::of(paused),
        false => Default::default(),
    };
    let (tunnels, devices) = (source.tunnels.finals(), source.devices.finals());
    manifest::send(link, &Finals { states, rested: rested.0, tunnels, devices, waiting })?;
    if bytes.is_empty() {
        return Ok(());
    }
    link.send(&bytes, &[]).context("the other process went away")
}

/// How far states are that carry packets.
pub(super) fn carry(states: &States) -> Vec<SaProgress> {
    states.iter().map(|(sa, _)| SaProgress::of(sa, SoftLimit::Settled)).collect()
}

/// How far those are, by their places, that have carried packets since. Of what happened nobody has
/// heard yet.
pub(super) fn finals(
    states: &States,
    carried: &[SaProgress],
    device_events: &[Event],
) -> Vec<(usize, SaProgress)> {
    // A soft limit that was passed is this process's to tell, if it runs on.
    let untold = |sa: &Sa| {
        let is_of = |event: &Event| matches!(event, Event::SaSoftLimit(id) if *id == sa.id());
        device_events.iter().any(is_of)
    };
    let both = states.iter().zip(carried).enumerate();
    let finals = both.filter_map(|(place, ((sa, _), then))| {
        let limit = if untold(sa) { SoftLimit::Untold } else { SoftLimit::Settled };
        let now = SaProgress::of(sa, limit);
        (now != *then).then_some((place, now))
    });
    finals.collect()
}

/// Several in a parcel, none in two; an empty one is the last. The keys in them are wiped.
fn send_messages<'a>(
    link: &FdChannel,
    messages: impl Iterator<Item = &'a NetlinkDatagram>,
) -> anyhow::Result<()> {
    let mut parcel = Zeroizing::new(Vec::with_capacity(2 * PARCEL));
    let send = |parcel: &mut Vec<u8>| {
        let sent = link.send(parcel, &[]).context("the other process went away");
        parcel.clear();
        sent
    };
    for message in messages {
        parcel.extend_from_slice(message.bytes());
        if parcel.len() >= PARCEL {
            send(&mut parcel)?;
        }
    }
    if !parcel.is_empty() {
        send(&mut parcel)?;
    }
    send(&mut parcel)
}

/// Policies in the order of their messages.
pub(super) fn policies(database: &Database) -> impl Iterator<Item = &Arc<PolicyEntry>> {
    let all = database.policies_from(PolicyCursor::default());
    let mut all: Vec<_> = all.map(|(_, entry)| entry).collect();
    all.sort_by_key(|entry| entry.precedence().insertion_seq());
    all.into_iter()
}

fn blocks(defaults: DefaultActions) -> [bool; 3] {
    let DefaultActions { inbound, forward, outbound } = defaults;
    [inbound, forward, outbound].map(|action| action == Action::Block)
}

pub(super) fn places(are: impl Iterator<Item = bool>) -> Vec<usize> {
    are.enumerate().filter(|(_, is_one)| *is_one).map(|(place, _)| place).collect()
}

/// What a client's connection is called among the descriptors.
pub(super) fn client_name(place: usize) -> String {
    format!("client {place}")
}

/// Lets all workers finish their batches; their packets wait in the kernel's queues from now on.
fn halt(workers: &mut Vec<WorkerThread>) -> anyhow::Result<Vec<PausedWorker>> {
    let paused = workers.drain(..).map(WorkerThread::pause).collect::<Result<Vec<_>, _>>()?;
    Ok(paused.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a successor that has ended, when it said this.
    fn told(hello: Option<&serde_json::Value>) -> Option<String> {
        let (here, there) = FdChannel::pair().unwrap();
        if let Some(hello) = hello {
            manifest::send(&there, hello).unwrap();
        }
        drop(there);
        last_word(&here)
    }

    #[test]
    fn link_while_workers_rest_waits_for_slow_successor_and_not_for_ended_one() {
        let (here, there) = FdChannel::pair().unwrap();
        here.set_timeout(REST).unwrap();
        let slow = std::thread::spawn(move || {
            // Longer than once was enough.
            std::thread::sleep(Duration::from_millis(2500));
            there.receive().unwrap().unwrap().bytes.len()
        });
        // More than the socket has room for, so that it waits.
        let finals = vec![0; 4 << 20];
        here.send(&finals, &[]).unwrap();
        assert_eq!(slow.join().unwrap(), finals.len());
        // Its end went with the thread.
        assert!(here.send(&finals, &[]).is_err());
    }

    #[test]
    fn last_word_of_ended_successor_is_reported() {
        let hello = |refused: Option<&str>| serde_json::json!({ "version": VERSION, "release": "1.0", "refused": refused });
        let why = told(Some(&hello(Some("config.toml: no such key"))));
        assert_eq!(
            why.as_deref(),
            Some("the other process can't take over: config.toml: no such key")
        );
        assert_eq!(told(Some(&hello(None))), None, "it ended later, by whatever");
        assert_eq!(told(Some(&serde_json::json!({ "nothing": "known" }))), None);
        assert_eq!(told(None), None);
    }
}
