//! Time in the engine.

use std::time::Duration;

/// A point in time: nanoseconds since a start that the caller chose and never moves back
/// (`CLOCK_BOOTTIME` in the daemon, anything in a test).
///
/// ```
/// use std::time::Duration;
/// use uxfrm_engine::Moment;
///
/// let start = Moment::from_secs(10);
/// let later = start.plus(Duration::from_millis(1500));
/// assert_eq!(later.since(start), Duration::from_millis(1500));
/// assert_eq!(start.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `seconds` after the start.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Whole seconds since the start.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// This moment and `duration` more; stays at the end of time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// Time passed since `earlier`; zero when that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
