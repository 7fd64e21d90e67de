//! The time that goes on while the machine sleeps.

use nix::time::{ClockId, clock_gettime};
use uxfrm_fleet::agent::Millis;

/// Milliseconds of CLOCK_BOOTTIME.
#[must_use]
pub fn boot_millis() -> Millis {
    // The kernel has had this clock since 2.6.39; it begins at 0.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
        let (seconds, nanoseconds) = (time.tv_sec(), time.tv_nsec());
        u64::try_from(seconds * 1_000 + nanoseconds / 1_000_000).unwrap_or_default()
    })
}
