//! The databases that a configuration describes, with the numbers of their states.

use std::path::Path;

use anyhow::Context as _;
use uxfrm_engine::{ChangeSet, Database, MetadataSupport, ReplayKeeper};
use uxfrm_io::random;

use super::sequences::SequenceStore;
use crate::{
    batch::apply,
    clock::now,
    config::Config,
    devices::{DeviceCreation, Devices},
};

/// The databases that a configuration describes, of which nobody sees anything.
///
/// # Errors
/// All that is wrong with its batch files.
pub(crate) fn dry_run(config: &Config) -> anyhow::Result<Database> {
    read(config, DeviceCreation::DryRun, None).map(|(database, _)| database)
}

/// The same without what files say.
///
/// # Errors
/// As [`dry_run`], of the rest of the configuration.
pub(crate) fn dry_run_without_batch(config: &Config) -> anyhow::Result<Database> {
    let mut database = empty(config, None)?;
    Devices::plug(&config.device, DeviceCreation::DryRun, config.wire.mark.get(), &mut database)?;
    Ok(database)
}

/// The databases that a configuration describes, and the devices. Workers see nothing of it yet.
pub(crate) fn read(
    config: &Config,
    making: DeviceCreation,
    store: Option<&SequenceStore>,
) -> anyhow::Result<(Database, Devices)> {
    let mut database = empty(config, store)?;
    let devices = Devices::plug(&config.device, making, config.wire.mark.get(), &mut database)?;
    apply::load(&mut database, &config.xfrm.batch, now()).map_err(joined)?;
    Ok((database, devices))
}

/// Databases without devices, and without what files say.
pub(crate) fn empty(config: &Config, store: Option<&SequenceStore>) -> anyhow::Result<Database> {
    let mut database = Database::new(config.crypto.backend.into(), iv_seed()?);
    let senses = if config.inline.is_some() {
        MetadataSupport::BytesOnly
    } else {
        MetadataSupport::Filtered
    };
    database.set_metadata_support(senses);
    database.track_changes_with(store.map_or_else(ReplayKeeper::default, SequenceStore::keeper));
    Ok(database)
}

/// Random, for IV prefixes of states until their owner draws them.
fn iv_seed() -> anyhow::Result<u64> {
    let mut seed = [0; 8];
    random::fill(&mut seed).context("no random numbers")?;
    Ok(u64::from_ne_bytes(seed))
}

/// Lets workers see what was read, once the numbers that its states may use are written down.
pub(crate) fn reserve(database: &mut Database, store: &mut SequenceStore) -> anyhow::Result<()> {
    let ChangeSet { added, .. } = database.take_changes();
    added.iter().for_each(|sa| store.admit(sa, now()));
    store.commit().map_err(|error| anyhow::anyhow!(store.unwritten(&error)))?;
    database.push_sequence_limits();
    database.publish();
    Ok(())
}

/// All faults as one error, a line each.
fn joined(faults: Vec<apply::Error>) -> anyhow::Error {
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    anyhow::anyhow!(lines.join("\n"))
}

/// The directory that outlives the process.
pub(crate) fn state_directory(config: &Config) -> anyhow::Result<&Path> {
    config.xfrm.sequences.as_deref().context("a configuration that was loaded names it")
}
