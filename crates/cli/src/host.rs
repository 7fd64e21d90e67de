//! A host's files below a root directory: `/`, or with `--root` another.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

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

    /// Whether two of its paths lead to one file, through links that are the host's own: `/lib` may
    /// be one to `usr/lib`.
    pub(crate) fn is_same_file(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> bool {
        let [one, other] = [self.resolve(one.as_ref()), self.resolve(other.as_ref())];
        one.is_some() && one == other
    }

    /// Where a path leads in the end, as a path of the host, below its root as in a chroot. `None`
    /// where nothing is there.
    pub(crate) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let mut left: Vec<_> = parts(path);
        let mut resolved = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
            match part {
                Part::Up => drop(resolved.pop()),
                Part::Root => resolved = PathBuf::from("/"),
                Part::Name(name) => {
                    let here = resolved.join(name);
                    let found = fs::symlink_metadata(self.path(&here)).ok()?;
                    if found.is_symlink() {
                        links += 1;
                        left.extend(parts(&fs::read_link(self.path(&here)).ok()?));
                    } else {
                        resolved = here;
                    }
                }
            }
            if links > MOST_LINKS {
                return None;
            }
        }
        Some(resolved)
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

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// A part of a path.
enum Part {
    Root,
    Up,
    Name(OsString),
}

/// The parts of a path, the last first.
fn parts(path: &Path) -> Vec<Part> {
    let parts = path.components().rev().filter_map(|component| match component {
        Component::RootDir => Some(Part::Root),
        Component::ParentDir => Some(Part::Up),
        Component::Normal(name) => Some(Part::Name(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/lib/x")).unwrap();
        fs::write(root.path().join("usr/lib/x/unit"), "").unwrap();
        for (link, target) in
            [("lib", "usr/lib"), ("up", "../../lib/x/unit"), ("all", "/lib/x/unit"), ("me", "/me")]
        {
            std::os::unix::fs::symlink(target, root.path().join(link)).unwrap();
        }
        let host = Host::at(root.path());
        let unit = Path::new("/usr/lib/x/unit");
        for path in ["/lib/x/unit", "/up", "/all", "/usr/lib/x/unit"] {
            assert_eq!(host.resolve(Path::new(path)).as_deref(), Some(unit), "{path}");
            assert!(host.is_same_file(path, unit));
        }
        for path in ["/me", "/none", "/usr/lib"] {
            assert!(!host.is_same_file(path, unit), "{path}");
        }
        assert!(!host.is_same_file("/none", "/none"));
    }

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
