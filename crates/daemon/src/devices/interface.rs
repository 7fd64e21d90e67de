//! The network interfaces of offload devices and of their virtual functions.

use std::os::fd::OwnedFd;

use anyhow::Context as _;
use uxfrm_engine::DeviceId;
use uxfrm_io::{
    rtnetlink::Rtnetlink,
    tun::{QueueOrder, Tun, TunOptions},
};
use uxfrm_offload::LinkState;

use crate::tun::bring_up;

/// Of TUNs that nobody sends into.
const MTU: u16 = 1500;

/// Indices of interfaces that are only imagined: above all that the kernel gives in a machine's
/// life.
const IMAGINED: u32 = 1 << 30;

/// Whether interfaces that are missing are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceCreation {
    /// They are made.
    Real,
    /// Nothing, and all are taken for there: a configuration is only checked.
    DryRun,
}

/// An interface.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    index: u32,
    /// It was made, and goes when this does.
    pub(super) tun: Option<Tun>,
}

impl DeviceCreation {
    /// Whether an interface is there.
    pub(super) fn is_there(self, name: &str) -> bool {
        self == Self::DryRun || index(name).is_some()
    }

    /// The interface of a name.
    ///
    /// # Errors
    /// When it has to be made and can't.
    pub(super) fn open(self, name: &str) -> anyhow::Result<Interface> {
        let name = name.to_owned();
        if self == Self::DryRun {
            let letters = name.bytes().fold(0, |sum: u32, byte| {
                sum.wrapping_mul(31).wrapping_add(byte.into()) & (IMAGINED - 1)
            });
            return Ok(Interface { name, index: IMAGINED + letters, tun: None });
        }
        if let Some(index) = index(&name) {
            return Ok(Interface { name, index, tun: None });
        }
        let tun = Tun::open(&TunOptions::new(&name))
            .with_context(|| format!("can't make the interface {name}"))?;
        let index = bring_up(&tun, Some(MTU))?;
        Ok(Interface { name, index, tun: Some(tun) })
    }
}

impl Interface {
    /// One that another process has had until now, with its TUN where it made it.
    ///
    /// # Errors
    /// The kernel's: no queue of a TUN.
    pub(super) fn taken(name: &str, index: u32, tun: Option<OwnedFd>) -> anyhow::Result<Self> {
        let options = TunOptions::new(name);
        let tun = tun.map(|tun| Tun::of_queue(tun, &options, QueueOrder::First)).transpose();
        let tun = tun.with_context(|| format!("the interface {name}"))?;
        Ok(Self { name: name.to_owned(), index, tun })
    }

    /// The same name and number for a device that only exists to be asked.
    pub(super) fn imagined(&self) -> Self {
        Self { name: self.name.clone(), index: self.index, tun: None }
    }

    pub(super) const fn device(&self) -> DeviceId {
        DeviceId(self.index)
    }

    /// Whether it is nowhere but here, and never down.
    pub(super) const fn is_imagined(&self) -> bool {
        self.index >= IMAGINED
    }

    /// How states name it: batch files by name, netlink by number.
    pub(super) fn names(&self) -> [String; 2] {
        [self.name.clone(), by_number(self.index)]
    }
}

/// What netlink requests call the interface of a number.
pub(super) fn by_number(index: u32) -> String {
    format!("if{index}")
}

/// Looks up interfaces and their state with one socket.
#[derive(Debug)]
pub(super) struct LinkLookup(Option<Rtnetlink>);

impl LinkLookup {
    /// Without the kernel's answer all are down.
    pub(super) fn new() -> Self {
        Self(Rtnetlink::open().ok())
    }

    pub(super) fn link(&mut self, name: &str) -> LinkState {
        let link = self.0.as_mut().and_then(|rtnetlink| rtnetlink.link(name).ok());
        of(link.is_some_and(|link| link.is_up))
    }

    /// One that was deleted and made again under its name is another interface: states name it by
    /// its number.
    pub(super) fn link_of(&mut self, interface: &Interface) -> LinkState {
        let find = |rtnetlink: &mut Rtnetlink| rtnetlink.link_of_index(interface.index).ok();
        if interface.is_imagined() {
            return LinkState::Up;
        }
        of(self.0.as_mut().and_then(find).is_some_and(|link| link.is_up))
    }
}

const fn of(is_up: bool) -> LinkState {
    if is_up { LinkState::Up } else { LinkState::Down }
}

fn index(name: &str) -> Option<u32> {
    Some(Rtnetlink::open().ok()?.link(name).ok()?.index)
}
