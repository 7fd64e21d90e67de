//! `uxfrm fleet init` and `join`: a fleet's first files and record, and a gateway's section.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use uxfrm_fleet::{
    names::{FleetName, GatewayName, PoolName},
    seal::Serial,
};
use uxfrm_fleet_options::{FleetInitOptions, FleetJoinOptions};

use super::{Fleet, desired_state::Generation, say};
use crate::{
    config::{EtcdConfig, FleetConfig, GatewayConfig},
    etcd::EtcdError,
    key_file, whole_file,
};

pub(super) async fn init(path: &Path, options: &FleetInitOptions) -> anyhow::Result<ExitCode> {
    let config = configuration(options)?;
    anyhow::ensure!(
        !path.exists(),
        "{}: it is there; move it away, or name another by --config",
        path.display()
    );
    let key_file = config.key_file.display();
    let key = key_file::draw()?;
    key_file::create(&config.key_file, &[key]).with_context(|| {
        format!("{key_file}: a fleet's key is drawn once; a host that has it needs no `init`")
    })?;
    let made = match Fleet::of(config.clone()).await {
        Ok(fleet) => first_record(&fleet).await,
        Err(error) => Err(error),
    };
    if let Err(error) = made {
        // Nobody knows whether a transaction was done that etcd did not answer.
        if error.is::<Unanswered>() {
            write_new(path, &config)?;
        } else {
            let _removed = fs::remove_file(&config.key_file);
        }
        return Err(error);
    }
    write_new(path, &config)?;
    say(format_args!("{key_file}: the key of fleet {}; keep a copy", config.fleet));
    say(format_args!("{}: its configuration", path.display()));
    say("copy both to each gateway, and run there: uxfrm fleet join NAME --address ADDRESS:PORT");
    Ok(ExitCode::SUCCESS)
}

fn configuration(options: &FleetInitOptions) -> anyhow::Result<FleetConfig> {
    let etcd = EtcdConfig {
        endpoints: options.etcd.clone(),
        ca: options.ca.clone(),
        certificate: options.certificate.clone(),
        key: options.certificate_key.clone(),
        user: options.user.clone(),
        password_file: options.password_file.clone(),
    };
    let fleet: FleetName = options.fleet.parse()?;
    let config = FleetConfig { fleet, key_file: options.key_file.clone(), gateway: None, etcd };
    config.check().map_err(anyhow::Error::msg)?;
    Ok(config)
}

/// Writes the generation 0, where there is none.
async fn first_record(fleet: &Fleet) -> anyhow::Result<()> {
    let text = serde_json::to_vec(&Generation { is_under_way: false })?;
    let record = (fleet.keys.generation(), Serial(0), &text[..]);
    let committed = fleet.put_if(None, record, Vec::new()).await;
    let committed = committed.map_err(|error| match error.downcast_ref() {
        Some(EtcdError::Unreachable { .. }) => error.context(Unanswered),
        Some(_) | None => error,
    })?;
    anyhow::ensure!(
        committed.is_some(),
        "there is a fleet `{}` at {}: copy its key and configuration here, and `join` it",
        fleet.config.fleet,
        fleet.client.endpoint()
    );
    Ok(())
}

/// etcd did not say whether it wrote the first record.
#[derive(Debug, thiserror::Error)]
#[error(
    "the fleet may be there or not, so its key and configuration stay: `uxfrm fleet status` tells; \
     where there is none, remove both files and `init` again"
)]
struct Unanswered;

pub(super) fn join(path: &Path, options: &FleetJoinOptions) -> anyhow::Result<()> {
    let mut config = FleetConfig::load(path).map_err(anyhow::Error::msg)?;
    if let Some(gateway) = &config.gateway {
        anyhow::bail!("{}: this host is gateway `{}` already", path.display(), gateway.name);
    }
    let (name, pool): (GatewayName, PoolName) = (options.gateway.parse()?, options.pool.parse()?);
    config.gateway = Some(GatewayConfig {
        name: name.clone(),
        pool,
        address: options.address,
        weight: options.weight,
        capacity: options.capacity,
        state: options.state.clone(),
        control: options.control.clone(),
    });
    config.check().map_err(anyhow::Error::msg)?;
    key_file::read_keyring(&config.key_file).map_err(anyhow::Error::msg)?;
    fs::create_dir_all(&options.state).with_context(|| format!("{}", options.state.display()))?;
    append(path, &config)?;
    say(format_args!("{}: this host is gateway {name}", path.display()));
    say("it joins with its agent: systemctl enable --now uxfrm-fleet");
    Ok(())
}

/// Adds the gateway's section; what the file says beside it stays as it is written.
fn append(path: &Path, config: &FleetConfig) -> anyhow::Result<()> {
    let gateway = toml::to_string(config.gateway.as_ref().context("no gateway")?)?;
    let written = fs::read_to_string(path).and_then(|text| {
        let text = format!("{}\n\n[gateway]\n{gateway}", text.trim_end());
        whole_file::replace_on_disk(path, text.as_bytes())
    });
    written.with_context(|| format!("{}", path.display()))
}

fn write_new(path: &Path, config: &FleetConfig) -> anyhow::Result<()> {
    let text = toml::to_string(config)?;
    let created = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    let write = |mut file: fs::File| -> io::Result<()> { file.write_all(text.as_bytes()) };
    created.and_then(write).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_joins_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let path = at("fleet.toml");
        key_file::create(&at("fleet.key"), &[key_file::draw().unwrap()]).unwrap();
        let key_file = at("fleet.key");
        let text = format!(
            "# ours\nfleet = \"f\"\nkey_file = {key_file:?}\n[etcd]\n\
             endpoints = [\"http://127.0.0.1:1\"]\n"
        );
        fs::write(&path, &text).unwrap();
        let mut options = FleetJoinOptions {
            gateway: "gw-1".to_owned(),
            address: "10.0.0.1:4600".parse().unwrap(),
            pool: "default".to_owned(),
            weight: 1,
            capacity: 5,
            state: at("state"),
            control: None,
        };
        join(&path, &options).unwrap();
        let config = FleetConfig::load(&path).unwrap();
        assert_eq!(config.gateway.unwrap().capacity, 5);
        assert!(fs::read_to_string(&path).unwrap().starts_with(text.trim_end()));
        let again = join(&path, &options).unwrap_err().to_string();
        assert!(again.contains("this host is gateway `gw-1` already"), "{again}");
        fs::write(&path, &text).unwrap();
        options.gateway = "GW".to_owned();
        assert!(join(&path, &options).unwrap_err().to_string().contains("`GW` is no name"));
    }
}
