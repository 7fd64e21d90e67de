//! Addresses of network devices.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};

use super::{Error, RoutePrefix, Rtnetlink};

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The device's index.
    pub link: u32,
    /// The address and its network's prefix length.
    pub prefix: RoutePrefix,
    /// Whether packets may use it: not during duplicate address detection, nor if that failed.
    pub is_usable: bool,
}

impl Rtnetlink {
    /// All addresses of both families.
    ///
    /// # Errors
    /// The kernel's.
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let found =
            self.dump("addresses", RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        Ok(found.into_iter().filter_map(read).collect())
    }

    /// Adds an address to a device.
    ///
    /// Duplicate address detection is off (`IFA_F_NODAD`), yet the kernel takes a moment until it
    /// answers to an IPv6 address: on a device that is up this call waits for that, at most 100 ms.
    ///
    /// # Errors
    /// [`Error::Exists`] when the device has it.
    pub fn add_address(&mut self, link: u32, prefix: RoutePrefix) -> Result<(), Error> {
        let mut message = describe(link, prefix);
        if prefix.address().is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let request = format!("address {prefix} on link with index {link}");
        self.change(&request, NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewAddress(message))?;
        if prefix.address().is_ipv6() && self.link_of_index(link)?.is_up {
            self.settle(prefix.address());
        }
        Ok(())
    }

    /// Waits until the host answers to an address.
    fn settle(&mut self, address: IpAddr) {
        for _ in 0..100 {
            if self.route_to(address, 0).is_ok_and(|chosen| chosen.is_local) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes an address from a device.
    ///
    /// # Errors
    /// [`Error::NotFound`] when the device does not have it.
    pub fn delete_address(&mut self, link: u32, prefix: RoutePrefix) -> Result<(), Error> {
        let request = format!("delete address {prefix} from link with index {link}");
        self.change(&request, 0, RouteNetlinkMessage::DelAddress(describe(link, prefix)))
    }
}

fn describe(link: u32, prefix: RoutePrefix) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = prefix.address().into();
    message.header.prefix_len = prefix.length();
    message.header.index = link;
    message.attributes.push(AddressAttribute::Local(prefix.address()));
    message.attributes.push(AddressAttribute::Address(prefix.address()));
    message
}

/// The local address of an answer: `IFA_LOCAL` of a point-to-point link, otherwise `IFA_ADDRESS`.
pub(super) fn read(answer: RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
    let (mut local, mut other): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    let mut is_usable = true;
    for attribute in message.attributes {
        if let AddressAttribute::Local(address) = attribute {
            local = Some(address);
        } else if let AddressAttribute::Address(address) = attribute {
            other = Some(address);
        } else if let AddressAttribute::Flags(flags) = attribute {
            let is_optimistic = flags.contains(AddressFlags::Optimistic);
            let is_asked = flags.contains(AddressFlags::Tentative) && !is_optimistic;
            is_usable = !is_asked && !flags.contains(AddressFlags::Dadfailed);
        }
    }
    let prefix = RoutePrefix::new(local.or(other)?, message.header.prefix_len)?;
    Some(Address { link: message.header.index, prefix, is_usable })
}
