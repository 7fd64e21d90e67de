//! A socket behaves as one of netlink does.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use uxfrm_control::greeting::{Dialect, Greeting, GreetingKind, LENGTH};

use crate::{
    server::{MARK, inside, run_inside, with_server},
    socket::{
        ask, bind, brief_socket, close, errno, name, option, set, set_bytes, set_none, xfrm_socket,
    },
};

/// For what comes at once.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn socket_behaves_like_netlink() {
    inside("manners::inside_manners");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_manners() {
    let descriptor = xfrm_socket();
    assert_eq!(name(descriptor), (16, 0, 0, 12));
    for (name, value) in
        [(libc::SO_DOMAIN, 16), (libc::SO_PROTOCOL, 6), (libc::SO_TYPE, libc::SOCK_RAW)]
    {
        assert_eq!(option(descriptor, libc::SOL_SOCKET, name), value);
    }
    assert_eq!(bind(descriptor, 0, 0), 0);
    assert_eq!(name(descriptor), (16, std::process::id(), 0, 12));
    assert_eq!(bind(descriptor, 12345, 0), libc::EINVAL);
    assert_eq!(ask(descriptor), (28, 7, std::process::id(), 0));

    let netlink = libc::SOL_NETLINK;
    assert_eq!(set(descriptor, netlink, libc::NETLINK_ADD_MEMBERSHIP, 3), 0);
    assert_eq!(option(descriptor, netlink, libc::NETLINK_LIST_MEMBERSHIPS), 4);
    assert_eq!(set(descriptor, netlink, libc::NETLINK_DROP_MEMBERSHIP, 3), 0);
    assert_eq!(name(descriptor).2, 0);
    assert_eq!(set(descriptor, netlink, libc::NETLINK_CAP_ACK, 1), 0);
    assert_eq!(option(descriptor, netlink, libc::NETLINK_CAP_ACK), 1);
    assert_eq!(option(descriptor, netlink, libc::NETLINK_EXT_ACK), 0);
    assert_eq!(set(descriptor, netlink, 77, 1), libc::ENOPROTOOPT);

    let chosen = xfrm_socket();
    assert_eq!(bind(chosen, std::process::id(), 0), libc::EADDRINUSE);
    assert_eq!(bind(chosen, 12345, 0), 0);
    assert_eq!(ask(chosen), (28, 7, 12345, 0));
    let silent = xfrm_socket();
    assert_eq!(ask(silent).0, 28, "the first message gives a port");

    // SAFETY: the calls take no pointers.
    unsafe {
        assert_eq!(libc::socket(libc::AF_NETLINK, libc::SOCK_STREAM, libc::NETLINK_XFRM), -1);
        assert_eq!(errno(), libc::ESOCKTNOSUPPORT);
        assert_eq!(libc::socket(libc::AF_KEY, libc::SOCK_RAW, 2), -1);
        assert_eq!(errno(), libc::EAFNOSUPPORT);
        let flags = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let quick = libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_XFRM);
        assert_eq!(libc::recv(quick, std::ptr::null_mut(), 0, 0), -1);
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!(libc::fcntl(quick, libc::F_GETFD), libc::FD_CLOEXEC);
        assert_eq!(libc::fcntl(descriptor, libc::F_GETFD), 0);
    }
}

#[test]
fn each_socket_has_its_own_port_id() {
    inside("manners::inside_ports");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_ports() {
    let mut ports: Vec<_> = (0..500)
        .map(|_| {
            let descriptor = xfrm_socket();
            assert_eq!(bind(descriptor, 0, 0), 0);
            name(descriptor).1
        })
        .collect();
    assert_eq!(ports[0], std::process::id());
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 500);
}

#[test]
fn socket_survives_dup_and_fork() {
    inside("manners::inside_copies");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_copies() {
    let descriptor = xfrm_socket();
    assert_eq!(bind(descriptor, 0, 0), 0);
    // SAFETY: the calls take no pointers; the child only calls what a signal handler may.
    unsafe {
        let copies = [
            libc::dup(descriptor),
            libc::dup2(descriptor, 200),
            libc::dup3(descriptor, 201, libc::O_CLOEXEC),
            libc::fcntl(descriptor, libc::F_DUPFD, 210),
            libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 211),
        ];
        assert_eq!(libc::close(descriptor), 0);
        for copy in copies {
            assert_eq!(name(copy).1, std::process::id(), "copy {copy}");
            assert_eq!(ask(copy).0, 28);
        }
        let udp = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        assert_eq!(libc::dup2(udp, 200), 200);
        assert_eq!(c_int::from(name(200).0), libc::AF_INET, "it is an ordinary socket now");
        libc::close_range(201, 201, 0);
        assert_eq!(libc::dup2(udp, 201), 201);
        assert_eq!(c_int::from(name(201).0), libc::AF_INET);

        let child = libc::fork();
        if child == 0 {
            libc::close(copies[0]);
            let answered = ask(copies[3]).0 == 28;
            libc::_exit(if answered { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    assert_eq!(LENGTH, 28);
}

#[test]
fn vfork_child_does_not_close_parents_sockets() {
    inside("manners::inside_vfork");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_vfork() {
    /// What programs do between `vfork` and `exec`.
    extern "C" fn close_all(descriptor: *mut libc::c_void) -> c_int {
        // SAFETY: it is a number, which outlives the child; the other calls take no pointers.
        unsafe {
            let descriptor = descriptor.cast::<c_int>().read();
            libc::dup2(descriptor, 190);
            libc::dup2(0, descriptor);
            libc::close(descriptor);
            libc::close_range(3, c_int::MAX.unsigned_abs(), 0).abs()
        }
    }
    let parked = brief_socket();
    assert_eq!(bind(parked, 0, 0), 0);
    let mut descriptor = xfrm_socket();
    assert_eq!((bind(descriptor, 77, 0), close(parked)), (0, 0));
    let mut stack = vec![0_u8; 64 * 1024];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut status = -1;
    // SAFETY: the child has a stack of its own, which grows down from its end, and calls only what
    // a signal handler may.
    unsafe {
        let end = stack.as_mut_ptr_range().end.cast();
        let child = libc::clone(close_all, end, flags, (&raw mut descriptor).cast());
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!(status, 0);
    assert_eq!(name(descriptor).1, 77, "it is a netlink socket still");
    assert_eq!(ask(descriptor).0, 28);
    // SAFETY: the call takes no pointers.
    let ordinary = unsafe { libc::dup2(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0), 190) };
    assert_eq!(c_int::from(name(ordinary).0), libc::AF_INET);
    assert_eq!(brief_socket(), parked, "the connection that was parked is there still");
    assert_eq!(ask(parked).0, 28);
}

#[test]
fn kernel_sysctls_are_not_changed() {
    with_server(|heard| {
        run_inside("manners::inside_settings");
        // Nobody answers, so the program may have ended before all is heard.
        let [hello, seconds] = [(); 2].map(|()| heard.recv_timeout(PATIENCE).unwrap());
        let hello = Greeting::parse(&hello).unwrap();
        assert_eq!(
            (hello.kind, hello.value),
            (GreetingKind::Hello, Dialect::AcquireExpires as u32)
        );
        assert_eq!(seconds, b"165\n");
        assert!(heard.try_recv().is_err(), "and nothing else");
    });
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_settings() {
    let path = "/proc/sys/net/core/xfrm_acq_expires";
    let before = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, "165\n").unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), before);
    std::fs::write("/proc/sys/net/core/xfrm_larval_drop", "0").unwrap();
    let other = "/proc/sys/net/core/somaxconn";
    std::fs::write(other, "4321").unwrap();
    assert_eq!(std::fs::read_to_string(other).unwrap().trim(), "4321");
}

/// Programs built with `_FORTIFY_SOURCE` open by other functions, and the C library opens streams
/// itself.
#[test]
fn sysctl_is_intercepted_by_every_open_function() {
    with_server(|heard| {
        run_inside("manners::inside_ways");
        // Each connection has a thread there, so that one may be heard before another.
        let (mut seconds, mut hellos) = (Vec::new(), 0);
        for said in [(); 12].map(|()| heard.recv_timeout(PATIENCE).unwrap()) {
            match Greeting::parse(&said) {
                Some(hello) => {
                    assert_eq!(hello.value, Dialect::AcquireExpires as u32);
                    hellos += 1;
                }
                None => seconds.extend(said),
            }
        }
        seconds.sort_unstable();
        assert_eq!((seconds.as_slice(), hellos), (b"123456".as_slice(), 6));
        assert!(heard.try_recv().is_err(), "and nothing else");
    });
}

unsafe extern "C" {
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_ways() {
    let (path, other) =
        (c"/proc/sys/net/core/xfrm_acq_expires", c"/proc/sys/net/core/xfrm_larval_drop");
    let read = |path: &CStr| std::fs::read_to_string(path.to_str().unwrap()).unwrap();
    let before = (read(path), read(other));
    let write = libc::O_WRONLY;
    // SAFETY: all paths and modes end with a zero byte, and what is opened is written and closed
    // once.
    unsafe {
        let ways: [&dyn Fn(&CStr) -> c_int; 4] = [
            &|path| __open_2(path.as_ptr(), write),
            &|path| __open64_2(path.as_ptr(), write),
            &|path| __openat_2(libc::AT_FDCWD, path.as_ptr(), write),
            &|path| __openat64_2(libc::AT_FDCWD, path.as_ptr(), write),
        ];
        for (way, text) in ways.into_iter().zip([c"1", c"2", c"3", c"4"]) {
            for path in [other, path] {
                let file = way(path);
                assert_eq!(libc::write(file, text.as_ptr().cast(), 1), 1);
                assert_eq!(libc::close(file), 0);
            }
        }
        for (open, text) in [(libc::fopen as Fopen, c"5"), (libc::fopen64, c"6")] {
            for path in [other, path] {
                let stream = open(path.as_ptr(), c"w".as_ptr());
                assert!(libc::fputs(text.as_ptr(), stream) >= 0);
                assert_eq!(libc::fclose(stream), 0);
            }
        }
    }
    assert_eq!((read(path), read(other)), before);
}

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

#[test]
fn ike_socket_is_marked_and_takes_no_esp() {
    inside("manners::inside_ike");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_ike() {
    for (domain, level, policy) in [
        (libc::AF_INET, libc::IPPROTO_IP, libc::IP_XFRM_POLICY),
        (libc::AF_INET6, libc::IPPROTO_IPV6, libc::IPV6_XFRM_POLICY),
    ] {
        // SAFETY: the call takes no pointers.
        let socket = unsafe { libc::socket(domain, libc::SOCK_DGRAM, 0) };
        let mark = || option(socket, libc::SOL_SOCKET, libc::SO_MARK).cast_unsigned();
        for (direction, action, templates, expected) in
            [(0, 0, 0, 0), (1, 1, 0, libc::EOPNOTSUPP), (1, 0, 1, libc::EOPNOTSUPP)]
        {
            let own = own_policy(direction, action, templates);
            assert_eq!((set_bytes(socket, level, policy, &own), mark()), (expected, 0));
        }
        assert_eq!(set(socket, level, policy, 0), libc::EINVAL);
        assert_eq!(set_bytes(socket, level, policy, &own_policy(1, 0, 0)), 0);
        assert_eq!(mark(), MARK);
        assert_eq!(set(socket, libc::SOL_SOCKET, libc::SO_MARK, 7), 0, "it keeps the bypass");
        // SAFETY: the call takes no pointers.
        let copy = unsafe { libc::dup(socket) };
        assert_eq!(option(copy, libc::SOL_SOCKET, libc::SO_MARK).cast_unsigned(), MARK);
        assert_eq!(set(socket, libc::IPPROTO_UDP, libc::UDP_ENCAP, 2), 0);
        assert_eq!(option(socket, libc::IPPROTO_UDP, libc::UDP_ENCAP), 0);
        assert_eq!(set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), 0);
        assert_eq!(option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR), 1);
        assert_eq!(set_none(socket, level, policy), 0);
        assert_eq!(mark(), 0, "it has no policy any more");
    }
}

/// `struct xfrm_userpolicy_info` with templates behind it.
fn own_policy(direction: u8, action: u8, templates: usize) -> Vec<u8> {
    let mut bytes = vec![0; 168 + 64 * templates];
    bytes[160..162].copy_from_slice(&[direction, action]);
    bytes
}
