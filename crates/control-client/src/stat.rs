//! The client's end of the statistics socket: `uxfrm stat`.

use std::{
    io::{self, Read as _},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    time::Duration,
};

use anyhow::Context as _;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use uxfrm_control::STAT_NAME;

use crate::{connection::check_listener, fallback_socket};

/// How long a gateway may take to answer, as on its control socket.
const ANSWER: Duration = Duration::from_secs(5);

/// What the counters are listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The 32 lines of `/proc/net/xfrm_stat`.
    Kernel,
    /// One line for each `DropReason`.
    Reasons,
    /// A table: what each worker's flow caches hold and did.
    Caches,
}

/// Counters, and what is wrong with the store of sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// A line each: name, tab, count.
    pub counters: String,
    /// A line each; none where nothing is.
    pub notices: String,
}

/// Asks the gateway of this network namespace for its counters.
///
/// # Errors
/// When no gateway runs here, or it does not answer us.
pub fn read(listing: Listing) -> anyhow::Result<Report> {
    let mut server = dial()?;
    let mut text = String::new();
    server.read_to_string(&mut text).map_err(|error| unanswered(&error))?;
    let mut parts = text.split('\0');
    let (Some(kernel), Some(reasons), Some(caches)) = (parts.next(), parts.next(), parts.next())
    else {
        anyhow::bail!("the gateway answers only root and the user that runs it");
    };
    let counters = match listing {
        Listing::Kernel => kernel,
        Listing::Reasons => reasons,
        Listing::Caches => caches,
    };
    // A gateway of an older release says nothing of it.
    let notices = parts.next().unwrap_or_default();
    Ok(Report { counters: counters.to_owned(), notices: notices.to_owned() })
}

/// What to say of a gateway that was there and has not answered.
fn unanswered(error: &io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return anyhow::anyhow!(
            "the uxfrm of this network namespace has not answered for {} s: it is stopped or too busy",
            ANSWER.as_secs()
        );
    }
    anyhow::anyhow!("the gateway went away: {error}")
}

/// Whether a gateway runs in this network namespace, whatever its control socket.
pub(crate) fn is_there() -> bool {
    dial().is_ok()
}

/// A connection to this network namespace's gateway, and not to somebody who only has its name.
fn dial() -> anyhow::Result<UnixStream> {
    let elsewhere = fallback_socket::find(STAT_NAME).and_then(|file| UnixAddr::new(&file).ok());
    let elsewhere = elsewhere.and_then(|address| dial_address(&address).ok());
    if let Some(server) = elsewhere.filter(|server| check_listener(server).is_ok()) {
        return Ok(server);
    }
    let server = dial_address(&UnixAddr::new_abstract(STAT_NAME)?).map_err(|error| {
        if error.kind() == io::ErrorKind::WouldBlock {
            return unanswered(&error);
        }
        anyhow::Error::new(error).context(
            "no uxfrm runs in this network namespace (start one with `uxfrm run CONFIG.toml`)",
        )
    })?;
    check_listener(&server).context("it is no uxfrm that answers in this network namespace")?;
    Ok(server)
}

/// A connection that waits no longer than [`ANSWER`] for anything, its place in the listener's
/// queue included.
fn dial_address(address: &UnixAddr) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let server = UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, flags, None)?);
    server.set_read_timeout(Some(ANSWER))?;
    server.set_write_timeout(Some(ANSWER))?;
    connect(server.as_raw_fd(), address)?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use std::os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    };

    use super::*;

    #[test]
    fn stat_of_stopped_gateway_reports_timeout() {
        let text = unanswered(&io::ErrorKind::WouldBlock.into()).to_string();
        assert!(text.contains("has not answered for 5 s"), "{text}");
        let name = b"uxfrm-test/silent";
        let _listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let address = UnixAddr::new_abstract(name).unwrap();
        let server = dial_address(&address).unwrap();
        assert_eq!(server.read_timeout().unwrap(), Some(ANSWER), "and no client waits for ever");
    }
}
