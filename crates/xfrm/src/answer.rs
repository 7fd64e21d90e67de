//! Decodes the server's messages for printing. Only messages too short for their type are refused.

use uxfrm_netlink::{
    AttributeType, MessageType, NetlinkMessage,
    client::{
        RawAcquire, RawAevent, RawDefaults, RawExpire, RawMapping, RawPolicy, RawPolicyExpire,
        RawPolicyId, RawPolicyType, RawReport, RawSa, RawSaId, ReplyAttributes,
    },
};
use zerocopy::{FromBytes, Immutable};

/// One message.
#[derive(Debug)]
pub enum AnswerMessage<'a> {
    /// A state, or an event about one.
    State(State<'a>),
    /// A policy, or an event about one.
    Policy(ShownPolicy<'a>),
    /// A packet needs a state.
    Acquire(Box<RawAcquire>, ReplyAttributes<'a>),
    /// All states of a protocol went.
    StatesFlushed(u8),
    /// All policies of a type went.
    PoliciesFlushed(ReplyAttributes<'a>),
    /// Mobile IPv6.
    Report(RawReport, ReplyAttributes<'a>),
    /// The counters of a state.
    Aevent(RawAevent),
    /// A peer's address changed.
    Mapping(RawMapping),
    /// What happens without a policy.
    Defaults(RawDefaults),
    /// How many states.
    SadInfo(ReplyAttributes<'a>),
    /// How many policies.
    SpdInfo(ReplyAttributes<'a>),
    /// Of a type that is never sent to us: its number.
    Unknown(u16),
    /// Too short to be what it says.
    Broken(MessageType),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there, or new.
    Here,
    /// It was changed.
    Updated,
    /// It went.
    Deleted,
    /// It reached a limit, a hard one if not 0.
    Expired {
        /// `hard`
        hard: u8,
    },
}

/// A state.
#[derive(Debug)]
pub struct State<'a> {
    /// What happened to it.
    pub change: Change,
    /// Its fixed part.
    pub info: Box<RawSa>,
    /// Its attributes.
    pub found: ReplyAttributes<'a>,
}

/// A policy.
#[derive(Debug)]
pub struct ShownPolicy<'a> {
    /// What happened to it.
    pub change: Change,
    /// Its fixed part.
    pub info: Box<RawPolicy>,
    /// Its attributes.
    pub found: ReplyAttributes<'a>,
}

impl ShownPolicy<'_> {
    /// `XFRMA_POLICY_TYPE`; main without it.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.found.read::<RawPolicyType>(AttributeType::PolicyType).map_or(0, |raw| raw.kind)
    }
}

impl<'a> AnswerMessage<'a> {
    /// What `message` is, which is no end of a dump and no acknowledgement.
    #[must_use]
    pub fn of(message: &NetlinkMessage<'a>) -> Self {
        let Some(kind) = MessageType::from_number(message.header.kind) else {
            return Self::Unknown(message.header.kind);
        };
        Self::parse(kind, message.body()).unwrap_or(Self::Broken(kind))
    }

    fn parse(kind: MessageType, body: &'a [u8]) -> Option<Self> {
        Some(match kind {
            MessageType::NewSa | MessageType::UpdSa => {
                let (info, found) = split(body)?;
                let updated = kind == MessageType::UpdSa;
                let change = if updated { Change::Updated } else { Change::Here };
                Self::State(State { change, info: Box::new(info), found })
            }
            MessageType::DelSa => {
                let (_, found) = split::<RawSaId>(body)?;
                let info = Box::new(found.read(AttributeType::Sa)?);
                Self::State(State { change: Change::Deleted, info, found })
            }
            MessageType::Expire => {
                let (RawExpire { sa, hard, .. }, found) = split(body)?;
                Self::State(State { change: Change::Expired { hard }, info: Box::new(sa), found })
            }
            MessageType::NewPolicy | MessageType::UpdPolicy => {
                let (info, found) = split(body)?;
                let updated = kind == MessageType::UpdPolicy;
                let change = if updated { Change::Updated } else { Change::Here };
                Self::Policy(ShownPolicy { change, info: Box::new(info), found })
            }
            MessageType::DelPolicy => {
                let (_, found) = split::<RawPolicyId>(body)?;
                let info = Box::new(found.read(AttributeType::Policy)?);
                Self::Policy(ShownPolicy { change: Change::Deleted, info, found })
            }
            MessageType::PolExpire => {
                let (RawPolicyExpire { policy, hard, .. }, found) = split(body)?;
                let info = Box::new(policy);
                Self::Policy(ShownPolicy { change: Change::Expired { hard }, info, found })
            }
            MessageType::Acquire => {
                let (acquire, found) = split(body)?;
                Self::Acquire(Box::new(acquire), found)
            }
            MessageType::FlushSa => Self::StatesFlushed(*body.first()?),
            MessageType::FlushPolicy => Self::PoliciesFlushed(ReplyAttributes::of(body)),
            MessageType::Report => {
                let (report, found) = split(body)?;
                Self::Report(report, found)
            }
            MessageType::NewAe => Self::Aevent(split(body)?.0),
            MessageType::Mapping => Self::Mapping(split(body)?.0),
            MessageType::GetDefault => Self::Defaults(split(body)?.0),
            MessageType::NewSadInfo => Self::SadInfo(split::<u32>(body)?.1),
            MessageType::NewSpdInfo => Self::SpdInfo(split::<u32>(body)?.1),
            MessageType::GetSa
            | MessageType::GetPolicy
            | MessageType::AllocSpi
            | MessageType::GetAe
            | MessageType::Migrate
            | MessageType::GetSadInfo
            | MessageType::GetSpdInfo
            | MessageType::SetDefault
            | MessageType::MigrateState => Self::Unknown(kind as u16),
        })
    }
}

/// The structure that a body begins with, and the attributes behind it.
fn split<T: FromBytes + Immutable>(body: &[u8]) -> Option<(T, ReplyAttributes<'_>)> {
    let (structure, _) = T::read_from_prefix(body).ok()?;
    let attributes = body.get(size_of::<T>().next_multiple_of(4)..).unwrap_or_default();
    Some((structure, ReplyAttributes::of(attributes)))
}
