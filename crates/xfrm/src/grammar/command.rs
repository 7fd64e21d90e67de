//! Parsed lines, as written: lines that iproute2 sends as different bytes are different here.

use std::{net::IpAddr, path::PathBuf};

use uxfrm_engine::{
    Action, Direction, IfId, Mark, Mode, PolicyIndex, PolicyKind, Reqid, SaId, SaProtocol, Selector,
};

use super::{
    filter::{PolicyFilter, StateFilter},
    policy::PolicyArgs,
    state::StateArgs,
};

/// One line. `S` and `P` are whole states and policies: as written, or what a reader made of them.
#[derive(Debug)]
pub enum XfrmCommand<S = Box<StateArgs>, P = Box<PolicyArgs>> {
    /// `state add`
    StateAdd(S),
    /// `state update`
    StateUpdate(S),
    /// `state allocspi`
    StateAllocSpi(SpiRequest),
    /// `state delete`
    StateDelete(StateKey),
    /// `state get`
    StateGet(StateKey),
    /// `state deleteall`
    StateDeleteAll(StateFilter),
    /// `state list`
    StateList(StateFilter),
    /// `state list nokeys`
    StateListWithoutKeys(StateFilter),
    /// `state flush`
    StateFlush {
        /// Only states of this protocol.
        protocol: Option<SaProtocol>,
    },
    /// `state count`
    StateCount,
    /// `policy add`
    PolicyAdd(P),
    /// `policy update`
    PolicyUpdate(P),
    /// `policy delete`
    PolicyDelete(PolicyKeyArgs),
    /// `policy get`
    PolicyGet(PolicyKeyArgs),
    /// `policy deleteall`
    PolicyDeleteAll(PolicyFilter),
    /// `policy list`
    PolicyList(PolicyFilter),
    /// `policy flush`
    PolicyFlush {
        /// Main or sub policies; main ones if not named.
        kind: Option<PolicyKind>,
    },
    /// `policy count`
    PolicyCount,
    /// `policy set`
    SetHthresh {
        /// For IPv4.
        v4: Option<Hthresh>,
        /// For IPv6.
        v6: Option<Hthresh>,
    },
    /// `policy setdefault`: the action without a matching policy, by direction; `None` keeps the
    /// old one.
    SetDefault {
        /// For packets to this host.
        inbound: Option<Action>,
        /// For packets through this host.
        forward: Option<Action>,
        /// For packets from this host, and leaving it.
        outbound: Option<Action>,
    },
    /// `policy getdefault`
    GetDefault,
}

impl<S, P> XfrmCommand<S, P> {
    /// The same command with its state or policy made into something else.
    ///
    /// # Errors
    /// What `state` or `policy` says.
    pub fn read<T, Q, E>(
        self,
        state: impl FnOnce(S) -> Result<T, E>,
        policy: impl FnOnce(P) -> Result<Q, E>,
    ) -> Result<XfrmCommand<T, Q>, E> {
        Ok(match self {
            Self::StateAdd(words) => XfrmCommand::StateAdd(state(words)?),
            Self::StateUpdate(words) => XfrmCommand::StateUpdate(state(words)?),
            Self::PolicyAdd(words) => XfrmCommand::PolicyAdd(policy(words)?),
            Self::PolicyUpdate(words) => XfrmCommand::PolicyUpdate(policy(words)?),
            Self::StateAllocSpi(request) => XfrmCommand::StateAllocSpi(request),
            Self::StateDelete(key) => XfrmCommand::StateDelete(key),
            Self::StateGet(key) => XfrmCommand::StateGet(key),
            Self::StateDeleteAll(filter) => XfrmCommand::StateDeleteAll(filter),
            Self::StateList(filter) => XfrmCommand::StateList(filter),
            Self::StateListWithoutKeys(filter) => XfrmCommand::StateListWithoutKeys(filter),
            Self::StateFlush { protocol } => XfrmCommand::StateFlush { protocol },
            Self::StateCount => XfrmCommand::StateCount,
            Self::PolicyDelete(key) => XfrmCommand::PolicyDelete(key),
            Self::PolicyGet(key) => XfrmCommand::PolicyGet(key),
            Self::PolicyDeleteAll(filter) => XfrmCommand::PolicyDeleteAll(filter),
            Self::PolicyList(filter) => XfrmCommand::PolicyList(filter),
            Self::PolicyFlush { kind } => XfrmCommand::PolicyFlush { kind },
            Self::PolicyCount => XfrmCommand::PolicyCount,
            Self::SetHthresh { v4, v6 } => XfrmCommand::SetHthresh { v4, v6 },
            Self::SetDefault { inbound, forward, outbound } => {
                XfrmCommand::SetDefault { inbound, forward, outbound }
            }
            Self::GetDefault => XfrmCommand::GetDefault,
        })
    }
}

/// A command, or what only a terminal can be given.
#[derive(Debug)]
pub enum Line {
    /// For the databases.
    Command(XfrmCommand),
    /// `monitor`
    Monitor(Monitor),
    /// `save`
    Save(SaveArgs),
    /// `sync`
    Sync(SyncArgs),
    /// `help`
    Help(Topic),
}

/// What help is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// `help`
    Objects,
    /// `state help`
    State,
    /// `policy help`
    Policy,
    /// `monitor help`
    Monitor,
    /// `save help`
    Save,
    /// `sync help`
    Sync,
}

/// `save`: how the lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveArgs {
    /// `nokeys`: a placeholder that no reader takes stands for each key.
    pub hides_keys: bool,
    /// `index`: policies keep their indexes.
    pub keeps_indexes: bool,
}

/// `sync`: which text, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncArgs {
    /// `FILE`; `-` is standard input.
    pub file: PathBuf,
    /// `--dry-run`: what would be done is only told.
    pub is_dry_run: bool,
    /// `--keep-others`: what the text does not say stays.
    pub keeps_others: bool,
}

/// `monitor`: which events, and how they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Monitor {
    /// The groups that were named, a bit each as in `nl_groups`; 0 is all.
    pub groups: u32,
    /// `nokeys`
    pub hides_keys: bool,
    /// `all-nsid`: each event begins with the namespace that it is from.
    pub names_namespace: bool,
    /// `file FILE`: events that were recorded, not those to come.
    pub file: Option<String>,
}

/// Which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateKey {
    /// Destination, SPI and protocol.
    pub id: SaId,
    /// Source; unspecified fits any. It counts where there is no SPI.
    pub source: IpAddr,
    /// Mark.
    pub mark: Mark,
}

/// `state allocspi`: a larval state with a free SPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpiRequest {
    /// Destination and protocol; the SPI is 0.
    pub id: SaId,
    /// Source.
    pub source: IpAddr,
    /// Mode.
    pub mode: Mode,
    /// Request id.
    pub reqid: Reqid,
    /// The acquire that it answers; 0 for none.
    pub acquire_seq: u32,
    /// Mark.
    pub mark: Mark,
    /// Lowest SPI that will do.
    pub min: u32,
    /// Highest SPI that will do.
    pub max: u32,
    /// `dir in|out`.
    pub direction: Option<Direction>,
    /// `pcpu-num`.
    pub pcpu: Option<u32>,
}

/// Which policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyKeyArgs {
    /// In, out or forward.
    pub direction: Direction,
    /// By selector or by index.
    pub target: PolicyTarget,
    /// Mark.
    pub mark: Mark,
    /// XFRM interface id.
    pub if_id: Option<IfId>,
    /// Main or sub; main if not named.
    pub kind: Option<PolicyKind>,
    /// Security context.
    pub context: Option<String>,
}

/// What names a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyTarget {
    /// The whole selector is this one.
    Selector(Selector),
    /// The index is this one.
    Index(PolicyIndex),
}

/// Prefixes at least this long are found through a hash in the kernel; here it is kept for listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hthresh {
    /// Bits of the local prefix.
    pub local: u8,
    /// Bits of the remote prefix.
    pub remote: u8,
}
