//! Takes a gateway down, in order or by a fault.

use anyhow::Context as _;
use uxfrm_runtime::WorkerThread;

use super::Gateway;
use crate::reconcile::databases::close_store;
use crate::{config::AtExit, firewall::host_bypass::HostBypass};

/// What becomes of a host whose gateway ends by a fault.
pub(super) const STAYS: &str = "protected destinations stay unreachable until uxfrm runs again";

/// And of what would pass between the devices of inline mode: their table stays.
pub(super) const KEPT_OUT: &str =
    "nothing passes between the devices of [inline] until uxfrm runs again";

impl Gateway {
    /// The orderly end. One that opens: routes first, so that nothing is brought to workers that
    /// are gone; the guard last. Else both stay.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        // The TUN goes with its last descriptor.
        self.descriptors.close();
        let (guard, host_bypass, store) = match self.at_exit {
            AtExit::Open => self.reconciler.close_routes()?,
            AtExit::Block => (None, None, self.reconciler.leave_routes()),
        };
        self.workers.into_iter().chain(self.resolver).try_for_each(WorkerThread::stop)?;
        self.devices.stop()?;
        self.tunnels.stop()?;
        self.policy_saver.end(&self.database, self.reload.written(), self.at_exit);
        if self.at_exit == AtExit::Block {
            tracing::info!(
                "what is protected stays refused until the next start; `uxfrm clean` opens it"
            );
        }
        guard.map_or(Ok(()), |guard| guard.close())?;
        host_bypass.map_or(Ok(()), HostBypass::take_down)?;
        let mut database = self.database;
        close_store(&mut database, store).context("can't write down used sequence numbers")
    }

    /// The end by a fault. Routes stay: beneath those to the TUN lie unreachable ones, and nothing
    /// leaves plain. The guard stays: nothing comes in plain.
    pub(super) fn abort(mut self, error: anyhow::Error) -> anyhow::Error {
        self.descriptors.close();
        let error =
            match self.workers.into_iter().chain(self.resolver).try_for_each(WorkerThread::stop) {
                Ok(()) => error,
                Err(cause) => anyhow::Error::new(cause).context(error),
            };
        error.context(STAYS)
    }
}
