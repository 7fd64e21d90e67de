//! The clocks of the control thread. All code asks for the time here, so that a simulation can set
//! it.

use uxfrm_engine::Moment;
use uxfrm_io::clock;

/// Where the time comes from.
pub(crate) trait Clock {
    /// Since the machine started; it never steps.
    fn now(&self) -> Moment;

    /// Nanoseconds from 1970 to now; it may step.
    fn wall(&self) -> u64;
}

/// The machine's own.
struct MachineClock;

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        Moment(clock::boot_nanoseconds())
    }

    fn wall(&self) -> u64 {
        clock::wall_nanoseconds()
    }
}

/// What time it is, for all that lasts.
pub(crate) fn now() -> Moment {
    ask(|clock| clock.now())
}

/// When the machine's start was, by the clock as it is now: somebody may set it while we run.
pub(crate) fn epoch() -> u64 {
    ask(|clock| clock.wall().saturating_sub(clock.now().0))
}

#[cfg(not(test))]
fn ask<T>(question: impl FnOnce(&dyn Clock) -> T) -> T {
    question(&MachineClock)
}

#[cfg(test)]
fn ask<T>(question: impl FnOnce(&dyn Clock) -> T) -> T {
    SET.with_borrow(|set| question(set.as_deref().unwrap_or(&MachineClock)))
}

#[cfg(test)]
thread_local! {
    static SET: std::cell::RefCell<Option<std::rc::Rc<dyn Clock>>> = const { std::cell::RefCell::new(None) };
}

/// Has this thread ask another clock from now on.
#[cfg(test)]
pub(crate) fn set(clock: std::rc::Rc<dyn Clock>) {
    SET.set(Some(clock));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Moment {
            Moment(3)
        }

        fn wall(&self) -> u64 {
            10
        }
    }

    #[test]
    fn thread_with_own_clock_reads_that_clock() {
        let asked = std::thread::spawn(|| {
            set(std::rc::Rc::new(Stopped));
            (now(), epoch())
        });
        assert_eq!(asked.join().unwrap(), (Moment(3), 7));
        assert!(now() > Moment(3));
    }
}
