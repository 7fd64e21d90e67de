//! Restricts access to files, directories and other processes by Landlock (`landlock(7)`).

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

use super::{AllowedPaths, Error};

/// Newest ABI to request; an older kernel restricts what it knows.
const NEWEST: ABI = ABI::V6;

/// Read by every control thread: kernel settings and information about the process.
const READ: [&str; 4] = ["/proc/sys", "/proc/self", "/sys/devices/system/cpu", "/sys/fs/cgroup"];
/// Settings that it writes, and TUNs that it opens.
const WRITTEN: [&str; 3] = ["/proc/sys/net", "/dev/net/tun", "/dev/null"];

/// Handles of the allowed paths: Landlock knows paths by inode, and `/proc` recreates a directory
/// that nobody holds.
#[derive(Debug, Default)]
pub(super) struct PathHandles(Vec<PathFd>);

/// Allows the calling thread these paths, or none.
pub(super) fn restrict_paths(places: Option<&AllowedPaths>) -> (PathHandles, Result<(), Error>) {
    let mut held = PathHandles::default();
    let fenced = restrict(places, &mut held.0);
    let fenced = fenced.map_err(|error| error.to_string()).and_then(|status| match status {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("the kernel has no Landlock, or not for us".to_owned()),
    });
    (held, fenced.map_err(Error::Files))
}

fn restrict(
    places: Option<&AllowedPaths>,
    held: &mut Vec<PathFd>,
) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        // No signals to other processes.
        .scope(Scope::Signal)?
        .create()?;
    for (path, access) in places.into_iter().flat_map(beneath) {
        // A missing path needs no access.
        let Ok(place) = PathFd::new(&path) else { continue };
        rules = rules.add_rule(PathBeneath::new(&place, access & possible(&path)))?;
        held.push(place);
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Each path and its rights; execution is never allowed.
fn beneath(places: &AllowedPaths) -> impl Iterator<Item = (PathBuf, BitFlags<AccessFs>)> {
    let unused = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSym;
    let (read, written) = (AccessFs::from_read(NEWEST), AccessFs::from_all(NEWEST));
    let with = move |access: BitFlags<AccessFs>| move |path: PathBuf| (path, access & !unused);
    let to_read = READ.iter().map(PathBuf::from).chain(places.read.iter().cloned());
    let to_write = WRITTEN.iter().map(PathBuf::from).chain(places.write.iter().cloned());
    to_read.map(with(read)).chain(to_write.map(with(written)))
}

/// Most rights apply to directories only.
fn possible(path: &Path) -> BitFlags<AccessFs> {
    if path.is_dir() { AccessFs::from_all(NEWEST) } else { AccessFs::from_file(NEWEST) }
}
