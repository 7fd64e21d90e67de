//! Whether a gateway runs in this network namespace.

use uxfrm_control_client::stat;

use crate::{host::Host, left_guard};

use super::finding::Finding;

const CHECK: &str = "gateway";
const CONFIG: &str = "/etc/uxfrm/uxfrm.toml";
/// Where configurations and units are.
const CONFIGS: &str = "/etc/uxfrm";
const UNITS: &str = "/etc/systemd/system";
const UNIT_LINK: &str = "/etc/systemd/system/multi-user.target.wants/uxfrm.service";

/// What the gateway answers.
#[derive(Debug)]
enum Answer {
    /// It runs; what it has to say.
    Runs(Vec<String>),
    /// Why there is no answer.
    None(String),
}

/// Asks it.
pub(super) fn check(host: &Host) -> Finding {
    let answer = match stat::read_counters() {
        Ok(report) => Answer::Runs(report.notices),
        Err(why) => Answer::None(format!("{why:#}")),
    };
    let guard = left_guard::words(&left_guard::tables());
    let (config, is_enabled) = (config(host), host.has(UNIT_LINK));
    judge(&answer, guard.as_deref(), config.as_deref(), is_enabled)
}

/// The configuration of this host: the usual one, another beside it, or one that a unit runs.
fn config(host: &Host) -> Option<String> {
    if host.has(CONFIG) {
        return Some(CONFIG.to_owned());
    }
    let beside = host.names(CONFIGS).into_iter().find(|name| name.ends_with(".toml"));
    let beside = beside.map(|name| format!("{CONFIGS}/{name}"));
    beside.or_else(|| {
        let units = host.names(UNITS).into_iter().filter(|name| name.ends_with(".service"));
        let mut texts = units.filter_map(|name| host.read(format!("{UNITS}/{name}")));
        texts.find_map(|text| {
            let (_, words) = text.split_once("uxfrm run ")?;
            words.split_whitespace().next().map(str::to_owned)
        })
    })
}

fn judge(answer: &Answer, guard: Option<&str>, config: Option<&str>, is_enabled: bool) -> Finding {
    let left = guard.map_or_else(String::new, |guard| format!("; {guard}"));
    match answer {
        Answer::Runs(notices) => match notices.first() {
            None => Finding::ok(CHECK, "runs in this network namespace"),
            Some(first) => Finding::warn(CHECK, format!("runs: {first}"), "uxfrm stat (says all)"),
        },
        Answer::None(why) if is_enabled => {
            let mend = "systemctl restart uxfrm; journalctl -u uxfrm";
            Finding::fail(
                CHECK,
                format!("uxfrm.service is enabled and does not run: {why}{left}"),
                mend,
            )
        }
        Answer::None(_) => match (config, guard) {
            (Some(CONFIG), _) => {
                let mend = "systemctl enable --now uxfrm";
                Finding::warn(CHECK, format!("does not run, and is not enabled{left}"), mend)
            }
            (Some(config), _) => {
                let mend = format!("uxfrm run {config}");
                Finding::warn(CHECK, format!("does not run{left}"), &mend)
            }
            (None, Some(_)) => {
                Finding::warn(CHECK, format!("does not run{left}"), "uxfrm run CONFIG")
            }
            (None, None) => {
                let mend = "uxfrm setup strongswan | libreswan | static";
                Finding::warn(CHECK, format!("does not run, and there is no {CONFIG}"), mend)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn a_gateway_that_should_run_and_does_not_is_a_failure() {
        let none = Answer::None("no uxfrm runs".to_owned());
        for (answer, config, is_enabled, severity) in [
            (&Answer::Runs(Vec::new()), Some(CONFIG), true, Severity::Ok),
            (
                &Answer::Runs(vec!["the store is damaged".to_owned()]),
                Some(CONFIG),
                true,
                Severity::Warn,
            ),
            (&none, None, false, Severity::Warn),
            (&none, Some(CONFIG), false, Severity::Warn),
            (&none, Some(CONFIG), true, Severity::Fail),
        ] {
            let found = judge(answer, None, config, is_enabled);
            assert_eq!(found.severity, severity, "{answer:?}");
        }
    }

    #[test]
    fn guard_that_is_left_and_an_own_configuration_are_told() {
        let none = Answer::None("no uxfrm runs".to_owned());
        let guard = Some("what was protected stays refused");
        let mend = |guard, config| judge(&none, guard, config, false).mend.unwrap_or_default();
        assert!(mend(None, None).starts_with("uxfrm setup"));
        assert_eq!(mend(guard, None), "uxfrm run CONFIG");
        assert_eq!(mend(guard, Some("/srv/gw.toml")), "uxfrm run /srv/gw.toml");
        assert!(judge(&none, guard, None, false).found.contains("stays refused"));
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        assert_eq!(config(&host), None);
        let units = host.path(UNITS);
        std::fs::create_dir_all(&units).unwrap();
        let unit = "[Service]\nExecStart=/usr/bin/uxfrm run /srv/gw.toml\n";
        std::fs::write(units.join("gw.service"), unit).unwrap();
        assert_eq!(config(&host).as_deref(), Some("/srv/gw.toml"));
    }
}
