//! The time-stamp counter and its rate.

use std::time::{Duration, Instant};

/// Counts TSC cycles; where there is no TSC, nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct TscClock {
    hz: f64,
}

impl TscClock {
    /// Measures the counter's rate against the monotonic clock, for a tenth of a second.
    #[must_use]
    pub fn calibrate() -> Self {
        let (start, from) = (Instant::now(), Self::now());
        while start.elapsed() < Duration::from_millis(100) {
            core::hint::spin_loop();
        }
        let cycles = Self::now().wrapping_sub(from);
        Self { hz: precise(cycles) / start.elapsed().as_secs_f64() }
    }

    /// Cycles per second.
    #[must_use]
    pub fn hz(&self) -> f64 {
        self.hz
    }

    /// The counter now.
    #[must_use]
    #[inline]
    pub fn now() -> u64 {
        #[cfg(target_arch = "x86_64")]
        return uxfrm_crypto::cycles::now();
        #[cfg(not(target_arch = "x86_64"))]
        return nanoseconds();
    }

    /// Cycles since `from`, an earlier [`Self::now`], per each of `packets`.
    #[must_use]
    pub fn per_packet(from: u64, packets: usize) -> f64 {
        precise(Self::now().wrapping_sub(from)) / precise(packets as u64)
    }
}

/// Counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(not(target_arch = "x86_64"))]
fn nanoseconds() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
