//! The status thread: what the gateway tells about itself, by the protocol of [`uxfrm_status`].
//!
//! Clients are answered by a thread of their own, of low priority, so that a document about
//! 100,000 states holds up neither workers nor the control thread. It reads the published snapshot
//! and the workers' counters without locks. What the control thread alone knows it posts on a
//! [`Board`] when it is asked to. Whoever asks right after a packet sees it counted.
//!
//! It promises that no client holds up another: one loop, nothing blocks, and number of clients,
//! length of requests, time to send one, time to read an answer and memory for answers are bounded
//! ([`server`]). Root, the gateway's user and the members of `[status] group` are answered.

mod access;
mod annotation;
mod answer;
pub(crate) mod board;
mod capture;
mod client;
mod drop_lines;
mod drops;
mod explanation;
mod grouping;
mod guard_drops;
mod peer_drops;
mod peer_errors;
mod refusals;
mod refused_send;
mod server;
mod share;
pub(crate) mod socket;
mod state;
mod survey;
mod trace;
mod tunnel;
mod watch;
mod workers;

use std::{
    io,
    path::{self, Path},
    process,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use uxfrm_engine::{Moment, Published, Settings};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_io::{
    poll::{Poller, Waker},
    priority, sandbox,
};
use uxfrm_status::{drops::DropStatus, gateway::GatewayIdentity};

use self::{
    access::Readers,
    answer::{Sources, unix_seconds},
    board::{Board, Post},
    server::Server,
    socket::StatusListeners,
};
use crate::{
    clock::now,
    config::Config,
    ports::workers::{DropFeed, numbers},
};

/// The thread's name.
const THREAD: &str = "uxfrm-status";

/// A thread that has failed is started again after this.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a hand-over waits for clients that are being answered.
const REST: Duration = Duration::from_secs(1);

/// What the thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Answer.
    Serve = 0,
    /// Answer whoever has asked, then no more: another process may take over.
    Rest = 1,
    /// End.
    Stop = 2,
}

/// What both threads share.
#[derive(Debug)]
struct Shared {
    order: AtomicU8,
    board: Arc<Board>,
}

/// The thread, as the control thread has it.
#[derive(Debug)]
pub(crate) struct StatusThread {
    shared: Arc<Shared>,
    /// What a thread is made from, should it have to be started again.
    makings: Makings,
    running: Option<StartedThread>,
    not_before: Moment,
}

/// What the thread works on.
#[derive(Debug)]
pub(crate) struct Makings {
    /// Where snapshots are published.
    pub(crate) published: Published,
    /// Who the gateway is.
    pub(crate) identity: GatewayIdentity,
    /// A worker's settings.
    pub(crate) settings: Settings,
    /// When it started.
    pub(crate) started: Moment,
    /// What workers tell of the packets that they drop.
    pub(crate) feeds: Vec<DropFeed>,
    /// Records of dropped packets that the process had whose place this one took.
    pub(crate) earlier: Vec<DropStatus>,
    /// A group whose members may ask.
    pub(crate) group: Option<u32>,
    /// Users who are one, however many numbers they have.
    pub(crate) subordinates: SubordinateUsers,
    /// Wakes the control thread.
    pub(crate) control: Waker,
    /// The socket, as [`StatusSocket::listeners`](socket::StatusSocket::listeners) gives it.
    pub(crate) listeners: StatusListeners,
}

#[derive(Debug)]
struct StartedThread {
    thread: JoinHandle<()>,
    waker: Waker,
    rested: Receiver<Vec<DropStatus>>,
}

impl Shared {
    fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Serve,
            1 => Order::Rest,
            // 2; nothing else is stored.
            _ => Order::Stop,
        }
    }

    fn set(&self, order: Order) {
        self.order.store(order as u8, Ordering::Release);
    }
}

/// Who a gateway of this configuration is.
pub(crate) fn identity(path: &Path, config: &Config) -> GatewayIdentity {
    let interfaces = match &config.inline {
        Some(inline) => vec![inline.protected().to_owned(), inline.wire().to_owned()],
        None => config.wire.af_xdp.iter().map(ToString::to_string).collect(),
    };
    GatewayIdentity {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: process::id(),
        started: unix_seconds(),
        uptime_seconds: 0,
        configuration: path::absolute(path).as_deref().unwrap_or(path).display().to_string(),
        mode: if config.inline.is_some() { "inline" } else { "host" }.to_owned(),
        tun: config.host.tun.to_string(),
        workers: config.runtime.workers.count().get() as u64,
        udp_ports: numbers(config),
        interfaces,
        devices: Vec::new(),
        key_manager_listens: false,
    }
}

impl StatusThread {
    /// Starts to answer.
    ///
    /// # Errors
    /// When there is no thread or descriptor to be had.
    pub(crate) fn start(makings: Makings) -> io::Result<Self> {
        let board = Arc::new(Board::new(makings.control.clone()));
        let shared = Arc::new(Shared { order: AtomicU8::new(Order::Serve as u8), board });
        let running = Some(run(&shared, &makings)?);
        Ok(Self { shared, makings, running, not_before: Moment(0) })
    }

    /// Where the control thread posts what it knows.
    pub(crate) fn board(&self) -> &Board {
        &self.shared.board
    }

    /// Posts what the control thread knows, if somebody waits for it.
    pub(crate) fn post_if_asked(&self, post: impl FnOnce() -> Post) {
        if self.board().is_asked() {
            self.post(post);
        }
    }

    /// Posts what the control thread knows.
    fn post(&self, post: impl FnOnce() -> Post) {
        self.board().post(post);
        self.wake();
    }

    fn wake(&self) {
        self.running.iter().for_each(|running| running.waker.wake());
    }

    /// Starts the thread again where it has failed: the gateway goes on without it.
    pub(crate) fn maintain(&mut self) {
        if self.running.as_ref().is_some_and(|running| !running.thread.is_finished()) {
            return;
        }
        if self.running.take().is_some() {
            tracing::error!("the thread that answers `uxfrm status` has failed; another begins");
            self.not_before = now().plus(PAUSE);
        }
        if now() < self.not_before {
            return;
        }
        match run(&self.shared, &self.makings) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                tracing::error!(%error, "nobody answers `uxfrm status`");
                self.not_before = now().plus(PAUSE);
            }
        }
    }

    /// Answers those who have asked with a last `post`, and leaves all others to the process that
    /// takes over. The last records of dropped packets.
    pub(crate) fn rest(&self, post: impl FnOnce() -> Post) -> Vec<DropStatus> {
        self.shared.set(Order::Rest);
        self.post(post);
        let rested = self.running.as_ref().map(|running| running.rested.recv_timeout(REST));
        // One that takes longer answers as it goes on, or not at all.
        rested.and_then(Result::ok).unwrap_or_default()
    }

    /// The other process has not taken over.
    pub(crate) fn resume(&self) {
        self.shared.set(Order::Serve);
        self.wake();
    }

    /// Ends it.
    pub(crate) fn stop(mut self) {
        self.shared.set(Order::Stop);
        self.wake();
        if let Some(running) = self.running.take()
            && running.thread.join().is_err()
        {
            tracing::error!("the thread that answers `uxfrm status` has failed");
        }
    }
}

fn run(shared: &Arc<Shared>, makings: &Makings) -> io::Result<StartedThread> {
    let poller = Poller::new()?;
    let waker = poller.waker();
    let (rested_sender, rested) = mpsc::channel();
    let Makings {
        published,
        identity,
        settings,
        started,
        feeds,
        earlier,
        group,
        subordinates,
        listeners,
        ..
    } = makings;
    let (settings, drops) = (settings.clone(), (&feeds[..], &earlier[..]));
    let sources = Sources::new(Arc::clone(published), identity.clone(), settings, *started, drops);
    let readers = Readers::new(*group, subordinates.clone());
    let server = Server::new(listeners.try_clone()?, poller, readers, sources, rested_sender)?;
    let shared = Arc::clone(shared);
    let work = move || serve(server, &shared);
    let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(work)?;
    Ok(StartedThread { thread, waker, rested })
}

fn serve(mut server: Server, shared: &Shared) {
    if let Err(error) = priority::background_priority() {
        tracing::debug!(%error, "status is answered beside the lanes");
    }
    let confined = sandbox::status();
    if let Some(left) = confined.faults() {
        tracing::debug!(%left, "the status thread keeps more than it needs");
    }
    loop {
        let order = shared.order();
        if order == Order::Stop {
            return;
        }
        if let Err(error) = server.turn(order, &shared.board) {
            tracing::error!(%error, "the status socket is broken");
            return;
        }
    }
}

/// Tells the control thread that nobody is being answered, and the last records of dropped packets.
type Rested = Sender<Vec<DropStatus>>;
