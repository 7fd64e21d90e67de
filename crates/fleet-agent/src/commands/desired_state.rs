//! The desired state as etcd has it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use uxfrm_fleet::{
    desired::{Bucket, DesiredFile, DesiredPool, DesiredTunnel, PoolIndex, PoolState},
    keyspace::PoolKeyspace,
    names::{PoolName, TunnelName},
    seal::Serial,
};

use super::{Fleet, Opened};

/// What the record of the generation says; its serial number is the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Generation {
    /// Something was begun that may have left records which nobody needs.
    pub(crate) is_under_way: bool,
}

impl Fleet {
    /// The generation, where there is a fleet.
    pub(super) async fn generation(&self) -> anyhow::Result<Opened<Generation>> {
        let generation = self.record(&self.keys.generation()).await?;
        generation.with_context(|| {
            let (fleet, endpoint) = (&self.config.fleet, self.client.endpoint());
            format!("there is no fleet `{fleet}` at {endpoint}; `uxfrm fleet init` makes one")
        })
    }

    /// The pools that are there, or were.
    pub(super) async fn pools(&self) -> anyhow::Result<Vec<PoolName>> {
        let prefix = self.keys.pools();
        let (mut pools, mut from) = (Vec::new(), prefix.clone());
        while let Some(key) = self.client.next_key(&prefix, &from).await? {
            let name = key[prefix.len()..].split('/').next().unwrap_or_default();
            // `0` is the letter behind the slash.
            from = format!("{prefix}{name}0");
            pools.extend(name.parse::<PoolName>());
        }
        Ok(pools)
    }

    /// What each pool is to do. A pool that only gateways know has nothing to do.
    pub(super) async fn desired(&self) -> anyhow::Result<BTreeMap<PoolName, PoolState>> {
        let mut desired = BTreeMap::new();
        for pool in self.pools().await? {
            if let Some(state) = self.pool_state(&self.keys.pool(&pool)).await? {
                desired.insert(pool, state);
            }
        }
        Ok(desired)
    }

    pub(super) async fn pool_state(
        &self,
        keys: &PoolKeyspace,
    ) -> anyhow::Result<Option<PoolState>> {
        // Another one may apply meanwhile: then the index is read again.
        for _ in 0..5 {
            let Some(index) = self.record::<PoolIndex>(&keys.desired()).await? else {
                return Ok(None);
            };
            if let Some(buckets) = self.buckets(keys, &index.record).await? {
                let Opened { serial, record, .. } = index;
                return Ok(Some(PoolState { serial, lines: record.lines, buckets }));
            }
        }
        anyhow::bail!("{}: buckets that it names are not there", keys.desired())
    }

    async fn buckets(
        &self,
        keys: &PoolKeyspace,
        index: &PoolIndex,
    ) -> anyhow::Result<Option<Vec<(Serial, Bucket)>>> {
        let (_, records) = self.client.read_all(&keys.all_buckets()).await?;
        let mut records: BTreeMap<_, _> = records.into_iter().collect();
        let mut buckets = Vec::with_capacity(index.buckets.len());
        for (number, serial) in index.buckets.iter().enumerate() {
            let key = keys.bucket(number, *serial);
            let Some(stored) = records.remove(&key) else { return Ok(None) };
            buckets.push((*serial, self.open::<Bucket>(&key, stored)?.record));
        }
        Ok(Some(buckets))
    }

    /// One tunnel.
    pub(super) async fn tunnel(
        &self,
        keys: &PoolKeyspace,
        name: &TunnelName,
        serial: Serial,
    ) -> anyhow::Result<DesiredTunnel> {
        let key = keys.tunnel(name, serial);
        let tunnel = self.record(&key).await?;
        Ok(tunnel.with_context(|| format!("{key}: it is not there"))?.record)
    }

    /// All of it, as a file would say it.
    pub(super) async fn desired_file(&self) -> anyhow::Result<DesiredFile> {
        let mut file = DesiredFile::default();
        for (name, state) in self.desired().await? {
            let keys = self.keys.pool(&name);
            let (_, records) = self.client.read_all(&keys.all_tunnels()).await?;
            let mut records: BTreeMap<_, _> = records.into_iter().collect();
            let mut pool = DesiredPool { lines: state.lines.clone(), ..DesiredPool::default() };
            for (tunnel, entry) in state.tunnels() {
                let key = keys.tunnel(tunnel, entry.serial);
                let stored = records.remove(&key);
                let stored = stored.with_context(|| {
                    format!("{key}: it is not there; was something applied meanwhile?")
                })?;
                pool.tunnels.insert(tunnel.clone(), self.open(&key, stored)?.record);
            }
            file.pools.insert(name, pool);
        }
        Ok(file)
    }
}
