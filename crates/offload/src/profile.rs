//! Device profiles: tables, features, and the driver's checks in its order.

use std::net::IpAddr;

use serde::Deserialize;
use uxfrm_engine::{OffloadKind, Policy, SaConfig};

use crate::{Errno, Refusal, registry::TableLimits};
use condition::Condition;
use requirement::{PolicyRequirement, StateRequirement};

mod condition;
mod requirement;
mod word;

pub(crate) use requirement::Table;

/// Capabilities of a device. All keys of the TOML form except `name` are optional: the default
/// device takes all and has no limits.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The profile's name.
    pub name: String,
    /// Whether it supports ESN (`xdo_dev_state_advance_esn`).
    #[serde(default)]
    pub esn: bool,
    /// Whether it segments protected super-packets (`NETIF_F_GSO_ESP`).
    #[serde(default)]
    pub segmentation: bool,
    /// Whether it computes and verifies inner checksums (`NETIF_F_HW_ESP_TX_CSUM`).
    #[serde(default)]
    pub checksums: bool,
    /// Whether received packets carry a mark of their SA.
    #[serde(default)]
    pub marks_received: bool,
    /// Whether it takes policies (`xdo_dev_policy_add`).
    #[serde(default)]
    pub policies: bool,
    /// Addresses of its management controller; SAs to them are refused.
    #[serde(default)]
    pub management: Vec<IpAddr>,
    /// Table sizes.
    #[serde(default)]
    pub tables: TableSizes,
    /// Steering of received packets; `None`: one queue.
    #[serde(default)]
    pub steering: Option<SteeringLimits>,
    #[serde(default, rename = "state")]
    state_rules: Vec<Rule<StateRequirement>>,
    #[serde(default, rename = "policy")]
    policy_rules: Vec<Rule<PolicyRequirement>>,
}

/// Table sizes; `None` has no limit.
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
    /// A fraction of the sizes; at least one entry of limited ones.
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

/// Capabilities of flow director and receive side scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteeringLimits {
    /// Receive queues, at least 1.
    pub queues: u16,
    /// Rules.
    pub rules: usize,
    /// Whether rules may match the flex field: 2 bytes at one offset for all rules.
    #[serde(default)]
    pub flex_field: bool,
}

/// Errors of a profile, with their place in the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Invalid TOML, an unknown key, or an invalid value.
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
    /// Requests that it applies to; default: all.
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

    /// A shipped profile by name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::shipped().filter_map(Result::ok).find(|profile| profile.name == name)
    }

    /// The driver's checks of an SA; `limits` has the use of the tables.
    pub(crate) fn check_state(
        &self,
        sa: &SaConfig,
        kind: OffloadKind,
        limits: &TableLimits<'_>,
    ) -> Result<(), Refusal> {
        let wrong = self.state_rules.iter().find(|rule| {
            rule.when.holds(sa, kind) && !rule.require.is_met(sa, kind, &self.management, limits)
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
