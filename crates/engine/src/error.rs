//! Errors of database changes, with the kernel's errno and texts.

use std::fmt::Debug;

/// Why a change to the databases was refused. `Display` is the kernel's extended-ACK text, or
/// `strerror`'s where it sends none
/// (`net/xfrm/xfrm_user.c: verify_newsa_info, verify_newpolicy_info, validate_tmpl`,
/// `xfrm_state.c: __xfrm_init_state`, `xfrm_device.c`). Variants that the kernel does not have say
/// so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's text says what is wrong")]
pub enum Error {
    #[error("File exists")]
    Exists,
    #[error("No such process")]
    NoSuchState,
    #[error("No such file or directory")]
    NoSuchPolicy,

    #[error("Invalid address family")]
    Family,
    #[error("Invalid address family in selector")]
    StateSelectorFamily,
    #[error("Unsupported protocol")]
    Protocol,
    #[error("Unsupported mode")]
    Mode,
    /// Not in the kernel, which accepts SPI 0 and then never finds it (RFC 4303 §2.1 forbids it on
    /// the wire).
    #[error("SPI 0 is reserved: ESP states need 1 or more")]
    SpiZero,
    #[error("TFC padding can only be used in tunnel mode")]
    TfcPaddingMode,
    #[error("ESN bitmap length must be <= 128")]
    WindowTooLarge,
    #[error("ESN replay window must be > 0")]
    EsnWithoutWindow,
    /// Not in the kernel, whose fields have 32 bits without ESN.
    #[error("Sequence numbers above 0xffffffff need flag esn")]
    SequenceWithoutEsn,
    /// Not in the kernel, which sets numbers back, sends them again, and accepts replayed packets.
    #[error("Sequence numbers can't go back: they would be used twice")]
    NumbersBack,
    #[error("SA_PCPU only supported with SA_DIR")]
    PcpuWithoutDirection,
    #[error("Invalid SA direction")]
    StateDirection,
    #[error("Flag {0} should not be set for output SA")]
    OutputFlag(&'static str),
    #[error("Flag {0} should not be set for input SA")]
    InputFlag(&'static str),
    #[error("Replay window should be 0 for output SA")]
    OutputWindow,
    #[error("Replay seq and bitmap should be 0 for output SA")]
    OutputReceived,
    #[error("Replay oseq should be 0 for input SA")]
    InputSent,
    #[error("Only tunnel modes can accommodate a change of family")]
    FamilyChange,
    #[error("Only tunnel modes can accommodate an AF_UNSPEC selector")]
    UnspecifiedSelector,
    #[error("Requested mode not found")]
    ModeNotFound,
    #[error("Requested type not found")]
    TypeNotFound,
    #[error("Unsupported encapsulation type for ESP")]
    Encapsulation,
    #[error("NAT keepalive is only supported for outbound SAs")]
    KeepaliveDirection,
    #[error("NAT keepalive is only supported for UDP encapsulation")]
    KeepaliveEncapsulation,
    #[error("Mismatched SA and offload direction")]
    OffloadDirection,
    #[error("XFRM if_id is not supported in RX path")]
    OffloadIfId,
    #[error("TFC padding can't be offloaded")]
    OffloadTfcPadding,
    /// The kernel says only "Invalid argument".
    #[error("Device {0} doesn't support packet offload")]
    PacketOffload(String),
    /// An update may not change the encapsulation type, or revive a state that is no longer valid.
    #[error("Invalid argument")]
    Update,
    /// Not in the kernel, nor are the next ones: it knows the metadata of each packet, which our
    /// ports do not.
    #[error("Marks of states are not supported: packets come to uxfrm without theirs")]
    StateMark,
    #[error("Output marks are not supported: uxfrm's packets leave without them")]
    OutputMark,
    #[error(
        "Interfaces in selectors of states are not supported: packets come to uxfrm without theirs"
    )]
    StateInterface,
    /// Refused by a device.
    #[error(transparent)]
    Device(#[from] DeviceRefusal),
    #[error(transparent)]
    Crypto(#[from] uxfrm_crypto::Error),

    #[error("Invalid selector family")]
    PolicySelectorFamily,
    #[error("Policy index doesn't match direction")]
    IndexDirection,
    #[error("Template count must be <= XFRM_MAX_DEPTH (6)")]
    TooManyTemplates,
    #[error("Mode in optional template not allowed in outbound policy")]
    OptionalTunnel,
    #[error("Mode in template doesn't support a family change")]
    TemplateFamilyChange,
    #[error("Invalid family in template")]
    TemplateFamily,
    #[error("Unrecognized flags in offload request")]
    PolicyOffloadFlags,
    /// Not in the kernel, nor is the next one: it knows the metadata of each packet, which our
    /// ports do not.
    #[error("Marks in {0} are not supported: packets come to uxfrm without theirs")]
    PolicyMark(&'static str),
    #[error("Interfaces in {0} are not supported: packets come to uxfrm without theirs")]
    PolicyInterface(&'static str),
    /// Not in the kernel, for states as well: it has XFRM interfaces, which deliver packets to such
    /// policies.
    #[error(
        "XFRM interface ids are not supported: packets come to uxfrm through no XFRM interface"
    )]
    InterfaceId,
}

/// Linux's numbers, the same on every architecture that uxfrm runs on.
mod number {
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const ESRCH: i32 = 3;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOSYS: i32 = 38;
    pub(crate) const EPROTONOSUPPORT: i32 = 93;
    pub(crate) const EOPNOTSUPP: i32 = 95;
}

impl Error {
    /// The errno of the kernel's answer, positive.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "EINVAL is the kernel's answer to all else")]
    pub fn errno(&self) -> i32 {
        use uxfrm_crypto::Error as Crypto;
        match self {
            Self::Device(refusal) => refusal.errno,
            Self::Exists => number::EEXIST,
            Self::NoSuchState => number::ESRCH,
            Self::NoSuchPolicy => number::ENOENT,
            Self::StateMark
            | Self::OutputMark
            | Self::StateInterface
            | Self::PolicyMark(_)
            | Self::PolicyInterface(_)
            | Self::InterfaceId => number::EOPNOTSUPP,
            Self::ModeNotFound
            | Self::TypeNotFound
            | Self::FamilyChange
            | Self::UnspecifiedSelector => number::EPROTONOSUPPORT,
            Self::Crypto(
                Crypto::AeadNotFound { .. }
                | Crypto::CipherNotFound { .. }
                | Crypto::AuthNotFound { .. }
                | Crypto::AuthTruncNotFound { .. },
            ) => number::ENOSYS,
            _ => number::EINVAL,
        }
    }
}

/// A device's refusal: an errno, and the driver's text or the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DeviceRefusal {
    /// Linux's number, positive.
    pub errno: i32,
    /// For the extended ACK; empty where the kernel sends no text.
    pub text: String,
}

impl DeviceRefusal {
    /// `EINVAL` with a text.
    #[must_use]
    pub fn invalid(text: &str) -> Self {
        const EINVAL: i32 = 22;
        Self { errno: EINVAL, text: text.to_owned() }
    }
}
