//! A TUN device: the host side of the gateway, with super-packets in and out.
//!
//! With `IFF_VNET_HDR` a `virtio_net_hdr` precedes every packet and describes pending segmentation
//! and checksums, as the buffer's [`Segments`] and [`Checksum`] do. Offloads are requested from
//! most to least, and a kernel that refuses them all gives a plain TUN: single packets with
//! complete checksums.
//!
//! Each read goes into two buffers, the first 2,048 bytes into one of the packet class and the rest
//! into a super-buffer that stays for the next read if unused: a small packet costs no
//! super-buffer.
//!
//! If the kernel refuses (`EINVAL`) a super-packet before it ever took one of that kind,
//! [`Port::accepts`] drops the kind and the caller segments from the next batch on. Later refusals
//! are that packet's own fault.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments};

use crate::clock;
use crate::mmsg::{SplitBuffer, nothing_waits, vector};
use crate::port::{Accepts, Port, Transmitted, wire_packets};
use crate::rtnetlink::Rtnetlink;
use crate::send_backoff::{SendBackoff, is_busy};
use crate::virtio::{HEADER, VirtioHeader};

const TUNGETIFF: libc::Ioctl = 0x8004_54d2_u32 as libc::Ioctl;
const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0_u32 as libc::Ioctl;

const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_TSO_ECN: libc::c_ulong = 0x08;
const TUN_F_USO4: libc::c_ulong = 0x20;
const TUN_F_USO6: libc::c_ulong = 0x40;

/// Super-packets per receive call: half a MiB, so that a batch stays in the cache.
const SUPERS_AT_ONCE: usize = 8;

/// Options of a TUN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunOptions {
    /// Up to 15 bytes; the kernel replaces `%d` by the first free number.
    pub name: String,
    /// How many queues of the device may be open (`IFF_MULTI_QUEUE`); see [`Tun::another_queue`].
    pub queues: QueueCount,
    /// Offloads to request.
    pub offload: TunOffload,
}

/// Number of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueCount {
    /// One.
    Single,
    /// One per worker; the kernel distributes flows.
    Several,
}

/// Position among a device's queues. The first one counts the device's drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// The first.
    First,
    /// Any other.
    Other,
}

/// Offloads of a TUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunOffload {
    /// Super-packets, with as many offloads as the kernel supports.
    Most,
    /// Single packets with complete checksums.
    Plain,
}

impl TunOptions {
    /// One queue with all offloads.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), queues: QueueCount::Single, offload: TunOffload::Most }
    }
}

/// One queue of a TUN device.
///
/// The device goes away with its last queue.
#[derive(Debug)]
pub struct Tun {
    file: File,
    options: TunOptions,
    header: bool,
    accepts: Accepts,
    proven: Accepts,
    slot: SplitBuffer,
    queue: Queue,
    /// The device's drops at the last count; `None` for all queues but the first, as the kernel
    /// counts by device.
    dropped: Option<u64>,
}

/// Estimates waiting times, as a TUN has no timestamps: if a read left packets behind, the next
/// first packet has waited since then.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// Time of the last read that left packets behind, in nanoseconds.
    left: Option<u64>,
    /// Least waiting time of the first packet read.
    waited: Duration,
}

impl Tun {
    /// Creates the device, or attaches to a persistent one of that name. It is down and has no
    /// addresses yet: see [`Rtnetlink`].
    ///
    /// # Errors
    /// The kernel's: no `/dev/net/tun`, not permitted, name in use or too long.
    pub fn open(options: &TunOptions) -> io::Result<Self> {
        let name = interface_name(&options.name)?;
        let attached = match options.offload {
            TunOffload::Most => Self::attach(options, name, Header::Virtio).ok(),
            TunOffload::Plain => None,
        };
        let tun = attached.map_or_else(|| Self::attach(options, name, Header::None), Ok)?;
        // An existing device may have dropped some.
        let dropped = Some(dropped_by(tun.name()).unwrap_or(0));
        Ok(Self { dropped, ..tun })
    }

    /// Continues with a predecessor's queue of the named device.
    ///
    /// # Errors
    /// The kernel's: no queue of a TUN.
    pub fn of_queue(queue: OwnedFd, options: &TunOptions, place: QueueOrder) -> io::Result<Self> {
        let file = File::from(queue);
        let mut request = Request { name: [0; 16], flags: 0, rest: [0; 22] };
        // SAFETY: TUNGETIFF writes one `ifreq`, of which `Request` has size and layout.
        check(unsafe { libc::ioctl(file.as_raw_fd(), TUNGETIFF, &raw mut request) })?;
        let has_header = i32::from(request.flags) & libc::IFF_VNET_HDR != 0;
        let header = if has_header { Header::Virtio } else { Header::None };
        let tun = Self::of(file, options, &request.name, header)?;
        let dropped = match place {
            QueueOrder::First => Some(dropped_by(tun.name()).unwrap_or(0)),
            QueueOrder::Other => None,
        };
        Ok(Self { dropped, ..tun })
    }

    /// Another queue of the same device, for another worker.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` when the device was opened with [`QueueCount::Single`].
    pub fn another_queue(&self) -> io::Result<Self> {
        let header = if self.header { Header::Virtio } else { Header::None };
        Self::attach(&self.options, interface_name(&self.options.name)?, header)
    }

    /// The device's name, its number filled in.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Its options, with the device's final name.
    #[must_use]
    pub fn options(&self) -> TunOptions {
        self.options.clone()
    }

    fn attach(options: &TunOptions, name: [u8; 16], header: Header) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
        if header == Header::Virtio {
            flags |= libc::IFF_VNET_HDR;
        }
        if options.queues == QueueCount::Several {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        let flags = u16::try_from(flags).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut request = Request { name, flags, rest: [0; 22] };
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, of which `Request` has size and layout.
        check(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) })?;
        Self::of(file, options, &request.name, header)
    }

    fn of(file: File, options: &TunOptions, name: &[u8; 16], header: Header) -> io::Result<Self> {
        let accepts = match header {
            Header::Virtio => negotiate(&file)?,
            Header::None => Accepts::PLAIN,
        };
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        Ok(Self {
            file,
            options: TunOptions { name, ..options.clone() },
            header: header == Header::Virtio,
            accepts,
            proven: Accepts::PLAIN,
            slot: SplitBuffer::default(),
            queue: Queue::default(),
            dropped: None,
        })
    }

    /// Reads one packet; `None` when none waits.
    fn read(&mut self, pool: &mut Pool) -> io::Result<Option<PacketBuf>> {
        let mut bytes = [0; HEADER];
        let lead = if self.header { HEADER } else { 0 };
        let [small, large] = self.slot.vectors(pool);
        let vectors = [vector(&mut bytes[..lead]), small, large];
        // SAFETY: the vectors point into `bytes` and the slot's buffers with their lengths,
        // borrowed by us alone.
        let read = unsafe { libc::readv(self.file.as_raw_fd(), vectors.as_ptr(), 3) };
        let Ok(read) = usize::try_from(read) else {
            return nothing_waits(io::Error::last_os_error()).map(|_| None);
        };
        let Some(len) = read.checked_sub(lead) else { return Ok(None) };
        let mut packet = self.slot.take(len, pool);
        if self.header {
            VirtioHeader::from_bytes(bytes).note(&mut packet);
        }
        Ok(Some(packet))
    }

    /// Writes one packet.
    fn write(&self, packet: &mut PacketBuf) -> io::Result<()> {
        let mut bytes = VirtioHeader::of(packet).to_bytes();
        let lead = if self.header { HEADER } else { 0 };
        let vectors = [vector(&mut bytes[..lead]), vector(packet.bytes_mut())];
        // SAFETY: the vectors point to live bytes with their lengths; the kernel only reads them.
        let written = unsafe { libc::writev(self.file.as_raw_fd(), vectors.as_ptr(), 2) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Writes one packet, waiting once per batch for room, and counts what became of it.
    fn send(&mut self, packet: &mut PacketBuf, backoff: &mut SendBackoff, done: &mut Transmitted) {
        if packet.udp.is_some() || !self.accepts.takes(packet) {
            return done.unsupported(packet);
        }
        let mut result = self.write(packet);
        if result.as_ref().is_err_and(is_busy) && backoff.wait(self.file.as_fd()) {
            result = self.write(packet);
        }
        match result {
            Ok(()) => {
                prove(&mut self.proven, packet);
                done.sent(packet);
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && self.give_up(packet) => {
                done.unsupported(packet);
            }
            Err(error) => done.refuse(wire_packets(packet), &error),
        }
    }

    /// Stops accepting super-packets of this kind if none ever succeeded; whether it did.
    fn give_up(&mut self, packet: &PacketBuf) -> bool {
        let gives_up = packet.segments != Segments::One && !self.proven.takes(packet);
        if gives_up {
            *kind(&mut self.accepts, packet) = false;
        }
        gives_up
    }
}

impl Queue {
    /// Records that the queue was emptied.
    fn was_emptied(&mut self) {
        self.waited = self.left.take().map_or(Duration::ZERO, since);
    }

    /// Records a read that may have left packets behind.
    fn was_cut(&mut self) {
        self.waited = self.left.map_or(Duration::ZERO, since);
        self.left = Some(clock::boot_nanoseconds());
    }
}

fn since(nanoseconds: u64) -> Duration {
    Duration::from_nanos(clock::boot_nanoseconds().saturating_sub(nanoseconds))
}

impl Port for Tun {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let (mut count, mut supers) = (0, 0);
        while into.room() > 0 && supers < SUPERS_AT_ONCE {
            let Some(packet) = self.read(pool)? else {
                self.queue.was_emptied();
                return Ok(count);
            };
            supers += usize::from(packet.len() > crate::mmsg::SMALL);
            count += 1;
            into.push(packet);
        }
        self.queue.was_cut();
        Ok(count)
    }

    fn waited(&self) -> Duration {
        self.queue.waited
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let (mut done, mut backoff) = (Transmitted::default(), SendBackoff::new());
        for mut packet in batch.drain() {
            self.send(&mut packet, &mut backoff, &mut done);
            pool.give(packet);
        }
        done
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn overflowed(&mut self) -> u64 {
        let Some(before) = self.dropped else { return 0 };
        // Without the counter no loss is known.
        let now = dropped_by(self.name()).unwrap_or(before);
        self.dropped = Some(now);
        now.saturating_sub(before)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// Packets for which a device had no room or no reader (`drivers/net/tun.c: tun_net_xmit`).
fn dropped_by(name: &str) -> Option<u64> {
    Rtnetlink::open().ok()?.transmit_drops(name).ok()
}

/// Header before each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    Virtio,
    None,
}

/// `struct ifreq` as TUNSETIFF uses it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// Requests offloads from most to least; returns those that the kernel took.
fn negotiate(file: &File) -> io::Result<Accepts> {
    let tso = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    let checksums = Accepts { partial_checksums: true, ..Accepts::PLAIN };
    let with_tso = Accepts { tcp4: true, tcp6: true, ..checksums };
    let with_uso = Accepts { udp4: true, udp6: true, ..with_tso };
    let steps = [
        (tso | TUN_F_TSO_ECN | TUN_F_USO4 | TUN_F_USO6, with_uso),
        (tso | TUN_F_TSO_ECN, with_tso),
        (tso, with_tso),
        (TUN_F_CSUM, checksums),
    ];
    for (flags, accepts) in steps {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        if check(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, flags) }).is_ok() {
            return Ok(accepts);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// A zero-terminated name for `ifreq`.
fn interface_name(name: &str) -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    if name.is_empty() || name.len() >= bytes.len() {
        let text = format!("interface name '{name}' must have 1 to 15 bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// The flag for a super-packet's kind.
fn kind<'a>(accepts: &'a mut Accepts, packet: &PacketBuf) -> &'a mut bool {
    let is_v6 = packet.bytes().first().is_some_and(|byte| byte >> 4 == 6);
    match (packet.segments, is_v6) {
        (Segments::Tcp { .. }, false) => &mut accepts.tcp4,
        (Segments::Tcp { .. }, true) => &mut accepts.tcp6,
        (Segments::Udp { .. }, false) => &mut accepts.udp4,
        (Segments::Udp { .. }, true) => &mut accepts.udp6,
        (Segments::One | Segments::Burst { .. }, _) => &mut accepts.bursts,
    }
}

/// Records that the kernel took a packet of this kind.
fn prove(proven: &mut Accepts, packet: &PacketBuf) {
    proven.partial_checksums |= matches!(packet.checksum, Checksum::Partial { .. });
    if packet.segments != Segments::One {
        *kind(proven, packet) = true;
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
