//! By which of the kernel's congestion controls TCP sends.

use std::{fs, io};

use uxfrm_io::Namespace;

/// One that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC: what Linux has where nobody chose another (RFC 9438).
    Cubic,
    /// What this machine has, where that is another.
    Chosen,
}

/// What connections use that do not say otherwise, and what they may choose.
const USED: &str = "tcp_congestion_control";
const CHOICE: &str = "tcp_available_congestion_control";

impl Congestion {
    /// Those to measure on this machine: CUBIC where the kernel has it, and what was chosen in its stead.
    #[must_use]
    pub fn here() -> Vec<Self> {
        Self::of(&setting(USED), &setting(CHOICE))
    }

    /// As the kernel calls it.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Cubic => "cubic".to_owned(),
            Self::Chosen => setting(USED),
        }
    }

    /// Has connections of this network namespace begin with it. A connection that began with BBR and was given
    /// another later (`iperf3 -C`) is paced by timers ever after (`net/ipv4/tcp_bbr.c: bbr_init`), as CUBIC's are not.
    ///
    /// # Errors
    /// The kernel's: there is no such control, or not for this namespace (`tcp_allowed_congestion_control`).
    pub fn begin_in(self, namespace: &Namespace) -> io::Result<()> {
        let name = self.name(); // the machine's, which is not the namespace's
        namespace.enter(|| fs::write(path(USED), name))?
    }

    fn of(used: &str, choice: &str) -> Vec<Self> {
        let has_cubic = used == "cubic" || choice.split_whitespace().any(|name| name == "cubic");
        let cubic = has_cubic.then_some(Self::Cubic);
        cubic.into_iter().chain((used != "cubic").then_some(Self::Chosen)).collect()
    }
}

fn path(setting: &str) -> String {
    format!("/proc/sys/net/ipv4/{setting}")
}

fn setting(name: &str) -> String {
    let text = fs::read_to_string(path(name));
    text.map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::Congestion::{Chosen, Cubic};
    use super::*;

    #[test]
    fn what_linux_has_is_measured_beside_what_was_chosen() {
        assert_eq!(Congestion::of("cubic", "reno cubic"), [Cubic]);
        assert_eq!(Congestion::of("bbr", "reno bbr cubic"), [Cubic, Chosen]);
        assert_eq!(Congestion::of("reno", "reno"), [Chosen]);
        assert_eq!(Congestion::of("cubic", ""), [Cubic]);
    }
}
