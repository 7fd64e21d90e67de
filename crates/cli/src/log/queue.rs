//! A bounded queue between those who log and the thread that writes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use tracing_subscriber::fmt::MakeWriter;
use uxfrm_io::sandbox::{self, Confinement};

/// Lines that may wait.
const LINES: usize = 4_096;

/// How long the last lines are waited for at the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where lines go that are not to be waited for. A line that finds the queue full is lost.
#[derive(Clone, Debug)]
pub(super) struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    lost: Arc<AtomicU64>,
}

/// The thread that writes lines; dropped, it waits a while until all are written.
#[derive(Debug)]
pub(crate) struct LogThread {
    lines: SyncSender<Vec<u8>>,
    ended: Receiver<()>,
}

/// What takes whole lines; its thread may wait for it.
pub(super) trait LineSink: Send + 'static {
    /// Writes a line, with its end where it has one. Faults are nobody's to hear.
    fn write_line(&mut self, line: &[u8]);

    /// A line that says how many were lost.
    fn lost(&self, count: u64) -> Vec<u8>;
}

/// In words.
pub(super) fn lost_words(count: u64) -> String {
    format!("{count} lines of the log are lost: its reader did not read")
}

/// Starts the thread.
///
/// # Errors
/// The kernel's.
pub(super) fn start(mut sink: impl LineSink) -> io::Result<(LogQueue, LogThread)> {
    let (lines, waiting) = sync_channel(LINES);
    let (end, ended) = channel();
    let lost = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&lost);
    // The thread inherits that: signals are for the threads that wait for them.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = thread::Builder::new().name("uxfrm-log".to_owned()).spawn(move || {
        write_all(&waiting, &counter, &mut sink);
        let _nobody_waits = end.send(());
    });
    before.thread_set_mask()?;
    started?;
    Ok((LogQueue { lines: lines.clone(), lost }, LogThread { lines, ended }))
}

/// Until an empty line comes.
fn write_all(waiting: &Receiver<Vec<u8>>, lost: &AtomicU64, sink: &mut impl LineSink) {
    let mut confined: Option<Confinement> = None;
    while let Ok(line) = waiting.recv() {
        // It starts before the gateway knows what it needs, and is confined with the others.
        if confined.is_none() && sandbox::has_begun() {
            confined = Some(sandbox::status());
        }
        if line.is_empty() {
            return;
        }
        sink.write_line(&line);
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            sink.write_line(&sink.lost(count));
        }
    }
}

impl LogQueue {
    /// Puts a line into the queue, or counts it as lost.
    pub(super) fn put(&self, line: &[u8]) {
        if !line.is_empty() && self.lines.try_send(line.to_vec()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The library writes each line in one call.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogQueue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        // A full queue is that of a reader who does not read.
        if self.lines.try_send(Vec::new()).is_ok() {
            let waited: Result<(), RecvTimeoutError> = self.ended.recv_timeout(FAREWELL);
            let _late = waited;
        }
    }
}
