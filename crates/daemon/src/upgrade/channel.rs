//! What a gateway and its supervisor say to each other: a byte, and a text that the supervisor does not
//! read but passes on.

use std::{
    ffi::OsStr,
    fmt::Display,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use sd_notify::NotifyState;
use uxfrm_io::link::{Link, Parcel};

/// What a gateway tells its supervisor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// For the service manager.
    Notify(Vec<u8>),
    /// Start this program as the successor.
    Start(PathBuf),
    /// End the successor: it takes too long.
    Abandon,
    /// The successor is the gateway from now on.
    TookOver,
}

/// What a supervisor tells a gateway.
#[derive(Debug)]
pub(super) enum Order {
    /// Begin, alone.
    Begin,
    /// Begin by taking over from whom this leads to.
    TakeOver(Link),
    /// Hand over to whom this leads to.
    HandOver(Link),
    /// No successor could be started.
    Failed(String),
}

const NOTIFY: u8 = b'N';
const START: u8 = b'S';
const ABANDON: u8 = b'A';
const TOOK_OVER: u8 = b'T';
const BEGIN: u8 = b'B';
const TAKE: u8 = b'L';
const HAND: u8 = b'H';
const FAILED: u8 = b'F';

fn worded(tag: u8, text: &[u8]) -> Vec<u8> {
    [&[tag], text].concat()
}

impl Report {
    /// The next one; `None` when the gateway is gone.
    pub(super) fn receive(link: &Link) -> io::Result<Option<Self>> {
        let Some(Parcel { bytes, .. }) = link.receive()? else { return Ok(None) };
        let (tag, text) = bytes.split_first().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(match *tag {
            NOTIFY => Self::Notify(text.to_vec()),
            START => Self::Start(PathBuf::from(OsStr::from_bytes(text))),
            ABANDON => Self::Abandon,
            TOOK_OVER => Self::TookOver,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }))
    }

    fn send(&self, link: &Link) -> io::Result<()> {
        let bytes = match self {
            Self::Notify(text) => worded(NOTIFY, text),
            Self::Start(path) => worded(START, path.as_os_str().as_bytes()),
            Self::Abandon => worded(ABANDON, b""),
            Self::TookOver => worded(TOOK_OVER, b""),
        };
        link.send(&bytes, &[])
    }
}

impl Order {
    /// The next one; `None` when the supervisor is gone.
    fn receive(link: &Link) -> io::Result<Option<Self>> {
        let Some(Parcel { bytes, descriptors }) = link.receive()? else { return Ok(None) };
        let (tag, text) = bytes.split_first().ok_or(io::ErrorKind::InvalidData)?;
        let passed = descriptors.into_iter().next().map(Link::of);
        Ok(Some(match (*tag, passed) {
            (BEGIN, None) => Self::Begin,
            (TAKE, Some(link)) => Self::TakeOver(link),
            (HAND, Some(link)) => Self::HandOver(link),
            (FAILED, None) => Self::Failed(String::from_utf8_lossy(text).into_owned()),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }))
    }

    pub(super) fn send(&self, link: &Link) -> io::Result<()> {
        match self {
            Self::Begin => link.send(&worded(BEGIN, b""), &[]),
            Self::TakeOver(passed) => link.send(&worded(TAKE, b""), &[passed.as_fd()]),
            Self::HandOver(passed) => link.send(&worded(HAND, b""), &[passed.as_fd()]),
            Self::Failed(why) => link.send(&worded(FAILED, why.as_bytes()), &[]),
        }
    }
}

/// The gateway's end.
#[derive(Debug)]
pub(crate) struct Supervisor {
    link: Link,
}

impl Supervisor {
    /// The supervisor that started this process, which is at its standard input, and whom to take over from, if anybody.
    ///
    /// # Errors
    /// When no supervisor is there.
    pub(crate) fn at_standard_input() -> io::Result<(Self, Option<Link>)> {
        let link = Link::of(io::stdin().as_fd().try_clone_to_owned()?);
        match Order::receive(&link)? {
            Some(Order::Begin) => Ok((Self { link }, None)),
            Some(Order::TakeOver(from)) => Ok((Self { link }, Some(from))),
            Some(Order::HandOver(_) | Order::Failed(_)) | None => {
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

    /// This process is the gateway from now on.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub(crate) fn took_over(&self) -> io::Result<()> {
        Report::TookOver.send(&self.link)
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
