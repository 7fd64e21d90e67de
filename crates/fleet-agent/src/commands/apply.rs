//! `uxfrm fleet apply`: the fleet's tunnels become what a file says.
//!
//! 1. The file is read as a whole, compared with what etcd has, and the difference printed.
//! 2. The generation is reserved, so that of two that apply at once one is refused.
//! 3. Tunnels and buckets are written; nobody knows them yet.
//! 4. One transaction writes the indices that name them.
//! 5. What no index names any more is deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use uxfrm_fleet::{
    desired::{DesiredChange, DesiredFile, Plan, PoolState, TunnelDiff, Write, plan},
    names::{PoolName, TunnelName},
    seal::Serial,
    store::{StoreOperation, StoreRevision, StoreTransaction},
};
use uxfrm_fleet_options::FleetApplyOptions;
use zeroize::Zeroizing;

use super::{
    Fleet, Opened,
    desired_state::Generation,
    key_mask::{has_masks, without_keys},
    line_diff::changed_lines,
    say,
};

/// Operations of one transaction; etcd takes 128.
const MOST_OPERATIONS: usize = 100;
/// Bytes of one transaction; etcd takes 1.5 MiB.
const MOST_BYTES: usize = 1 << 20;

pub(super) async fn apply(fleet: &Fleet, options: &FleetApplyOptions) -> anyhow::Result<ExitCode> {
    let wanted = read(&options.file)?;
    let generation = fleet.generation().await?;
    let now = fleet.desired().await?;
    let next = Serial(generation.serial.0 + 1);
    let plan = plan(&fleet.keys, &now, &wanted, next);
    print_plan(fleet, &now, &wanted, &plan).await?;
    if plan.changes.is_empty() {
        say("nothing changes");
    } else if options.dry_run {
        say("nothing was written (--dry-run)");
    } else {
        write(fleet, &generation, next, &now, plan).await?;
        say(format_args!("applied as generation {}", next.0));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<DesiredFile> {
    let name = path.display();
    let mut text = Zeroizing::new(String::new());
    let was_read = if path == Path::new("-") {
        io::stdin().read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    was_read.with_context(|| format!("{name}"))?;
    let file = DesiredFile::parse(&text).with_context(|| format!("{name}"))?;
    check(&file).with_context(|| format!("{name}"))?;
    Ok(file)
}

/// What is wrong whatever the lines say.
fn check(file: &DesiredFile) -> anyhow::Result<()> {
    let tunnels = file.pools.values().flat_map(|pool| &pool.tunnels);
    for (name, tunnel) in tunnels {
        let lines = std::iter::once(&tunnel.lines).chain(&tunnel.children);
        anyhow::ensure!(
            !lines.into_iter().any(|lines| has_masks(lines.as_str())),
            "tunnel `{name}`: `KEY` is no key: `uxfrm fleet get --keys` prints keys"
        );
    }
    Ok(())
}

async fn print_plan(
    fleet: &Fleet,
    now: &BTreeMap<PoolName, PoolState>,
    wanted: &DesiredFile,
    plan: &Plan,
) -> anyhow::Result<()> {
    for change in &plan.changes {
        match change {
            DesiredChange::Pool(pool) => print_pool(now.get(pool), wanted, pool),
            DesiredChange::Tunnel(pool, tunnel, diff) => {
                let sign = match diff {
                    TunnelDiff::Added => '+',
                    TunnelDiff::Changed => '~',
                    TunnelDiff::Removed => '-',
                };
                say(format_args!("{sign} tunnel {pool}/{tunnel}"));
                if *diff == TunnelDiff::Changed {
                    print_tunnel(fleet, now, wanted, (pool, tunnel)).await?;
                }
            }
        }
    }
    Ok(())
}

fn print_pool(now: Option<&PoolState>, wanted: &DesiredFile, pool: &PoolName) {
    let wish = wanted.pools.get(pool);
    let sign = match (now, wish) {
        (None, _) => '+',
        (Some(_), None) => '-',
        (Some(_), Some(_)) => '~',
    };
    say(format_args!("{sign} pool {pool}"));
    let before = now.map(|now| without_keys(now.lines.as_str())).unwrap_or_default();
    let after = wish.map(|wish| without_keys(wish.lines.as_str())).unwrap_or_default();
    changed_lines(&before, &after).iter().for_each(|line| say(format_args!("    {line}")));
}

async fn print_tunnel(
    fleet: &Fleet,
    now: &BTreeMap<PoolName, PoolState>,
    wanted: &DesiredFile,
    (pool, name): (&PoolName, &TunnelName),
) -> anyhow::Result<()> {
    let entry = now.get(pool).and_then(|state| state.tunnel(name));
    let wish = wanted.pools.get(pool).and_then(|pool| pool.tunnels.get(name));
    let (Some(entry), Some(wish)) = (entry, wish) else { return Ok(()) };
    let had = fleet.tunnel(&fleet.keys.pool(pool), name, entry.serial).await?;
    let mut is_shown = false;
    let parts = had.children.len().max(wish.children.len());
    for part in 0..=parts {
        // First what all children share.
        let of = |tunnel: &uxfrm_fleet::desired::DesiredTunnel| match part.checked_sub(1) {
            None => without_keys(tunnel.lines.as_str()),
            Some(child) => {
                let lines = tunnel.children.get(child);
                lines.map(|lines| without_keys(lines.as_str())).unwrap_or_default()
            }
        };
        for line in changed_lines(&of(&had), &of(wish)) {
            say(format_args!("    {line}"));
            is_shown = true;
        }
    }
    if !is_shown {
        say("    other keys, or another order of lines");
    }
    Ok(())
}

async fn write(
    fleet: &Fleet,
    generation: &Opened<Generation>,
    next: Serial,
    now: &BTreeMap<PoolName, PoolState>,
    plan: Plan,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        plan.indices.len() < MOST_OPERATIONS,
        "{} pools change; etcd takes {} in one transaction: apply fewer at once",
        plan.indices.len(),
        MOST_OPERATIONS - 1
    );
    let reserved = reserve(fleet, generation.stored.revision, next, Vec::new()).await?;
    if generation.record.is_under_way {
        sweep(fleet, now).await?;
    }
    put_all(fleet, plan.parts).await?;
    let indices = sealed(fleet, plan.indices)?;
    let written = reserve(fleet, reserved, next, indices).await?;
    let obsolete = plan.obsolete.into_iter().map(|key| StoreOperation::Delete { key });
    delete_all(fleet, obsolete.collect()).await?;
    let done = Generation { is_under_way: false };
    note(fleet, written, next, done, Vec::new())
        .await
        .map(drop)
        // It is done all the same; the next one cleans up.
        .or_else(|error| if error.is::<AppliedByAnother>() { Ok(()) } else { Err(error) })
}

/// Somebody else applied at the same time.
#[derive(Debug, thiserror::Error)]
#[error("somebody else applied meanwhile, and nothing was changed here: apply again")]
struct AppliedByAnother;

/// Writes the generation, if nobody else did, and something else with it.
async fn reserve(
    fleet: &Fleet,
    written: StoreRevision,
    next: Serial,
    others: Vec<StoreOperation>,
) -> anyhow::Result<StoreRevision> {
    note(fleet, written, next, Generation { is_under_way: true }, others).await
}

async fn note(
    fleet: &Fleet,
    written: StoreRevision,
    serial: Serial,
    generation: Generation,
    others: Vec<StoreOperation>,
) -> anyhow::Result<StoreRevision> {
    let text = serde_json::to_vec(&generation)?;
    let record = (fleet.keys.generation(), serial, &text[..]);
    Ok(fleet.put_if(Some(written), record, others).await?.ok_or(AppliedByAnother)?)
}

fn sealed(fleet: &Fleet, writes: Vec<Write>) -> anyhow::Result<Vec<StoreOperation>> {
    writes.into_iter().map(|write| fleet.put(write.path, write.serial, &write.text)).collect()
}

async fn put_all(fleet: &Fleet, writes: Vec<Write>) -> anyhow::Result<()> {
    let (mut operations, mut bytes) = (Vec::new(), 0);
    for write in writes {
        let size = write.text.len() + write.path.len();
        if operations.len() >= MOST_OPERATIONS || bytes + size > MOST_BYTES {
            commit_all(fleet, std::mem::take(&mut operations)).await?;
            bytes = 0;
        }
        bytes += size;
        operations.extend(sealed(fleet, vec![write])?);
    }
    commit_all(fleet, operations).await
}

async fn delete_all(fleet: &Fleet, operations: Vec<StoreOperation>) -> anyhow::Result<()> {
    for some in operations.chunks(MOST_OPERATIONS) {
        commit_all(fleet, some.to_vec()).await?;
    }
    Ok(())
}

async fn commit_all(fleet: &Fleet, operations: Vec<StoreOperation>) -> anyhow::Result<()> {
    if !operations.is_empty() {
        let transaction = StoreTransaction { conditions: Vec::new(), operations };
        fleet.client.commit(&transaction).await?;
    }
    Ok(())
}

/// Deletes what one that did not end has left: tunnels and buckets that no index names.
async fn sweep(fleet: &Fleet, now: &BTreeMap<PoolName, PoolState>) -> anyhow::Result<()> {
    for (pool, state) in now {
        let keys = fleet.keys.pool(pool);
        let tunnels = state.tunnels().map(|(name, entry)| keys.tunnel(name, entry.serial));
        let buckets = state.buckets.iter().enumerate();
        let buckets = buckets.map(|(number, (serial, _))| keys.bucket(number, *serial));
        let named: BTreeSet<_> = tunnels.chain(buckets).collect();
        for prefix in [keys.all_tunnels(), keys.all_buckets()] {
            let all = fleet.client.keys(&prefix).await?.into_iter();
            let stray = all.filter(|key| !named.contains(key));
            let stray = stray.map(|key| StoreOperation::Delete { key });
            delete_all(fleet, stray.collect()).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_its_keys_is_refused() {
        let text = "[tunnels.a]\nlines = \"xfrm state add enc cbc(aes) KEY\"\n";
        let why = check(&DesiredFile::parse(text).unwrap()).unwrap_err().to_string();
        assert!(why.contains("tunnel `a`: `KEY` is no key"), "{why}");
        assert!(check(&DesiredFile::parse(&text.replace("KEY", "0x00")).unwrap()).is_ok());
    }
}
