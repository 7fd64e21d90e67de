//! A device as data: tables, features, and its driver's checks in the driver's order.

use std::net::IpAddr;

use serde::Deserialize;
use uxfrm_engine::{OffloadKind, Policy, SaConfig};

use crate::{Errno, Refusal, registry::Rooms};
use condition::Condition;
use requirement::{PolicyRequirement, StateRequirement};

mod condition;
mod requirement;
mod word;

pub(crate) use requirement::Table;

/// What a device can do. Every key of the TOML form but `name` may be left out: the default device takes all and has no limits.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The profile's name.
    pub name: String,
    /// Whether it keeps the upper half of extended sequence numbers (`xdo_dev_state_advance_esn`).
    #[serde(default)]
    pub esn: bool,
    /// Whether it cuts protected super-packets (`NETIF_F_GSO_ESP`).
    #[serde(default)]
    pub segmentation: bool,
    /// Whether it computes and checks inner checksums (`NETIF_F_HW_ESP_TX_CSUM`).
    #[serde(default)]
    pub checksums: bool,
    /// Whether a received packet tells which state decrypted it.
    #[serde(default)]
    pub marks_received: bool,
    /// Whether it takes policies (`xdo_dev_policy_add`).
    #[serde(default)]
    pub policies: bool,
    /// Addresses that its management controller listens on; states to them are refused.
    #[serde(default)]
    pub management: Vec<IpAddr>,
    /// How much it holds.
    #[serde(default)]
    pub tables: TableSizes,
    /// Where it steers what it received; `None`: one queue.
    #[serde(default)]
    pub steering: Option<SteeringLimits>,
    #[serde(default, rename = "state")]
    state_rules: Vec<Rule<StateRequirement>>,
    #[serde(default, rename = "policy")]
    policy_rules: Vec<Rule<PolicyRequirement>>,
}

/// How many states a device holds; `None` has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableSizes {
    /// Receiving states.
    pub receive: Option<usize>,
    /// Sending states.
    pub transmit: Option<usize>,
    /// States of both directions together.
    pub both: Option<usize>,
    /// Different destinations of receiving states.
    pub addresses: Option<usize>,
}

impl TableSizes {
    /// One of so many equal parts; of what is limited at least one place.
    #[must_use]
    pub fn share(self, parts: usize) -> Self {
        let part = |size: Option<usize>| size.map(|size| (size / parts.max(1)).max(1));
        let Self { receive, transmit, both, addresses } = self;
        Self {
            receive: part(receive),
            transmit: part(transmit),
            both: part(both),
            addresses: part(addresses),
        }
    }
}

/// What a device's flow director and receive side scaling can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteeringLimits {
    /// Receive queues, at least 1.
    pub queues: u16,
    /// Rules.
    pub rules: usize,
    /// Whether rules may match the flex field: 2 bytes at one place that is the same for all rules.
    #[serde(default)]
    pub flex_field: bool,
}

/// Why a profile could not be read; says where in the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Not TOML, an unknown key, or a value that cannot be.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A device without a queue receives nothing.
    #[error("profile {0}: queues = 0: a device needs at least one receive queue")]
    NoQueue(String),
}

/// One check of a driver.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule<R> {
    /// Which requests it is for; all without.
    #[serde(default)]
    when: Condition,
    require: R,
    #[serde(default)]
    errno: Errno,
    text: String,
}

const SHIPPED: [&str; 4] = [
    include_str!("../profiles/niantic.toml"),
    include_str!("../profiles/connectx6dx.toml"),
    include_str!("../profiles/netdevsim.toml"),
    include_str!("../profiles/unlimited.toml"),
];

impl Profile {
    /// Reads a profile from TOML.
    ///
    /// # Errors
    /// A [`ProfileError`] that names the place.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text)?;
        match profile.steering {
            Some(steering) if steering.queues == 0 => Err(ProfileError::NoQueue(profile.name)),
            Some(_) | None => Ok(profile),
        }
    }

    /// The profiles that come with uxfrm: `niantic`, `connectx6dx`, `netdevsim`, `unlimited`.
    ///
    /// # Errors
    /// Never: a test reads them all.
    pub fn shipped() -> impl Iterator<Item = Result<Self, ProfileError>> {
        SHIPPED.into_iter().map(Self::from_toml)
    }

    /// One of the shipped ones by its name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::shipped().filter_map(Result::ok).find(|profile| profile.name == name)
    }

    /// The driver's checks of a state; `rooms` tells how full the tables are.
    pub(crate) fn check_state(
        &self,
        sa: &SaConfig,
        kind: OffloadKind,
        rooms: &Rooms<'_>,
    ) -> Result<(), Refusal> {
        let wrong = self.state_rules.iter().find(|rule| {
            rule.when.holds(sa, kind) && !rule.require.is_met(sa, kind, &self.management, rooms)
        });
        wrong.map_or(Ok(()), |rule| Err(rule.refusal()))
    }

    /// The driver's checks of a policy.
    pub(crate) fn check_policy(&self, policy: &Policy) -> Result<(), Refusal> {
        let wrong = self.policy_rules.iter().find(|rule| !rule.require.is_met(policy));
        wrong.map_or(Ok(()), |rule| Err(rule.refusal()))
    }
}

impl<R> Rule<R> {
    fn refusal(&self) -> Refusal {
        Refusal { errno: self.errno, text: self.text.clone() }
    }
}

#[cfg(test)]
mod tests;
