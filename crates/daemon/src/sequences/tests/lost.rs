//! A store may be lost, rolled back, copied or damaged: that is found out, and no IV is sent twice all the same.

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
        let mut run = runs.start("spi 1", KEY);
        wire.send(&run, 1000);
        match round {
            0 => fs::remove_dir_all(runs.path()).unwrap(),
            1 => fs::remove_file(runs.journal()).unwrap(),
            _ => fs::write(runs.journal().with_extension("other"), "").unwrap(),
        }
        if round == 2 {
            fs::rename(runs.journal().with_extension("other"), runs.journal()).unwrap();
        }
        run.1.check_place().unwrap();
        let next = run.send().unwrap();
        run.crash();
        let run = runs.start("spi 1", KEY);
        assert_eq!(run.1.condition(), Condition::Intact);
        assert!(run.send().unwrap() > next);
        run.crash();
    }
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
        database.attend_with(store.keeper());
        let mut run = Run(database, store);
        for spi in [1, 2] {
            let sa = run.add(spi, &STATIC);
            assert!(seen.insert(sa.next_iv_prefix().bits()), "{seen:?}");
        }
        run.end();
    }
}

/// 2^32 packets: the lower half begins again, under another prefix that is drawn with the reservation.
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
