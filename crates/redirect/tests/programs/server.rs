//! A server of the test's own in the gateway's place, in a network namespace of its own.

use std::{
    ffi::c_int,
    io,
    path::PathBuf,
    process::{Command, Output},
    sync::mpsc::{Receiver, channel},
    thread,
};

use uxfrm_control::{
    greeting::{Greeting, GreetingKind, NAME},
    mailbox::{CloseOutcome, MailboxServer, Page, ROOM, ServerPoll},
};

pub(crate) const MARK: u32 = 0x7578_0001;

pub(crate) fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libuxfrm_redirect.so")
}

/// Runs `work` in its own network namespace with a server, and returns what the server received.
pub(crate) fn with_server(work: impl FnOnce(&Receiver<Vec<u8>>) + Send + 'static) {
    // SAFETY: the call takes nothing.
    with_server_of(unsafe { libc::geteuid() }, work);
}

/// The same; the server is another user's.
pub(crate) fn with_server_of(user: u32, work: impl FnOnce(&Receiver<Vec<u8>>) + Send + 'static) {
    // SAFETY: the call takes no pointers, and concerns the calling thread.
    let alone = || unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let result = thread::spawn(move || {
        if !alone() {
            let reason = format!("no network namespace: {}", io::Error::last_os_error());
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: {reason}");
            return eprintln!("not run: {reason}");
        }
        let listener = as_user(user, listen);
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

/// Calls `act` as a user, and as before from then on: only the calling thread changes.
fn as_user<T>(user: u32, act: impl FnOnce() -> T) -> T {
    // SAFETY: the calls take no pointers.
    unsafe {
        let own = libc::geteuid();
        assert_eq!(libc::syscall(libc::SYS_setresuid, -1, user, -1), 0);
        let result = act();
        assert_eq!(libc::syscall(libc::SYS_setresuid, -1, own, -1), 0);
        result
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

/// What is heard before a request that came on the page.
pub(crate) const ON_PAGE: &[u8] = b"on the page:";

/// A kernel with three states, one policy in its second group, and no room; shares a page on
/// request.
fn serve(client: c_int, heard: impl Fn(&[u8])) {
    let mut port = 0;
    let mut page = None;
    let mut buffer = [0_u8; 32 * 1024];
    loop {
        if let Some(page) = page {
            stay(page, client, port, &heard);
        }
        let flags = if page.is_some() { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the buffer is valid for its length.
        let length = unsafe { libc::recv(client, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        if length < 0
            && page.is_some()
            && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
        {
            continue;
        }
        let Ok(length @ 1..) = usize::try_from(length) else {
            // SAFETY: the descriptor is this thread's.
            unsafe { libc::close(client) };
            return;
        };
        let datagram = &buffer[..length];
        heard(datagram);
        if let Some(greeting) = Greeting::parse(datagram) {
            port = greeting.port;
            if greeting.kind == GreetingKind::Ask {
                say(
                    client,
                    &Greeting { kind: GreetingKind::Welcome, value: MARK, ..greeting }.to_bytes(),
                );
            }
            if greeting.kind == GreetingKind::Share {
                page = Some(share(client, greeting));
            }
            if greeting.groups == u32::MAX {
                say(client, &Greeting { kind: GreetingKind::Overrun, ..greeting }.to_bytes());
            }
            continue;
        }
        // A setting, which nobody answers.
        if datagram.len() < HEADER {
            continue;
        }
        if kind(datagram) == END {
            // SAFETY: the descriptor is this thread's.
            unsafe { libc::close(client) };
            return;
        }
        say(client, &answer(datagram, port));
    }
}

/// Waits on the page for a while, and closes it.
fn stay(page: &Page, client: c_int, port: u32, heard: impl Fn(&[u8])) {
    let (mut request, mut desk) = ([0; ROOM], MailboxServer::default());
    desk.open(page);
    for _ in 0..1000 {
        if let ServerPoll::Request(length) = desk.take(page, &mut request) {
            heard(ON_PAGE);
            heard(&request[..length]);
            assert!(desk.answer(page, &answer(&request[..length], port)));
        }
        thread::yield_now();
    }
    match desk.close(page, &mut request) {
        CloseOutcome::Request(length) => {
            heard(&request[..length]);
            say(client, &answer(&request[..length], port));
        }
        CloseOutcome::Answer(length) => say(client, &request[..length]),
        CloseOutcome::Nothing => {}
    }
}

/// A page that lasts as long as the test.
fn share(client: c_int, greeting: Greeting) -> &'static Page {
    let welcome = Greeting { kind: GreetingKind::Welcome, ..greeting }.to_bytes();
    // SAFETY: a new mapping of as many bytes as the file has; the message's buffers are valid for
    // their lengths.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let memory = libc::memfd_create(c"page".as_ptr(), flags);
        assert_eq!(libc::ftruncate(memory, 4096), 0);
        assert_eq!(libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, memory, 0);
        assert_ne!(page, libc::MAP_FAILED);
        pass(client, &welcome, memory);
        libc::close(memory);
        &*page.cast()
    }
}

/// Sends bytes and a descriptor.
pub(crate) fn pass(socket: c_int, bytes: &[u8], descriptor: c_int) {
    let mut control = [0_u64; 3];
    let start = bytes.as_ptr().cast_mut().cast();
    let mut vector = libc::iovec { iov_base: start, iov_len: bytes.len() };
    // SAFETY: all bytes zero is a valid message, whose buffers are valid for their lengths.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 24;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_len = 20;
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor);
        assert!(libc::sendmsg(socket, &raw const message, 0) >= 0);
    }
}

fn kind(datagram: &[u8]) -> u16 {
    u16::from_ne_bytes([datagram[4], datagram[5]])
}

fn answer(datagram: &[u8], port: u32) -> Vec<u8> {
    let dumps = datagram[7] & 3 == 3;
    match kind(datagram) {
        GETSADINFO => {
            message(NEWSADINFO, datagram, port, &[&[0; 4][..], &attribute(1, 3)].concat())
        }
        _ if dumps => message(3, datagram, port, &[0; 4]),
        NEWSA => message(2, datagram, port, &[&(-17_i32).to_ne_bytes(), &datagram[..16]].concat()),
        _ => message(2, datagram, port, &[&[0; 4], &datagram[..16]].concat()),
    }
}

/// The server ends the connection: what the end of a gateway looks like.
pub(crate) const END: u16 = 0x7f;
/// Bytes of a netlink message's header.
const HEADER: usize = 16;
pub(crate) const NEWSA: u16 = 0x10;
pub(crate) const NEWPOLICY: u16 = 0x13;
const NEWSADINFO: u16 = 0x22;
pub(crate) const GETSADINFO: u16 = 0x23;

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

pub(crate) fn run(program: &str, arguments: &str) -> Output {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).args(arguments.split_whitespace());
    command.output().unwrap()
}

/// Runs the ignored test of that name in this very program, under the library, with a server there.
pub(crate) fn inside(test: &str) {
    let test = test.to_owned();
    with_server(move |_| run_inside(&test));
}

/// Runs the ignored test of that name in this very program, under the library.
pub(crate) fn run_inside(test: &str) {
    let own = std::env::current_exe().unwrap();
    let output = run(own.to_str().unwrap(), &format!("--ignored --exact {test}"));
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{out}");
}
