//! Which lines are written: `RUST_LOG`.

use std::env;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use uxfrm_daemon::gateway::READY_TARGET;

const VARIABLE: &str = "RUST_LOG";

/// The filter that `RUST_LOG` names, and what to tell its author: one that is wrong counts as
/// `info`.
pub(super) fn from_environment() -> (EnvFilter, Option<String>) {
    let value = env::var(VARIABLE).unwrap_or_default();
    match filter(&value) {
        Ok(filter) => (filter, None),
        Err(fault) => {
            let advice = format!(
                "{VARIABLE}={value:?}: {fault}; it takes error, warn, info, debug, trace or off, \
                 or MODULE=LEVEL: info is taken"
            );
            (info().parse_lossy(""), Some(advice))
        }
    }
}

fn info() -> tracing_subscriber::filter::Builder {
    EnvFilter::builder().with_default_directive(LevelFilter::INFO.into())
}

/// Lets pass at any level what says that a gateway is ready.
pub(super) fn with_ready(filter: EnvFilter) -> EnvFilter {
    match format!("{READY_TARGET}=info").parse() {
        Ok(always) => filter.add_directive(always),
        Err(_) => filter,
    }
}

/// A bare word that is no level is a module to the library, which then logs nothing else.
fn filter(value: &str) -> Result<EnvFilter, String> {
    let words = value.split(',').map(str::trim).filter(|word| !word.is_empty());
    let words: Vec<_> = words.collect();
    for word in &words {
        let is_module = word.contains(['=', '[', ':']) || word.starts_with("uxfrm");
        if !is_module && word.parse::<LevelFilter>().is_err() {
            return Err(format!("{word:?} is no level"));
        }
    }
    info().parse(words.join(",")).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_modules_are_filters_and_other_words_are_not() {
        assert!(with_ready(filter("off").unwrap()).to_string().contains("uxfrm_ready=info"));
        for value in
            ["", "warn", "DEBUG", "off", "uxfrm_engine", "uxfrm_daemon=trace,warn", " info, "]
        {
            assert!(filter(value).is_ok(), "{value}");
        }
        for (value, says) in [
            ("bogus", "\"bogus\" is no level"),
            ("info,verbose", "\"verbose\""),
            ("uxfrm=loud", "error parsing level"),
        ] {
            let fault = filter(value).unwrap_err();
            assert!(fault.contains(says), "{value}: {fault}");
        }
    }
}
