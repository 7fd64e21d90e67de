//! The gateway's socket file, used when its abstract name is taken: only root can create it
//! ([`uxfrm_control::fallback_socket`]). Files of IKE daemons whose names are taken lie beside it.

use std::ffi::CStr;
use std::mem::zeroed;

use libc::{c_char, sockaddr_un, socklen_t};

use crate::gateway;
use uxfrm_control::fallback_socket::{DIRECTORY, LENGTH, NAMESPACE, path};

/// Of the longest path of a socket, with a zero byte.
const ROOM: usize = 108;
const _: () = assert!(LENGTH < ROOM);

/// The file's address and its length; `None` if no gateway has ever needed the file.
pub(crate) fn address(name: &[u8]) -> Option<(sockaddr_un, socklen_t)> {
    inode(DIRECTORY)?;
    let namespace = inode(NAMESPACE)?;
    let mut bytes = [0; LENGTH];
    let length = path(namespace, name, &mut bytes)?;
    gateway::address_of(&bytes[..length], gateway::Place::File).ok()
}

/// Has the owner of the directory own the file as well, as the gateway connects to it.
pub(crate) fn give_to_gateway(file: &sockaddr_un) {
    let directory = about(DIRECTORY.as_bytes());
    if let Some(owner) = directory.map(|found| found.st_uid) {
        // SAFETY: the path ends with a zero byte.
        let _root_alone = unsafe { libc::lchown(file.sun_path.as_ptr(), owner, u32::MAX) };
    }
}

fn inode(path: &str) -> Option<u64> {
    about(path.as_bytes()).map(|found| found.st_ino)
}

/// What the kernel knows of a file.
pub(crate) fn about(path: &[u8]) -> Option<libc::stat> {
    let mut text = [0; ROOM];
    text.get_mut(..path.len())?.copy_from_slice(path);
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    // SAFETY: all bytes zero is a valid `stat`.
    let mut found: libc::stat = unsafe { zeroed() };
    // SAFETY: the path ends with a zero byte, and `found` is valid.
    let result = unsafe { libc::stat(text.as_ptr().cast::<c_char>(), &raw mut found) };
    (result == 0).then_some(found)
}
