//! Network devices.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{Emitable as _, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use uxfrm_packet::ethernet::MacAddr;

use super::{Error, Rtnetlink};

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The largest IP packet it takes, in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub is_up: bool,
    /// Whether it is the loopback device.
    pub is_loopback: bool,
    /// Its Ethernet address, if it has one.
    pub mac: Option<MacAddr>,
}

impl Rtnetlink {
    /// All devices.
    ///
    /// # Errors
    /// The kernel's.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let found = self.dump("links", RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(found.into_iter().filter_map(read).collect())
    }

    /// The device of a name.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none.
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let request = format!("link {name}");
        let found = self.ask(&request, RouteNetlinkMessage::GetLink(message))?;
        found.into_iter().find_map(read).ok_or_else(|| missing(request))
    }

    /// The device of an index.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none.
    pub fn link_of_index(&mut self, index: u32) -> Result<Link, Error> {
        let request = format!("link with index {index}");
        let found = self.ask(&request, RouteNetlinkMessage::GetLink(of_index(index)))?;
        found.into_iter().find_map(read).ok_or_else(|| missing(request))
    }

    /// Packets that the named device was given and dropped (`tx_dropped`).
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none.
    pub fn transmit_drops(&mut self, name: &str) -> Result<u64, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let request = format!("counters of link {name}");
        let found = self.ask(&request, RouteNetlinkMessage::GetLink(message))?;
        let drops = found.into_iter().find_map(|answer| {
            let RouteNetlinkMessage::NewLink(message) = answer else { return None };
            message.attributes.into_iter().find_map(|attribute| {
                let LinkAttribute::Stats64(counts) = attribute else { return None };
                Some(counts.tx_dropped)
            })
        });
        drops.ok_or_else(|| missing(request))
    }

    /// The kernel's description of a device: `struct ifinfomsg` and attributes, as in `RTM_NEWLINK`
    /// behind its header.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none.
    pub fn link_body(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        let request = format!("link with index {index}");
        let found = self.ask(&request, RouteNetlinkMessage::GetLink(of_index(index)))?;
        let message = found.into_iter().find_map(|answer| {
            let RouteNetlinkMessage::NewLink(message) = answer else { return None };
            Some(message)
        });
        let message = message.ok_or_else(|| missing(request))?;
        let mut body = vec![0; message.buffer_len()];
        message.emit(&mut body);
        Ok(body)
    }

    /// Sets a device up.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_up(&mut self, index: u32) -> Result<(), Error> {
        let mut message = of_index(index);
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(
            &format!("link with index {index} up"),
            0,
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Sets a device down; its routes go.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_down(&mut self, index: u32) -> Result<(), Error> {
        let mut message = of_index(index);
        message.header.change_mask = LinkFlags::Up;
        self.change(
            &format!("link with index {index} down"),
            0,
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Sets the largest IP packet that a device takes, in bytes.
    ///
    /// # Errors
    /// The kernel's; [`Error::Refused`] with `EINVAL` outside what the device can.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), Error> {
        let mut message = of_index(index);
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.change(
            &format!("link with index {index} mtu {mtu}"),
            0,
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Sets a device's queue length in packets: for a TUN, those that wait for its reader.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_queue_length(&mut self, index: u32, packets: u32) -> Result<(), Error> {
        let mut message = of_index(index);
        message.attributes.push(LinkAttribute::TxQueueLen(packets));
        self.change(
            &format!("link with index {index} txqueuelen {packets}"),
            0,
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Limits the segments per super-packet that the host gives a device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_segments(&mut self, index: u32, most: u32) -> Result<(), Error> {
        let mut message = of_index(index);
        message.attributes.push(LinkAttribute::GsoMaxSegs(most));
        self.change(
            &format!("link with index {index} gso_max_segs {most}"),
            0,
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Moves a device to another network namespace. It arrives down and without addresses.
    ///
    /// # Errors
    /// [`Error::Exists`] when a device of its name is there already.
    pub fn move_link(&mut self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), Error> {
        let mut message = of_index(index);
        message.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let request = format!("link with index {index} to another namespace");
        self.change(&request, 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Creates two connected virtual Ethernet devices, the second one in `namespace`.
    ///
    /// # Errors
    /// [`Error::Exists`] when a name is taken.
    pub fn add_veth(
        &mut self,
        near: &str,
        far: &str,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(far.to_owned()));
        peer.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(near.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let request = format!("veth {near} peer {far}");
        self.change(&request, NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message))
    }

    /// Deletes a device; of a veth, both ends.
    ///
    /// # Errors
    /// The kernel's; [`Error::Refused`] for one that cannot be deleted.
    pub fn delete_link(&mut self, index: u32) -> Result<(), Error> {
        let request = format!("delete link with index {index}");
        self.change(&request, 0, RouteNetlinkMessage::DelLink(of_index(index)))
    }
}

fn of_index(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn missing(request: String) -> Error {
    Error::NotFound { request, kernel: std::io::Error::from_raw_os_error(libc::ENODEV) }
}

pub(super) fn read(answer: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = answer else { return None };
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mtu: 0,
        is_up: message.header.flags.contains(LinkFlags::Up),
        is_loopback: message.header.flags.contains(LinkFlags::Loopback),
        mac: None,
    };
    for attribute in message.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            link.name = name;
        } else if let LinkAttribute::Mtu(mtu) = attribute {
            link.mtu = mtu;
        } else if let LinkAttribute::Address(bytes) = attribute {
            link.mac = bytes.as_slice().try_into().ok().map(MacAddr);
        }
    }
    Some(link)
}
