//! `uxfrm fleet watch`: changes of the fleet as they come.

use std::{collections::BTreeMap, process::ExitCode};

use uxfrm_fleet::{
    keyspace::Keyspace,
    members::{Duty, Member, Members},
    names::{GatewayName, PoolName},
    store::{KeyChange, Stored},
};

use super::{Fleet, say, status::duty_word};

/// What was known of each pool.
type KnownMembers = BTreeMap<String, Members>;

pub(super) async fn watch(fleet: &Fleet) -> anyhow::Result<ExitCode> {
    fleet.generation().await?;
    let mut known = KnownMembers::new();
    // Before the first pool is read, so that no change of it is missed meanwhile.
    let (from, _) = fleet.client.read(&fleet.keys.generation()).await?;
    for pool in fleet.pools().await? {
        let key = fleet.keys.pool(&pool).members();
        if let Some(members) = fleet.record(&key).await? {
            known.insert(pool.to_string(), members.record);
        }
    }
    let prefix = fleet.keys.prefix().to_owned();
    let mut changes = fleet.client.follow(&prefix, from).await?;
    loop {
        for change in changes.next().await? {
            tell(fleet, &mut known, change);
        }
    }
}

fn tell(fleet: &Fleet, known: &mut KnownMembers, change: KeyChange) {
    let KeyChange { key, stored } = change;
    if key == fleet.keys.generation() {
        say_generation(fleet, &key, stored);
        return;
    }
    let Some((pool, rest)) = pool_of(&fleet.keys, &key) else { return };
    let parts: Vec<_> = rest.split('/').collect();
    match (&parts[..], stored) {
        (["members"], Some(stored)) => match fleet.open::<Members>(&key, stored) {
            Ok(opened) => {
                let before = known.insert(pool.to_string(), opened.record.clone());
                let epoch = opened.serial.0;
                say(format_args!("{pool}: epoch {epoch}"));
                let before = before.unwrap_or_default();
                changed(&before, &opened.record)
                    .for_each(|line| say(format_args!("{pool}: {line}")));
            }
            Err(error) => say(format_args!("refused: {error:#}")),
        },
        (["gateways", name], stored) => {
            let how = if stored.is_some() { "lives" } else { "lost its lease" };
            say(format_args!("{pool}: gateway {name} {how}"));
        }
        (["votes", suspect, voter], Some(_)) => {
            say(format_args!("{pool}: gateway {voter} does not hear {suspect}"));
        }
        (["votes", suspect, voter], None) => {
            say(format_args!("{pool}: gateway {voter} hears {suspect} again"));
        }
        (["desired"], Some(_)) => say(format_args!("{pool}: its tunnels changed")),
        // Numbers, edges and buckets: what people do not look at.
        (_, Some(_) | None) => {}
    }
}

fn say_generation(fleet: &Fleet, key: &str, stored: Option<Stored>) {
    let opened =
        stored.and_then(|stored| fleet.open::<super::desired_state::Generation>(key, stored).ok());
    if let Some(opened) = opened.filter(|opened| !opened.record.is_under_way) {
        say(format_args!("generation {} is applied", opened.serial.0));
    }
}

fn pool_of<'a>(keys: &Keyspace, key: &'a str) -> Option<(PoolName, &'a str)> {
    let (pool, rest) = key.strip_prefix(&keys.pools())?.split_once('/')?;
    Some((pool.parse().ok()?, rest))
}

/// What became of gateways, in sentences.
fn changed(before: &Members, after: &Members) -> impl Iterator<Item = String> {
    let names: std::collections::BTreeSet<&GatewayName> =
        before.gateways.keys().chain(after.gateways.keys()).collect();
    let duty = |member: Option<&Member>| member.map(|member| member.duty);
    let line = |name: &&GatewayName| {
        let was = duty(before.gateways.get(*name));
        let is = duty(after.gateways.get(*name));
        let how = |duty: Duty| duty_word(duty);
        match (was, is) {
            (None, Some(is)) => Some(format!("gateway {name} joined: {}", how(is))),
            (Some(_), None) => Some(format!("gateway {name} left")),
            (Some(was), Some(is)) if was != is => Some(format!("gateway {name} is {}", how(is))),
            (Some(_), Some(_)) | (None, None) => None,
        }
    };
    names.iter().filter_map(line).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use uxfrm_fleet::edges::Reach;

    use super::*;

    fn members(duties: &[(&str, Duty)]) -> Members {
        let member =
            |duty| Member { weight: 1, capacity: 1, duty, address: "10.0.0.1:1".parse().unwrap() };
        let gateways = duties.iter().map(|(name, duty)| (name.parse().unwrap(), member(*duty)));
        Members { gateways: gateways.collect() }
    }

    #[test]
    fn changes_by_gateway() {
        let before = members(&[("a", Duty::Active), ("b", Duty::Active), ("c", Duty::Active)]);
        let after =
            members(&[("a", Duty::Active), ("b", Duty::Down(Reach::Near)), ("d", Duty::Draining)]);
        let lines: Vec<_> = changed(&before, &after).collect();
        assert_eq!(lines, ["gateway b is down", "gateway c left", "gateway d joined: draining"]);
    }
}
