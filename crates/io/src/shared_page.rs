//! A page of memory shared with another process by a passed descriptor.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    ptr::{NonNull, null_mut},
    sync::atomic::AtomicU64,
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::memfd;

/// Bytes of a page.
const LENGTH: usize = 4096;
/// Words of a page.
pub const WORDS: usize = LENGTH / size_of::<AtomicU64>();

/// `SCM_MAX_FD`
const MOST_PASSED: usize = 253;

/// A shared page, mapped while this lives. The other process may write at any time, and cannot
/// shrink it: it is sealed.
#[derive(Debug)]
pub struct SharedPage(NonNull<[AtomicU64; WORDS]>);

// SAFETY: the mapping belongs to no thread, and all that is read or written there is atomic.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Creates a zeroed page, and sends its descriptor with a datagram over a Unix socket.
    ///
    /// # Errors
    /// The kernel's: out of descriptors or memory, or no room for the datagram.
    pub fn pass(socket: BorrowedFd<'_>, datagram: &[u8]) -> io::Result<Self> {
        let memory = memfd::sealed(c"uxfrm-mailbox", LENGTH)?;
        let page = Self::map(&memory)?;
        let (bytes, passed) = ([io::IoSlice::new(datagram)], [memory.as_raw_fd()]);
        let with = [ControlMessage::ScmRights(&passed)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(socket.as_raw_fd(), &bytes, &with, flags, None)?;
        Ok(page)
    }

    /// Receives a datagram with the page's descriptor; returns the datagram's length.
    ///
    /// # Errors
    /// The kernel's; `EPERM` for memory that its owner could shrink.
    pub fn receive(
        socket: BorrowedFd<'_>,
        datagram: &mut [u8],
    ) -> io::Result<(usize, Option<Self>)> {
        let mut bytes = [io::IoSliceMut::new(datagram)];
        // All received descriptors must be closed: padding alone has room for a second one.
        let mut space = nix::cmsg_space!([RawFd; MOST_PASSED]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut bytes, Some(&mut space), flags)?;
        let passed: Vec<_> = message
            .cmsgs()?
            .filter_map(|message| {
                let ControlMessageOwned::ScmRights(passed) = message else { return None };
                Some(passed)
            })
            .flatten()
            // SAFETY: the kernel has just given each of them to us.
            .map(|passed| unsafe { OwnedFd::from_raw_fd(passed) })
            .collect();
        // Further descriptors were not requested, and are closed.
        let memory = passed.into_iter().next();
        Ok((message.bytes, memory.map(Self::of).transpose()?))
    }

    fn of(memory: OwnedFd) -> io::Result<Self> {
        if memfd::length(&memory)? != LENGTH {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Self::map(&memory)
    }

    /// Maps memory that has a page and keeps it.
    fn map(memory: &OwnedFd) -> io::Result<Self> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, wherever the kernel wants it.
        let page = unsafe { libc::mmap(null_mut(), LENGTH, access, shared, memory.as_raw_fd(), 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// The words of the page.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the page is mapped until the drop, cannot shrink, is aligned to pages, and any
        // bytes are valid words.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: `map` mapped it, and no reference outlives this.
        unsafe { libc::munmap(self.0.as_ptr().cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd as _, os::unix::net::UnixDatagram, sync::atomic::Ordering};

    use nix::{
        fcntl::{FcntlArg, fcntl},
        sys::memfd::{MFdFlags, memfd_create},
        unistd::ftruncate,
    };

    use super::*;

    #[test]
    fn shared_page_is_visible_to_both() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let ours = SharedPage::pass(near.as_fd(), b"here").unwrap();
        let mut bytes = [0; 8];
        let (length, theirs) = SharedPage::receive(far.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"here");
        let theirs = theirs.unwrap();
        ours.words()[WORDS - 1].store(u64::MAX, Ordering::Relaxed);
        theirs.words()[0].store(7, Ordering::Relaxed);
        assert_eq!(theirs.words()[WORDS - 1].load(Ordering::Relaxed), u64::MAX);
        assert_eq!(ours.words()[0].load(Ordering::Relaxed), 7);
        near.send(b"alone").unwrap();
        let (length, none) = SharedPage::receive(far.as_fd(), &mut bytes).unwrap();
        assert!(length == 5 && none.is_none());
    }

    /// Each is the last writing end of a pipe but ours, so the reading end tells when it is closed.
    #[test]
    fn no_descriptor_is_left_open() {
        for count in [1, 2, 5, 253] {
            let (near, far) = UnixDatagram::pair().unwrap();
            let (mut reading, writing) = io::pipe().unwrap();
            let passed = vec![writing.as_raw_fd(); count];
            let (bytes, with) = ([io::IoSlice::new(b"x")], [ControlMessage::ScmRights(&passed)]);
            sendmsg::<()>(near.as_raw_fd(), &bytes, &with, MsgFlags::empty(), None).unwrap();
            drop(writing);
            let refused = SharedPage::receive(far.as_fd(), &mut [0; 8]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "a pipe has no seals");
            fcntl(&reading, FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
            let read = io::Read::read(&mut reading, &mut [0; 1]);
            assert_eq!(read.unwrap(), 0, "of {count} some are open");
        }
    }

    #[test]
    fn sealed_memfd_cannot_shrink() {
        let memory = File::from(memfd::sealed(c"sealed", LENGTH).unwrap());
        for length in [0, LENGTH as u64 - 1, 2 * LENGTH as u64] {
            let refused = memory.set_len(length).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        }
        let unsealed = memfd_create(c"unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, LENGTH as libc::off_t).unwrap();
        let refused = SharedPage::of(unsealed).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
