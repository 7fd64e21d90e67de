//! HTTP is in `uxfrm-web` and `uxfrm-fleet` alone, and they have no part of the data path. What
//! each program links is read from `cargo tree`, which has the features that a build of this
//! package has.

use std::collections::BTreeSet;
use std::process::Command;

/// What serves or describes HTTP.
const HTTP: &[&str] =
    &["axum", "h2", "http", "hyper", "hyper-util", "tokio", "tonic", "tower", "utoipa"];

/// What moves packets, has keys or changes the host.
const GATEWAY: &[&str] = &[
    "uxfrm",
    "uxfrm-crypto",
    "uxfrm-daemon",
    "uxfrm-engine",
    "uxfrm-io",
    "uxfrm-netlink",
    "uxfrm-runtime",
    "aws-lc-sys",
];

/// Names of the crates that a package links, its own included.
fn linked(package: &str) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", "{p}", "--target", "all"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let told = tree.output().expect("cargo runs, as it has built this test");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let lines = String::from_utf8(told.stdout).expect("names of crates are ASCII");
    lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn both(linked: &BTreeSet<String>, refused: &[&str]) -> Vec<String> {
    linked.iter().filter(|name| refused.contains(&name.as_str())).cloned().collect()
}

#[test]
fn gateway_and_command_link_no_http() {
    for package in ["uxfrm-cli", "uxfrm-daemon", "uxfrm-redirect"] {
        let linked = linked(package);
        assert!(linked.contains(package) && linked.len() > 3, "{package}: {linked:?}");
        assert_eq!(both(&linked, HTTP), Vec::<String>::new(), "linked by {package}");
    }
}

#[test]
fn server_links_nothing_of_the_gateway() {
    let linked = linked("uxfrm-web");
    assert_eq!(both(&linked, GATEWAY), Vec::<String>::new(), "linked by uxfrm-web");
    assert!(!both(&linked, HTTP).is_empty(), "else this test sees nothing: {linked:?}");
}

/// Its TLS is by AWS-LC, which is the gateway's crypto as well.
#[test]
fn agent_links_nothing_of_the_gateway_but_a_library() {
    let linked = linked("uxfrm-fleet-agent");
    assert_eq!(both(&linked, GATEWAY), ["aws-lc-sys"], "linked by uxfrm-fleet");
}
