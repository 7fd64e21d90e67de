//! Memory that is passed to other processes by a descriptor, and that none of them can shrink.

use std::{ffi::CStr, io, os::fd::OwnedFd};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::fstat,
    },
    unistd::ftruncate,
};

/// Zeroed memory of fixed length.
pub(crate) fn sealed(name: &CStr, length: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&memory, libc::off_t::try_from(length).map_err(io::Error::other)?)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(memory)
}

/// Length of such memory.
///
/// # Errors
/// `EPERM` for memory that its owner could shrink; the kernel's.
pub(crate) fn length(memory: &OwnedFd) -> io::Result<usize> {
    let seals = SealFlag::from_bits_truncate(fcntl(memory, FcntlArg::F_GET_SEALS)?);
    if !seals.contains(SealFlag::F_SEAL_SHRINK) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    usize::try_from(fstat(memory)?.st_size).map_err(io::Error::other)
}
