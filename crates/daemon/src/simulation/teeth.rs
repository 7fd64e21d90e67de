//! The patches of `scripts/sim-teeth.d` fit the code.
//!
//! Each takes a mend back.

use std::{fs, path::Path};

/// What a hunk expects to find: its context and the lines that it takes away.
fn expected(hunk: &str) -> String {
    let before =
        hunk.lines().skip(1).filter(|line| line.is_empty() || line.starts_with([' ', '-']));
    before.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect()
}

/// Hunks of a patch that fit nowhere in their files.
fn misfits(root: &Path, patch: &str) -> Vec<String> {
    let files = patch.split("\n--- ").filter_map(|part| part.split_once("\n+++ b/"));
    let misfits = files.flat_map(|(_, rest)| {
        let (name, hunks) = rest.split_once('\n').unwrap();
        let source = fs::read_to_string(root.join(name.trim_end())).unwrap();
        let hunks = hunks.split("\n@@ ").map(expected);
        hunks.filter(move |hunk| hunk.is_empty() || !source.contains(hunk)).collect::<Vec<_>>()
    });
    misfits.collect()
}

#[test]
fn each_patch_fits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let patches: Vec<_> = fs::read_dir(root.join("scripts/sim-teeth.d")).unwrap().collect();
    assert!(patches.len() >= 20, "{}", patches.len());
    for patch in patches {
        let path = patch.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\n@@ "), "{}", path.display());
        let misfits = misfits(&root, &text);
        assert!(misfits.is_empty(), "{} fits no more at:\n{}", path.display(), misfits.join("\n"));
    }
}

#[test]
fn a_patch_of_other_code_does_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = "src/simulation/teeth.rs";
    let patch = |line| format!("--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-{line}\n+//! Other.\n");
    let first = "//! The patches of `scripts/sim-teeth.d` fit the code.
//!
//! Each takes a mend back.";
    assert_eq!(misfits(root, &patch(first)), Vec::<String>::new());
    assert_eq!(misfits(root, &patch("no such line, split here")).len(), 1);
}
