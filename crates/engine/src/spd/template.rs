//! Templates of a policy: one SA each, innermost first.

use std::net::IpAddr;

use crate::{Mode, Reqid, SaProtocol, Spi};

/// Whether a template must be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// `level required`.
    #[default]
    Required,
    /// `level use`: applied if an SA exists, else skipped.
    Use,
}

/// `tmpl …` of a policy (`struct xfrm_user_tmpl`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    /// Outer source; unspecified matches any.
    pub source: IpAddr,
    /// Outer destination; unspecified means the packet's own (transport mode), and matches any SA
    /// inbound.
    pub destination: IpAddr,
    /// IPsec protocol.
    pub protocol: SaProtocol,
    /// SPI, or 0 for any.
    pub spi: Spi,
    /// Mode.
    pub mode: Mode,
    /// Request id. Outbound it must equal the SA's, even if 0; inbound 0 matches any.
    pub reqid: Reqid,
    /// Whether it must be satisfied.
    pub level: Level,
}
