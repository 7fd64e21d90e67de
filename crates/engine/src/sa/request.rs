//! The SA that a template requests from key managers.

use std::net::IpAddr;

use crate::{Cpu, IfId, Mark, Mode, Reqid, SaProtocol, Spi};

/// The SA that a template needs for a packet: what a larval SA is made from
/// (`xfrm_init_tempstate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaRequest {
    /// Source of the outer header; unspecified when neither template nor host has one.
    pub source: IpAddr,
    /// Destination of the outer header.
    pub destination: IpAddr,
    /// The template's protocol.
    pub protocol: SaProtocol,
    /// The template's SPI, mostly 0.
    pub spi: Spi,
    /// The template's mode.
    pub mode: Mode,
    /// The template's reqid.
    pub reqid: Reqid,
    /// The policy's mark.
    pub mark: Mark,
    /// The policy's XFRM interface id.
    pub if_id: IfId,
    /// For this CPU only: others have an SA, and the policy has `flag cpu-acquire`.
    pub pcpu: Option<Cpu>,
}
