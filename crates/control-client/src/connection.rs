//! The client's end: a connection to the gateway of this network namespace, once it is known to be
//! trustworthy.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _, net::UnixDatagram},
    },
    path::Path,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, setsockopt, socket,
            sockopt::{PeerCredentials, ReceiveTimeout},
        },
        time::{TimeVal, TimeValLike as _},
    },
    unistd::Uid,
};

use uxfrm_control::fallback_socket::DIRECTORY;
use uxfrm_control::{
    greeting::{Dialect, Greeting, GreetingKind, LENGTH, NAME, is_gateway_user},
    socket_trust::{DirectoryOwner, is_owner_of_run_directory, is_trusted},
};
use uxfrm_netlink_wire::SocketOptions;

use crate::{
    datagrams::{self, receive_datagram, send_datagram},
    fallback_socket, stat,
};

/// How long a gateway may take to welcome us.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it may take to go on with an answer: a change that sorts very many policies anew, or
/// waits for a slow disk.
const ANSWER: Duration = Duration::from_secs(60);

/// Refusals come with their texts, and without the request that they are for, which may have keys;
/// what a batch has behind a line that is refused is not carried out.
const OPTIONS: u32 =
    SocketOptions::EXT_ACK.union(SocketOptions::CAP_ACK).union(SocketOptions::CHAINS).bits();

/// Makes sure that a gateway answers us, at `path` or in this network namespace.
///
/// # Errors
/// When none runs there, or it does not answer us.
pub fn ensure_gateway(path: Option<&Path>) -> anyhow::Result<()> {
    connect(path, 0).map(drop)
}

/// Why no connection came about, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(String);

impl Unanswered {
    /// With these words.
    #[must_use]
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

/// What is spoken on a connection that is not about states and policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientDialect {
    /// `NETLINK_GENERIC`: receive ports.
    Generic,
    /// `NETLINK_ROUTE`: tunnels as links.
    Route,
    /// `uxfrm dev`: a `DevCommand` of `uxfrm_offload` as JSON in each datagram, and answers.
    Devices,
    /// `uxfrm reload`: a [`ReloadRequest`](crate::reload::ReloadRequest) as JSON, and answers.
    Reload,
    /// `uxfrm upgrade`: an
    /// [`UpgradeRequest`](crate::upgrade::UpgradeRequest) as JSON, and an answer.
    Upgrade,
}

/// A connection to the gateway at `path` or in this network namespace, on which `NETLINK_XFRM` is
/// spoken. It listens to `groups`, a bit each as in `nl_groups`. A path that begins with `@` is an
/// abstract name. Without groups a gateway that does not go on for a minute is given up (`EAGAIN`);
/// who listens to some waits for ever.
///
/// # Errors
/// [`Unanswered`] when none runs there, or it does not answer us.
pub fn connect(path: Option<&Path>, groups: u32) -> anyhow::Result<OwnedFd> {
    open(path, groups, Dialect::Xfrm as u32, (groups == 0).then_some(ANSWER))
}

/// The same, on which another protocol is spoken. [`disable_timeout`] is for who listens to a
/// device's events.
///
/// # Errors
/// As [`connect`].
pub fn connect_dialect(path: Option<&Path>, spoken: ClientDialect) -> anyhow::Result<OwnedFd> {
    let dialect = match spoken {
        ClientDialect::Generic => Dialect::Generic,
        ClientDialect::Route => Dialect::Route,
        ClientDialect::Devices => Dialect::Devices,
        ClientDialect::Reload => Dialect::Reload,
        ClientDialect::Upgrade => Dialect::Upgrade,
    };
    open(path, 0, dialect as u32, Some(ANSWER))
}

/// Has a connection wait for what comes without a limit.
///
/// # Errors
/// The kernel's.
pub fn disable_timeout(connection: &OwnedFd) -> io::Result<()> {
    Ok(setsockopt(connection, ReceiveTimeout, &TimeVal::seconds(0))?)
}

/// A connection on which the dialect of a number is spoken.
pub(crate) fn open(
    path: Option<&Path>,
    groups: u32,
    dialect: u32,
    patience: Option<Duration>,
) -> anyhow::Result<OwnedFd> {
    let asked = ask(path, groups, dialect, patience);
    let (socket, answer) = asked.map_err(|error| {
        let what = Unanswered(unanswered(path, &error));
        anyhow::Error::new(error).context(what)
    })?;
    let is_welcome = answer.kind == GreetingKind::Welcome;
    let is_unknown = answer.value.cast_signed() == Errno::EPROTONOSUPPORT as i32;
    let refused = || {
        Unanswered::new(if is_unknown {
            "the gateway does not know this request: it is of an earlier release"
        } else {
            "the gateway answers only root and the user that runs it"
        })
    };
    anyhow::ensure!(is_welcome, refused());
    Ok(socket)
}

/// What to say of a gateway that could not be asked.
fn unanswered(path: Option<&Path>, error: &io::Error) -> String {
    match path {
        Some(path) if error.raw_os_error().is_none() => {
            format!("it is no uxfrm to be trusted that answers at {}", path.display())
        }
        Some(path) => format!("no uxfrm answers at {}", path.display()),
        None if error.kind() == io::ErrorKind::WouldBlock => {
            format!(
                "the uxfrm of this network namespace has not answered for {} s",
                PATIENCE.as_secs()
            )
        }
        None if error.kind() == io::ErrorKind::PermissionDenied => {
            "it is no uxfrm that answers in this network namespace".to_owned()
        }
        None if stat::is_there() => "the uxfrm of this network namespace has no control socket here: its configuration says where ([control] socket: -control PATH), or that there is none (enabled)"
            .to_owned(),
        None => "no uxfrm runs in this network namespace (start one with `uxfrm run CONFIG.toml`)"
            .to_owned(),
    }
}

fn ask(
    path: Option<&Path>,
    groups: u32,
    value: u32,
    patience: Option<Duration>,
) -> io::Result<(OwnedFd, Greeting)> {
    let socket = dial(path)?;
    let port = std::process::id();
    let question = Greeting { kind: GreetingKind::Ask, port, groups, options: OPTIONS, value };
    send_datagram(&socket, &question.to_bytes())?;
    let mut bytes = [0; LENGTH];
    let length = receive_datagram(&socket, &mut bytes)?;
    let answer = Greeting::parse(&bytes[..length])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no uxfrm that answers"))?;
    socket.set_read_timeout(patience)?;
    socket.set_write_timeout(patience)?;
    Ok((socket.into(), answer))
}

/// A connection to whoever listens at `path`, or who may be this network namespace's gateway: at
/// the file that stands in for its name, or else at the name itself.
fn dial(path: Option<&Path>) -> io::Result<UnixDatagram> {
    match path.map(Path::as_os_str).map(OsStr::as_bytes) {
        Some([b'@', name @ ..]) => dial_trusted(&UnixAddr::new_abstract(name)?),
        Some(path) => dial_believed(path),
        None => {
            let elsewhere =
                fallback_socket::find(NAME).map(|file| UnixAddr::new(&file)).transpose()?;
            elsewhere
                .and_then(|address| dial_trusted(&address).ok())
                .map_or_else(|| dial_trusted(&UnixAddr::new_abstract(NAME)?), Ok)
        }
    }
}

fn dial_trusted(address: &UnixAddr) -> io::Result<UnixDatagram> {
    let socket = dial_address(address)?;
    check_listener(&socket)?;
    Ok(socket)
}

/// At a path others than root may be believed, where nobody else could have put a socket.
fn dial_believed(path: &[u8]) -> io::Result<UnixDatagram> {
    let socket = dial_address(&UnixAddr::new(path)?)?;
    let listener = getsockopt(&socket, PeerCredentials)?.uid();
    let path = std::path::absolute(OsStr::from_bytes(path))?;
    if is_trusted(listener, Uid::effective().as_raw(), path.as_os_str().as_bytes(), look) {
        return Ok(socket);
    }
    let who = format!(
        "user {listener} listens there, who is neither root nor you, and others could have put a socket there as well; a gateway of \
         another user has [control] socket in a directory that only that user and root may write to, as are all above it"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, who))
}

fn look(directory: &[u8]) -> Option<DirectoryOwner> {
    let about = fs::metadata(OsStr::from_bytes(directory)).ok()?;
    Some(DirectoryOwner { owner: about.uid(), mode: about.mode() })
}

fn dial_address(address: &UnixAddr) -> io::Result<UnixDatagram> {
    let socket: OwnedFd =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    // The standard library's datagram sockets set time limits on any socket.
    let socket = UnixDatagram::from(socket);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    datagrams::connect(&socket, address)?;
    Ok(socket)
}

/// Makes sure that a gateway listens at the other end, and not somebody who only has its name.
///
/// # Errors
/// `PermissionDenied`, and who has it.
pub fn check_listener(socket: &impl AsFd) -> io::Result<()> {
    let listener = getsockopt(socket, PeerCredentials)?.uid();
    if is_gateway_user(listener, Uid::effective().as_raw())
        || is_owner_of_run_directory(listener, look)
    {
        return Ok(());
    }
    let who = format!(
        "user {listener}, who is neither root nor you, has its name; a gateway of another user has {DIRECTORY}, which root gives it \
         (RuntimeDirectory=uxfrm in its unit)"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, who))
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    #[test]
    fn a_gateway_that_is_slow_is_not_said_to_be_absent() {
        let says = |errno| unanswered(None, &io::Error::from_raw_os_error(errno));
        assert!(says(libc::EAGAIN).contains("has not answered for 5 s"), "{}", says(libc::EAGAIN));
        assert!(!says(libc::ECONNREFUSED).contains("has not answered"));
    }
}
