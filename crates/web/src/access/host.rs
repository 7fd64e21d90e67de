//! The names by which clients may know this server.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::header;

use crate::problem::{Problem, ProblemKind};

/// Names of this machine that are nobody else's.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The names by which clients may know a listener.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    /// Names with their port, in lower case.
    whole: Vec<String>,
    /// Names that any port or none may follow.
    any_port: Vec<String>,
}

impl KnownHosts {
    /// Of a TCP listener: loopback names with its port, and `more` as they are.
    #[must_use]
    pub fn of_address(address: SocketAddr, more: &[String]) -> Self {
        let port = address.port();
        let own = match address {
            SocketAddr::V4(v4) => v4.ip().to_string(),
            SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
        };
        let own = Some(own).filter(|own| !LOOPBACK.contains(&own.as_str()));
        let names = LOOPBACK.map(str::to_owned).into_iter().chain(own);
        // A browser leaves out the port of its scheme.
        let plain = |name: &String| (port == 80).then(|| name.clone());
        let mut whole: Vec<_> = names
            .flat_map(|name| [Some(format!("{name}:{port}")), plain(&name)])
            .flatten()
            .collect();
        whole.extend(more.iter().map(|name| name.to_ascii_lowercase()));
        Self { whole, any_port: Vec::new() }
    }

    /// Of a Unix socket: loopback names with any port, and `more` as they are.
    #[must_use]
    pub fn of_unix_socket(more: &[String]) -> Self {
        let whole = more.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { whole, any_port: LOOPBACK.map(str::to_owned).to_vec() }
    }

    /// Lets a request pass that names this server, once.
    pub(super) fn check(&self, request: &Request) -> Result<(), Problem> {
        let hosts = request.headers().get_all(header::HOST);
        let mut hosts = hosts.into_iter().map(|host| host.to_str().unwrap_or_default());
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(self.wrong("the request has not one Host".to_owned()));
        };
        let target = request.uri().authority().map(|authority| authority.as_str());
        match [Some(host), target].into_iter().flatten().find(|name| !self.has(name)) {
            None => Ok(()),
            Some(other) => Err(self.wrong(format!("{other:?} is no name of this server"))),
        }
    }

    fn has(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.whole.contains(&host) || self.any_port.iter().any(|name| has_port(&host, name))
    }

    fn wrong(&self, detail: String) -> Problem {
        let known: Vec<_> = self.whole.iter().chain(&self.any_port).map(String::as_str).collect();
        let next = format!("{}; `--host NAME` adds a name", known.join(" or "));
        Problem::new(ProblemKind::WrongHost, detail, next)
    }
}

/// Whether it is this name, alone or with a port.
fn has_port(host: &str, name: &str) -> bool {
    let Some(rest) = host.strip_prefix(name) else { return false };
    let port = rest.strip_prefix(':');
    rest.is_empty() || port.is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_told_once_each() {
        let names = |address: &str| KnownHosts::of_address(address.parse().unwrap(), &[]).whole;
        assert_eq!(names("127.0.0.1:80").len(), 6, "each with its port and without");
        assert_eq!(names("[::1]:8080").len(), 3);
        assert_eq!(names("192.0.2.1:8080").last().map(String::as_str), Some("192.0.2.1:8080"));
    }

    #[test]
    fn host_by_table() {
        let tcp = KnownHosts::of_address("127.0.0.1:8080".parse().unwrap(), &[]);
        let http = KnownHosts::of_address("[::1]:80".parse().unwrap(), &[]);
        let unix = KnownHosts::of_unix_socket(&["Gw.example.org".to_owned()]);
        for (hosts, host, is_own) in [
            (&tcp, "localhost:8080", true),
            (&tcp, "LocalHost:8080", true),
            (&tcp, "127.0.0.1:8080", true),
            (&tcp, "[::1]:8080", true),
            (&tcp, "localhost", false),
            (&tcp, "localhost:80", false),
            (&tcp, "localhost:8080.evil.example", false),
            (&tcp, "evil.example:8080", false),
            (&tcp, "gw.example.org", false),
            (&tcp, "", false),
            (&http, "localhost", true),
            (&http, "[::1]:80", true),
            (&unix, "localhost", true),
            (&unix, "localhost:1", true),
            (&unix, "localhost:x", false),
            (&unix, "localhost.evil.example", false),
            (&unix, "gw.example.org", true),
            (&unix, "gw.example.org:443", false),
        ] {
            assert_eq!(hosts.has(host), is_own, "{host:?} {hosts:?}");
        }
    }
}
