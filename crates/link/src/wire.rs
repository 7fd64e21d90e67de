//! Ports and tunnels in netlink messages: generic netlink's `fou` and rtnetlink's `RTM_NEWLINK`.
//!
//! Total on any bytes. Attributes are checked as by the kernel's policies, values by
//! [`uxfrm_tunnel`].

mod attributes;
mod config;
mod link;
mod port;

pub use self::{
    link::{DELETE, Device, GET, LinkRequest, NEW, Shown, Statistics, creation, deletion, inquiry},
    port::{attributes as port_attributes, request as port_request},
};
