//! `ip fou add|del|show` (`ip/ipfou.c: fou_parse_opt`), with VXLAN's `noudp6zerocsumrx` as well.

use std::net::IpAddr;

use uxfrm_cli_grammar::{self as words, Cursor, is_abbreviation};
use uxfrm_packet::{Protocol, Version};
use uxfrm_tunnel::config::UdpFraming;
use uxfrm_tunnel::{PortRequest, ports::ZeroChecksum6};

use crate::Error;
use crate::help::FOU_OPTIONS;
use crate::values::{Values as _, is_v6};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const DIRECT: u8 = UdpFraming::Fou.properties().number;

const COMMANDS: &str = "add, del or show";

/// What is to be done with a receive port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FouAction {
    /// `fou add`
    Add(FouPort),
    /// `fou del`
    Delete(FouPort),
    /// `fou show`
    Show,
}

/// A receive port as a line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FouPort {
    /// Everything but the device.
    pub request: PortRequest,
    /// `dev`: the name of the device, whose index is the host's to know.
    pub device: Option<String>,
}

pub(crate) fn read(cursor: &mut Cursor<'_, '_>, version: Version) -> Result<FouAction, Error> {
    let word = cursor.next(COMMANDS)?;
    if is_abbreviation(word, "add") {
        let port = options(cursor, version)?;
        match (port.request.protocol, port.request.kind) {
            (0, DIRECT) => Err(Error::FouNeither),
            (0, _) | (_, DIRECT) => Ok(FouAction::Add(port)),
            (_, _) => Err(Error::FouBoth),
        }
    } else if is_abbreviation(word, "delete") {
        options(cursor, version).map(FouAction::Delete)
    } else if is_abbreviation(word, "show") {
        cursor.take().map_or(Ok(FouAction::Show), |_| Err(Error::FouShow))
    } else {
        Err(words::Error::command(word, COMMANDS).into())
    }
}

fn options(cursor: &mut Cursor<'_, '_>, version: Version) -> Result<FouPort, Error> {
    let mut request = PortRequest { kind: DIRECT, ..PortRequest::default() };
    let (mut device, mut ends, mut has_port) = (None, [None; 2], false);
    let mut version = version;
    while let Some(word) = cursor.take() {
        match word {
            "port" => (request.port, has_port) = (port(cursor)?, true),
            "ipproto" => request.protocol = protocol(cursor)?,
            "peer" => ends[1] = cursor.address("an address")?,
            "peer_port" => request.peer_port = Some(port(cursor)?),
            "local" => ends[0] = cursor.address("an address")?,
            "dev" => device = Some(cursor.next("a device")?.to_owned()),
            "-6" => version = Version::V6,
            "udp6zerocsumrx" => request.zero_checksum6 = ZeroChecksum6::Allow,
            "noudp6zerocsumrx" => request.zero_checksum6 = ZeroChecksum6::Refuse,
            _ => {
                let framing = UdpFraming::from_word(word).map(UdpFraming::properties);
                request.kind = match framing.filter(|framing| framing.names_protocol) {
                    Some(framing) => framing.number,
                    None => return Err(words::Error::option(word, FOU_OPTIONS).into()),
                };
            }
        }
    }
    if !has_port {
        return Err(Error::FouPort);
    }
    let [local, peer]: [Option<IpAddr>; 2] = ends;
    if peer.is_some() != request.peer_port.is_some() {
        return Err(Error::FouPeer);
    }
    if is_v6(local) || is_v6(peer) {
        version = Version::V6;
    }
    request.family = Some(match version {
        Version::V4 => AF_INET,
        Version::V6 => AF_INET6,
    });
    (request.local4, request.local6) = of_family(local, version)?;
    (request.peer4, request.peer6) = of_family(peer, version)?;
    Ok(FouPort { request, device })
}

/// An address where its family's attribute is.
fn of_family(
    address: Option<IpAddr>,
    version: Version,
) -> Result<(Option<std::net::Ipv4Addr>, Option<std::net::Ipv6Addr>), words::Error> {
    match address {
        Some(IpAddr::V4(address)) if version == Version::V6 => {
            Err(words::Error::argument(&address.to_string(), "an IPv6 address is needed"))
        }
        Some(IpAddr::V4(address)) => Ok((Some(address), None)),
        Some(IpAddr::V6(address)) => Ok((None, Some(address))),
        None => Ok((None, None)),
    }
}

fn port(cursor: &mut Cursor<'_, '_>) -> Result<u16, words::Error> {
    match cursor.number("a port, 1 to 65535")? {
        0 => Err(words::Error::argument("0", "a port, 1 to 65535")),
        port => Ok(port),
    }
}

/// By number, or by the name of those that tunnels have.
fn protocol(cursor: &mut Cursor<'_, '_>) -> Result<u8, words::Error> {
    const WHAT: &str = "an IP protocol, 1 to 255";
    let named = [
        ("ipip", Protocol::IPIP),
        ("ipencap", Protocol::IPIP),
        ("ipv6", Protocol::IPV6),
        ("gre", Protocol::GRE),
        ("esp", Protocol::ESP),
        ("tcp", Protocol::TCP),
        ("udp", Protocol::UDP),
    ];
    if let Some((_, protocol)) = named.into_iter().find(|(name, _)| cursor.skip(name)) {
        return Ok(protocol.0);
    }
    match cursor.number(WHAT)? {
        0 => Err(words::Error::argument("0", WHAT)),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TunnelCommand, command};

    fn read(line: &str) -> Result<FouAction, Error> {
        match command(&line.split(' ').collect::<Vec<_>>())? {
            TunnelCommand::Fou(fou) => Ok(fou),
            TunnelCommand::Link(_) => unreachable!("it begins with fou"),
        }
    }

    #[test]
    fn fou_port_attributes_are_iproute2s() {
        let request = PortRequest { family: Some(2), port: 5555, kind: 1, ..Default::default() };
        let add = |request| FouAction::Add(FouPort { request, device: None });
        let v4 = add(PortRequest { protocol: 4, ..request.clone() });
        assert_eq!(read("ip fou add port 5555 ipproto 4"), Ok(v4.clone()));
        assert_eq!(read("f a port 0x15b3 ipproto ipip"), Ok(v4));
        let gue = add(PortRequest { kind: 2, family: Some(10), ..request.clone() });
        assert_eq!(read("fou add port 5555 gue -6"), Ok(gue.clone()));
        assert_eq!(read("-6 fou add port 5555 gue"), Ok(gue));
        let peer = PortRequest {
            local4: Some([10, 0, 0, 1].into()),
            peer4: Some([10, 0, 0, 2].into()),
            peer_port: Some(9),
            ..request.clone()
        };
        let line = "fou del port 5555 peer 10.0.0.2 peer_port 9 local 10.0.0.1 dev eth0";
        let device = Some("eth0".to_owned());
        assert_eq!(read(line), Ok(FouAction::Delete(FouPort { request: peer, device })));
        assert_eq!(read("fou s"), Ok(FouAction::Show));
        let checked = PortRequest {
            protocol: 41,
            family: Some(10),
            zero_checksum6: ZeroChecksum6::Refuse,
            ..request
        };
        assert_eq!(read("fou add port 5555 ipproto 41 -6 noudp6zerocsumrx"), Ok(add(checked)));
    }

    #[test]
    fn fou_parse_errors_are_iproute2s() {
        for (line, text) in [
            ("fou add ipproto 4", "fou: missing port"),
            ("fou add port 5", "fou: must set ipproto or gue"),
            ("fou add port 5 ipproto 4 gue", "fou: cannot set ipproto and gue"),
            ("fou add port 5 gue peer 10.0.0.1", "fou: both peer and peer port must be set"),
            ("fou add port 5 gue peer_port 7", "fou: both peer and peer port must be set"),
            ("fou add port 0 gue", "argument \"0\" is wrong: a port, 1 to 65535"),
            ("fou add port 70000 gue", "argument \"70000\" is wrong: a port, 1 to 65535"),
            ("fou add port 5 ipproto 256", "argument \"256\" is wrong: an IP protocol, 1 to 255"),
            ("fou add port", "Command line is not complete. Expected a port, 1 to 65535"),
            ("fou show 5", "\"ip fou show\" does not take any arguments."),
            ("fou get 5", "Command \"get\" is unknown, try add, del or show"),
            (
                "fou add port 5 gue -6 local 1.2.3.4",
                "argument \"1.2.3.4\" is wrong: an IPv6 address is needed",
            ),
        ] {
            assert_eq!(read(line).unwrap_err().to_string(), text, "{line}");
        }
    }
}
