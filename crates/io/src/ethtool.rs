//! Features of an interface, as `ethtool -K` switches them. For set-up, not for the data path.

use std::io;
use std::os::fd::AsRawFd;

use crate::socket;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_SGRO` of `linux/ethtool.h`.
const SET_GRO: u32 = 0x2c;

/// Whether an interface of the calling thread's namespace joins what it receives (`ethtool -K NAME gro on|off`).
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `ENODEV`, or a name of more than 15 bytes.
pub fn set_gro(interface: &str, gro: Gro) -> io::Result<()> {
    let mut request = Request { name: [0; 16], value: std::ptr::null_mut(), rest: [0; 16] };
    if interface.is_empty() || interface.len() >= request.name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    request.name[..interface.len()].copy_from_slice(interface.as_bytes());
    let mut value = [SET_GRO, u32::from(gro == Gro::On)];
    request.value = value.as_mut_ptr();
    let socket = socket::open(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: SIOCETHTOOL reads one `ifreq`, of which `Request` has size and layout, and the `ethtool_value` that it points to: two
    // live u32.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Generic receive offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gro {
    /// Packets of a flow that follow each other are joined.
    On,
    /// They stay as they are.
    Off,
}

/// `struct ifreq` as SIOCETHTOOL uses it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    value: *mut u32,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_said_so() {
        let error = set_gro("no-such-thing", Gro::On).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{error}");
        assert!(set_gro("a-name-of-17-byte", Gro::On).is_err());
    }
}
