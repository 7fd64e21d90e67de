//! Counts of what ports did not send.

use uxfrm_engine::{DropReason, Moment, Spi, Worker};
use uxfrm_io::{FailedEsp, RefusedPacket};

/// Counts packets that a port of this worker dropped.
pub(crate) fn count(worker: &mut Worker, refused: &RefusedPacket, now: Moment) {
    worker.count_dropped(refused.busy, DropReason::PortFull, now);
    worker.count_dropped(refused.too_big, DropReason::PortTooBig, now);
    let esp = match refused.failed_esp {
        FailedEsp::Of(destination, spi) => Some((destination, Spi(spi))),
        FailedEsp::Unknown | FailedEsp::Mixed => None,
    };
    worker.count_refused(refused.unsupported + refused.failed, esp, refused.errno, now);
}
