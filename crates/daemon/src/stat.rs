//! The counters' socket: who connects is sent the text of `/proc/net/xfrm_stat`, a zero byte, and a line for each drop reason.
//!
//! Its name is abstract, so each network namespace has its own, it needs no directory and is gone with the process.
//! Only root and the user that runs the gateway are answered (`SO_PEERCRED`).

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::Uid,
};
use uxfrm_engine::DropCounts;

/// The abstract name of the socket.
const NAME: &[u8] = b"uxfrm/stat";

/// A client that does not read is not waited for.
const PATIENCE: Duration = Duration::from_millis(200);

/// The gateway's end.
#[derive(Debug)]
pub(crate) struct StatSocket {
    listener: UnixListener,
}

impl StatSocket {
    /// Opens the socket of this network namespace.
    ///
    /// # Errors
    /// `EADDRINUSE` when another gateway runs in this namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Answers all that wait. A client that may not ask or does not read gets nothing and holds up nobody.
    pub(crate) fn answer(&self, mut counts: impl FnMut() -> DropCounts) {
        while let Ok((client, _)) = self.listener.accept() {
            if let Err(error) = serve(client, &mut counts) {
                tracing::debug!(%error, "a client of the counters went away");
            }
        }
    }
}

impl AsFd for StatSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn serve(mut client: UnixStream, counts: &mut impl FnMut() -> DropCounts) -> io::Result<()> {
    let peer = getsockopt(&client, PeerCredentials)?;
    if peer.uid() != 0 && peer.uid() != Uid::effective().as_raw() {
        return Ok(());
    }
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let counts = counts();
    client.write_all(format!("{}\0{}", counts.xfrm_stat(), counts.reasons()).as_bytes())
}

/// What the counters are listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The 32 lines of `/proc/net/xfrm_stat`.
    Kernel,
    /// One line for each [`DropReason`](uxfrm_engine::DropReason).
    Reasons,
}

/// Asks the gateway of this network namespace for its counters, a line each: name, tab, count.
///
/// # Errors
/// When no gateway runs here, or it does not answer us.
pub fn read(listing: Listing) -> anyhow::Result<String> {
    let address = SocketAddr::from_abstract_name(NAME)?;
    let mut server = UnixStream::connect_addr(&address).context(
        "no uxfrm runs in this network namespace (start one with `uxfrm run CONFIG.toml`)",
    )?;
    let mut text = String::new();
    server.read_to_string(&mut text).context("the gateway went away")?;
    let (kernel, reasons) =
        text.split_once('\0').context("the gateway answers only root and the user that runs it")?;
    Ok(match listing {
        Listing::Kernel => kernel,
        Listing::Reasons => reasons,
    }
    .to_owned())
}
