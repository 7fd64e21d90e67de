//! Explanations: what a flow would meet, and why, from a snapshot alone.
//!
//! They answer for `uxfrm why`: which policies decide and which nearly would have, which state each
//! template finds and in what the nearest others differ, and how the packet leaves or comes in. The
//! outcome is made by the functions that the data path uses, so both agree; nothing is counted,
//! acquired or cached.
//!
//! | module | content |
//! | --- | --- |
//! | [`policies`] | the policies that decide, and near ones that do not |
//! | [`states`] | in what states differ from what a template or packet demands |
//! | [`outbound`] | a plain packet on its way out |
//! | [`inbound`] | a packet that came in, plain or by states |
//! | [`too_big`] | what becomes of ICMP errors about a packet that is too large for its tunnel |

pub mod inbound;
mod nearest;
pub mod outbound;
pub mod policies;
pub mod states;
pub mod too_big;
