//! The targets of the fuzzers in `fuzz/`: each takes any bytes and panics if a promise is broken.
//! They are here so that plain `cargo test` also runs them over the corpora.

mod corpus;
mod open;
mod packet;
mod script;
mod traffic;

pub use corpus::{Corpus, replay};
pub use open::{open, open_seeds};
pub use packet::{packet, packet_seeds};
pub use traffic::{inbound, inbound_seeds, outbound, outbound_seeds};
