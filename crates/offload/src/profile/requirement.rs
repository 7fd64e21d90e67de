//! A driver's requirements on an SA or policy.

use std::net::IpAddr;

use serde::Deserialize;
use uxfrm_engine::{
    LifetimeLimits, OffloadKind, Policy, PolicyKind, Reqid, SaConfig, SoftHardLimit,
};

use super::word::{DirectionWord, EncapsulationWord, KindWord, ModeWord, ProtocolWord};
use crate::registry::TableLimits;

/// A requirement on an SA.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum StateRequirement {
    #[serde(rename = "protocols")]
    Protocols(Vec<ProtocolWord>),
    #[serde(rename = "modes")]
    Modes(Vec<ModeWord>),
    #[serde(rename = "kinds")]
    Kinds(Vec<KindWord>),
    /// Algorithms by the kernel's names.
    #[serde(rename = "algorithms")]
    Algorithms(Vec<String>),
    #[serde(rename = "icv_bits")]
    IcvBits(Vec<usize>),
    /// Key lengths including the salt, as in `XFRMA_ALG_AEAD`.
    #[serde(rename = "key_bits")]
    KeyBits(Vec<usize>),
    /// The previous three in one, for drivers with one text for all.
    #[serde(rename = "keys")]
    Keys(Keys),
    /// No authentication algorithm beside the cipher.
    #[serde(rename = "no-authentication")]
    NoAuthentication,
    /// Without encapsulation, or with one of these.
    #[serde(rename = "encapsulations")]
    Encapsulations(Vec<EncapsulationWord>),
    #[serde(rename = "no-tfc-padding")]
    NoTfcPadding,
    /// Upper protocols of the selector; 0 is any.
    #[serde(rename = "upper_protocols")]
    UpperProtocols(Vec<u8>),
    /// Replay windows in packets.
    #[serde(rename = "windows")]
    Windows(Vec<u32>),
    #[serde(rename = "reqid")]
    Reqid,
    /// The hard limit, if any, is above the soft one.
    #[serde(rename = "ordered_limit")]
    OrderedLimit(LimitWord),
    #[serde(rename = "nonzero_limit")]
    NonzeroLimit(LimitWord),
    #[serde(rename = "no-management-clash")]
    NoManagementClash,
    #[serde(rename = "room")]
    Room(Table),
}

/// Fields that a driver checks of keys.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    algorithms: Vec<String>,
    icv_bits: Vec<usize>,
    key_bits: Vec<usize>,
}

/// A table of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Table {
    /// Receiving states.
    Receive,
    /// Sending states.
    Transmit,
    /// States of both directions.
    Both,
    /// Destinations of receiving states.
    Addresses,
}

/// `bytes`, `packets`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LimitWord {
    Bytes,
    Packets,
}

/// A requirement on a policy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum PolicyRequirement {
    #[serde(rename = "main-type")]
    MainType,
    /// At most this many.
    #[serde(rename = "templates")]
    Templates(usize),
    #[serde(rename = "directions")]
    Directions(Vec<DirectionWord>),
    #[serde(rename = "reqid-or-selector")]
    ReqidOrSelector,
    #[serde(rename = "upper_protocols")]
    UpperProtocols(Vec<u8>),
    #[serde(rename = "priority-below-maximum")]
    PriorityBelowMaximum,
}

impl StateRequirement {
    pub(super) fn is_met(
        &self,
        sa: &SaConfig,
        kind: OffloadKind,
        management: &[IpAddr],
        limits: &TableLimits<'_>,
    ) -> bool {
        let transform = &sa.transform.transform;
        match self {
            Self::Protocols(words) => words.iter().any(|word| word.means(sa.id.protocol)),
            Self::Modes(words) => words.iter().any(|word| word.means(sa.mode)),
            Self::Kinds(words) => words.iter().any(|word| word.means(kind)),
            Self::Algorithms(names) => names.contains(&transform.name()),
            Self::IcvBits(lengths) => lengths.contains(&(transform.icv_len() * 8)),
            Self::KeyBits(lengths) => lengths.contains(&(transform.key_len() * 8)),
            Self::Keys(keys) => keys.fit(sa),
            // An AEAD has no authentication key.
            Self::NoAuthentication => transform.auth_key_len() == 0,
            Self::Encapsulations(words) => {
                sa.encap.is_none_or(|encap| words.iter().any(|word| word.0 == encap.kind))
            }
            Self::NoTfcPadding => sa.tfc_padding == 0,
            Self::UpperProtocols(numbers) => {
                numbers.contains(&sa.selector.map_or(0, |selector| selector.protocol))
            }
            Self::Windows(sizes) => sizes.contains(&sa.replay.window),
            Self::Reqid => sa.reqid != Reqid(0),
            Self::OrderedLimit(word) => {
                let budget = word.of(&sa.limits);
                budget.hard == SoftHardLimit::NONE || budget.soft < budget.hard
            }
            Self::NonzeroLimit(word) => {
                let budget = word.of(&sa.limits);
                budget.soft != 0 && budget.hard != 0
            }
            Self::NoManagementClash => !management.contains(&sa.id.destination),
            Self::Room(table) => limits.has(*table, sa.id.destination),
        }
    }
}

impl Keys {
    fn fit(&self, sa: &SaConfig) -> bool {
        let transform = &sa.transform.transform;
        self.algorithms.contains(&transform.name())
            && self.icv_bits.contains(&(transform.icv_len() * 8))
            && self.key_bits.contains(&(transform.key_len() * 8))
    }
}

impl LimitWord {
    fn of(self, limits: &LifetimeLimits) -> SoftHardLimit {
        match self {
            Self::Bytes => limits.bytes,
            Self::Packets => limits.packets,
        }
    }
}

impl PolicyRequirement {
    pub(super) fn is_met(&self, policy: &Policy) -> bool {
        let selector = &policy.selector;
        match self {
            Self::MainType => policy.kind == PolicyKind::Main,
            Self::Templates(most) => policy.templates.len() <= *most,
            Self::Directions(words) => words.iter().any(|word| word.means(policy.direction)),
            Self::ReqidOrSelector => {
                let reqid = policy.templates.first().map_or(Reqid(0), |template| template.reqid);
                let any = |prefix: uxfrm_engine::Prefix| prefix.address().is_unspecified();
                reqid != Reqid(0)
                    || selector.protocol != 0
                    || !any(selector.source)
                    || !any(selector.destination)
            }
            Self::UpperProtocols(numbers) => numbers.contains(&selector.protocol),
            Self::PriorityBelowMaximum => policy.priority.0 != u32::MAX,
        }
    }
}
