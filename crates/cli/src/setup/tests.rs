//! Setup on hosts that are directories: what is written, that a dry run says the same, and that
//! undoing leaves every byte as it was.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::*;

const STRONGSWAN: &str = "[Service]\nType=notify\nExecStart=/usr/sbin/charon-systemd\n";
const PLUTO: &str = "[Service]\nExecStartPre=/x/_stackmanager start\nExecStart=/x/pluto --nofork\n";
const LOCAL: &str = "etc/apparmor.d/local/usr.sbin.charon-systemd";
const DROP_IN: &str = "etc/systemd/system/strongswan.service.d/uxfrm.conf";

/// A host with the package, strongSwan, libreswan and AppArmor.
fn host() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("etc/group", "root:x:0:\n"),
        ("etc/ipsec.conf", "config setup\ninclude /etc/ipsec.d/*.conf\n"),
        ("etc/ipsec.d/portexcludes.conf", ""),
        ("etc/uxfrm/uxfrm.toml.example", "# example\n"),
        ("etc/apparmor.d/abstractions/uxfrm", ""),
        ("etc/apparmor.d/usr.sbin.charon-systemd", ""),
        (LOCAL, "# Site-specific additions"),
        ("usr/lib/systemd/system/uxfrm.service", ""),
        ("usr/lib/systemd/system/strongswan.service", STRONGSWAN),
        ("usr/lib/systemd/system/ipsec.service", PLUTO),
    ] {
        write(root.path(), path, text);
    }
    root
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// All below a directory: kind, mode, and bytes or target.
fn picture(root: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let bytes = if found.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if found.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        all.insert(path.display().to_string(), (found.permissions().mode(), bytes));
    }
    all
}

fn options(root: &TempDir, kind: SetupKind) -> SetupOptions {
    SetupOptions {
        kind: Some(kind),
        undo: false,
        dry_run: false,
        root: root.path().to_owned(),
        local: None,
        peer: None,
        local_net: None,
        peer_net: None,
    }
}

fn set_up(root: &TempDir, kind: SetupKind, effect: Effect) -> anyhow::Result<String> {
    let host = Host::at(root.path());
    let plan = plan(&host, kind, &options(root, kind))?;
    let mut out = Vec::new();
    carry_out::carry_out(&host, &plan, effect, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn undo(root: &TempDir, effect: Effect) -> String {
    let mut out = Vec::new();
    undo::undo(&Host::at(root.path()), effect, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

const KINDS: [SetupKind; 3] = [SetupKind::Strongswan, SetupKind::Libreswan, SetupKind::Static];

#[test]
fn undo_leaves_every_byte_as_it_was() {
    for kind in KINDS {
        let root = host();
        let before = picture(root.path());
        set_up(&root, kind, Effect::Real).unwrap();
        assert_ne!(picture(root.path()), before);
        undo(&root, Effect::Real);
        assert_eq!(picture(root.path()), before, "{kind:?}");
        assert!(undo(&root, Effect::Real).starts_with("nothing to undo"));
    }
}

#[test]
fn dry_run_changes_nothing_and_says_what_a_real_one_does() {
    let past = |said: &str| {
        [("would write", "wrote"), ("would add", "added"), ("would link", "linked")]
            .into_iter()
            .chain([("would remove", "removed")])
            .fold(said.to_owned(), |said, (undone, done)| said.replace(undone, done))
    };
    for kind in KINDS {
        let root = host();
        let before = picture(root.path());
        let would = set_up(&root, kind, Effect::DryRun).unwrap();
        assert_eq!(picture(root.path()), before);
        assert_eq!(past(&would), set_up(&root, kind, Effect::Real).unwrap());
        let after = picture(root.path());
        let would = undo(&root, Effect::DryRun);
        assert_eq!(picture(root.path()), after);
        assert_eq!(past(&would), undo(&root, Effect::Real));
    }
}

#[test]
fn the_unit_starts_the_daemon_under_exec_behind_the_gateway() {
    let root = host();
    set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
    let text = fs::read_to_string(root.path().join(DROP_IN)).unwrap();
    assert!(
        text.contains("ExecStart=\nExecStart=/usr/bin/uxfrm exec -- /usr/sbin/charon-systemd\n")
    );
    assert!(text.contains("Requires=uxfrm.service\nAfter=uxfrm.service\n"));
    let local = fs::read_to_string(root.path().join(LOCAL)).unwrap();
    assert_eq!(local, "# Site-specific additions\ninclude <abstractions/uxfrm>\n");
    let wanted = root.path().join("etc/systemd/system/multi-user.target.wants/uxfrm.service");
    assert_eq!(fs::read_link(wanted).unwrap(), Path::new("/usr/lib/systemd/system/uxfrm.service"));
    let mode = |path: &str| picture(root.path())[&root.path().join(path).display().to_string()].0;
    assert_eq!(mode("etc/uxfrm/uxfrm.toml") & 0o777, 0o640);
    assert!(crate::ike_unit::installed(&Host::at(root.path()), None)[0].is_under_exec());
}

#[test]
fn a_second_setup_finds_all_done() {
    let root = host();
    set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
    let before = picture(root.path());
    let said = set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
    let is_done = |line: &str| line.starts_with("is there already: ") || line.starts_with("note: ");
    assert!(said.lines().all(is_done), "{said}");
    assert_eq!(picture(root.path()), before);
}

#[test]
fn somebody_elses_file_is_never_overwritten() {
    for (kind, path) in [
        (SetupKind::Strongswan, "etc/uxfrm/uxfrm.toml"),
        (SetupKind::Strongswan, DROP_IN),
        (SetupKind::Libreswan, "etc/ipsec.d/uxfrm.conf"),
        (SetupKind::Static, "etc/uxfrm/peer/static.batch"),
    ] {
        let root = host();
        write(root.path(), path, "mine\n");
        let before = picture(root.path());
        for effect in [Effect::DryRun, Effect::Real] {
            let why = set_up(&root, kind, effect).unwrap_err().to_string();
            assert!(why.contains(path) && why.contains("not from setup"), "{why}");
        }
        assert_eq!(picture(root.path()), before);
    }
}

#[test]
fn keys_are_not_replaced_by_a_second_setup() {
    let root = host();
    set_up(&root, SetupKind::Static, Effect::Real).unwrap();
    let why = set_up(&root, SetupKind::Static, Effect::Real).unwrap_err().to_string();
    assert!(why.contains("uxfrm setup --undo first"), "{why}");
    let record = fs::read_to_string(root.path().join("etc/uxfrm/setup.json")).unwrap();
    assert!(!record.contains("0x"));
}

#[test]
fn what_was_changed_since_is_kept_aside_by_undo() {
    let root = host();
    set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
    write(root.path(), "etc/uxfrm/uxfrm.toml", "mine\n");
    write(root.path(), LOCAL, "# all anew\n");
    let wanted = root.path().join("etc/systemd/system/multi-user.target.wants/uxfrm.service");
    fs::remove_file(&wanted).unwrap();
    symlink("/elsewhere", &wanted).unwrap();
    let said = undo(&root, Effect::Real);
    assert!(said.contains("changed since setup"), "{said}");
    let kept = root.path().join("etc/uxfrm/uxfrm.toml.uxfrm-saved");
    assert_eq!(fs::read_to_string(kept).unwrap(), "mine\n");
    assert_eq!(fs::read_to_string(root.path().join(LOCAL)).unwrap(), "# all anew\n");
    assert_eq!(fs::read_link(wanted).unwrap(), Path::new("/elsewhere"));
    assert!(!root.path().join(DROP_IN).exists());
}

#[test]
fn without_daemon_or_package_it_says_what_to_install() {
    let root = host();
    fs::remove_file(root.path().join("usr/lib/systemd/system/uxfrm.service")).unwrap();
    let why = set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap_err().to_string();
    assert!(why.contains("uxfrm.service is not installed"), "{why}");
    fs::remove_file(root.path().join("usr/lib/systemd/system/ipsec.service")).unwrap();
    let why = set_up(&root, SetupKind::Libreswan, Effect::Real).unwrap_err().to_string();
    assert!(why.contains("apt install libreswan"), "{why}");
}

#[test]
fn a_static_setup_is_a_configuration_that_check_takes() {
    let root = host();
    set_up(&root, SetupKind::Static, Effect::Real).unwrap();
    for directory in ["etc/uxfrm", "etc/uxfrm/peer"] {
        let config = root.path().join(directory).join("uxfrm.toml");
        let parsed = uxfrm_daemon::config::Config::load(&config).unwrap();
        assert_eq!(parsed.xfrm.batch.len(), 1, "{parsed:?}");
    }
}

/// Runs what a note says behind `begin`, with `/etc/uxfrm` elsewhere and stubs of programs.
fn run_note(said: &str, begin: &str, place: &Path, stubs: &Path) {
    let note = said.lines().find_map(|line| line.strip_prefix(begin)).unwrap();
    let command = note.replace("/etc/uxfrm", place.to_str().unwrap());
    // What scp is given to write to is the peer's.
    let command = command.replace(&format!(":{}", place.display()), ":/etc/uxfrm");
    let path = format!("{}:/usr/bin:/bin", stubs.display());
    let shell = std::process::Command::new("sh").args(["-ec", &command]).env("PATH", path).status();
    assert!(shell.unwrap().success(), "{command}");
}

#[test]
fn the_printed_commands_let_the_gateways_group_read_the_peers_files_and_no_others() {
    let (root, peer, stubs) = (host(), host(), tempfile::tempdir().unwrap());
    write(peer.path(), "etc/uxfrm/web.token", "token\n");
    let (there, log) = (peer.path().join("etc/uxfrm"), stubs.path().join("log"));
    fs::set_permissions(there.join("web.token"), fs::Permissions::from_mode(0o600)).unwrap();
    let scp = format!("cp -p \"$1\" \"$2\" {}", there.display());
    let record = |name: &str| format!("echo {name} \"$@\" >>{}", log.display());
    for (name, script) in [
        ("scp", scp),
        ("chgrp", record("chgrp")),
        ("uxfrm", record("uxfrm")),
        ("systemctl", record("systemctl")),
    ] {
        write(stubs.path(), name, &format!("#!/bin/sh\n{script}\n"));
        let path = stubs.path().join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let said = set_up(&root, SetupKind::Static, Effect::Real).unwrap();
    let here = root.path().join("etc/uxfrm");
    run_note(&said, "note: next, here: ", &here, stubs.path());
    assert!(!here.join("peer").exists());
    run_note(&said, "note: then, at both ends: ", &there, stubs.path());
    let mode = |name: &str| mode_of(&there.join(name));
    assert_eq!(["uxfrm.toml", "static.batch", "web.token"].map(mode), [0o640, 0o640, 0o600]);
    let log = fs::read_to_string(log).unwrap();
    let check = format!("uxfrm check {}", there.join("uxfrm.toml").display());
    let expected = ["chgrp uxfrm uxfrm.toml static.batch", &check, "systemctl enable --now uxfrm"];
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn files_of_this_end_are_the_groups_where_it_exists() {
    use std::os::unix::fs::MetadataExt as _;
    let root = host();
    fs::remove_dir_all(root.path().join("etc/uxfrm")).unwrap();
    // One that any user may give files to: the own.
    let own = nix::unistd::getegid().as_raw();
    let group = if nix::unistd::geteuid().is_root() { 977 } else { own };
    write(root.path(), "etc/group", &format!("root:x:0:\nuxfrm:x:{group}:\n"));
    set_up(&root, SetupKind::Static, Effect::Real).unwrap();
    for (name, mode) in [("", 0o750), ("uxfrm.toml", 0o640), ("static.batch", 0o640)] {
        let path = root.path().join("etc/uxfrm").join(name);
        assert_eq!(mode_of(&path), mode, "{name}");
        assert_eq!(fs::metadata(&path).unwrap().gid(), group, "{name}");
    }
    let keys = root.path().join("etc/uxfrm/peer/static.batch");
    assert_eq!(mode_of(&keys), 0o600);
}

#[test]
fn a_link_by_another_name_of_the_units_directory_is_there_already() {
    let root = host();
    symlink("usr/lib", root.path().join("lib")).unwrap();
    let wants = root.path().join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    let wanted = wants.join("uxfrm.service");
    symlink("/lib/systemd/system/uxfrm.service", &wanted).unwrap();
    let before = picture(root.path());
    let said = set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
    assert!(said.contains(&format!("is there already: {}", wanted.display())), "{said}");
    undo(&root, Effect::Real);
    assert_eq!(picture(root.path()), before);
    fs::remove_file(&wanted).unwrap();
    symlink("/usr/lib/systemd/system/strongswan.service", &wanted).unwrap();
    let why = set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap_err().to_string();
    assert!(why.contains("leads elsewhere"), "{why}");
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_second_undo_keeps_what_the_first_has_kept_and_follows_no_link() {
    let root = host();
    let config = "etc/uxfrm/uxfrm.toml";
    let kept = |end: &str| root.path().join(format!("{config}.uxfrm-saved{end}"));
    for (text, end) in [("one\n", ""), ("two\n", ".1"), ("three\n", ".3")] {
        set_up(&root, SetupKind::Static, Effect::Real).unwrap();
        write(root.path(), config, text);
        let would = undo(&root, Effect::DryRun);
        assert!(would.contains(&format!("to {}\n", kept(end).display())), "{would}");
        undo(&root, Effect::Real);
        assert_eq!(fs::read_to_string(kept(end)).unwrap(), text);
        if end == ".1" {
            symlink("/nowhere", kept(".2")).unwrap();
        }
    }
    assert_eq!(fs::read_to_string(kept("")).unwrap(), "one\n");
    assert_eq!(fs::read_to_string(kept(".1")).unwrap(), "two\n");
    assert_eq!(fs::read_link(kept(".2")).unwrap(), Path::new("/nowhere"));
}

#[test]
fn a_link_in_the_place_of_a_file_for_lines_stays_a_link() {
    use std::os::unix::fs::{MetadataExt as _, chown};
    for target in ["../../../elsewhere/local", "/elsewhere/local"] {
        let root = host();
        write(root.path(), "elsewhere/local", "");
        let elsewhere = root.path().join("elsewhere/local");
        fs::write(&elsewhere, b"# mine, of K\xf6ln").unwrap();
        if nix::unistd::geteuid().is_root() {
            chown(&elsewhere, Some(1), Some(1)).unwrap();
        }
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o640)).unwrap();
        let owner = fs::metadata(&elsewhere).unwrap().uid();
        fs::remove_file(root.path().join(LOCAL)).unwrap();
        symlink(target, root.path().join(LOCAL)).unwrap();
        let before = picture(root.path());
        set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
        assert!(fs::read(&elsewhere).unwrap().ends_with(b"ln\ninclude <abstractions/uxfrm>\n"));
        assert_eq!(fs::metadata(&elsewhere).unwrap().uid(), owner);
        let said = set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap();
        assert!(said.contains(&format!("is there already: {}/{LOCAL}", root.path().display())));
        undo(&root, Effect::Real);
        assert_eq!(picture(root.path()), before, "{target}");
        assert_eq!(fs::metadata(&elsewhere).unwrap().uid(), owner);
    }
}

#[test]
fn a_link_that_leads_to_no_file_is_refused() {
    for target in ["/nowhere", "/etc", "uxfrm-loop"] {
        let root = host();
        fs::remove_file(root.path().join(LOCAL)).unwrap();
        symlink(target, root.path().join(LOCAL)).unwrap();
        let before = picture(root.path());
        let why = set_up(&root, SetupKind::Strongswan, Effect::Real).unwrap_err().to_string();
        assert!(why.contains("nor a link that leads to one"), "{why}");
        assert_eq!(picture(root.path()), before);
    }
}
