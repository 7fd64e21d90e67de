//! Two gateways in network namespaces with a wire between them, for `uxfrm demo` and the end-to-end
//! benches.
//!
//! ```text
//!   a: 10.1.0.1 on lo, uxfrm run, 192.0.2.1 ──── veth ──── 192.0.2.2, uxfrm run, 10.2.0.1 on lo :b
//! ```
//!
//! Nothing outlives the process that made them: namespaces end with the last process in them, and a
//! gateway ends with its standard input.

mod configuration;
mod congestion;
mod gateway;
mod interrupt;
pub mod iperf;
pub mod marker;
mod ping;
pub mod processor;
mod protection;
mod site;
mod topology;

pub use configuration::{GatewayMode, GatewayTuning, SaKeyPair, private_directory, write};
pub use congestion::Congestion;
pub use gateway::GatewayProcess;
pub use interrupt::{Interrupt, Interrupted};
pub use ping::{Pinger, RoundTrips};
pub use protection::{EspEncapsulation, EspTransform, Protection};
pub use site::{A, B, ESP_IN_UDP, GatewaySite, LAN, PREFIX_LEN, WIRE, WIRE_MTU};
pub use topology::{Topology, WireFrames, find_tun, gain_privileges, is_root};
