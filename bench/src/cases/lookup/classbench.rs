//! Rules and traces in ClassBench's format, from the user's files.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use uxfrm_engine::{Direction, Family, FlowKey, Policy, PortMask, Prefix, Selector};

use super::profile::policy;

/// The rules of a file as outbound policies, in the order of its lines. A port range becomes
/// several policies with port masks.
pub(super) fn rules(path: &Path) -> anyhow::Result<Vec<Policy>> {
    let text = read(path)?;
    let mut policies = Vec::new();
    for (number, line) in (1_u32..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("{}:{number}: not a ClassBench rule: {line}", path.display());
        let selector = rule(line).with_context(at)?;
        let (sources, destinations) = (masks(selector.1), masks(selector.2));
        for source_port in &sources {
            for destination_port in &destinations {
                let selector = Selector {
                    source_port: *source_port,
                    destination_port: *destination_port,
                    ..selector.0
                };
                policies.push(policy(Direction::Out, selector, number));
            }
        }
    }
    ensure!(!policies.is_empty(), "{}: no rule in it", path.display());
    Ok(policies)
}

/// The packets of a trace.
pub(super) fn trace(path: &Path) -> anyhow::Result<Vec<FlowKey>> {
    let text = read(path)?;
    let flow = |(number, line): (usize, &str)| {
        let at = || format!("{}:{}: not a ClassBench packet: {line}", path.display(), number + 1);
        packet(line).with_context(at)
    };
    let flows = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(flow);
    let flows = flows.collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!flows.is_empty(), "{}: no packet in it", path.display());
    Ok(flows)
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

type Range = (u16, u16);

fn rule(line: &str) -> anyhow::Result<(Selector, Range, Range)> {
    let words: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
    let [source, destination, low, ":", high, other_low, ":", other_high, protocol, ..] = words[..]
    else {
        bail!("it is @source destination low : high low : high protocol/mask");
    };
    let prefix = |text: &str| -> anyhow::Result<Prefix> {
        let wrong = || format!("a prefix is as in 10.1.0.0/16, not {text}");
        let (address, len) = text.split_once('/').with_context(wrong)?;
        let address: Ipv4Addr = address.parse().with_context(wrong)?;
        Ok(Prefix::new(address.into(), len.parse().with_context(wrong)?)?)
    };
    let mut selector = Selector::any(Family::V4);
    selector.source = prefix(source)?;
    selector.destination = prefix(destination)?;
    selector.protocol = read_protocol(protocol)?;
    Ok((selector, range(low, high)?, range(other_low, other_high)?))
}

/// A selector has one protocol or any.
fn read_protocol(text: &str) -> anyhow::Result<u8> {
    let wrong = || format!("a protocol is as in 0x06/0xFF, not {text}");
    let (protocol, mask) = text.split_once('/').with_context(wrong)?;
    let byte =
        |text: &str| u8::from_str_radix(text.trim_start_matches("0x"), 16).with_context(wrong);
    match byte(mask)? {
        0 => Ok(0),
        u8::MAX => byte(protocol),
        _ => bail!("a protocol's mask is 0xFF or 0x00, not {mask}"),
    }
}

fn range(low: &str, high: &str) -> anyhow::Result<Range> {
    let (low, high) = (port(low)?, port(high)?);
    ensure!(low <= high, "no port is in {low} : {high}");
    Ok((low, high))
}

fn port(text: &str) -> anyhow::Result<u16> {
    text.parse().with_context(|| format!("a port is 0 to 65535, not {text}"))
}

/// The fewest masked values that cover a range.
fn masks((low, high): Range) -> Vec<PortMask> {
    let (mut next, end) = (u32::from(low), u32::from(high));
    let mut masks = Vec::new();
    while next <= end {
        let aligned = if next == 0 { 1 << 16 } else { 1 << next.trailing_zeros() };
        let mut size: u32 = aligned;
        while next + size - 1 > end {
            size /= 2;
        }
        let mask = u16::try_from(0x1_0000 - size).unwrap_or(0);
        masks.push(PortMask { value: u16::try_from(next).unwrap_or(0), mask });
        next += size;
    }
    masks
}

fn packet(line: &str) -> anyhow::Result<FlowKey> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [source, destination, source_port, destination_port, protocol, ..] = words[..] else {
        bail!("it is source destination port port protocol, in decimal");
    };
    let address = |text: &str| -> anyhow::Result<Ipv4Addr> {
        let wrong = || format!("an address is one number, 0 to 4294967295, not {text}");
        text.parse().map(Ipv4Addr::from_bits).with_context(wrong)
    };
    let wrong = || format!("a protocol is 0 to 255, not {protocol}");
    Ok(FlowKey {
        source: address(source)?.into(),
        destination: address(destination)?.into(),
        protocol: protocol.parse().with_context(wrong)?,
        source_port: port(source_port)?,
        destination_port: port(destination_port)?,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use uxfrm_crypto::Backend;
    use uxfrm_engine::{Database, Moment, PolicyLookup};

    use super::*;
    use crate::cases::lookup::{PolicyProfile, Random, matching_flow};

    #[test]
    fn port_masks_cover_exactly_the_range() {
        for range in
            [(0, 65535), (1024, 65535), (5, 5), (1, 14), (0, 0), (65535, 65535), (7810, 7830)]
        {
            let masks = masks(range);
            for port in 0..=u16::MAX {
                let fits = masks.iter().filter(|mask| mask.fits(port)).count();
                assert_eq!(
                    fits,
                    usize::from((range.0..=range.1).contains(&port)),
                    "{port} of {range:?}"
                );
            }
        }
        assert_eq!(masks((0, 65535)).len(), 1);
    }

    /// Rules and packets of our own generator, each packet with the line that it matches;
    /// `UXFRM_BLESS=1` writes the files.
    #[test]
    fn test_data_is_up_to_date_with_the_generator() {
        for (profile, name) in FILES {
            let mut random = Random::new(1);
            let mut policies = profile.policies(Family::V4, Direction::Out, 100, &mut random);
            policies.sort_by_key(|policy| policy.priority);
            let rules: String = policies.iter().map(|policy| rule_line(&policy.selector)).collect();
            let packets: String = (0..200)
                .map(|_| matching_flow(&policies[random.below(policies.len())], &mut random))
                .map(|flow| {
                    let first = policies.iter().position(|policy| policy.selector.matches(&flow));
                    packet_line(&flow, first.unwrap())
                })
                .collect();
            for (path, text) in [(data(name), rules), (data(&format!("{name}_trace")), packets)] {
                if std::env::var_os("UXFRM_BLESS").is_some() {
                    std::fs::write(&path, &text).unwrap();
                }
                assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{}", path.display());
            }
        }
    }

    /// A line's number is its policies' priority. Traces count lines from 0; those of ClassBench
    /// name a line that matches, but an earlier one may match as well.
    #[test]
    fn packet_matches_the_line_that_its_trace_names() {
        let own = FILES.map(|(_, name)| data(name));
        // Files that are not in the repository: UXFRM_CLASSBENCH=DIRECTORY.
        let others = std::env::var_os("UXFRM_CLASSBENCH").into_iter().flat_map(|directory| {
            let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
            files.filter(|path| !path.to_string_lossy().ends_with("_trace")).collect::<Vec<_>>()
        });
        for path in own.iter().cloned().chain(others) {
            let trace_path = format!("{}_trace", path.display());
            let mut database = Database::new(Backend::Portable, 1);
            database.apply(Moment(0), |change| {
                for policy in rules(&path).unwrap() {
                    // Lines with the same selector are one policy: the first.
                    let _ = change.add_policy(policy);
                }
            });
            let text = std::fs::read_to_string(&trace_path).unwrap();
            let named = text.lines().map(|line| line.split_whitespace().nth(6).unwrap());
            let flows = trace(trace_path.as_ref()).unwrap();
            let snapshot = database.snapshot();
            assert!(flows.len() >= 200);
            for (flow, named) in flows.iter().zip(named) {
                let PolicyLookup::Policy(entry) = snapshot.spd.lookup(Direction::Out, flow) else {
                    panic!("{}: no policy for {flow:?}", path.display());
                };
                let (line, named) = (entry.policy().priority.0 - 1, named.parse().unwrap());
                let right = line == named || line < named && !own.contains(&path);
                assert!(right, "{trace_path}: line {line}, not {named}: {flow:?}");
            }
        }
    }

    const FILES: [(PolicyProfile, &str); 3] = [
        (PolicyProfile::Acl, "acl_100"),
        (PolicyProfile::Fw, "fw_100"),
        (PolicyProfile::Ipc, "ipc_100"),
    ];

    fn data(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    fn rule_line(selector: &Selector) -> String {
        let range = |mask: PortMask| {
            let low = mask.value & mask.mask;
            format!("{low} : {}", low | !mask.mask)
        };
        let protocol = match selector.protocol {
            0 => "0x00/0x00".to_owned(),
            protocol => format!("0x{protocol:02X}/0xFF"),
        };
        let (source, destination) = (range(selector.source_port), range(selector.destination_port));
        let Selector { source: from, destination: to, .. } = selector;
        format!("@{from}\t{to}\t{source}\t{destination}\t{protocol}\t0x0000/0x0000\n")
    }

    fn packet_line(flow: &FlowKey, rule: usize) -> String {
        let number = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(_) => unreachable!("the sets are of IPv4"),
        };
        let FlowKey { source, destination, source_port, destination_port, protocol, .. } = *flow;
        let (source, destination) = (number(source), number(destination));
        format!(
            "{source}\t{destination}\t{source_port}\t{destination_port}\t{protocol}\t0\t{rule}\n"
        )
    }

    #[test]
    fn empty_rules_or_trace_are_refused() {
        let refused = trace(Path::new("/dev/null")).unwrap_err();
        assert_eq!(refused.to_string(), "/dev/null: no packet in it");
        let refused = rules(Path::new("/dev/null")).unwrap_err();
        assert_eq!(refused.to_string(), "/dev/null: no rule in it");
    }

    #[test]
    fn rule_without_equivalent_policy_is_refused() {
        let refused = |ports: &str, protocol: &str| {
            let line = format!("@1.2.3.4/32 5.6.7.8/32 {ports} 0 : 65535 {protocol}");
            rule(&line).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(refused("5 : 10", "0x06/0xFF"), Ok(()));
        assert_eq!(refused("10 : 5", "0x06/0xFF"), Err("no port is in 10 : 5".to_owned()));
        assert_eq!(refused("0 : 1", "0x00/0x00"), Ok(()));
        assert_eq!(
            refused("0 : 1", "0x06/0xF0"),
            Err("a protocol's mask is 0xFF or 0x00, not 0xF0".to_owned())
        );
    }

    #[test]
    fn malformed_field_is_refused_with_its_format() {
        let says = |read: anyhow::Result<()>| read.unwrap_err().to_string();
        let rule = |line: &str| says(rule(line).map(drop));
        let packet = |line: &str| says(packet(line).map(drop));
        let rest = "5.6.7.8/32 0 : 80 0 : 1 0x06/0xFF";
        for source in ["1.2.3.400/32", "::1/128", "1.2.3.4", "1.2.3.4/x"] {
            let right = format!("a prefix is as in 10.1.0.0/16, not {source}");
            assert_eq!(rule(&format!("@{source} {rest}")), right);
        }
        let ports = "@1.2.3.4/32 5.6.7.8/32 0 : 65536 0 : 1 0x06/0xFF";
        assert_eq!(rule(ports), "a port is 0 to 65535, not 65536");
        for protocol in ["6", "0xZZ/0xFF"] {
            let right = format!("a protocol is as in 0x06/0xFF, not {protocol}");
            assert_eq!(rule(&format!("@1.2.3.4/32 5.6.7.8/32 0 : 1 0 : 1 {protocol}")), right);
        }
        let right = "an address is one number, 0 to 4294967295, not 1.2.3.4";
        assert_eq!(packet("1.2.3.4 5 6 7 17"), right);
        assert_eq!(packet("4 5 -6 7 17"), "a port is 0 to 65535, not -6");
        assert_eq!(packet("4 5 6 7 256"), "a protocol is 0 to 255, not 256");
    }

    #[test]
    fn rule_and_packet_are_parsed() {
        let line =
            "@67.81.126.218/32\t112.154.225.224/27\t0 : 65535\t37 : 37\t0x11/0xFF\t0x0000/0x0000\t";
        let (selector, source, destination) = rule(line).unwrap();
        assert_eq!(selector.destination.to_string(), "112.154.225.224/27");
        assert_eq!((selector.protocol, source, destination), (17, (0, 65535), (37, 37)));
        let flow = packet("1289415424\t117750809\t0\t21\t17\t0\t383").unwrap();
        assert_eq!((flow.protocol, flow.destination_port), (17, 21));
        assert!(rule("@1.2.3.4/32 5.6.7.8/32").is_err());
    }
}
