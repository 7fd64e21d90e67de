//! `uxfrm fleet get`: the file that the fleet's tunnels would be applied from.

use std::{collections::BTreeMap, process::ExitCode};

use serde::Serialize;
use uxfrm_fleet::{
    desired::{DesiredFile, DesiredTunnel, Lines},
    names::{PoolName, TunnelName},
};
use uxfrm_fleet_options::FleetGetOptions;
use zeroize::Zeroizing;

use super::{Fleet, key_mask::without_keys, say};

/// The file, as `fleet apply` reads it.
#[derive(Serialize)]
struct Printed {
    pools: BTreeMap<PoolName, PrintedPool>,
    tunnels: BTreeMap<TunnelName, PrintedTunnel>,
}

#[derive(Serialize)]
struct PrintedPool {
    #[serde(skip_serializing_if = "is_empty")]
    lines: Lines,
}

#[derive(Serialize)]
struct PrintedTunnel {
    pool: PoolName,
    #[serde(skip_serializing_if = "is_empty")]
    lines: Lines,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Lines>,
}

fn is_empty(lines: &Lines) -> bool {
    lines.as_str().is_empty()
}

pub(super) async fn get(fleet: &Fleet, options: &FleetGetOptions) -> anyhow::Result<ExitCode> {
    fleet.generation().await?;
    let file = fleet.desired_file().await?;
    let show = |lines: &Lines| match options.keys {
        true => lines.clone(),
        false => Lines::new(without_keys(lines.as_str())),
    };
    say(print(&file, show)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn print(file: &DesiredFile, show: impl Fn(&Lines) -> Lines) -> anyhow::Result<Zeroizing<String>> {
    let mut printed = Printed { pools: BTreeMap::new(), tunnels: BTreeMap::new() };
    for (name, pool) in &file.pools {
        // One that went has an empty index.
        if !is_empty(&pool.lines) || !pool.tunnels.is_empty() {
            printed.pools.insert(name.clone(), PrintedPool { lines: show(&pool.lines) });
        }
        for (tunnel, desired) in &pool.tunnels {
            let printed_tunnel = tunnel_of(name, desired, &show);
            let had = printed.tunnels.insert(tunnel.clone(), printed_tunnel);
            anyhow::ensure!(had.is_none(), "two pools have a tunnel `{tunnel}`");
        }
    }
    Ok(Zeroizing::new(toml::to_string_pretty(&printed)?))
}

fn tunnel_of(
    pool: &PoolName,
    desired: &DesiredTunnel,
    show: impl Fn(&Lines) -> Lines,
) -> PrintedTunnel {
    // One that names no children has one without lines.
    let has_own = desired.children.iter().any(|lines| !is_empty(lines));
    let children = if has_own || desired.children.len() > 1 { &desired.children[..] } else { &[] };
    PrintedTunnel {
        pool: pool.clone(),
        lines: show(&desired.lines),
        children: children.iter().map(show).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[pools.eu]\nlines = \"p\"\n[tunnels.a]\nlines = \"enc x 0x01\\ny\"\n\
                        [tunnels.b]\npool = \"eu\"\nchildren = [\"c\", \"\"]\n";

    #[test]
    fn what_is_printed_is_read() {
        let file = DesiredFile::parse(FILE).unwrap();
        let printed = print(&file, Lines::clone).unwrap();
        assert_eq!(DesiredFile::parse(&printed).unwrap(), file, "{}", *printed);
    }

    #[test]
    fn keys_are_masked() {
        let file = DesiredFile::parse(FILE).unwrap();
        let printed = print(&file, |lines| Lines::new(without_keys(lines.as_str()))).unwrap();
        assert!(printed.contains("enc x KEY") && !printed.contains("0x01"), "{}", *printed);
    }
}
