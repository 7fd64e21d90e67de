//! The XFRM engine: states, policies and ESP over batches of packets, without I/O.
//!
//! Time comes in as [`Moment`], randomness as a seed, packets as batches; so two gateways, a lossy wire and a fake
//! clock run in one unit test. The vocabulary is the kernel's: [`Policy`], [`Template`], [`Selector`], [`SaConfig`].
#![forbid(unsafe_code)]

pub mod sa;
pub mod spd;

mod acquire;
mod bundle;
mod database;
mod devices;
mod drop_reason;
mod ecn;
mod esp;
mod event;
mod flow;
mod fragments;
mod handover;
mod id;
mod inbound;
mod lifetime;
mod moment;
mod outbound;
mod pause;
mod pmtu;
mod prefix;
mod selector;
mod snapshot;
mod stats;
mod sync;
mod turns;
mod watch;
mod worker;

pub use acquire::{Acquires, KeyManagers, Wanted};
pub use database::{
    Change, Changes, Database, Error, LinkDown, PolicyChange, PolicyKey, PolicyName, Senses,
    StateCursor, UpdatedSa,
};
pub use devices::{DeviceCounts, DeviceEvent, DeviceRefusal, Devices};
pub use drop_reason::{DropReason, XfrmCounter};
pub use esp::single::{Decapsulated, Encapsulation, Measured, decapsulate};
pub use event::Event;
pub use flow::{FlowKey, SourcePorts};
pub use fragments::split::{Cut, split};
pub use handover::{
    Attachment, DeviceId, DeviceMark, DeviceStatus, Handed, Handle, Handover, Received,
    Segmentation, Task,
};
pub use id::{Cpu, IfId, Mark, PolicyIndex, Priority, Reqid, Spi};
pub use lifetime::{Budget, Limits};
pub use moment::Moment;
pub use outbound::WaitingPacket;
pub use pmtu::ErrorBudget;
pub use prefix::{Family, Prefix, PrefixError};
pub use sa::config::{
    Direction, Mode, Offload, OffloadKind, ReplayConfig, SaConfig, SaExtraFlags, SaFlags, SaId,
    SaMove, SaProtocol, SaTransform, UdpEncap, UdpEncapKind,
};
pub use sa::{
    Counters, EndedAt, Sa, UsageCounters,
    aevent::{Aevents, Cause, Thresholds},
    iv::IvPrefix,
    keepalive::{Keepalive, KeepaliveInterval},
    position::{Carried, History, Position},
    replay::{Candidate, FIRST_RESERVED, ReplayWindow, is_before_restart},
    replay_store::{Keeper, ReplayStore},
    sad::{OutboundQuery, Sad},
    sequence::{Sequence, SequenceBlock},
    usage::{Charge, Failures, Lifecycle, Usage},
    words::SaWords,
};
pub use selector::{PortMask, Selector};
pub use snapshot::{Host, NarrowPaths, Published, Snapshot, least_path};
pub use spd::{
    classifier::{Footprint, Revised, Revision},
    entry::{Place, PolicyEntry},
    flow_cache::{
        AnswerId, CacheCounts, CacheFamilies, CacheMode, CacheSettings, CacheStats, Caches,
        PolicyCache, Ruling,
    },
    ledger::PolicyCursor,
    policy::{Action, MAX_TEMPLATES, Policy, PolicyFlags, PolicyKind},
    table::{Defaults, Lookup, Spd},
    template::{Level, Template},
};
pub use stats::{DropCounts, Drops};
pub use watch::{Stage, Watch};
pub use worker::{
    HostAddresses, HostPort, Output, Patience, Settings, Traffic, UdpSuper, WireHeaders, Worker,
};
