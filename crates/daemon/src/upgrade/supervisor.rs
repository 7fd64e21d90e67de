//! The process that `uxfrm run` is: it starts the gateway, and its successor when there is to be
//! one, and ends with it. It reads nothing that others write, and has no filter: what it starts
//! begins with none. What a gateway says may be an attacker's word.
//!
//! It alone decides which process is the gateway: once a successor asks to be, the one before is
//! killed, and once a successor is killed, it is the gateway no more, whatever it has said
//! ([`Supervision::hear`]).

use std::{
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{Id, WaitPidFlag, waitid, waitpid},
    },
    unistd::Pid,
};
use sd_notify::NotifyState;
use uxfrm_io::{fd_channel::FdChannel, secret_memory};

use super::{
    channel::{Order, Report, TURN},
    orphans,
    trust::DeclaredPaths,
};

/// What is to run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The configuration.
    pub config: PathBuf,
    /// Whether the gateway is to end when standard input does.
    pub until_stdin_ends: bool,
    /// Form of the log, where one was asked for.
    pub log: Option<&'static str>,
}

/// Tells the gateway the form of its log: an older release passes the variable over, where it would
/// not know an option.
const LOG_FORM: &str = "UXFRM_LOG";

/// The program that runs, whatever has become of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A gateway that does not read keeps nobody waiting longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A gateway that is told to end has so long for it: it may hang on a file that never answers. Less
/// than a unit's `TimeoutStopSec=`.
const END: Duration = Duration::from_secs(8);

/// Bytes of what it says to the service manager that are read.
const LONGEST: usize = 256;

/// A gateway's process.
#[derive(Debug)]
struct Gateway {
    process: Child,
    link: FdChannel,
}

/// A process that may become the gateway.
#[derive(Debug)]
struct Successor {
    gateway: Gateway,
    /// It has been killed, and becomes nothing.
    given_up: bool,
}

#[derive(Debug)]
struct Supervision {
    launch: Launch,
    signals: SignalFd,
    current: Gateway,
    /// Who is to take over.
    successor: Option<Successor>,
    /// Who has handed over, and is killed.
    leaving: Vec<Gateway>,
    /// SIGHUP came while there was a successor: whoever is the gateway then is to hear of it.
    hung_up: bool,
    untrusted: DeclaredPaths,
    reads_stdin: bool,
    /// When the gateway is killed that was told to end.
    ends_by: Option<Instant>,
}

/// Runs the gateway until it ends, as which this process ends. SIGTERM, SIGINT and SIGHUP are the
/// gateway's.
///
/// # Errors
/// When it can't be started.
pub fn supervise(launch: Launch) -> anyhow::Result<ExitCode> {
    secret_memory::forbid().context("can't forbid core dumps")?;
    let set: SigSet =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect();
    set.thread_set_mask().context("can't set the signal mask")?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    orphans::wait_for_exit();
    let current = start(Path::new(OWN_PROGRAM), &launch, &Order::Begin)
        .context("the gateway's process can't be started")?;
    let reads_stdin = launch.until_stdin_ends;
    let mut all = Supervision {
        launch,
        signals,
        current,
        successor: None,
        leaving: Vec::new(),
        hung_up: false,
        untrusted: DeclaredPaths::default(),
        reads_stdin,
        ends_by: None,
    };
    loop {
        all.wait()?;
        all.insist();
        // What a process said before it ended comes first.
        all.hear();
        while let Some(signal) = all.signals.read_signal()? {
            all.pass_on(i32::try_from(signal.ssi_signo).unwrap_or_default());
        }
        if let Some(status) = all.reap()? {
            return Ok(code(status));
        }
        if all.reads_stdin {
            all.look_at_stdin();
        }
    }
}

fn start(program: &Path, launch: &Launch, order: &Order) -> io::Result<Gateway> {
    let (ours, theirs) = FdChannel::pair()?;
    ours.set_timeout(PATIENCE)?;
    order.send(&ours)?;
    let own = std::process::id().to_string();
    let process = Command::new(program)
        .arg0("uxfrm")
        // First an option that nothing else knows: an interpreter would take a word for a file of
        // that name here, which a gateway that was broken into may have written.
        .args(["--under-supervisor", &own, "run", "--"])
        .arg(&launch.config)
        .stdin(Stdio::from(theirs.into_descriptor()))
        .env_remove("NOTIFY_SOCKET")
        .envs(launch.log.map(|form| (LOG_FORM, form)))
        .spawn()?;
    Ok(Gateway { process, link: ours })
}

impl Supervision {
    fn wait(&self) -> io::Result<()> {
        let stdin = io::stdin();
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.signals.as_fd()), readable(self.current.link.as_fd())];
        fds.extend(self.successor.iter().map(|successor| readable(successor.gateway.link.as_fd())));
        if self.reads_stdin {
            fds.push(readable(stdin.as_fd()));
        }
        let left = self.ends_by.map(|by| by.saturating_duration_since(Instant::now()));
        // A millisecond more, so that the time has come when it returns.
        let left = left.map(|left| PollTimeout::try_from(left + Duration::from_millis(1)));
        match poll(&mut fds, left.transpose().ok().flatten().unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Does what gateways ask for.
    fn hear(&mut self) {
        for _ in 0..TURN {
            let Some(report) = next(&self.current) else { break };
            match report {
                Report::Notify(text) => notify(&text),
                Report::Start(program) => self.succeed(&program),
                Report::Abandon => self.abandon(),
                Report::Writes(place) => self.untrusted.add(place),
                Report::TookOver => {}
            }
        }
        for _ in 0..TURN {
            let heard = self.successor.as_ref().and_then(|successor| next(&successor.gateway));
            match heard {
                Some(Report::TookOver) => self.decide(),
                Some(Report::Writes(place)) => self.untrusted.add(place),
                // It is not the gateway.
                Some(Report::Notify(_) | Report::Start(_) | Report::Abandon) => {}
                None => break,
            }
        }
    }

    /// The successor asks to be the gateway, and is from now on, unless it has been given up. The
    /// one before rests and waits to hear that its successor has ended, which it never does: it is
    /// killed, and has nothing to do for that.
    fn decide(&mut self) {
        let Some(successor) = self.successor.take_if(|successor| !successor.given_up) else {
            return;
        };
        let mut before = std::mem::replace(&mut self.current, successor.gateway);
        // It may have ended by itself.
        let _ended = before.process.kill();
        self.leaving.push(before);
        self.tell(&Order::GoOn);
        if std::mem::take(&mut self.hung_up) {
            send(&self.current, Signal::SIGHUP);
        }
    }

    fn tell(&self, order: &Order) {
        // A gateway that is gone is reaped.
        let _gone = order.send(&self.current.link);
    }

    /// Starts a successor, and leads it and the gateway to each other.
    fn succeed(&mut self, program: &Path) {
        let told = match self.try_succeed(program) {
            Ok(link) => Order::HandOver(link),
            Err(error) => Order::Failed(format!("{error:#}")),
        };
        self.tell(&told);
    }

    fn try_succeed(&mut self, program: &Path) -> anyhow::Result<FdChannel> {
        anyhow::ensure!(self.successor.is_none(), "an upgrade is under way");
        let file = self.untrusted.open_other(program)?;
        let (here, there) = FdChannel::pair()?;
        // The very file that was looked at.
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let gateway = start(&opened, &self.launch, &Order::TakeOver(there))
            .with_context(|| format!("{} can't be started", program.display()))?;
        self.successor = Some(Successor { gateway, given_up: false });
        Ok(here)
    }

    fn abandon(&mut self) {
        if let Some(Successor { gateway, given_up }) = &mut self.successor {
            *given_up = true;
            // It may have ended by itself.
            let _ended = gateway.process.kill();
        }
    }

    fn pass_on(&mut self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        if signal == Signal::SIGCHLD {
            return;
        }
        if signal == Signal::SIGHUP {
            self.hung_up = self.successor.is_some();
        } else {
            self.abandon();
            self.ends_by.get_or_insert_with(|| Instant::now() + END);
        }
        send(&self.current, signal);
    }

    /// Kills a gateway that was told to end and has not. As after any kill, what is protected stays
    /// refused.
    fn insist(&mut self) {
        if self.ends_by.take_if(|by| *by <= Instant::now()).is_some() {
            let (own, seconds) = (self.current.process.id(), END.as_secs());
            say(&format!("the gateway's process {own} has not ended within {seconds} s: killed"));
            // It may have ended by itself.
            let _ended = self.current.process.kill();
        }
    }

    /// How the gateway ended, if it has.
    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        self.leaving.retain_mut(|gateway| matches!(gateway.process.try_wait(), Ok(None)));
        if let Some(Successor { gateway, .. }) = &mut self.successor
            && gateway.process.try_wait()?.is_some()
        {
            // Whatever it has said and was not heard is void: it has carried no packet.
            self.successor = None;
            self.hung_up = false;
            self.tell(&Order::Ended);
        }
        let (own, ended) = (self.current.process.id(), self.current.process.try_wait()?);
        let Some(status) = ended else {
            self.reap_strangers();
            return Ok(None);
        };
        // Its successor may have all that it needs.
        self.hear();
        if self.current.process.id() != own {
            return Ok(None);
        }
        self.abandon();
        if let Some(signal) = status.signal() {
            say(&format!("the gateway's process {own} was ended by signal {signal}"));
        }
        Ok(Some(status))
    }

    /// As process 1 of a container this is the parent of all whose own has ended.
    fn reap_strangers(&self) {
        if std::process::id() != 1 {
            return;
        }
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Some(ended) = waitid(Id::All, look).ok().and_then(|status| status.pid()) {
            let successor = self.successor.as_ref().map(|successor| &successor.gateway);
            let gateways = [&self.current].into_iter().chain(successor).chain(&self.leaving);
            if gateways
                .map(|gateway| gateway.process.id())
                .any(|own| own == ended.as_raw().unsigned_abs())
            {
                return; // the next look reaps it, and tells how it ended
            }
            // It has ended, and nobody else waits for it.
            let _reaped = waitpid(ended, Some(WaitPidFlag::WNOHANG));
        }
    }

    fn look_at_stdin(&mut self) {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO) != Ok(1) {
            return;
        }
        let mut buffer = [0; 512];
        // A broken one has ended, too.
        if stdin.lock().read(&mut buffer).unwrap_or(0) == 0 {
            self.reads_stdin = false;
            self.pass_on(Signal::SIGTERM as i32);
        }
    }
}

/// What a gateway has said, if anything.
fn next(gateway: &Gateway) -> Option<Report> {
    let mut fds = [PollFd::new(gateway.link.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO) != Ok(1) {
        return None;
    }
    // One that is gone is reaped, and one that speaks otherwise says nothing.
    Report::receive(&gateway.link).ok().flatten()
}

fn send(gateway: &Gateway, signal: Signal) {
    let Ok(process) = i32::try_from(gateway.process.id()) else { return };
    // It has not been reaped, so the number is its own.
    let _ended = kill(Pid::from_raw(process), signal);
}

fn notify(text: &[u8]) {
    let text = allowed(text);
    if !text.is_empty() {
        let _not_under_systemd = sd_notify::notify(&[NotifyState::Custom(&text)]);
    }
}

/// What a gateway that nobody has broken into says to the service manager, and no more: by other
/// words it would move the unit to another process or take descriptors that are kept for it.
fn allowed(text: &[u8]) -> String {
    let text = std::str::from_utf8(text.get(..LONGEST).unwrap_or(text)).unwrap_or_default();
    let said = text.split('\n').filter(|line| match line.split_once('=') {
        Some(("READY" | "RELOADING" | "STOPPING", value)) => value == "1",
        Some(("MONOTONIC_USEC", value)) => value.parse::<u64>().is_ok(),
        Some(_) | None => false,
    });
    said.collect::<Vec<_>>().join("\n")
}

fn say(words: &str) {
    use io::Write as _;
    // Whoever closed our standard error does not want to know.
    let _closed = writeln!(io::stderr(), "uxfrm: {words}");
}

/// As a shell tells it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests;
