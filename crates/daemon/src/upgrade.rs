//! `uxfrm upgrade`: another process of the gateway, mostly of a newer release, takes the place of
//! the one that runs, and no packet is lost (`docs/upgrade.md`, `docs/decisions/0005-upgrade.md`).
//!
//! ```text
//!   uxfrm upgrade ──► predecessor ──path──► supervisor ──starts──► successor
//!                         ▲                                             │
//!                         └──────────────── link ──────────────────────┘
//!   1  hello            ◄──   which release asks
//!   2  manifest         ──►   control rests; descriptors, clients, states, policies
//!   3  ready            ◄──   all is built beside the workers, which run on
//!   4  final numbers    ──►   workers rest and are laid down; packets wait in the kernel's queues
//! ```
//!
//! 5: the successor asks the supervisor to be the gateway, and the supervisor decides, once: it
//! ends the predecessor, and only then tells the successor to go on; or it ends the successor, and
//! only then tells the predecessor. There is no moment at which both could send. Nothing of this
//! touches the disk between 4 and 5: what is reserved in the journal is reserved still.

mod channel;
mod manifest;
mod orphans;
mod predecessor;
mod queued_packets;
#[cfg(test)]
pub(crate) mod rehearsal;
mod sa_progress;
mod successor;
mod supervisor;
mod trust;

pub(crate) use channel::Supervisor;
pub(crate) use orphans::GATEWAY;
pub use orphans::gateway_of;
pub(crate) use predecessor::{HandoverSource, Obstacle, Upgrade};
pub(crate) use successor::{Successor, TakenOver, takeover_answer};
pub use supervisor::{Launch, supervise};

/// The release of this program.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");
