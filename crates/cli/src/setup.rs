//! `uxfrm setup`: puts an IKE daemon on uxfrm, or writes a tunnel with static keys; `--undo` takes
//! away what it wrote.
//!
//! What is to be done is a [`Plan`], made from the host's files without changing any. It is carried
//! out only where none of its files is somebody else's, and each thing done is in a
//! [record](record) from which it is undone.

mod app_armor;
mod carry_out;
mod ike;
mod plan;
mod program;
mod record;
mod static_tunnel;
mod undo;

use anyhow::{Context as _, bail};

use crate::arguments::{SetupKind, SetupOptions};
use crate::host::Host;
use crate::ike_unit::IkeDaemon;
use carry_out::Effect;
use plan::Plan;
use static_tunnel::StaticTunnel;

/// The gateway's configuration, which `uxfrm.service` reads.
const CONFIG: &str = "/etc/uxfrm/uxfrm.toml";

/// Sets up, or undoes it.
pub(crate) fn execute(options: &SetupOptions) -> anyhow::Result<()> {
    let host = Host::at(&options.root);
    let effect = if options.dry_run { Effect::DryRun } else { Effect::Real };
    let mut out = std::io::stdout().lock();
    match options.kind {
        None => undo::undo(&host, effect, &mut out),
        Some(kind) => carry_out::carry_out(&host, &plan(&host, kind, options)?, effect, &mut out),
    }
}

fn plan(host: &Host, kind: SetupKind, options: &SetupOptions) -> anyhow::Result<Plan> {
    match kind {
        SetupKind::Strongswan => ike::plan(host, IkeDaemon::StrongSwan),
        SetupKind::Libreswan => ike::plan(host, IkeDaemon::Libreswan),
        SetupKind::Static => {
            let tunnel = StaticTunnel::between(
                [options.local, options.peer],
                [&options.local_net, &options.peer_net],
            )?;
            tunnel.plan().context("no keys from the kernel's random generator")
        }
    }
}

/// Fails with all that stands in the way, a line each.
fn refuse(obstacles: &[String]) -> anyhow::Result<()> {
    if obstacles.is_empty() {
        return Ok(());
    }
    bail!("nothing is changed:\n  {}", obstacles.join("\n  "));
}

#[cfg(test)]
mod tests;
