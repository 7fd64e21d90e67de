//! UMEM: the memory that an `AF_XDP` socket receives into and sends from, in frames of one size,
//! each the kernel's or ours.
//!
//! It is a memfd, so that a successor process can map the same frames: those that the kernel has
//! stay the kernel's. The rest of the state is [in front of them](SavedState).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use super::mapping::Mapping;
use super::saved_state::{self, SavedState, UmemLayout};
use crate::memfd;

/// All frames of a socket, identified by their offsets.
#[derive(Debug)]
pub(super) struct Umem {
    mapping: Mapping,
    frame: u32,
    saved_state: SavedState,
    memory: OwnedFd,
}

/// Headroom before received frames (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Frame sizes that kernels take without huge pages: powers of two from 2 KiB to a page.
pub(super) const SIZES: [u32; 2] = [2048, 4096];

impl Umem {
    /// Creates receive and transmit frames for link-layer frames of up to `longest` bytes; `None`
    /// if that exceeds the largest size.
    pub(super) fn new(received: u32, sent: u32, longest: u32) -> Option<io::Result<Self>> {
        let frame = Self::most(longest)? + HEADROOM;
        let layout = UmemLayout { received, sent, frame };
        let made = || {
            let memory = memfd::sealed(c"uxfrm-frames", saved_state::LENGTH + layout.bytes())?;
            let saved_state = SavedState::begin(&memory, layout)?;
            Self::map(memory, saved_state)
        };
        Some(made())
    }

    /// Opens a predecessor's memory.
    ///
    /// # Errors
    /// As [`SavedState::of`].
    pub(super) fn of(memory: OwnedFd) -> io::Result<Self> {
        let saved_state = SavedState::of(&memory)?;
        Self::map(memory, saved_state)
    }

    fn map(memory: OwnedFd, saved_state: SavedState) -> io::Result<Self> {
        let UmemLayout { frame, .. } = saved_state.layout();
        let start = libc::off_t::try_from(saved_state::LENGTH).map_err(io::Error::other)?;
        let mapping = Mapping::shared(memory.as_fd(), start, saved_state.layout().bytes())?;
        Ok(Self { mapping, frame, saved_state, memory })
    }

    /// The state in front of the frames.
    pub(super) const fn saved_state(&self) -> &SavedState {
        &self.saved_state
    }

    /// The memfd.
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Whether frames are of the right size for `longest` bytes.
    pub(super) fn suits(&self, longest: u32) -> bool {
        Self::most(longest) == Some(self.frame - HEADROOM)
    }

    /// Longest link-layer frame that fits into the frame size for `longest` bytes; `None` if that
    /// exceeds the largest size.
    pub(super) fn most(longest: u32) -> Option<u32> {
        let frame = SIZES.into_iter().find(|size| longest <= size - HEADROOM)?;
        Some(frame - HEADROOM)
    }

    /// Bytes of all of them.
    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Registers them with a socket.
    pub(super) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let start = self.mapping.place::<u8>(0, self.mapping.len()).ok_or(io::ErrorKind::Other)?;
        let frames = libc::xdp_umem_reg {
            addr: start.addr().get() as u64,
            len: self.mapping.len() as u64,
            chunk_size: self.frame,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        // SAFETY: the pointer is to a live xdp_umem_reg of the length given, which names pages that
        // live as long as the socket: it owns both.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_XDP,
                libc::XDP_UMEM_REG,
                (&raw const frames).cast(),
                u32::try_from(size_of::<libc::xdp_umem_reg>()).unwrap_or(0),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Offsets of all frames.
    pub(super) fn frames(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.mapping.len() as u64).step_by(self.frame as usize)
    }

    /// Number of the frame at this offset.
    pub(super) fn number(&self, frame: u64) -> u32 {
        u32::try_from(frame / u64::from(self.frame)).unwrap_or(u32::MAX)
    }

    /// Offset of the frame of this number.
    pub(super) fn place(&self, number: u32) -> u64 {
        u64::from(number) * u64::from(self.frame)
    }

    /// The frame that contains an address.
    #[inline]
    pub(super) fn frame_of(&self, address: u64) -> u64 {
        address & !u64::from(self.frame - 1)
    }

    /// A received packet. The frame must be ours.
    #[inline]
    pub(super) fn bytes(&self, address: u64, len: u32) -> Option<&[u8]> {
        let len = len as usize;
        let start = self.mapping.place::<u8>(usize::try_from(address).ok()?, len)?;
        // SAFETY: within the mapping, whose bytes are initialised; the kernel leaves frames alone
        // that are ours, and so does the process that had them before or has them next, as one of
        // the two rests; nobody else writes there while we are borrowed.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// The first bytes of a frame of ours; `None` if it is shorter.
    #[inline]
    #[expect(clippy::needless_pass_by_ref_mut, reason = "what it gives is borrowed alone")]
    pub(super) fn bytes_mut(&mut self, frame: u64, len: usize) -> Option<&mut [u8]> {
        if len > self.frame as usize {
            return None;
        }
        let start = self.mapping.place::<u8>(usize::try_from(frame).ok()?, len)?;
        // SAFETY: as above, and we are borrowed alone.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umem_frame_size_fits_mtu() {
        for (longest, expected) in
            [(1514, Some(2048)), (1792, Some(2048)), (1793, Some(4096)), (3840, Some(4096))]
        {
            let umem = Umem::new(2, 2, longest).map(Result::unwrap);
            assert_eq!(umem.map(|umem| umem.frame), expected);
        }
        assert!(Umem::new(2, 2, 3841).is_none());
    }

    #[test]
    fn bytes_outside_umem_are_none() {
        let mut umem = Umem::new(1, 1, 1514).unwrap().unwrap();
        assert_eq!(umem.frames().collect::<Vec<_>>(), [0, 2048]);
        umem.bytes_mut(2048, 3).unwrap().copy_from_slice(b"abc");
        assert_eq!(umem.bytes(2049, 2), Some(&b"bc"[..]));
        assert_eq!(umem.frame_of(2048 + 256), 2048);
        assert!(umem.bytes(4095, 2).is_none() && umem.bytes_mut(0, 2049).is_none());
        assert!(umem.bytes(u64::MAX, 1).is_none() && umem.bytes_mut(4096, 1).is_none());
    }

    #[test]
    fn umem_reopens_with_same_frames() {
        let mut ours = Umem::new(2, 2, 1514).unwrap().unwrap();
        let theirs = Umem::of(ours.memory().try_clone_to_owned().unwrap()).unwrap();
        let last = ours.frames().last().unwrap();
        ours.bytes_mut(last, 3).unwrap().copy_from_slice(b"abc");
        assert_eq!(theirs.bytes(last, 3), Some(&b"abc"[..]));
        assert_eq!((theirs.number(last), theirs.place(3)), (3, last));
        assert!(theirs.suits(1514) && !theirs.suits(3000));
    }
}
