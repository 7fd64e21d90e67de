//! Programs as an administrator has them, and as whoever has broken into a gateway would like to
//! have them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use tempfile::TempDir;

use super::*;

fn made() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("uxfrm");
    fs::write(&program, "a program").unwrap();
    set_mode(&program, 0o755);
    (directory, program)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn why_not(untrusted: &DeclaredPaths, program: &Path) -> String {
    untrusted.open_other(program).unwrap_err().to_string()
}

#[test]
fn own_program_below_sticky_directory_is_trusted() {
    let (directory, program) = made();
    let link = directory.path().join("link");
    symlink(&program, &link).unwrap();
    for name in [&program, &link] {
        DeclaredPaths::default().open_other(name).unwrap();
    }
}

#[test]
fn program_writable_by_others_is_refused() {
    let (directory, program) = made();
    set_mode(&program, 0o775);
    assert!(why_not(&DeclaredPaths::default(), &program).contains("chmod go-w"));
    set_mode(&program, 0o755);
    set_mode(directory.path(), 0o777);
    let why = why_not(&DeclaredPaths::default(), &program);
    assert!(why.contains("others may put another program in the place of"), "{why}");
}

#[test]
fn program_writable_by_gateway_is_refused() {
    let (directory, program) = made();
    let link = directory.path().join("link");
    symlink(&program, &link).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let through = elsewhere.path().join("through");
    symlink(directory.path(), &through).unwrap();
    for place in [directory.path(), &program, &through] {
        let mut untrusted = DeclaredPaths::default();
        untrusted.add(place.to_owned());
        for name in [&program, &link, &through.join("uxfrm")] {
            let why = why_not(&untrusted, name);
            assert!(why.contains("the gateway itself may write to"), "{place:?} {name:?}: {why}");
        }
    }
    let mut untrusted = DeclaredPaths::default();
    untrusted.add(elsewhere.path().to_owned());
    untrusted.open_other(&program).unwrap();
}

#[test]
fn program_not_a_file_is_refused() {
    let (directory, _program) = made();
    let pipe = directory.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in [&pipe, directory.path()] {
        assert!(why_not(&DeclaredPaths::default(), name).contains("is no file"));
    }
}

#[test]
fn program_without_path_is_refused() {
    let (_directory, program) = made();
    let memory = memfd_create(c"uxfrm", MFdFlags::empty()).unwrap();
    nix::sys::stat::fchmod(&memory, nix::sys::stat::Mode::from_bits_truncate(0o755)).unwrap();
    let gone = File::open(&program).unwrap();
    fs::remove_file(&program).unwrap();
    for number in [memory.as_raw_fd(), gone.as_raw_fd()] {
        let name = PathBuf::from(format!("/proc/self/fd/{number}"));
        assert!(why_not(&DeclaredPaths::default(), &name).contains("is no file of a directory"));
    }
}

#[test]
fn declared_paths_are_limited() {
    let (_directory, program) = made();
    let mut untrusted = DeclaredPaths::default();
    let name = |untrusted: &mut DeclaredPaths, count: usize| {
        (0..count).for_each(|number| untrusted.add(PathBuf::from(number.to_string())));
    };
    // As after many upgrades.
    (0..2).for_each(|_| name(&mut untrusted, MOST));
    untrusted.open_other(&program).unwrap();
    name(&mut untrusted, MOST * 2);
    assert_eq!(untrusted.places.len(), MOST);
    assert!(why_not(&untrusted, &program).contains("restart it"));
}
