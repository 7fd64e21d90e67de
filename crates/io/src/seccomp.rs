//! A seccomp filter that keeps a process and its children away from the kernel's own IPsec.
//!
//! `uxfrm exec` redirects XFRM messages of programs to uxfrm by a preloaded library. This filter
//! covers what the library does not see: static programs, set-user-id programs, direct system
//! calls. They fail with `EPERM`, and nothing reaches the kernel by accident. `io_uring`, which
//! opens sockets past any filter, is refused entirely; programs fall back as on kernels without it.
//! It prevents accidents and is no sandbox.

use std::io;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter, sock_fprog,
};

/// Offsets in `struct seccomp_data`. Arguments are `int`s, so their lower half counts.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
}

/// The architecture's number, and the numbers of `socket` and `socketcall` in its other ABI
/// (filters cannot see the latter's arguments).
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "x86_64")]
const FOREIGN: [u32; 2] = [359, 102];
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "aarch64")]
const FOREIGN: [u32; 2] = [281, 102];

/// First system call number of x32, which shares the native architecture; others have none so high.
const X32: u32 = 0x4000_0000;

/// A forbidden call, with the values of its arguments by index.
struct Forbidden {
    call: libc::c_long,
    arguments: &'static [(u32, i32)],
}

const FORBIDDEN: [Forbidden; 8] = [
    Forbidden { call: libc::SYS_io_uring_setup, arguments: &[] },
    Forbidden { call: libc::SYS_socket, arguments: &[(0, libc::AF_KEY)] },
    Forbidden {
        call: libc::SYS_socket,
        arguments: &[(0, libc::AF_NETLINK), (2, libc::NETLINK_XFRM)],
    },
    Forbidden {
        call: libc::SYS_setsockopt,
        arguments: &[(1, libc::IPPROTO_UDP), (2, libc::UDP_ENCAP)],
    },
    Forbidden {
        call: libc::SYS_setsockopt,
        arguments: &[(1, libc::IPPROTO_IP), (2, libc::IP_XFRM_POLICY)],
    },
    Forbidden { call: libc::SYS_setsockopt, arguments: &[(1, libc::IPPROTO_IP), (2, 16)] }, // IP_IPSEC_POLICY
    Forbidden {
        call: libc::SYS_setsockopt,
        arguments: &[(1, libc::IPPROTO_IPV6), (2, libc::IPV6_XFRM_POLICY)],
    },
    Forbidden { call: libc::SYS_setsockopt, arguments: &[(1, libc::IPPROTO_IPV6), (2, 34)] }, // IPV6_IPSEC_POLICY
];

/// Keeps the calling thread, its children and the programs that it executes, for good, from
/// `NETLINK_XFRM` and `AF_KEY` sockets, and from IPsec policies and ESP encapsulation on any
/// socket.
///
/// Without `CAP_SYS_ADMIN` set-user-id programs give no privileges from then on
/// (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// `EINVAL` when the kernel has no system call filters.
pub fn forbid_kernel_ipsec() -> io::Result<()> {
    let mut filter = filter();
    match install(&mut filter) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: the call takes numbers only.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            install(&mut filter)
        }
        result => result,
    }
}

fn install(filter: &mut [sock_filter]) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to as many instructions as it says; the kernel copies them.
    let result = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Refuses all sockets of the other ABI, and the native calls in [`FORBIDDEN`].
fn filter() -> Vec<sock_filter> {
    let mut filter = vec![load(ARCHITECTURE), jump(BPF_JEQ, NATIVE, 6, 0), load(NUMBER)];
    for call in FOREIGN {
        filter.extend([jump(BPF_JEQ, call, 0, 1), deny()]);
    }
    filter.push(allow());
    filter.extend([load(NUMBER), jump(BPF_JGE, X32, 0, 1), deny()]);
    for forbidden in &FORBIDDEN {
        let tests = std::iter::once((NUMBER, u32::try_from(forbidden.call).unwrap_or(X32))).chain(
            forbidden
                .arguments
                .iter()
                .map(|(index, value)| (argument(*index), value.cast_unsigned())),
        );
        // A failed test jumps behind the rule: two instructions per remaining test, and the
        // verdict.
        let mut left = u8::try_from(forbidden.arguments.len()).unwrap_or(u8::MAX);
        for (offset, value) in tests {
            filter.extend([load(offset), jump(BPF_JEQ, value, 0, 2 * left + 1)]);
            left = left.saturating_sub(1);
        }
        filter.push(deny());
    }
    filter.push(allow());
    filter
}

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
}

fn jump(comparison: u32, value: u32, if_so: u8, if_not: u8) -> sock_filter {
    instruction(BPF_JMP | comparison | BPF_K, value, if_so, if_not)
}

fn allow() -> sock_filter {
    instruction(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0)
}

fn deny() -> sock_filter {
    instruction(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // Classes, sizes and modes are all below 256.
    sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(domain: i32, kind: i32, protocol: i32) -> Result<(), i32> {
        // SAFETY: the calls take numbers only, and the descriptor is closed once.
        unsafe {
            let descriptor = libc::socket(domain, kind, protocol);
            if descriptor < 0 {
                return Err(io::Error::last_os_error().raw_os_error().unwrap());
            }
            libc::close(descriptor);
        }
        Ok(())
    }

    fn sets(domain: i32, level: i32, name: i32) -> i32 {
        // SAFETY: the value is valid for its length, and the descriptor is closed once.
        unsafe {
            let descriptor = libc::socket(domain, libc::SOCK_DGRAM, 0);
            let value = 0_i32;
            libc::setsockopt(descriptor, level, name, (&raw const value).cast(), 4);
            let errno = io::Error::last_os_error().raw_os_error().unwrap();
            libc::close(descriptor);
            errno
        }
    }

    /// The filter applies to its thread, and the kernel gets only calls that it refuses.
    #[test]
    fn seccomp_filter_blocks_only_kernel_ipsec() {
        std::thread::spawn(|| {
            forbid_kernel_ipsec().unwrap();
            assert_eq!(
                opens(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM),
                Err(libc::EPERM)
            );
            assert_eq!(
                opens(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_XFRM),
                Err(libc::EPERM)
            );
            assert_eq!(opens(libc::AF_KEY, libc::SOCK_RAW, 2), Err(libc::EPERM));
            // SAFETY: no ring has so many entries, and a null pointer is none of ours.
            let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, u32::MAX, 0_usize) };
            let refused = io::Error::last_os_error().raw_os_error();
            assert_eq!((ring, refused), (-1, Some(libc::EPERM)), "io_uring opens sockets, too");
            assert_eq!(opens(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE), Ok(()));
            assert_eq!(opens(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP), Ok(()));
            assert_eq!(opens(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), Ok(()));
            for name in [16, libc::IP_XFRM_POLICY] {
                assert_eq!(sets(libc::AF_INET, libc::IPPROTO_IP, name), libc::EPERM);
            }
            assert_eq!(sets(libc::AF_INET, libc::IPPROTO_UDP, libc::UDP_ENCAP), libc::EPERM);
            assert_eq!(sets(libc::AF_INET, libc::IPPROTO_UDP, 9999), libc::ENOPROTOOPT);
            for name in [34, libc::IPV6_XFRM_POLICY] {
                assert_eq!(sets(libc::AF_INET6, libc::IPPROTO_IPV6, name), libc::EPERM);
            }
        })
        .join()
        .unwrap();
    }
}
