//! Unmodified programs through the library, against a server of the test's own: `ip`, and this test itself.
//!
//! Everything runs in a network namespace without XFRM states and policies of value: should the library not load, the
//! commands reach that namespace's kernel and the test fails. It needs root for the namespace, and iproute2.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::ffi::c_int;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

#[path = "../src/greeting.rs"]
#[expect(
    unreachable_pub,
    reason = "the crate itself must not be linked: its functions would be the test's"
)]
mod greeting;

use greeting::{Greeting, Kind, LENGTH, NAME};

const MARK: u32 = 0x7578_0001;

fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libuxfrm_redirect.so")
}

/// Runs `work` in a network namespace of its own, with a server there, and tells what the server heard.
fn with_server(work: impl FnOnce(&Receiver<Vec<u8>>) + Send + 'static) {
    // SAFETY: the call takes no pointers, and concerns the calling thread.
    let alone = || unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let result = thread::spawn(move || {
        if !alone() {
            let reason = format!("no network namespace: {}", io::Error::last_os_error());
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {reason}");
            return eprintln!("not run: {reason}");
        }
        let listener = listen();
        let (heard, hear) = channel();
        thread::spawn(move || {
            loop {
                // SAFETY: no address is asked for.
                let client =
                    unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
                let heard = heard.clone();
                thread::spawn(move || {
                    serve(client, |datagram| drop(heard.send(datagram.to_vec())))
                });
            }
        });
        work(&hear);
    })
    .join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

fn listen() -> c_int {
    // SAFETY: the address is valid for the length that is passed; all bytes zero is a valid one.
    unsafe {
        let listener = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = u16::try_from(libc::AF_UNIX).unwrap();
        for (to, from) in address.sun_path[1..].iter_mut().zip(NAME) {
            *to = *from as libc::c_char;
        }
        let length = u32::try_from(2 + 1 + NAME.len()).unwrap();
        assert_eq!(libc::bind(listener, (&raw const address).cast(), length), 0);
        assert_eq!(libc::listen(listener, 4096), 0);
        listener
    }
}

fn say(client: c_int, bytes: &[u8]) {
    // SAFETY: `bytes` is valid for its length.
    unsafe { libc::send(client, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
}

/// A kernel with three states, one policy in its second group, and no room.
fn serve(client: c_int, heard: impl Fn(&[u8])) {
    let mut port = 0;
    let mut buffer = [0_u8; 32 * 1024];
    loop {
        // SAFETY: the buffer is valid for its length.
        let length = unsafe { libc::recv(client, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let Ok(length @ 1..) = usize::try_from(length) else {
            // SAFETY: the descriptor is this thread's.
            unsafe { libc::close(client) };
            return;
        };
        let datagram = &buffer[..length];
        heard(datagram);
        if let Some(greeting) = Greeting::parse(datagram) {
            port = greeting.port;
            if greeting.kind == Kind::Ask {
                say(client, &Greeting { kind: Kind::Welcome, value: MARK, ..greeting }.to_bytes());
            }
            if greeting.groups == u32::MAX {
                say(client, &Greeting { kind: Kind::Overrun, ..greeting }.to_bytes());
            }
            continue;
        }
        let kind = u16::from_ne_bytes([datagram[4], datagram[5]]);
        if kind == END {
            // SAFETY: the descriptor is this thread's.
            unsafe { libc::close(client) };
            return;
        }
        let dumps = datagram[7] & 3 == 3;
        let answer = match kind {
            GETSADINFO => {
                message(NEWSADINFO, datagram, port, &[&[0; 4][..], &attribute(1, 3)].concat())
            }
            _ if dumps => message(3, datagram, port, &[0; 4]),
            NEWSA => {
                message(2, datagram, port, &[&(-17_i32).to_ne_bytes(), &datagram[..16]].concat())
            }
            _ => message(2, datagram, port, &[&[0; 4], &datagram[..16]].concat()),
        };
        say(client, &answer);
    }
}

/// The server ends the connection: what the end of a gateway looks like.
const END: u16 = 0x7f;
const NEWSA: u16 = 0x10;
const NEWPOLICY: u16 = 0x13;
const NEWSADINFO: u16 = 0x22;
const GETSADINFO: u16 = 0x23;

fn attribute(kind: u16, value: u32) -> Vec<u8> {
    [&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_ne_bytes()].concat()
}

/// An answer to a request.
fn message(kind: u16, request: &[u8], port: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(if kind == 3 { 2_u16 } else { 0 }.to_ne_bytes());
    message.extend(&request[8..12]);
    message.extend(port.to_ne_bytes());
    message.extend(body);
    message
}

fn run(program: &str, arguments: &str) -> Output {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).args(arguments.split_whitespace());
    command.output().unwrap()
}

fn ip(arguments: &str) -> (Option<i32>, String, String) {
    let output = run("ip", arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn kinds(heard: &Receiver<Vec<u8>>) -> Vec<u16> {
    let netlink = heard.try_iter().filter(|datagram| Greeting::parse(datagram).is_none());
    netlink.map(|datagram| u16::from_ne_bytes([datagram[4], datagram[5]])).collect()
}

#[test]
fn ip_xfrm_asks_the_server_and_ip_link_the_kernel() {
    with_server(|heard| {
        assert_eq!(ip("xfrm state count"), (Some(0), "SAD count 3".into(), String::new()));
        let greeting = Greeting::parse(&heard.recv().unwrap()).unwrap();
        assert!(greeting.port != 0 && greeting.groups == 0);
        assert_eq!(greeting.options, 1 << libc::NETLINK_EXT_ACK);
        assert_eq!(kinds(heard), [GETSADINFO]);

        assert_eq!(ip("xfrm state list"), (Some(0), String::new(), String::new()));
        assert_eq!(ip("xfrm policy list"), (Some(0), String::new(), String::new()));
        let add = "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode tunnel";
        assert_eq!(ip(add), (Some(0), String::new(), String::new()));
        assert_eq!(*kinds(heard).last().unwrap(), NEWPOLICY);

        let (code, out, _) = ip("-o link show lo");
        assert!(code == Some(0) && out.contains("LOOPBACK"), "{out}");
        assert_eq!(kinds(heard), []);
    });
}

#[test]
fn errors_and_overruns_are_the_kernels() {
    with_server(|_| {
        let add = "xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 1 mode tunnel enc ecb(cipher_null) 0x";
        let (code, _, err) = ip(add);
        assert_eq!((code, err.as_str()), (Some(2), "RTNETLINK answers: File exists"));
        // It listens to all groups; the server says that some messages were lost, and closes nothing.
        let monitor = run("timeout", "1 ip xfrm monitor");
        let err = String::from_utf8_lossy(&monitor.stderr);
        assert!(err.contains("netlink receive error No buffer space available (105)"), "{err}");
    });
}

#[test]
fn without_a_server_there_is_no_socket() {
    with_server(|_| {
        let status = Command::new("unshare")
            .args(["-n", "ip", "xfrm", "state"])
            .env("LD_PRELOAD", library())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&status.stderr);
        assert!(err.contains("Cannot open netlink socket: Connection refused"), "{err}");
    });
}

/// Runs the ignored test of that name in this very program, under the library.
fn inside(test: &str) {
    with_server({
        let test = test.to_owned();
        move |_| {
            let own = std::env::current_exe().unwrap();
            let output = run(own.to_str().unwrap(), &format!("--ignored --exact {test}"));
            let out = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && out.contains("1 passed"), "{out}");
        }
    });
}

#[test]
fn a_socket_keeps_netlinks_manners() {
    inside("inside_manners");
}

#[test]
fn many_sockets_have_ports_of_their_own() {
    inside("inside_ports");
}

#[test]
fn sockets_survive_copies_and_forks() {
    inside("inside_copies");
}

#[test]
fn ike_sockets_are_marked_and_keep_their_esp() {
    inside("inside_ike");
}

fn xfrm_socket() -> c_int {
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM) };
    assert!(descriptor >= 0, "{}", io::Error::last_os_error());
    descriptor
}

fn address(port: u32, groups: u32) -> libc::sockaddr_nl {
    // SAFETY: all bytes zero is a valid `sockaddr_nl`.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = u16::try_from(libc::AF_NETLINK).unwrap();
    address.nl_pid = port;
    address.nl_groups = groups;
    address
}

fn bind(descriptor: c_int, port: u32, groups: u32) -> c_int {
    let address = address(port, groups);
    // SAFETY: the address is valid for its length.
    let result = unsafe { libc::bind(descriptor, (&raw const address).cast(), 12) };
    if result == 0 { 0 } else { errno() }
}

fn name(descriptor: c_int) -> (u16, u32, u32, u32) {
    let (mut address, mut length) = (address(9, 9), 100);
    // SAFETY: the address has room for what netlink sockets have; the length says no less.
    let result =
        unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &raw mut length) };
    assert_eq!(result, 0);
    (address.nl_family, address.nl_pid, address.nl_groups, length)
}

fn option(descriptor: c_int, level: c_int, name: c_int) -> c_int {
    let (mut value, mut length) = (-1, 4);
    // SAFETY: the value is valid for its length.
    let result = unsafe {
        libc::getsockopt(descriptor, level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { value } else { -errno() }
}

fn set(descriptor: c_int, level: c_int, name: c_int, value: c_int) -> c_int {
    // SAFETY: the value is valid for its length.
    let result = unsafe { libc::setsockopt(descriptor, level, name, (&raw const value).cast(), 4) };
    if result == 0 { 0 } else { errno() }
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap()
}

fn request(kind: u16) -> Vec<u8> {
    let mut bytes = 20_u32.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Sends a request with an address and takes the answer with one: its length, sequence and port, and who it is from.
fn ask(descriptor: c_int) -> (isize, u32, u32, u32) {
    let (request, kernel) = (request(GETSADINFO), address(0, 0));
    let mut buffer = [0_u32; 64];
    let (mut from, mut length) = (address(9, 9), 12);
    // SAFETY: buffers and addresses are valid for their lengths.
    let received = unsafe {
        let to = (&raw const kernel).cast();
        let sent = libc::sendto(descriptor, request.as_ptr().cast(), 20, 0, to, 12);
        assert_eq!(sent, 20, "{}", io::Error::last_os_error());
        let into = buffer.as_mut_ptr().cast();
        libc::recvfrom(descriptor, into, 256, 0, (&raw mut from).cast(), &raw mut length)
    };
    assert_eq!(c_int::from(from.nl_family), libc::AF_NETLINK);
    (received, buffer[2], buffer[3], from.nl_pid)
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
fn a_socket_finds_the_next_gateway() {
    inside("inside_restart");
}

/// Has the server end the connection, and waits until it has.
fn end(descriptor: c_int) {
    let bytes = request(END);
    // SAFETY: buffer and entry are valid.
    unsafe {
        assert_eq!(libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()), 20);
        let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut entry, 1, 5000), 1);
    }
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
fn without_a_gateway_sockets_are_silent() {
    inside("inside_silence");
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

#[test]
fn the_kernels_own_settings_stay_as_they_are() {
    inside("inside_settings");
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_settings() {
    let path = "/proc/sys/net/core/xfrm_acq_expires";
    let before = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, "165\n").unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), before);
    let other = "/proc/sys/net/core/somaxconn";
    std::fs::write(other, "4321").unwrap();
    assert_eq!(std::fs::read_to_string(other).unwrap().trim(), "4321");
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
        assert_eq!(set(socket, level, policy, 0), 0);
        assert_eq!(option(socket, libc::SOL_SOCKET, libc::SO_MARK).cast_unsigned(), MARK);
        assert_eq!(set(socket, libc::SOL_SOCKET, libc::SO_MARK, 7), 0, "it keeps the bypass");
        // SAFETY: the call takes no pointers.
        let copy = unsafe { libc::dup(socket) };
        assert_eq!(option(copy, libc::SOL_SOCKET, libc::SO_MARK).cast_unsigned(), MARK);
        assert_eq!(set(socket, libc::IPPROTO_UDP, libc::UDP_ENCAP, 2), 0);
        assert_eq!(option(socket, libc::IPPROTO_UDP, libc::UDP_ENCAP), 0);
        assert_eq!(set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), 0);
        assert_eq!(option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR), 1);
    }
}

/// A socket as `ip` opens one.
fn brief_socket() -> c_int {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_XFRM) };
    assert!(descriptor >= 0, "{}", io::Error::last_os_error());
    descriptor
}

fn close(descriptor: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::close(descriptor) } == 0 { 0 } else { errno() }
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

/// Opens a socket, does something with it and closes it, between two commands: whether the second still had the first one's connection.
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

#[test]
fn commands_one_after_another_share_a_connection() {
    with_server(|heard| {
        let own = std::env::current_exe().unwrap();
        let output = run(own.to_str().unwrap(), "--ignored --exact inside_commands");
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains("1 passed"), "{out}");
        let all: Vec<_> = heard.try_iter().collect();
        let greetings = all.iter().filter(|datagram| Greeting::parse(datagram).is_some()).count();
        assert_eq!((greetings, all.len()), (1, 1 + 100), "one greeting for all commands");
    });
}

#[test]
#[ignore = "run by another test, under the library"]
fn inside_commands() {
    let connection = command(0);
    assert!((1..100).all(|sequence| command(sequence) == connection));
}

#[test]
fn a_connection_is_reused_only_as_good_as_new() {
    inside("inside_reuse");
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
    // SAFETY: the calls take no pointers but the event, which is valid; the child only calls what a signal handler may.
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
        let mut control = [0_u64; 3];
        // SAFETY: all bytes zero is a valid message, whose buffers are valid for their lengths.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = 24;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_len = 20;
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(one);
            assert!(libc::sendmsg(near.as_raw_fd(), &raw const message, 0) >= 0);
        }
    }));
    drop(far);
}

#[test]
fn sockets_at_once_have_connections_of_their_own() {
    inside("inside_at_once");
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
