//! What a loop has, as it passes to another process that takes its place.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use uxfrm_io::Port;
use uxfrm_tunnel::{Ports, Tunnels};

use super::{Change, Interface, Narrow, Route, Source, TunnelLane};
use crate::Error;

/// Copies of all descriptors, and what was learned. Counts and tunnels' numbers are read where they are.
#[derive(Debug, Default)]
pub struct Portrait {
    /// TUNs.
    pub interfaces: Vec<PortrayedInterface>,
    /// Sockets that receive, those without a descriptor left out.
    pub incoming: Vec<(Source, OwnedFd)>,
    /// Those for ICMP errors, in their order.
    pub errors: Vec<OwnedFd>,
    /// The identification of the next packet that is cut.
    pub ident: u32,
}

/// A tunnel's interface.
#[derive(Debug)]
pub struct PortrayedInterface {
    /// The TUN.
    pub tun: OwnedFd,
    /// What it carries packets of, and what the path took at the start.
    pub route: Route,
    /// What it takes for a while.
    pub narrow: Option<Narrow>,
}

/// Identifications that a loop may use up between its portrait and its end: its successor begins behind them, in 16 bits as well
/// as in 32, so that no two packets' fragments are taken for one packet's.
const IDENT_HEADROOM: u32 = 0x8000_8000;

impl TunnelLane {
    /// A loop that has yet to start goes on with another's tunnels.
    ///
    /// # Errors
    /// When a port can't be polled, or there are more than 256.
    pub fn take_over(
        &mut self,
        (tunnels, ports): (Tunnels, Ports),
        interfaces: Vec<(Interface, Option<Narrow>)>,
        ident: u32,
    ) -> Result<(), Error> {
        self.ident = ident.wrapping_add(IDENT_HEADROOM);
        for (interface, narrow) in interfaces {
            self.change(Change::Open(interface))?;
            if let Some((narrow, tunnel_port)) = narrow.zip(self.interfaces.last_mut()) {
                tunnel_port.restore_pmtu(narrow);
            }
        }
        (self.tunnels, self.ports) = (tunnels, ports);
        Ok(())
    }

    pub(super) fn portray(&self) -> io::Result<Portrait> {
        let mut portrait = Portrait { ident: self.ident, ..Portrait::default() };
        for tunnel_port in
            self.interfaces.iter().filter(|tunnel_port| !tunnel_port.interface.counts.is_gone())
        {
            if let Some(tun) = copy(tunnel_port.interface.port.as_ref())? {
                let (route, narrow) = tunnel_port.portray();
                portrait.interfaces.push(PortrayedInterface { tun, route, narrow });
            }
        }
        for receive_socket in &self.incoming {
            let copy = copy(receive_socket.incoming.port.as_ref())?;
            portrait.incoming.extend(copy.map(|socket| (receive_socket.incoming.source, socket)));
        }
        for (port, _) in &self.errors {
            portrait.errors.extend(copy(port.as_ref())?);
        }
        Ok(portrait)
    }
}

fn copy(port: &dyn Port) -> io::Result<Option<OwnedFd>> {
    port.descriptor().map(|descriptor| descriptor.as_fd().try_clone_to_owned()).transpose()
}
