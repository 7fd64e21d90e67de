//! `[[device]]`: offload devices.

use serde::Deserialize;

/// A model of a device that does IPsec, between the engine and the network. States and policies name it by `offload … dev`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The name of an interface (`ip link add nic0 type dummy`), so that `ip xfrm` finds it. While that is down, so is the device.
    pub name: String,
    /// What it can do: `niantic`, `connectx6dx`, `netdevsim`, `unlimited`, or the path of a file with a profile; default `unlimited`. A relative
    /// path is relative to where the gateway is started.
    #[serde(default = "unlimited")]
    pub profile: String,
    /// What becomes of the traffic of its policies when it goes down; default `block`.
    #[serde(default)]
    pub link_down: LinkDown,
}

/// What a policy leaves behind when its device goes down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkDown {
    /// A policy that blocks, until one of its name is added again.
    #[default]
    Block,
    /// Nothing, as in Linux.
    Release,
}

fn unlimited() -> String {
    "unlimited".to_owned()
}
