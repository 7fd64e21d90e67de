use super::*;

fn name(spi: u32) -> StateName {
    format!("{:032x} 10.0.0.1 {spi:#010x} 0x0/0x0", 5).parse().unwrap()
}

/// A disk in memory.
#[derive(Debug, Default)]
struct Memory(Vec<u8>);

impl Disk for std::sync::Arc<std::sync::Mutex<Memory>> {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(Some(self.lock().unwrap().0.clone()))
    }

    fn replace(&mut self, bytes: &[u8], _: u64) -> io::Result<()> {
        self.lock().unwrap().0 = bytes.to_vec();
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at).unwrap();
        let file = &mut self.lock().unwrap().0;
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

#[test]
fn records_come_back_in_order_with_identity_and_generation() {
    let disk = std::sync::Arc::new(std::sync::Mutex::new(Memory::default()));
    let mut journal = Journal::new(Box::new(disk.clone()), Identity { id: 77, generation: 5 });
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
    let contents = read(&disk.lock().unwrap().0).unwrap();
    assert_eq!(contents.records, [first, second].concat());
    assert_eq!(contents.identity, Some(Identity { id: 77, generation: 7 }));
    assert_eq!(contents.damaged, 0);
}

/// Whatever a crash leaves of the last group, those before it count, and it does not unless it is whole.
#[test]
fn half_written_group_is_nothing() {
    let disk = std::sync::Arc::new(std::sync::Mutex::new(Memory::default()));
    let mut journal = Journal::new(Box::new(disk.clone()), Identity { id: 7, generation: 0 });
    journal.note(Record::Sent(name(1), 1));
    journal.commit(1, [Record::Sent(name(1), 1)].into_iter()).unwrap();
    let before = disk.lock().unwrap().0.len();
    journal.note(Record::Sent(name(1), 2));
    journal.note(Record::Sent(name(2), 3));
    journal.commit(2, std::iter::empty()).unwrap();
    let whole = disk.lock().unwrap().0.clone();
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
fn any_bytes_are_read_without_a_fault() {
    use proptest::prelude::*;
    proptest!(|(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), any::<u8>()], 0..300))| {
        let contents = read(&bytes);
        prop_assert!(contents.is_ok_and(|contents| contents.records.is_empty()));
    });
}
