//! For tests only: whole gateways in memory, a wire that loses, duplicates and reorders packets, a
//! detector of plaintext on it, packet builders, and random numbers that are the same in every run.
//!
//! ```
//! use uxfrm_testkit::{IpsecSetup, TestGatewayPair, packets};
//!
//! let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
//! let arrived = pair.left_to_right(vec![packets::udp("10.1.0.1:7", "10.2.0.1:9", b"hello")]);
//! assert!(arrived[0].bytes().ends_with(b"hello"));
//! ```

pub mod arbitrary;
pub mod fuzz;
mod gateway;
mod listener;
pub mod packets;
mod pair;
mod rng;
mod setup;
mod wire;

pub use gateway::{TestGateway, inbound_outcome};
pub use listener::PlaintextDetector;
pub use pair::{FIRST_SPI, TestGatewayPair};
pub use rng::Rng;
pub use setup::{EspSuite, IpsecSetup, PairDirection};
pub use wire::{LossyWire, WireImpairments, split_burst};
