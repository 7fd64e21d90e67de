//! Whether a gateway runs in this network namespace.

use uxfrm_control_client::stat;

use crate::host::Host;

use super::finding::Finding;

const CHECK: &str = "gateway";
const CONFIG: &str = "/etc/uxfrm/uxfrm.toml";
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
    judge(&answer, host.has(CONFIG), host.has(UNIT_LINK))
}

fn judge(answer: &Answer, has_config: bool, is_enabled: bool) -> Finding {
    match answer {
        Answer::Runs(notices) => match notices.first() {
            None => Finding::ok(CHECK, "runs in this network namespace"),
            Some(first) => Finding::warn(CHECK, format!("runs: {first}"), "uxfrm stat (says all)"),
        },
        Answer::None(_) if !has_config => {
            let mend = "uxfrm setup strongswan | libreswan | static";
            Finding::warn(CHECK, format!("does not run, and there is no {CONFIG}"), mend)
        }
        Answer::None(why) if is_enabled => {
            let mend = "systemctl restart uxfrm; journalctl -u uxfrm";
            Finding::fail(CHECK, format!("uxfrm.service is enabled and does not run: {why}"), mend)
        }
        Answer::None(_) => {
            let mend = "systemctl enable --now uxfrm";
            Finding::warn(CHECK, "does not run, and is not enabled", mend)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn a_gateway_that_should_run_and_does_not_is_a_failure() {
        let none = Answer::None("no uxfrm runs".to_owned());
        for (answer, has_config, is_enabled, severity) in [
            (&Answer::Runs(Vec::new()), true, true, Severity::Ok),
            (&Answer::Runs(vec!["the store is damaged".to_owned()]), true, true, Severity::Warn),
            (&none, false, false, Severity::Warn),
            (&none, true, false, Severity::Warn),
            (&none, true, true, Severity::Fail),
        ] {
            assert_eq!(judge(answer, has_config, is_enabled).severity, severity, "{answer:?}");
        }
    }
}
