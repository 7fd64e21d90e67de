//! Captures packets of an interface through a packet socket.
//!
//! Frames come as IP packets without link header (`SOCK_DGRAM`). The kernel shows them before
//! segmentation on the way out and after GRO on the way in, so a frame may exceed the MTU.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::socket;

/// One captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// The IP packet from its first byte, cut at 65,536.
    pub bytes: Vec<u8>,
    /// Direction of the packet.
    pub direction: CaptureDirection,
}

/// Direction of a packet at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// An open capture. It starts with [`open`](Self::open) and buffers packets as far as there is
/// room.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl Capture {
    /// Starts to capture IPv4 and IPv6 on the interface of that index. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The kernel's: not permitted, no such interface.
    pub fn open(interface: u32) -> io::Result<Self> {
        let all = u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be();
        let socket = socket::open(libc::AF_PACKET, libc::SOCK_DGRAM, i32::from(all))?;
        let mut address = empty_address();
        address.sll_protocol = all;
        address.sll_ifindex =
            i32::try_from(interface).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        let length = u32::try_from(size_of_val(&address)).unwrap_or_default();
        // SAFETY: the pointer is to a live sockaddr_ll and the length is its own.
        let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, buffer: vec![0; 65_536].into_boxed_slice() })
    }

    /// The next packet that `wanted` picks, waiting for it up to `most`; `None` when none came.
    ///
    /// # Errors
    /// The kernel's: interface gone or down.
    pub fn next(
        &mut self,
        most: Duration,
        mut wanted: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<CapturedPacket>> {
        let deadline = Instant::now() + most;
        loop {
            match self.read()? {
                Some((len, direction)) if wanted(&self.buffer[..len]) => {
                    return Ok(Some(CapturedPacket {
                        bytes: self.buffer[..len].to_vec(),
                        direction,
                    }));
                }
                Some(_unwanted) => {}
                None if Instant::now() >= deadline => return Ok(None),
                None => self.wait(deadline.saturating_duration_since(Instant::now())),
            }
        }
    }

    /// Reads one waiting packet into the buffer.
    fn read(&mut self) -> io::Result<Option<(usize, CaptureDirection)>> {
        let mut address = empty_address();
        let mut length = u32::try_from(size_of_val(&address)).unwrap_or_default();
        // SAFETY: the pointers are to the live buffer, a live sockaddr_ll and its length.
        let read = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                self.buffer.as_mut_ptr().cast(),
                self.buffer.len(),
                0,
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        let Ok(len) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        };
        let is_out = address.sll_pkttype == libc::PACKET_OUTGOING;
        Ok(Some((len, if is_out { CaptureDirection::Out } else { CaptureDirection::In })))
    }

    fn wait(&self, most: Duration) {
        let mut poll =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let most = i32::try_from(most.as_millis()).unwrap_or(i32::MAX).saturating_add(1);
        // SAFETY: one live pollfd. Its result does not matter: the next read tells.
        unsafe { libc::poll(&raw mut poll, 1, most) };
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn empty_address() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: 17,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}
