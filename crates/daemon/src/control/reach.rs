//! The client's end: whether a gateway is there and lets us use it.

use std::{
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixDatagram,
    },
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};

use super::greeting::{Greeting, Kind, LENGTH, NAME};

/// How long a gateway may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes sure that a gateway answers us, at `path` or in this network namespace.
///
/// # Errors
/// When none runs there, or it does not answer us.
pub fn reach(path: Option<&Path>) -> anyhow::Result<()> {
    let answer = ask(path).with_context(|| match path {
        Some(path) => format!("no uxfrm answers at {}", path.display()),
        None => "no uxfrm runs in this network namespace (start one with `uxfrm run CONFIG.toml`)"
            .to_owned(),
    })?;
    anyhow::ensure!(
        answer.kind == Kind::Welcome,
        "the gateway answers only root and the user that runs it"
    );
    Ok(())
}

fn ask(path: Option<&Path>) -> io::Result<Greeting> {
    let address = match path {
        Some(path) => UnixAddr::new(path)?,
        None => UnixAddr::new_abstract(NAME)?,
    };
    let socket: OwnedFd =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    // The standard library's datagram sockets set time limits on any socket.
    let socket = UnixDatagram::from(socket);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    connect(socket.as_raw_fd(), &address)?;
    let port = std::process::id();
    let question = Greeting { kind: Kind::Ask, port, groups: 0, options: 0, value: 0 };
    send(socket.as_raw_fd(), &question.to_bytes(), MsgFlags::MSG_NOSIGNAL)?;
    let mut bytes = [0; LENGTH];
    let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
    Greeting::parse(&bytes[..length])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no uxfrm that answers"))
}
