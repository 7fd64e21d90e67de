//! The client's half of the codec: requests built, answers taken apart.
//!
//! A [`NetlinkRequest`] has the layout of iproute2's `addattr_l`, so the same request is the same
//! bytes. An answer is read as by `lib/libnetlink.c: parse_rtattr`: too short attributes are
//! missing, the first of a type counts, nothing is refused.

mod dumped;
mod reply;
mod request;

pub use crate::{
    address::{INET, INET6, RawAddress, address, family, family_number, matches, raw},
    decode::common::mode_number,
    encode::{
        common::{limits, policy_direction, selector},
        policy::{action_number, default_number, kind_number, template},
        state::{direction_number, padded_name, raw_encap},
    },
    layout::*,
};
pub use dumped::{DumpedState, dumped_policy};
pub use reply::{ReplyAttributes, ReplyStatus};
pub use request::NetlinkRequest;
