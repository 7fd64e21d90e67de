//! Tunnels and receive ports that files changed since they were last read.

use uxfrm_link::{Admin, TunnelLink};
use uxfrm_netlink::NetlinkError;
use uxfrm_tunnel::PortRequest;

use crate::tunnels::{TunnelService, TunnelSpec, error::words};

/// One thing to do.
#[derive(Debug)]
pub(super) enum Step {
    Listen(PortRequest),
    Open(TunnelLink),
    /// The interface stays.
    Change(TunnelLink),
    /// It is of another kind, or its interface has to be another.
    Replace(TunnelLink),
    Close(String),
    Leave(PortRequest),
}

/// In the order in which they leave no gap.
pub(super) fn find(before: &TunnelSpec, wanted: &TunnelSpec) -> Vec<Step> {
    let named = |name: &str| before.links().iter().find(|link| link.name == name);
    let keeps = |link: &TunnelLink| wanted.links().iter().any(|other| other.name == link.name);
    let new = |port: &&PortRequest| !before.ports().contains(port);
    let mut steps: Vec<_> = wanted.ports().iter().filter(new).cloned().map(Step::Listen).collect();
    for link in wanted.links() {
        steps.extend(match named(&link.name) {
            None => Some(Step::Open(link.clone())),
            Some(now) if now == link => None,
            Some(now) if now.config.kind == link.config.kind => Some(Step::Change(link.clone())),
            Some(_) => Some(Step::Replace(link.clone())),
        });
    }
    let gone = before.links().iter().filter(|link| !keeps(link));
    steps.extend(gone.map(|link| Step::Close(link.name.clone())));
    let left = before.ports().iter().filter(|port| !wanted.ports().contains(port));
    steps.extend(left.cloned().map(Step::Leave));
    steps
}

impl Step {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Listen(port) => format!("+ receive port {}", port.port),
            Self::Open(link) => format!("+ tunnel {}", link.name),
            Self::Change(link) => format!("~ tunnel {}", link.name),
            Self::Replace(link) => format!("~ tunnel {} (begins anew)", link.name),
            Self::Close(name) => format!("- tunnel {name}"),
            Self::Leave(port) => format!("- receive port {}", port.port),
        }
    }

    /// # Errors
    /// As a line.
    pub(super) fn carry_out(self, carrying: &mut TunnelService) -> Result<(), String> {
        let line = self.line();
        let done = match self {
            Self::Listen(port) => carrying.add_port(&port),
            Self::Open(link) => carrying.add_link(&up(link)),
            Self::Change(link) => carrying.change_link(&link),
            Self::Replace(link) => {
                carrying.delete_link(&link.name).and_then(|()| carrying.add_link(&up(link)))
            }
            Self::Close(name) => unless_gone(carrying.delete_link(&name)),
            Self::Leave(port) => unless_gone(carrying.delete_port(&port)),
        };
        done.map_err(|refusal| format!("{line}: {}", words(&refusal)))
    }
}

/// As at a start: up, unless a line says `down`.
fn up(link: TunnelLink) -> TunnelLink {
    TunnelLink { admin: link.admin.or(Some(Admin::Up)), ..link }
}

/// A client may have deleted it since.
fn unless_gone(done: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    const GONE: [i32; 2] = [nix::libc::ENODEV, nix::libc::EINVAL];
    done.or_else(|refusal| if GONE.contains(&refusal.errno) { Ok(()) } else { Err(refusal) })
}
