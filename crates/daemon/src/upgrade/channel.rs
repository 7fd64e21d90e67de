//! What a gateway and its supervisor say to each other: a byte, and a text that the supervisor does
//! not read but passes on.

use std::{
    ffi::OsStr,
    fmt::Display,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sd_notify::NotifyState;
use uxfrm_io::fd_channel::{FdChannel, FdMessage};

/// What a gateway tells its supervisor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// For the service manager.
    Notify(Vec<u8>),
    /// Start this program as the successor.
    Start(PathBuf),
    /// End the successor: it takes too long.
    Abandon,
    /// This process has all that it needs to be the gateway.
    TookOver,
    /// This process may write this file, or beneath this directory: no program of these is to be
    /// started.
    Writes(PathBuf),
}

/// What a supervisor tells a gateway.
#[derive(Debug)]
pub(super) enum Order {
    /// Begin, alone.
    Begin,
    /// Begin by taking over from whom this leads to.
    TakeOver(FdChannel),
    /// Hand over to whom this leads to.
    HandOver(FdChannel),
    /// No successor could be started.
    Failed(String),
    /// The successor has ended before it was the gateway.
    Ended,
    /// Be the gateway: there is no other any more.
    GoOn,
}

const NOTIFY: u8 = b'N';
const START: u8 = b'S';
const ABANDON: u8 = b'A';
const TOOK_OVER: u8 = b'T';
const WRITES: u8 = b'W';
const BEGIN: u8 = b'B';
const TAKE: u8 = b'L';
const HAND: u8 = b'H';
const FAILED: u8 = b'F';
const ENDED: u8 = b'E';
const GO_ON: u8 = b'G';

/// A supervisor stays as its gateways change: one of a newer release asks first whether it is
/// understood.
const DIALECT: &[u8] = b"2";
/// The gateway's messages have one piece each. So many are heard before somebody else is.
pub(super) const TURN: usize = 16;

fn worded(tag: u8, text: &[u8]) -> Vec<u8> {
    [&[tag], text].concat()
}

impl Report {
    /// The next one; `None` when the gateway is gone.
    pub(super) fn receive(link: &FdChannel) -> io::Result<Option<Self>> {
        let Some(FdMessage { bytes, .. }) = link.receive_short()? else { return Ok(None) };
        let (tag, text) = bytes.split_first().ok_or(io::ErrorKind::InvalidData)?;
        let path = || PathBuf::from(OsStr::from_bytes(text));
        Ok(Some(match *tag {
            NOTIFY => Self::Notify(text.to_vec()),
            START => Self::Start(path()),
            ABANDON => Self::Abandon,
            TOOK_OVER => Self::TookOver,
            WRITES => Self::Writes(path()),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }))
    }

    pub(super) fn send(&self, link: &FdChannel) -> io::Result<()> {
        let bytes = match self {
            Self::Notify(text) => worded(NOTIFY, text),
            Self::Start(path) => worded(START, path.as_os_str().as_bytes()),
            Self::Abandon => worded(ABANDON, b""),
            Self::TookOver => worded(TOOK_OVER, b""),
            Self::Writes(path) => worded(WRITES, path.as_os_str().as_bytes()),
        };
        link.send(&bytes, &[])
    }
}

impl Order {
    /// The next one; `None` when the supervisor is gone.
    pub(super) fn receive(link: &FdChannel) -> io::Result<Option<Self>> {
        let Some(FdMessage { bytes, descriptors }) = link.receive()? else { return Ok(None) };
        let (tag, text) = bytes.split_first().ok_or(io::ErrorKind::InvalidData)?;
        let passed = descriptors.into_iter().next().map(FdChannel::of);
        Ok(Some(match (*tag, passed) {
            (BEGIN, None) => Self::Begin,
            (TAKE, Some(link)) if text == DIALECT => Self::TakeOver(link),
            (HAND, Some(link)) => Self::HandOver(link),
            (FAILED, None) => Self::Failed(String::from_utf8_lossy(text).into_owned()),
            (ENDED, None) => Self::Ended,
            (GO_ON, None) => Self::GoOn,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }))
    }

    pub(super) fn send(&self, link: &FdChannel) -> io::Result<()> {
        match self {
            Self::Begin => link.send(&worded(BEGIN, b""), &[]),
            Self::TakeOver(passed) => link.send(&worded(TAKE, DIALECT), &[passed.as_fd()]),
            Self::HandOver(passed) => link.send(&worded(HAND, b""), &[passed.as_fd()]),
            Self::Failed(why) => link.send(&worded(FAILED, why.as_bytes()), &[]),
            Self::Ended => link.send(&worded(ENDED, b""), &[]),
            Self::GoOn => link.send(&worded(GO_ON, b""), &[]),
        }
    }
}

/// The gateway's end.
#[derive(Debug)]
pub(crate) struct Supervisor {
    link: FdChannel,
}

impl Supervisor {
    /// The supervisor that started this process, which is at its standard input, and whom to take
    /// over from, if anybody.
    ///
    /// # Errors
    /// When no supervisor is there.
    pub(crate) fn at_standard_input() -> io::Result<(Self, Option<FdChannel>)> {
        let link = FdChannel::of(io::stdin().as_fd().try_clone_to_owned()?);
        match Order::receive(&link)? {
            Some(Order::Begin) => Ok((Self { link }, None)),
            Some(Order::TakeOver(from)) => Ok((Self { link }, Some(from))),
            Some(Order::HandOver(_) | Order::Failed(_) | Order::Ended | Order::GoOn) | None => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    /// Tells the service manager, if there is one.
    pub(crate) fn notify(&self, states: &[NotifyState<'_>]) {
        let text = joined(states);
        // A supervisor that is gone takes this process with it.
        let _gone = Report::Notify(text.into_bytes()).send(&self.link);
    }

    pub(super) fn start(&self, program: &Path) -> io::Result<()> {
        Report::Start(program.to_owned()).send(&self.link)
    }

    pub(super) fn abandon(&self) -> io::Result<()> {
        Report::Abandon.send(&self.link)
    }

    /// Says what this process may write from now on.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub(crate) fn declare_written(&self, places: &[PathBuf]) -> io::Result<()> {
        places.iter().try_for_each(|place| Report::Writes(place.clone()).send(&self.link))
    }

    /// Asks to be the gateway. When this returns there is no other process of it that could carry a
    /// packet.
    ///
    /// # Errors
    /// When the supervisor is gone: this process is to end.
    pub(crate) fn take_over(&self) -> io::Result<()> {
        Report::TookOver.send(&self.link)?;
        match self.next()? {
            Some(Order::GoOn) => Ok(()),
            Some(_) | None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until the successor has ended, which the supervisor sees to when it takes longer than
    /// this. Where the successor becomes the gateway this never returns: the supervisor ends this
    /// process.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub(super) fn await_end(&self, patience: Duration) -> io::Result<()> {
        if !self.speaks_within(patience)? {
            self.abandon()?;
        }
        loop {
            match self.next()? {
                Some(Order::Ended) => return Ok(()),
                Some(_) => {}
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }

    fn speaks_within(&self, patience: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        Ok(poll(&mut fds, patience)? > 0)
    }

    pub(super) fn next(&self) -> io::Result<Option<Order>> {
        Order::receive(&self.link)
    }
}

impl AsFd for Supervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

fn joined(states: &[impl Display]) -> String {
    states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> (Supervisor, FdChannel) {
        let (link, supervisor) = FdChannel::pair().unwrap();
        (Supervisor { link }, supervisor)
    }

    #[test]
    fn await_end_waits_until_successor_ended() {
        let (predecessor, supervisor) = connected();
        let waiting = std::thread::spawn(move || predecessor.await_end(Duration::ZERO));
        assert_eq!(Report::receive(&supervisor).unwrap(), Some(Report::Abandon));
        // Nothing else than the end of it will do.
        Order::Failed("another".into()).send(&supervisor).unwrap();
        assert!(!waiting.is_finished());
        Order::Ended.send(&supervisor).unwrap();
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn take_over_without_supervisor_fails() {
        let (predecessor, supervisor) = connected();
        drop(supervisor);
        assert!(predecessor.await_end(Duration::from_secs(60)).is_err());
        assert!(predecessor.take_over().is_err());
    }

    #[test]
    fn take_over_continues_only_on_go_on() {
        for (order, goes_on) in [(Order::GoOn, true), (Order::Ended, false), (Order::Begin, false)]
        {
            let (successor, supervisor) = connected();
            order.send(&supervisor).unwrap();
            assert_eq!(successor.take_over().is_ok(), goes_on, "{order:?}");
            assert_eq!(Report::receive(&supervisor).unwrap(), Some(Report::TookOver));
        }
    }

    #[test]
    fn order_in_unknown_format_is_an_error() {
        let (link, supervisor) = FdChannel::pair().unwrap();
        let (passed, _end) = FdChannel::pair().unwrap();
        supervisor.send(&worded(TAKE, b"another"), &[passed.as_fd()]).unwrap();
        assert_eq!(Order::receive(&link).unwrap_err().kind(), io::ErrorKind::InvalidData);
        Order::TakeOver(passed).send(&supervisor).unwrap();
        assert!(matches!(Order::receive(&link).unwrap(), Some(Order::TakeOver(_))));
    }
}
