//! Tests what a confined thread can and cannot do. Confinement is irrevocable, so each test has a
//! thread of its own.

use std::{
    backtrace::Backtrace,
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{TcpListener, UdpSocket},
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    panic,
    path::Path,
    process::Command,
    thread,
};

use super::*;
use crate::{peer, poll::Poller};

/// Runs `work` on a confined thread.
fn confined<T: Send + 'static>(
    role: ThreadRole,
    places: Option<AllowedPaths>,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let run = move || {
        let confined = confine(role, &[], places.as_ref());
        assert!(confined.faults().is_none(), "{confined:?}");
        work()
    };
    thread::spawn(run).join().unwrap()
}

/// A system call with two arguments, all others 0 or null: to be refused, and harmless otherwise.
fn call(number: libc::c_long, first: libc::c_int, second: libc::c_int) -> Option<i32> {
    let (first, second) = (libc::c_long::from(first), libc::c_long::from(second));
    let null = std::ptr::null::<u8>();
    // SAFETY: its arguments are numbers and null pointers that the kernel looks at.
    let result = unsafe { libc::syscall(number, first, second, null, null, 0, 0) };
    (result < 0).then(|| io::Error::last_os_error().raw_os_error()).flatten()
}

/// A netlink socket of a protocol, closed at once.
fn netlink(protocol: libc::c_int) -> Option<i32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: its arguments are numbers.
    let opened = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    if opened < 0 {
        return io::Error::last_os_error().raw_os_error();
    }
    // SAFETY: it has just been opened, and nobody else knows it.
    unsafe { libc::close(opened) };
    None
}

/// Calls of an attacker, each with its errno.
fn attacks() -> Vec<(&'static str, Option<i32>)> {
    let strange = |family, kind| call(libc::SYS_socket, family, kind);
    vec![
        ("execve", call(libc::SYS_execve, 0, 0)),
        ("execveat", call(libc::SYS_execveat, -1, 0)),
        // PTRACE_CONT of no process: an attack's first call would have us traced.
        ("ptrace", call(libc::SYS_ptrace, 7, -1)),
        ("mount", call(libc::SYS_mount, 0, 0)),
        ("unshare", call(libc::SYS_unshare, -1, 0)),
        ("setns", call(libc::SYS_setns, -1, 0)),
        ("io_uring_setup", call(libc::SYS_io_uring_setup, -1, 0)),
        ("init_module", call(libc::SYS_init_module, 0, 0)),
        ("finit_module", call(libc::SYS_finit_module, -1, 0)),
        ("kexec_load", call(libc::SYS_kexec_load, 0, -1)),
        ("keyctl", call(libc::SYS_keyctl, -1, 0)),
        ("perf_event_open", call(libc::SYS_perf_event_open, 0, 0)),
        ("userfaultfd", call(libc::SYS_userfaultfd, -1, 0)),
        ("process_vm_readv", call(libc::SYS_process_vm_readv, 0, 0)),
        ("pidfd_getfd", call(libc::SYS_pidfd_getfd, -1, 0)),
        ("bpf", call(libc::SYS_bpf, -1, 0)),
        ("personality", call(libc::SYS_personality, -1, 0)),
        ("setuid", call(libc::SYS_setuid, -1, 0)),
        ("kill", call(libc::SYS_kill, 0, 0)),
        ("tgkill", call(libc::SYS_tgkill, 1, 1)),
        ("PR_SET_DUMPABLE", call(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0)),
        ("TIOCSTI", call(libc::SYS_ioctl, -1, 0x5412)),
        ("FIOSETOWN", call(libc::SYS_ioctl, -1, 0x8901)),
        ("F_SETOWN", call(libc::SYS_fcntl, -1, libc::F_SETOWN)),
        ("F_SETSIG", call(libc::SYS_fcntl, -1, 10)),
        ("another's limits", call(libc::SYS_prlimit64, libc::c_int::MAX, -1)),
        ("set-user-ID", call(libc::SYS_fchmod, -1, 0o4755)),
        ("AF_UNIX", strange(libc::AF_UNIX, libc::SOCK_STREAM)),
        ("AF_ALG", strange(libc::AF_ALG, libc::SOCK_SEQPACKET)),
        ("AF_VSOCK", strange(libc::AF_VSOCK, libc::SOCK_STREAM)),
        ("uevents", netlink(libc::NETLINK_KOBJECT_UEVENT)),
        ("netlink of the audit", netlink(libc::NETLINK_AUDIT)),
        ("netlink of sockets", netlink(libc::NETLINK_SOCK_DIAG)),
        ("generic netlink", netlink(libc::NETLINK_GENERIC)),
        ("AF_KEY", strange(libc::AF_KEY, libc::SOCK_RAW)),
        ("TCP", strange(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)),
        ("TCP over IPv6", strange(libc::AF_INET6, libc::SOCK_STREAM)),
        ("executable memory", executable_page()),
    ]
}

/// A page that is writable and executable.
fn executable_page() -> Option<i32> {
    let (null, anonymous) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a mapping of its own, at an address of the kernel's choice.
    let page = unsafe { libc::mmap(null, 4096, access, anonymous, -1, 0) };
    (page == libc::MAP_FAILED).then(|| io::Error::last_os_error().raw_os_error()).flatten()
}

fn assert_all_refused(attacks: Vec<(&'static str, Option<i32>)>) {
    for (name, errno) in attacks {
        assert_eq!(errno, Some(libc::EPERM), "{name}");
    }
}

fn exchange() -> io::Result<Vec<u8>> {
    let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    one.send_to(b"packet", other.local_addr()?)?;
    let mut buffer = vec![0; 100];
    let length = other.recv(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

fn places(directory: &Path) -> AllowedPaths {
    AllowedPaths { read: Vec::new(), write: vec![directory.to_owned()] }
}

fn kind<T>(result: io::Result<T>) -> Result<(), ErrorKind> {
    result.map(drop).map_err(|error| error.kind())
}

#[test]
fn unconfined_thread_is_not_refused() {
    // As root some would succeed; as another user the kernel refuses some anyway.
    let refused = attacks().into_iter().filter(|(_, errno)| *errno == Some(libc::EPERM));
    let refused: Vec<_> = refused.map(|(name, _)| name).collect();
    if nix::unistd::Uid::effective().is_root() {
        assert!(refused.len() < 5, "the test would see nothing of these: {refused:?}");
    }
    assert!(!refused.contains(&"executable memory") && !refused.contains(&"ptrace"));
}

#[test]
fn packet_thread_is_confined_to_packet_work() {
    let (attacks, file, program, server, packet) = confined(ThreadRole::Packets, None, || {
        assert_eq!(netlink(libc::NETLINK_ROUTE), None);
        assert_eq!(netlink(libc::NETLINK_NETFILTER), Some(libc::EPERM));
        let program = kind(Command::new("true").status());
        let server = kind(TcpListener::bind("127.0.0.1:0"));
        (attacks(), kind(fs::read("/etc/passwd")), program, server, exchange().unwrap())
    });
    assert_all_refused(attacks);
    let refused = Err(ErrorKind::PermissionDenied);
    assert_eq!((file, program, server), (refused, refused, refused));
    assert_eq!(packet, b"packet");
}

#[test]
fn status_thread_only_answers_clients_of_an_open_socket() {
    let address = SocketAddr::from_abstract_name(b"uxfrm-test/sandbox").unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let mut client = UnixStream::connect_addr(&address).unwrap();
    client.write_all(b"?").unwrap();
    let poller = Poller::new().unwrap();
    let (attacks, file, program, sockets, answer) = confined(ThreadRole::Status, None, move || {
        let mut taken = UnixStream::from(peer::accept(listener.as_fd()).unwrap());
        poller.add(taken.as_fd(), 1).unwrap();
        let mut poller = poller;
        assert!(poller.wait(None).unwrap().has(1));
        let mut asked = [0; 2];
        assert_eq!((taken.read(&mut asked).unwrap(), asked[0]), (1, b'?'));
        assert!(peer::groups(taken.as_fd()).is_ok());
        taken.write_all(&vec![b'!'; 1000]).unwrap();
        poller.await_room(taken.as_fd(), 1).unwrap();
        drop(vec![1_u8; 64 << 20]);
        let sockets = [UdpSocket::bind("127.0.0.1:0").map(drop), UnixStream::pair().map(drop)];
        let sockets = sockets.map(kind);
        let program = kind(Command::new("true").status());
        (attacks(), kind(fs::read("/etc/passwd")), program, sockets, 1000)
    });
    assert_all_refused(attacks);
    let refused = Err(ErrorKind::PermissionDenied);
    assert_eq!((file, program, sockets), (refused, refused, [refused; 2]));
    let mut answered = Vec::new();
    client.read_to_end(&mut answered).unwrap();
    assert_eq!(answered.len(), answer);
}

#[test]
fn control_thread_has_only_its_files_and_threads() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().to_owned();
    let (attacks, program, packet) = confined(ThreadRole::Control, Some(places(&own)), move || {
        for protocol in [libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER] {
            assert_eq!(netlink(protocol), None, "{protocol}");
        }
        let mut file = fs::File::create(own.join("numbers")).unwrap();
        file.write_all(b"7").unwrap();
        file.sync_all().unwrap();
        fs::rename(own.join("numbers"), own.join("renamed")).unwrap();
        assert_eq!(fs::read(own.join("renamed")).unwrap(), b"7");
        fs::remove_file(own.join("renamed")).unwrap();
        fs::read("/proc/sys/net/ipv4/ip_forward").unwrap();
        fs::read_to_string("/proc/self/status").unwrap();
        fs::metadata("/proc/thread-self/ns/net").unwrap();
        for elsewhere in ["/etc/passwd", "/proc/1/status", "/proc/kallsyms"] {
            assert_eq!(kind(fs::read(elsewhere)), Err(ErrorKind::PermissionDenied), "{elsewhere}");
        }
        let written = fs::OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern");
        assert_eq!(kind(written), Err(ErrorKind::PermissionDenied));
        let packet = thread::spawn(|| {
            assert!(confine(ThreadRole::Packets, &[], None).faults().is_none());
            exchange().unwrap()
        });
        (attacks(), kind(Command::new("true").status()), packet.join().unwrap())
    });
    assert_all_refused(attacks);
    assert_eq!(program, Err(ErrorKind::PermissionDenied));
    assert_eq!(packet, b"packet");
}

/// Landlock knows paths by inode, and `/proc` recreates those that nobody holds.
#[test]
fn allowed_proc_path_stays_reachable() {
    let Ok(mut caches) = fs::OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches") else {
        return eprintln!("not tried: only root has the kernel forget");
    };
    let status = confined(ThreadRole::Control, Some(AllowedPaths::default()), move || {
        (0..3).try_for_each(|_| caches.write_all(b"2")).unwrap();
        kind(fs::read("/proc/self/status"))
    });
    assert_eq!(status, Ok(()));
}

#[test]
fn dropped_capabilities_cannot_be_regained() {
    let status = confined(ThreadRole::Control, Some(places(Path::new("/nowhere"))), || {
        fs::read_to_string("/proc/thread-self/status").unwrap()
    });
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK.
    let kept = 1 << 10 | 1 << 12 | 1 << 13 | 1 << 14;
    for set in ["CapPrm:", "CapEff:"] {
        assert_eq!(of(set) & !kept, 0, "{set}");
    }
    assert_eq!((of("CapInh:"), of("CapAmb:")), (0, 0));
    assert_eq!((of("NoNewPrivs:"), of("Seccomp:")), (1, 2));
    if of("CapPrm:") != 0 {
        assert_eq!(of("CapBnd:") & !kept, 0, "whoever could drop them did");
    }
}

/// The panic message; the backtrace may lack names, as files are inaccessible.
#[test]
fn confined_panic_prints_message_and_ends_only_its_thread() {
    for role in [ThreadRole::Packets, ThreadRole::Control, ThreadRole::Status] {
        let places = (role == ThreadRole::Control).then(AllowedPaths::default);
        let (words, trace) = confined(role, places, || {
            let fault = panic::catch_unwind(|| panic!("a fault")).unwrap_err();
            let words = fault.downcast_ref::<&str>().map(ToString::to_string);
            (words, Backtrace::force_capture().to_string())
        });
        assert_eq!(words.as_deref(), Some("a fault"));
        assert!(!trace.is_empty());
    }
}

/// Memory can be allocated, grown, freed and locked; confined threads can confine themselves again.
#[test]
fn confined_thread_can_allocate_and_spawn() {
    confined(ThreadRole::Control, Some(AllowedPaths::default()), || {
        for _ in 0..20 {
            let worker = thread::spawn(|| {
                let _again = confine(ThreadRole::Packets, &[], None);
                let mut large = vec![1_u8; 64 << 20];
                large.extend_from_within(..);
                large.truncate(1);
                large.shrink_to_fit();
                large[0]
            });
            assert_eq!(worker.join().unwrap(), 1);
        }
        crate::heap::release_free();
    });
}

#[test]
fn trial_does_not_confine_caller() {
    assert!(try_out().unwrap().faults().is_none());
    assert!(fs::read("/etc/passwd").is_ok());
    assert!(Command::new("true").status().is_ok());
}

#[test]
fn threads_are_unconfined_before_begin() {
    let work = || {
        let _nothing = (packets(), control(&[], &AllowedPaths::default()));
        kind(fs::read("/etc/passwd"))
    };
    assert!(!has_begun(), "no test begins");
    assert_eq!(thread::spawn(work).join().unwrap(), Ok(()));
}
