//! Templates of a policy: one SA each, innermost first.

use std::net::IpAddr;

use crate::{Family, Mode, Reqid, SaProtocol, Spi};

/// Whether a template must be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TemplateLevel {
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
    pub level: TemplateLevel,
}

impl Template {
    /// A required ESP state in tunnel mode between two gateways, with any SPI and reqid 0.
    ///
    /// ```
    /// use uxfrm_engine::{Mode, Reqid, Template};
    ///
    /// let template = Template::esp_tunnel([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// assert_eq!(template.mode, Mode::Tunnel);
    /// assert_eq!(template.with_reqid(Reqid(7)).reqid, Reqid(7));
    /// ```
    #[must_use]
    pub const fn esp_tunnel(source: IpAddr, destination: IpAddr) -> Self {
        Self {
            source,
            destination,
            protocol: SaProtocol::Esp,
            spi: Spi(0),
            mode: Mode::Tunnel,
            reqid: Reqid(0),
            level: TemplateLevel::Required,
        }
    }

    /// A required ESP state in transport mode between the packet's own addresses, with any SPI and
    /// reqid 0. `family` is that of the packets.
    ///
    /// ```
    /// use uxfrm_engine::{Family, Mode, Template};
    ///
    /// let template = Template::esp_transport(Family::V6);
    /// assert!(template.mode == Mode::Transport && template.destination.is_unspecified());
    /// ```
    #[must_use]
    pub const fn esp_transport(family: Family) -> Self {
        let any = family.unspecified();
        Self { mode: Mode::Transport, ..Self::esp_tunnel(any, any) }
    }

    /// This template for states with another reqid.
    #[must_use]
    pub const fn with_reqid(self, reqid: Reqid) -> Self {
        Self { reqid, ..self }
    }
}
