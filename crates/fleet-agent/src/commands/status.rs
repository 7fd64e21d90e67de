//! `uxfrm fleet status`: the fleet's gateways, what they have, and how etcd is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
    process::ExitCode,
};

use serde::Serialize;
use uxfrm_fleet::{
    members::{Duty, Members},
    names::{FleetName, GatewayName, PoolName},
};
use uxfrm_fleet_options::FleetStatusOptions;

use super::{Fleet, say};
use crate::{
    config::FleetConfig,
    etcd::{EtcdClient, StoreHistory},
    run::{AgentStatus, sentence},
};

/// What is printed, and the JSON of `-j`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct FleetStatus {
    fleet: FleetName,
    /// The number of the last applied state; none where etcd did not tell.
    generation: Option<u64>,
    etcd: Vec<EndpointStatus>,
    pools: BTreeMap<PoolName, PoolStatus>,
    /// What this host's agent says, where one runs.
    agent: Option<AgentStatus>,
    /// Why there is nothing of pools.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct EndpointStatus {
    endpoint: String,
    version: Option<String>,
    bytes: Option<u64>,
    has_leader: bool,
    error: Option<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct PoolStatus {
    epoch: u64,
    tunnels: usize,
    children: usize,
    /// Children that no gateway has room for.
    without_place: usize,
    gateways: BTreeMap<GatewayName, GatewayStatus>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct GatewayStatus {
    duty: Duty,
    has_lease: bool,
    address: std::net::SocketAddr,
    weight: u32,
    capacity: u32,
    /// How many children it is to have.
    children: usize,
    /// Who does not hear it.
    votes: BTreeSet<String>,
}

pub(super) async fn status(path: &Path, options: &FleetStatusOptions) -> anyhow::Result<ExitCode> {
    let config = FleetConfig::load(path).map_err(anyhow::Error::msg)?;
    let etcd = endpoints(&config).await;
    let state = config.gateway.as_ref().map(|gateway| gateway.state.as_path());
    let mut status = FleetStatus {
        fleet: config.fleet.clone(),
        generation: None,
        etcd,
        pools: BTreeMap::new(),
        agent: state.and_then(AgentStatus::read),
        error: None,
    };
    if let Err(error) = status.read(config).await {
        status.error = Some(format!("{error:#}"));
    }
    if options.json {
        say(serde_json::to_string_pretty(&status)?);
    } else {
        say(status.text().trim_end());
    }
    Ok(ExitCode::from(status.exit_code()))
}

async fn endpoints(config: &FleetConfig) -> Vec<EndpointStatus> {
    let mut all = Vec::new();
    for endpoint in &config.etcd.endpoints {
        let history = StoreHistory::in_memory();
        let health = match EtcdClient::connect(&config.etcd, endpoint, history).await {
            Ok(client) => client.health().await,
            Err(error) => Err(error),
        };
        let endpoint = endpoint.clone();
        all.push(match health {
            Ok(health) => EndpointStatus {
                endpoint,
                version: Some(health.version),
                bytes: Some(health.size),
                has_leader: health.has_leader,
                error: (!health.errors.is_empty()).then(|| health.errors.join(", ")),
            },
            Err(error) => EndpointStatus {
                endpoint,
                version: None,
                bytes: None,
                has_leader: false,
                error: Some(error.to_string()),
            },
        });
    }
    all
}

impl FleetStatus {
    async fn read(&mut self, config: FleetConfig) -> anyhow::Result<()> {
        let fleet = Fleet::of(config).await?;
        self.generation = Some(fleet.generation().await?.serial.0);
        for pool in fleet.pools().await? {
            self.pools.insert(pool.clone(), PoolStatus::read(&fleet, &pool).await?);
        }
        Ok(())
    }

    /// 2 where nobody answers, 1 where something is not as it should be.
    fn exit_code(&self) -> u8 {
        let gateways = self.pools.values().flat_map(|pool| pool.gateways.values());
        let is_well = |gateway: &GatewayStatus| {
            gateway.has_lease && !matches!(gateway.duty, Duty::Down(_)) && gateway.votes.is_empty()
        };
        let all_well = gateways.into_iter().all(is_well)
            && self.etcd.iter().all(|endpoint| endpoint.error.is_none() && endpoint.has_leader)
            && self.pools.values().all(|pool| pool.without_place == 0);
        match (&self.error, all_well) {
            (Some(_), _) => 2,
            (None, false) => 1,
            (None, true) => 0,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _written = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        match self.generation {
            Some(generation) => writeln!(text, "fleet {}, generation {generation}", self.fleet)?,
            None => writeln!(text, "fleet {}", self.fleet)?,
        }
        for endpoint in &self.etcd {
            let EndpointStatus { endpoint: name, version, error, has_leader, bytes } = endpoint;
            write!(text, "etcd {name}:")?;
            if let (Some(version), Some(bytes)) = (version, bytes) {
                let leader = if *has_leader { "" } else { ", without a leader" };
                write!(text, " {version}, {} kB{leader}", bytes / 1_000)?;
            }
            writeln!(text, "{}", error.as_ref().map_or_else(String::new, |why| format!(" {why}")))?;
        }
        for (name, pool) in &self.pools {
            pool.write(name, text)?;
        }
        if let Some(agent) = &self.agent {
            write_agent(agent, text)?;
        }
        if let Some(error) = &self.error {
            writeln!(text, "{error}")?;
        }
        Ok(())
    }
}

fn write_agent(status: &AgentStatus, text: &mut String) -> std::fmt::Result {
    let agent = &status.agent;
    writeln!(
        text,
        "this host: {}; {} children, {} come, {} go, {} refused",
        sentence(agent.store),
        agent.installed,
        agent.coming,
        agent.leaving,
        agent.refused
    )?;
    for why in status.lost.iter().chain(&status.refused) {
        writeln!(text, "  {why}")?;
    }
    Ok(())
}

impl PoolStatus {
    async fn read(fleet: &Fleet, pool: &PoolName) -> anyhow::Result<Self> {
        let keys = fleet.keys.pool(pool);
        let members = fleet.record::<Members>(&keys.members()).await?;
        let epoch = members.as_ref().map_or(0, |members| members.serial.0);
        let members = members.map(|members| members.record).unwrap_or_default();
        let state = fleet.pool_state(&keys).await?.unwrap_or_default();
        let live = fleet.client.keys(&keys.all_gateways()).await?;
        let votes = fleet.client.keys(&keys.all_votes()).await?;
        let children: Vec<_> = state.children().collect();
        let owners = members.owners(&children);
        let gateways = members.gateways.iter().map(|(name, member)| {
            let children = owners.iter().filter(|owner| **owner == Some(name)).count();
            let voters = votes.iter().filter_map(|key| key.strip_prefix(&keys.votes(name)));
            let status = GatewayStatus {
                duty: member.duty,
                has_lease: live.contains(&keys.gateway(name)),
                address: member.address,
                weight: member.weight,
                capacity: member.capacity,
                children,
                votes: voters.map(str::to_owned).collect(),
            };
            (name.clone(), status)
        });
        Ok(Self {
            epoch,
            tunnels: state.tunnels().count(),
            children: children.len(),
            without_place: owners.iter().filter(|owner| owner.is_none()).count(),
            gateways: gateways.collect(),
        })
    }

    fn write(&self, name: &PoolName, text: &mut String) -> std::fmt::Result {
        let Self { epoch, tunnels, children, without_place, gateways } = self;
        write!(text, "pool {name}: epoch {epoch}, {tunnels} tunnels, {children} children")?;
        match without_place {
            0 => writeln!(text)?,
            without => writeln!(text, ", {without} without a gateway")?,
        }
        for (name, gateway) in gateways {
            let GatewayStatus { duty, has_lease, address, children, votes, .. } = gateway;
            let lease = if *has_lease { "" } else { ", no lease" };
            write!(
                text,
                "  {name}: {}{lease}, {children} children, at {address}",
                duty_word(*duty)
            )?;
            match votes.is_empty() {
                true => writeln!(text)?,
                false => {
                    let votes: Vec<_> = votes.iter().map(String::as_str).collect();
                    writeln!(text, ", not heard by {}", votes.join(", "))?;
                }
            }
        }
        Ok(())
    }
}

pub(super) const fn duty_word(duty: Duty) -> &'static str {
    match duty {
        Duty::Active => "active",
        Duty::Draining => "draining",
        Duty::Down(_) => "down",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(duty: Duty, has_lease: bool) -> FleetStatus {
        let gateway = GatewayStatus {
            duty,
            has_lease,
            address: "10.0.0.1:4600".parse().unwrap(),
            weight: 1,
            capacity: 9,
            children: 2,
            votes: BTreeSet::new(),
        };
        let gateways = BTreeMap::from([("gw-1".parse().unwrap(), gateway)]);
        let pool = PoolStatus { epoch: 4, tunnels: 1, children: 2, without_place: 0, gateways };
        let endpoint = EndpointStatus {
            endpoint: "http://10.0.0.9:2379".to_owned(),
            version: Some("3.4.23".to_owned()),
            bytes: Some(24_576),
            has_leader: true,
            error: None,
        };
        FleetStatus {
            fleet: "f".parse().unwrap(),
            generation: Some(3),
            etcd: vec![endpoint],
            pools: BTreeMap::from([("default".parse().unwrap(), pool)]),
            agent: None,
            error: None,
        }
    }

    #[test]
    fn text() {
        assert_eq!(
            status(Duty::Draining, false).text(),
            "fleet f, generation 3\n\
             etcd http://10.0.0.9:2379: 3.4.23, 24 kB\n\
             pool default: epoch 4, 1 tunnels, 2 children\n  \
             gw-1: draining, no lease, 2 children, at 10.0.0.1:4600\n"
        );
    }

    #[test]
    fn exit_codes() {
        assert_eq!(status(Duty::Active, true).exit_code(), 0);
        assert_eq!(status(Duty::Active, false).exit_code(), 1);
        let mut full = status(Duty::Active, true);
        full.pools.values_mut().for_each(|pool| pool.without_place = 1);
        assert_eq!(full.exit_code(), 1);
        full.error = Some("why".to_owned());
        assert_eq!(full.exit_code(), 2);
    }
}
