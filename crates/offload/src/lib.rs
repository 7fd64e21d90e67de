//! IPsec offload devices: what a device can hold, what it refuses and in which words, and where it steers what it decrypted.
//!
//! A [`Profile`] is a device as data: its tables, its features and the checks of its driver in the driver's order. Four are shipped
//! ([`Profile::shipped`]), and users write their own in TOML. A [`Registry`] is the control half of one device: it takes states and
//! policies as `xdo_dev_state_add` and `xdo_dev_policy_add` would (`net/xfrm/xfrm_device.c`). A [`Steering`] is what the device does with
//! the 5-tuple of a decrypted packet: flow director rules in ethtool's words, else receive side scaling. A [`ModelNic`] is all of this and the
//! data half too: it encrypts, decrypts, cuts, counts and steers for real, and goes wrong on demand ([`Fault`]). Its control half is a [`Device`];
//! [`Nics`] are what the engine's database knows of them. [`dev`] is how users speak of devices.
//!
//! Sans-IO: no clock, thread or random source.
#![forbid(unsafe_code)]

pub mod dev;
mod device;
mod nic;
mod nics;
mod profile;
mod refusal;
mod registry;
mod steering;

pub use device::{Device, NicEvent, StateCounts};
pub use nic::{
    Fault, FaultError, Framing, FunctionId, FunctionPort, HeldState, Link, ModelNic, NicDrop,
    NicDrops, NicSetup, NicTally, Queues, Trust, VirtualFunction,
};
pub use nics::Nics;
pub use profile::{Profile, ProfileError, SteeringLimits, TableSizes};
pub use refusal::{Errno, Refusal};
pub use registry::{Attached, Registry};
pub use steering::{
    FlowRule, Queue, RssKey, Steering,
    grammar::{RuleCommand, RuleError},
    rule::{FlowType, RuleId},
    target::Target,
    tuple::Tuple,
};
pub use uxfrm_engine::Handle;
