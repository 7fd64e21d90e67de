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
    store::{Stay, StoreCondition, StoreOperation, StoreRevision, StoreTransaction, Stored},
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
    match &options.command {
        FleetCommand::Run => run::run(path).map(|()| ExitCode::SUCCESS),
        FleetCommand::Join(join) => init::join(path, join).map(|()| ExitCode::SUCCESS),
        FleetCommand::RotateKey(rotate) => rotate::rotate(path, rotate.step),
        FleetCommand::Init(options) => block_on(init::init(path, options)),
        FleetCommand::Status(options) => block_on(status::status(path, options)),
        FleetCommand::Apply(options) => {
            at_fleet(path, async |fleet| apply::apply(fleet, options).await)
        }
        FleetCommand::Get(options) => at_fleet(path, async |fleet| get::get(fleet, options).await),
        FleetCommand::Drain(options) => {
            at_fleet(path, async |fleet| members::set_duty(fleet, options, Duty::Draining).await)
        }
        FleetCommand::Undrain(options) => {
            at_fleet(path, async |fleet| members::set_duty(fleet, options, Duty::Active).await)
        }
        FleetCommand::Leave(options) => {
            at_fleet(path, async |fleet| members::leave(fleet, options).await)
        }
        FleetCommand::Watch => at_fleet(path, watch::watch),
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// Does something with a fleet that answers.
fn at_fleet<T>(
    path: &Path,
    work: impl AsyncFnOnce(&Fleet) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    block_on(async { work(&Fleet::reach(path).await?).await })
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

    /// What writes a record that stays.
    fn put(&self, key: String, serial: Serial, text: &[u8]) -> anyhow::Result<StoreOperation> {
        let value = self.seal(&key, serial, text)?;
        Ok(StoreOperation::Put { key, value, stay: Stay::Forever })
    }

    /// Writes a record that stays, and does something else with it, if nobody wrote it since
    /// `written`; the revision where that was done.
    async fn put_if(
        &self,
        written: Option<StoreRevision>,
        (key, serial, text): (String, Serial, &[u8]),
        others: Vec<StoreOperation>,
    ) -> anyhow::Result<Option<StoreRevision>> {
        let conditions = vec![StoreCondition { key: key.clone(), written }];
        let operations = others.into_iter().chain([self.put(key, serial, text)?]).collect();
        Ok(self.client.commit(&StoreTransaction { conditions, operations }).await?)
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
