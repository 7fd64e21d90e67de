//! The process that takes over.

use std::{fmt::Display, net::IpAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use uxfrm_engine::{Action, Database, Defaults, DropReason, Drops, Moment, Sa};
use uxfrm_io::link::Link;
use uxfrm_netlink::{Messages, Restored};

use super::{
    Answer, RELEASE,
    manifest::{self, Finals, Hello, Manifest, VERSION, Verdict, receive_with_descriptors},
    predecessor::{client_name, place, policies},
};
use crate::{
    config::Config,
    control::{ClientId, Control, Seat, Terms, Xfrm},
    descriptor_store::DescriptorStore,
    reload::Written,
    sequences::SequenceStore,
    time::now,
};

/// How long the predecessor may take for a step.
const STEP: Duration = Duration::from_secs(60);

/// What was taken over, and from whom.
#[derive(Debug)]
pub(crate) struct Successor {
    link: Link,
    manifest: Manifest,
    /// The states in the order of the manifest.
    states: Vec<Arc<Sa>>,
}

impl Successor {
    /// Asks the predecessor, whose control socket rests from now on.
    ///
    /// # Errors
    /// When it does not answer, or the two do not suit.
    pub(crate) fn ask(link: Link, config: &Config) -> anyhow::Result<(Self, DescriptorStore)> {
        link.be_patient_for(STEP)?;
        manifest::send(&link, &hello(None))?;
        let (manifest, descriptors): (Manifest, Vec<OwnedFd>) = receive_with_descriptors(&link)?;
        ensure!(manifest.version == VERSION, "the other release hands over otherwise: restart");
        let names = manifest.descriptors.iter().cloned();
        let store = DescriptorStore::of(names.zip(descriptors));
        let successor = Self { link, manifest, states: Vec::new() };
        successor.compare(config).inspect_err(|why| successor.refuse(why))?;
        Ok((successor, store))
    }

    /// Says why it can't even ask.
    pub(crate) fn decline(link: &Link, why: &impl Display) {
        let _gone = manifest::send(link, &hello(Some(why.to_string())));
    }

    /// Says why it can't take over.
    pub(crate) fn refuse(&self, why: &anyhow::Error) {
        let _gone = manifest::send(&self.link, &Verdict::Refused(format!("{why:#}")));
    }

    fn compare(&self, config: &Config) -> anyhow::Result<()> {
        let (theirs, ours) = (&self.manifest.place, place(config));
        ensure!(
            *theirs == ours,
            "the configuration has another TUN, table, mark, store of sequence numbers, control socket or network devices now"
        );
        let workers = config.runtime.workers.count().get();
        ensure!(self.manifest.workers == workers, "[runtime] workers is another number now");
        ensure!(config.device.is_empty(), "devices can't be taken over");
        Ok(())
    }

    /// Puts the states and policies of the predecessor into fresh databases.
    ///
    /// # Errors
    /// What this release does not take of them.
    pub(crate) fn restore(
        &mut self,
        xfrm: &mut Xfrm,
        database: &mut Database,
    ) -> anyhow::Result<()> {
        let mut carried = self.manifest.states.iter();
        loop {
            let parcel = self.link.receive().context("the other process does not go on")?;
            let parcel = parcel.context("the other process has ended")?;
            if parcel.bytes.is_empty() {
                break;
            }
            for message in messages(&parcel.bytes) {
                let restored = xfrm.restore(message, database).map_err(|refusal| {
                    let text = refusal.text.unwrap_or_default();
                    anyhow::anyhow!(
                        "a state or policy is refused: {text} (errno {})",
                        refusal.errno
                    )
                })?;
                let Restored::State(sa) = restored else { continue };
                let carried = carried.next().context("a state more than was told")?;
                carried.resume(&sa, database, now())?;
                self.states.push(sa);
            }
        }
        ensure!(carried.next().is_none(), "a state less than was told");
        Ok(())
    }

    /// Has the store go on with what the journal says of the states.
    pub(crate) fn adopt(&self, store: &mut SequenceStore, database: &mut Database) {
        // They came with all that was reserved for them.
        let _as_restored = database.take_changes();
        store.expect_rate(self.manifest.fastest);
        for (sa, carried) in self.states.iter().zip(&self.manifest.states) {
            store.adopt(sa, carried.reserved(), now());
        }
    }

    /// What of it files made.
    pub(crate) fn written(&self, database: &Database) -> Written {
        let [inbound, forward, outbound] = self.manifest.blocks_of_files.map(action);
        let defaults = Defaults { inbound, forward, outbound };
        let states = self.manifest.states_of_files.iter();
        let states = states.filter_map(|place| self.states.get(*place)).map(|sa| sa.turn());
        let all: Vec<_> = policies(database).map(|entry| entry.place().age()).collect();
        let ages = self.manifest.policies_of_files.iter();
        let ages = ages.filter_map(|place| all.get(*place).copied());
        Written::restored(states, ages, defaults)
    }

    /// Destinations to which lanes are to know the ways before packets come.
    pub(crate) fn destinations(&self) -> Vec<IpAddr> {
        self.manifest.destinations.clone()
    }

    /// What the predecessor dropped.
    pub(crate) fn drops(&self) -> Arc<Drops> {
        let drops = Drops::default();
        for reason in DropReason::ALL {
            let count = self.manifest.drops.get(reason.as_str()).copied().unwrap_or(0);
            drops.add(*reason, count);
        }
        Arc::new(drops)
    }

    /// The control socket with its clients.
    pub(crate) fn control(
        &mut self,
        descriptors: &mut DescriptorStore,
        terms: Terms,
    ) -> anyhow::Result<Option<Control>> {
        let Some(listener) = descriptors.take("control") else { return Ok(None) };
        let seats = std::mem::take(&mut self.manifest.clients).into_iter().enumerate();
        let mut socket = |place| descriptors.take(&client_name(place));
        let clients =
            seats.map(|(place, seat)| Some((socket(place)?, Seat::from(seat?)))).collect();
        Ok(Some(Control::of_sockets(listener, clients, terms)?))
    }

    /// All is built: the predecessor's lanes come to rest, and the states go on where they were then. When this returns there is no
    /// predecessor, and the lanes are to start at once. The client who asked, and since when packets wait.
    ///
    /// # Errors
    /// The predecessor goes on, once this process has ended.
    pub(crate) fn take_over(
        self,
        database: &mut Database,
        in_charge: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<(ClientId, Moment)> {
        manifest::send(&self.link, &Verdict::Ready)?;
        let Finals { states, rested }: Finals = manifest::receive(&self.link)?;
        for (place, carried) in states {
            let Some(sa) = self.states.get(place) else { bail!("a state that nobody told of") };
            carried.resume(sa, database, now())?;
        }
        in_charge()?;
        Ok((ClientId(self.manifest.asked_by), Moment(rested)))
    }
}

impl Answer {
    /// This process carries packets, which have waited since lanes came to rest.
    pub(crate) fn done(rested: Moment) -> Self {
        let gap = now().since(rested).as_micros();
        Self::Done {
            release: RELEASE.to_owned(),
            process: std::process::id(),
            gap_microseconds: u64::try_from(gap).unwrap_or(u64::MAX),
        }
    }
}

const fn action(blocks: bool) -> Action {
    if blocks { Action::Block } else { Action::Allow }
}

fn hello(refused: Option<String>) -> Hello {
    Hello { version: VERSION, release: RELEASE.to_owned(), refused }
}

/// The messages of a parcel, each by itself.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let message = Messages::of(bytes).next()?;
        let length = usize::try_from(message.header.len).ok()?.next_multiple_of(4);
        let (first, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some(first)
    })
}
