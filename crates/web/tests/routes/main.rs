//! Requests to the routes, without a network: the gateway is made up.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod connections;
mod documents;
mod events;
mod fake;
mod metrics;
mod refusals;
mod sharing;
