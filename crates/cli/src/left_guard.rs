//! The guard of a gateway that has ended: its table stays, and refuses what was protected.

use uxfrm_control_client::stat;
use uxfrm_io::nftables::Nftables;

/// How the guard's tables begin; behind it stands the TUN.
const PREFIX: &str = "uxfrm-";

/// The guard's tables in this network namespace; none where they can't be read.
pub(crate) fn tables() -> Vec<String> {
    let tables = Nftables::open().and_then(|mut tables| tables.tables());
    let mut tables = tables.unwrap_or_default();
    tables.retain(|name| name.starts_with(PREFIX));
    tables
}

/// What is refused while no gateway runs, and what ends that.
pub(crate) fn words(tables: &[String]) -> Option<String> {
    let tables = (!tables.is_empty()).then(|| tables.join(", "))?;
    Some(format!(
        "what was protected stays refused (guard {tables}): `uxfrm run CONFIG` starts a gateway \
         that takes it over, `uxfrm clean` lets go"
    ))
}

/// The error of a gateway that can't be asked, with what its guard does meanwhile.
pub(crate) fn told(error: stat::Error) -> anyhow::Error {
    let is_absent = matches!(error, stat::Error::Absent(_));
    let words = is_absent.then(tables).and_then(|tables| words(&tables));
    match words {
        Some(words) => anyhow::Error::new(error).context(words),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_guard_is_told_with_what_ends_it() {
        assert_eq!(words(&[]), None);
        let told = words(&["uxfrm-uxfrm0".to_owned()]).unwrap();
        assert!(told.contains("guard uxfrm-uxfrm0") && told.contains("`uxfrm clean` lets go"));
    }

    #[test]
    fn error_keeps_its_exit_code() {
        let absent = stat::Error::Absent(std::io::ErrorKind::ConnectionRefused.into());
        let told = told(absent);
        assert_eq!(crate::exit_code::of(&told), crate::exit_code::UNASKED);
        assert!(format!("{told:#}").contains("no uxfrm runs in this network namespace"));
    }
}
