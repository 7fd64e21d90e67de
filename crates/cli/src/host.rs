//! A host's files below a root directory: `/`, or with `--root` another.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a host's files begin.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    root: PathBuf,
}

impl Host {
    /// The host whose `/` is `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whether it is this machine, as it runs.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where one of its absolute paths is on this machine.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text. `None` where it cannot be read.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read(self.path(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file's text without the white space around it.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        self.read(path).map(|text| text.trim().to_owned())
    }

    /// Whether something is there, also a dangling link.
    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    /// The names in a directory, sorted; none where it cannot be read.
    pub(crate) fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(directory)) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/x.d")).unwrap();
        fs::write(root.path().join("etc/x.d/b"), " word \n").unwrap();
        fs::write(root.path().join("etc/x.d/a"), "").unwrap();
        let host = Host::at(root.path());
        assert_eq!(host.word("/etc/x.d/b").unwrap(), "word");
        assert_eq!(host.names("/etc/x.d"), ["a", "b"]);
        assert!(host.has("/etc/x.d/a") && !host.has("/etc/x.d/c"));
        assert!(!host.is_this_machine() && Host::at(Path::new("/")).is_this_machine());
    }
}
