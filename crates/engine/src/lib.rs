//! The XFRM engine: states, policies and ESP for batches of packets, without I/O.
//!
//! Time is passed in as [`Moment`], randomness as a seed, packets as batches; so two gateways, a
//! lossy wire and a fake clock run in one unit test. The vocabulary is the kernel's: [`Policy`],
//! [`Template`], [`Selector`], [`SaConfig`].
#![forbid(unsafe_code)]

// Floor 0: names, numbers and time.
mod drop_reason;
mod ids;
mod insertion_order;
mod lifetime;
mod prefix;
mod stage_watch;
mod sync;
mod time;

// Floor 1: matching keys and settings.
mod flow_key;
mod selector;
mod settings;
mod stats;

// States and policies.
mod ecn;
mod error;
mod fragments;
mod pmtu;
pub mod sa;
pub mod spd;

// Databases of states, flow caches, and devices.
mod device;
mod flow_cache;
mod sad;

// Changes, and ESP.
mod esp;
mod events;
mod snapshot;

// Bundles: chains of SAs.
mod bundle;

// The data path.
mod datapath;

// Owners of all of it.
mod database;
mod worker;

pub use database::{
    Change, Changes, Database, LinkDown, PolicyChange, Senses, StateCursor, UpdatedSa,
};
pub use datapath::context::{Output, Traffic};
pub use datapath::outbound::WaitingPacket;
pub use device::contract::{DeviceMark, DeviceStatus, Handed, Handover, Received, Task};
pub use device::control::{DeviceEvent, Devices};
pub use drop_reason::{DropReason, XfrmCounter};
pub use error::{DeviceRefusal, Error};
pub use esp::single::{Decapsulated, Encapsulation, Measured, decapsulate};
pub use events::Event;
pub use events::acquire::{Acquires, KeyManagers};
pub use flow_cache::{
    CacheCounts, CacheFamilies, CacheMode, CacheSettings, CacheStats, Caches, PolicyCache,
};
pub use flow_key::{FlowKey, SourcePorts};
pub use fragments::split::{Cut, split};
pub use ids::{Attachment, DeviceId, Handle, Segmentation};
pub use ids::{Cpu, IfId, Mark, PolicyIndex, Priority, Reqid, Spi};
pub use ids::{Direction, Mode, Offload, OffloadKind, SaProtocol};
pub use lifetime::{Budget, Limits};
pub use pmtu::ErrorBudget;
pub use prefix::{Family, Prefix, PrefixError};
pub use sa::aevent::{AeventState, Cause, Thresholds};
pub use sa::config::{
    ReplayConfig, SaConfig, SaExtraFlags, SaFlags, SaId, SaMove, SaTransform, UdpEncap,
    UdpEncapKind,
};
pub use sa::iv::IvPrefix;
pub use sa::keepalive::{Keepalive, KeepaliveInterval};
pub use sa::position::{Carried, History, Position};
pub use sa::replay::{Candidate, FIRST_RESERVED, ReplayWindow, is_before_restart};
pub use sa::replay_store::{Keeper, ReplayStore};
pub use sa::request::Wanted;
pub use sa::sequence::{Sequence, SequenceBlock};
pub use sa::shared_config::SaWords;
pub use sa::usage::DeviceCounts;
pub use sa::usage::{Charge, Failures, Lifecycle, Usage};
pub use sa::{Counters, EndedAt, Sa, UsageCounters};
pub use sad::{OutboundQuery, Sad};
pub use selector::{PortMask, Selector};
pub use settings::{Host, NarrowPaths, least_path};
pub use settings::{HostAddresses, HostPort, Patience, Settings, UdpSuper, WireHeaders};
pub use snapshot::{Published, Snapshot};
pub use spd::classifier::{Footprint, Revised, Revision};
pub use spd::entry::{Place, PolicyEntry};
pub use spd::policy::{Action, MAX_TEMPLATES, Policy, PolicyFlags, PolicyKind};
pub use spd::policy::{PolicyKey, PolicyName};
pub use spd::store::PolicyCursor;
pub use spd::table::{Defaults, Lookup, Spd};
pub use spd::template::{Level, Template};
pub use spd::verdict::{AnswerId, Ruling};
pub use stage_watch::{Stage, Watch};
pub use stats::{DropCounts, Drops};
pub use time::Moment;
pub use worker::Worker;
