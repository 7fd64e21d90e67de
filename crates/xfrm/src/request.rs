//! Encodes commands: the bytes that iproute2 sends for the same words, in its order of attributes.
//!
//! Words that iproute2 6.1 lacks (`dir`, `pcpu-num`, `offload packet`) are sent as by newer ones.

mod policy;
mod state;

use nix::net::if_::if_nametoindex;
use uxfrm_engine::{IfId, Mark, PolicyKind, SaProtocol};
use uxfrm_netlink::{
    AttributeType, Flags, MessageType,
    client::{
        self, RawDefaults, RawMark, RawPolicyType, RawSecurityContext, RawThreshold, Request,
    },
};
use zerocopy::IntoBytes as _;

use crate::grammar::{Command, Hthresh};

/// Why there is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No interface of this name.
    #[error(
        "argument \"{0}\" is wrong: Invalid device name; expected the name of an interface of this host"
    )]
    Device(String),
}

/// What iproute2 waits for behind a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// That it was done.
    Acknowledgement,
    /// One message.
    One,
    /// All that there is, and an end.
    All,
}

/// `XFRMA_SPD_IPV4_HTHRESH`, `_IPV6_HTHRESH`
const THRESHOLD_V4: u16 = 3;
const THRESHOLD_V6: u16 = 4;

/// The request that a command begins with, and what comes back.
///
/// # Errors
/// When it names a device that is not there.
pub fn request(command: &Command) -> Result<(Request, Answer), Error> {
    let done = |request| Ok((request, Answer::Acknowledgement));
    match command {
        Command::StateAdd(words) => done(state::whole(MessageType::NewSa, words)?),
        Command::StateUpdate(words) => done(state::whole(MessageType::UpdSa, words)?),
        Command::StateAllocSpi(request) => Ok((state::spi_request(request), Answer::One)),
        Command::StateDelete(key) => done(state::key(MessageType::DelSa, key, Flags::ACK)),
        Command::StateGet(key) => {
            Ok((state::key(MessageType::GetSa, key, Flags::empty()), Answer::One))
        }
        Command::StateList(filter) | Command::StateListWithoutKeys(filter) => {
            Ok((state::dump(filter), Answer::All))
        }
        Command::StateDeleteAll(_) => Ok((dump(MessageType::GetSa), Answer::All)),
        Command::StateFlush { protocol } => {
            let number: u8 = protocol.map_or(0, protocol_number);
            done(Request::new(MessageType::FlushSa, Flags::ACK).body(&number))
        }
        Command::StateCount => Ok((info(MessageType::GetSadInfo), Answer::One)),
        Command::PolicyAdd(words) => done(policy::whole(MessageType::NewPolicy, words)?),
        Command::PolicyUpdate(words) => done(policy::whole(MessageType::UpdPolicy, words)?),
        Command::PolicyDelete(key) => done(policy::key(MessageType::DelPolicy, key, Flags::ACK)),
        Command::PolicyGet(key) => {
            Ok((policy::key(MessageType::GetPolicy, key, Flags::empty()), Answer::One))
        }
        Command::PolicyList(_) | Command::PolicyDeleteAll(_) => {
            Ok((dump(MessageType::GetPolicy), Answer::All))
        }
        Command::PolicyFlush { kind } => {
            let mut request = Request::new(MessageType::FlushPolicy, Flags::ACK);
            put_kind(&mut request, *kind);
            done(request)
        }
        Command::PolicyCount => Ok((info(MessageType::GetSpdInfo), Answer::One)),
        Command::SetHthresh { v4, v6 } => done(thresholds(*v4, *v6)),
        Command::SetDefault { inbound, forward, outbound } => {
            let number = |action: &Option<_>| action.map_or(0, client::default_number);
            let defaults = RawDefaults {
                inbound: number(inbound),
                forward: number(forward),
                outbound: number(outbound),
            };
            done(Request::new(MessageType::SetDefault, Flags::ACK).body(&defaults))
        }
        Command::GetDefault => {
            let nothing = RawDefaults { inbound: 0, forward: 0, outbound: 0 };
            let request = Request::new(MessageType::GetDefault, Flags::empty()).body(&nothing);
            Ok((request, Answer::One))
        }
    }
}

/// A request to delete what a dump's message tells of.
pub(crate) use self::{policy::delete as delete_policy, state::delete as delete_state};

fn dump(kind: MessageType) -> Request {
    Request::new(kind, Flags::DUMP)
}

/// All flags: every part of the information.
fn info(kind: MessageType) -> Request {
    Request::new(kind, Flags::empty()).body(&u32::MAX)
}

fn thresholds(v4: Option<Hthresh>, v6: Option<Hthresh>) -> Request {
    let mut request = Request::new(MessageType::NewSpdInfo, Flags::ACK).body(&u32::MAX);
    for (number, threshold) in [(THRESHOLD_V4, v4), (THRESHOLD_V6, v6)] {
        if let Some(Hthresh { local, remote }) = threshold {
            request.parts(number, &[RawThreshold { local, remote }.as_bytes()]);
        }
    }
    request
}

/// `ipsec-any` is `IPSEC_PROTO_ANY`.
fn protocol_number(protocol: SaProtocol) -> u8 {
    client::protocol_number(protocol)
}

fn put_kind(request: &mut Request, kind: Option<PolicyKind>) {
    if let Some(kind) = kind {
        let raw = RawPolicyType { kind: client::kind_number(kind), pad: [0; 5] };
        request.attribute(AttributeType::PolicyType, &raw);
    }
}

fn put_mark(request: &mut Request, mark: Mark) {
    if mark.mask != 0 {
        let raw = RawMark { value: mark.value, mask: mark.mask };
        request.attribute(AttributeType::Mark, &raw);
    }
}

fn put_if_id(request: &mut Request, if_id: Option<IfId>) {
    if let Some(IfId(number)) = if_id {
        request.attribute(AttributeType::IfId, &number);
    }
}

/// `ip/xfrm_policy.c: xfrm_sctx_parse`: the text with its zero.
fn put_context(request: &mut Request, context: &str) {
    let text_len = u16::try_from(context.len() + 1).unwrap_or(u16::MAX);
    let raw = RawSecurityContext {
        len: text_len.saturating_add(8),
        kind: AttributeType::SecCtx as u16,
        algorithm: 1,
        domain: 1,
        text_len,
    };
    request.parts(AttributeType::SecCtx as u16, &[raw.as_bytes(), context.as_bytes(), &[0]]);
}

/// By name, or `if` and the number of one that this host does not see.
fn device_index(name: &str) -> Result<u32, Error> {
    let by_number = || name.strip_prefix("if").and_then(|number| number.parse().ok());
    let index = if_nametoindex(name).ok().or_else(by_number).filter(|index| *index != 0);
    index.ok_or_else(|| Error::Device(name.to_owned()))
}
