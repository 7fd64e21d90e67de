//! Records on their way from a worker to whoever collects them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::record::DropRecord;

/// Records that a worker keeps for its reader; more are lost. About 100 KiB.
pub const RECORDS_KEPT: usize = 256;

/// One worker's records since they were last taken, the oldest first. The worker never waits: while
/// a reader takes them, or if nobody does, it loses records and counts them.
///
/// ```
/// use uxfrm_crypto::Backend;
/// use uxfrm_engine::{Database, DropReason, Moment, Output, Settings, Worker};
/// use uxfrm_packet::{Batch, PacketBuf, Pool};
///
/// let database = Database::new(Backend::Auto, 1);
/// let mut worker = Worker::new(Settings::default(), &database.published())?;
/// let records = worker.drop_records(); // for another thread
/// let mut batch: Batch = [PacketBuf::from_slice(b"not IP")].into_iter().collect();
/// worker.outbound(&mut batch, Moment(7), &mut Pool::new(), &mut Output::default());
///
/// let [record] = &records.take()[..] else { panic!() };
/// assert_eq!((record.reason, record.packets), (DropReason::OutMalformed, 1));
/// assert_eq!(record.at, Moment(7));
/// assert!(records.take().is_empty() && records.lost() == 0);
/// # Ok::<(), uxfrm_crypto::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct DropRecords {
    kept: Mutex<Vec<DropRecord>>,
    lost: AtomicU64,
}

impl DropRecords {
    /// Takes the records since the last time, in order. For a reader every second or more often.
    #[must_use]
    pub fn take(&self) -> Vec<DropRecord> {
        // Allocated here, so that the worker allocates nothing for a reader.
        let empty = Vec::with_capacity(RECORDS_KEPT);
        // A panic elsewhere leaves whole records.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *kept, empty)
    }

    /// Records lost so far, as nobody took them in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Adds a record if that needs no waiting.
    pub(super) fn put(&self, record: DropRecord) {
        match self.kept.try_lock() {
            Ok(mut kept) if kept.len() < RECORDS_KEPT => kept.push(record),
            Ok(_) | Err(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
