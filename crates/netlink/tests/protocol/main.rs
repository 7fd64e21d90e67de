//! The server as its clients see it: bytes in, bytes out.
#![expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]

mod acquire;
mod checks;
mod counters;
mod dice;
mod differences;
mod dump;
mod export;
mod get_policy;
mod gre;
mod iproute2;
mod judge;
mod kernel;
mod limits;
mod marks;
mod migrate;
mod migrate_state;
mod stage;
mod total;
