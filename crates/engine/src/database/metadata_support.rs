//! Which packet metadata (mark, ifindex, if_id) the ports supply. A policy or state that needs
//! other metadata would be stored and never match, so that its traffic leaves in plaintext; it is
//! refused.

use crate::Error;
use crate::{Direction, IfId, Mark, Policy, SaConfig};

/// Metadata that ports supply and accept besides packet bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataSupport {
    /// Marks and interfaces.
    #[default]
    All,
    /// None, but plain inbound packets pass the host's packet filter too, which knows both: host
    /// mode. A TUN has neither a packet's mark nor its outgoing interface, and accepts no mark.
    Filtered,
    /// None: inline mode.
    BytesOnly,
}

impl MetadataSupport {
    /// # Errors
    /// [`Error::InterfaceId`], [`Error::PolicyMark`], [`Error::PolicyInterface`]
    pub(super) fn check_policy(self, policy: &Policy) -> Result<(), Error> {
        self.check_interface_id(policy.if_id)?;
        let which = match self {
            Self::Filtered if policy.direction == Direction::Out => "outbound policies",
            Self::BytesOnly => "policies of inline gateways",
            Self::Filtered | Self::All => return Ok(()),
        };
        if policy.mark.mask != 0 {
            return Err(Error::PolicyMark(which));
        }
        if policy.selector.ifindex != 0 {
            return Err(Error::PolicyInterface(which));
        }
        Ok(())
    }

    /// A mark that packets without one match is allowed.
    ///
    /// # Errors
    /// [`Error::InterfaceId`], [`Error::StateMark`], [`Error::StateInterface`],
    /// [`Error::OutputMark`]
    pub(super) fn check_state(self, config: &SaConfig) -> Result<(), Error> {
        self.check_interface_id(config.if_id)?;
        match self {
            Self::All => return Ok(()),
            Self::Filtered | Self::BytesOnly => {}
        }
        if !config.mark.fits(0) {
            return Err(Error::StateMark);
        }
        if config.output_mark != Mark::default() {
            return Err(Error::OutputMark);
        }
        match config.selector {
            Some(selector) if selector.ifindex != 0 => Err(Error::StateInterface),
            _ => Ok(()),
        }
    }

    fn check_interface_id(self, if_id: IfId) -> Result<(), Error> {
        match self {
            Self::Filtered | Self::BytesOnly if if_id != IfId(0) => Err(Error::InterfaceId),
            Self::All | Self::Filtered | Self::BytesOnly => Ok(()),
        }
    }
}
