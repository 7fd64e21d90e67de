//! By which of the kernel's congestion controls TCP sends.

use std::fs;
use std::io::{self, ErrorKind};

use uxfrm_io::Namespace;

/// One that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC: what Linux has where nobody chose another (RFC 9438).
    Cubic,
    /// What this machine has, where that is another.
    Chosen,
}

/// What connections use that do not say otherwise, and what those of a namespace may begin with.
const USED: &str = "tcp_congestion_control";
const ALLOWED: &str = "tcp_allowed_congestion_control";

impl Congestion {
    /// Those to measure on this machine: CUBIC, and what was chosen in its stead.
    #[must_use]
    pub fn here() -> Vec<Self> {
        Self::of(&setting(USED))
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

    /// Why connections of this network namespace can't begin with it; `None` where they can. It is tried: a control
    /// that is available may still be reserved to the machine's first namespace, and one that is not yet may be loaded.
    #[must_use]
    pub fn refusal(self, namespace: &Namespace) -> Option<String> {
        let error = self.begin_in(namespace).err()?;
        Some(explained(&error, &self.name(), &setting(ALLOWED)))
    }

    fn of(used: &str) -> Vec<Self> {
        [Self::Cubic].into_iter().chain((used != "cubic").then_some(Self::Chosen)).collect()
    }
}

fn explained(error: &io::Error, name: &str, allowed: &str) -> String {
    if error.kind() == ErrorKind::NotFound {
        return format!("not measured: this kernel has no {name}");
    }
    if error.kind() == ErrorKind::PermissionDenied {
        let setting = format!("net.ipv4.{ALLOWED} = {allowed}");
        return format!("not measured: a namespace may not begin TCP with {name} ({setting})");
    }
    format!("not measured: TCP can't begin with {name}: {error}")
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
    fn cubic_is_measured_beside_what_was_chosen() {
        assert_eq!(Congestion::of("cubic"), [Cubic]);
        assert_eq!(Congestion::of("bbr"), [Cubic, Chosen]);
    }

    #[test]
    fn a_refusal_says_what_would_let_it_be_measured() {
        let explained =
            |errno| explained(&io::Error::from_raw_os_error(errno), "cubic", "reno bbr");
        let allowed = "net.ipv4.tcp_allowed_congestion_control = reno bbr";
        assert!(explained(nix::libc::EPERM).contains(allowed));
        assert!(explained(nix::libc::ENOENT).ends_with("this kernel has no cubic"));
        assert!(explained(nix::libc::EIO).starts_with("not measured: TCP can't begin with cubic"));
    }
}
