//! `ID`: `[src ADDR] [dst ADDR] [proto XFRM-PROTO] [spi SPI]`, in any order but in one place.

use std::net::IpAddr;

use uxfrm_engine::{Family, SaId, SaProtocol, Spi};

use super::{
    address::{Ends, Pair},
    cursor::{Cursor, SyntaxError},
    keyword::{ID, IdWord},
    protocol,
};

/// What an ID said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Id {
    pub(super) ends: Pair,
    pub(super) protocol: Option<SaProtocol>,
    pub(super) spi: Option<Spi>,
}

/// An ID of a state or template: it has a protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullId {
    pub(super) source: IpAddr,
    pub(super) id: SaId,
}

impl Id {
    /// Where the line names no family it is IPv4's, or `default`.
    pub(super) fn full(
        self,
        cursor: &Cursor<'_, '_>,
        default: Option<Family>,
    ) -> Result<FullId, SyntaxError> {
        let protocol = self.protocol.ok_or_else(|| cursor.required("XFRM-PROTO"))?;
        let family = self.ends.family.or(default).unwrap_or(Family::V4);
        Ok(FullId {
            source: self.ends.source_or_any(family).address(),
            id: SaId {
                destination: self.ends.destination_or_any(family).address(),
                spi: self.spi.unwrap_or_default(),
                protocol,
            },
        })
    }
}

/// Whether an ID begins here.
pub(super) fn begins(cursor: &Cursor<'_, '_>) -> bool {
    cursor.peek().is_some_and(|word| ID.exact(word.text()).is_some())
}

/// The ID that begins here (`ip/ipxfrm.c: xfrm_id_parse`, loose).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Id, SyntaxError> {
    let mut ends = Ends::default();
    let mut id = Id::default();
    while let Some(word) = cursor.keyword(&ID) {
        match word {
            IdWord::Source => ends.source(cursor)?,
            IdWord::Destination => ends.destination(cursor)?,
            IdWord::Protocol => id.protocol = Some(protocol::parse_ipsec(cursor)?),
            IdWord::Spi => id.spi = Some(Spi(cursor.number()?)),
        }
    }
    id.ends = ends.pair(cursor)?;
    check_spi(&id, cursor)?;
    Ok(id)
}

fn check_spi(id: &Id, cursor: &Cursor<'_, '_>) -> Result<(), SyntaxError> {
    let (Some(protocol), Some(Spi(spi @ 1..))) = (id.protocol, id.spi) else { return Ok(()) };
    let name = protocol::ipsec_name(protocol);
    match protocol {
        SaProtocol::Route2 | SaProtocol::Hao => {
            Err(cursor.refuse(format!("\"spi\" is invalid with XFRM-PROTO value \"{name}\"")))
        }
        SaProtocol::Comp if spi > 0xffff => {
            Err(cursor.refuse(format!("SPI value is too large with XFRM-PROTO value \"{name}\"")))
        }
        SaProtocol::Comp | SaProtocol::Esp | SaProtocol::Ah | SaProtocol::Any => Ok(()),
    }
}
