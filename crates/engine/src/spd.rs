//! The security policy database (SPD): policies, and the look-up of the one that decides.
//!
//! Memory per policy with a million policies in the shape of tunnels (column `memory_per_policy` of
//! `uxfrm bench lookup --only changes=0/s,policies=1000000`; `bytes_per_policy` is the classifier's
//! part):
//!
//! | | IPv4 | IPv6 |
//! | --- | ---: | ---: |
//! | no templates | 198 | 180 |
//! | each a tunnel from the gateway to a peer of its own | 198 | 180 |
//! | each a tunnel to a peer whose address is like no other | 198 | 229 |
//!
//! The bytes of an IPv4 policy:
//!
//! | bytes | what |
//! | ---: | --- |
//! | 96 | [`PolicyEntry`](crate::PolicyEntry): 72, and 24 for the counts of its `Arc` and the allocator |
//! | 60 | `rules`: 40 for its rule, the rest for leaves and cuts |
//! | 11 | `store`: its slot in the table of names, of which a million have filled half |
//! | 8 | where the entry of its slot is |
//! | 5 | its slot among those that came, for dumps |
//! | 4 | its slot by index |
//!
//! and what the allocator cannot use. For IPv6 they take 54: 40 for a rule, which holds only the
//! remote address; the rest of what it matches is in a mask template shared by many rules
//! (`uxfrm_classify`). A rule without a template takes 88, as all do in sets of a few thousand. A
//! policy's own fields are in its entry: prefix lengths, protocol, ports, addresses, tunnel
//! addresses and request id; 23 bytes fit inline, more take a separate block (`compact/inline`,
//! `compact/layout`). IPv6 addresses are stored as the bytes that differ from zero, or for tunnel
//! addresses from the traffic's (`compact/address_codec`): a peer with an unrelated address takes a
//! block of 48 bytes. All else is shared between policies (`compact/shared`), including local IPv6
//! addresses and templates that many policies use. The first packet adds nothing.
mod change_log;
pub(crate) mod compact;
pub mod entry;
pub(crate) mod fragment_rules;
mod network_index;
mod partial_packet;
pub mod policy;
pub(crate) mod quote_rules;
pub(crate) mod scope;
pub(crate) mod store;
pub mod table;
pub mod template;
pub(crate) mod validate;
pub(crate) mod verdict;

pub(crate) mod rules;
