//! What outlives the process but not the machine: a file in `/run` with the store's generation, by
//! which a rollback is found, and the highest number that each state received, so that after a
//! crash of the process a window begins exactly where it was.
//!
//! The file is words in memory ([`WitnessMemory`]). The first page is the head; cells of four words
//! follow, each a state's: its name's digest in two words, and the highest number. A start reads
//! the file of the last run, and makes its own beside it; that takes the other's place once the
//! journal has what was read ([`Witness::settle`]).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use uxfrm_engine::{ReplayStore, Sa};
use uxfrm_io::poll::Waker;

use super::{
    journal::StoreId,
    memory::{RunFile, WitnessMemory, WitnessStorage},
    sa_name::SaName,
};

/// Words of the head.
const HEAD: usize = 512;
/// Words of a cell.
const CELL: usize = 4;
/// Cells at the most: states that received something and are still there.
const MOST: usize = 1 << 21;
/// Cells for which there is room at first, and for which room is made at a time.
const FIRST: usize = 1 << 10;
const CHUNK: usize = 1 << 13;
const MAGIC: u64 = u64::from_le_bytes(*b"uxfrmwit");
const VERSION: u64 = 1;

/// Places in the head.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_BOOT: usize = 2;
const AT_ID: usize = 4;
const AT_GENERATION: usize = 6;
/// Cells that were wanted and not to be had.
const AT_MISSING: usize = 7;
/// Cells that may be in use.
const AT_CELLS: usize = 8;

/// What the last run left.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) identity: Option<StoreId>,
    /// Of each state, by its name's digest, the highest number received.
    pub(super) heads: BTreeMap<u128, u64>,
    /// Whether a state without a number there has received nothing.
    pub(super) is_complete: bool,
}

/// The file of this run.
#[derive(Debug)]
pub(crate) struct Witness {
    memory: Box<dyn WitnessMemory>,
    words: &'static [AtomicU64],
    cells: Mutex<Cells>,
}

/// Records what states receive in the witness, if there is one, and wakes the control thread when
/// numbers run short.
#[derive(Debug)]
pub(super) struct ReceivedNumbers {
    pub(super) witness: Option<Witness>,
    /// Whether a state wants more numbers.
    wanted: AtomicBool,
    waker: Option<Waker>,
}

/// Which cells are free.
#[derive(Debug, Default)]
struct Cells {
    free: Vec<usize>,
    /// Cells that were handed out so far, free ones included.
    used: usize,
    /// Cells for which there is room.
    room: usize,
    /// Whether the memory was given back: nobody may touch a cell any more.
    closed: bool,
}

/// Where the witness of a store lies: its path, in one name.
pub(super) fn place_of(store: &Path) -> RunFile {
    let runtime = std::env::var_os("RUNTIME_DIRECTORY");
    let runtime =
        runtime.as_deref().and_then(|paths| paths.to_str()?.split(':').next().map(PathBuf::from));
    let store = fs::canonicalize(store).unwrap_or_else(|_| store.to_owned());
    let name = store.to_string_lossy().trim_matches('/').replace('/', "-");
    RunFile(
        runtime.unwrap_or_else(|| PathBuf::from("/run/uxfrm")).join(name).join("received.windows"),
    )
}

impl Left {
    /// Reads what the last run left, if it was in this boot.
    pub(super) fn read(storage: &dyn WitnessStorage) -> Self {
        Self::try_read(storage).unwrap_or_default()
    }

    fn try_read(storage: &dyn WitnessStorage) -> Option<Self> {
        let boot = storage.boot()?;
        let mut file = storage.read()?;
        let head = words(&mut file, HEAD)?;
        let wide = |at: usize| u128::from(head[at]) << 64 | u128::from(head[at + 1]);
        if (head[AT_MAGIC], head[AT_VERSION], wide(AT_BOOT)) != (MAGIC, VERSION, boot) {
            return None;
        }
        let count = usize::try_from(head[AT_CELLS]).ok()?.min(MOST);
        let cells = words(&mut file, count * CELL)?;
        let mut heads = BTreeMap::new();
        for cell in cells.chunks_exact(CELL) {
            let digest = u128::from(cell[0]) << 64 | u128::from(cell[1]);
            let head = heads.entry(digest).or_insert(0);
            *head = cell[2].max(*head);
        }
        let identity = StoreId { id: wide(AT_ID), generation: head[AT_GENERATION] };
        Some(Self { identity: Some(identity), heads, is_complete: head[AT_MISSING] == 0 })
    }
}

fn words(file: &mut impl Read, count: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; count * size_of::<u64>()];
    file.read_exact(&mut bytes).ok()?;
    Some(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

impl Witness {
    /// Makes the file of this run, beside the one of the last.
    ///
    /// # Errors
    /// The kernel's: where there is no `/run` to write to, stores do without.
    pub(super) fn create(storage: &dyn WitnessStorage, identity: StoreId) -> io::Result<Self> {
        let memory = storage.create(HEAD + MOST * CELL)?;
        let words = memory.words();
        let witness = Self { memory, words, cells: Mutex::default() };
        witness.make_room()?;
        let boot = storage.boot().ok_or_else(|| io::Error::other("the kernel tells no boot_id"))?;
        witness.set_wide(AT_BOOT, boot);
        witness.set_wide(AT_ID, identity.id);
        witness.set(AT_VERSION, VERSION);
        witness.set(AT_GENERATION, identity.generation);
        witness.set(AT_MAGIC, MAGIC);
        Ok(witness)
    }

    /// Takes the place of the last run's file: what that knew is in the journal.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.memory.settle()
    }

    /// Gives its memory back but for the head: the journal has all that states received, and they
    /// receive nothing more.
    pub(super) fn shrink(&self) -> io::Result<()> {
        let mut cells = self.cells();
        cells.closed = true;
        self.set(AT_CELLS, 0);
        self.memory.shrink(HEAD)
    }

    /// A group of this generation is on the disk.
    pub(super) fn note(&self, generation: u64) {
        self.set(AT_GENERATION, generation);
    }

    /// Makes room for cells to come.
    pub(super) fn make_room(&self) -> io::Result<()> {
        let mut cells = self.cells();
        if cells.room < MOST && 2 * cells.used >= cells.room {
            let more = if cells.room == 0 { FIRST } else { CHUNK };
            let room = (cells.room + more).min(MOST);
            self.memory.make_room(HEAD + room * CELL)?;
            cells.room = room;
        }
        Ok(())
    }

    /// Cells that were wanted and not to be had.
    #[cfg(test)]
    pub(super) fn missing(&self) -> u64 {
        self.words[AT_MISSING].load(Ordering::Relaxed)
    }

    fn set(&self, at: usize, word: u64) {
        self.words[at].store(word, Ordering::Release);
    }

    #[expect(clippy::cast_possible_truncation, reason = "one half each")]
    fn set_wide(&self, at: usize, word: u128) {
        self.set(at, (word >> 64) as u64);
        self.set(at + 1, word as u64);
    }

    fn cells(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_cell(&self) -> Option<usize> {
        let mut cells = self.cells();
        if cells.closed {
            return None;
        }
        if let Some(free) = cells.free.pop() {
            return Some(free);
        }
        if cells.used == cells.room {
            self.words[AT_MISSING].fetch_add(1, Ordering::Relaxed);
            return None;
        }
        cells.used += 1;
        self.set(AT_CELLS, cells.used as u64);
        Some(cells.used - 1)
    }

    fn claim(&self, sa: &Sa) -> Option<&'static AtomicU64> {
        let cell = HEAD + self.take_cell()? * CELL;
        self.set_wide(cell, 0);
        self.set(cell + 2, 0);
        self.set_wide(cell, SaName::of(sa).digest());
        Some(&self.words[cell + 2])
    }

    /// What a state received counts no more: a later one of its name begins anew.
    pub(super) fn forget(&self, sa: &Sa) {
        if let Some(cell) = sa.shared_head() {
            self.set_wide(self.place(cell) - 2, 0);
        }
    }

    /// Where a cell's number stands.
    fn place(&self, cell: &'static AtomicU64) -> usize {
        let first = std::ptr::from_ref(&self.words[0]).addr();
        (std::ptr::from_ref(cell).addr() - first) / size_of::<AtomicU64>()
    }

    fn release(&self, cell: &'static AtomicU64) {
        let at = self.place(cell);
        // What is there stays until another state needs the cell: a gateway that ends by a fault
        // gives up its states before the journal has their numbers. What a deleted state left does
        // no harm, as the journal has forgotten it.
        self.cells().free.push((at - HEAD) / CELL);
    }
}

impl ReceivedNumbers {
    pub(super) const fn new(witness: Option<Witness>, waker: Option<Waker>) -> Self {
        Self { witness, wanted: AtomicBool::new(false), waker }
    }

    /// Whether a state's numbers came near its edge since the last time.
    pub(super) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }
}

impl ReplayStore for ReceivedNumbers {
    fn claim(&self, sa: &Sa) -> Option<&'static AtomicU64> {
        self.witness.as_ref()?.claim(sa)
    }

    fn release(&self, cell: &'static AtomicU64) {
        self.witness.iter().for_each(|witness| witness.release(cell));
    }

    fn wake(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel)
            && let Some(waker) = &self.waker
        {
            waker.wake();
        }
    }
}
