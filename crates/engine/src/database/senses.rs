//! What ports know of packets beside their bytes. What is asked of packets that no port can tell, or done to them that no port can do,
//! would be kept and never come true: a policy with a mark would let its traffic leave plain. So it is refused.

use super::Error;
use crate::{Direction, Mark, Policy, SaConfig};

/// What those who bring packets to workers tell of them, and do with what workers say, beside their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Senses {
    /// Marks and interfaces as well.
    #[default]
    All,
    /// Nothing: a TUN tells neither a packet's mark nor the interface that it would leave by, and takes no mark with a packet.
    BytesOnly,
}

impl Senses {
    /// Inbound policies may have both: the host's packet filter knows them of plain packets.
    ///
    /// # Errors
    /// [`Error::PolicyMark`], [`Error::PolicyInterface`]
    pub(super) fn check_policy(self, policy: &Policy) -> Result<(), Error> {
        match self {
            Self::BytesOnly if policy.direction != Direction::Out => Ok(()),
            Self::BytesOnly if policy.mark.mask != 0 => Err(Error::PolicyMark),
            Self::BytesOnly if policy.selector.ifindex != 0 => Err(Error::PolicyInterface),
            Self::BytesOnly | Self::All => Ok(()),
        }
    }

    /// A mark that packets without one fit is well.
    ///
    /// # Errors
    /// [`Error::StateMark`], [`Error::StateInterface`], [`Error::OutputMark`]
    pub(super) fn check_state(self, config: &SaConfig) -> Result<(), Error> {
        let ifindex = config.selector.map_or(0, |selector| selector.ifindex);
        match self {
            Self::BytesOnly if !config.mark.fits(0) => Err(Error::StateMark),
            Self::BytesOnly if config.output_mark != Mark::default() => Err(Error::OutputMark),
            Self::BytesOnly if ifindex != 0 => Err(Error::StateInterface),
            Self::BytesOnly | Self::All => Ok(()),
        }
    }
}
