//! The client's end of the status socket: `uxfrm stat`, `uxfrm status`, `uxfrm web`.

use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    time::Duration,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};

use uxfrm_control::STAT_NAME;
use uxfrm_status::{
    counters::CounterReport,
    drops::{DropQuery, DropReport, DropScope, DropTallyQuery, DropTallyReport},
    explanation::{FlowExplanation, FlowQuery},
    gateway::{GatewayStatus, StatusQuery},
    protocol::{RequestRefusal, StatusAnswer, StatusRequest},
    workers::WorkerReport,
};

use crate::{connection::check_listener, datagrams, fallback_socket};

/// How long a gateway may take to answer, as on its control socket.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take to look through all of its states, beside workers that keep all cores busy.
const SURVEY: Duration = Duration::from_secs(60);

/// How often it is asked.
const ATTEMPTS: usize = 2;

/// Why the gateway of this network namespace has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error(
        "no uxfrm runs in this network namespace (start one with `uxfrm run CONFIG.toml`): {0}"
    )]
    Absent(io::Error),
    /// Who listens can't be told, or is not the user that may.
    #[error("it is no uxfrm that answers in this network namespace: {0}")]
    Stranger(io::Error),
    /// It closes the connection without a word.
    #[error(
        "the gateway answers only root, the user that runs it, and the members of `[status] group`"
    )]
    NotAllowed,
    /// It has no place for another client.
    #[error("the gateway has no place for another client: {0}: ask again")]
    TurnedAway(String),
    /// It has not answered for so long.
    #[error(
        "the uxfrm of this network namespace has not answered for {} s: it is stopped or too busy",
        .0.as_secs()
    )]
    Silent(Duration),
    /// It ended while it was asked.
    #[error("the gateway went away: {0}")]
    WentAway(io::Error),
    /// It has no documents yet.
    #[error(
        "the gateway that runs is of an older release: `uxfrm upgrade` replaces it by this one"
    )]
    OlderRelease,
    /// Its answer can't be read.
    #[error(transparent)]
    Protocol(#[from] uxfrm_status::protocol::Error),
    /// It refuses the request.
    #[error(
        "the gateway refuses to answer: {} (it speaks version {:?} and knows {})",
        .0.message, .0.versions, .0.requests.join(", ")
    )]
    Refused(RequestRefusal),
    /// It answers another question.
    #[error("the gateway answers another question")]
    AnotherQuestion,
    /// The kernel's, of our own socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Asks the gateway of this network namespace for its counters.
///
/// # Errors
/// When no gateway runs here, or it does not answer us.
pub fn read_counters() -> Result<CounterReport, Error> {
    let answer = ask(&StatusRequest::Counters)?;
    if let StatusAnswer::Counters(told) = answer { Ok(told) } else { Err(Error::AnotherQuestion) }
}

/// Asks it what a packet would meet.
///
/// # Errors
/// As [`read_counters`].
pub fn explain_flow(query: &FlowQuery) -> Result<FlowExplanation, Error> {
    let answer = ask(&StatusRequest::Why(query.clone()))?;
    if let StatusAnswer::Why(told) = answer { Ok(*told) } else { Err(Error::AnotherQuestion) }
}

/// Asks it for its tunnels.
///
/// # Errors
/// As [`read_counters`].
pub fn read_status(query: &StatusQuery) -> Result<GatewayStatus, Error> {
    let answer = ask(&StatusRequest::Status(query.clone()))?;
    if let StatusAnswer::Status(status) = answer {
        Ok(*status)
    } else {
        Err(Error::AnotherQuestion)
    }
}

/// Asks it for packets that it dropped.
///
/// # Errors
/// As [`read_counters`]; a reason that it does not know.
pub fn read_drops(query: &DropQuery) -> Result<DropReport, Error> {
    let answer = ask(&StatusRequest::Drops(query.clone()))?;
    if let StatusAnswer::Drops(report) = answer { Ok(report) } else { Err(Error::AnotherQuestion) }
}

/// Asks it whose packets it dropped.
///
/// # Errors
/// As [`read_counters`].
pub fn read_drop_tallies(by: DropScope) -> Result<DropTallyReport, Error> {
    let answer = ask(&StatusRequest::DropTallies(DropTallyQuery { by }))?;
    if let StatusAnswer::DropTallies(told) = answer {
        Ok(told)
    } else {
        Err(Error::AnotherQuestion)
    }
}

/// Asks it what its workers, ports and devices do.
///
/// # Errors
/// As [`read_counters`].
pub fn read_workers() -> Result<WorkerReport, Error> {
    let answer = ask(&StatusRequest::Workers)?;
    if let StatusAnswer::Workers(report) = answer {
        Ok(report)
    } else {
        Err(Error::AnotherQuestion)
    }
}

/// Asks it anything; the answer is no refusal. One that closes the connection without an answer is
/// asked once more: it may have been replaced by another. So is one that has no place.
///
/// # Errors
/// As [`read_counters`]; [`Error::Refused`].
pub fn ask(request: &StatusRequest) -> Result<StatusAnswer, Error> {
    let patience = match request {
        StatusRequest::Counters
        | StatusRequest::Drops(_)
        | StatusRequest::DropTallies(_)
        | StatusRequest::Workers
        | StatusRequest::Capture(_)
        | StatusRequest::Trace(_) => ANSWER,
        StatusRequest::Status(_) | StatusRequest::Why(_) => SURVEY,
    };
    let mut told = Err(Error::NotAllowed);
    for _ in 0..ATTEMPTS {
        let server = dial()?;
        server.set_read_timeout(Some(patience))?;
        let line = answered(server, request, patience)?;
        if line.is_empty() {
            continue;
        }
        told = read(&line);
        if !matches!(told, Err(Error::TurnedAway(_))) {
            break;
        }
    }
    told
}

/// Reads what a gateway says; a refusal is an error.
pub(crate) fn read(line: &[u8]) -> Result<StatusAnswer, Error> {
    match StatusAnswer::from_line(line) {
        Ok(StatusAnswer::Refusal(refusal)) if refusal.is_for_want_of_place() => {
            Err(Error::TurnedAway(refusal.message))
        }
        Ok(StatusAnswer::Refusal(refusal)) => Err(Error::Refused(refusal)),
        Ok(answer) => Ok(answer),
        Err(_) if line.starts_with(b"Xfrm") => Err(Error::OlderRelease),
        Err(error) => Err(error.into()),
    }
}

/// All that a gateway says to a request; nothing where it closes the connection.
fn answered(
    mut server: UnixStream,
    request: &StatusRequest,
    patience: Duration,
) -> Result<Vec<u8>, Error> {
    let mut line = Vec::new();
    // One that closes the connection at once is heard all the same.
    let _closed = server.write_all(&request.to_line());
    let _closed = server.shutdown(Shutdown::Write);
    match server.read_to_end(&mut line) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
            Err(unanswered(error, patience))
        }
        Ok(_) | Err(_) => Ok(line),
    }
}

/// What to say of a gateway that was there and has not answered.
pub(crate) fn unanswered(error: io::Error, patience: Duration) -> Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return Error::Silent(patience);
    }
    Error::WentAway(error)
}

/// Whether a gateway runs in this network namespace, whatever its control socket.
pub(crate) fn is_there() -> bool {
    dial().is_ok()
}

/// A connection to this network namespace's gateway, and not to somebody who only has its name.
pub(crate) fn dial() -> Result<UnixStream, Error> {
    let elsewhere = fallback_socket::find(STAT_NAME).and_then(|file| UnixAddr::new(&file).ok());
    let elsewhere = elsewhere.and_then(|address| dial_address(&address).ok());
    if let Some(server) = elsewhere.filter(|server| check_listener(server).is_ok()) {
        return Ok(server);
    }
    let name = UnixAddr::new_abstract(STAT_NAME).map_err(io::Error::from)?;
    let server = dial_address(&name).map_err(|error| {
        if error.kind() == io::ErrorKind::WouldBlock {
            return Error::Silent(ANSWER);
        }
        Error::Absent(error)
    })?;
    check_listener(&server).map_err(Error::Stranger)?;
    Ok(server)
}

/// A connection that waits no longer than [`ANSWER`] for anything, its place in the listener's
/// queue included.
fn dial_address(address: &UnixAddr) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let server = UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, flags, None)?);
    server.set_read_timeout(Some(ANSWER))?;
    server.set_write_timeout(Some(ANSWER))?;
    datagrams::connect(&server, address)?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use std::os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    };

    use super::*;

    /// And not as one who may not ask, or asks wrongly.
    #[test]
    fn client_without_a_place_is_told_so() {
        let refusal = RequestRefusal::for_want_of_place("all are in use");
        let error = read(&StatusAnswer::Refusal(refusal).to_line()).unwrap_err();
        let text = "the gateway has no place for another client: all are in use: ask again";
        assert_eq!(error.to_string(), text);
        let refusal = RequestRefusal::new("no reason x");
        let error = read(&StatusAnswer::Refusal(refusal).to_line()).unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
    }

    #[test]
    fn stat_of_stopped_gateway_reports_timeout() {
        let text = unanswered(io::ErrorKind::WouldBlock.into(), ANSWER).to_string();
        assert!(text.contains("has not answered for 5 s"), "{text}");
        let name = b"uxfrm-test/silent";
        let _listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let address = UnixAddr::new_abstract(name).unwrap();
        let server = dial_address(&address).unwrap();
        assert_eq!(server.read_timeout().unwrap(), Some(ANSWER), "and no client waits for ever");
    }
}
