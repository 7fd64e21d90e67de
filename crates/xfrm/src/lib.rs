//! iproute2's `ip xfrm` as a library: grammar, requests, and text of answers.
//!
//! | module | owns |
//! | --- | --- |
//! | [`grammar`] | words into commands, as written |
//! | [`request`] | commands into the bytes that iproute2 sends |
//! | [`answer`] | what comes back, taken apart |
//! | [`text`], [`json`] | answers as iproute2 prints them, and as JSON |
//! | [`client`] | a connection, and many requests in flight on it |
//! | [`esp_sa`] | states as Wireshark reads them |
//! | [`session`] | a command line from its words to its exit code |
//! | [`help`] | the grammar's own page, completion and manual, from its tables |
#![forbid(unsafe_code)]

pub mod answer;
pub mod client;
pub mod esp_sa;
pub mod grammar;
pub mod help;
pub mod json;
mod matching;
pub mod names;
pub mod request;
mod script;
pub mod session;
pub mod text;
