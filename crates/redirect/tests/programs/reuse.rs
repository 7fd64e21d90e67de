//! Connections that one socket leaves to the next.

use std::{ffi::c_int, io};

use uxfrm_control::greeting::{Greeting, GreetingKind};

use crate::{
    server::{NEWPOLICY, NEWSA, ON_PAGE, inside, pass, run, with_server},
    socket::{ask, bind, brief_socket, close, end, name, option, request, set},
};

#[test]
fn consecutive_sockets_share_a_connection() {
    with_server(|heard| {
        let own = std::env::current_exe().unwrap();
        let output = run(own.to_str().unwrap(), "--ignored --exact reuse::inside_commands");
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains("1 passed"), "{out}");
        let all: Vec<_> = heard.try_iter().collect();
        let greetings = all.iter().filter_map(|datagram| Greeting::parse(datagram));
        let kinds: Vec<_> = greetings.map(|greeting| greeting.kind).collect();
        let on_page = all.iter().filter(|datagram| *datagram == ON_PAGE).count();
        if std::thread::available_parallelism().unwrap().get() > 1 {
            assert_eq!(
                kinds,
                [GreetingKind::Hello, GreetingKind::Share],
                "one of each for all commands"
            );
            assert!(on_page > 0, "all went by the socket");
        } else {
            assert_eq!((&kinds[..], on_page), (&[GreetingKind::Hello][..], 0));
        }
        assert_eq!(all.len(), kinds.len() + on_page + 2000, "each command once");
    });
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_commands() {
    let connection = command(0);
    // Many, as a machine with much to do has it sleep through dozens of answers.
    assert!((1..2000_u32).all(|nth| command(nth.to_le_bytes()[0]) == connection));
}

#[test]
fn mailbox_answer_is_received_like_others() {
    inside("reuse::inside_page");
}

/// A call that finds no answer on the page finds it on the socket, in any order of the two.
#[test]
#[ignore = "run by another test, under the library"]
fn inside_page() {
    let mut connection = command(0);
    for sequence in 1..=200 {
        let one = brief_socket();
        assert_eq!((inode(one), bind(one, 0, 0)), (Some(connection), 0));
        if sequence % 4 == 0 {
            push(one, NEWSA, 5, sequence); // may have keys: never on the page
        } else {
            push(one, NEWPOLICY, 5, sequence);
        }
        let mut first = [0_u8; 20];
        match sequence % 5 {
            0 => assert!(is_readable(one), "who polls finds it"),
            1 => {
                let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
                // SAFETY: the buffer is valid for its length.
                let peeked = unsafe { libc::recv(one, first.as_mut_ptr().cast(), 4, flags) };
                assert_eq!((peeked, first[4]), (36, 0), "its length, and no more than fits");
                if sequence > 190 {
                    // What was looked at stays there, whatever the program does to the socket.
                    // SAFETY: the call takes no pointers.
                    unsafe { libc::fcntl(one, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
                    assert_eq!(pull(one).2, sequence);
                    assert_eq!(close(one), 0);
                    connection = command(0);
                    continue;
                }
            }
            2 => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
                // SAFETY: as above.
                while unsafe { libc::recv(one, first.as_mut_ptr().cast(), 20, flags) } < 0 {
                    assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::WouldBlock);
                    std::thread::yield_now();
                }
                assert_eq!(first[8], sequence);
            }
            _ => {}
        }
        assert_eq!(pull(one).2, sequence);
        assert_eq!(close(one), 0);
    }
    // A child shares nothing of it.
    let one = brief_socket();
    assert_eq!(bind(one, 0, 0), 0);
    // SAFETY: the child only calls what a signal handler may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        push(one, NEWPOLICY, 5, 1);
        // SAFETY: the call takes no pointers.
        unsafe { libc::_exit(if pull(one).2 == 1 { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the status is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    push(one, NEWPOLICY, 5, 2);
    assert_eq!(pull(one).2, 2);
}

fn is_readable(descriptor: c_int) -> bool {
    let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut entry, 1, 5000) == 1 }
}

#[test]
fn changed_connection_is_not_reused() {
    inside("reuse::inside_reuse");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_reuse() {
    let socket = libc::SOL_SOCKET;
    assert!(outlives(|_| {}), "nothing was asked");
    assert!(outlives(|one| {
        push(one, NEWPOLICY, 5, 1);
        assert_eq!(pull(one).2, 1);
        push(one, NEWSA, 5, 2);
        assert_eq!(pull(one).2, 2, "a refusal is an answer");
    }));
    assert!(outlives(|one| assert_eq!(set(one, socket, libc::SO_RCVBUF, 1 << 20), 0)));

    // What is still to come would be the next one's.
    assert!(!outlives(|one| push(one, NEWPOLICY, 5, 3)));
    assert!(!outlives(|one| {
        push(one, NEWPOLICY, 5, 4);
        push(one, NEWPOLICY, 5, 5);
        assert_eq!(pull(one).2, 4);
    }));
    assert!(!outlives(|one| {
        push(one, NEWPOLICY, 5, 6);
        let mut first = [0_u8; 20];
        // SAFETY: the buffer is valid for its length.
        let peeked = unsafe { libc::recv(one, first.as_mut_ptr().cast(), 20, libc::MSG_PEEK) };
        assert_eq!(peeked, 20);
    }));
    assert!(!outlives(|one| push(one, 0x15, 0x305, 7)), "a dump");
    // What was changed would be the next one's, too.
    assert!(!outlives(|one| assert_eq!(set(one, socket, libc::SO_RCVTIMEO, 0), libc::EINVAL)));
    assert!(!outlives(|one| {
        assert_eq!(set(one, socket, libc::SO_SNDBUF, 100_000), 0);
        assert!(option(one, socket, libc::SO_SNDBUF) >= 200_000);
    }));
    assert!(!outlives(|one| {
        assert_eq!(set(one, socket, libc::SO_SNDBUF, 20_000), 0);
        assert_eq!(option(one, socket, libc::SO_SNDBUF), 40_000, "the kernel doubles it");
    }));
    assert!(!outlives(|one| {
        assert_eq!(set(one, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, 3), 0);
        assert_eq!(set(one, libc::SOL_NETLINK, libc::NETLINK_DROP_MEMBERSHIP, 3), 0);
    }));
    // SAFETY: the calls take no pointers but the event, which is valid; the child only calls what a
    // signal handler may.
    unsafe {
        assert!(!outlives(|one| {
            assert_eq!(libc::fcntl(one, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK), 0);
        }));
        assert!(outlives(|one| assert_eq!(libc::fcntl(one, libc::F_GETFD), libc::FD_CLOEXEC)));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 9 };
        let epoll = libc::epoll_create1(0);
        assert!(!outlives(|one| {
            let add = libc::EPOLL_CTL_ADD;
            assert_eq!(libc::epoll_ctl(epoll, add, one, &raw mut event), 0);
        }));
        // Copies go on with it.
        let mut copy = -1;
        assert!(!outlives(|one| copy = libc::dup(one)));
        assert_eq!(ask(copy).0, 28);
        close(copy);
        let mut children = [0; 2];
        assert!(!outlives(|one| {
            children[0] = libc::fork();
            if children[0] == 0 {
                libc::usleep(100_000);
                libc::_exit(if ask(one).0 == 28 { 0 } else { 1 });
            }
        }));
        // A child has nothing of what its parent keeps.
        let kept = command(1);
        children[1] = libc::fork();
        if children[1] == 0 {
            let own = brief_socket();
            let fresh = inode(own) != Some(kept) && bind(own, 0, 0) == 0;
            libc::_exit(if fresh && ask(own).2 == libc::getpid().unsigned_abs() { 0 } else { 1 });
        }
        for child in children {
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
        passed_on_is_shared();
        assert!(outlives(|_| {}), "nothing of all that stays");
        // Another user, or another network: another gateway.
        assert!(!outlives(|one| {
            close(one);
            assert_eq!(libc::seteuid(libc::geteuid()), 0);
        }));
        assert!(!outlives(|one| {
            close(one);
            assert_eq!(libc::unshare(libc::CLONE_FS), 0);
        }));
    }
}

/// A socket that another process was given goes on with it.
fn passed_on_is_shared() {
    use std::os::fd::AsRawFd as _;
    let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
    assert!(!outlives(|one| {
        pass(near.as_raw_fd(), b"x", one);
    }));
    drop(far);
}

#[test]
fn concurrent_sockets_have_own_connections() {
    inside("reuse::inside_at_once");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_at_once() {
    let (one, other) = (brief_socket(), brief_socket());
    assert!(bind(one, 0, 0) == 0 && bind(other, 0, 0) == 0);
    assert_ne!((name(one).1, inode(one)), (name(other).1, inode(other)));
    let connections = [inode(one), inode(other)];
    push(one, NEWPOLICY, 5, 1);
    push(other, NEWPOLICY, 5, 2);
    assert_eq!((pull(other).2, pull(one).2), (2, 1));
    assert_eq!((close(other), close(one)), (0, 0));
    // One of them is kept; two are not, and each still has a port of its own.
    let (one, other) = (brief_socket(), brief_socket());
    assert_ne!(inode(one), inode(other));
    assert!(connections.contains(&inode(one)) && !connections.contains(&inode(other)));
    assert!(bind(other, 0, 0) == 0 && bind(one, 0, 0) == 0);
    assert_ne!(name(one).1, name(other).1);
    assert_eq!((ask(other).2, ask(one).2), (name(other).1, name(one).1));
    // While one is in a dump, another one asks.
    push(one, 0x15, 0x305, 9);
    let between = command(3);
    assert_ne!(inode(one), Some(between));
    assert_eq!(pull(one), (20, 3, 9), "the dump's end is the dump's");
    assert_eq!((close(one), close(other)), (0, 0));
    // A connection whose gateway went away is none.
    let kept = command(4);
    let fresh = brief_socket();
    end_of(fresh);
    assert_eq!(close(fresh), 0);
    assert_ne!(command(5), kept);
    // Closed is closed, as far as the program can tell.
    let descriptor = brief_socket();
    assert_eq!(bind(descriptor, 0, 0), 0);
    let connection = inode(descriptor);
    assert_eq!((close(descriptor), close(descriptor)), (0, libc::EBADF));
    let descriptor = brief_socket();
    assert!(connection.is_some() && inode(descriptor) != connection);
    close(descriptor);
    // Whoever puts something in a kept one's place has that there.
    let descriptor = brief_socket();
    assert_eq!(bind(descriptor, 0, 0), 0);
    close(descriptor);
    // SAFETY: the calls take no pointers.
    unsafe {
        let udp = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        assert_ne!(udp, descriptor);
        assert_eq!(libc::dup2(udp, descriptor), descriptor);
        assert_eq!(c_int::from(name(descriptor).0), libc::AF_INET);
        assert_ne!(brief_socket(), descriptor);
    }
}

/// As [`end`], of a socket that is about to be closed.
fn end_of(descriptor: c_int) {
    assert_eq!(bind(descriptor, 0, 0), 0);
    end(descriptor);
}

/// What tells one connection from another, whatever the library says: the inode under a descriptor.
fn inode(descriptor: c_int) -> Option<u64> {
    // SAFETY: all bytes zero is a valid `stat`, which the call fills in.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let result = libc::fstat(descriptor, &raw mut status);
        (result == 0).then_some(status.st_ino)
    }
}

/// Sends a request that is acknowledged.
fn push(descriptor: c_int, kind: u16, flags: u16, sequence: u8) {
    let mut bytes = request(kind);
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[8] = sequence;
    // SAFETY: the buffer is valid for its length.
    let sent = unsafe { libc::send(descriptor, bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, 20, "{}", io::Error::last_os_error());
}

/// Takes an answer: its length, kind and sequence.
fn pull(descriptor: c_int) -> (isize, u16, u8) {
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::recv(descriptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    (length, u16::from_ne_bytes([buffer[4], buffer[5]]), buffer[8])
}

/// One command of `ip -batch`: the connection that it had.
fn command(sequence: u8) -> u64 {
    let descriptor = brief_socket();
    assert_eq!(set(descriptor, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1), 0);
    assert_eq!(bind(descriptor, 0, 0), 0);
    push(descriptor, NEWPOLICY, 5, sequence);
    assert_eq!(pull(descriptor), (36, 2, sequence));
    let connection = inode(descriptor).unwrap();
    assert_eq!(close(descriptor), 0);
    connection
}

/// Opens a socket, uses and closes it between two commands: whether both commands shared a
/// connection.
fn outlives(between: impl FnOnce(c_int)) -> bool {
    let descriptor = brief_socket();
    assert_eq!(bind(descriptor, 0, 0), 0);
    let connection = inode(descriptor).unwrap();
    between(descriptor);
    close(descriptor);
    let next = brief_socket();
    let same = inode(next) == Some(connection);
    assert_eq!(bind(next, 0, 0), 0);
    assert_eq!(ask(next), (28, 7, name(next).1, 0));
    close(next);
    same
}
