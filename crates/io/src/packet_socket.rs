//! A network device through an `AF_PACKET` socket: frames past the host's stack, with super-packets
//! in and out.
//!
//! Every frame has a `virtio_net_hdr` before it (`PACKET_VNET_HDR`), as on a TUN: super-packets
//! joined by GRO or by a virtual link's peer come whole, and leave whole. `recvmmsg` and `sendmmsg`
//! move many at once, with a vector each for the virtio header, the Ethernet header, and the
//! packet, which so begins at the engine's offset. A ring (`TPACKET_V3`) would save the calls' cost
//! per message, but copies once more out of its blocks, and its transmit slots are all of one size,
//! so super-packets would need 64 KiB each.
//!
//! A classic BPF filter runs before the kernel copies: it accepts only untagged IPv4 and IPv6
//! frames to the device's own address. The kernel has removed VLAN tags by then and reports them;
//! VLAN 0 is a priority tag (IEEE 802.1Q §6.9.3), whose frames count as untagged. The host's stack
//! gets its own copy: the caller must keep it from processing them, too.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use uxfrm_packet::ethernet::EthernetHeader;
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments};
use zerocopy::IntoBytes;

use crate::frames::{FramePort, Frames};
use crate::mmsg::{EMPTY, MESSAGES, SMALL, SplitBuffer, nothing_waits, vector};
use crate::port::{Accepts, Transmitted, wire_packets};
use crate::recv_batch_size::RecvBatchSize;
use crate::send_backoff::{SendBackoff, is_busy};
use crate::socket;
use crate::virtio::{HEADER, VirtioHeader};

/// Bytes of an Ethernet header.
const ETHERNET: usize = size_of::<EthernetHeader>();

const ETH_P_ALL: u16 = 0x0003;
const PACKET_IGNORE_OUTGOING: i32 = 23;

/// Super-packets per receive call: half a MiB, so that a batch stays in the cache.
const SUPERS_AT_ONCE: usize = 8;

/// Options of a packet socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketSocketOptions {
    /// The device's index.
    pub link: u32,
    /// Fanout group: sockets with the same number share the device's frames by flow
    /// (`PACKET_FANOUT_HASH`).
    pub fanout: Option<u16>,
    /// Bytes of kernel buffer to ask for in each direction.
    pub buffer: usize,
}

impl PacketSocketOptions {
    /// All frames of a device, 8 MiB of kernel buffer each way.
    #[must_use]
    pub fn new(link: u32) -> Self {
        Self { link, fanout: None, buffer: 8 << 20 }
    }
}

/// A packet socket as a port.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    slots: Box<[SplitBuffer]>,
    supers_arrive: bool,
    batch_size: RecvBatchSize,
    parts: Vec<OutMessage>,
}

/// One message to send: a piece of a buffer.
#[derive(Clone, Copy, Debug)]
struct OutMessage {
    packet: usize,
    start: usize,
    len: usize,
    virtio: [u8; HEADER],
}

impl PacketSocket {
    /// Opens a socket on a device. Needs `CAP_NET_RAW` in the user namespace that owns the network
    /// namespace.
    ///
    /// # Errors
    /// The kernel's: not permitted, no such device.
    pub fn open(options: &PacketSocketOptions) -> io::Result<Self> {
        // Protocol 0: no frame arrives before the filter is in place.
        let socket = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let fd = socket.as_fd();
        socket::set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        socket::set(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        socket::enlarge(fd, options.buffer)?;
        attach(fd, &FILTER)?;
        bind(fd, options.link)?;
        if let Some(number) = options.fanout {
            let group = i32::from(number) | libc::PACKET_FANOUT_HASH.cast_signed() << 16;
            socket::set(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, group)?;
        }
        Ok(Self::of(socket))
    }

    /// Continues with a predecessor's socket, its queue and its share of the frames.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_socket(socket: OwnedFd) -> io::Result<Self> {
        // The other release's filter may differ.
        attach(socket.as_fd(), &FILTER)?;
        Ok(Self::of(socket))
    }

    fn of(socket: OwnedFd) -> Self {
        Self {
            socket,
            slots: (0..MESSAGES).map(|_| SplitBuffer::default()).collect(),
            supers_arrive: false,
            batch_size: RecvBatchSize::new(),
            parts: Vec::with_capacity(MESSAGES),
        }
    }

    /// One `recvmmsg` of up to `asked` frames into `into`; how many.
    fn receive_some(
        &mut self,
        asked: usize,
        pool: &mut Pool,
        into: &mut Batch,
    ) -> io::Result<usize> {
        let mut virtio = [[0; HEADER]; MESSAGES];
        let mut ethernet = [[0; ETHERNET]; MESSAGES];
        let mut vectors = [const { MaybeUninit::<[libc::iovec; 4]>::uninit() }; MESSAGES];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES];
        for index in 0..asked {
            let [small, large] = self.slots[index].vectors(pool);
            let [virtio, ethernet] = [vector(&mut virtio[index]), vector(&mut ethernet[index])];
            let vectors = vectors[index].write([virtio, ethernet, small, large]);
            let header = headers[index].write(EMPTY);
            header.msg_hdr.msg_iov = vectors.as_mut_ptr();
            header.msg_hdr.msg_iovlen = vectors.len();
        }
        // SAFETY: the first `asked` headers are filled in and point into `vectors`, and those into
        // `virtio`, `ethernet` and the slots' buffers with their lengths; none of them moves during
        // the call, and all are borrowed by us alone.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                u32::try_from(asked).unwrap_or(0),
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return nothing_waits(io::Error::last_os_error());
        };
        self.supers_arrive = false;
        for (index, header) in headers.iter().take(count).enumerate() {
            // SAFETY: filled in above.
            let len = unsafe { header.assume_init_ref() }.msg_len as usize;
            let len = len.saturating_sub(HEADER + ETHERNET);
            self.supers_arrive |= len > SMALL;
            let mut packet = self.slots[index].take(len, pool);
            VirtioHeader::from_bytes(virtio[index]).behind(ETHERNET).note(&mut packet);
            into.push(packet);
        }
        Ok(count)
    }

    /// Queues one buffer, a message for each frame.
    fn queue(
        &mut self,
        index: usize,
        frames: &Frames,
        backoff: &mut SendBackoff,
        done: &mut Transmitted,
    ) {
        let packet = &frames.packets()[index];
        if packet.udp.is_some() {
            return done.unsupported(packet);
        }
        let step = match packet.segments {
            Segments::Burst { stride } => usize::from(stride.max(1)),
            Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
        };
        let virtio = VirtioHeader::of(packet).before(ETHERNET).to_bytes();
        for start in (0..packet.len()).step_by(step) {
            if self.parts.len() == MESSAGES {
                self.flush(frames, backoff, done);
            }
            let len = step.min(packet.len() - start);
            self.parts.push(OutMessage { packet: index, start, len, virtio });
        }
    }

    /// Sends what is queued, waiting once per batch for room.
    fn flush(&mut self, frames: &Frames, backoff: &mut SendBackoff, done: &mut Transmitted) {
        let mut at = 0;
        while at < self.parts.len() {
            match self.send_from(at, frames) {
                Ok(sent) => {
                    for part in &self.parts[at..at + sent] {
                        let packet = &frames.packets()[part.packet];
                        done.packets += pieces(packet);
                        done.bytes += part.len as u64;
                    }
                    at += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_busy(&error) && backoff.wait(self.socket.as_fd()) => {}
                Err(error) => {
                    done.refuse(pieces(&frames.packets()[self.parts[at].packet]), &error);
                    at += 1;
                }
            }
        }
        self.parts.clear();
    }

    /// One `sendmmsg` of the messages from `at` on; how many went out.
    fn send_from(&mut self, at: usize, frames: &Frames) -> io::Result<usize> {
        let mut vectors = [const { MaybeUninit::<[libc::iovec; 3]>::uninit() }; MESSAGES];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES];
        let parts = &self.parts[at..];
        for (index, part) in parts.iter().enumerate() {
            let bytes = &frames.packets()[part.packet].bytes()[part.start..part.start + part.len];
            let ethernet = frames.headers()[part.packet].as_bytes();
            let vectors = vectors[index].write([&part.virtio[..], ethernet, bytes].map(readable));
            let header = headers[index].write(EMPTY);
            header.msg_hdr.msg_iov = vectors.as_mut_ptr();
            header.msg_hdr.msg_iovlen = vectors.len();
        }
        // SAFETY: as many headers as parts are filled in and point into `vectors`, and those to
        // live bytes with their lengths; the kernel only reads them, and none moves during the
        // call.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                u32::try_from(parts.len()).unwrap_or(0),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(sent) {
            Ok(0) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            Ok(sent) => Ok(sent),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

impl FramePort for PacketSocket {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        while into.room() > 0 {
            let most = if self.supers_arrive { SUPERS_AT_ONCE } else { MESSAGES }.min(into.room());
            let asked = self.batch_size.of(most);
            let count = self.receive_some(asked, pool, into)?;
            self.batch_size.note(asked, count, MESSAGES);
            if count < asked || self.supers_arrive {
                break;
            }
        }
        Ok(into.len() - before)
    }

    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted {
        let (mut done, mut backoff) = (Transmitted::default(), SendBackoff::new());
        for index in 0..frames.len() {
            self.queue(index, frames, &mut backoff, &mut done);
        }
        self.flush(frames, &mut backoff, &mut done);
        frames.give_all(pool);
        done
    }

    fn lost(&mut self) -> u64 {
        // Without statistics no loss is known.
        socket::packets_lost(self.socket.as_fd()).unwrap_or(0).into()
    }

    /// Everything: the kernel segments what the device can't.
    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// Number of packets on the wire per message.
fn pieces(packet: &PacketBuf) -> u64 {
    match packet.segments {
        Segments::Burst { .. } => 1,
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => wire_packets(packet),
    }
}

/// A vector that the kernel only reads.
fn readable(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// One instruction of classic BPF.
const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    #[expect(clippy::cast_possible_truncation, reason = "the codes have 16 bits")]
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// Load, jump if equal, return (`linux/bpf_common.h`), and offsets of metadata (`linux/filter.h`).
const LOAD_WORD: u32 = 0x20;
const LOAD_HALF: u32 = 0x28;
const AND: u32 = 0x54;
const JUMP_EQUAL: u32 = 0x15;
const RETURN: u32 = 0x06;
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const VLAN_TAG: u32 = 0xffff_f000 + 44;
const ALL_BYTES: u32 = 0x0004_0000;

/// To this host, without VLAN (no tag reads as 0), IPv4 or IPv6.
const FILTER: [libc::sock_filter; 10] = [
    step(LOAD_WORD, 0, 0, PACKET_TYPE),
    step(JUMP_EQUAL, 0, 7, libc::PACKET_HOST as u32),
    step(LOAD_WORD, 0, 0, VLAN_TAG),
    step(AND, 0, 0, 0x0fff),
    step(JUMP_EQUAL, 0, 4, 0),
    step(LOAD_HALF, 0, 0, 12),
    step(JUMP_EQUAL, 1, 0, 0x0800),
    step(JUMP_EQUAL, 0, 1, 0x86dd),
    step(RETURN, 0, 0, ALL_BYTES),
    step(RETURN, 0, 0, 0),
];

fn attach(socket: BorrowedFd<'_>, filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program points to live instructions, which the kernel copies.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            u32::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn bind(socket: BorrowedFd<'_>, link: u32) -> io::Result<()> {
    // SAFETY: a sockaddr_ll is integers, for which zero bytes are valid.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    name.sll_protocol = ETH_P_ALL.to_be();
    name.sll_ifindex = link.cast_signed();
    // SAFETY: the pointer is to a live name of the length given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const name).cast(),
            u32::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uxfrm_packet::Checksum;

    #[test]
    fn the_filter_ends_in_a_return_whichever_way_it_goes() {
        for (place, step) in FILTER.iter().enumerate() {
            if u32::from(step.code) == JUMP_EQUAL {
                for jump in [step.jt, step.jf] {
                    assert!(place + 1 + usize::from(jump) < FILTER.len());
                }
            }
        }
        let jumps_to_refuse = [(1, 7), (4, 4), (7, 1)];
        for (place, jump) in jumps_to_refuse {
            assert_eq!(FILTER[place].jf, jump);
            let target = FILTER[place + 1 + usize::from(jump)];
            assert_eq!((u32::from(target.code), target.k), (RETURN, 0));
        }
    }

    #[test]
    fn virtio_offsets_convert_between_frame_and_packet() {
        let mut packet = PacketBuf::from_slice(&[0x45; 3000]);
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        packet.segments = Segments::Tcp { mss: 1400 };
        packet.bytes_mut()[32] = 5 << 4;
        let shifted = VirtioHeader::of(&packet).before(ETHERNET);
        assert_eq!(u16::from_ne_bytes([shifted.to_bytes()[6], shifted.to_bytes()[7]]), 34);
        assert_eq!(u16::from_ne_bytes([shifted.to_bytes()[2], shifted.to_bytes()[3]]), 54);
        let mut other = PacketBuf::from_slice(packet.bytes());
        shifted.behind(ETHERNET).note(&mut other);
        assert_eq!((other.segments, other.checksum), (packet.segments, packet.checksum));
    }
}
