//! Whether AppArmor lets IKE daemons load the preload library.

use crate::host::Host;

use super::finding::Finding;

const CHECK: &str = "AppArmor";

/// Programs whose profiles have to let the library in, and the word of their setup.
const PROGRAMS: &[(&str, &str)] = &[
    ("charon", "strongswan"),
    ("charon-systemd", "strongswan"),
    ("starter", "strongswan"),
    ("pluto", "libreswan"),
];

/// A profile of an IKE daemon.
#[derive(Debug)]
struct Profile {
    name: String,
    setup: &'static str,
    is_enforced: bool,
    /// Whether its local part names the library or the package's rules.
    knows_uxfrm: bool,
}

/// Reads the profiles that are loaded.
pub(super) fn check(host: &Host) -> Finding {
    if host.word("/sys/module/apparmor/parameters/enabled").as_deref() != Some("Y") {
        return Finding::ok(CHECK, "not enabled");
    }
    let Some(text) = host.read("/sys/kernel/security/apparmor/profiles") else {
        let found = "enabled; its profiles are readable by root only";
        return Finding::warn(CHECK, found, "sudo uxfrm doctor");
    };
    judge(&profiles(&text, |file| host.read(format!("/etc/apparmor.d/local/{file}"))))
}

fn profiles(text: &str, local: impl Fn(&str) -> Option<String>) -> Vec<Profile> {
    let lines = text.lines().filter_map(|line| line.rsplit_once(" ("));
    let daemons = lines.filter_map(|(name, mode)| {
        let program = name.rsplit(['/', '.']).next()?;
        let (_, setup) = PROGRAMS.iter().find(|(known, _)| *known == program)?;
        let rules = local(&name.trim_start_matches('/').replace('/', ".")).unwrap_or_default();
        let knows_uxfrm = rules.lines().any(|line| {
            !line.trim_start().starts_with("# ")
                && (line.contains("abstractions/uxfrm") || line.contains("libuxfrm_redirect.so"))
        });
        let is_enforced = mode.starts_with("enforce");
        Some(Profile { name: name.to_owned(), setup, is_enforced, knows_uxfrm })
    });
    daemons.collect()
}

fn judge(profiles: &[Profile]) -> Finding {
    let blocking = profiles.iter().find(|profile| profile.is_enforced && !profile.knows_uxfrm);
    match blocking {
        Some(Profile { name, setup, .. }) => Finding::fail(
            CHECK,
            format!("the profile {name} is enforced and does not let the preload library in"),
            &format!("uxfrm setup {setup}"),
        ),
        None if profiles.is_empty() => {
            Finding::ok(CHECK, "enabled, without a profile of an IKE daemon")
        }
        None => Finding::ok(CHECK, "enabled; the IKE daemons' profiles are not in the way"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn an_enforced_profile_without_our_rules_is_a_failure() {
        let include = "  include <abstractions/uxfrm>\n";
        for (line, local, severity) in [
            ("/usr/lib/ipsec/charon (enforce)", "", Severity::Fail),
            ("/usr/lib/ipsec/charon (enforce)", include, Severity::Ok),
            ("/usr/lib/ipsec/charon (enforce)", "# include <abstractions/uxfrm>\n", Severity::Fail),
            ("/usr/sbin/charon-systemd (complain)", "", Severity::Ok),
            ("/usr/sbin/ntpd (enforce)", "", Severity::Ok),
        ] {
            let profiles = profiles(line, |file| {
                assert!(file.starts_with("usr."), "{file}");
                Some(local.to_owned())
            });
            assert_eq!(judge(&profiles).severity, severity, "{line} {local}");
        }
    }
}
