//! The state of a tunnel loop, for a successor process.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use uxfrm_io::Port;
use uxfrm_tunnel::{DecapPorts, Tunnels};

use super::{LearnedPmtu, ReceiveSource, TunnelChange, TunnelInterface, TunnelLoop, TunnelRoute};
use crate::Error;

/// Copies of all descriptors, and the learned state. Counters are read elsewhere.
#[derive(Debug, Default)]
pub struct TunnelLoopExport {
    /// TUNs.
    pub interfaces: Vec<ExportedInterface>,
    /// Receiving sockets; those without a descriptor are left out.
    pub incoming: Vec<(ReceiveSource, OwnedFd)>,
    /// Sockets for ICMP errors, in order.
    pub errors: Vec<OwnedFd>,
    /// Identification of the next fragmented packet.
    pub ident: u32,
}

/// A tunnel's interface.
#[derive(Debug)]
pub struct ExportedInterface {
    /// The TUN.
    pub tun: OwnedFd,
    /// Its tunnel, and the path MTU at the start.
    pub route: TunnelRoute,
    /// The path MTU learned since, if it is smaller.
    pub narrow: Option<LearnedPmtu>,
}

/// Identifications that the loop may use between export and end: its successor starts behind them,
/// in 16 bits and in 32, so that no two packets share one.
const IDENT_HEADROOM: u32 = 0x8000_8000;

impl TunnelLoop {
    /// Continues with another loop's tunnels, before the first turn.
    ///
    /// # Errors
    /// When a port can't be polled, or there are more than 256.
    pub fn take_over(
        &mut self,
        (tunnels, ports): (Tunnels, DecapPorts),
        interfaces: Vec<(TunnelInterface, Option<LearnedPmtu>)>,
        ident: u32,
    ) -> Result<(), Error> {
        self.ident = ident.wrapping_add(IDENT_HEADROOM);
        for (interface, narrow) in interfaces {
            self.change(TunnelChange::Open(interface))?;
            if let Some((narrow, tunnel_port)) = narrow.zip(self.interfaces.last_mut()) {
                tunnel_port.restore_pmtu(narrow);
            }
        }
        (self.tunnels, self.ports) = (tunnels, ports);
        Ok(())
    }

    pub(super) fn portray(&self) -> io::Result<TunnelLoopExport> {
        let mut portrait = TunnelLoopExport { ident: self.ident, ..TunnelLoopExport::default() };
        for tunnel_port in
            self.interfaces.iter().filter(|tunnel_port| !tunnel_port.interface.counts.is_gone())
        {
            if let Some(tun) = copy(tunnel_port.interface.port.as_ref())? {
                let (route, narrow) = tunnel_port.portray();
                portrait.interfaces.push(ExportedInterface { tun, route, narrow });
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
