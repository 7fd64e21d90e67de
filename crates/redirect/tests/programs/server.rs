//! A server of the test's own in the gateway's place, in a network namespace of its own.

use std::{
    ffi::c_int,
    io,
    path::PathBuf,
    process::{Command, Output},
    sync::mpsc::{Receiver, channel},
    thread,
};

use crate::greeting::{Greeting, Kind, NAME};

pub(crate) const MARK: u32 = 0x7578_0001;

pub(crate) fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libuxfrm_redirect.so")
}

/// Runs `work` in a network namespace of its own, with a server there, and tells what the server heard.
pub(crate) fn with_server(work: impl FnOnce(&Receiver<Vec<u8>>) + Send + 'static) {
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
pub(crate) const END: u16 = 0x7f;
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

/// Runs the ignored test of that name in this very program, under the library.
pub(crate) fn inside(test: &str) {
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
