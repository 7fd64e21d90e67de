//! `[[device]]`: offload devices.

use serde::Deserialize;
use uxfrm_offload::dev::{Addition, ProfileChoice};

/// A model of a device that does IPsec, between the engine and the network. States and policies name it by `offload … dev`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The name of an interface, which is made if it is not there, so that `ip xfrm` finds it. While that is down, so is the device.
    pub name: String,
    /// The interface whose link it follows; default: its own.
    #[serde(default)]
    pub over: Option<String>,
    /// What it can do: `niantic`, `connectx6dx`, `netdevsim`, `unlimited`, or the path of a file with a profile; default `unlimited`. A relative
    /// path is relative to where the gateway is started.
    #[serde(default = "unlimited")]
    pub profile: String,
    /// How many virtual functions it has, 0 to 64: the interfaces `NAMEv0`, `NAMEv1` and so on, each with an equal share of the tables; default 0.
    #[serde(default)]
    pub vfs: u16,
    /// Whether its virtual functions may ask for anything; default false: they are refused with `EACCES`.
    #[serde(default)]
    pub trust: bool,
    /// What becomes of the traffic of its policies when it goes down; default `block`. With several devices the last one's word counts.
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

impl Device {
    /// The same as `uxfrm dev add` would ask for it.
    pub(crate) fn addition(&self) -> Addition {
        let Self { name, over, profile, vfs, trust, link_down: _ } = self.clone();
        Addition {
            name,
            port: over,
            profile: ProfileChoice::Named(profile),
            functions: vfs,
            trusted: trust,
            ..Addition::default()
        }
    }
}

fn unlimited() -> String {
    "unlimited".to_owned()
}
