//! Whether the kernel has nf_tables, by which the guard and marks work.

use uxfrm_io::nftables::Nftables;
use uxfrm_status::quantity::things;

use super::finding::Finding;

const CHECK: &str = "nf_tables";

/// What asking for its tables gives.
#[derive(Debug)]
enum Answer {
    /// The names of all tables.
    Tables(Vec<String>),
    Unsupported,
    NotPermitted,
    Failed(String),
}

/// Asks this network namespace's nf_tables.
pub(super) fn check() -> Finding {
    judge(&match Nftables::open().and_then(|mut tables| tables.tables()) {
        Ok(tables) => Answer::Tables(tables),
        Err(error) if error.is_unsupported() => Answer::Unsupported,
        Err(error) if error.errno() == nix::errno::Errno::EPERM as i32 => Answer::NotPermitted,
        Err(error) => Answer::Failed(error.to_string()),
    })
}

fn judge(answer: &Answer) -> Finding {
    match answer {
        Answer::Tables(tables) => {
            let own: Vec<_> = tables.iter().filter(|name| name.starts_with("uxfrm-")).collect();
            let own = if own.is_empty() { "none of uxfrm's" } else { "with uxfrm's guard" };
            Finding::ok(
                CHECK,
                format!("there, {}, {own}", things(tables.len() as u64, "table", "tables")),
            )
        }
        Answer::Unsupported => Finding::warn(
            CHECK,
            "not in this kernel: nothing keeps plain packets out, and destinations alone lead packets to uxfrm",
            "modprobe nf_tables",
        ),
        Answer::NotPermitted => {
            Finding::warn(CHECK, "not known: it answers root only", "sudo uxfrm doctor")
        }
        Answer::Failed(why) => Finding::fail(CHECK, why, "modprobe nf_tables"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn answers_are_judged() {
        let tables = vec!["filter".to_owned(), "uxfrm-uxfrm0".to_owned()];
        let found = judge(&Answer::Tables(tables));
        assert_eq!(found.found, "there, 2 tables, with uxfrm's guard");
        assert_eq!(judge(&Answer::Unsupported).severity, Severity::Warn);
        assert_eq!(judge(&Answer::NotPermitted).severity, Severity::Warn);
        assert_eq!(judge(&Answer::Failed("x".to_owned())).severity, Severity::Fail);
    }
}
