//! Whether the IKE daemons that are installed start under `uxfrm exec`.

use crate::ike_unit::IkeUnit;

use super::finding::Finding;

/// A finding for each unit.
pub(super) fn check(units: &[IkeUnit]) -> Vec<Finding> {
    units.iter().map(judge).collect()
}

fn judge(unit: &IkeUnit) -> Finding {
    let name = &unit.name;
    if unit.is_under_exec() {
        return Finding::ok("IKE daemon", format!("{name} starts under uxfrm exec"));
    }
    let mend = format!("uxfrm setup {}", unit.daemon.word());
    Finding::warn("IKE daemon", format!("{name} starts beside uxfrm, on the kernel's ESP"), &mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;
    use crate::ike_unit::{Commands, IkeDaemon};

    #[test]
    fn a_unit_without_uxfrm_exec_is_told_with_its_setup() {
        for (start, severity) in [
            ("/usr/sbin/charon-systemd", Severity::Warn),
            ("/usr/bin/uxfrm exec -- /usr/sbin/charon-systemd", Severity::Ok),
        ] {
            let commands = Commands { start: start.to_owned(), ..Commands::default() };
            let (name, daemon) = ("strongswan.service".to_owned(), IkeDaemon::StrongSwan);
            assert_eq!(judge(&IkeUnit { name, daemon, commands }).severity, severity);
        }
    }
}
