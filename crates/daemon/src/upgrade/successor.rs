//! The process that takes over.

use std::{fmt::Display, net::IpAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use uxfrm_control_client::upgrade::UpgradeAnswer;
use uxfrm_engine::{
    Action, Database, DefaultActions, DropReason, Drops, Moment, Sa, WaitingPacket,
};
use uxfrm_io::fd_channel::FdChannel;
use uxfrm_netlink::{NetlinkMessages, RestoredItem};
use uxfrm_status::drops::DropStatus;

use super::{
    RELEASE,
    manifest::{
        self, CONTROL, CONTROL_RESERVED, Finals, Hello, Manifest, Readiness, TAKES, VERSION,
        receive_with_descriptors,
    },
    predecessor::{client_name, place, policies},
    queued_packets::QueuedPackets,
    sa_progress::SaProgress,
};
use crate::{
    batch::provenance::FileOwned,
    clock::now,
    config::Config,
    control::{AccessTerms, Control, ListeningSockets, SavedSession, XfrmServer},
    descriptor_store::DescriptorStore,
    devices::{self, Devices},
    protocol::ClientId,
    reconcile::sequences::SequenceStore,
    tunnels::{TunnelService, TunnelSpec},
};

/// How long the predecessor may take for a step.
const STEP: Duration = Duration::from_secs(60);

/// What was taken over, and from whom.
#[derive(Debug)]
pub(crate) struct Successor {
    link: FdChannel,
    manifest: Manifest,
    /// The states in the order of the manifest.
    states: Vec<Arc<Sa>>,
}

impl Successor {
    /// Asks the predecessor, whose control socket rests from now on.
    ///
    /// # Errors
    /// When it does not answer, or the two do not suit.
    pub(crate) fn ask(link: FdChannel, config: &Config) -> anyhow::Result<(Self, DescriptorStore)> {
        link.set_timeout(STEP)?;
        manifest::send(&link, &hello(None))?;
        let (manifest, descriptors): (Manifest, Vec<OwnedFd>) = receive_with_descriptors(&link)?;
        ensure!(
            manifest.version == VERSION,
            "the other release hands over otherwise: restart it instead"
        );
        let names = manifest.descriptors.iter().cloned();
        let store = DescriptorStore::of(names.zip(descriptors));
        let successor = Self { link, manifest, states: Vec::new() };
        successor.compare(config).inspect_err(|why| successor.refuse(why))?;
        Ok((successor, store))
    }

    /// Says why it can't even ask.
    pub(crate) fn decline(link: &FdChannel, why: &impl Display) {
        let _gone = manifest::send(link, &hello(Some(why.to_string())));
    }

    /// Says why it can't take over.
    pub(crate) fn refuse(&self, why: &anyhow::Error) {
        let _gone = manifest::send(&self.link, &Readiness::Refused(format!("{why:#}")));
    }

    fn compare(&self, config: &Config) -> anyhow::Result<()> {
        let (theirs, ours) = (&self.manifest.place, place(config));
        ensure!(
            *theirs == ours,
            "the configuration has another TUN, table, mark, store of sequence numbers, control socket or network devices now"
        );
        let workers = config.runtime.workers.count().get();
        ensure!(self.manifest.workers == workers, "[runtime] workers is another number now");
        Ok(())
    }

    /// Puts the states and policies of the predecessor into fresh databases.
    ///
    /// # Errors
    /// What this release does not take of them.
    pub(crate) fn restore(
        &mut self,
        xfrm: &mut XfrmServer,
        database: &mut Database,
        devices: &Devices,
    ) -> anyhow::Result<()> {
        let mut carried = self.manifest.states.iter();
        loop {
            let parcel = self.link.receive().context("the other process does not go on")?;
            let parcel = parcel.context("the other process has ended")?;
            if parcel.bytes.is_empty() {
                break;
            }
            for message in messages(&parcel.bytes) {
                self.states.extend(restore(message, &mut carried, xfrm, database)?);
            }
        }
        ensure!(carried.next().is_none(), "a state less than was told");
        self.manifest.devices.iter().for_each(|passed| devices.restore_trust(passed));
        Ok(())
    }

    /// Has the store go on with what the journal says of the states.
    pub(crate) fn adopt(&self, store: &mut SequenceStore, database: &mut Database) {
        adopt(&self.states, &self.manifest.states, self.manifest.fastest, store, database);
    }

    /// What of it files made.
    pub(crate) fn written(&self, database: &Database) -> FileOwned {
        let [inbound, forward, outbound] = self.manifest.blocks_of_files.map(action);
        let defaults = DefaultActions { inbound, forward, outbound };
        let (states, policies) = (&self.manifest.states_of_files, &self.manifest.policies_of_files);
        written(&self.states, (states, policies, defaults), database)
    }

    /// Destinations to which workers are to know the ways before packets come.
    pub(crate) fn destinations(&self) -> Vec<IpAddr> {
        self.manifest.destinations.clone()
    }

    /// The devices, whose threads rest, for the states and policies that come next. Those of the
    /// configuration are among them: at the predecessor others wait for a restart.
    ///
    /// # Errors
    /// What this release does not take of them; the kernel's.
    pub(crate) fn devices(
        &self,
        descriptors: &mut DescriptorStore,
        config: &Config,
        database: &mut Database,
    ) -> anyhow::Result<Devices> {
        let nothing = devices::DevicesHandover::default();
        let passed = self.manifest.devices.as_ref().unwrap_or(&nothing);
        let configured = (&config.device[..], config.wire.mark.get());
        Devices::of_passed(passed, descriptors, configured, database)
    }

    /// The tunnels and receive ports, whose thread is at the predecessor until it
    /// [rests](Self::take_over).
    ///
    /// # Errors
    /// What this release does not take of them; the kernel's.
    pub(crate) fn tunnels(
        &self,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<TunnelService> {
        let passed = self.manifest.tunnels.as_ref();
        let tunnels = passed.map(|passed| TunnelService::of_passed(passed, descriptors));
        tunnels.transpose().map(Option::unwrap_or_default)
    }

    /// What files said of them when they were last read; of the first releases, what they say now.
    ///
    /// # Errors
    /// As [`TunnelSpec::read`].
    pub(crate) fn plan(&self, config: &Config) -> anyhow::Result<TunnelSpec> {
        self.manifest
            .tunnels_of_files
            .as_ref()
            .map_or_else(|| TunnelSpec::read(config), TunnelSpec::of_passed)
    }

    /// What the predecessor dropped.
    pub(crate) fn drops(&self) -> Arc<Drops> {
        let drops = Drops::default();
        for (name, count) in &self.manifest.drops {
            // An older release may have had another name, a newer one more reasons.
            if let Some(reason) = DropReason::named(name) {
                drops.add(reason, *count);
            }
        }
        Arc::new(drops)
    }

    /// The last records of packets that the predecessor dropped.
    pub(crate) fn drop_records(&self) -> Vec<DropStatus> {
        self.manifest.drop_records.clone()
    }

    /// The control socket with its clients.
    pub(crate) fn control(
        &mut self,
        descriptors: &mut DescriptorStore,
        terms: AccessTerms,
    ) -> anyhow::Result<Option<Control>> {
        let Some(socket) = descriptors.take(CONTROL) else { return Ok(None) };
        let reserved = descriptors.take(CONTROL_RESERVED);
        let listening = ListeningSockets { socket, reserved };
        let sessions = std::mem::take(&mut self.manifest.clients).into_iter().enumerate();
        let mut socket = |place| descriptors.take(&client_name(place));
        let clients = sessions
            .map(|(place, session)| Some((socket(place)?, SavedSession::from(session?))))
            .collect();
        Ok(Some(Control::of_sockets(listening, clients, terms)?))
    }

    /// All is built: the predecessor's workers come to rest, and all goes on where it was then.
    /// When this returns there is no predecessor, and the workers are to start at once.
    ///
    /// # Errors
    /// The predecessor goes on, once this process has ended.
    pub(crate) fn take_over(
        self,
        database: &mut Database,
        (tunnels, devices): (&TunnelService, &mut Devices),
        in_charge: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<TakenOver> {
        manifest::send(&self.link, &Readiness::Ready)?;
        let finals: Finals = manifest::receive(&self.link)?;
        let waiting = self.waiting(&finals.waiting)?;
        go_on_from(&self.states, finals.states, database)?;
        tunnels.go_on_from(&finals.tunnels);
        devices.go_on_from(&finals.devices);
        if !devices.is_empty() {
            // Upper halves of numbers may have begun since, and with them IV prefixes.
            database.push_sequence_limits();
        }
        in_charge()?;
        Ok(TakenOver {
            client: ClientId(self.manifest.asked_by),
            rested: Moment(finals.rested),
            waiting,
            left: finals.waiting.left,
        })
    }

    fn waiting(&self, passed: &QueuedPackets) -> anyhow::Result<Vec<(usize, Vec<WaitingPacket>)>> {
        if passed.is_empty() {
            return Ok(Vec::new());
        }
        let parcel = self.link.receive().context("the other process does not go on")?;
        Ok(passed.with(&parcel.context("the other process has ended")?.bytes))
    }
}

/// What is left to do when the workers start.
#[derive(Debug)]
pub(crate) struct TakenOver {
    /// Who asked.
    pub(crate) client: ClientId,
    /// Since when packets wait in the kernel's queues.
    pub(crate) rested: Moment,
    /// Packets that wait for states, by the numbers of their workers.
    pub(crate) waiting: Vec<(usize, Vec<WaitingPacket>)>,
    /// How many more there were than pass.
    pub(crate) left: u64,
}

/// What files made, by places among the states and policies that were told.
pub(super) fn written(
    all: &[Arc<Sa>],
    (states, ages, defaults): (&[usize], &[usize], DefaultActions),
    database: &Database,
) -> FileOwned {
    let states = states.iter().filter_map(|place| all.get(*place)).map(|sa| sa.insertion_seq());
    let policies: Vec<_> =
        policies(database).map(|entry| entry.precedence().insertion_seq()).collect();
    let ages = ages.iter().filter_map(|place| policies.get(*place).copied());
    FileOwned::restored(states, ages, defaults)
}

/// This process carries packets, which have waited since workers came to rest.
pub(crate) fn takeover_answer(rested: Moment) -> UpgradeAnswer {
    let gap = now().since(rested).as_micros();
    UpgradeAnswer::Done {
        release: RELEASE.to_owned(),
        process: std::process::id(),
        gap_microseconds: u64::try_from(gap).unwrap_or(u64::MAX),
    }
}

/// Puts in what a message says of a state or anything else; the state.
pub(super) fn restore(
    message: &[u8],
    carried: &mut std::slice::Iter<'_, SaProgress>,
    xfrm: &mut XfrmServer,
    database: &mut Database,
) -> anyhow::Result<Option<Arc<Sa>>> {
    let restored = xfrm.restore(message, database).map_err(|refusal| {
        let text = refusal.text.unwrap_or_default();
        anyhow::anyhow!("a state or policy is refused: {text} (errno {})", refusal.errno)
    })?;
    let RestoredItem::State(sa) = restored else { return Ok(None) };
    let carried = carried.next().context("a state more than was told")?;
    carried.resume(&sa, database, now())?;
    Ok(Some(sa))
}

/// Has a store go on with what the journal says of states.
pub(super) fn adopt(
    states: &[Arc<Sa>],
    carried: &[SaProgress],
    fastest: u64,
    store: &mut SequenceStore,
    database: &mut Database,
) {
    // They came with all that was reserved for them.
    let _as_restored = database.take_changes();
    store.follow(fastest);
    for (sa, carried) in states.iter().zip(carried) {
        store.adopt(sa, carried.reserved(), now());
    }
}

/// States that have carried packets since they were told of go on from where they are now.
pub(super) fn go_on_from(
    states: &[Arc<Sa>],
    finals: Vec<(usize, SaProgress)>,
    database: &mut Database,
) -> anyhow::Result<()> {
    for (place, carried) in finals {
        let Some(sa) = states.get(place) else { bail!("a state that nobody told of") };
        carried.resume(sa, database, now())?;
    }
    Ok(())
}

const fn action(blocks: bool) -> Action {
    if blocks { Action::Block } else { Action::Allow }
}

fn hello(refused: Option<String>) -> Hello {
    let takes = TAKES.map(ToOwned::to_owned).to_vec();
    Hello { version: VERSION, release: RELEASE.to_owned(), refused, takes }
}

/// The messages of a parcel, each by itself.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let message = NetlinkMessages::of(bytes).next()?;
        let length = usize::try_from(message.header.len).ok()?.next_multiple_of(4);
        let (first, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a predecessor answers that says this.
    fn asked(manifest: &serde_json::Value) -> String {
        let (here, there) = FdChannel::pair().unwrap();
        manifest::send(&there, manifest).unwrap();
        let config = Config::parse("c.toml", "").unwrap();
        let why = Successor::ask(here, &config).map(drop).unwrap_err();
        let hello: Hello = manifest::receive(&there).unwrap();
        assert_eq!((hello.version, hello.refused.as_deref()), (VERSION, None));
        assert_eq!(hello.takes, TAKES);
        format!("{why:#}")
    }

    #[test]
    fn manifest_of_other_version_is_refused() {
        let place = serde_json::json!({
            "tun": "uxfrm0", "table": 1, "mark": 1, "sequences": null, "is_controlled": true,
        });
        let mut manifest = serde_json::json!({
            "version": 1, "descriptors": [], "clients": [], "asked_by": 0, "states": [],
            "states_of_files": [], "policies_of_files": [], "blocks_of_files": [false, false, false],
            "drops": {}, "workers": 1, "fastest": 0, "place": place, "new": "unknown",
        });
        assert_eq!(asked(&manifest), "the other release hands over otherwise: restart it instead");
        manifest["version"] = VERSION.into();
        assert!(asked(&manifest).starts_with("the configuration has another TUN, table"));
        let other = serde_json::json!({ "version": 3, "all": "otherwise" });
        assert!(
            asked(&other).starts_with("the other process speaks otherwise"),
            "{}",
            asked(&other)
        );
    }
}
