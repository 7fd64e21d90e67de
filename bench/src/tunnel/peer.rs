//! Other user-space VPNs, if any are installed.

use std::env;
use std::path::Path;

use serde_json::Map;

use crate::Filter;
use crate::report::{Case, Row};

/// What is looked for: its `path` in rows, and the file that tells that it is there: a program's name, or a path.
const PEERS: [(&str, &str); 3] = [
    ("wireguard-go", "wireguard-go"),
    ("boringtun", "boringtun-cli"),
    ("libipsec", "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so"),
];

/// A row for each peer that tells whether it is there.
pub(crate) fn rows(only: &Filter) -> Vec<Row> {
    let cases = PEERS.iter().map(|(name, file)| (Case::new().with("path", *name), is_there(file)));
    cases
        .filter(|(case, _)| only.admits(case))
        .map(|(case, there)| {
            let note = if there { "found; not measured" } else { "not found" };
            let mut row = Row { case, figures: Map::new() };
            row.figures.insert("note".to_owned(), note.into());
            row
        })
        .collect()
}

fn is_there(file: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path);
    directories.chain([Path::new("/").to_owned()]).any(|directory| directory.join(file).exists())
}
