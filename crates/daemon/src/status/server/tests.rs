use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::Shutdown,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, DropReason, Drops, PacketTap, Settings, Worker};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_status::{
    counters::CounterReport,
    protocol::{LONGEST_REQUEST, StatusAnswer},
};

use super::*;
use crate::{
    config::Config,
    ports::workers::DropFeed,
    status::{Makings, StatusThread, board::Post, identity},
};

/// For what has to come: a slow machine takes its time.
const PATIENCE: Duration = Duration::from_secs(30);

static NAMES: AtomicU64 = AtomicU64::new(0);

/// A name of its own, and who listens there.
fn listener() -> (SocketAddr, UnixListener) {
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("uxfrm-test/status/{}/{number}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    (address, listener)
}

/// A status thread at a name of its own, and what its control thread needs.
struct Site {
    address: SocketAddr,
    status: StatusThread,
    poller: Poller,
    drops: Arc<Drops>,
    worker: Worker,
    _database: Database,
}

impl Site {
    fn new() -> Self {
        let (address, listener) = listener();
        let database = Database::new(Backend::Portable, 1);
        let poller = Poller::new().unwrap();
        let config = Config::parse("test", "").unwrap();
        let worker = Worker::new(Settings::default(), &database.published()).unwrap();
        let makings = Makings {
            published: database.published(),
            identity: identity(std::path::Path::new("/etc/test.toml"), &config),
            settings: Settings::default(),
            started: now(),
            feeds: vec![DropFeed::of(&worker)],
            earlier: Vec::new(),
            group: None,
            subordinates: SubordinateUsers::default(),
            control: poller.waker(),
            listeners: StatusListeners { all: listener, reserved: None },
        };
        let status = StatusThread::start(makings).unwrap();
        Self { address, status, poller, drops: Arc::default(), worker, _database: database }
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect_addr(&self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        client
    }

    fn post(drops: &Arc<Drops>) -> Post {
        Post { drops: vec![Arc::clone(drops)], ..Post::default() }
    }

    /// Has a control thread post what is asked for until the returned one is dropped.
    fn serve(self) -> Served {
        let ends = Arc::new(AtomicBool::new(false));
        let (address, drops) = (self.address.clone(), Arc::clone(&self.drops));
        let waker = self.poller.waker();
        let tap = self.worker.tap();
        let mut site = self;
        let thread = thread::spawn({
            let ends = Arc::clone(&ends);
            move || {
                while !ends.load(Ordering::Relaxed) {
                    site.poller.wait(Some(PATIENCE)).unwrap();
                    site.status.post_if_asked(|| Self::post(&site.drops));
                    site.status.maintain();
                }
                site.status.stop();
            }
        });
        Served { address, drops, tap, waker, ends, thread: Some(thread) }
    }
}

/// A site whose control thread runs.
struct Served {
    address: SocketAddr,
    drops: Arc<Drops>,
    tap: Arc<PacketTap>,
    waker: uxfrm_io::poll::Waker,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect_addr(&self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        client
    }

    fn counters(&self) -> CounterReport {
        counters(&mut self.connect())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn ask(client: &mut UnixStream) {
    client.write_all(&StatusRequest::Counters.to_line()).unwrap();
}

fn read(client: &UnixStream) -> StatusAnswer {
    let mut line = Vec::new();
    BufReader::new(client).read_until(b'\n', &mut line).unwrap();
    StatusAnswer::from_line(&line).unwrap()
}

fn counters(client: &mut UnixStream) -> CounterReport {
    ask(client);
    match read(client) {
        StatusAnswer::Counters(report) => report,
        other @ (StatusAnswer::Status(_)
        | StatusAnswer::Why(_)
        | StatusAnswer::Drops(_)
        | StatusAnswer::DropTallies(_)
        | StatusAnswer::Workers(_)
        | StatusAnswer::Capture(_)
        | StatusAnswer::Trace(_)
        | StatusAnswer::Refusal(_)) => panic!("{other:?}"),
    }
}

#[test]
fn answers_count_all_that_came_before_the_question() {
    let site = Site::new().serve();
    let mut client = site.connect();
    for dropped in 1..20 {
        site.drops.count(DropReason::InNoState);
        for client in [&mut client, &mut site.connect()] {
            let report = counters(client);
            assert_eq!(report.reasons.of("in_no_state"), Some(dropped));
            assert_eq!(report.kernel.of("XfrmInNoStates"), Some(dropped));
            assert_eq!(report.age_seconds, 0);
        }
    }
}

#[test]
fn requests_of_one_line_each_are_answered_in_order() {
    let site = Site::new().serve();
    let mut client = site.connect();
    let status = StatusRequest::Status(uxfrm_status::gateway::StatusQuery::default());
    let lines = [&StatusRequest::Counters.to_line()[..], b"?\n", &status.to_line()].concat();
    client.write_all(lines.trim_ascii_end()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let answers: Vec<_> =
        text.lines().map(|line| StatusAnswer::from_line(line.as_bytes()).unwrap()).collect();
    let [StatusAnswer::Counters(_), StatusAnswer::Refusal(refusal), StatusAnswer::Status(status)] =
        &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert!(refusal.message.contains("no request"), "{refusal:?}");
    assert_eq!(status.gateway.configuration, "/etc/test.toml");
    assert_eq!((status.gateway.pid, status.totals.tunnels), (std::process::id(), 0));
}

#[test]
fn hostile_clients_hold_up_nobody() {
    let site = Site::new().serve();
    // More than there are places, and silent.
    let silent: Vec<_> = (0..200).map(|_| site.connect()).collect();
    assert_eq!(site.counters().age_seconds, 0);
    let mut hostile = Vec::new();
    for at in 0..40 {
        let mut client = site.connect();
        client.set_nonblocking(true).unwrap();
        // Garbage, an endless line, half a request, and one that asks without end and never reads.
        let _full = match at % 4 {
            0 => client.write_all(&[0xff; 5000]),
            1 => client.write_all(&vec![b'x'; LONGEST_REQUEST + 1]),
            2 => client.write_all(br#"{"version":1,"#),
            _ => client.write_all(&StatusRequest::Counters.to_line().repeat(20_000)),
        };
        hostile.push(client);
        assert_eq!(site.counters().age_seconds, 0, "after {at}");
    }
    let gone = |client: &UnixStream| {
        client.set_nonblocking(true).unwrap();
        let mut told = String::new();
        (&mut &*client).read_to_string(&mut told).is_ok()
            && told.contains("all places for clients are in use")
    };
    assert!(silent.iter().filter(|client| gone(client)).count() >= 136, "who asks goes first");
}

#[test]
fn client_that_goes_while_it_is_answered_is_forgotten() {
    let site = Site::new().serve();
    for _ in 0..200 {
        ask(&mut site.connect());
    }
    assert_eq!(site.counters().age_seconds, 0);
}

#[test]
fn busy_control_thread_is_waited_for_and_then_done_without() {
    let site = Site::new();
    site.drops.count(DropReason::InReplay);
    site.status.post(|| Site::post(&site.drops));
    let mut client = site.connect();
    // Nobody posts any more; workers' counters go on by themselves.
    site.drops.count(DropReason::InReplay);
    let report = counters(&mut client);
    assert_eq!(report.reasons.of("in_replay"), Some(2));
    assert!(report.age_seconds >= 2, "{}", report.age_seconds);
    site.status.stop();
}

#[test]
fn rest_answers_who_has_asked_and_leaves_others_for_later() {
    let mut site = Site::new();
    let mut asked = site.connect();
    ask(&mut asked);
    while !site.status.board().is_asked() {
        site.poller.wait(Some(PATIENCE)).unwrap();
    }
    let quiet = site.connect();
    site.status.rest(|| Site::post(&site.drops));
    assert!(matches!(read(&asked), StatusAnswer::Counters(_)));
    // Taken and not answered: it asks again; or not taken yet.
    drop(quiet);
    let mut later = site.connect();
    ask(&mut later);
    later.set_nonblocking(true).unwrap();
    assert!((&later).read(&mut [0]).is_err(), "nobody answers while another process may");
    later.set_nonblocking(false).unwrap();
    site.status.resume();
    let site = site.serve();
    site.waker.wake();
    assert!(matches!(read(&later), StatusAnswer::Counters(_)));
}

#[test]
fn capture_ends_with_its_client() {
    let site = Site::new().serve();
    let capture = StatusRequest::Capture(uxfrm_status::capture::CaptureQuery::default());
    let mut clients: Vec<_> = (0..4).map(|_| site.connect()).collect();
    for client in &mut clients {
        for _again in 0..2 {
            client.write_all(&capture.to_line()).unwrap();
            assert!(matches!(read(client), StatusAnswer::Capture(_)));
        }
    }
    assert!(site.tap.is_armed());
    let mut fifth = site.connect();
    fifth.write_all(&capture.to_line()).unwrap();
    let StatusAnswer::Refusal(refusal) = read(&fifth) else { panic!("more than the most") };
    assert!(refusal.message.contains("4 captures and traces run already"), "{refusal:?}");
    // Who has nothing to ask makes room for others, but not who watches.
    let _silent: Vec<_> = (0..200).map(|_| site.connect()).collect();
    assert_eq!(site.counters().age_seconds, 0);
    clients[0].write_all(&capture.to_line()).unwrap();
    assert!(matches!(read(&clients[0]), StatusAnswer::Capture(_)));
    drop(clients);
    let deadline = now().plus(PATIENCE);
    while site.tap.is_armed() {
        assert!(now() < deadline, "the workers still copy packets for nobody");
        thread::sleep(BREATHER);
    }
}

/// A server whose turns the test takes.
struct TurnByTurn {
    address: SocketAddr,
    server: Server,
    board: Board,
}

impl TurnByTurn {
    fn new() -> Self {
        let (address, listener) = listener();
        let database = Database::new(Backend::Portable, 1);
        let config = Config::parse("test", "").unwrap();
        let identity = identity(std::path::Path::new("/etc/test.toml"), &config);
        let settings = Settings::default();
        let sources = Sources::new(database.published(), identity, settings, now(), (&[], &[]));
        let (rested, _never) = std::sync::mpsc::channel();
        let (readers, poller) =
            (Readers::new(None, SubordinateUsers::default()), Poller::new().unwrap());
        let board = Board::new(Poller::new().unwrap().waker());
        let server = Server::new(
            StatusListeners { all: listener, reserved: None },
            poller,
            readers,
            sources,
            rested,
        )
        .unwrap();
        Self { address, server, board }
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect_addr(&self.address).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    /// A turn, and the control thread's answer to what it asked.
    fn turn(&mut self) {
        self.server.turn(Order::Serve, &self.board).unwrap();
        if self.board.is_asked() {
            self.board.post(Post::default);
        }
    }
}

/// The lines that have come.
fn lines(client: &UnixStream) -> usize {
    let (mut some, mut count) = (vec![0; 1 << 16], 0);
    while let Ok(length @ 1..) = (&*client).read(&mut some) {
        count += some[..length].iter().filter(|byte| **byte == b'\n').count();
    }
    count
}

#[test]
fn endless_refusals_are_answered_between_those_of_others() {
    const NONSENSE: usize = 20_000;
    let mut site = TurnByTurn::new();
    let (endless, other) = (site.connect(), site.connect());
    (&endless).write_all(&b"?\n".repeat(NONSENSE)).unwrap();
    site.turn();
    (&other).write_all(&StatusRequest::Counters.to_line()).unwrap();
    let (mut refused, mut turns) = (lines(&endless), 0);
    while lines(&other) == 0 {
        turns += 1;
        assert!(turns < 10, "the other client does not get its turn");
        site.turn();
        refused += lines(&endless);
    }
    // A refusal is two steps: a request read, an answer sent.
    let most = (turns + 1) * share::answers_a_turn(Access::Full);
    assert!((1..=most).contains(&refused), "{refused} refusals in {turns} turns");
    while refused < NONSENSE {
        site.turn();
        let more = lines(&endless);
        assert!(more > 0, "a client that asks on is not forgotten");
        refused += more;
    }
}

/// What a client is told that is not answered any more.
fn is_turned_away(client: &UnixStream) -> bool {
    let StatusAnswer::Refusal(refusal) = read(client) else { panic!("it is answered") };
    refusal.is_for_want_of_place()
}

#[test]
fn group_of_half_requests_makes_room_and_is_told_so() {
    fn enter(site: &mut TurnByTurn, user: u32) -> (UnixStream, Admission) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let admission = site.server.admit(near, Access::Group { user });
        (far, admission)
    }
    let mut site = TurnByTurn::new();
    let mut half = Vec::new();
    for user in 100..148 {
        let (client, admission) = enter(&mut site, user);
        assert_eq!(admission, Admission::Done);
        (&client).write_all(br#"{"version""#).unwrap();
        half.push(client);
        site.turn();
    }
    let (mut member, admission) = enter(&mut site, 9);
    assert_eq!(admission, Admission::InPlaceOfAnother);
    assert!(is_turned_away(&half[0]), "the oldest goes");
    ask(&mut member);
    let mut turns = 0;
    while lines(&member) == 0 {
        turns += 1;
        assert!(turns < 10, "the member is not answered");
        site.turn();
    }
    // All others have as much, and the member is about to ask again.
    (&member).write_all(b"{").unwrap();
    site.turn();
    let (second, admission) = enter(&mut site, 105);
    assert_eq!(admission, Admission::Done);
    assert!(is_turned_away(&second));
}
