//! The privileges and files that a running gateway keeps: [`uxfrm_io::sandbox`] with the files of a
//! configuration.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::{errno::Errno, unistd::Uid};
use uxfrm_io::sandbox::{self, AllowedPaths, Confinement, ExtraRight};

use crate::{
    config::{Config, Inline},
    fallback_socket,
    reconcile::sequences,
};

/// Where to read on.
const PAGE: &str = "docs/least-privilege.md";

/// Threads that the gateway starts from now on confine themselves, unless the configuration says
/// otherwise.
pub(crate) fn begin(config: &Config) {
    if config.runtime.sandbox {
        sandbox::begin();
    } else {
        tracing::warn!("the gateway keeps all its privileges: `sandbox = false` in [runtime]");
    }
}

/// All is open: gives up what is not needed any more. To be kept until the end.
pub(crate) fn close(path: &Path, config: &Config) -> Confinement {
    let places = places(path, config);
    let confined = sandbox::control(&extras(path, config, &places), &places);
    if let Some(left) = confined.faults() {
        tracing::warn!("the gateway keeps more than it needs: {left} ({PAGE})");
    }
    confined
}

/// What a gateway may write, for its supervisor to know before it reads anything.
pub(crate) fn written(path: &Path, config: &Config) -> Vec<PathBuf> {
    if config.runtime.sandbox { places(path, config).write } else { Vec::new() }
}

/// What `uxfrm check` says of it: what would be left here, or that all is.
pub(crate) fn inspect(config: &Config) -> io::Result<Option<String>> {
    if !config.runtime.sandbox {
        return Ok(Some(
            "the gateway would keep all its privileges: `sandbox = false` in [runtime]".to_owned(),
        ));
    }
    let tried = sandbox::try_out()?;
    let left = tried.faults();
    Ok(left.map(|left| format!("the gateway would keep more than it needs: {left} ({PAGE})")))
}

/// Words about files that can't be read, and what to do where that may be as they are fenced off.
pub(crate) fn with_sandbox_advice(words: String) -> String {
    let refused = io::Error::from(Errno::EACCES).to_string();
    if !sandbox::has_begun() || !words.contains(&refused) {
        return words;
    }
    format!(
        "{words}\nA gateway that is up reads the directories alone that its configuration named at the start, and there files of the \
         owners that it found: put the file there, or restart it ({PAGE})"
    )
}

fn extras(path: &Path, config: &Config, places: &AllowedPaths) -> Vec<ExtraRight> {
    let is_inline = config.inline.as_ref().is_some_and(Inline::has_af_xdp);
    let tables = (config.wire.af_xdp.is_some() || is_inline).then_some(ExtraRight::BpfMaps);
    let others = belong_to_others(path, config, places).then_some(ExtraRight::OthersFiles);
    tables.into_iter().chain(others).collect()
}

/// Whether root needs more than being the owner for what it reads again and writes.
fn belong_to_others(path: &Path, config: &Config, places: &AllowedPaths) -> bool {
    let own = Uid::effective();
    let is_others = |path: &Path| fs::metadata(path).is_ok_and(|file| file.uid() != own.as_raw());
    let directories = places.read.iter().chain(&places.write).map(PathBuf::as_path);
    own.is_root() && files(config).chain([path]).chain(directories).any(is_others)
}

/// Files that a configuration names to be read.
fn files(config: &Config) -> impl Iterator<Item = &Path> {
    let batches = config.xfrm.batch.iter().chain(&config.tunnel.batch).map(PathBuf::as_path);
    batches.chain(config.device.iter().filter_map(|device| device.profile_file()))
}

fn places(path: &Path, config: &Config) -> AllowedPaths {
    let of_others: Vec<_> = std::iter::once(path).chain(files(config)).flat_map(around).collect();
    let store = config.xfrm.sequences.as_deref();
    let witness = store.and_then(sequences::witness_path);
    // Where the socket's place is not the gateway's own the next start removes its file.
    let socket = config.control.socket.as_deref().and_then(directory);
    let socket = socket.filter(|place| is_own(place, &of_others));
    let store = store.map(|store| around_store(store, &of_others));
    let write =
        store.into_iter().chain(witness).chain(socket).chain(fallback_socket::own()).collect();
    let mut read = of_others;
    read.extend(["/run/netns", "/etc/localtime", "/usr/share/zoneinfo"].map(PathBuf::from));
    AllowedPaths { read, write }
}

/// Where a file is, as another may take its place there; and where a symbolic link leads.
fn around(file: &Path) -> impl Iterator<Item = PathBuf> {
    let target = fs::canonicalize(file).ok();
    let there = target.as_deref().and_then(directory);
    directory(file).into_iter().chain(there)
}

fn directory(file: &Path) -> Option<PathBuf> {
    let parent = file.parent()?;
    Some(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() })
}

/// Where the store is, so that it can be made anew should somebody remove it; but not where other
/// programs keep theirs, or the administrator what a gateway is told. A store that is lost while it
/// runs is worse than what a gateway that was broken into may do to those of other gateways.
fn around_store(store: &Path, of_others: &[PathBuf]) -> PathBuf {
    let parent = directory(store).filter(|parent| is_own(parent, of_others));
    parent.unwrap_or_else(|| store.to_owned())
}

/// Directories that many programs have things in.
const SHARED: [&str; 27] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/dev/shm",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/run/lock",
    "/sbin",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
    "/usr/sbin",
    "/var",
    "/var/lib",
    "/var/log",
    "/var/tmp",
];
/// Nobody but its owner renames or removes what is in such a directory: it is for all.
const STICKY: u32 = 0o1000;

/// Whether a directory, by whatever name, is neither shared with all programs nor has any
/// `of_others` beneath it.
fn is_own(place: &Path, of_others: &[PathBuf]) -> bool {
    let resolved = |place: &Path| fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    let real = resolved(place);
    let is_sticky = fs::metadata(&real).is_ok_and(|about| about.mode() & STICKY != 0);
    let is_shared = |shared: &&str| [place, real.as_path()].contains(&Path::new(*shared));
    let is_above = |other: &PathBuf| resolved(other).starts_with(&real);
    !is_sticky && !SHARED.iter().any(is_shared) && !of_others.iter().any(is_above)
}

#[cfg(test)]
mod tests;
