//! What of the policies a chain says.

use uxfrm_engine::{Direction, PolicyKind};

/// What of the policies a chain says. Those `out` are said twice: which way a packet takes, and behind that what may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What comes in plain.
    In,
    /// What is forwarded plain.
    Forward,
    /// What is about to leave past the TUN.
    Out,
    /// What is to be led into the TUN.
    Way,
}

impl Part {
    /// All that a kernel can.
    pub(super) const ALL: &'static [Self] = &[Self::In, Self::Forward, Self::Out, Self::Way];
    /// Where routes alone lead packets into the TUN.
    pub(super) const GUARD: &'static [Self] = &[Self::In, Self::Forward, Self::Out];
    /// Where somebody else keeps plain packets out.
    pub(super) const WAY: &'static [Self] = &[Self::Way];

    /// Whose policies it is about.
    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::In => Direction::In,
            Self::Forward => Direction::Forward,
            Self::Out | Self::Way => Direction::Out,
        }
    }

    /// Whether it is about the policies `out`, of which there may be too many.
    pub(super) const fn is_of_out(self) -> bool {
        match self {
            Self::Out | Self::Way => true,
            Self::In | Self::Forward => false,
        }
    }

    /// The name of the chain of a kind.
    pub(super) const fn chain(self, kind: PolicyKind) -> &'static str {
        match (self, kind) {
            (Self::In, PolicyKind::Sub) => "in",
            (Self::In, PolicyKind::Main) => "in-main",
            (Self::Forward, PolicyKind::Sub) => "fwd",
            (Self::Forward, PolicyKind::Main) => "fwd-main",
            (Self::Out, PolicyKind::Sub) => "out",
            (Self::Out, PolicyKind::Main) => "out-main",
            (Self::Way, PolicyKind::Sub) => "way",
            (Self::Way, PolicyKind::Main) => "way-main",
        }
    }
}
