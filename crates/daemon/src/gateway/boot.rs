//! `uxfrm guard`: what the last run protected is refused before a gateway runs, as from a boot unit
//! before the network is there.
//!
//! It leaves behind what a gateway that was killed leaves: the guard, rules and unreachable routes.
//! The next `uxfrm run` takes these over, `uxfrm clean` removes them. Neither a TUN nor any other
//! device need be there.

use std::{io, path::Path};

use anyhow::Context as _;
use uxfrm_engine::Database;
use uxfrm_status::quantity::things;

use crate::{
    config::{AtStart, Config},
    descriptor_store::DescriptorStore,
    firewall::Firewall,
    reconcile::{
        databases,
        fail_closed::{self, PolicyFiles},
    },
    routes::HostRoutes,
    status::socket::StatusSocket,
};

/// Refuses what policies of batch files and of the last run protect. What was done, and what is not
/// covered, line by line.
///
/// # Errors
/// The kernel's, and where nothing is known that could be refused.
pub fn install_boot_guard(path: &Path) -> anyhow::Result<Vec<String>> {
    let config = Config::load(path)?;
    let _alone = match StatusSocket::open() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let runs = "uxfrm runs in this network namespace, and has its own guard up";
            return Ok(vec![runs.to_owned()]);
        }
        alone => alone.context("can't keep gateways from starting meanwhile")?,
    };
    let mut lines = Vec::new();
    let database = plan(&config, &mut lines)?;
    let spd = &database.snapshot().spd;
    // What is put up stays when its socket is closed.
    let guard = Firewall::open(&config, spd, &mut DescriptorStore::default())?;
    let divert_mode = Firewall::divert_mode(guard.as_ref());
    let (table, mark) = (config.wire.table.number(), config.wire.mark.get());
    HostRoutes::refuse(spd, table, mark, divert_mode)
        .context("can't refuse protected destinations")?;
    if guard.is_none() {
        lines.push(
            "this kernel has no nf_tables: destinations alone are refused, not what programs send by a device or receive"
                .to_owned(),
        );
    }
    let what = things(spd.len() as u64, "policy protects or blocks", "policies protect or block");
    lines.push(format!("refused until uxfrm runs: what {what}"));
    Ok(lines)
}

/// What there is to refuse.
fn plan(config: &Config, lines: &mut Vec<String>) -> anyhow::Result<Database> {
    let directory = databases::state_directory(config)?;
    let (mut database, files) = match databases::dry_run(config) {
        Ok(database) => (database, PolicyFiles::Decide),
        Err(faults) => {
            lines.push(format!("{faults:#}"));
            lines.push("files are left out: what they said in the last run is refused".to_owned());
            (databases::dry_run_without_batch(config)?, PolicyFiles::AreFaulty)
        }
    };
    let known = fail_closed::is_known(directory);
    match (&known, files) {
        (Ok(true), _) => {}
        (Ok(false), PolicyFiles::Decide) => lines.push(format!(
            "nothing is known of a last run in {}: policies of programs, as an IKE daemon, are not covered",
            directory.display()
        )),
        (Err(error), PolicyFiles::Decide) => {
            lines.push(fail_closed::unreadable(directory, error, config.host.at_start));
        }
        (Ok(false), PolicyFiles::AreFaulty) => {
            anyhow::bail!("{}\nand nothing is known of a last run: nothing is refused", lines.join("\n"))
        }
        (Err(error), PolicyFiles::AreFaulty) => {
            lines.push(fail_closed::unreadable(directory, error, AtStart::Block));
        }
    }
    let at_start = match files {
        PolicyFiles::Decide => config.host.at_start,
        PolicyFiles::AreFaulty => AtStart::Block,
    };
    fail_closed::take_up(&mut database, directory, at_start, files);
    Ok(database)
}
