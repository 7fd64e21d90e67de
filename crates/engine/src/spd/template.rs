//! What a policy wants done: one state per template, the first one innermost.

use std::net::IpAddr;

use crate::{Family, Mode, Reqid, SaProtocol, Spi};

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
            level: Level::Required,
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
