//! The client's end of the status socket: `uxfrm stat`, `uxfrm status`.

use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    time::Duration,
};

use anyhow::Context as _;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use uxfrm_control::STAT_NAME;
use uxfrm_status::{
    counters::CounterReport,
    drops::{DropQuery, DropReport, DropScope, DropTallyQuery, DropTallyReport},
    explanation::{FlowExplanation, FlowQuery},
    gateway::{GatewayStatus, StatusQuery},
    protocol::{RequestRefusal, StatusAnswer, StatusRequest},
};

use crate::{connection::check_listener, fallback_socket};

/// How long a gateway may take to answer, as on its control socket.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take to look through all of its states, beside workers that keep all cores busy.
const SURVEY: Duration = Duration::from_secs(60);

/// How often it is asked.
const ATTEMPTS: usize = 2;

/// Asks the gateway of this network namespace for its counters.
///
/// # Errors
/// When no gateway runs here, or it does not answer us.
pub fn read_counters() -> anyhow::Result<CounterReport> {
    let answer = ask(&StatusRequest::Counters, ANSWER)?;
    if let StatusAnswer::Counters(report) = answer { Ok(report) } else { Err(other(&answer)) }
}

/// Asks it what a packet would meet.
///
/// # Errors
/// As [`read_counters`].
pub fn explain_flow(query: &FlowQuery) -> anyhow::Result<FlowExplanation> {
    let answer = ask(&StatusRequest::Why(query.clone()), SURVEY)?;
    if let StatusAnswer::Why(explanation) = answer { Ok(*explanation) } else { Err(other(&answer)) }
}

/// Asks it for its tunnels.
///
/// # Errors
/// As [`read_counters`].
pub fn read_status(query: &StatusQuery) -> anyhow::Result<GatewayStatus> {
    let answer = ask(&StatusRequest::Status(query.clone()), SURVEY)?;
    if let StatusAnswer::Status(status) = answer { Ok(*status) } else { Err(other(&answer)) }
}

/// Asks it for packets that it dropped.
///
/// # Errors
/// As [`read_counters`]; a reason that it does not know.
pub fn read_drops(query: &DropQuery) -> anyhow::Result<DropReport> {
    let answer = ask(&StatusRequest::Drops(query.clone()), ANSWER)?;
    if let StatusAnswer::Drops(report) = answer { Ok(report) } else { Err(other(&answer)) }
}

/// Asks it whose packets it dropped.
///
/// # Errors
/// As [`read_counters`].
pub fn read_drop_tallies(by: DropScope) -> anyhow::Result<DropTallyReport> {
    let answer = ask(&StatusRequest::DropTallies(DropTallyQuery { by }), ANSWER)?;
    if let StatusAnswer::DropTallies(report) = answer { Ok(report) } else { Err(other(&answer)) }
}

/// Asks it anything. One that closes the connection without an answer is asked once more: it may
/// have been replaced by another.
fn ask(request: &StatusRequest, patience: Duration) -> anyhow::Result<StatusAnswer> {
    for _ in 0..ATTEMPTS {
        let server = dial()?;
        server.set_read_timeout(Some(patience))?;
        let line = answered(server, request, patience)?;
        if !line.is_empty() {
            return StatusAnswer::from_line(&line)
                .map_err(|error| of_another_release(&line, error));
        }
    }
    Err(unwelcome())
}

/// What to say of a gateway that lets us go without a word.
pub(crate) fn unwelcome() -> anyhow::Error {
    anyhow::anyhow!(
        "the gateway answers only root, the user that runs it, and the members of `[status] group`"
    )
}

/// All that a gateway says to a request; nothing where it closes the connection.
fn answered(
    mut server: UnixStream,
    request: &StatusRequest,
    patience: Duration,
) -> anyhow::Result<Vec<u8>> {
    let mut line = Vec::new();
    // One that closes the connection at once is heard all the same.
    let _closed = server.write_all(&request.to_line());
    let _closed = server.shutdown(Shutdown::Write);
    match server.read_to_end(&mut line) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
            Err(unanswered(&error, patience))
        }
        Ok(_) | Err(_) => Ok(line),
    }
}

pub(crate) fn of_another_release(
    line: &[u8],
    error: uxfrm_status::protocol::Error,
) -> anyhow::Error {
    if line.starts_with(b"Xfrm") {
        return anyhow::anyhow!(
            "the gateway that runs is of an older release: `uxfrm upgrade` replaces it by this one"
        );
    }
    error.into()
}

fn refused(refusal: &RequestRefusal) -> anyhow::Error {
    let RequestRefusal { message, versions, requests } = refusal;
    let known = format!("it speaks version {versions:?} and knows {}", requests.join(", "));
    anyhow::anyhow!("the gateway refuses to answer: {message} ({known})")
}

/// What to say of an answer to another question, or none.
pub(crate) fn other(answer: &StatusAnswer) -> anyhow::Error {
    match answer {
        StatusAnswer::Refusal(refusal) => refused(refusal),
        StatusAnswer::Counters(_)
        | StatusAnswer::Status(_)
        | StatusAnswer::Why(_)
        | StatusAnswer::Capture(_)
        | StatusAnswer::Trace(_)
        | StatusAnswer::Drops(_)
        | StatusAnswer::DropTallies(_) => {
            anyhow::anyhow!("the gateway answers another question")
        }
    }
}

/// What to say of a gateway that was there and has not answered.
pub(crate) fn unanswered(error: &io::Error, patience: Duration) -> anyhow::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return anyhow::anyhow!(
            "the uxfrm of this network namespace has not answered for {} s: it is stopped or too busy",
            patience.as_secs()
        );
    }
    anyhow::anyhow!("the gateway went away: {error}")
}

/// Whether a gateway runs in this network namespace, whatever its control socket.
pub(crate) fn is_there() -> bool {
    dial().is_ok()
}
/// A connection to this network namespace's gateway, and not to somebody who only has its name.
pub(crate) fn dial() -> anyhow::Result<UnixStream> {
    let elsewhere = fallback_socket::find(STAT_NAME).and_then(|file| UnixAddr::new(&file).ok());
    let elsewhere = elsewhere.and_then(|address| dial_address(&address).ok());
    if let Some(server) = elsewhere.filter(|server| check_listener(server).is_ok()) {
        return Ok(server);
    }
    let server = dial_address(&UnixAddr::new_abstract(STAT_NAME)?).map_err(|error| {
        if error.kind() == io::ErrorKind::WouldBlock {
            return unanswered(&error, ANSWER);
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
        let text = unanswered(&io::ErrorKind::WouldBlock.into(), ANSWER).to_string();
        assert!(text.contains("has not answered for 5 s"), "{text}");
        let name = b"uxfrm-test/silent";
        let _listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let address = UnixAddr::new_abstract(name).unwrap();
        let server = dial_address(&address).unwrap();
        assert_eq!(server.read_timeout().unwrap(), Some(ANSWER), "and no client waits for ever");
    }
}
