//! etcd, as the store of [`uxfrm_fleet::store`]: leases, transactions, watches over its v3 API.
//!
//! | file | has |
//! | --- | --- |
//! | `messages.rs` | what goes over the wire |
//! | `mapping.rs` | the store's requests as etcd's, and its answers back |
//! | `client.rs` | one endpoint: calls with a limit of time, TLS, users |
//! | `history.rs` | which cluster and which past was seen; nothing older is believed |
//! | `session.rs` | a lease, a watch and requests for as long as the agent runs |

mod client;
mod history;
mod mapping;
mod messages;
mod session;

pub use client::{ChangeStream, EtcdClient, EtcdError, EtcdHealth, PATIENCE};
pub use history::{StoreHistory, WentBack};
pub use session::{EtcdSession, SessionConfig, StoreEvent};
