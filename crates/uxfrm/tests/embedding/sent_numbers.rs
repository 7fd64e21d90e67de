use std::{io, num::NonZeroU32};
use uxfrm::{Database, IvPrefix, Sa, SaId};

/// Numbers that are reserved at once. A crash loses them, and the peer sees a gap.
const AHEAD: u64 = 1 << 20;

/// A file, or a table of your database; and your random source.
trait SentStore {
    /// The highest ceiling that was written for a state; 0 for a new one.
    fn ceiling(&self, state: SaId) -> u64;
    /// Returns when the ceiling is on the disk (`fsync`).
    fn write(&mut self, state: SaId, ceiling: u64) -> io::Result<()>;
    /// Random bits.
    fn random(&mut self) -> NonZeroU32;
}

/// Instead of publishing at once: call `Database::track_changes` before the first change.
fn publish(database: &mut Database, store: &mut impl SentStore) -> io::Result<()> {
    let added = database.take_changes().added;
    // All of them before the first write may fail: `renew` finds them, too.
    added.iter().for_each(|sa| sa.sequence().skip_to(store.ceiling(sa.id())));
    added.iter().try_for_each(|sa| reserve(sa, store))?;
    database.publish();
    Ok(())
}

/// Also several times a second, for states that have used half.
fn renew(database: &Database, store: &mut impl SentStore) -> io::Result<()> {
    let mut short = database.current().sad.iter().filter(|sa| is_short(sa));
    short.try_for_each(|sa| reserve(sa, store))
}

fn is_short(sa: &Sa) -> bool {
    let (reserved, last) = (sa.sequence().reserved(), sa.sequence().last());
    // `last` is above `reserved` where workers asked for more than there was.
    reserved < sa.config().last_number() && reserved.saturating_sub(last) < AHEAD / 2
}

fn reserve(sa: &Sa, store: &mut impl SentStore) -> io::Result<()> {
    let last = sa.sequence().last();
    let ceiling = last.saturating_add(AHEAD).min(sa.config().last_number());
    // Without a `ReplayStore` there is an IV prefix for all numbers. With one you draw that of each
    // 2^32 numbers: a worker that sends a number without prefix panics.
    for upper in (last >> 32) as u32..=(ceiling >> 32) as u32 {
        if sa.iv_prefix(upper).is_none() {
            sa.set_iv_prefix(IvPrefix::new(upper, store.random()));
        }
    }
    store.write(sa.id(), ceiling)?;
    sa.sequence().reserve(ceiling); // only now may workers use them
    Ok(())
}
