//! What the words mean where they don't name a value of the engine: one enum per table.

/// `ip …`
#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum ProgramOption {
    Inet,
    Inet6,
    Family,
    /// Changes what `ip` prints, which is nothing here.
    Output,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum Object {
    State,
    Policy,
    Monitor,
    Help,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum StateCommand {
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
pub(in crate::batch) enum PolicyCommand {
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
pub(in crate::batch) enum IdWord {
    Source,
    Destination,
    Protocol,
    Spi,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum StateWord {
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
    IfId,
    TfcPadding,
    Direction,
    Pcpu,
    Algorithm(AlgorithmKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::batch) enum AlgorithmKind {
    Enc,
    Auth,
    AuthTrunc,
    Comp,
    Aead,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum SpiRequestWord {
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
pub(in crate::batch) enum StateFilterWord {
    NoKeys,
    Mode,
    Reqid,
    Flag,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum SelectorWord {
    Source,
    Destination,
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum UpperWord {
    Protocol,
    SourcePort,
    DestinationPort,
    Type,
    Code,
    Key,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum PolicyWord {
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
pub(in crate::batch) enum PolicyKeyWord {
    Direction,
    Context,
    Mark,
    Index,
    Kind,
    IfId,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum PolicyFilterWord {
    Direction,
    Index,
    Kind,
    Action,
    Priority,
    Flag,
    NoSockets,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum TemplateWord {
    Mode,
    Reqid,
    Level,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::batch) enum LimitWord {
    TimeSoft,
    TimeHard,
    TimeUseSoft,
    TimeUseHard,
    ByteSoft,
    ByteHard,
    PacketSoft,
    PacketHard,
}
