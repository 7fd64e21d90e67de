//! TCP's congestion control.

use std::fs;
use std::io::{self, ErrorKind};

use uxfrm_io::Namespace;

/// A congestion control that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC, Linux' default (RFC 9438).
    Cubic,
    /// This machine's default, if it is another.
    MachineDefault,
}

/// The sysctls of the default, and of the controls that namespaces may use.
const DEFAULT: &str = "tcp_congestion_control";
const ALLOWED: &str = "tcp_allowed_congestion_control";

impl Congestion {
    /// The controls to measure on this machine: CUBIC, and the machine's default if it is another.
    #[must_use]
    pub fn here() -> Vec<Self> {
        Self::of(&setting(DEFAULT))
    }

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Cubic => "cubic".to_owned(),
            Self::MachineDefault => setting(DEFAULT),
        }
    }

    /// Makes it the default of this network namespace. A connection that begins with BBR and
    /// changes later (`iperf3 -C`) stays paced by timers (`net/ipv4/tcp_bbr.c: bbr_init`), unlike
    /// one that begins with CUBIC.
    ///
    /// # Errors
    /// The kernel's: there is no such control, or not for this namespace
    /// (`tcp_allowed_congestion_control`).
    pub fn begin_in(self, namespace: &Namespace) -> io::Result<()> {
        let name = self.name(); // read outside the namespace
        namespace.enter(|| fs::write(path(DEFAULT), name))?
    }

    /// Why this network namespace can't use it; `None` if it can. Found by trying: an available
    /// control may be reserved to the initial namespace, and an unavailable one may be a module
    /// that loads.
    #[must_use]
    pub fn refusal(self, namespace: &Namespace) -> Option<String> {
        let error = self.begin_in(namespace).err()?;
        Some(explained(&error, &self.name(), &setting(ALLOWED)))
    }

    fn of(used: &str) -> Vec<Self> {
        [Self::Cubic].into_iter().chain((used != "cubic").then_some(Self::MachineDefault)).collect()
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
    use super::Congestion::{Cubic, MachineDefault};
    use super::*;

    #[test]
    fn cubic_is_measured_beside_the_machine_default() {
        assert_eq!(Congestion::of("cubic"), [Cubic]);
        assert_eq!(Congestion::of("bbr"), [Cubic, MachineDefault]);
    }

    #[test]
    fn refusal_names_the_sysctl_or_the_missing_control() {
        let explained =
            |errno| explained(&io::Error::from_raw_os_error(errno), "cubic", "reno bbr");
        let allowed = "net.ipv4.tcp_allowed_congestion_control = reno bbr";
        assert!(explained(nix::libc::EPERM).contains(allowed));
        assert!(explained(nix::libc::ENOENT).ends_with("this kernel has no cubic"));
        assert!(explained(nix::libc::EIO).starts_with("not measured: TCP can't begin with cubic"));
    }
}
