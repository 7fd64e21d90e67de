use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn config(directory: &Path, text: &str) -> (PathBuf, Config) {
    let path = directory.join("gateway.toml");
    fs::write(&path, text).unwrap();
    let config = Config::load(&path).unwrap();
    (path, config)
}

#[test]
fn sandbox_reaches_named_paths_and_link_targets() {
    let (named, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("real"), "").unwrap();
    symlink(elsewhere.path().join("real"), named.path().join("xfrm.batch")).unwrap();
    let text = "xfrm.batch = ['xfrm.batch']\nxfrm.sequences = 'store/numbers'\ncontrol.socket = 'sockets/xfrm'";
    let (path, config) = config(named.path(), text);
    let AllowedPaths { read, write } = places(&path, &config);
    let real = fs::canonicalize(elsewhere.path()).unwrap();
    assert!(read.contains(&named.path().to_owned()) && read.contains(&real), "{read:?}");
    for directory in ["store", "sockets"] {
        assert!(write.contains(&named.path().join(directory)), "{write:?}");
    }
    assert!(!write.contains(&named.path().to_owned()));
}

#[test]
fn sandbox_writes_only_store_in_shared_directory() {
    for place in SHARED {
        let store = Path::new(place).join("numbers");
        assert_eq!(around_store(&store, &[]), store);
    }
    // By another name, and one that is for all by its mode.
    let directory = tempfile::tempdir().unwrap();
    symlink("/var/lib", directory.path().join("link")).unwrap();
    let sticky = directory.path().join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    for store in [directory.path().join("link/numbers"), sticky.join("numbers")] {
        assert_eq!(around_store(&store, &[]), store);
    }
    let around = |store: &str| around_store(Path::new(store), &[]);
    assert_eq!(around("/var/lib/uxfrm/uxfrm0"), Path::new("/var/lib/uxfrm"));
    assert_eq!(around("/srv/gateways/a/numbers"), Path::new("/srv/gateways/a"));
}

#[test]
fn sandbox_never_writes_configured_inputs() {
    let directory = tempfile::tempdir().unwrap();
    for beneath in ["", "deeper/still"] {
        let configured = directory.path().join(beneath);
        fs::create_dir_all(&configured).unwrap();
        let above = directory.path().display();
        let text = format!(
            "xfrm.batch = ['xfrm.batch']\nxfrm.sequences = '{above}/numbers'\ncontrol.socket = '{above}/xfrm'"
        );
        let (path, config) = config(&configured, &text);
        let AllowedPaths { write, .. } = places(&path, &config);
        assert!(write.contains(&directory.path().join("numbers")), "{write:?}");
        assert!(!write.iter().any(|place| configured.starts_with(place)), "{write:?}");
    }
}

#[test]
fn sandbox_never_writes_beside_shared_socket() {
    let directory = tempfile::tempdir().unwrap();
    let (path, config) = config(directory.path(), "control.socket = '/run/x.sock'");
    let AllowedPaths { write, .. } = places(&path, &config);
    assert!(!write.contains(&PathBuf::from("/run")), "{write:?}");
}

#[test]
fn sandbox_opens_kernel_tables_only_if_used() {
    let directory = tempfile::tempdir().unwrap();
    let extras_of = |text: &str| {
        let (path, config) = config(directory.path(), text);
        extras(&path, &config, &places(&path, &config))
    };
    assert_eq!(extras_of(""), []);
    assert_eq!(extras_of("wire.af_xdp = 'eth0'"), [ExtraRight::BpfMaps]);
}

#[test]
fn sandbox_advice_without_refusal_is_unchanged() {
    let absent = format!("can't read x: {}", io::Error::from(Errno::ENOENT));
    assert_eq!(with_sandbox_advice(absent.clone()), absent);
}
