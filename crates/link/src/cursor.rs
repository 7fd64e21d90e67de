//! The words of a command, one after the other.

use std::net::IpAddr;
use std::str::FromStr;

use crate::Error;

/// Reads words from the front.
#[derive(Debug)]
pub(crate) struct Cursor<'a, 'w> {
    words: &'a [&'w str],
}

impl<'a, 'w> Cursor<'a, 'w> {
    pub(crate) fn new(words: &'a [&'w str]) -> Self {
        Self { words }
    }

    /// The next word; `expected` is what the line is incomplete without.
    pub(crate) fn next(&mut self, expected: &'static str) -> Result<&'w str, Error> {
        self.take().ok_or(Error::Incomplete(expected))
    }

    /// The next word, if there is one.
    pub(crate) fn take(&mut self) -> Option<&'w str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    /// Whether the next word is `word`, and past it then.
    pub(crate) fn skip(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    /// A number in decimal, or hexadecimal behind `0x`.
    pub(crate) fn number<N: TryFrom<u64>>(&mut self, what: &'static str) -> Result<N, Error> {
        let word = self.next(what)?;
        number(word).ok_or_else(|| wrong(word, what))
    }

    /// A number in hexadecimal, with or without `0x`.
    pub(crate) fn hex<N: TryFrom<u64>>(&mut self, what: &'static str) -> Result<N, Error> {
        let word = self.next(what)?;
        let value = u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16);
        value.ok().and_then(|value| N::try_from(value).ok()).ok_or_else(|| wrong(word, what))
    }

    /// A TOS or traffic-class byte (`lib/rt_names.c: rtnl_dsfield_a2n`, but without names).
    pub(crate) fn class(&mut self) -> Result<uxfrm_tunnel::config::Octet, Error> {
        use uxfrm_tunnel::config::Octet;
        let inherits = self.skip("inherit");
        let what = "a TOS byte in hex, or inherit";
        if inherits { Ok(Octet::Inherit) } else { self.hex(what).map(Octet::Fixed) }
    }

    /// An address; `any` is `None`.
    pub(crate) fn address<A: FromStr>(&mut self, what: &'static str) -> Result<Option<A>, Error> {
        match self.next(what)? {
            "any" | "all" | "default" => Ok(None),
            word => word.parse().map(Some).map_err(|_| wrong(word, what)),
        }
    }

    /// An address and a prefix length, which may be left out.
    pub(crate) fn prefix<A: FromStr>(
        &mut self,
        whole: u8,
        what: &'static str,
    ) -> Result<(A, u8), Error> {
        let word = self.next(what)?;
        let (address, len) = word.split_once('/').unwrap_or((word, ""));
        let len = if len.is_empty() { Some(whole) } else { number(len) };
        address.parse().ok().zip(len).ok_or_else(|| wrong(word, what))
    }

    /// A GRE key: a number, or four as in an address.
    pub(crate) fn key(&mut self) -> Result<u32, Error> {
        let word = self.next("a key")?;
        let dotted = || word.parse().ok().map(std::net::Ipv4Addr::to_bits);
        number(word).or_else(dotted).ok_or_else(|| wrong(word, "a key: a number, or as in 1.2.3.4"))
    }

    /// A byte that may be taken over from the inner header.
    pub(crate) fn octet(
        &mut self,
        what: &'static str,
    ) -> Result<uxfrm_tunnel::config::Octet, Error> {
        use uxfrm_tunnel::config::Octet;
        if self.skip("inherit") { Ok(Octet::Inherit) } else { self.number(what).map(Octet::Fixed) }
    }
}

/// Whether `word` begins `whole`, as `lib/utils.c: matches` has it.
pub(crate) fn is_abbreviation(word: &str, whole: &str) -> bool {
    !word.is_empty() && whole.starts_with(word)
}

pub(crate) fn wrong(word: &str, what: &'static str) -> Error {
    Error::Argument { word: word.to_owned(), what }
}

/// The family of an address in text.
pub(crate) fn is_v6(address: Option<IpAddr>) -> bool {
    address.is_some_and(|address| address.is_ipv6())
}

fn number<N: TryFrom<u64>>(word: &str) -> Option<N> {
    let value = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    N::try_from(value.ok()?).ok()
}
