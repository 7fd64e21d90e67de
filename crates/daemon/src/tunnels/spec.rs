//! Tunnels and receive ports as batch files of `ip fou` and `ip link` lines describe them.

use anyhow::{Context as _, anyhow, bail, ensure};
use nix::net::if_::if_nametoindex;
use uxfrm_io::text_file;
use uxfrm_link::{Admin, FouAction, FouPort, LinkAction, TunnelCommand, TunnelLink};
use uxfrm_tunnel::{DecapPort, DecapPorts, PortRequest, Tunnel, Tunnels};

use super::{TunnelService, error};
use crate::{config::Config, ports::workers};

/// The ports and links that batch files add.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunnelSpec {
    pub(super) ports: Vec<PortRequest>,
    pub(super) links: Vec<TunnelLink>,
}

/// What a line is checked against: the lines before it, and names and ports of the gateway.
#[derive(Debug)]
struct SpecContext {
    ports: DecapPorts,
    tunnels: Tunnels,
    tun: String,
    udp_ports: Vec<u16>,
}

impl SpecContext {
    fn of(config: &Config) -> Self {
        Self {
            ports: DecapPorts::default(),
            tunnels: Tunnels::default(),
            tun: config.host.tun.to_string(),
            udp_ports: workers::numbers(config),
        }
    }
}

impl TunnelSpec {
    /// Reads a configuration's batch files, in order.
    ///
    /// # Errors
    /// All that is wrong with them, a line each.
    pub(crate) fn read(config: &Config) -> anyhow::Result<Self> {
        let (mut plan, mut faults) = (Self::default(), Vec::new());
        let mut known = SpecContext::of(config);
        for file in &config.tunnel.batch {
            let text = text_file::read_to_string(file)
                .with_context(|| format!("can't read {}", file.display()))?;
            for located in uxfrm_link::lines(&text) {
                let done = located
                    .command
                    .map_err(anyhow::Error::from)
                    .and_then(|command| plan.take(command, &mut known));
                let place = format!("{}:{}", file.display(), located.line);
                faults.extend(done.err().map(|fault| format!("{place}: {fault:#}")));
            }
        }
        if faults.is_empty() { Ok(plan) } else { bail!(faults.join("\n")) }
    }

    /// Receive ports, in order.
    pub(crate) fn ports(&self) -> &[PortRequest] {
        &self.ports
    }

    /// Tunnels, in order.
    pub(crate) fn links(&self) -> &[TunnelLink] {
        &self.links
    }

    fn take(&mut self, command: TunnelCommand, known: &mut SpecContext) -> anyhow::Result<()> {
        match command {
            TunnelCommand::Fou(FouAction::Add(port)) => {
                let request = on_device(port)?;
                let number = request.port;
                ensure!(
                    !known.udp_ports.contains(&number),
                    "UDP port {number} is for ESP in UDP ([wire] udp_ports, and 4500 with a control socket)"
                );
                known.ports.add(DecapPort::of(&request)?)?;
                self.ports.push(request);
            }
            TunnelCommand::Link(LinkAction::Add(link)) => {
                ensure!(
                    link.name != known.tun,
                    "{} is the TUN that uxfrm makes ([host] tun)",
                    link.name
                );
                known.tunnels.add(Tunnel::new(&link.name, link.config.clone())?)?;
                self.links.push(link);
            }
            TunnelCommand::Fou(FouAction::Delete(_) | FouAction::Show)
            | TunnelCommand::Link(
                LinkAction::Change(_) | LinkAction::Delete { .. } | LinkAction::Show(_),
            ) => {
                bail!("a configuration only adds");
            }
        }
        Ok(())
    }

    /// Opens TUNs, which are up unless a line says `down`, and sockets.
    ///
    /// # Errors
    /// The kernel's; what was to be done is in the text.
    pub(crate) fn start(self) -> anyhow::Result<TunnelService> {
        let mut carrying = TunnelService::default();
        for request in &self.ports {
            carrying.add_port(request).map_err(|refusal| {
                anyhow!("receive port {}: {}", request.port, error::words(&refusal))
            })?;
        }
        for mut link in self.links {
            link.admin = link.admin.or(Some(Admin::Up));
            carrying
                .add_link(&link)
                .map_err(|refusal| anyhow!("tunnel {}: {}", link.name, error::words(&refusal)))?;
        }
        Ok(carrying)
    }
}

/// What is asked for, with the index of the device that is named.
fn on_device(port: FouPort) -> anyhow::Result<PortRequest> {
    let device = match port.device {
        None => None,
        Some(name) => {
            let index = if_nametoindex(name.as_str());
            Some(index.map_err(|_| anyhow!("fou: unknown device name {name}"))?)
        }
    };
    Ok(PortRequest { device, ..port.request })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<TunnelSpec> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tunnels.batch");
        std::fs::write(&file, text).unwrap();
        let mut config = Config::default();
        config.tunnel.batch.push(file);
        TunnelSpec::read(&config)
    }

    #[test]
    fn tunnel_batch_yields_ports_and_links() {
        let plan = read(
            "ip fou add port 5555 ipproto 4\nip -6 fou add port 6666 gue\n\
             fou add port 7777 gue local 127.0.0.1 dev lo\n\
             ip link add tun1 type ipip remote 10.0.0.2 local 10.0.0.1 encap fou encap-dport 5555\n\
             ip link add gre1 mtu 1400 type gre remote 10.0.0.2\nip link add sit1 type sit mode ip6ip\n",
        )
        .unwrap();
        assert_eq!((plan.ports.len(), plan.links.len()), (3, 3));
        assert_eq!(plan.ports[2].device, Some(1));
        let configs = plan.links.iter().map(|link| &link.config);
        let wanted: Vec<_> =
            super::super::protocols(configs).into_iter().map(|(_, protocol)| protocol.0).collect();
        assert_eq!(wanted, [4, 47, 41]);
    }

    #[test]
    fn every_mistake_has_its_line() {
        let text = "fou add port 5 gue\nfou add port 5 ipproto 4\nlink add t type ipip\nlink add t type gre\n\
                    link del t\nfou add port 6 gue local 10.0.0.1 dev no-such0\nlink add u type vxlan\nfou show\n\
                    fou add port 4500 gue local 10.0.0.1\nlink add uxfrm0 type gre remote 10.0.0.7\n";
        let faults = read(text).unwrap_err().to_string();
        let ends: Vec<_> =
            faults.lines().map(|line| line.split_once("tunnels.batch:").unwrap().1).collect();
        assert_eq!(
            ends,
            [
                "2: Operation already in progress",
                "4: File exists",
                "5: a configuration only adds",
                "6: fou: unknown device name no-such0",
                "7: argument \"vxlan\" is wrong: the type is ipip, sit, gre, ip6tnl or ip6gre",
                "8: a configuration only adds",
                "9: UDP port 4500 is for ESP in UDP ([wire] udp_ports, and 4500 with a control socket)",
                "10: uxfrm0 is the TUN that uxfrm makes ([host] tun)",
            ]
        );
    }
}
