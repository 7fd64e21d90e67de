//! Sockets whose gateway goes, and comes back.

use std::ffi::c_int;

use crate::{
    server::{GETSADINFO, inside},
    socket::{ask, bind, end, end_instead, errno, name, request, xfrm_socket},
};

#[test]
fn socket_reconnects_after_gateway_restart() {
    inside("restart::inside_restart");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_restart() {
    let descriptor = xfrm_socket();
    assert_eq!(bind(descriptor, 0, 3), 0);
    let mut buffer = [0_u8; 64];
    // SAFETY: the buffer and the events are valid for their lengths.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 << 40 | 7 };
        let add = libc::EPOLL_CTL_ADD;
        assert_eq!(libc::epoll_ctl(epoll, add, descriptor, &raw mut event), 0);
        let before = name(descriptor);
        end(descriptor);
        assert_eq!(libc::read(descriptor, buffer.as_mut_ptr().cast(), 64), -1);
        assert_eq!(errno(), libc::ENOBUFS);
        assert_eq!(name(descriptor), before);
        let message = request(GETSADINFO);
        assert_eq!(libc::write(descriptor, message.as_ptr().cast(), 20), 20);
        event = libc::epoll_event { events: 0, u64: 0 };
        assert_eq!(libc::epoll_wait(epoll, &raw mut event, 1, 5000), 1);
        assert_eq!({ event.u64 }, 1 << 40 | 7);
        assert_eq!(libc::read(descriptor, buffer.as_mut_ptr().cast(), 64), 28);
    }
    end(descriptor);
    assert_eq!(ask(descriptor), (28, 7, std::process::id(), 0), "who asks need not know");
}

#[test]
fn socket_without_gateway_is_silent() {
    inside("restart::inside_silence");
}

/// Whether the kernel has a connection under a descriptor, whatever the library says.
fn is_connected(descriptor: c_int) -> bool {
    let (mut address, mut length) = ([0_u8; 128], 128_u32);
    // SAFETY: the address is valid for its length.
    let result = unsafe {
        let address = address.as_mut_ptr();
        libc::syscall(libc::SYS_getpeername, descriptor, address, &raw mut length)
    };
    result == 0
}

/// In another network namespace the server's name is not known: it is as if the gateway were gone.
#[test]
#[ignore = "run by another test, under the library"]
fn inside_silence() {
    use std::os::fd::AsRawFd as _;
    let (polled, other, asking) = (xfrm_socket(), xfrm_socket(), xfrm_socket());
    assert_eq!((bind(polled, 0, 3), bind(other, 0, 1), bind(asking, 0, 0)), (0, 0, 0));
    let home = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
    let mut buffer = [0_u8; 64];
    let mut receive = |descriptor: c_int, flags: c_int| {
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::recv(descriptor, buffer.as_mut_ptr().cast(), 64, flags) };
        if got < 0 { -errno() as isize } else { got }
    };
    // SAFETY: the buffers and the events are valid for their lengths.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 9 };
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, polled, &raw mut event), 0);
        assert_eq!(libc::unshare(libc::CLONE_NEWNET), 0);
        end(polled);
        end(other);
        end(asking);
        assert_eq!(receive(polled, 0), -libc::ENOBUFS as isize, "what is lost is said once");
        for _ in 0..3 {
            let mut entry = libc::pollfd { fd: polled, events: libc::POLLIN, revents: 0 };
            assert_eq!((libc::poll(&raw mut entry, 1, 0), entry.revents), (0, 0));
            assert_eq!(libc::epoll_wait(epoll, &raw mut event, 1, 0), 0);
            assert_eq!(receive(polled, libc::MSG_DONTWAIT), -libc::EAGAIN as isize);
        }
        assert_eq!(receive(other, 0), -libc::ENOBUFS as isize);
        assert_eq!(receive(asking, 0), -libc::ECONNRESET as isize);
        assert_eq!(receive(asking, 0), -libc::ECONNRESET as isize, "no answer will come");
        let message = request(GETSADINFO);
        assert_eq!(libc::send(polled, message.as_ptr().cast(), 20, 0), -1);
        assert_eq!(errno(), libc::ECONNRESET);
        assert!(![polled, other, asking].into_iter().any(is_connected));

        assert_eq!(libc::setns(home.as_raw_fd(), libc::CLONE_NEWNET), 0);
        assert_eq!(libc::send(polled, message.as_ptr().cast(), 20, 0), 20);
        assert!([polled, other, asking].into_iter().all(is_connected), "one finds it for all");
        assert_eq!(libc::epoll_wait(epoll, &raw mut event, 1, 5000), 1);
        assert_eq!(({ event.u64 }, receive(polled, 0)), (9, 28));
        assert_eq!(receive(other, libc::MSG_DONTWAIT), -libc::EAGAIN as isize);
    }
    assert_eq!(ask(asking), (28, 7, name(asking).1, 0));
}

/// charon would wait for ever: it takes a failed call for a message that is too long.
#[test]
fn pending_request_gets_error_when_gateway_ends() {
    inside("restart::inside_unanswered");
}

/// What comes: an errno, or a message's length, kind, number and errno.
fn receive(descriptor: c_int, flags: c_int) -> (i32, u32, u32, i32) {
    let mut words = [0_u32; 16];
    // SAFETY: the buffer is valid for its length.
    let got = unsafe { libc::recv(descriptor, words.as_mut_ptr().cast(), 64, flags) };
    match i32::try_from(got) {
        Ok(-1) => (-errno(), 0, 0, 0),
        got => (got.unwrap(), words[1] & 0xffff, words[2], words[4].cast_signed()),
    }
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_unanswered() {
    const ERROR: (i32, u32, u32, i32) = (36, 2, 7, -libc::ECONNRESET);
    let (asking, listening) = (xfrm_socket(), xfrm_socket());
    assert_eq!((bind(asking, 0, 0), bind(listening, 0, 3)), (0, 0));
    end_instead(asking);
    assert_eq!(receive(asking, libc::MSG_PEEK), ERROR);
    assert_eq!(receive(asking, 0), ERROR);
    assert_eq!(receive(asking, libc::MSG_DONTWAIT).0, -libc::EAGAIN, "once");
    assert_eq!(ask(asking), (28, 7, name(asking).1, 0));
    end_instead(listening);
    assert_eq!(receive(listening, 0).0, -libc::ENOBUFS, "it may have missed something");
    assert_eq!(receive(listening, 0), ERROR);
    assert_eq!(receive(listening, libc::MSG_DONTWAIT).0, -libc::EAGAIN);

    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    end_instead(asking);
    assert_eq!(receive(asking, 0), ERROR);
    assert_eq!(receive(asking, 0).0, -libc::ECONNRESET);
}
