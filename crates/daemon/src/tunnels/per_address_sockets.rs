//! Sockets of receive ports at the single addresses of tunnels, beside those for all addresses.
//!
//! What comes by a socket of one address needs no control message that tells to which it came.
//! Where such a socket can't be had, the one for all addresses takes the datagrams as before, so
//! nothing here fails.

use std::{io, net::IpAddr, sync::Arc};

use uxfrm_io::{PerAddressSockets, Port, Udp};
use uxfrm_runtime::{ReceivePort, ReceiveSource, TunnelChange};
use uxfrm_tunnel::{DecapPort, DecapPorts, PortIdentity, Tunnels};

use super::{TunnelService, sockets};

/// Sockets of single addresses at the most: each is waited for, and the loop waits for 254 in all.
const MOST: usize = 64;

/// A receive port for all addresses, and its sockets at single addresses.
#[derive(Debug)]
pub(super) struct WildcardPort {
    pub(super) port: DecapPort,
    site: PerAddressSockets,
}

impl WildcardPort {
    /// One that a socket was opened for; `None` for a port of a single address.
    pub(super) fn of(port: DecapPort, socket: &Udp) -> Option<Self> {
        if !port.identity.local.is_unspecified() {
            return None;
        }
        let site = socket.site();
        site.inspect_err(|error| tracing::debug!(%error, "no sockets of single addresses"))
            .ok()
            .map(|site| Self { port, site })
    }

    /// Its socket at one address.
    fn open(&self, address: IpAddr) -> io::Result<Box<dyn Port>> {
        let socket = self.site.at(address)?;
        sockets::allow(&self.port, &socket)?;
        Ok(Box::new(socket))
    }
}

impl TunnelService {
    /// Opens and closes sockets so that the tunnels which send to the number of a receive port have
    /// one of their own address there.
    pub(super) fn open_per_address(&mut self) {
        self.wide.retain(|wide| self.ports.find(&wide.port.identity).is_ok());
        let wanted = per_address(&self.ports, &self.tunnels);
        let mut changes: Vec<TunnelChange> =
            self.unwanted(&wanted).map(TunnelChange::StopListening).collect();
        let new = wanted.into_iter().filter(|identity| !self.listens(identity));
        changes.extend(new.filter_map(|identity| self.open_per_address_socket(identity)));
        if changes.is_empty() {
            return;
        }
        if let Err(refusal) = self.order(self.tunnels.clone(), self.ports.clone(), changes) {
            tracing::debug!(?refusal, "tunnels go without sockets of their addresses");
        }
    }

    fn listens(&self, identity: &PortIdentity) -> bool {
        self.sockets.iter().any(|(source, _)| *source == ReceiveSource::Datagrams(*identity))
    }

    /// Sockets that neither a receive port nor a tunnel has a use for.
    fn unwanted(&self, wanted: &[PortIdentity]) -> impl Iterator<Item = ReceiveSource> {
        self.sockets.iter().map(|(source, _)| *source).filter(|source| match source {
            ReceiveSource::Datagrams(identity) => {
                !wanted.contains(identity) && self.ports.find(identity).is_err()
            }
            ReceiveSource::Protocol(..) => false,
        })
    }

    /// A socket of the port's at one address; what comes there counts as the port's.
    fn open_per_address_socket(&self, identity: PortIdentity) -> Option<TunnelChange> {
        let wide = self.wide.iter().find(|wide| covers(&wide.port.identity, &identity))?;
        let of_all = ReceiveSource::Datagrams(wide.port.identity);
        let (_, counts) = self.sockets.iter().find(|(source, _)| *source == of_all)?;
        let port = wide
            .open(identity.local)
            .inspect_err(|error| tracing::debug!(%error, ?identity, "no socket of one address"))
            .ok()?;
        let source = ReceiveSource::Datagrams(identity);
        Some(TunnelChange::Listen(ReceivePort { source, port, counts: Arc::clone(counts) }))
    }
}

/// Whether a port for all addresses takes what comes to this one.
pub(super) fn covers(wide: &PortIdentity, one: &PortIdentity) -> bool {
    *wide == PortIdentity { local: wide.local, ..*one }
}

/// The receive ports for all addresses at those of tunnels that send to their number: mostly these
/// receive there, too.
fn per_address(ports: &DecapPorts, tunnels: &Tunnels) -> Vec<PortIdentity> {
    let mut found = Vec::new();
    for DecapPort { identity, .. } in
        ports.iter().filter(|port| port.identity.local.is_unspecified())
    {
        for config in tunnels.iter().map(|tunnel| tunnel.config()) {
            let one = PortIdentity { local: config.local, ..*identity };
            let sends_there = config.udp.is_some_and(|udp| udp.destination_port.get() == one.port);
            let is_one = config.kind.outer() == one.version && !one.local.is_unspecified();
            if sends_there && is_one && found.len() < MOST && !found.contains(&one) {
                found.push(one);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, num::NonZeroU16};

    use uxfrm_tunnel::{
        PortRequest, Tunnel, TunnelConfig, TunnelKind,
        config::{TunnelUdpEncap, UdpFraming},
    };

    use super::*;

    fn ports(numbers: &[(u16, Option<[u8; 4]>)]) -> DecapPorts {
        let mut ports = DecapPorts::new();
        for (port, local) in numbers {
            let local4 = local.map(Into::into);
            let request =
                PortRequest { port: *port, protocol: 4, kind: 1, local4, ..PortRequest::default() };
            ports.add(DecapPort::of(&request).unwrap()).unwrap();
        }
        ports
    }

    fn tunnels(ends: &[(u8, Option<u16>)]) -> Tunnels {
        let mut tunnels = Tunnels::new();
        for (place, (local, number)) in (1..).zip(ends) {
            let local = IpAddr::from(if *local == 0 { [0; 4] } else { [192, 0, 2, *local] });
            let mut config =
                TunnelConfig::new(TunnelKind::Ipip, local, [198, 51, 100, place].into());
            let number = number.map(|number| NonZeroU16::new(number).unwrap());
            config.udp = number.map(|number| TunnelUdpEncap::new(UdpFraming::Fou, number));
            tunnels.add(Tunnel::new(&format!("t{place}"), config).unwrap()).unwrap();
        }
        tunnels
    }

    #[test]
    fn wildcard_port_opens_socket_per_tunnel_address() {
        let ports = ports(&[(5555, None), (6666, None), (7777, Some([192, 0, 2, 1]))]);
        let ends = [
            (1, Some(5555)),
            (1, Some(5555)),
            (2, Some(5555)),
            (0, Some(5555)),
            (3, None),
            (1, Some(7777)),
            (1, Some(8888)),
        ];
        let found = per_address(&ports, &tunnels(&ends));
        let found: Vec<_> = found.iter().map(|one| (one.local.to_string(), one.port)).collect();
        assert_eq!(found, [("192.0.2.1".to_owned(), 5555), ("192.0.2.2".to_owned(), 5555)]);
    }

    #[test]
    fn per_address_sockets_are_limited() {
        let ends: Vec<_> = (1..=200).map(|local| (local, Some(5555))).collect();
        assert_eq!(per_address(&ports(&[(5555, None)]), &tunnels(&ends)).len(), MOST);
    }
}
