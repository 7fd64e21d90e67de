//! Directories of gateways whose network namespace is gone, or who have ended in one that is there.
//!
//! A running gateway holds its directory by a shared lock of the file beside it ([`lock_file`]). A
//! directory that nobody holds, and in which no socket has anybody behind it, is removed with its
//! sockets and that file. Whatever else is in it stays.

use std::{
    fs::{self, DirEntry},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use nix::{fcntl::FlockArg, sys::socket::SockType, unistd::Uid};

use super::{is_left_behind, lock_file};

/// Kinds of sockets that there are.
const KINDS: [SockType; 3] = [SockType::Stream, SockType::SeqPacket, SockType::Datagram];

/// Removes all but `own` that nobody has any more.
pub(super) fn remove(parent: &Path, own: &Path) {
    let directories = fs::read_dir(parent).into_iter().flatten().flatten();
    for directory in directories.filter(|directory| directory.path() != own) {
        if is_of_namespace(&directory) {
            remove_unheld(&directory.path());
        }
    }
}

/// Whether it is named by an inode number, and ours.
fn is_of_namespace(directory: &DirEntry) -> bool {
    let name = directory.file_name();
    let is_number = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let found = directory.metadata();
    is_number && found.is_ok_and(|found| found.is_dir() && found.uid() == Uid::effective().as_raw())
}

fn remove_unheld(directory: &Path) {
    let lock = lock_file::of(directory);
    let Ok(_unheld) = lock_file::at_once(&lock, FlockArg::LockExclusiveNonblock) else { return };
    let Ok(files) = fs::read_dir(directory) else { return };
    let files: Vec<_> = files.flatten().map(|file| file.path()).collect();
    if files.iter().all(|file| has_nobody(file)) {
        // One that is not empty stays.
        files.iter().for_each(|file| drop(fs::remove_file(file)));
        let removed = fs::remove_dir(directory).and_then(|()| fs::remove_file(&lock));
        if let Err(error) = removed {
            tracing::debug!(%error, ?directory, "what a gateway has left stays");
        }
    }
}

/// Whether it is a socket that nobody of any kind has.
fn has_nobody(file: &Path) -> bool {
    // A socket of another kind than asked for refuses in other words (`EPROTOTYPE`).
    KINDS.into_iter().any(|kind| is_left_behind(file, kind))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use nix::fcntl::Flock;

    use super::*;

    #[test]
    fn directories_without_a_gateway_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        for name in ["1", "2", "3", "4", "5", "6", "names"] {
            fs::create_dir(at(name)).unwrap();
        }
        let lock = |name: &str| lock_file::of(&at(name));
        let held = lock_file::at_once(&lock("2"), FlockArg::LockSharedNonblock).unwrap();
        // What any user may do to a directory is neither a gateway nor in its way.
        let directory = |name: &str| fs::File::open(at(name)).unwrap();
        let others = ["1", "2", "6"]
            .map(|name| Flock::lock(directory(name), FlockArg::LockExclusiveNonblock).unwrap());
        drop(UnixListener::bind(at("3").join("stat")).unwrap());
        drop(UnixDatagram::bind(at("3").join("udp.4500")).unwrap());
        drop(UnixDatagram::bind(at("4").join("udp.4500")).unwrap());
        let daemon = UnixDatagram::bind(at("4").join("udp.4500.c0000201")).unwrap();
        fs::write(at("5").join("somebody's"), "").unwrap();
        remove(parent.path(), &at("6"));
        let left = |name: &&str| at(name).exists();
        let all = ["1", "2", "3", "4", "5", "6", "names"];
        let all: Vec<_> = all.into_iter().filter(left).collect();
        assert_eq!(all, ["2", "4", "5", "6", "names"]);
        assert!(at("4").join("udp.4500").exists(), "all of it or nothing");
        assert!(lock("2").exists() && !lock("1").exists() && !lock("3").exists());
        drop((held, daemon, others));
        remove(parent.path(), &at("6"));
        assert!(!at("2").exists() && !at("4").exists() && !lock("2").exists());
    }
}
