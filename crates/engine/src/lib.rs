//! The XFRM engine: states, policies and ESP for batches of packets, without I/O.
//!
//! Time is passed in as [`Moment`], randomness as a seed, packets as batches; so two gateways, a
//! lossy wire and a fake clock run in one unit test. The vocabulary is the kernel's: [`Policy`],
//! [`Template`], [`Selector`], [`SaConfig`].
#![forbid(unsafe_code)]

mod bundle;
mod database;
mod datapath;
mod device;
mod drop_log;
mod drop_reason;
mod ecn;
mod error;
mod esp;
mod events;
pub mod explain;
mod flow_cache;
mod flow_key;
mod fragments;
mod ids;
mod insertion_order;
mod lifetime;
mod packet_tap;
mod pmtu;
mod prefix;
pub mod sa;
mod sad;
mod selector;
mod settings;
mod snapshot;
pub mod spd;
mod stage_watch;
mod stats;
mod sync;
mod time;
mod worker;

pub use database::{
    ChangeSet, Database, LinkDown, MetadataSupport, PolicyChange, StateCursor, Timeout,
    Transaction, UpdatedSa,
};
pub use datapath::context::{Output, TrafficCounters};
pub use datapath::outbound::WaitingPacket;
pub use device::contract::{
    DeviceMetadata, DeviceStatus, OffloadOrder, OffloadTask, OffloadedPacket, ReceivedPacket,
};
pub use device::control::{DeviceEvent, OffloadDevices};
pub use drop_log::{DropRecord, DropRecords, DropSubject, EspEnds, PacketForm, PacketHead};
pub use drop_log::{DropTallies, DropTally, SharedDropTallies};
pub use drop_log::{HEAD_BYTES, MAX_TALLIES, RECORDS_KEPT};
pub use drop_reason::{DropReason, XfrmCounter};
pub use error::{DeviceRefusal, Error};
pub use esp::encapsulator::{DecapResult, EncapPlan, EspEncapsulator, decapsulate};
pub use events::Event;
pub use events::acquire::{AcquireView, KeyManagers};
pub use flow_cache::{
    CacheFamilySettings, CacheMode, CacheSettings, CacheStats, PolicyCache, SharedCacheStats,
    WorkerCacheSettings,
};
pub use flow_key::{FlowKey, SourcePorts};
pub use fragments::split::{FragmentPlan, fragment};
pub use ids::{Attachment, DeviceId, Handle, Segmentation};
pub use ids::{Cpu, IfId, Mark, PolicyIndex, Priority, Reqid, Spi};
pub use ids::{Direction, Mode, Offload, OffloadKind, SaProtocol};
pub use lifetime::{LifetimeLimits, SoftHardLimit};
pub use packet_tap::{
    BundleOrigin, CacheAnswer, CapturePoint, CaptureReader, CaptureRequest, CaptureSides,
    DatapathKind, DropNote, EspStart, PacketHeaders, PacketTap, PacketTrace, PacketWay,
    TRACED_BYTES, TRACES_WAITING, TRIED_A_SECOND, TapFilter, TappedPacket, TracePort, TraceReader,
    TraceStep, WAITING_BYTES, WAITING_PACKETS,
};
pub use pmtu::IcmpRateLimit;
pub use prefix::{Family, Prefix, PrefixError};
pub use sa::Sa;
pub use sa::aevent::{AeventCause, AeventState, AeventThresholds};
pub use sa::config::{ReplayConfig, SaConfig, SaExtraFlags, SaFlags, SaId, SaMove, SaTransform};
pub use sa::counters::{Counters, UsageCounters};
pub use sa::heir::EndedAt;
pub use sa::iv::IvPrefix;
pub use sa::keepalive::{Keepalive, KeepaliveInterval};
pub use sa::overhead::EspOverhead;
pub use sa::progress::{CarriedTraffic, SaHistory, SaProgress};
pub use sa::replay::{FIRST_RESERVED, ReplayWindow, UncheckedSeq, is_before_restart};
pub use sa::replay_store::{ReplayKeeper, ReplayStore};
pub use sa::request::SaRequest;
pub use sa::sequence::{Sequence, SequenceBlock};
pub use sa::shared_config::SharedSaConfig;
pub use sa::subject::SaSubject;
pub use sa::udp_encap::{UdpEncap, UdpEncapKind, UdpEncapProperties};
pub use sa::usage::DeviceSaCounters;
pub use sa::usage::{ChargeOutcome, Lifecycle, SaFailures, SaUsage};
pub use sad::{OutboundQuery, Sad};
pub use selector::{PortMask, Selector};
pub use settings::{AcquireQueueLimits, HostAddresses, HostPort, Settings, UdpSuper, WireHeaders};
pub use settings::{HostView, MssClamp, PathMtus, min_path_mtu};
pub use snapshot::{Published, Snapshot};
pub use spd::entry::{PolicyEntry, PolicyPrecedence};
pub use spd::policy::{Action, MAX_TEMPLATES, Policy, PolicyFlags, PolicyKind};
pub use spd::policy::{PolicyKey, PolicyName};
pub use spd::rules::{Footprint, Rebuild, RebuiltIndex};
pub use spd::store::PolicyCursor;
pub use spd::table::{DefaultActions, PolicyLookup, Spd};
pub use spd::template::{Template, TemplateLevel};
pub use spd::verdict::{PolicyOutcome, VerdictId};
pub use stage_watch::{Stage, StageWatch};
pub use stats::{ByDirection, ByFamily, DropCounts, Drops};
pub use time::Moment;
pub use worker::Worker;
pub use worker::icmp_source::IcmpErrorWay;
