//! The commands of `uxfrm fleet`.

mod apply;
mod desired_state;
mod get;
mod init;
mod key_mask;
mod line_diff;
mod members;
mod rotate;
mod status;
mod watch;

use std::{fmt, io::Write as _, path::Path, process::ExitCode};

use serde::de::DeserializeOwned;
use uxfrm_fleet::{
    keyspace::Keyspace,
    members::Duty,
    seal::{Keyring, SealNonce, Serial},
    store::Stored,
};
use uxfrm_fleet_options::{FleetCommand, FleetOptions};

use crate::{
    config::FleetConfig,
    etcd::{EtcdClient, StoreHistory},
    key_file, run,
};

/// Does what is asked; the exit code.
///
/// # Errors
/// What was wrong, where, and what would be right.
pub fn execute(options: &FleetOptions) -> anyhow::Result<ExitCode> {
    let path = options.config.as_path();
    let command = &options.command;
    match command {
        FleetCommand::Run => run::run(path).map(|()| ExitCode::SUCCESS),
        FleetCommand::Join(join) => init::join(path, join).map(|()| ExitCode::SUCCESS),
        FleetCommand::RotateKey(rotate) => rotate::rotate(path, rotate.step),
        FleetCommand::Init(_)
        | FleetCommand::Leave(_)
        | FleetCommand::Apply(_)
        | FleetCommand::Get(_)
        | FleetCommand::Status(_)
        | FleetCommand::Drain(_)
        | FleetCommand::Undrain(_)
        | FleetCommand::Watch => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(at_etcd(path, command))
        }
    }
}

async fn at_etcd(path: &Path, command: &FleetCommand) -> anyhow::Result<ExitCode> {
    match command {
        FleetCommand::Init(options) => init::init(path, options).await,
        FleetCommand::Apply(options) => apply::apply(&Fleet::reach(path).await?, options).await,
        FleetCommand::Get(options) => get::get(&Fleet::reach(path).await?, options).await,
        FleetCommand::Status(options) => status::status(path, options).await,
        FleetCommand::Drain(options) => {
            members::set_duty(&Fleet::reach(path).await?, options, Duty::Draining).await
        }
        FleetCommand::Undrain(options) => {
            members::set_duty(&Fleet::reach(path).await?, options, Duty::Active).await
        }
        FleetCommand::Leave(options) => members::leave(&Fleet::reach(path).await?, options).await,
        FleetCommand::Watch => watch::watch(&Fleet::reach(path).await?).await,
        FleetCommand::Run | FleetCommand::Join(_) | FleetCommand::RotateKey(_) => {
            Ok(ExitCode::FAILURE) // are done without etcd, above
        }
    }
}

/// A fleet that answers.
pub(crate) struct Fleet {
    pub(crate) config: FleetConfig,
    pub(crate) keyring: Keyring,
    pub(crate) client: EtcdClient,
    pub(crate) keys: Keyspace,
}

impl Fleet {
    async fn reach(path: &Path) -> anyhow::Result<Self> {
        let config = FleetConfig::load(path).map_err(anyhow::Error::msg)?;
        Self::of(config).await
    }

    async fn of(config: FleetConfig) -> anyhow::Result<Self> {
        let keyring = key_file::read_keyring(&config.key_file).map_err(anyhow::Error::msg)?;
        let client = EtcdClient::connect_any(&config.etcd, &StoreHistory::in_memory()).await?;
        let keys = Keyspace::of(&config.fleet);
        Ok(Self { config, keyring, client, keys })
    }

    /// What a key holds, opened; none where it is not there.
    async fn record<T: DeserializeOwned>(&self, key: &str) -> anyhow::Result<Option<Opened<T>>> {
        let (_, stored) = self.client.read(key).await?;
        stored.map(|stored| self.open(key, stored)).transpose()
    }

    fn open<T: DeserializeOwned>(&self, key: &str, stored: Stored) -> anyhow::Result<Opened<T>> {
        let opened = self.keyring.open(key, &stored.value);
        let opened = opened.map_err(|error| anyhow::anyhow!("{key}: {error}"))?;
        let record = serde_json::from_slice(&opened.text)
            .map_err(|_| anyhow::anyhow!("{key}: it is no record of this version of uxfrm"))?;
        Ok(Opened { serial: opened.serial, stored, record })
    }

    fn seal(&self, key: &str, serial: Serial, text: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce)?;
        Ok(self.keyring.seal(key, serial, text, SealNonce(nonce)))
    }
}

/// A record of etcd, opened.
pub(crate) struct Opened<T> {
    pub(crate) serial: Serial,
    pub(crate) stored: Stored,
    pub(crate) record: T,
}

/// Prints a line; where nobody reads any more there is nothing to say.
pub(crate) fn say(line: impl fmt::Display) {
    let _closed = writeln!(std::io::stdout(), "{line}");
}
