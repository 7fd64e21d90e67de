//! The words of `uxfrm why`: `SRC DST [PROTO [[SPORT] DPORT]] [dir in|out] [spi SPI] [from ADDR]
//! [to ADDR] [mark MARK]`.

use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use uxfrm_status::explanation::{EspQuery, FlowQuery, FlowWay, PROTOCOLS};

/// Reads the words.
///
/// # Errors
/// The first word that is wrong, and what would be right.
pub(crate) fn parse(words: &[String]) -> anyhow::Result<FlowQuery> {
    let mut words = Words(words);
    let source = words.next("SRC, an address").and_then(address)?;
    let destination = words.next("DST, an address").and_then(address)?;
    if source.is_ipv4() != destination.is_ipv4() {
        bail!("{source} and {destination} are of different families");
    }
    let mut query = FlowQuery {
        source,
        destination,
        protocol: None,
        source_port: None,
        destination_port: None,
        mark: None,
        way: None,
        esp: None,
    };
    query.protocol = words.next_value().map(protocol).transpose()?;
    let ports: Vec<u16> = words.values().map(port).collect::<anyhow::Result<_>>()?;
    match ports[..] {
        [] => {}
        // Of ICMP the type comes first.
        [kind] if matches!(query.protocol, Some(1 | 58)) => query.source_port = Some(kind),
        [to] => query.destination_port = Some(to),
        [from, to] => (query.source_port, query.destination_port) = (Some(from), Some(to)),
        [..] => bail!("too many ports; expected [SPORT] DPORT"),
    }
    clauses(&mut words, &mut query)?;
    Ok(query)
}

/// What follows the flow, in any order.
fn clauses(words: &mut Words<'_>, query: &mut FlowQuery) -> anyhow::Result<()> {
    let (mut spi, mut outer_source, mut outer_destination) = (None, None, None);
    while let Some(word) = words.next_word() {
        match word {
            "dir" => query.way = Some(words.next("in or out").and_then(way)?),
            "spi" => spi = Some(words.next("an SPI").and_then(number)?),
            "from" => outer_source = Some(words.next("an address").and_then(address)?),
            "to" => outer_destination = Some(words.next("an address").and_then(address)?),
            "mark" => query.mark = Some(words.next("a mark").and_then(number)?),
            other => bail!("{other:?} is unknown; expected one of: {}", KEYWORDS.join(" ")),
        }
    }
    query.esp =
        spi.map(|spi| EspQuery { spi, source: outer_source, destination: outer_destination });
    if query.esp.is_none() && (outer_source.is_some() || outer_destination.is_some()) {
        bail!("`from` and `to` are the ends of an ESP packet: say its `spi`, too");
    }
    if query.esp.is_some() && query.way == Some(FlowWay::Out) {
        bail!("a packet with `spi` comes in: leave out `dir out`");
    }
    Ok(())
}

const KEYWORDS: [&str; 5] = ["dir", "spi", "from", "to", "mark"];

/// The words that are left.
struct Words<'a>(&'a [String]);

impl<'a> Words<'a> {
    fn next_word(&mut self) -> Option<&'a str> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn next(&mut self, expected: &str) -> anyhow::Result<&'a str> {
        self.next_word().with_context(|| format!("expected {expected}"))
    }

    /// The next word, if it is no keyword.
    fn next_value(&mut self) -> Option<&'a str> {
        self.0.first().filter(|word| !KEYWORDS.contains(&word.as_str()))?;
        self.next_word()
    }

    fn values(&mut self) -> impl Iterator<Item = &'a str> {
        std::iter::from_fn(|| self.next_value())
    }
}

fn address(word: &str) -> anyhow::Result<IpAddr> {
    IpAddr::from_str(word).ok().with_context(|| format!("{word:?} is no IP address"))
}

pub(crate) fn protocol(word: &str) -> anyhow::Result<u8> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == word).map(|(_, number)| *number);
    named.or_else(|| word.parse().ok()).with_context(|| {
        let names: Vec<_> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
        format!("{word:?} is no protocol; expected a number or one of: {}", names.join(" "))
    })
}

fn port(word: &str) -> anyhow::Result<u16> {
    word.parse().ok().with_context(|| {
        format!("{word:?} is no port; expected 0 to 65535 or one of: {}", KEYWORDS.join(" "))
    })
}

fn way(word: &str) -> anyhow::Result<FlowWay> {
    match word {
        "in" | "fwd" => Ok(FlowWay::In),
        "out" => Ok(FlowWay::Out),
        _ => bail!("{word:?} is no direction; expected in or out"),
    }
}

/// In decimal or, behind `0x`, in hexadecimal.
pub(crate) fn number(word: &str) -> anyhow::Result<u32> {
    let read = match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => word.parse(),
    };
    read.ok().with_context(|| format!("{word:?} is no number of 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(line: &str) -> anyhow::Result<FlowQuery> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn flow_is_read_with_ports_and_clauses() {
        let read = query("10.1.0.1 10.2.0.1 tcp 443").unwrap();
        assert_eq!(
            (read.protocol, read.source_port, read.destination_port),
            (Some(6), None, Some(443))
        );
        let echo = query("10.1.0.1 10.2.0.1 icmp 8").unwrap();
        assert_eq!((echo.source_port, echo.destination_port), (Some(8), None));
        let read = query("fd00::1 fd00::2 17 7 9 mark 0x10").unwrap();
        assert_eq!((read.source_port, read.destination_port), (Some(7), Some(9)));
        assert_eq!((read.protocol, read.mark), (Some(17), Some(16)));
        let read = query("10.2.0.1 10.1.0.1 dir in spi 0x1002 from 10.9.0.2").unwrap();
        assert_eq!(read.way, Some(FlowWay::In));
        let esp = read.esp.unwrap();
        assert_eq!((esp.spi, esp.source), (0x1002, Some("10.9.0.2".parse().unwrap())));
        assert_eq!(esp.destination, None);
    }

    #[test]
    fn wrong_words_are_named() {
        for (line, says) in [
            ("", "expected SRC"),
            ("10.1.0.1", "expected DST"),
            ("10.1.0.1 x", "\"x\" is no IP address"),
            ("10.1.0.1 fd00::1", "different families"),
            ("10.1.0.1 10.2.0.1 tpc", "\"tpc\" is no protocol"),
            ("10.1.0.1 10.2.0.1 tcp 70000", "\"70000\" is no port"),
            ("10.1.0.1 10.2.0.1 tcp 1 2 3", "too many ports"),
            ("10.1.0.1 10.2.0.1 dir up", "\"up\" is no direction"),
            ("10.1.0.1 10.2.0.1 dir", "expected in or out"),
            ("10.1.0.1 10.2.0.1 spi x", "\"x\" is no number"),
            ("10.1.0.1 10.2.0.1 spi 1 dir out", "comes in"),
            ("10.1.0.1 10.2.0.1 dir in from 10.9.0.1", "say its `spi`"),
            ("10.1.0.1 10.2.0.1 dir in x", "\"x\" is unknown"),
        ] {
            let error = query(line).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
