//! `[[device]]`: offload devices.

use std::path::Path;

use serde::Deserialize;
use uxfrm_offload::{
    Profile,
    dev::{Addition, ProfileChoice},
};

use super::{Functions, TunName};

/// A model of a device that does IPsec, between the engine and the network. States and policies
/// name it by `offload … dev`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSettings {
    /// The name of an interface, which is made if it is not there, so that `ip xfrm` finds it.
    /// While that is down, so is the device.
    pub name: TunName,
    /// The interface whose link it follows; default: its own.
    #[serde(default)]
    pub over: Option<TunName>,
    /// What it can do: `niantic`, `connectx6dx`, `netdevsim`, `unlimited`, or the path of a file
    /// with a profile; default `unlimited`. A relative path is relative to the configuration file;
    /// [`Config::load`](super::Config::load) has joined them.
    #[serde(default = "unlimited")]
    pub profile: String,
    /// How many virtual functions it has, 0 to 64: the interfaces `NAMEv0`, `NAMEv1` and so on,
    /// each with an equal share of the tables; default 0.
    #[serde(default)]
    pub vfs: Functions,
    /// Whether its virtual functions may ask for anything; default false: they are refused with
    /// `EACCES`.
    #[serde(default)]
    pub trust: bool,
    /// What becomes of the traffic of its policies when it goes down; default `block`. With several
    /// devices the last one's word counts.
    #[serde(default)]
    pub link_down: LinkDownSetting,
}

/// What a policy leaves behind when its device goes down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkDownSetting {
    /// A policy that blocks, until one of its name is added again.
    #[default]
    Block,
    /// Nothing, as in Linux.
    Release,
}

impl DeviceSettings {
    /// The file that its profile is in, if that has no name here.
    pub(crate) fn profile_file(&self) -> Option<&Path> {
        Profile::by_name(&self.profile).is_none().then(|| Path::new(&self.profile))
    }

    /// Has the path of a profile begin at a directory, unless it begins at the root.
    pub(super) fn start_at(&mut self, directory: &Path) {
        if Profile::by_name(&self.profile).is_none() {
            self.profile = directory.join(&self.profile).to_string_lossy().into_owned();
        }
    }

    /// The same as `uxfrm dev add` would ask for it.
    pub(crate) fn addition(&self) -> Addition {
        let Self { name, over, profile, vfs, trust, link_down: _ } = self;
        Addition {
            name: name.to_string(),
            port: over.as_ref().map(ToString::to_string),
            profile: ProfileChoice::Named(profile.clone()),
            functions: vfs.count(),
            trusted: *trust,
            ..Addition::default()
        }
    }
}

fn unlimited() -> String {
    "unlimited".to_owned()
}
