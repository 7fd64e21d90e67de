//! `net.ipv4.ip_local_port_range`.

use std::fs;
use std::ops::RangeInclusive;

use uxfrm_engine::SourcePorts;

/// The ports that this host gives to whoever asks for none: services have others, and those must
/// not be taken from them.
pub(crate) fn range() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    text.ok().and_then(|text| port_range(&text)).unwrap_or_else(|| SourcePorts::default().range)
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    let range = first.parse().ok()?..=last.trim().parse().ok()?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_port_range_is_parsed() {
        assert_eq!(port_range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(port_range("9\t5\n"), None);
        assert_eq!(port_range("1 2 3"), None);
    }
}
