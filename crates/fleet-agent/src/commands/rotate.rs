//! `uxfrm fleet rotate-key`: another key for the fleet, in four steps.
//!
//! Whoever seals with a key has made sure that all others have it, so it goes by hand: after each
//! step the key file is copied to all gateways, and their agents are reloaded.

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use anyhow::Context as _;
use uxfrm_fleet::{
    seal::{FleetKey, Keyring},
    store::Stored,
};
use uxfrm_fleet_options::RotateStep;

use super::{Fleet, block_on, say};
use crate::{config::FleetConfig, key_file};

/// How often a record is sealed that changes meanwhile.
const ATTEMPTS: usize = 10;

pub(super) fn rotate(path: &Path, step: RotateStep) -> anyhow::Result<ExitCode> {
    let config = FleetConfig::load(path).map_err(anyhow::Error::msg)?;
    match step {
        RotateStep::Add => add(&config),
        RotateStep::Use => seal_with_new(&config),
        RotateStep::Reseal | RotateStep::Drop => block_on(at_etcd(config, step)),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn add(config: &FleetConfig) -> anyhow::Result<()> {
    let path = &config.key_file;
    let mut keys = key_file::read_lines(path).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(
        keys.len() == 1,
        "{}: it has {} keys; `drop` first",
        path.display(),
        keys.len()
    );
    let key = key_file::draw()?;
    let id = FleetKey::new(key.clone()).id();
    keys.push(key);
    key_file::replace(path, &keys).with_context(|| format!("{}", path.display()))?;
    say(format_args!("{}: the key {id} opens as well", path.display()));
    say_next("use");
    Ok(())
}

fn seal_with_new(config: &FleetConfig) -> anyhow::Result<()> {
    let path = &config.key_file;
    let mut keys = key_file::read_lines(path).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(keys.len() == 2, "{}: it has one key; `add` first", path.display());
    keys.swap(0, 1);
    key_file::replace(path, &keys).with_context(|| format!("{}", path.display()))?;
    let id = FleetKey::new(keys[0].clone()).id();
    say(format_args!("{}: the key {id} seals", path.display()));
    say_next("reseal");
    Ok(())
}

fn say_next(step: &str) {
    say("copy the file to all gateways, and reload their agents: systemctl reload uxfrm-fleet");
    say(format_args!("then: uxfrm fleet rotate-key {step}"));
}

async fn at_etcd(config: FleetConfig, step: RotateStep) -> anyhow::Result<()> {
    let keys = key_file::read_keys(&config.key_file).map_err(anyhow::Error::msg)?;
    // A file that was read has a key.
    let sealing = Keyring::new(keys[0].clone(), []);
    let fleet = Fleet::of(config).await?;
    if step == RotateStep::Reseal {
        reseal(&fleet, &sealing).await?;
        say("then: uxfrm fleet rotate-key drop");
        return Ok(());
    }
    let left = sealed_otherwise(&fleet, &sealing).await?;
    let path = &fleet.config.key_file;
    anyhow::ensure!(
        left.is_empty(),
        "{} records are sealed by the old key, as {}: `reseal` first, and see that all agents were \
         reloaded",
        left.len(),
        left.keys().next().map(String::as_str).unwrap_or_default()
    );
    let keys = key_file::read_lines(path).map_err(anyhow::Error::msg)?;
    key_file::replace(path, &keys[..1]).with_context(|| format!("{}", path.display()))?;
    say(format_args!("{}: the old key is gone", path.display()));
    say("copy the file to all gateways, and reload their agents: systemctl reload uxfrm-fleet");
    Ok(())
}

type Records = BTreeMap<String, Stored>;

/// The records that the key does not open.
async fn sealed_otherwise(fleet: &Fleet, sealing: &Keyring) -> anyhow::Result<Records> {
    let (_, records) = fleet.client.read_all(fleet.keys.prefix()).await?;
    let other = |(key, stored): &(String, Stored)| sealing.open(key, &stored.value).is_err();
    Ok(records.into_iter().filter(other).collect())
}

/// Seals what others sealed by the old key, as it is. What is leased is its gateway's to write.
async fn reseal(fleet: &Fleet, sealing: &Keyring) -> anyhow::Result<()> {
    let mut count = 0;
    for _ in 0..ATTEMPTS {
        let left = sealed_otherwise(fleet, sealing).await?;
        let left: Vec<_> = left.into_iter().filter(|(key, _)| !is_leased(fleet, key)).collect();
        if left.is_empty() {
            say(format_args!("{count} records are sealed anew"));
            return Ok(());
        }
        for (key, stored) in left {
            let opened = fleet.keyring.open(&key, &stored.value);
            let opened = opened.with_context(|| key.clone())?;
            let (written, record) = (Some(stored.revision), (key, opened.serial, &opened.text[..]));
            count += usize::from(fleet.put_if(written, record, Vec::new()).await?.is_some());
        }
    }
    anyhow::bail!("agents still seal by the old key: copy the file to them, and reload them")
}

/// Whether a record goes with a lease, which sealing anew would take from it.
fn is_leased(fleet: &Fleet, key: &str) -> bool {
    let rest = key.strip_prefix(&fleet.keys.pools()).unwrap_or_default();
    let kind = rest.split('/').nth(1);
    kind == Some("gateways") || kind == Some("votes")
}
