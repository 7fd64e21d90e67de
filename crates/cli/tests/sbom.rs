//! `make sbom` lists exactly the crates that are linked into the programs and the preload library,
//! with checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand, PackageId};
use serde_json::Value;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn sbom_lists_exactly_the_linked_crates() {
    let Some(first) = written() else { return };
    assert_eq!(Some(&first), written().as_ref(), "the same sources give the same bytes");
    let bill: Value = serde_json::from_str(&first).expect("it is JSON");
    let mut parts: Vec<&Value> =
        bill["components"].as_array().expect("components").iter().collect();
    parts.push(&bill["metadata"]["component"]);
    let listed: BTreeMap<&str, &Value> =
        parts.iter().map(|part| (text(&part["bom-ref"]), *part)).collect();
    let crates = listed.keys().filter(|name| name.starts_with("pkg:cargo/"));
    let expected = linked();
    assert_eq!(crates.map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), expected);
    assert!(!expected.iter().any(|name| name.contains("/proptest@") || name.contains("testkit")));
    for (name, part) in &listed {
        assert!(!part["licenses"][0].is_null(), "{name} has no licence");
        let is_own = name.starts_with("pkg:cargo/uxfrm") || name.starts_with("pkg:generic/");
        let checksum = part["hashes"][0]["content"].as_str().map_or(0, str::len);
        assert_eq!(checksum, if is_own { 0 } else { 64 }, "{name}");
    }
    for dependency in bill["dependencies"].as_array().expect("dependencies") {
        let needs = dependency["dependsOn"].as_array().expect("a list").iter();
        let missing =
            needs.chain([&dependency["ref"]]).find(|name| !listed.contains_key(text(name)));
        assert_eq!(missing, None);
    }
}

/// The script's output; `None` if it can't run.
fn written() -> Option<String> {
    let run = Command::new("python3").arg("scripts/sbom").arg(TARGET).current_dir(ROOT).output();
    let Ok(run) = run else {
        assert!(std::env::var_os("CI").is_none(), "CI needs python3");
        eprintln!("not run: needs python3");
        return None;
    };
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(String::from_utf8(run.stdout).expect("text"))
}

/// The crates that they depend on, without development dependencies.
fn linked() -> BTreeSet<String> {
    let options = ["--locked", "--filter-platform", TARGET].map(str::to_owned);
    let metadata = MetadataCommand::new().current_dir(ROOT).other_options(options).exec();
    let metadata = metadata.expect("cargo metadata");
    let resolve = metadata.resolve.as_ref().expect("it is resolved");
    let mut waiting: Vec<&PackageId> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| {
            ["uxfrm-cli", "uxfrm-redirect", "uxfrm-web", "uxfrm-fleet-agent"]
                .contains(&package.name.as_str())
        })
        .map(|package| &package.id)
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        let package = &metadata[id];
        if found.insert(format!("pkg:cargo/{}@{}", package.name, package.version)) {
            let node = resolve.nodes.iter().find(|node| node.id == *id).expect("it is resolved");
            let needed = node.deps.iter().filter(|dep| {
                dep.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development)
            });
            waiting.extend(needed.map(|dep| &dep.pkg));
        }
    }
    found
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}
