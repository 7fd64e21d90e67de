//! Tunnels and receive ports as batch files of `ip fou` and `ip link` lines describe them.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, anyhow, bail};
use nix::net::if_::if_nametoindex;
use uxfrm_link::{Admin, Command, Fou, FouPort, Link, TunnelLink};
use uxfrm_tunnel::{Port, PortRequest, Ports, Tunnel, Tunnels};

use super::{Carrying, fault};

/// What batch files add; it can be, all together.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    ports: Vec<PortRequest>,
    links: Vec<TunnelLink>,
}

/// What a plan's lines are checked against: those before them.
#[derive(Debug, Default)]
struct Known {
    ports: Ports,
    tunnels: Tunnels,
}

impl Plan {
    /// Reads batch files, in order.
    ///
    /// # Errors
    /// All that is wrong with them, a line each.
    pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Self> {
        let (mut plan, mut known, mut faults) = (Self::default(), Known::default(), Vec::new());
        for file in files {
            let text = fs::read_to_string(file)
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

    fn take(&mut self, command: Command, known: &mut Known) -> anyhow::Result<()> {
        match command {
            Command::Fou(Fou::Add(port)) => {
                let request = on_device(port)?;
                known.ports.add(Port::of(&request)?)?;
                self.ports.push(request);
            }
            Command::Link(Link::Add(link)) => {
                known.tunnels.add(Tunnel::new(&link.name, link.config.clone())?)?;
                self.links.push(link);
            }
            Command::Fou(Fou::Delete(_) | Fou::Show)
            | Command::Link(Link::Change(_) | Link::Delete { .. } | Link::Show(_)) => {
                bail!("a configuration only adds");
            }
        }
        Ok(())
    }

    /// Opens TUNs, which are up unless a line says `down`, and sockets.
    ///
    /// # Errors
    /// The kernel's; what was to be done is in the text.
    pub(crate) fn start(self) -> anyhow::Result<Carrying> {
        let mut carrying = Carrying::default();
        for request in &self.ports {
            carrying.add_port(request).map_err(|refusal| {
                anyhow!("receive port {}: {}", request.port, fault::words(&refusal))
            })?;
        }
        for mut link in self.links {
            link.admin = link.admin.or(Some(Admin::Up));
            carrying
                .add_link(&link)
                .map_err(|refusal| anyhow!("tunnel {}: {}", link.name, fault::words(&refusal)))?;
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

    fn read(text: &str) -> anyhow::Result<Plan> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tunnels.batch");
        fs::write(&file, text).unwrap();
        Plan::read(&[file])
    }

    #[test]
    fn a_batch_file_is_ports_and_tunnels() {
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
                    link del t\nfou add port 6 gue local 10.0.0.1 dev no-such0\nlink add u type vxlan\nfou show\n";
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
            ]
        );
    }
}
