//! Values of `fou` and `link`, as iproute2 reads them.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use uxfrm_cli_grammar::{Cursor, Error, cursor::number};
use uxfrm_tunnel::config::HeaderByte;

/// What stands next on the line.
pub(crate) trait Values {
    /// A TOS or traffic-class byte (`lib/rt_names.c: rtnl_dsfield_a2n`, but without names).
    fn class(&mut self) -> Result<HeaderByte, Error>;

    /// An address; `any` is `None`.
    fn address<A: FromStr>(&mut self, what: &'static str) -> Result<Option<A>, Error>;

    /// An address and a prefix length, which may be left out.
    fn prefix<A: FromStr>(&mut self, whole: u8, what: &'static str) -> Result<(A, u8), Error>;

    /// A GRE key: a number, or four as in an address.
    fn key(&mut self) -> Result<u32, Error>;

    /// A byte that may be taken over from the inner header.
    fn octet(&mut self, what: &'static str) -> Result<HeaderByte, Error>;
}

impl Values for Cursor<'_, '_> {
    fn class(&mut self) -> Result<HeaderByte, Error> {
        let inherits = self.skip("inherit");
        let what = "a TOS byte in hex, or inherit";
        if inherits { Ok(HeaderByte::Inherit) } else { self.hex(what).map(HeaderByte::Fixed) }
    }

    fn address<A: FromStr>(&mut self, what: &'static str) -> Result<Option<A>, Error> {
        match self.next(what)? {
            "any" | "all" | "default" => Ok(None),
            word => word.parse().map(Some).map_err(|_| Error::argument(word, what)),
        }
    }

    fn prefix<A: FromStr>(&mut self, whole: u8, what: &'static str) -> Result<(A, u8), Error> {
        let word = self.next(what)?;
        let (address, len) = word.split_once('/').unwrap_or((word, ""));
        let len = if len.is_empty() { Some(whole) } else { number(len) };
        address.parse().ok().zip(len).ok_or_else(|| Error::argument(word, what))
    }

    fn key(&mut self) -> Result<u32, Error> {
        let word = self.next("a key")?;
        let dotted = || word.parse().ok().map(Ipv4Addr::to_bits);
        number(word)
            .or_else(dotted)
            .ok_or_else(|| Error::argument(word, "a key: a number, or as in 1.2.3.4"))
    }

    fn octet(&mut self, what: &'static str) -> Result<HeaderByte, Error> {
        if self.skip("inherit") {
            Ok(HeaderByte::Inherit)
        } else {
            self.number(what).map(HeaderByte::Fixed)
        }
    }
}

/// The family of an address in text.
pub(crate) fn is_v6(address: Option<IpAddr>) -> bool {
    address.is_some_and(|address| address.is_ipv6())
}
