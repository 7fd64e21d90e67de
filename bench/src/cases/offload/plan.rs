//! The cases.

use uxfrm_engine::OffloadKind;

use crate::BenchOptions;
use crate::report::Case;

/// Who protects packets between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtectionPath {
    /// Nobody.
    Clear,
    /// The host.
    Software,
    /// The device encrypts.
    Crypto,
    /// The device does all of ESP.
    Packet,
}

/// The packets that leave the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketSize {
    /// UDP packets of this size in bytes.
    Bytes(u32),
    /// TCP super-packets of [`SEGMENTS`] segments, each a packet of [`SEGMENT`] bytes.
    Super,
}

/// The case of a forwarding row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForwardCase {
    pub(super) path: ProtectionPath,
    pub(super) size: PacketSize,
    pub(super) workers: usize,
}

/// Bytes of a packet that a super-packet is segmented into.
pub(super) const SEGMENT: u32 = 1400;
/// As many segments as fit 64 KiB.
pub(super) const SEGMENTS: usize = 48;

const SIZES: [PacketSize; 4] =
    [PacketSize::Bytes(64), PacketSize::Bytes(512), PacketSize::Bytes(1400), PacketSize::Super];
const WORKERS: [usize; 2] = [1, 2];

impl ProtectionPath {
    pub(super) const ALL: [Self; 4] = [Self::Clear, Self::Software, Self::Crypto, Self::Packet];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Software => "software",
            Self::Crypto => "crypto",
            Self::Packet => "packet",
        }
    }

    /// The offload kind of the device, if any.
    pub(super) const fn kind(self) -> Option<OffloadKind> {
        match self {
            Self::Clear | Self::Software => None,
            Self::Crypto => Some(OffloadKind::Crypto),
            Self::Packet => Some(OffloadKind::Packet),
        }
    }
}

impl PacketSize {
    /// Bytes of the packets on the wire, without ESP.
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

impl ForwardCase {
    pub(super) fn case(self) -> Case {
        let case = Case::new().with("test", "forward").with("path", self.path.name());
        self.size.put(case).with("workers", self.workers)
    }
}

/// The most workers of one host.
pub(super) fn most_workers() -> usize {
    WORKERS.into_iter().max().unwrap_or(1)
}

/// The forwarding cases that the options leave.
pub(super) fn forward_cases(options: &BenchOptions) -> Vec<ForwardCase> {
    let all = WORKERS.into_iter().flat_map(|workers| {
        SIZES.into_iter().flat_map(move |size| {
            ProtectionPath::ALL.into_iter().map(move |path| ForwardCase { path, size, workers })
        })
    });
    all.filter(|case| options.only.admits(&case.case())).collect()
}

/// The case of the lock manager's messages.
pub(super) fn messages(path: ProtectionPath) -> Case {
    Case::new().with("test", "lock-manager").with("path", path.name()).with("workers", 1)
}
