//! A store as it is found: what the last run left on the disk and in `/run`.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use uxfrm_io::{poll::Waker, random};

use super::{
    REMEMBERED, SequenceStore,
    condition::{self, Condition},
    disk::{Disk, LocalDisk},
    iv_prefixes::{Draw, IvPrefixes},
    journal::{self, Contents, Journal, Record, StoreId},
    leaving::ByName,
    memory::{RunFile, WitnessStorage},
    pending_grants::PendingGrants,
    received::ReceivedBefore,
    sent::SentNumbers,
    witness::{self, Left, ReceivedNumbers, Witness},
};
use crate::descriptor_store::DescriptorStore;

/// What the lock of the directory is called in the descriptor store.
const LOCK: &str = "sequences";

/// A directory's store, as one finds it who only looks.
///
/// # Errors
/// The kernel's; a store of a newer release.
pub(crate) fn inspect(path: &Path) -> io::Result<Condition> {
    let bytes = LocalDisk::peek(path)?;
    let contents = read(bytes.as_deref())?;
    let left = Left::read(&witness::place_of(path));
    Ok(condition_of(bytes.is_some(), &contents, left.identity))
}

/// What it means that nothing can be written to a directory.
pub(crate) fn unwritten(path: &Path, fault: &io::Error) -> String {
    condition::unwritten(fault, path)
}

/// The directory of what a store's gateway leaves in `/run`.
pub(crate) fn witness_path(path: &Path) -> Option<PathBuf> {
    let RunFile(file) = witness::place_of(path);
    file.parent().map(Path::to_owned)
}

/// Tells the log how a store was found.
pub(crate) fn report(condition: Condition, path: &Path) {
    let directory = path.display();
    match condition {
        Condition::Intact => {}
        Condition::New => tracing::info!(
            "the store of sequence numbers in {directory} is new; if static keys of this gateway were used before, give them new keys"
        ),
        Condition::Lost
        | Condition::RolledBack { .. }
        | Condition::Foreign
        | Condition::Damaged { .. } => {
            tracing::error!("{}", condition.told(path));
        }
    }
}

impl SequenceStore {
    /// Reads a directory's store, whose states wake a waiting gateway by `waker` when numbers to
    /// receive run short. Nothing is written but the witness.
    ///
    /// # Errors
    /// When the directory can't be this gateway's or can't be read, and for a store of a newer
    /// release.
    pub(crate) fn open(
        path: &Path,
        waker: Waker,
        descriptors: &mut DescriptorStore,
    ) -> io::Result<Self> {
        let disk = match descriptors.take(LOCK) {
            Some(lock) => LocalDisk::of_lock(path, lock)?,
            None => LocalDisk::open(path)?,
        };
        descriptors.keep(LOCK, disk.lock())?;
        let disk = Box::new(disk);
        let storage = Box::new(witness::place_of(path));
        let mut store = Self::on(disk, Some(WitnessPlace { storage, waker }), random_bits)?;
        path.clone_into(&mut store.directory);
        Ok(store)
    }

    /// Reads the store on a disk, with a witness or without, which draws random bits by `draw`.
    ///
    /// # Errors
    /// As [`SequenceStore::open`].
    pub(crate) fn on(
        mut disk: Box<dyn Disk>,
        remembered: Option<WitnessPlace>,
        draw: Draw,
    ) -> io::Result<Self> {
        let bytes = disk.read()?;
        let contents = read(bytes.as_deref())?;
        let left =
            remembered.as_ref().map_or_else(Left::default, |kept| Left::read(&*kept.storage));
        let condition = condition_of(bytes.is_some(), &contents, left.identity);
        let identity = match contents.identity.filter(|identity| identity.id != 0) {
            Some(StoreId { id, generation }) => {
                let known = left.identity.filter(|left| left.id == id);
                let generation = known.map_or(generation, |known| known.generation.max(generation));
                StoreId { id, generation }
            }
            None => StoreId { id: new_id(draw)?, generation: 0 },
        };
        let received = remembered
            .map_or_else(|| ReceivedNumbers::new(None, None), |kept| kept.create(identity));
        let mut store = Self {
            journal: Journal::new(disk, identity),
            condition,
            directory: PathBuf::new(),
            was_replaced: false,
            received: Arc::new(received),
            is_settled: false,
            sent: SentNumbers::remembering(REMEMBERED),
            prefixes: IvPrefixes::default(),
            draw,
            before: BTreeMap::new(),
            edges: BTreeMap::new(),
            fastest: 0,
            leaving: BTreeMap::new(),
            settled: ByName::default(),
            recallable: ByName::default(),
            forgotten: ByName::default(),
            pending: PendingGrants::default(),
            watched: VecDeque::new(),
            no_prefix: None,
        };
        store.learn(contents, left);
        Ok(store)
    }

    fn learn(&mut self, contents: Contents, left: Left) {
        let mut before = BTreeMap::new();
        let left = if is_from_last_run(&contents, &left) { left } else { Left::default() };
        for record in contents.records {
            match record {
                Record::Sent(state, highest) => self.sent.remember(state, highest),
                Record::Prefix(key, bits) => self.prefixes.learn(key, bits),
                Record::Received(state, from, edge) => {
                    before.insert(state, ReceivedBefore { from, edge });
                }
                Record::Forgotten(state) => {
                    before.remove(&state);
                }
            }
        }
        // The first commit writes all of it down, before the witness of this run takes the other's
        // place.
        self.before = before
            .into_iter()
            .map(|(state, before)| (state, before.settled(state, &left)))
            .collect();
    }
}

/// Where the witness lies, and the poller to wake when numbers run short.
pub(crate) struct WitnessPlace {
    pub(crate) storage: Box<dyn WitnessStorage>,
    pub(crate) waker: Waker,
}

impl WitnessPlace {
    fn create(self, identity: StoreId) -> ReceivedNumbers {
        let created = Witness::create(&*self.storage, identity);
        let told = created.inspect_err(|error| {
            let name = self.storage.name();
            tracing::info!(
                "{name} can't be written ({error}): after a crash windows begin at their reserved edges, and a store that was rolled back is not found out"
            );
        });
        ReceivedNumbers::new(told.ok(), Some(self.waker))
    }
}

fn read(bytes: Option<&[u8]>) -> io::Result<Contents> {
    bytes.map_or_else(|| Ok(Contents::default()), journal::read)
}

fn condition_of(is_there: bool, contents: &Contents, left: Option<StoreId>) -> Condition {
    match (contents.identity, left) {
        (None, None) if !is_there => Condition::New,
        (None, _) if contents.records.is_empty() && contents.damaged == 0 && !contents.has_text => {
            Condition::Lost
        }
        (None, _) => Condition::Damaged { groups: contents.damaged },
        (Some(found), Some(left)) if found.id != left.id => Condition::Foreign,
        (Some(found), Some(left)) if found.generation < left.generation => {
            Condition::RolledBack { found: found.generation, expected: left.generation }
        }
        (Some(_), _) if contents.damaged > 0 => Condition::Damaged { groups: contents.damaged },
        (Some(_), _) => Condition::Intact,
    }
}

/// Whether a witness is of the run that wrote a journal last: it is told right after each commit.
fn is_from_last_run(contents: &Contents, left: &Left) -> bool {
    match (contents.identity, left.identity) {
        (Some(found), Some(left)) => {
            found.id == left.id && found.generation <= left.generation.saturating_add(1)
        }
        (Some(_) | None, _) => false,
    }
}

pub(super) fn random_bits() -> io::Result<u32> {
    let mut bits = [0; 4];
    random::fill(&mut bits)?;
    Ok(u32::from_ne_bytes(bits))
}

fn new_id(draw: Draw) -> io::Result<u128> {
    (0..4).try_fold(0, |id, _| Ok(id << 32 | u128::from(draw()?)))
}
