//! `fleet.toml`: which gateway of which fleet this is, and where etcd is.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use uxfrm_fleet::{
    agent::{AgentConfig, Timings},
    members::{Duty, Member},
    names::{FleetName, GatewayName, PoolName},
};
use zeroize::Zeroizing;

use crate::key_file;

/// Where packages have it.
pub const DEFAULT_FILE: &str = "/etc/uxfrm/fleet.toml";

/// The configuration of a gateway's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetConfig {
    /// The fleet's name.
    pub fleet: FleetName,
    /// The keys that all of the fleet have.
    #[serde(default = "default_key_file")]
    pub key_file: PathBuf,
    /// This gateway; without it only commands work, no agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayConfig>,
    /// Where etcd is.
    pub etcd: EtcdConfig,
}

/// `[gateway]`: this gateway in its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// Its name; no other ever has it.
    pub name: GatewayName,
    /// Its pool.
    #[serde(default = "default_pool")]
    pub pool: PoolName,
    /// Where it takes heartbeats of the others, by UDP.
    pub address: SocketAddr,
    /// Its share of the children, compared to others'.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// How many children it takes.
    #[serde(default = "default_capacity")]
    pub capacity: u32,
    /// What the agent must not forget.
    #[serde(default = "default_state")]
    pub state: PathBuf,
    /// The control socket of the gateway; without it, that of this network namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<PathBuf>,
}

/// `[etcd]`: where it is, and who we are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`, of each of its nodes.
    pub endpoints: Vec<String>,
    /// Who signed its certificates, as PEM; for `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Our certificate, as PEM, where it asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Our certificate's key, as PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Our user, where it has users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password, in a file of one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

/// What TLS needs.
pub(crate) struct TlsFiles {
    pub(crate) ca: Vec<u8>,
    /// Certificate and key.
    pub(crate) identity: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
}

fn default_key_file() -> PathBuf {
    "/etc/uxfrm/fleet.key".into()
}

fn default_state() -> PathBuf {
    "/var/lib/uxfrm-fleet".into()
}

#[expect(clippy::unwrap_used, reason = "a constant that is a name")]
pub(crate) fn default_pool() -> PoolName {
    "default".parse().unwrap()
}

const fn default_weight() -> u32 {
    1
}

const fn default_capacity() -> u32 {
    100_000
}

impl FleetConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// A sentence that says what is wrong with which file, and where.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let config = Self::parse(&text);
        config.map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        config.check()?;
        Ok(config)
    }

    /// Whether it can be right.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.etcd.check()?;
        self.gateway.as_ref().map_or(Ok(()), GatewayConfig::check)
    }

    /// What the agent is, where this is the configuration of a gateway.
    #[must_use]
    pub fn agent(&self) -> Option<AgentConfig> {
        let gateway = self.gateway.as_ref()?;
        let member = Member {
            weight: gateway.weight,
            capacity: gateway.capacity,
            duty: Duty::Active,
            address: gateway.address,
        };
        Some(AgentConfig {
            fleet: self.fleet.clone(),
            pool: gateway.pool.clone(),
            name: gateway.name.clone(),
            member,
            timings: Timings::default(),
        })
    }
}

impl GatewayConfig {
    fn check(&self) -> Result<(), String> {
        let ip = self.address.ip();
        if ip.is_unspecified() || self.address.port() == 0 {
            return Err(format!(
                "[gateway] address `{}`: the others send to it: an address of this host, and a port",
                self.address
            ));
        }
        if self.weight == 0 || self.capacity == 0 {
            let what = if self.weight == 0 { "weight" } else { "capacity" };
            return Err(format!(
                "[gateway] {what} 0: it would never have a tunnel; `uxfrm fleet drain {}` is for that",
                self.name
            ));
        }
        Ok(())
    }
}

impl EtcdConfig {
    fn check(&self) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("[etcd] endpoints: none; say [\"http://HOST:2379\"]".to_owned());
        }
        for endpoint in &self.endpoints {
            let is_tls = endpoint.starts_with("https://");
            if !is_tls && !endpoint.starts_with("http://") {
                return Err(format!(
                    "[etcd] endpoints: `{endpoint}`: it begins with http:// or https://"
                ));
            }
            if is_tls && self.ca.is_none() {
                return Err(format!(
                    "[etcd] ca: `{endpoint}` needs the certificate of who signed etcd's, as PEM"
                ));
            }
        }
        match (&self.certificate, &self.key, &self.user, &self.password_file) {
            (Some(_), None, ..) | (None, Some(_), ..) => {
                Err("[etcd] certificate and key: both or none".to_owned())
            }
            (.., Some(_), None) | (.., None, Some(_)) => {
                Err("[etcd] user and password_file: both or none".to_owned())
            }
            (..) => Ok(()),
        }
    }

    /// The user and the password, where there are users.
    pub(crate) fn credentials(&self) -> Result<Option<(String, Zeroizing<String>)>, String> {
        let (Some(user), Some(file)) = (&self.user, &self.password_file) else { return Ok(None) };
        let text = key_file::read_secret(file)?;
        let password = text.trim_end_matches(['\n', '\r']);
        if password.is_empty() || password.contains('\n') {
            return Err(format!("{}: one line with the password of {user}", file.display()));
        }
        Ok(Some((user.clone(), Zeroizing::new(password.to_owned()))))
    }

    pub(crate) fn tls_files(&self) -> Result<TlsFiles, String> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|error| format!("[etcd] {}: {error}", path.display()))
        };
        let ca = self.ca.as_ref().ok_or("[etcd] ca: none")?;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let key = key_file::read_secret(key)?;
                Some((read(certificate)?, Zeroizing::new(key.as_bytes().to_vec())))
            }
            (Some(_) | None, _) => None,
        };
        Ok(TlsFiles { ca: read(ca)?, identity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "fleet = \"f\"\n[etcd]\nendpoints = [\"http://10.0.0.1:2379\"]\n";
    const GATEWAY: &str = "[gateway]\nname = \"gw-1\"\naddress = \"10.0.0.2:4600\"\n";

    #[test]
    fn defaults() {
        let config = FleetConfig::parse(&format!("{SMALLEST}{GATEWAY}")).unwrap();
        let gateway = config.gateway.clone().unwrap();
        assert_eq!(gateway.pool.as_str(), "default");
        assert_eq!((gateway.weight, gateway.capacity), (1, 100_000));
        assert_eq!(config.key_file, Path::new("/etc/uxfrm/fleet.key"));
        assert_eq!(config.agent().unwrap().member.address, gateway.address);
        assert_eq!(FleetConfig::parse(SMALLEST).unwrap().agent().map(|agent| agent.name), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let config = FleetConfig::parse(&format!("{SMALLEST}{GATEWAY}")).unwrap();
        assert_eq!(FleetConfig::parse(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("fleet = \"F\"\n".to_owned() + &SMALLEST[12..], "`F` is no name"),
            (SMALLEST.replace("http:", "https:"), "[etcd] ca: `https://10.0.0.1:2379` needs"),
            (SMALLEST.replace("http://", ""), "begins with http:// or https://"),
            (SMALLEST.replace("\"http://10.0.0.1:2379\"", ""), "endpoints: none"),
            (format!("{SMALLEST}user = \"u\"\n"), "user and password_file: both or none"),
            (format!("{SMALLEST}key = \"k\"\n"), "certificate and key: both or none"),
            (format!("{SMALLEST}{GATEWAY}weight = 0\n"), "weight 0: it would never have a tunnel"),
            (
                format!("{SMALLEST}{}", GATEWAY.replace("10.0.0.2", "0.0.0.0")),
                "an address of this host",
            ),
            (format!("{SMALLEST}endpoint = 1\n"), "unknown field `endpoint`"),
        ] {
            let why = FleetConfig::parse(&text).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
