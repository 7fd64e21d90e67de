//! One machine beneath a gateway: its clock, its random bits, its disk, and the memory that
//! outlives a process.

use std::{
    cell::{Cell, RefCell},
    io::{self, Cursor, Read},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use uxfrm_engine::Moment;
use uxfrm_testkit::Rng;

use crate::{
    clock::{self, Clock},
    reconcile::sequences::{
        disk::Disk,
        memory::{WitnessMemory, WitnessStorage},
    },
};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static START: Cell<u64> = const { Cell::new(0) };
    static DICE: RefCell<Rng> = const { RefCell::new(Rng::new(0)) };
    /// Memory that no run has mapped.
    static FREE: RefCell<Vec<&'static [AtomicU64]>> = const { RefCell::new(Vec::new()) };
}

/// The clocks of this thread's simulation.
struct FakeClock;

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        Moment(NOW.get())
    }

    fn wall(&self) -> u64 {
        START.get() + NOW.get()
    }
}

/// Sets this thread's clocks and random bits to the start of a seed.
pub(super) fn begin(seed: u64) {
    NOW.set(1_000_000_000);
    START.set(1_700_000_000_000_000_000);
    DICE.set(Rng::new(seed ^ 0x5eed));
    clock::set(Rc::new(FakeClock));
}

/// Advances the clocks.
pub(super) fn pass(time: Duration) {
    NOW.set(Moment(NOW.get()).plus(time).0);
}

/// Steps the wall clock.
pub(super) fn step_wall(nanoseconds: i64) {
    START.set(START.get().saturating_add_signed(nanoseconds));
}

/// The bits that stores draw.
pub(super) fn draw() -> io::Result<u32> {
    Ok(DICE.with_borrow_mut(|dice| (dice.next_u64() >> 32) as u32))
}

/// How a disk behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Health {
    #[default]
    Good,
    /// Writes fail after so many bytes.
    Full(usize),
    /// Each write takes so many milliseconds.
    Slow(u64),
}

#[derive(Debug, Default)]
struct Platter {
    file: Option<Vec<u8>>,
    health: Health,
    /// The file was replaced.
    moved: bool,
    /// The directory was replaced or removed: nothing is written there.
    away: bool,
    /// The directory is in place.
    written: bool,
}

/// A disk with the journal.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeDisk(Arc<Mutex<Platter>>);

impl FakeDisk {
    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_health(&self, health: Health) {
        self.platter().health = health;
    }

    pub(super) fn is_good(&self) -> bool {
        !matches!(self.platter().health, Health::Full(_))
    }

    /// The journal's bytes.
    pub(super) fn file(&self) -> Option<Vec<u8>> {
        self.platter().file.clone()
    }

    /// The journal's bytes, if the gateway still writes to that file.
    pub(super) fn file_in_place(&self) -> Option<Vec<u8>> {
        let platter = self.platter();
        platter.file.clone().filter(|_| !platter.moved)
    }

    /// Whether the journal is what the gateway wrote last.
    pub(super) fn is_in_place(&self) -> bool {
        !self.platter().moved
    }

    /// Replaces the journal.
    pub(super) fn put(&self, file: Option<Vec<u8>>) {
        let mut platter = self.platter();
        (platter.file, platter.moved, platter.away) = (file, true, true);
    }

    /// Opens the journal.
    pub(super) fn open(&self) -> Self {
        let mut platter = self.platter();
        (platter.away, platter.written) = (false, false);
        self.clone()
    }
}

impl Disk for FakeDisk {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.file())
    }

    fn replace(&mut self, bytes: &[u8], room: u64) -> io::Result<()> {
        let mut platter = self.platter();
        match platter.health {
            Health::Good => {}
            Health::Slow(milliseconds) => pass(Duration::from_millis(milliseconds)),
            Health::Full(_) => return Err(io::ErrorKind::StorageFull.into()),
        }
        if platter.away {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = bytes.to_vec();
        let room = usize::try_from(room).unwrap().min(bytes.len() + 512);
        bytes.resize(room, 0);
        (platter.file, platter.moved, platter.written) = (Some(bytes), false, true);
        Ok(())
    }

    fn resume(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut platter = self.platter();
        if platter.away {
            return Ok(None);
        }
        (platter.moved, platter.written) = (false, true);
        Ok(platter.file.clone())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        let (kept, result) = match platter.health {
            Health::Good => (bytes.len(), Ok(())),
            Health::Slow(milliseconds) => {
                pass(Duration::from_millis(milliseconds));
                (bytes.len(), Ok(()))
            }
            Health::Full(kept) => {
                (kept % (bytes.len() + 1), Err(io::ErrorKind::StorageFull.into()))
            }
        };
        if platter.moved {
            return result; // to a file that nobody finds any more
        }
        let file = platter.file.get_or_insert_default();
        let at = usize::try_from(at).unwrap();
        file.resize(file.len().max(at + kept), 0);
        file[at..at + kept].copy_from_slice(&bytes[..kept]);
        result
    }

    fn make_room(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_in_place(&mut self) -> io::Result<bool> {
        let platter = self.platter();
        Ok(!if platter.written { platter.moved } else { platter.away })
    }

    fn reopen(&mut self) -> io::Result<()> {
        let mut platter = self.platter();
        if let Health::Full(_) = platter.health {
            return Err(io::ErrorKind::StorageFull.into());
        }
        (platter.away, platter.written) = (false, false);
        Ok(())
    }
}

/// The most words that a run maps.
const MOST: usize = 512 + 4 * 1024;

#[derive(Clone, Debug)]
enum File {
    /// Mapped by a run; its length in words.
    Mapped(&'static [AtomicU64], usize),
    /// Left by a run that has ended.
    Left(Vec<u64>),
}

impl File {
    fn words(&self) -> Vec<u64> {
        match self {
            Self::Mapped(words, length) => {
                words[..*length].iter().map(|word| word.load(Ordering::Relaxed)).collect()
            }
            Self::Left(words) => words.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct Files {
    boot: u128,
    placed: Option<File>,
    beside: Option<File>,
}

/// `/run`.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeStorage(Arc<Mutex<Files>>);

impl FakeStorage {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process is gone at once: what it stored up to now is there, and nothing that it does
    /// from now on.
    pub(super) fn freeze(&self) {
        let mut files = self.files();
        let Files { placed, beside, .. } = &mut *files;
        for file in [placed, beside].into_iter().flatten() {
            *file = File::Left(file.words());
        }
    }

    /// The same where that memory is one process's, of two.
    fn unmap(&self, words: &'static [AtomicU64]) {
        let mut files = self.files();
        let Files { placed, beside, .. } = &mut *files;
        for file in [placed, beside].into_iter().flatten() {
            if matches!(file, File::Mapped(mapped, _) if std::ptr::eq(*mapped, words)) {
                *file = File::Left(file.words());
            }
        }
    }

    /// The machine reboots.
    pub(super) fn reboot(&self) {
        let mut files = self.files();
        *files = Files { boot: files.boot + 1, ..Files::default() };
    }
}

impl WitnessStorage for FakeStorage {
    fn name(&self) -> String {
        "/run".to_owned()
    }

    fn boot(&self) -> Option<u128> {
        Some(self.files().boot)
    }

    fn read(&self) -> Option<Box<dyn Read>> {
        let words = self.files().placed.as_ref()?.words();
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        Some(Box::new(Cursor::new(bytes)))
    }

    fn create(&self, _: usize) -> io::Result<Box<dyn WitnessMemory>> {
        let free = FREE.with_borrow_mut(Vec::pop);
        let words = free.unwrap_or_else(|| {
            let words: Vec<_> = (0..MOST).map(|_| AtomicU64::new(0)).collect();
            words.leak()
        });
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.files().beside = Some(File::Mapped(words, MOST));
        Ok(Box::new(FakeMemory { storage: self.clone(), words }))
    }
}

#[derive(Debug)]
struct FakeMemory {
    storage: FakeStorage,
    words: &'static [AtomicU64],
}

impl WitnessMemory for FakeMemory {
    fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    fn make_room(&self, words: usize) -> io::Result<()> {
        if words <= MOST { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn settle(&self) -> io::Result<()> {
        let mut files = self.storage.files();
        files.placed = files.beside.take();
        Ok(())
    }

    fn shrink(&self, words: usize) -> io::Result<()> {
        let mut files = self.storage.files();
        let Files { placed, beside, .. } = &mut *files;
        for file in [placed, beside].into_iter().flatten() {
            if let File::Mapped(mapped, length) = file
                && std::ptr::eq(*mapped, self.words)
            {
                *length = words;
            }
        }
        Ok(())
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.storage.unmap(self.words);
        FREE.with_borrow_mut(|free| free.push(self.words));
    }
}
