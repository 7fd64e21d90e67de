//! Why a request was refused: an errno, perhaps a text and a place for the extended ACK.

use std::borrow::Cow;

/// A refusal, as `NLMSG_ERROR` and its extended ACK carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkError {
    /// The errno, positive.
    pub errno: i32,
    /// `NLMSGERR_ATTR_MSG`; the kernel has none for some errors.
    pub text: Option<Cow<'static, str>>,
    /// `NLMSGERR_ATTR_OFFS`: where in the request the wrong attribute begins.
    pub offset: Option<u32>,
}

/// Linux's numbers, the same on every architecture that uxfrm runs on.
pub(crate) mod number {
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const ESRCH: i32 = 3;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ERANGE: i32 = 34;
    pub(crate) const ENOSYS: i32 = 38;
    pub(crate) const ENODATA: i32 = 61;
    pub(crate) const EPROTONOSUPPORT: i32 = 93;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const EAFNOSUPPORT: i32 = 97;
    pub(crate) const ECANCELED: i32 = 125;
}

impl NetlinkError {
    /// Of a request that is [chained](crate::NetlinkFlags::CHAINED) to one that was refused.
    pub const CHAIN_BROKEN: Self = Self::bare(number::ECANCELED);

    /// An errno without text.
    #[must_use]
    pub const fn bare(errno: i32) -> Self {
        Self { errno, text: None, offset: None }
    }

    /// `EINVAL` and the kernel's text.
    #[must_use]
    pub const fn invalid(text: &'static str) -> Self {
        Self::new(number::EINVAL, text)
    }

    /// `EOPNOTSUPP` and our own text, for features that only the kernel has.
    #[must_use]
    pub const fn not_yet(text: &'static str) -> Self {
        Self::new(number::EOPNOTSUPP, text)
    }

    /// An errno and its text.
    #[must_use]
    pub const fn new(errno: i32, text: &'static str) -> Self {
        Self { errno, text: Some(Cow::Borrowed(text)), offset: None }
    }

    /// An errno and its text, for the attribute at `offset` of the request.
    #[must_use]
    pub(crate) fn at(errno: i32, text: &'static str, offset: usize) -> Self {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        Self { offset: Some(offset), ..Self::new(errno, text) }
    }

    /// `ERANGE`: the attribute at `offset` of the request is too short.
    #[must_use]
    pub(crate) fn too_short(offset: usize) -> Self {
        Self::at(number::ERANGE, "Attribute failed policy validation", offset)
    }
}

/// The databases' refusals: where the kernel sends no text, neither do we.
impl From<uxfrm_engine::Error> for NetlinkError {
    fn from(error: uxfrm_engine::Error) -> Self {
        use uxfrm_engine::Error;
        let wordless = matches!(
            error,
            Error::Exists | Error::NoSuchState | Error::NoSuchPolicy | Error::Update
        ) || matches!(&error, Error::Device(refusal) if refusal.text.is_empty());
        let text = (!wordless).then(|| Cow::Owned(error.to_string()));
        Self { errno: error.errno(), text, offset: None }
    }
}
