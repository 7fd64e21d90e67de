//! What the words mean where they don't name a value of the engine: one enum per table.

/// `ip …`
#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum ProgramOption {
    Inet,
    Inet6,
    Family,
    Statistics,
    Details,
    Oneline,
    Json,
    Pretty,
    Batch,
    Force,
    Timestamp,
    ShortTimestamp,
    Control,
    Namespace,
    Help,
    Version,
    /// Changes nothing here.
    Ignored,
    /// Changes nothing here and has a value.
    IgnoredWithValue,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum Object {
    State,
    Policy,
    Monitor,
    Save,
    Sync,
    Help,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum StateCommand {
    Add,
    Update,
    AllocSpi,
    Delete,
    DeleteAll,
    List,
    Get,
    Flush,
    Count,
    Help,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum PolicyCommand {
    Add,
    Update,
    Delete,
    DeleteAll,
    List,
    Get,
    Flush,
    Count,
    Set,
    SetDefault,
    GetDefault,
    Help,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum IdWord {
    Source,
    Destination,
    Protocol,
    Spi,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum StateWord {
    Mode,
    Mark,
    Reqid,
    Seq,
    ReplayWindow,
    ReplaySeq,
    ReplaySeqHi,
    ReplayOseq,
    ReplayOseqHi,
    Flag,
    ExtraFlag,
    Selector,
    Limit,
    Encap,
    CareOf,
    Context,
    Offload,
    OutputMark,
    SetMark,
    IfId,
    TfcPadding,
    Direction,
    Pcpu,
    NatKeepalive,
    MappingAge,
    Algorithm(AlgorithmKind),
}

/// Which place an algorithm has in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmKind {
    /// `enc`
    Enc,
    /// `auth`
    Auth,
    /// `auth-trunc`
    AuthTrunc,
    /// `comp`
    Comp,
    /// `aead`
    Aead,
}

impl AlgorithmKind {
    /// Its keyword.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enc => "enc",
            Self::Auth => "auth",
            Self::AuthTrunc => "auth-trunc",
            Self::Comp => "comp",
            Self::Aead => "aead",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum SpiRequestWord {
    Mode,
    Mark,
    Reqid,
    Seq,
    Min,
    Max,
    Direction,
    Pcpu,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum StateFilterWord {
    NoKeys,
    Mode,
    Reqid,
    Flag,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum SelectorWord {
    Source,
    Destination,
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum UpperWord {
    Protocol,
    SourcePort,
    DestinationPort,
    Type,
    Code,
    Key,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum PolicyWord {
    Direction,
    Context,
    Mark,
    Index,
    Kind,
    Action,
    Priority,
    Flag,
    Limit,
    Template,
    IfId,
    Offload,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum PolicyKeyWord {
    Direction,
    Context,
    Mark,
    Index,
    Kind,
    IfId,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum PolicyFilterWord {
    Direction,
    Index,
    Kind,
    Action,
    Priority,
    Flag,
    NoSockets,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum TemplateWord {
    Mode,
    Reqid,
    Level,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum LimitWord {
    TimeSoft,
    TimeHard,
    TimeUseSoft,
    TimeUseHard,
    ByteSoft,
    ByteHard,
    PacketSoft,
    PacketHard,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum MonitorWord {
    File,
    NoKeys,
    All,
    AllNamespaces,
    Group(u32),
    Help,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum SaveWord {
    NoKeys,
    Index,
    Help,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::grammar) enum SyncWord {
    DryRun,
    KeepOthers,
    Help,
}
