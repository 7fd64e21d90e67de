//! Ports and tunnels as netlink carries them: generic netlink's family `fou` and rtnetlink's `RTM_NEWLINK`.
//!
//! Total on any bytes: what comes from a client is checked as the kernel's attribute policies check it, and [`uxfrm_tunnel`] says what can be.

mod attributes;
mod config;
mod link;
mod port;

pub use self::{
    link::{DELETE, Device, GET, LinkRequest, NEW, Shown, Statistics, creation, deletion, inquiry},
    port::{attributes as port_attributes, request as port_request},
};
