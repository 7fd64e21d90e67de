//! A store may be lost, rolled back, copied or damaged: that is found out, and no IV is sent twice
//! all the same.

use std::collections::HashSet;

use super::*;

/// The key's IVs that are on the wire.
#[derive(Default)]
struct Wire(HashSet<u64>);

impl Wire {
    /// Sends `count` packets.
    fn send(&mut self, run: &Run, count: u32) {
        let sa = run.sa();
        for number in sa.sequence().take(count).unwrap().numbers() {
            assert!(self.0.insert(sa.iv_counter(number)), "IV of {number} is there twice");
        }
    }
}

#[test]
fn lost_store_repeats_no_iv_and_is_told_of() {
    let runs = Runs::new();
    let mut wire = Wire::default();
    wire.send(&runs.start("spi 1", KEY), 1000);
    for _ in 0..10 {
        fs::remove_dir_all(runs.path()).unwrap();
        let run = runs.start("spi 1", KEY);
        assert_eq!(run.1.condition(), Condition::Lost);
        wire.send(&run, 1000);
        run.crash();
    }
    fs::write(runs.journal(), "").unwrap();
    assert_eq!(runs.start("spi 1", KEY).1.condition(), Condition::Lost, "an empty file");
    let text = fs::read(runs.journal()).unwrap();
    fs::write(runs.journal(), vec![0; text.len()]).unwrap();
    assert_eq!(runs.start("spi 1", KEY).1.condition(), Condition::Lost, "a file of zeros");
}

#[test]
fn old_copy_repeats_no_iv_and_is_told_of() {
    let runs = Runs::new();
    let mut wire = Wire::default();
    wire.send(&runs.start("spi 1", KEY), 1000);
    let copy = fs::read(runs.journal()).unwrap();
    for _ in 0..10 {
        let run = runs.start("spi 1", KEY);
        wire.send(&run, 1000);
        run.end();
        fs::write(runs.journal(), &copy).unwrap();
        let run = runs.start("spi 1", KEY);
        assert!(matches!(run.1.condition(), Condition::RolledBack { .. }), "{:?}", run.1);
        wire.send(&run, 1000);
        run.crash();
        fs::write(runs.journal(), &copy).unwrap();
        // After the machine's restart nothing tells, and IVs differ all the same.
        fs::remove_dir_all(runs.memory()).unwrap();
        let run = runs.start("spi 1", KEY);
        assert_eq!(run.1.condition(), Condition::Intact);
        wire.send(&run, 1000);
        run.end();
    }
}

#[test]
fn clone_without_the_store_repeats_no_iv() {
    let mut wire = Wire::default();
    for _ in 0..10 {
        let runs = Runs::new();
        wire.send(&runs.start("spi 1", KEY), 1000);
    }
}

#[test]
fn store_of_another_gateway_is_told_of() {
    let (runs, others) = (Runs::new(), Runs::new());
    drop((runs.start("spi 1", KEY), others.start("spi 1", KEY)));
    fs::copy(others.journal(), runs.journal()).unwrap();
    assert_eq!(runs.start("spi 1", KEY).1.condition(), Condition::Foreign);
}

/// Any byte of a journal of several groups is another one.
#[test]
fn damaged_journal_is_told_of_and_the_rest_counts() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    for spi in 1..=3 {
        run.add(spi, &[u8::try_from(spi).unwrap(); 20]).sequence().take(7).unwrap();
    }
    drop(run);
    let whole = runs.text();
    let last = whole.trim_end().rfind("\nsent").unwrap();
    let behind = whole[..last].rfind("commit").unwrap();
    for place in (0..behind).step_by(7) {
        let mut bytes = whole.clone().into_bytes();
        bytes[place] ^= 1;
        fs::write(runs.journal(), &bytes).unwrap();
        fs::remove_dir_all(runs.memory()).unwrap();
        let mut run = runs.start_empty();
        let condition = run.1.condition();
        assert!(matches!(condition, Condition::Damaged { .. }), "byte {place}: {condition:?}");
        let last = run.add(3, &[3; 20]).sequence().take(1).unwrap().first;
        assert_eq!(last, AHEAD + 1, "the last group counts");
    }
}

/// `rm -r` beneath a running gateway, then `kill -9`.
#[test]
fn store_that_is_removed_in_use_is_written_anew() {
    let runs = Runs::new();
    let mut wire = Wire::default();
    for round in 0..3 {
        let run = runs.start("spi 1", KEY);
        wire.send(&run, 1000);
        match round {
            0 => fs::remove_dir_all(runs.path()).unwrap(),
            1 => fs::remove_file(runs.journal()).unwrap(),
            _ => fs::write(runs.journal().with_extension("other"), "").unwrap(),
        }
        if round == 2 {
            fs::rename(runs.journal().with_extension("other"), runs.journal()).unwrap();
        }
        assert_goes_on(&runs, run);
    }
}

/// What is written anew in its place is what the next run finds after a crash.
fn assert_goes_on(runs: &Runs, mut run: Run) {
    run.1.check_place().unwrap();
    let next = run.send().unwrap();
    run.crash();
    let run = runs.start("spi 1", KEY);
    assert_eq!(run.1.condition(), Condition::Intact);
    assert!(run.send().unwrap() > next);
    run.crash();
}

/// Something else is in its place for a while, or the disk refuses.
#[test]
fn store_that_could_not_be_made_anew_at_once_is_made_anew_later() {
    let runs = Runs::new();
    let mut wire = Wire::default();
    let mut run = runs.start("spi 1", KEY);
    wire.send(&run, 1000);
    fs::remove_dir_all(runs.path()).unwrap();
    fs::write(runs.path(), "in its place").unwrap();
    for _ in 0..3 {
        run.1.check_place().unwrap_err();
        run.1.commit().unwrap_err();
    }
    fs::remove_file(runs.path()).unwrap();
    assert_goes_on(&runs, run);
}

/// Before anything was written to it.
#[test]
fn store_that_is_removed_before_its_first_commit_is_made_anew() {
    let runs = Runs::new();
    let mut run = runs.start_empty();
    fs::remove_dir_all(runs.path()).unwrap();
    run.1.check_place().unwrap();
    run.add(2, &STATIC);
    assert!(runs.text().contains("0x00000002"));
    run.crash();
}

#[test]
fn store_is_written_anew_before_the_next_state_is_in_force() {
    let runs = Runs::new();
    let mut run = runs.start("spi 1", KEY);
    fs::remove_dir_all(runs.path()).unwrap();
    run.add(2, &STATIC);
    assert!(runs.text().contains("0x00000001") && runs.text().contains("0x00000002"));
}

thread_local! {
    static DRAWN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Random bits that repeat as they never should.
fn repeating() -> io::Result<u32> {
    DRAWN.set(DRAWN.get() + 1);
    Ok(1 + DRAWN.get() / 4)
}

/// While the store is intact no prefix comes twice, whatever the generator does.
#[test]
fn known_prefix_is_not_drawn_again() {
    let runs = Runs::new();
    let mut seen = HashSet::new();
    for _ in 0..20 {
        let disk = Box::new(LocalDisk::open(&runs.path()).unwrap());
        let store = SequenceStore::on(disk, None, repeating).unwrap();
        let mut database = Database::new(Backend::Portable, 1);
        database.track_changes_with(store.keeper());
        let mut run = Run(database, store);
        for spi in [1, 2] {
            let sa = run.add(spi, &STATIC);
            assert!(seen.insert(sa.next_iv_prefix().bits()), "{seen:?}");
        }
        run.end();
    }
}

/// 2^32 packets: the lower half begins again, under another prefix that is drawn with the
/// reservation.
#[test]
fn upper_half_of_the_number_has_a_prefix_of_its_own() {
    let runs = Runs::new();
    let words = "spi 1 replay-window 32 flag esn replay-oseq 0xfffffff0 replay-oseq-hi";
    for upper in [0_u64, 1, 6] {
        let mut run =
            runs.start(&format!("{words} {upper}"), &format!("0x{upper:02x}{}", &KEY[4..]));
        let sa = run.sa();
        let block = sa.sequence().take(32).unwrap();
        assert_eq!(block.first, upper << 32 | 0xffff_fff1);
        let prefixes: HashSet<_> =
            block.numbers().map(|number| sa.iv_counter(number) >> 32).collect();
        assert_eq!(prefixes.len(), 2);
        let ivs: HashSet<_> = block.numbers().map(|number| sa.iv_counter(number)).collect();
        assert_eq!(ivs.len(), 32);
        run.1.renew(Moment(0)).unwrap();
        let again = runs.text().matches("prefix").count();
        assert!(again >= 2, "both are written down: {}", runs.text());
    }
}

/// What a gateway does that is told of it.
fn resume_from_vm_snapshot(run: &mut Run) {
    let Run(database, store) = run;
    assert_eq!(database.apply(Moment(0), |change| change.begin_sas_anew()), 0);
    let changes = database.take_changes();
    store.begin_anew(&changes.removed, &changes.added, Moment(0));
    store.commit().unwrap();
    database.publish();
}

/// Disk and memory are the same, also near the end of an upper half, whose next one has its prefix
/// already.
#[test]
fn machines_that_go_on_from_one_snapshot_repeat_no_iv() {
    for words in ["spi 1", "spi 1 replay-window 128 flag esn replay-oseq 0xffffff00"] {
        let mut wire = Wire::default();
        let machines = [Runs::new(), Runs::new()];
        let mut one = machines[0].start(words, KEY);
        wire.send(&one, 100);
        fs::create_dir(machines[1].path()).unwrap();
        fs::copy(machines[0].journal(), machines[1].journal()).unwrap();
        let mut other = machines[1].start(words, KEY);
        let (mine, theirs) = (one.sa(), other.sa());
        for prefix in [0, 1].into_iter().filter_map(|upper| mine.iv_prefix(upper)) {
            theirs.set_iv_prefix(prefix);
        }
        theirs.sequence().reopen(mine.sequence().last(), mine.sequence().reserved());
        let next = mine.sequence().last() + 1;
        assert_eq!(mine.iv_counter(next), theirs.iv_counter(next), "they are the same");
        for run in [&mut one, &mut other] {
            resume_from_vm_snapshot(run);
        }
        for old in [mine, theirs] {
            assert!(old.sequence().take(1).is_err(), "the old state sends nothing more");
        }
        for _ in 0..3 {
            wire.send(&one, 1000);
            wire.send(&other, 1000);
            [&mut one, &mut other].into_iter().for_each(resume_from_vm_snapshot);
        }
    }
}

/// A state that stands in another's place is in force at once; that one's edge was drawn back.
#[test]
fn after_a_snapshot_nothing_is_accepted_above_what_the_disk_has() {
    let runs = Runs::new();
    let mut run = runs.start("spi 1 replay-window 128", KEY);
    assert_eq!(run.sa().replay().check(1).and_then(|new| run.sa().replay().accept(new)), Ok(()));
    for second in 1..40 {
        run.1.renew(Moment(second * 1_000_000_000)).unwrap();
    }
    let edge = run.sa().reserved_to_receive();
    assert!(edge < FIRST_RESERVED, "{edge}");
    let Run(database, store) = &mut run;
    assert_eq!(database.apply(Moment(0), |change| change.begin_sas_anew()), 0);
    let changes = database.take_changes();
    store.begin_anew(&changes.removed, &changes.added, Moment(0));
    let sa = &changes.added[0];
    assert!(sa.reserved_to_receive() <= edge, "{} {edge}", sa.reserved_to_receive());
    store.commit().unwrap();
    assert!(sa.reserved_to_receive() > edge);
}

#[test]
fn snapshot_begins_above_what_the_disk_knows_of_a_later_time() {
    let runs = Runs::new();
    let mut run = runs.start("spi 1 replay-window 128", KEY);
    let state = SaName::of(&run.sa());
    assert_eq!(run.sa().replay().check(50).and_then(|new| run.sa().replay().accept(new)), Ok(()));
    let text = fs::read_to_string(runs.journal()).unwrap().trim_end_matches('\0').to_owned();
    // Whoever wrote that went on where memory was taken.
    let later = format!("received {state} 70000 90000\nsent {state} 77000000\ncommit 99");
    let sum = crc32fast::hash(later.as_bytes());
    fs::write(runs.journal(), format!("{text}{later} {sum:08x}\n")).unwrap();
    resume_from_vm_snapshot(&mut run);
    assert!(run.send().unwrap() > 77_000_000);
    let sa = run.sa();
    let (low, edge) = (90000, sa.reserved_to_receive());
    let refused = sa.replay().check(low).map_err(|reason| sa.replay().explain(low, reason));
    assert_eq!(refused.map(drop), Err(DropReason::InBeforeRestart));
    assert_eq!(sa.replay().check(90001).and_then(|new| sa.replay().accept(new)), Ok(()));
    assert!(edge > 90001);
    // All of it is on the disk again.
    run.crash();
    let run = runs.start("spi 1 replay-window 128", KEY);
    assert_eq!(run.1.condition(), Condition::Intact);
    assert!(run.send().unwrap() > 77_000_000);
}
