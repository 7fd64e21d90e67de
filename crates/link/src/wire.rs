//! Ports and tunnels in netlink messages: generic netlink's `fou` and rtnetlink's `RTM_NEWLINK`.
//!
//! Total on any bytes. Attributes are checked as by the kernel's policies, values by
//! [`uxfrm_tunnel`].

mod attributes;
mod config;
mod link;
mod port;

pub use self::{
    link::{
        DELETE, GET, KernelLink, LinkRequest, LinkStatistics, NEW, TunnelInfo, encode_delete_link,
        encode_get_link, encode_new_link,
    },
    port::{attributes as port_attributes, request as port_request},
};
