//! Encodes commands: the bytes that iproute2 sends for the same words, in its order of attributes.
//!
//! Words that iproute2 6.1 lacks (`dir`, `pcpu-num`, `offload packet`) are sent as by newer ones.

mod policy;
mod state;

use nix::net::if_::if_nametoindex;
use uxfrm_engine::{IfId, Mark, PolicyKind, SaProtocol};
use uxfrm_netlink::{
    AttributeType, MessageType, NetlinkFlags,
    client::{
        self, NetlinkRequest, RawDefaults, RawMark, RawPolicyType, RawSecurityContext, RawThreshold,
    },
};
use zerocopy::IntoBytes as _;

use crate::grammar::{Hthresh, XfrmCommand};

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
pub enum ExpectedAnswer {
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
pub fn request(command: &XfrmCommand) -> Result<(NetlinkRequest, ExpectedAnswer), Error> {
    let done = |request| Ok((request, ExpectedAnswer::Acknowledgement));
    match command {
        XfrmCommand::StateAdd(words) => done(state::whole(MessageType::NewSa, words)?),
        XfrmCommand::StateUpdate(words) => done(state::whole(MessageType::UpdSa, words)?),
        XfrmCommand::StateAllocSpi(request) => {
            Ok((state::spi_request(request), ExpectedAnswer::One))
        }
        XfrmCommand::StateDelete(key) => {
            done(state::key(MessageType::DelSa, key, NetlinkFlags::ACK))
        }
        XfrmCommand::StateGet(key) => {
            Ok((state::key(MessageType::GetSa, key, NetlinkFlags::empty()), ExpectedAnswer::One))
        }
        XfrmCommand::StateList(filter) | XfrmCommand::StateListWithoutKeys(filter) => {
            Ok((state::dump(filter), ExpectedAnswer::All))
        }
        XfrmCommand::StateDeleteAll(_) => Ok((dump(MessageType::GetSa), ExpectedAnswer::All)),
        XfrmCommand::StateFlush { protocol } => {
            let number: u8 = protocol.map_or(0, SaProtocol::number);
            done(NetlinkRequest::new(MessageType::FlushSa, NetlinkFlags::ACK).body(&number))
        }
        XfrmCommand::StateCount => Ok((info(MessageType::GetSadInfo), ExpectedAnswer::One)),
        XfrmCommand::PolicyAdd(words) => done(policy::whole(MessageType::NewPolicy, words)?),
        XfrmCommand::PolicyUpdate(words) => done(policy::whole(MessageType::UpdPolicy, words)?),
        XfrmCommand::PolicyDelete(key) => {
            done(policy::key(MessageType::DelPolicy, key, NetlinkFlags::ACK))
        }
        XfrmCommand::PolicyGet(key) => Ok((
            policy::key(MessageType::GetPolicy, key, NetlinkFlags::empty()),
            ExpectedAnswer::One,
        )),
        XfrmCommand::PolicyList(_) | XfrmCommand::PolicyDeleteAll(_) => {
            Ok((dump(MessageType::GetPolicy), ExpectedAnswer::All))
        }
        XfrmCommand::PolicyFlush { kind } => {
            let mut request = NetlinkRequest::new(MessageType::FlushPolicy, NetlinkFlags::ACK);
            put_kind(&mut request, *kind);
            done(request)
        }
        XfrmCommand::PolicyCount => Ok((info(MessageType::GetSpdInfo), ExpectedAnswer::One)),
        XfrmCommand::SetHthresh { v4, v6 } => done(thresholds(*v4, *v6)),
        XfrmCommand::SetDefault { inbound, forward, outbound } => {
            let number = |action: &Option<_>| action.map_or(0, client::default_number);
            let defaults = RawDefaults {
                inbound: number(inbound),
                forward: number(forward),
                outbound: number(outbound),
            };
            done(NetlinkRequest::new(MessageType::SetDefault, NetlinkFlags::ACK).body(&defaults))
        }
        XfrmCommand::GetDefault => {
            let nothing = RawDefaults { inbound: 0, forward: 0, outbound: 0 };
            let request =
                NetlinkRequest::new(MessageType::GetDefault, NetlinkFlags::empty()).body(&nothing);
            Ok((request, ExpectedAnswer::One))
        }
    }
}

/// A request to delete what a dump's message tells of.
pub(crate) use self::{policy::delete as delete_policy, state::delete as delete_state};

fn dump(kind: MessageType) -> NetlinkRequest {
    NetlinkRequest::new(kind, NetlinkFlags::DUMP)
}

/// All flags: every part of the information.
fn info(kind: MessageType) -> NetlinkRequest {
    NetlinkRequest::new(kind, NetlinkFlags::empty()).body(&u32::MAX)
}

fn thresholds(v4: Option<Hthresh>, v6: Option<Hthresh>) -> NetlinkRequest {
    let mut request =
        NetlinkRequest::new(MessageType::NewSpdInfo, NetlinkFlags::ACK).body(&u32::MAX);
    for (number, threshold) in [(THRESHOLD_V4, v4), (THRESHOLD_V6, v6)] {
        if let Some(Hthresh { local, remote }) = threshold {
            request.parts(number, &[RawThreshold { local, remote }.as_bytes()]);
        }
    }
    request
}

fn put_kind(request: &mut NetlinkRequest, kind: Option<PolicyKind>) {
    if let Some(kind) = kind {
        let raw = RawPolicyType { kind: client::kind_number(kind), pad: [0; 5] };
        request.attribute(AttributeType::PolicyType, &raw);
    }
}

fn put_mark(request: &mut NetlinkRequest, mark: Mark) {
    if mark.mask != 0 {
        let raw = RawMark { value: mark.value, mask: mark.mask };
        request.attribute(AttributeType::Mark, &raw);
    }
}

fn put_if_id(request: &mut NetlinkRequest, if_id: Option<IfId>) {
    if let Some(IfId(number)) = if_id {
        request.attribute(AttributeType::IfId, &number);
    }
}

/// `ip/xfrm_policy.c: xfrm_sctx_parse`: the text with its zero.
fn put_context(request: &mut NetlinkRequest, context: &str) {
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
