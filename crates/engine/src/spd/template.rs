//! What a policy wants done: one state per template, the first one innermost.

use std::net::IpAddr;

use crate::{Mode, Reqid, SaProtocol, Spi};

/// Whether a template must be met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// `level required`.
    #[default]
    Required,
    /// `level use`: met if a state is there, skipped otherwise.
    Use,
}

/// `tmpl …` of a policy (`struct xfrm_user_tmpl`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    /// Outer source; unspecified fits any.
    pub source: IpAddr,
    /// Outer destination; unspecified means the packet's own (transport) and fits any state inbound.
    pub destination: IpAddr,
    /// The protocol.
    pub protocol: SaProtocol,
    /// A certain SPI, or 0 for any.
    pub spi: Spi,
    /// The mode.
    pub mode: Mode,
    /// The states that may serve it. On the way out it must be the state's own, also when 0; on the way in 0 fits any.
    pub reqid: Reqid,
    /// Whether it must be met.
    pub level: Level,
}
