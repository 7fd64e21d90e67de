//! NAPI interrupt deferral: how long a device's queues collect frames before the kernel polls them.
//!
//! Without deferral each frame raises an interrupt, or on a virtual link runs NAPI on the sender's
//! CPU. A deferring queue is polled by a timer, and all collected frames are handled at once. The
//! first frame after a pause is still handled at once: a queue defers only after a poll that found
//! frames.
//!
//! The settings are `napi_defer_hard_irqs` and `gro_flush_timeout`
//! (`Documentation/networking/napi.rst`), through generic netlink's `netdev`
//! (`Documentation/netlink/specs/netdev.yaml`, Linux 6.13). A queue that is recreated, as a virtual
//! link's when it comes up, starts without them.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket, protocols::NETLINK_GENERIC};
use nix::sys::{
    socket::{setsockopt, sockopt},
    time::TimeVal,
};

use crate::message::{Payload, answers};
use uxfrm_netlink_wire::genl::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL, GenlHeader,
};
use uxfrm_netlink_wire::{AttributeWriter, NetlinkFlags, append_message, find_attribute};

/// The kernel answers at once; a later answer never comes.
const REPLY_TIMEOUT: i64 = 10;

/// `linux/netdev.h`: `NETDEV_CMD_NAPI_GET`, `NETDEV_CMD_NAPI_SET`, and `NETDEV_A_NAPI_*`.
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const LINK: u16 = 1;
const ID: u16 = 2;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;

/// A device with deferring queues; their settings are restored on drop.
#[derive(Debug)]
pub struct NapiDeferral {
    kernel: Kernel,
    link: u32,
    wanted: NapiSettings,
    /// Changed queues and their previous settings.
    before: Vec<(QueueId, NapiSettings)>,
}

/// NAPI id of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueId(u32);

/// NAPI settings of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NapiSettings {
    /// Empty polls until interrupts are enabled again.
    idle_looks: u32,
    /// Interval between polls.
    nanoseconds: u64,
}

impl NapiDeferral {
    /// Makes all queues of a device in the calling thread's namespace defer for `span`; those that
    /// defer already stay as they are.
    ///
    /// # Errors
    /// `ENOENT` or `EOPNOTSUPP` if the kernel can't; `EPERM` without `CAP_NET_ADMIN` in the initial
    /// user namespace.
    pub fn start(link: u32, span: Duration) -> io::Result<Self> {
        let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let wanted = NapiSettings { idle_looks: 1, nanoseconds };
        let mut gathering = Self { kernel: Kernel::open()?, link, wanted, before: Vec::new() };
        gathering.reapply()?;
        Ok(gathering)
    }

    /// Restores the previous settings until the next [`renew`](Self::reapply).
    pub fn restore(&mut self) {
        for (id, settings) in self.before.drain(..) {
            // A queue that is gone needs no settings.
            let _gone = self.kernel.set(id, settings);
        }
    }

    /// Applies the settings to queues that are new or were restored.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn reapply(&mut self) -> io::Result<()> {
        let queues = self.kernel.queues(self.link)?;
        self.before.retain(|(id, _)| queues.iter().any(|(known, _)| known == id));
        for (id, settings) in queues {
            if settings.nanoseconds == 0 {
                self.kernel.set(id, self.wanted)?;
                self.before.push((id, settings));
            }
        }
        Ok(())
    }
}

impl Drop for NapiDeferral {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Deferral of each queue of a device; zero for none.
///
/// # Errors
/// As [`NapiDeferral::start`].
pub fn spans(link: u32) -> io::Result<Vec<Duration>> {
    let queues = Kernel::open()?.queues(link)?;
    Ok(queues.into_iter().map(|(_, settings)| Duration::from_nanos(settings.nanoseconds)).collect())
}

/// The netlink socket and family.
#[derive(Debug)]
struct Kernel {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Kernel {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.set_cap_ack(true)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(REPLY_TIMEOUT, 0))?;
        let mut kernel = Self { socket, family: GENL_ID_CTRL, sequence: 0 };
        let families = kernel.ask(CTRL_CMD_GETFAMILY, NetlinkFlags::ACK, |family| {
            family.text(CTRL_ATTR_FAMILY_NAME, "netdev")
        })?;
        let id = families
            .first()
            .and_then(|family| find_attribute(family, CTRL_ATTR_FAMILY_ID)?.try_into().ok());
        kernel.family = id.map(u16::from_ne_bytes).ok_or(io::ErrorKind::NotFound)?;
        Ok(kernel)
    }

    fn queues(&mut self, link: u32) -> io::Result<Vec<(QueueId, NapiSettings)>> {
        let found = self.ask(NAPI_GET, NetlinkFlags::DUMP, |question| {
            question.bytes(LINK, &link.to_ne_bytes());
        })?;
        Ok(found.iter().filter_map(|queue| read(queue)).collect())
    }

    fn set(&mut self, QueueId(id): QueueId, settings: NapiSettings) -> io::Result<()> {
        let set = |queue: &mut AttributeWriter<'_>| {
            queue.bytes(ID, &id.to_ne_bytes());
            queue.bytes(DEFER_HARD_IRQS, &settings.idle_looks.to_ne_bytes());
            queue.bytes(GRO_FLUSH_TIMEOUT, &settings.nanoseconds.to_ne_bytes());
        };
        self.ask(NAPI_SET, NetlinkFlags::ACK, set).map(drop)
    }

    /// The attributes of each answer.
    fn ask(
        &mut self,
        command: u8,
        flags: NetlinkFlags,
        attributes: impl FnOnce(&mut AttributeWriter<'_>),
    ) -> io::Result<Vec<Vec<u8>>> {
        const VERSION: u8 = 1;
        let family = GenlHeader { command, version: VERSION }.to_bytes();
        self.sequence = self.sequence.wrapping_add(1);
        let mut question = Vec::new();
        let flags = NetlinkFlags::REQUEST | flags;
        append_message(&mut question, self.family, flags, self.sequence, family, attributes);
        self.socket.send(&question, 0)?;
        let mut found = Vec::new();
        loop {
            let (datagram, _kernel) = self.socket.recv_from_full()?;
            for answer in answers(&datagram).filter(|answer| answer.sequence == self.sequence) {
                match answer.payload {
                    Payload::Result(0) | Payload::Done => return Ok(found),
                    Payload::Result(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    Payload::Attributes(attributes) => found.push(attributes.to_owned()),
                    Payload::Other => {}
                }
            }
        }
    }
}

/// Parses a queue's attributes: zero values may be left out, and the time has four or eight bytes.
fn read(queue: &[u8]) -> Option<(QueueId, NapiSettings)> {
    let id = u32::from_ne_bytes(find_attribute(queue, ID)?.try_into().ok()?);
    let number = |kind| {
        let bytes = find_attribute(queue, kind).unwrap_or_default();
        match (<[u8; 4]>::try_from(bytes), <[u8; 8]>::try_from(bytes)) {
            (Ok(four), _) => u64::from(u32::from_ne_bytes(four)),
            (_, Ok(eight)) => u64::from_ne_bytes(eight),
            (Err(_), Err(_)) => 0,
        }
    };
    let idle_looks = u32::try_from(number(DEFER_HARD_IRQS)).unwrap_or(u32::MAX);
    Some((QueueId(id), NapiSettings { idle_looks, nanoseconds: number(GRO_FLUSH_TIMEOUT) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(
        attributes: impl FnOnce(&mut AttributeWriter<'_>),
    ) -> Option<(QueueId, NapiSettings)> {
        let mut message = Vec::new();
        append_message(&mut message, GENL_ID_CTRL, NetlinkFlags::empty(), 0, [0; 4], attributes);
        let answer = answers(&message).next().unwrap();
        let Payload::Attributes(attributes) = answer.payload else { panic!("{answer:?}") };
        read(attributes)
    }

    #[test]
    fn napi_queue_parses_with_missing_attributes() {
        let id = QueueId(8193);
        let of = |idle_looks, nanoseconds| Some((id, NapiSettings { idle_looks, nanoseconds }));
        let long = 5_000_000_000_u64;
        assert_eq!(described(|queue| queue.bytes(ID, &id.0.to_ne_bytes())), of(0, 0));
        let whole = |queue: &mut AttributeWriter<'_>| {
            queue.bytes(LINK, &7_u32.to_ne_bytes());
            queue.bytes(ID, &id.0.to_ne_bytes());
            queue.bytes(DEFER_HARD_IRQS, &3_u32.to_ne_bytes());
            queue.bytes(GRO_FLUSH_TIMEOUT, &long.to_ne_bytes());
        };
        assert_eq!(described(whole), of(3, long));
        let short = |queue: &mut AttributeWriter<'_>| {
            queue.bytes(ID, &id.0.to_ne_bytes());
            queue.bytes(GRO_FLUSH_TIMEOUT, &20_000_u32.to_ne_bytes());
        };
        assert_eq!(described(short), of(0, 20_000));
        assert_eq!(described(|queue| queue.bytes(LINK, &7_u32.to_ne_bytes())), None);
    }
}
