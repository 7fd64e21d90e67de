//! Finds the preload library.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

const NAME: &str = "libuxfrm_redirect.so";

/// Environment variable with the library's path, if it is elsewhere.
const VARIABLE: &str = "UXFRM_REDIRECT";

/// Finds the library: by the environment variable, beside this program, or in `../lib/uxfrm`.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let places = match std::env::var_os(VARIABLE) {
        Some(path) => vec![PathBuf::from(path)],
        None => usual_places()?,
    };
    let Some(found) = places.iter().find(|place| place.is_file()) else {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        bail!("no preload library at {} (set {VARIABLE} to where it is)", looked.join(" nor "));
    };
    let path = found.canonicalize().with_context(|| format!("can't find {}", found.display()))?;
    ensure!(is_one_word(&path), "{}: the loader takes no spaces and colons", path.display());
    Ok(path)
}

fn usual_places() -> anyhow::Result<Vec<PathBuf>> {
    let program = std::env::current_exe().context("can't tell where this program is")?;
    let directory = program.parent().unwrap_or_else(|| Path::new("/"));
    Ok(vec![directory.join(NAME), directory.join("../lib/uxfrm").join(NAME)])
}

/// `LD_PRELOAD` is split at spaces and colons.
fn is_one_word(path: &Path) -> bool {
    path.to_str().is_some_and(|path| !path.contains([' ', ':', '\n', '\t', '$']))
}
