//! Framing between UDP and a tunnel's payload: the one table of its kinds.

use uxfrm_packet::Protocol;

use crate::DropReason;
use crate::config::RemoteOffload;
use crate::gue::{self, Gue, RemoteChecksum};

/// Framing between UDP header and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpFraming {
    /// Nothing: `encap fou`.
    Fou,
    /// A GUE header of variant 0: `encap gue`.
    Gue,
}

/// A framing's row.
#[derive(Clone, Copy, Debug)]
pub struct UdpFramingProperties {
    /// `TUNNEL_ENCAP_*`, and the same `FOU_ENCAP_*` of receive ports.
    pub number: u8,
    /// The word of `ip link … encap`, and of `ip fou add` for a framing that names its payload.
    pub word: &'static str,
    /// Whether the header names the payload's protocol; else the receive port does (`ipproto`).
    pub names_protocol: bool,
    /// Whether the header can leave a checksum to the other end.
    pub has_remote_checksum: bool,
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramingHeader {
    pub(crate) len: usize,
    /// Protocol of the payload, if the header names it.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) checksum: Option<RemoteChecksum>,
}

impl UdpFraming {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Fou, Self::Gue];

    /// The framing's row.
    #[must_use]
    pub const fn properties(self) -> UdpFramingProperties {
        match self {
            Self::Fou => UdpFramingProperties {
                number: 1,
                word: "fou",
                names_protocol: false,
                has_remote_checksum: false,
            },
            Self::Gue => UdpFramingProperties {
                number: 2,
                word: "gue",
                names_protocol: true,
                has_remote_checksum: true,
            },
        }
    }

    /// The framing with this number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|framing| u16::from(framing.properties().number) == number)
    }

    /// The framing with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|framing| framing.properties().word == word)
    }

    /// Length of the header that is written.
    pub(crate) const fn header_len(self, remote_checksum: RemoteOffload) -> usize {
        match (self, remote_checksum) {
            (Self::Fou, _) => 0,
            (Self::Gue, RemoteOffload::Off) => gue::HEADER_LEN,
            (Self::Gue, RemoteOffload::On) => gue::REMOTE_CHECKSUM_LEN,
        }
    }

    /// Writes a header to the front of `out`; `None` if it does not fit.
    pub(crate) fn write(
        self,
        out: &mut [u8],
        protocol: Protocol,
        checksum: Option<RemoteChecksum>,
    ) -> Option<usize> {
        match self {
            Self::Fou => Some(0),
            Self::Gue => {
                let plain = || Gue::plain(protocol);
                checksum.map_or_else(plain, |it| Gue::with_checksum(protocol, it)).write(out)
            }
        }
    }

    /// Parses the header of a UDP payload.
    pub(crate) fn parse(self, payload: &[u8]) -> Result<FramingHeader, DropReason> {
        match self {
            Self::Fou => Ok(FramingHeader { len: 0, protocol: None, checksum: None }),
            Self::Gue => {
                let Gue { header_len: len, protocol, checksum } = Gue::parse(payload)?;
                Ok(FramingHeader { len, protocol: Some(protocol), checksum })
            }
        }
    }

    /// The reason that [`Self::parse`] gives for a header cut short, as in a quoted packet.
    pub(crate) const fn truncation(self) -> Option<DropReason> {
        match self {
            Self::Fou => None,
            Self::Gue => Some(DropReason::InGueTruncated),
        }
    }
}
