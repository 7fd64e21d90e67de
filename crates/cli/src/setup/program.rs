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

/// A sticky directory is nobody's alone either: once the program is gone from there, as at a boot,
/// any user may put one of the same name.
fn ensure_roots(program: &Path) -> anyhow::Result<()> {
    ensure_roots_below(Path::new("/"), program)
}

fn ensure_roots_below(top: &Path, program: &Path) -> anyhow::Result<()> {
    for place in program.ancestors().take_while(|place| place.starts_with(top)) {
        let found = fs::metadata(place).with_context(|| format!("{}", place.display()))?;
        ensure!(
            found.uid() == 0 && found.mode() & OTHERS == 0,
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
        let check = || ensure_roots_below(directory.path(), &program);
        assert_eq!(check().is_ok(), is_root);
        assert!(ensure_roots(&program).is_err(), "it is in a directory for all");
        let place = directory.path().to_owned();
        for (path, mode) in [(&program, 0o775), (&place, 0o777), (&place, 0o1777)] {
            set(path, mode).unwrap();
            assert!(check().is_err(), "{} {mode:o}", path.display());
            set(path, 0o755).unwrap();
        }
    }
}
