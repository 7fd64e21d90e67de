//! The program that units start as root: this one, where nobody else could put another in its
//! place.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::host::Host;

/// Where packages have it.
const PACKAGED: &str = "/usr/bin/uxfrm";

/// Group and others.
const OTHERS: u32 = 0o022;
/// Nobody but its owner renames or removes what is in such a directory.
const STICKY: u32 = 0o1000;

/// The path for units: of this program, or on another host where packages have it.
///
/// # Errors
/// When another user could change the program, or systemd would read the path otherwise.
pub(super) fn path(host: &Host) -> anyhow::Result<PathBuf> {
    if !host.is_this_machine() {
        return Ok(PathBuf::from(PACKAGED));
    }
    let own = std::env::current_exe().context("can't tell where this program is")?;
    ensure_plain(&own)?;
    ensure_roots(&own)?;
    Ok(own)
}

/// systemd splits words at blanks, and takes `%`, `$`, quotes and backslashes for its own.
fn ensure_plain(program: &Path) -> anyhow::Result<()> {
    let text = program.to_str().unwrap_or_default();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._+-".contains(letter);
    ensure!(
        !text.is_empty() && text.chars().all(is_plain),
        "{} has letters that a systemd unit reads otherwise: install it as {PACKAGED}",
        program.display()
    );
    Ok(())
}

fn ensure_roots(program: &Path) -> anyhow::Result<()> {
    for place in program.ancestors() {
        let found = fs::metadata(place).with_context(|| format!("{}", place.display()))?;
        let is_shared =
            found.mode() & OTHERS != 0 && !(found.is_dir() && found.mode() & STICKY != 0);
        ensure!(
            found.uid() == 0 && !is_shared,
            "root would start {} at each boot, and user {} may change {}: install it as {PACKAGED} \
             (`install -o root -m 0755 {0} {PACKAGED}`)",
            program.display(),
            found.uid(),
            place.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn path_that_systemd_reads_otherwise_is_refused() {
        assert!(ensure_plain(Path::new("/opt/uxfrm-0.1.0/bin/uxfrm")).is_ok());
        for path in
            ["/opt/my tools/uxfrm", "/opt/100%/uxfrm", "/opt/$HOME/uxfrm", "/opt/a\"b", "/opt/a\\b"]
        {
            let refused = ensure_plain(Path::new(path)).unwrap_err().to_string();
            assert!(refused.contains("install it as /usr/bin/uxfrm"), "{refused}");
        }
    }

    #[test]
    fn program_that_others_may_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("uxfrm");
        fs::write(&program, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set(&program, 0o755).unwrap();
        set(directory.path(), 0o755).unwrap();
        let is_root = fs::metadata(&program).unwrap().uid() == 0;
        assert_eq!(ensure_roots(&program).is_ok(), is_root);
        for (path, mode) in [(&program, 0o775), (&directory.path().to_owned(), 0o777)] {
            set(path, mode).unwrap();
            assert!(ensure_roots(&program).is_err(), "{} {mode:o}", path.display());
            set(path, 0o755).unwrap();
        }
    }
}
