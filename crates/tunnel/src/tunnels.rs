//! All tunnels of a gateway, and the lookup by packet (`net/ipv4/ip_tunnel.c: ip_tunnel_lookup`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use uxfrm_packet::{Protocol, Version};

use crate::config::{TunnelConfig, TunnelKind};
use crate::{Error, Tunnel};

/// Identity of a tunnel: a kind between two addresses has one tunnel per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    kind: TunnelKind,
    local: IpAddr,
    remote: IpAddr,
    key: Option<u32>,
}

impl Identity {
    fn of(tunnel: &Tunnel) -> Self {
        let TunnelConfig { kind, local, remote, input, .. } = *tunnel.config();
        Self { kind, local, remote, key: input.key }
    }
}

/// The tunnels of a gateway.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    /// In order of creation.
    all: Vec<Arc<Tunnel>>,
    index: HashMap<Identity, Arc<Tunnel>, FixedState>,
}

impl Tunnels {
    /// No tunnels.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one (`ip_tunnel_newlink`).
    ///
    /// # Errors
    /// [`Error::TunnelExists`] when one has its name, or its kind, ends and key.
    pub fn add(&mut self, tunnel: Tunnel) -> Result<Arc<Tunnel>, Error> {
        let identity = Identity::of(&tunnel);
        if self.named(tunnel.name()).is_some() || self.index.contains_key(&identity) {
            return Err(Error::TunnelExists);
        }
        let tunnel = Arc::new(tunnel);
        self.all.push(Arc::clone(&tunnel));
        self.index.insert(identity, Arc::clone(&tunnel));
        Ok(tunnel)
    }

    /// Replaces the tunnel of the same name (`ip_tunnel_changelink`). Its sequence numbers start
    /// anew.
    ///
    /// # Errors
    /// [`Error::NoTunnel`]; [`Error::TunnelExists`] when another one has its kind, addresses and
    /// key.
    pub fn change(&mut self, tunnel: Tunnel) -> Result<Arc<Tunnel>, Error> {
        let at = self.place(tunnel.name()).ok_or(Error::NoTunnel)?;
        let identity = Identity::of(&tunnel);
        if self.index.get(&identity).is_some_and(|other| other.name() != tunnel.name()) {
            return Err(Error::TunnelExists);
        }
        let tunnel = Arc::new(tunnel);
        let before = std::mem::replace(&mut self.all[at], Arc::clone(&tunnel));
        self.index.remove(&Identity::of(&before));
        self.index.insert(identity, Arc::clone(&tunnel));
        Ok(tunnel)
    }

    /// Deletes one and returns it.
    ///
    /// # Errors
    /// [`Error::NoTunnel`].
    pub fn delete(&mut self, name: &str) -> Result<Arc<Tunnel>, Error> {
        let tunnel = self.all.remove(self.place(name).ok_or(Error::NoTunnel)?);
        self.index.remove(&Identity::of(&tunnel));
        Ok(tunnel)
    }

    /// The tunnel of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Tunnel>> {
        self.all.iter().find(|tunnel| tunnel.name() == name)
    }

    /// All, in order of creation.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tunnel>> {
        self.all.iter()
    }

    /// The tunnel for a packet from `source` to `destination`: the one between these addresses,
    /// else by remote address, else by local address, else its kind's wildcard.
    pub(crate) fn of(
        &self,
        kind: TunnelKind,
        source: IpAddr,
        destination: IpAddr,
        key: Option<u32>,
    ) -> Option<&Arc<Tunnel>> {
        let any = TunnelConfig::any(kind.outer());
        let ends = [(destination, source), (any, source), (destination, any), (any, any)];
        ends.into_iter()
            .find_map(|(local, remote)| self.index.get(&Identity { kind, local, remote, key }))
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|tunnel| tunnel.name() == name)
    }
}

/// Kinds that take a protocol over an IP version, in lookup order.
pub(crate) fn kinds(protocol: Protocol, outer: Version) -> &'static [TunnelKind] {
    match (protocol, outer) {
        (Protocol::IPIP, Version::V4) => &[TunnelKind::Ipip, TunnelKind::Sit],
        (Protocol::IPV6, Version::V4) => &[TunnelKind::Sit],
        (Protocol::GRE, Version::V4) => &[TunnelKind::Gre],
        (Protocol::IPIP | Protocol::IPV6, Version::V6) => &[TunnelKind::Ip6tnl],
        (Protocol::GRE, Version::V6) => &[TunnelKind::Ip6gre],
        (Protocol(_), _) => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GreOptions;

    fn tunnel(name: &str, local: &str, remote: &str, key: Option<u32>) -> Tunnel {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        let mut config = TunnelConfig::new(TunnelKind::Gre, local, remote);
        config.input = GreOptions { key, ..GreOptions::default() };
        Tunnel::new(name, config).unwrap()
    }

    #[test]
    fn most_specific_tunnel_takes_packet() {
        let mut tunnels = Tunnels::new();
        for (name, local, remote, key) in [
            ("all", "0.0.0.0", "0.0.0.0", None),
            ("here", "10.0.0.1", "0.0.0.0", None),
            ("there", "0.0.0.0", "10.0.0.2", None),
            ("both", "10.0.0.1", "10.0.0.2", None),
            ("keyed", "10.0.0.1", "10.0.0.2", Some(7)),
        ] {
            tunnels.add(tunnel(name, local, remote, key)).unwrap();
        }
        for (source, destination, key, name) in [
            ("10.0.0.2", "10.0.0.1", None, Some("both")),
            ("10.0.0.2", "10.0.0.1", Some(7), Some("keyed")),
            ("10.0.0.2", "10.0.0.1", Some(8), None),
            ("10.0.0.2", "10.0.0.9", None, Some("there")),
            ("10.0.0.9", "10.0.0.1", None, Some("here")),
            ("10.0.0.9", "10.0.0.8", None, Some("all")),
        ] {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let found = tunnels.of(TunnelKind::Gre, source, destination, key);
            assert_eq!(found.map(|tunnel| tunnel.name()), name);
        }
        assert!(
            tunnels
                .of(TunnelKind::Ipip, [10, 0, 0, 2].into(), [10, 0, 0, 1].into(), None)
                .is_none()
        );
    }

    #[test]
    fn one_tunnel_for_each_name_and_identity() {
        let mut tunnels = Tunnels::new();
        tunnels.add(tunnel("a", "10.0.0.1", "10.0.0.2", None)).unwrap();
        let refused = |made: Result<Arc<Tunnel>, Error>| made.map(|_| ()).unwrap_err();
        let again = tunnel("b", "10.0.0.1", "10.0.0.2", None);
        assert_eq!(refused(tunnels.add(again)), Error::TunnelExists);
        let named = tunnel("a", "10.0.0.1", "10.0.0.3", None);
        assert_eq!(refused(tunnels.add(named)), Error::TunnelExists);
        tunnels.add(tunnel("b", "10.0.0.1", "10.0.0.2", Some(1))).unwrap();
        let taken = tunnel("b", "10.0.0.1", "10.0.0.2", None);
        assert_eq!(refused(tunnels.change(taken)), Error::TunnelExists);
        let missing = tunnel("c", "10.0.0.1", "10.0.0.2", None);
        assert_eq!(refused(tunnels.change(missing)), Error::NoTunnel);
        tunnels.change(tunnel("a", "10.0.0.1", "10.0.0.3", None)).unwrap();
        let old = tunnels.of(TunnelKind::Gre, [10, 0, 0, 2].into(), [10, 0, 0, 1].into(), None);
        assert!(old.is_none());
        assert_eq!(tunnels.delete("a").unwrap().name(), "a");
        assert_eq!(tunnels.delete("a").unwrap_err(), Error::NoTunnel);
        assert_eq!(tunnels.iter().count(), 1);
    }
}
