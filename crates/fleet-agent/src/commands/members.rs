//! `uxfrm fleet drain`, `undrain` and `leave`: what becomes of a gateway.

use std::process::ExitCode;

use anyhow::Context as _;
use uxfrm_fleet::{
    members::{Duty, Members},
    names::{GatewayName, PoolName},
    seal::Serial,
};
use uxfrm_fleet_options::FleetGatewayOptions;

use super::{Fleet, Opened, say};

/// How often a transaction is tried that another change came before.
const ATTEMPTS: usize = 10;

pub(super) async fn set_duty(
    fleet: &Fleet,
    options: &FleetGatewayOptions,
    duty: Duty,
) -> anyhow::Result<ExitCode> {
    let name = gateway(fleet, options)?;
    let (pool, epoch) = change(fleet, &name, |members| {
        let was = members.gateways[&name].duty;
        anyhow::ensure!(
            !matches!(was, Duty::Down(_)),
            "gateway `{name}` is down, and has no tunnels"
        );
        Ok(members.with_duty(&name, duty))
    })
    .await?;
    match (epoch, duty) {
        (None, _) => say(format_args!("gateway {name} is so already")),
        (Some(epoch), Duty::Draining) => {
            say(format_args!("gateway {name} gives its tunnels away (pool {pool}, epoch {epoch})"));
        }
        (Some(epoch), Duty::Active | Duty::Down(_)) => {
            say(format_args!("gateway {name} takes tunnels (pool {pool}, epoch {epoch})"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn leave(
    fleet: &Fleet,
    options: &FleetGatewayOptions,
) -> anyhow::Result<ExitCode> {
    let name = gateway(fleet, options)?;
    let (pool, _) = find(fleet, &name).await?;
    let keys = fleet.keys.pool(&pool);
    let (_, presence) = fleet.client.read(&keys.gateway(&name)).await?;
    anyhow::ensure!(
        presence.is_none(),
        "gateway `{name}` lives: stop its agent first (systemctl disable --now uxfrm-fleet), or it \
         joins again"
    );
    change(fleet, &name, |members| {
        let mut left = members.clone();
        left.gateways.remove(&name);
        Ok(Some(left))
    })
    .await?;
    say(format_args!("gateway {name} left pool {pool}; no other is ever to have its name"));
    Ok(ExitCode::SUCCESS)
}

fn gateway(fleet: &Fleet, options: &FleetGatewayOptions) -> anyhow::Result<GatewayName> {
    if let Some(name) = &options.gateway {
        return Ok(name.parse()?);
    }
    let own = fleet.config.gateway.as_ref();
    let own = own.context("which gateway? This host is none (no [gateway]); say its name")?;
    Ok(own.name.clone())
}

/// The pool of a gateway, and its members.
async fn find(fleet: &Fleet, name: &GatewayName) -> anyhow::Result<(PoolName, Opened<Members>)> {
    let mut known = Vec::new();
    for pool in fleet.pools().await? {
        let key = fleet.keys.pool(&pool).members();
        let Some(members) = fleet.record::<Members>(&key).await? else { continue };
        if members.record.gateways.contains_key(name) {
            return Ok((pool, members));
        }
        known.extend(members.record.gateways.into_keys().map(String::from));
    }
    let known = if known.is_empty() { "there is none".to_owned() } else { known.join(", ") };
    anyhow::bail!("no gateway `{name}` is in fleet `{}`: {known}", fleet.config.fleet)
}

/// Writes the members that follow from those of its pool; the epoch, where something changes.
async fn change(
    fleet: &Fleet,
    name: &GatewayName,
    follow: impl Fn(&Members) -> anyhow::Result<Option<Members>>,
) -> anyhow::Result<(PoolName, Option<u64>)> {
    for _ in 0..ATTEMPTS {
        let (pool, members) = find(fleet, name).await?;
        let Some(changed) = follow(&members.record)? else { return Ok((pool, None)) };
        let epoch = Serial(members.serial.0 + 1);
        let (key, text) = (fleet.keys.pool(&pool).members(), serde_json::to_vec(&changed)?);
        let written = Some(members.stored.revision);
        if fleet.put_if(written, (key, epoch, &text), Vec::new()).await?.is_some() {
            return Ok((pool, Some(epoch.0)));
        }
    }
    anyhow::bail!("the members of the pool change all the time; try again")
}
