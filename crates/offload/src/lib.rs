//! IPsec offload devices: their capacity, their refusals, and the steering of decrypted packets.
//!
//! A [`Profile`] describes a device as data: tables, features and its driver's checks in the
//! driver's order. Four are shipped ([`Profile::shipped`]), and users write their own in TOML. A
//! [`Registry`] is the control half of one device: it accepts SAs and policies as
//! `xdo_dev_state_add` and `xdo_dev_policy_add` do (`net/xfrm/xfrm_device.c`). A [`Steering`] maps
//! the 5-tuple of a decrypted packet to a queue: flow director rules in ethtool's words, else
//! receive side scaling. A [`ModelNic`] is all of this and the data half: it encrypts, decrypts,
//! segments, counts and steers for real, and fails on demand ([`Fault`]). Its control half is a
//! [`Device`]; [`Nics`] is the engine database's view of them. [`dev`] is the user interface.
//!
//! No clock, thread or random source.
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
    Fault, FaultError, Framing, FunctionId, FunctionPort, HeldState, LinkState, ModelNic,
    NicCounters, NicDrop, NicDrops, NicQueues, NicSetup, Trust, VirtualFunction,
};
pub use nics::Nics;
pub use profile::{Profile, ProfileError, SteeringLimits, TableSizes};
pub use refusal::{Errno, Refusal};
pub use registry::{Attached, Registry};
pub use steering::{
    FlowRule, RssKey, RxQueueId, Steering,
    grammar::{RuleCommand, RuleError},
    rule::{FlowType, SteeringRuleId},
    target::Target,
    tuple::Tuple,
};
pub use uxfrm_engine::Handle;
