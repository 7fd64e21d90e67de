//! What AppArmor's profiles of IKE daemons have to be told.

use std::path::{Path, PathBuf};

use crate::host::Host;
use crate::ike_unit::IkeDaemon;

use super::plan::{Plan, Step};

/// The rules, which the package brings.
const ABSTRACTION: &str = "/etc/apparmor.d/abstractions/uxfrm";

/// The profiles of a daemon's programs, as Debian and Ubuntu name them.
const fn profiles(daemon: IkeDaemon) -> &'static [&'static str] {
    match daemon {
        IkeDaemon::StrongSwan => {
            &["usr.lib.ipsec.charon", "usr.sbin.charon-systemd", "usr.lib.ipsec.starter"]
        }
        IkeDaemon::Libreswan => &["usr.libexec.ipsec.pluto", "usr.lib.ipsec.pluto"],
    }
}

/// Adds what the profiles that are installed need.
pub(super) fn extend(plan: &mut Plan, host: &Host, daemon: IkeDaemon) {
    let directory = Path::new("/etc/apparmor.d");
    for name in profiles(daemon).iter().filter(|name| host.has(directory.join(name))) {
        if !host.has(ABSTRACTION) {
            plan.notes.push(format!(
                "AppArmor has a profile {name}, and {ABSTRACTION} is not there: take it from the package (docs/ike.md)"
            ));
            continue;
        }
        let path = directory.join("local").join(name);
        plan.steps.push(Step::Lines { path, text: "include <abstractions/uxfrm>\n".to_owned() });
        plan.profiles.push(directory.join(name));
    }
}

/// Whether the kernel enforces profiles at all.
pub(super) fn is_enabled(host: &Host) -> bool {
    host.word("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y")
}

/// The command that loads a profile anew.
pub(super) fn reload(profile: &Path) -> Vec<PathBuf> {
    vec![PathBuf::from("apparmor_parser"), PathBuf::from("-r"), profile.to_owned()]
}
