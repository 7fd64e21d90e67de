//! Rebuilds the policy classifier on a thread of its own after policies came one by one. It may
//! take some tenths of a second.

use std::io;
use std::thread::{self, JoinHandle};

use uxfrm_engine::{Database, Rebuild, RebuiltIndex};
use uxfrm_io::{poll::Waker, priority};

use crate::clock::now;

/// At most one rebuild at a time.
#[derive(Debug)]
pub(crate) struct PolicyRebuild {
    waker: Waker,
    planning: Option<JoinHandle<RebuiltIndex>>,
}

impl PolicyRebuild {
    /// Whoever waits at the poller of `waker` is woken when a plan is made.
    pub(crate) const fn new(waker: Waker) -> Self {
        Self { waker, planning: None }
    }

    /// Takes in what is planned, and begins with what is to be planned.
    pub(crate) fn maintain(&mut self, database: &mut Database) {
        if let Some(thread) = self.planning.take_if(|thread| thread.is_finished()) {
            let revised = thread.join().ok();
            match revised {
                Some(_) => tracing::debug!("policies that came one by one are planned anew"),
                None => tracing::error!("policies that came one by one could not be planned anew"),
            }
            database.install_rebuilt(revised, now());
        }
        let Some(revision) = database.take_rebuild() else { return };
        match plan(revision, self.waker.clone()) {
            Ok(thread) => self.planning = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread to plan policies anew");
                database.install_rebuilt(None, now());
            }
        }
    }
}

fn plan(revision: Rebuild, waker: Waker) -> io::Result<JoinHandle<RebuiltIndex>> {
    thread::Builder::new().name("planner".into()).spawn(move || {
        if let Err(error) = priority::lower_priority() {
            tracing::debug!(%error, "plans beside the lanes");
        }
        let revised = revision.build();
        waker.wake();
        revised
    })
}
