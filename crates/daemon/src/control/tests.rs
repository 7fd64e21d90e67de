use std::{collections::BTreeMap, path::PathBuf};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, send, setsockopt, socket, sockopt,
};
use uxfrm_control::{
    greeting::{GreetingKind, LENGTH},
    mailbox::{ClientPoll, LAYOUT, Mailbox},
};
use uxfrm_io::shared_page::SharedPage;

use super::*;
use crate::protocol::{DumpProgress, Identity};

/// Repeats what it hears; a datagram of one byte N asks for a dump of N parts of 40,000 bytes.
#[derive(Default)]
struct Echo {
    joined: BTreeMap<ClientId, Identity>,
    left: usize,
    heard: usize,
    commits: usize,
    committed: usize,
    slow_disk: bool,
    dumps: BTreeMap<ClientId, u8>,
}

const PART: usize = 40_000;

/// Whether a part of a dump has anything to show: of a hundred, the latter half has not.
const fn shows(part: u8) -> bool {
    part % 100 < 50
}

impl Protocol for Echo {
    fn join(&mut self, client: ClientId, identity: Identity) {
        self.joined.insert(client, identity);
    }

    fn leave(&mut self, client: ClientId) {
        assert!(self.joined.remove(&client).is_some(), "it left and had not joined");
        self.dumps.remove(&client);
        self.left += 1;
    }

    fn handle(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        assert!(self.joined.contains_key(&client), "it spoke and had not joined");
        self.heard += 1;
        match datagram {
            [parts] => drop(self.dumps.insert(client, *parts)),
            _ => outbox.send(client, datagram.to_vec()),
        }
    }

    fn finish_deferred(&mut self) {}

    fn prepare(&mut self) {}

    fn is_wanted(&self) -> bool {
        true
    }

    fn waits_for_disk(&self) -> bool {
        self.slow_disk && self.heard > self.committed
    }

    fn commit(&mut self, _: &mut Outbox) {
        self.commits += 1;
        self.committed = self.heard;
    }

    fn carry_on(&mut self, client: ClientId, outbox: &mut Outbox) -> DumpProgress {
        let Some(parts @ 1..) = self.dumps.get_mut(&client) else { return DumpProgress::Done };
        if shows(*parts) {
            outbox.send(client, vec![*parts; PART]);
        }
        *parts -= 1;
        DumpProgress::More
    }
}

struct Stage {
    control: Control,
    echo: Echo,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

const MARK: u32 = 0x7578_0001;

fn stage() -> Stage {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let control = Control::open(Some(&path), AccessTerms { user: None, mark: MARK }).unwrap();
    Stage { control, echo: Echo::default(), path, _directory: directory }
}

impl Stage {
    fn client(&self) -> OwnedFd {
        let client =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None)
                .unwrap();
        connect(client.as_raw_fd(), &UnixAddr::new(&self.path).unwrap()).unwrap();
        client
    }

    fn serve(&mut self) {
        self.control.serve(&mut self.echo).unwrap();
    }
}

fn say(client: &OwnedFd, bytes: &[u8]) -> nix::Result<usize> {
    send(client.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)
}

fn receive_from(client: &OwnedFd) -> nix::Result<Vec<u8>> {
    let mut buffer = vec![0; LARGEST];
    let length = recv(client.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    buffer.truncate(length);
    Ok(buffer)
}

fn greeting(kind: GreetingKind, port: u32, groups: u32, options: u32) -> Greeting {
    Greeting { kind, port, groups, options, value: 0 }
}

#[test]
fn client_identity_is_its_greeting() {
    let mut stage = stage();
    let (greeted, silent) = (stage.client(), stage.client());
    say(&greeted, &greeting(GreetingKind::Ask, 77, 0xc3, 1 << 11).to_bytes()).unwrap();
    say(&silent, b"hello").unwrap();
    stage.serve();
    let answer = Greeting::parse(&receive_from(&greeted).unwrap()).unwrap();
    assert_eq!((answer.kind, answer.port, answer.value), (GreetingKind::Welcome, 77, MARK));
    assert_eq!(receive_from(&silent).unwrap(), b"hello");
    let identities: Vec<_> = stage.echo.joined.values().copied().collect();
    let dialect = Dialect::Xfrm;
    let process = std::process::id();
    let own = Identity { port: process, groups: 0, options: 0, dialect, process };
    let said = Identity { port: 77, groups: 0xc3, options: 1 << 11, dialect, process };
    assert_eq!(identities, [said, own]);
    drop((greeted, silent));
    stage.serve();
    assert_eq!((stage.echo.left, stage.control.count()), (2, 0));
}

/// Asks on the page whenever the gateway waits there, and else on the socket: each request has its
/// answer, and the gateway waits there for who asks at once.
#[test]
fn follow_up_request_is_answered_on_page() {
    let mut stage = stage();
    let client = stage.client();
    let page = share(&mut stage, &client).unwrap();
    // On one processor the gateway waits for nobody on a page.
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    let asking = std::thread::spawn(move || {
        let mailbox = Mailbox::new(page.words());
        let by_page = (0..3000_u32).filter(|nth| ask(mailbox, &client, &[2, *nth])).count();
        // What is left on the page when the gateway turns away is not lost.
        let mut left = 0;
        while several && left == 0 {
            if !mailbox.is_open() {
                ask(mailbox, &client, &[2, 0]);
            } else if mailbox.ask(&bytes(&[2, 1])) {
                std::thread::sleep(Duration::from_millis(2));
                while mailbox.collect() == ClientPoll::Nothing {}
                if mailbox.is_open() {
                    continue; // it was there for so long
                }
                left += 1;
                assert_eq!(await_answer(&client), bytes(&[2, 1]));
            }
        }
        by_page
    });
    while !asking.is_finished() {
        stage.serve();
    }
    let by_page = asking.join().unwrap();
    // Where it waits for somebody, one was asked there in the end; how often before that hangs on
    // what else the processors have to do.
    assert!(several || by_page == 0, "{by_page} on the page");
}

#[test]
fn page_is_refused_to_listener_and_unknown_layout() {
    let mut stage = stage();
    let client = stage.client();
    say(&client, &greeting(GreetingKind::Hello, 7, 1, 0).to_bytes()).unwrap();
    assert!(share(&mut stage, &client).is_none(), "events would lie there");
    say(&client, &greeting(GreetingKind::Hello, 7, 0, 0).to_bytes()).unwrap();
    assert!(share_as(&mut stage, &client, 0).is_none(), "it means another layout");
    assert!(share(&mut stage, &client).is_some());
    assert!(share(&mut stage, &client).is_none(), "it has one");
}

/// Asks for a page.
fn share(stage: &mut Stage, client: &OwnedFd) -> Option<SharedPage> {
    share_as(stage, client, LAYOUT)
}

fn share_as(stage: &mut Stage, client: &OwnedFd, layout: u32) -> Option<SharedPage> {
    let question = Greeting { value: layout, ..greeting(GreetingKind::Share, 7, 0, 0) };
    say(client, &question.to_bytes()).unwrap();
    stage.serve();
    let mut bytes = [0; LENGTH];
    let (length, page) = SharedPage::receive(client.as_fd(), &mut bytes).unwrap();
    let kind = Greeting::parse(&bytes[..length]).unwrap().kind;
    assert_eq!(kind, if page.is_some() { GreetingKind::Welcome } else { GreetingKind::Refused });
    page
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Whether it could be asked on the page, and was answered there.
fn ask(mailbox: Mailbox<'_>, client: &OwnedFd, words: &[u32]) -> bool {
    let request = bytes(words);
    if mailbox.ask(&request) {
        loop {
            match mailbox.collect() {
                ClientPoll::Nothing => std::thread::yield_now(),
                ClientPoll::Closed => break,
                ClientPoll::Answer => {
                    let mut answer = [0; 8];
                    assert_eq!(mailbox.read_answer(&mut answer), 8);
                    assert_eq!(answer, request[..]);
                    return true;
                }
            }
        }
    } else {
        mailbox.redirect_to_socket();
        say(client, &request).unwrap();
    }
    assert_eq!(await_answer(client), request);
    false
}

/// What comes on the socket, waited for awake.
fn await_answer(client: &OwnedFd) -> Vec<u8> {
    let begun = Instant::now();
    loop {
        match receive_from(client) {
            Err(Errno::EAGAIN) => assert!(begun.elapsed() < Duration::from_secs(20), "no answer"),
            answer => return answer.unwrap(),
        }
    }
}

#[test]
fn greeting_selects_dialect() {
    let mut stage = stage();
    let client = stage.client();
    assert_eq!(Dialect::of(Dialect::Generic as u32), Some(Dialect::Generic));
    for (value, kind, answer) in [
        (Dialect::Generic as u32, GreetingKind::Welcome, MARK),
        (2, GreetingKind::Welcome, MARK),
        (9, GreetingKind::Refused, 93), // EPROTONOSUPPORT
    ] {
        let greeting = Greeting { value, ..greeting(GreetingKind::Ask, 77, 0, 0) };
        say(&client, &greeting.to_bytes()).unwrap();
        stage.serve();
        let heard = Greeting::parse(&receive_from(&client).unwrap()).unwrap();
        assert_eq!((heard.kind, heard.value), (kind, answer));
    }
    let dialects: Vec<_> = stage.echo.joined.values().map(|identity| identity.dialect).collect();
    assert_eq!(dialects, [Dialect::Route], "what is not known changes nothing");
}

#[test]
fn request_of_closing_client_is_answered() {
    let mut stage = stage();
    for _ in 0..3 {
        let client = stage.client();
        say(&client, &greeting(GreetingKind::Hello, 5, 0, 0).to_bytes()).unwrap();
        say(&client, b"one").unwrap();
        drop(client);
    }
    stage.serve();
    assert_eq!((stage.echo.heard, stage.echo.left, stage.control.count()), (3, 3, 0));
}

#[test]
fn waiting_requests_share_one_commit() {
    let mut stage = stage();
    let clients = [stage.client(), stage.client(), stage.client()];
    stage.serve(); // they are accepted
    let before = stage.echo.commits;
    for client in clients.iter().cycle().take(30) {
        say(client, b"request").unwrap();
    }
    stage.serve();
    assert_eq!((stage.echo.heard, stage.echo.commits - before), (30, 1));
    assert!(clients.iter().all(|client| receive_from(client).unwrap() == b"request"));
}

#[test]
fn disk_bound_requests_are_gathered() {
    let many = 4 * TURN;
    let commits = |slow_disk| {
        let mut stage = stage();
        stage.echo.slow_disk = slow_disk;
        let client = stage.client();
        stage.serve();
        (0..many).for_each(|_| assert_eq!(say(&client, b"request"), Ok(7)));
        while stage.echo.heard < many {
            stage.serve();
        }
        assert!((0..many).all(|_| receive_from(&client).unwrap() == b"request"));
        stage.echo.commits
    };
    assert!(commits(false) >= 4, "a turn each");
    assert!(commits(true) < 4, "one, unless the machine is very slow");
}

/// Each asks again when it has its answer. One of them does so at once, and is waited for.
#[test]
fn busy_client_does_not_delay_others() {
    const REQUESTS: usize = 2000;
    let mut stage = stage();
    let clients = [stage.client(), stage.client()];
    let threads = clients.map(|client| {
        std::thread::spawn(move || {
            for _ in 0..REQUESTS {
                say(&client, b"request").unwrap();
                while receive_from(&client).is_err() {
                    std::hint::spin_loop();
                }
            }
        })
    });
    while stage.echo.heard < 2 * REQUESTS {
        stage.serve();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    while stage.control.count() > 0 {
        stage.serve();
    }
    assert_eq!(stage.echo.left, 2);
}

#[test]
fn thousand_clients_are_served_and_dropped() {
    let mut stage = stage();
    let clients: Vec<_> = (0..1000).map(|_| stage.client()).collect();
    for client in &clients {
        say(client, b"request").unwrap();
    }
    while stage.echo.heard < 1000 {
        stage.serve();
    }
    assert!(clients.iter().all(|client| receive_from(client).unwrap() == b"request"));
    drop(clients);
    while stage.control.count() > 0 {
        stage.serve();
    }
    assert_eq!(stage.echo.left, 1000);
}

/// A dump waits for its reader and loses nothing, while others are served.
#[test]
fn dump_advances_with_its_reader() {
    let mut stage = stage();
    let (slow, other) = (stage.client(), stage.client());
    say(&slow, &[200]).unwrap();
    stage.serve();
    assert!(stage.echo.dumps.values().all(|left| *left > 150), "it ran ahead of its reader");
    for expected in (1..=200).rev().filter(|part| shows(*part)) {
        let part = loop {
            match receive_from(&slow) {
                Ok(part) => break part,
                Err(_) => stage.serve(),
            }
        };
        assert_eq!((part.len(), part[0]), (PART, expected));
        say(&other, b"still there").unwrap();
        stage.serve();
        assert_eq!(receive_from(&other).unwrap(), b"still there");
    }
}

#[test]
fn client_not_reading_overruns_its_bounded_queue() {
    let mut stage = stage();
    let (deaf, other) = (stage.client(), stage.client());
    let request = vec![1; 4000];
    for _ in 0..1000 {
        say(&deaf, &request).unwrap();
        stage.serve();
    }
    assert_eq!(stage.echo.heard, 1000, "its requests are acted on, as in the kernel");
    say(&other, b"quick").unwrap();
    stage.serve();
    assert_eq!(receive_from(&other).unwrap(), b"quick");

    let mut answered = 0;
    loop {
        match receive_from(&deaf) {
            Ok(answer) if answer == request => answered += 1,
            Ok(answer) => {
                assert_eq!(Greeting::parse(&answer).unwrap().kind, GreetingKind::Overrun);
                break;
            }
            Err(_) => stage.serve(),
        }
    }
    assert!((50..300).contains(&answered), "{answered} answers were kept");
    say(&deaf, b"again").unwrap();
    stage.serve();
    assert_eq!(receive_from(&deaf).unwrap(), b"again");
}

#[test]
fn events_reach_clients_in_order() {
    let mut stage = stage();
    let client = stage.client();
    say(&client, b"here").unwrap();
    stage.serve();
    let id = *stage.echo.joined.keys().next().unwrap();
    stage.control.publish(|outbox| {
        outbox.send(id, b"first".to_vec());
        outbox.send(ClientId(99), b"to nobody".to_vec());
        outbox.send(id, b"second".to_vec());
    });
    for expected in [&b"here"[..], b"first", b"second"] {
        assert_eq!(receive_from(&client).unwrap(), expected);
    }
}

#[test]
fn oversized_and_empty_datagrams_are_ignored() {
    let mut stage = stage();
    let (long, empty) = (stage.client(), stage.client());
    setsockopt(&long, sockopt::SndBufForce, &(1 << 20)).ok();
    let sent = say(&long, &vec![1; LARGEST + 1]);
    say(&long, b"next").unwrap();
    say(&empty, b"").unwrap();
    stage.serve();
    assert_eq!(receive_from(&long).unwrap(), b"next", "{sent:?}");
    assert_eq!(stage.control.count(), 1);
}

/// The user beside root can't connect to what is root's alone.
#[test]
fn socket_path_belongs_to_permitted_user() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    // Only root gives files away.
    let own = nix::unistd::getuid();
    let user = if own.is_root() { 65_534 } else { own.as_raw() };
    let _control =
        Control::open(Some(&path), AccessTerms { user: Some(user), mark: MARK }).unwrap();
    let file = std::fs::metadata(&path).unwrap();
    assert_eq!((file.uid(), file.mode() & 0o777), (user, 0o600));
}

#[test]
fn socket_path_is_private_and_reusable() {
    use std::os::unix::fs::PermissionsExt as _;
    let stage = stage();
    let mode = std::fs::metadata(&stage.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let terms = AccessTerms { user: None, mark: MARK };
    let second = Control::open(Some(&stage.path), terms).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    let left = stage.path.with_extension("left");
    let dead = std::os::unix::net::UnixListener::bind(&left).unwrap();
    drop(dead);
    // A stream's leftover is refused with another errno than a dead seqpacket's, and is not ours to
    // remove.
    assert!(Control::open(Some(&left), terms).is_ok() || left.exists());
    let Stage { control, path, .. } = stage;
    drop(control);
    assert!(!path.exists());
}

/// A path that names something else by mistake: connecting to a file is refused just as connecting
/// to a dead socket is.
#[test]
fn stale_path_that_is_no_socket_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.toml");
    std::fs::write(&path, "kept").unwrap();
    let refused = Control::open(Some(&path), AccessTerms { user: None, mark: MARK }).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
}

/// Those that leave without having read, and those that read in the end.
#[test]
fn queue_memory_of_gone_client_is_freed() {
    let mut stage = stage();
    let clients: Vec<_> = (0..40).map(|_| stage.client()).collect();
    for client in &clients {
        for _ in 0..500 {
            say(client, &vec![1; 4000]).unwrap();
            stage.serve();
        }
    }
    assert!(!stage.control.take_freed(), "it all waits");
    drop(clients);
    stage.serve();
    stage.serve();
    assert!(stage.control.take_freed());
    assert!(!stage.control.take_freed(), "once");
}
