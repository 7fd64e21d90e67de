use std::os::unix::fs::symlink;

use super::*;

fn config(directory: &Path, text: &str) -> (PathBuf, Config) {
    let path = directory.join("gateway.toml");
    fs::write(&path, text).unwrap();
    let config = Config::load(&path).unwrap();
    (path, config)
}

#[test]
fn what_is_named_is_reached_and_where_it_leads() {
    let (named, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("real"), "").unwrap();
    symlink(elsewhere.path().join("real"), named.path().join("xfrm.batch")).unwrap();
    let text = "xfrm.batch = ['xfrm.batch']\nxfrm.sequences = 'store/numbers'\ncontrol.socket = 'sockets/xfrm'";
    let (path, config) = config(named.path(), text);
    let Places { read, write } = places(&path, &config);
    let real = fs::canonicalize(elsewhere.path()).unwrap();
    assert!(read.contains(&named.path().to_owned()) && read.contains(&real), "{read:?}");
    for directory in ["store", "sockets"] {
        assert!(write.contains(&named.path().join(directory)), "{write:?}");
    }
    assert!(!write.contains(&named.path().to_owned()));
}

#[test]
fn a_store_among_others_is_all_that_is_written_there() {
    for store in ["/var/lib/numbers", "/numbers", "/etc/numbers"] {
        assert_eq!(around_store(Path::new(store)), Path::new(store));
    }
    assert_eq!(around_store(Path::new("/var/lib/uxfrm/uxfrm0")), Path::new("/var/lib/uxfrm"));
    assert_eq!(around_store(Path::new("numbers")), Path::new("."));
}

#[test]
fn tables_in_the_kernel_are_for_those_who_have_them() {
    let directory = tempfile::tempdir().unwrap();
    let extras_of = |text: &str| {
        let (path, config) = config(directory.path(), text);
        extras(&path, &config, &places(&path, &config))
    };
    assert_eq!(extras_of(""), []);
    assert_eq!(extras_of("wire.af_xdp = 'eth0'"), [Extra::KernelTables]);
}

#[test]
fn words_without_a_refusal_stay_as_they_are() {
    let absent = format!("can't read x: {}", io::Error::from(Errno::ENOENT));
    assert_eq!(advised(absent.clone()), absent);
}
