//! The security policy database: policies, and how the one that decides is found.
//!
//! What a policy takes of the process's memory where there are a million of them in the shape of tunnels (column `memory_per_policy` of
//! `uxfrm bench lookup --only changes=0/s,policies=1000000`; `bytes_per_policy` is the classifier's part):
//!
//! | | IPv4 | IPv6 |
//! | --- | ---: | ---: |
//! | no templates | 198 | 180 |
//! | each a tunnel from the gateway to a peer of its own | 198 | 180 |
//! | each a tunnel to a peer whose address is like no other | 198 | 229 |
//!
//! Those of IPv4 are
//!
//! | bytes | what |
//! | ---: | --- |
//! | 96 | [`PolicyEntry`](crate::PolicyEntry): 72, and 24 for the counts of its `Arc` and the allocator |
//! | 60 | `classifier`: 40 for its rule, the rest for leaves and cuts |
//! | 11 | `ledger`: its slot in the table of names, of which a million have filled half |
//! | 8 | where the entry of its slot is |
//! | 5 | its slot among those that came, for dumps |
//! | 4 | its slot by index |
//!
//! and what the allocator cannot use. Of IPv6 the `classifier` takes 54: 40 for a rule, which has no more to itself than the other side's address; what it
//! asks besides is its shape, kept once for all that have the same (`classifier/lean`). A rule that shares no shape takes 88, as all do of sets of a few
//! thousand. What is a policy's own stands in its entry: lengths of prefixes, protocol, ports, addresses, a tunnel's ends and request id, of which
//! 23 bytes have room there and more is a block of its own (`own`, `form`). Addresses of IPv6 take as many bytes as they differ from zeros, or a tunnel's ends
//! from the traffic's (`words`): a peer with nothing alike takes such a block, of 48 bytes. All else is kept once for all policies that say the
//! same (`terms`): of IPv6 this side's addresses, too, and templates, where many policies have them. The first packet adds nothing.
mod change_log;
pub(crate) mod compact;
pub mod entry;
pub(crate) mod fragment_rules;
pub mod policy;
pub(crate) mod scope;
pub(crate) mod store;
pub mod table;
pub mod template;
pub(crate) mod validate;
pub(crate) mod verdict;

pub(crate) mod classifier;
