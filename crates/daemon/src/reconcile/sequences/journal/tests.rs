use super::*;

fn name(spi: u32) -> SaName {
    format!("{:032x} 10.0.0.1 {spi:#010x} 0x0/0x0", 5).parse().unwrap()
}

/// A disk in memory.
#[derive(Debug, Default)]
struct WitnessMemory {
    file: Vec<u8>,
    /// There is no room for another file.
    is_full: bool,
}

impl Disk for std::sync::Arc<std::sync::Mutex<WitnessMemory>> {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(Some(self.lock().unwrap().file.clone()))
    }

    fn resume(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.read()
    }

    fn replace(&mut self, bytes: &[u8], room: u64) -> io::Result<()> {
        let mut disk = self.lock().unwrap();
        if disk.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.file = bytes.to_vec();
        disk.file.resize(usize::try_from(room).unwrap().min(bytes.len() + 512), 0);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at).unwrap();
        let file = &mut self.lock().unwrap().file;
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn make_room(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_in_place(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What stands there, without the room behind it.
fn text(disk: &std::sync::Mutex<WitnessMemory>) -> Vec<u8> {
    let file = &disk.lock().unwrap().file;
    let length = file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    file[..length].to_vec()
}

/// So an upgrade on a full disk goes on, by the room that the process before has kept.
#[test]
fn successor_reuses_journal_without_room() {
    let disk = std::sync::Arc::new(std::sync::Mutex::new(WitnessMemory::default()));
    let of = |identity| Journal::new(Box::new(disk.clone()), identity);
    let mut before = of(StoreId { id: 7, generation: 0 });
    let mut follower = of(StoreId { id: 7, generation: 1 });
    let mut other = of(StoreId { id: 8, generation: 9 });
    let note = |journal: &mut Journal, spi, highest| {
        journal.note(Record::Sent(name(spi), highest));
        journal.commit(1, [Record::Sent(name(spi), highest)].into_iter())
    };
    note(&mut before, 1, 10).unwrap();
    note(&mut before, 2, 20).unwrap();
    disk.lock().unwrap().is_full = true;
    note(&mut before, 2, 30).unwrap();
    // What a write that failed left there is nothing.
    let end = text(&disk).len();
    disk.lock().unwrap().file[end..end + 9].copy_from_slice(b"sent 5 10");
    assert!(note(&mut follower, 2, 40).is_err(), "a restart needs a file of its own");
    [&mut follower, &mut other].into_iter().for_each(Journal::follow);
    assert!(note(&mut other, 2, 40).is_err(), "that is somebody else's");
    for highest in [50, 60] {
        note(&mut follower, 2, highest).unwrap();
    }
    let sent = |(spi, highest)| Record::Sent(name(spi), highest);
    let contents = read(&disk.lock().unwrap().file).unwrap();
    assert_eq!(contents.records, [(1, 10), (2, 20), (2, 30), (2, 40), (2, 50), (2, 60)].map(sent));
    assert_eq!(contents.identity, Some(StoreId { id: 7, generation: 5 }));
    assert_eq!(contents.damaged, 0);
}

#[test]
fn journal_records_round_trip_in_order() {
    let disk = std::sync::Arc::new(std::sync::Mutex::new(WitnessMemory::default()));
    let mut journal = Journal::new(Box::new(disk.clone()), StoreId { id: 77, generation: 5 });
    let first = [Record::Sent(name(1), 9), Record::Prefix(5, 0xdead_beef)];
    let second = [Record::Received(name(2), 3, 1027), Record::Forgotten(name(2))];
    for record in first {
        journal.note(record);
    }
    journal.commit(2, first.into_iter()).unwrap();
    for record in second {
        journal.note(record);
    }
    journal.commit(2, first.into_iter()).unwrap();
    let contents = read(&disk.lock().unwrap().file).unwrap();
    assert_eq!(contents.records, [first, second].concat());
    assert_eq!(contents.identity, Some(StoreId { id: 77, generation: 7 }));
    assert_eq!(contents.damaged, 0);
}

/// Whatever a crash leaves of the last group, those before it count, and it does not unless it is
/// whole.
#[test]
fn journal_half_written_group_is_ignored() {
    let disk = std::sync::Arc::new(std::sync::Mutex::new(WitnessMemory::default()));
    let mut journal = Journal::new(Box::new(disk.clone()), StoreId { id: 7, generation: 0 });
    journal.note(Record::Sent(name(1), 1));
    journal.commit(1, [Record::Sent(name(1), 1)].into_iter()).unwrap();
    let before = text(&disk).len();
    journal.note(Record::Sent(name(1), 2));
    journal.note(Record::Sent(name(2), 3));
    journal.commit(2, std::iter::empty()).unwrap();
    let whole = text(&disk);
    for length in before..=whole.len() {
        // Blocks come in any order: the end may be there and not the beginning.
        let mut holed = whole.clone();
        holed[before..length].fill(0);
        for torn in [whole[..length].to_vec(), holed] {
            let contents = read(&torn).unwrap();
            let expected = if torn == whole { 3 } else { 1 };
            assert_eq!(contents.records.len(), expected, "{length}");
            assert_eq!(contents.damaged, 0);
        }
    }
}

#[test]
fn journal_of_any_bytes_is_decoded() {
    use proptest::prelude::*;
    proptest!(|(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), any::<u8>()], 0..300))| {
        let contents = read(&bytes);
        prop_assert!(contents.is_ok_and(|contents| contents.records.is_empty()));
    });
}
