//! The process that `uxfrm run` is: it starts the gateway, and its successor when there is to be one, and
//! ends with it. It reads nothing that others write, and has no filter: what it starts begins with none.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _},
        unix::{
            fs::MetadataExt as _,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
};

use anyhow::Context as _;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{Id, WaitPidFlag, waitid, waitpid},
    },
    unistd::{Pid, Uid},
};
use sd_notify::NotifyState;
use uxfrm_io::{dump, link::Link};

use super::{
    channel::{Order, Report},
    orphans,
};

/// What is to run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The configuration.
    pub config: PathBuf,
    /// Whether the gateway is to end when standard input does.
    pub until_stdin_ends: bool,
}

/// The program that runs, whatever has become of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A gateway's process.
#[derive(Debug)]
struct Gateway {
    process: Child,
    link: Link,
}

#[derive(Debug)]
struct Supervision {
    launch: Launch,
    signals: SignalFd,
    current: Gateway,
    /// Who is to take over.
    successor: Option<Gateway>,
    /// Who has handed over.
    leaving: Vec<Gateway>,
    reads_stdin: bool,
}

/// Runs the gateway until it ends, as which this process ends. SIGTERM, SIGINT and SIGHUP are the gateway's.
///
/// # Errors
/// When it can't be started.
pub fn supervise(launch: Launch) -> anyhow::Result<ExitCode> {
    dump::forbid().context("can't forbid core dumps")?;
    let set: SigSet =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect();
    set.thread_set_mask().context("can't set the signal mask")?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    orphans::wait_for_their_end();
    let current = start(Path::new(OWN_PROGRAM), &launch, &Order::Begin)
        .context("the gateway's process can't be started")?;
    let reads_stdin = launch.until_stdin_ends;
    let (successor, leaving) = (None, Vec::new());
    let mut all = Supervision { launch, signals, current, successor, leaving, reads_stdin };
    loop {
        all.wait()?;
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
    let (ours, theirs) = Link::pair()?;
    order.send(&ours)?;
    let own = std::process::id().to_string();
    let process = Command::new(program)
        .arg0("uxfrm")
        // First an option that nothing else knows: an interpreter would take a word for a file of that name here, which a gateway that was
        // broken into may have written.
        .args(["--under-supervisor", &own, "run", "--"])
        .arg(&launch.config)
        .stdin(Stdio::from(theirs.into_descriptor()))
        .env_remove("NOTIFY_SOCKET")
        .spawn()?;
    Ok(Gateway { process, link: ours })
}

impl Supervision {
    fn wait(&self) -> io::Result<()> {
        let stdin = io::stdin();
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.signals.as_fd()), readable(self.current.link.as_fd())];
        fds.extend(self.successor.iter().map(|gateway| readable(gateway.link.as_fd())));
        if self.reads_stdin {
            fds.push(readable(stdin.as_fd()));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Does what gateways ask for.
    fn hear(&mut self) {
        while let Some(report) = next(&self.current) {
            match report {
                Report::Notify(text) => notify(&text),
                Report::Start(program) => self.succeed(&program),
                Report::Abandon => self.abandon(),
                Report::TookOver => {}
            }
        }
        while let Some(report) = self.successor.as_ref().and_then(next) {
            if report == Report::TookOver
                && let Some(successor) = self.successor.take()
            {
                self.leaving.push(std::mem::replace(&mut self.current, successor));
            }
        }
    }

    /// Starts a successor, and leads it and the gateway to each other.
    fn succeed(&mut self, program: &Path) {
        let told = match self.try_succeed(program) {
            Ok(link) => Order::HandOver(link),
            Err(error) => Order::Failed(format!("{error:#}")),
        };
        // A gateway that is gone needs no successor.
        let _gone = told.send(&self.current.link);
    }

    fn try_succeed(&mut self, program: &Path) -> anyhow::Result<Link> {
        anyhow::ensure!(self.successor.is_none(), "an upgrade is under way");
        let file = trusted(program)?;
        let (here, there) = Link::pair()?;
        // The very file that was looked at.
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let successor = start(&opened, &self.launch, &Order::TakeOver(there))
            .with_context(|| format!("{} can't be started", program.display()))?;
        self.successor = Some(successor);
        Ok(here)
    }

    fn abandon(&mut self) {
        if let Some(successor) = &mut self.successor {
            // It may have ended by itself.
            let _ended = successor.process.kill();
        }
    }

    fn pass_on(&mut self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        if signal == Signal::SIGCHLD {
            return;
        }
        if signal != Signal::SIGHUP {
            self.abandon();
        }
        send(&self.current, signal);
    }

    /// How the gateway ended, if it has.
    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        self.leaving.retain_mut(|gateway| matches!(gateway.process.try_wait(), Ok(None)));
        if let Some(successor) = &mut self.successor
            && successor.process.try_wait()?.is_some()
        {
            self.successor = None;
        }
        let (own, ended) = (self.current.process.id(), self.current.process.try_wait()?);
        if ended.is_some() {
            // It ends right behind its successor's word, which may have come since it was listened for.
            self.hear();
            if self.current.process.id() != own {
                return Ok(None);
            }
            self.abandon();
        } else {
            self.reap_strangers();
        }
        Ok(ended)
    }

    /// As process 1 of a container this is the parent of all whose own has ended.
    fn reap_strangers(&self) {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Some(ended) = waitid(Id::All, look).ok().and_then(|status| status.pid()) {
            let gateways = [&self.current].into_iter().chain(&self.successor).chain(&self.leaving);
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
    let text = String::from_utf8_lossy(text);
    let _not_under_systemd = sd_notify::notify(&[NotifyState::Custom(&text)]);
}

/// A program that nobody but root, or who runs this, may have written: a gateway that was broken into could
/// have anything else started, with none of its filters.
fn trusted(program: &Path) -> anyhow::Result<File> {
    let shown = program.display();
    let file = File::open(program).with_context(|| format!("{shown} can't be read"))?;
    let found = file.metadata()?;
    anyhow::ensure!(found.is_file(), "{shown} is no file");
    let own = Uid::effective().as_raw();
    anyhow::ensure!(
        found.uid() == 0 || found.uid() == own,
        "{shown} is user {}'s: it must be root's",
        found.uid()
    );
    anyhow::ensure!(
        found.mode() & 0o022 == 0,
        "{shown} may be written by others than its owner (mode {:o}): chmod go-w",
        found.mode() & 0o7777
    );
    Ok(file)
}

/// As a shell tells it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
