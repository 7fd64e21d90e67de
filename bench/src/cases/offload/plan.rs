//! Which cases there are.

use uxfrm_engine::OffloadKind;

use crate::Options;
use crate::report::Case;

/// How packets are protected between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Not at all.
    Clear,
    /// The host does all.
    Software,
    /// The device encrypts.
    Crypto,
    /// The device does all.
    Packet,
}

/// What leaves the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// UDP packets of so many bytes.
    Bytes(u32),
    /// TCP super-packets of [`SEGMENTS`] segments, each a packet of [`SEGMENT`] bytes.
    Super,
}

/// One row to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) path: Path,
    pub(super) size: Size,
    pub(super) workers: usize,
}

/// Bytes of a super-packet's segments once they are cut.
pub(super) const SEGMENT: u32 = 1400;
/// As many as 64 KiB hold.
pub(super) const SEGMENTS: usize = 48;

const SIZES: [Size; 4] = [Size::Bytes(64), Size::Bytes(512), Size::Bytes(1400), Size::Super];
const WORKERS: [usize; 2] = [1, 2];

impl Path {
    pub(super) const ALL: [Self; 4] = [Self::Clear, Self::Software, Self::Crypto, Self::Packet];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Software => "software",
            Self::Crypto => "crypto",
            Self::Packet => "packet",
        }
    }

    /// What a device does in it.
    pub(super) const fn kind(self) -> Option<OffloadKind> {
        match self {
            Self::Clear | Self::Software => None,
            Self::Crypto => Some(OffloadKind::Crypto),
            Self::Packet => Some(OffloadKind::Packet),
        }
    }
}

impl Size {
    /// Bytes of the packets on the wire, but for what protects them.
    pub(super) const fn bytes(self) -> u32 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Super => SEGMENT,
        }
    }

    fn put(self, case: Case) -> Case {
        match self {
            Self::Bytes(bytes) => case.with("bytes", bytes),
            Self::Super => case.with("bytes", "tso"),
        }
    }
}

impl Variant {
    pub(super) fn case(self) -> Case {
        let case = Case::new().with("test", "forward").with("path", self.path.name());
        self.size.put(case).with("workers", self.workers)
    }
}

/// Of one host.
pub(super) fn most_workers() -> usize {
    WORKERS.into_iter().max().unwrap_or(1)
}

/// The rows of forwarding that the options leave.
pub(super) fn variants(options: &Options) -> Vec<Variant> {
    let all = WORKERS.into_iter().flat_map(|workers| {
        SIZES.into_iter().flat_map(move |size| {
            Path::ALL.into_iter().map(move |path| Variant { path, size, workers })
        })
    });
    all.filter(|variant| options.only.admits(&variant.case())).collect()
}

/// The case of the lock manager's messages.
pub(super) fn messages(path: Path) -> Case {
    Case::new().with("test", "lock-manager").with("path", path.name()).with("workers", 1)
}
