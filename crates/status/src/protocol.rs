//! The status socket's protocol: one request a line, one answer a line, both JSON.
//!
//! ```text
//! → {"version":1,"ask":"counters"}
//! ← {"version":1,"answer":"counters","at":1764424800,…}
//! → {"version":1,"ask":"status","limit":10}
//! ← {"version":1,"answer":"status",…}
//! → {"version":1,"ask":"weather"}
//! ← {"version":1,"answer":"refusal","message":"…","versions":[1],"requests":["counters",…]}
//! ```
//!
//! Requests on one connection are answered in order. A client that has sent its last one may close
//! its half; the gateway closes the connection when all are answered. A refused request ends
//! nothing: the next one may be right.
//!
//! A new request is a variant of [`StatusRequest`] with its answer in [`StatusAnswer`], its name in
//! [`REQUESTS`], an arm in `daemon/src/status/answer.rs`, which has the published snapshot, the
//! workers' counters and the control thread's latest post, and a function in
//! `control-client/src/stat.rs`. What only the control thread knows is a field of the daemon's
//! `Post`. The version rises where a client of before would misread an answer; new fields and new
//! requests do not raise it.

use serde::{Deserialize, Serialize};

use crate::{
    capture::{CaptureQuery, CaptureReport},
    counters::CounterReport,
    drops::{DropQuery, DropReport, DropTallyQuery, DropTallyReport},
    explanation::{FlowExplanation, FlowQuery},
    gateway::{GatewayStatus, StatusQuery},
    trace::{TraceQuery, TraceReport},
    workers::WorkerReport,
};

/// The version that is spoken.
pub const VERSION: u32 = 1;

/// The longest request, in bytes, with its end of line.
pub const LONGEST_REQUEST: usize = 64 << 10;

/// Names of all requests.
pub const REQUESTS: [&str; 8] =
    ["counters", "status", "drops", "drop-tallies", "why", "workers", "capture", "trace"];

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum StatusRequest {
    /// What was dropped, by the kernel's names and by reason; flow caches.
    Counters,
    /// The gateway and its tunnels.
    Status(StatusQuery),
    /// Dropped packets.
    Drops(DropQuery),
    /// How many packets of each state, policy or device were dropped.
    DropTallies(DropTallyQuery),
    /// What a packet would meet.
    Why(FlowQuery),
    /// Workers, their ports, offload devices.
    Workers,
    /// Captured packets.
    Capture(CaptureQuery),
    /// Traced packets.
    Trace(TraceQuery),
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum StatusAnswer {
    /// To [`StatusRequest::Counters`].
    Counters(CounterReport),
    /// To [`StatusRequest::Status`].
    Status(Box<GatewayStatus>),
    /// To [`StatusRequest::Drops`].
    Drops(DropReport),
    /// To [`StatusRequest::DropTallies`].
    DropTallies(DropTallyReport),
    /// To [`StatusRequest::Why`].
    Why(Box<FlowExplanation>),
    /// To [`StatusRequest::Workers`].
    Workers(WorkerReport),
    /// To [`StatusRequest::Capture`].
    Capture(CaptureReport),
    /// To [`StatusRequest::Trace`].
    Trace(TraceReport),
    /// To what is no request.
    Refusal(RequestRefusal),
}

/// Why a request has no other answer, and what would have one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRefusal {
    /// What is wrong.
    pub message: String,
    /// Versions that the gateway speaks; none where it has no place for its client.
    pub versions: Vec<u32>,
    /// Requests that it knows; none where it has no place for its client.
    pub requests: Vec<String>,
}

/// A request or an answer with its version.
#[derive(Debug, Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

/// Why a line is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The gateway speaks another version, or none.
    #[error("the gateway does not speak version {VERSION} of the status protocol")]
    Version,
    /// The line is no JSON, or of another form.
    #[error("the gateway's answer can't be read: {0}")]
    Form(#[from] serde_json::Error),
}

impl RequestRefusal {
    /// A refusal with this message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        let requests = REQUESTS.map(str::to_owned).to_vec();
        Self { message: message.into(), versions: vec![VERSION], requests }
    }

    /// One of a client for which there is no place, whatever it asks.
    #[must_use]
    pub fn for_want_of_place(message: impl Into<String>) -> Self {
        Self { message: message.into(), versions: Vec::new(), requests: Vec::new() }
    }

    /// Whether it is no fault of the request: later there may be a place.
    #[must_use]
    pub fn is_for_want_of_place(&self) -> bool {
        self.versions.is_empty() && self.requests.is_empty()
    }
}

impl StatusRequest {
    /// The request as a line, with its end.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        line(self)
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// The answer to what is no request: not JSON, another version, an unknown name, a wrong field.
    pub fn from_line(line: &[u8]) -> Result<Self, RequestRefusal> {
        /// What is looked at first.
        #[derive(Deserialize)]
        struct Head {
            version: Option<u32>,
            ask: Option<String>,
        }
        let head: Head = serde_json::from_slice(line)
            .map_err(|error| RequestRefusal::new(format!("that is no request: {error}")))?;
        match head.version {
            Some(VERSION) => {}
            Some(other) => return Err(RequestRefusal::new(format!("version {other} is unknown"))),
            None => return Err(RequestRefusal::new("the request has no version")),
        }
        match head.ask {
            Some(name) if REQUESTS.contains(&name.as_str()) => {}
            Some(name) => return Err(RequestRefusal::new(format!("request {name:?} is unknown"))),
            None => return Err(RequestRefusal::new("the request does not say what it asks")),
        }
        serde_json::from_slice(line)
            .map(|Versioned { content, .. }| content)
            .map_err(|error| RequestRefusal::new(format!("the request can't be read: {error}")))
    }
}

impl StatusAnswer {
    /// The answer as a line, with its end.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        line(self)
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// When it is no answer.
    pub fn from_line(line: &[u8]) -> Result<Self, Error> {
        /// What is looked at first.
        #[derive(Deserialize)]
        struct Head {
            version: Option<u32>,
        }
        let head: Head = serde_json::from_slice(line)?;
        if head.version != Some(VERSION) {
            return Err(Error::Version);
        }
        Ok(serde_json::from_slice(line)?)
    }
}

fn line(content: &impl Serialize) -> Vec<u8> {
    // Maps have text as keys, the only thing that could fail.
    let mut line = serde_json::to_vec(&Versioned { version: VERSION, content }).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{drops::DropScope, gateway::TunnelOrder};

    fn refused(line: &str) -> RequestRefusal {
        StatusRequest::from_line(line.as_bytes()).unwrap_err()
    }

    #[test]
    fn requests_return_from_their_lines() {
        let query = StatusQuery {
            peer: Some("192.0.2.0/24".parse().unwrap()),
            limit: Some(7),
            after: Some(String::new()),
            order: TunnelOrder::Traffic,
        };
        for request in [
            StatusRequest::Counters,
            StatusRequest::Workers,
            StatusRequest::Status(StatusQuery::default()),
            StatusRequest::Status(query),
            StatusRequest::Drops(DropQuery { from: Some(3), ..DropQuery::default() }),
            StatusRequest::DropTallies(DropTallyQuery { by: DropScope::Policy }),
        ] {
            let line = request.to_line();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(StatusRequest::from_line(&line), Ok(request));
        }
        let by_hand = br#"{"ask":"counters","version":1,"more":"is left alone"}"#;
        assert_eq!(StatusRequest::from_line(by_hand), Ok(StatusRequest::Counters));
    }

    #[test]
    fn each_request_is_named_and_each_name_is_one() {
        for name in REQUESTS {
            let needs = match name {
                "drop-tallies" => r#","by":"sa""#,
                "trace" => r#","packets":3"#,
                "why" => r#","source":"10.1.0.1","destination":"10.2.0.1""#,
                _alone => "",
            };
            let line = format!(r#"{{"version":1,"ask":"{name}"{needs}}}"#);
            assert!(StatusRequest::from_line(line.as_bytes()).is_ok(), "{name}");
        }
    }

    #[test]
    fn refusal_says_what_is_known() {
        for (line, says) in [
            ("", "no request"),
            ("hello", "no request"),
            ("[1]", "no request"),
            (r#"{"ask":"status"}"#, "no version"),
            (r#"{"version":2,"ask":"status"}"#, "version 2 is unknown"),
            (r#"{"version":1}"#, "does not say what it asks"),
            (r#"{"version":1,"ask":"weather"}"#, r#"request "weather" is unknown"#),
            (r#"{"version":1,"ask":"status","limit":-1}"#, "can't be read"),
            (r#"{"version":1,"ask":"status","state":"down"}"#, "unknown field `state`"),
            (r#"{"version":1,"ask":"status","peer":"x"}"#, "neither an IP address nor a prefix"),
        ] {
            let RequestRefusal { message, versions, requests } = refused(line);
            assert!(message.contains(says), "{line}: {message}");
            assert_eq!((versions, requests), (vec![1], REQUESTS.map(str::to_owned).to_vec()));
        }
    }

    #[test]
    fn answers_return_from_their_lines() {
        let answers = [
            StatusAnswer::Counters(CounterReport { at: 7, ..CounterReport::default() }),
            StatusAnswer::Refusal(RequestRefusal::new("x")),
            StatusAnswer::Refusal(RequestRefusal::for_want_of_place("x")),
        ];
        for answer in answers {
            assert_eq!(StatusAnswer::from_line(&answer.to_line()).unwrap(), answer);
        }
        let later = br#"{"version":2,"answer":"counters"}"#;
        assert!(matches!(StatusAnswer::from_line(later), Err(Error::Version)));
        assert!(matches!(StatusAnswer::from_line(b"XfrmInError 0"), Err(Error::Form(_))));
    }
}
