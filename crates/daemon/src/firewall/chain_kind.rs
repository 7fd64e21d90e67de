//! Which share of the policies a chain has.

use uxfrm_engine::{Direction, PolicyKind};

/// The chain that marks.
pub(super) const DIVERT: &str = "divert";

/// What of the policies a chain says. Those `out` are said twice: which way a packet takes,
/// and behind that what may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainKind {
    /// What comes in plain.
    In,
    /// What is forwarded plain.
    Forward,
    /// Plain fragments to the host that only their whole datagram can be judged by.
    WholeIn,
    /// The same of those that are forwarded.
    WholeForward,
    /// ICMP errors that are about to leave past the TUN, by the packets that they quote: what came
    /// to this host.
    QuotedIn,
    /// The same of what is or was to be forwarded.
    QuotedForward,
    /// ICMPv6 redirects of what is forwarded. They tell addresses alone, and elsewhere than errors.
    RedirectedForward,
    /// What is about to leave past the TUN.
    Out,
    /// What is to be led into the TUN.
    Way,
}

impl ChainKind {
    /// All that a kernel can.
    pub(super) const ALL: &'static [Self] = &[
        Self::In,
        Self::Forward,
        Self::WholeIn,
        Self::WholeForward,
        Self::QuotedIn,
        Self::QuotedForward,
        Self::RedirectedForward,
        Self::Out,
        Self::Way,
    ];
    /// Where routes alone lead packets into the TUN, as the filter does not know routes.
    pub(super) const GUARD: &'static [Self] = &[
        Self::In,
        Self::Forward,
        Self::QuotedIn,
        Self::QuotedForward,
        Self::RedirectedForward,
        Self::Out,
    ];
    /// Where somebody else keeps plain packets out.
    pub(super) const WAY: &'static [Self] = &[Self::Way];

    /// Whose policies it is about.
    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::In | Self::WholeIn | Self::QuotedIn => Direction::In,
            Self::Forward | Self::WholeForward | Self::QuotedForward | Self::RedirectedForward => {
                Direction::Forward
            }
            Self::Out | Self::Way => Direction::Out,
        }
    }

    /// Whether it is about the policies `out`, of which there may be too many.
    pub(super) const fn is_of_out(self) -> bool {
        match self {
            Self::Out | Self::Way => true,
            Self::In
            | Self::Forward
            | Self::WholeIn
            | Self::WholeForward
            | Self::QuotedIn
            | Self::QuotedForward
            | Self::RedirectedForward => false,
        }
    }

    /// The name of the chain of a kind.
    pub(super) const fn chain(self, kind: PolicyKind) -> &'static str {
        match (self, kind) {
            (Self::In, PolicyKind::Sub) => "in-sub",
            (Self::In, PolicyKind::Main) => "in-main",
            (Self::Forward, PolicyKind::Sub) => "fwd-sub",
            (Self::Forward, PolicyKind::Main) => "fwd-main",
            (Self::WholeIn, PolicyKind::Sub) => "in-whole-sub",
            (Self::WholeIn, PolicyKind::Main) => "in-whole",
            (Self::WholeForward, PolicyKind::Sub) => "fwd-whole-sub",
            (Self::WholeForward, PolicyKind::Main) => "fwd-whole",
            (Self::QuotedIn, PolicyKind::Sub) => "in-quoted-sub",
            (Self::QuotedIn, PolicyKind::Main) => "in-quoted",
            (Self::QuotedForward, PolicyKind::Sub) => "fwd-quoted-sub",
            (Self::QuotedForward, PolicyKind::Main) => "fwd-quoted",
            (Self::RedirectedForward, PolicyKind::Sub) => "fwd-redirected-sub",
            (Self::RedirectedForward, PolicyKind::Main) => "fwd-redirected",
            (Self::Out, PolicyKind::Sub) => "out",
            (Self::Out, PolicyKind::Main) => "out-main",
            (Self::Way, PolicyKind::Sub) => "way",
            (Self::Way, PolicyKind::Main) => "way-main",
        }
    }

    /// Whether it is about fragments alone, which pass where any policy fits.
    pub(super) const fn is_of_whole(self) -> bool {
        match self {
            Self::WholeIn | Self::WholeForward => true,
            Self::In
            | Self::Forward
            | Self::QuotedIn
            | Self::QuotedForward
            | Self::RedirectedForward
            | Self::Out
            | Self::Way => false,
        }
    }

    /// Whether it is about ICMP errors, by the packets that they quote.
    pub(super) const fn is_of_quotes(self) -> bool {
        match self {
            Self::QuotedIn | Self::QuotedForward | Self::RedirectedForward => true,
            Self::In
            | Self::Forward
            | Self::WholeIn
            | Self::WholeForward
            | Self::Out
            | Self::Way => false,
        }
    }
}
