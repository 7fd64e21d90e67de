//! Takes a gateway down, in order or by a fault.

use anyhow::Context as _;
use uxfrm_runtime::Running;

use super::Gateway;
use crate::reconcile::databases::close_store;
use crate::{config::AtExit, firewall::host_bypass::KeepOut};

/// What becomes of a host whose gateway ends by a fault.
pub(super) const STAYS: &str = "protected destinations stay unreachable until uxfrm runs again";

/// And of what would pass between the devices of inline mode: their table stays.
pub(super) const KEPT_OUT: &str =
    "nothing passes between the devices of [inline] until uxfrm runs again";

impl Gateway {
    /// The orderly end. One that opens: routes first, so that nothing is brought to lanes that are
    /// gone; the guard last. Else both stay.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        // The TUN goes with its last descriptor.
        self.descriptors.close();
        let (guard, keep_out, store) = match self.at_exit {
            AtExit::Open => self.following.close_routes()?,
            AtExit::Block => (None, None, self.following.leave_routes()),
        };
        self.lanes.into_iter().chain(self.guidance).try_for_each(Running::stop)?;
        self.devices.stop()?;
        self.tunnels.stop()?;
        self.keeping.end(&self.database, self.reload.written(), self.at_exit);
        if self.at_exit == AtExit::Block {
            tracing::info!(
                "what is protected stays refused until the next start; `uxfrm clean` opens it"
            );
        }
        guard.map_or(Ok(()), |guard| guard.close())?;
        keep_out.map_or(Ok(()), KeepOut::take_down)?;
        let mut database = self.database;
        close_store(&mut database, store).context("can't write down used sequence numbers")
    }

    /// The end by a fault. Routes stay: beneath those to the TUN lie unreachable ones, and nothing leaves plain. The guard
    /// stays: nothing comes in plain.
    pub(super) fn fail(mut self, error: anyhow::Error) -> anyhow::Error {
        self.descriptors.close();
        let error = match self.lanes.into_iter().chain(self.guidance).try_for_each(Running::stop) {
            Ok(()) => error,
            Err(cause) => anyhow::Error::new(cause).context(error),
        };
        error.context(STAYS)
    }
}
