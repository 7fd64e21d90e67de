//! XFRM attributes: their types, and the lengths and values that the kernel accepts (`lib/nlattr.c:
//! __nla_validate_parse`, `net/xfrm/xfrm_user.c: xfrma_policy`).

use uxfrm_netlink_wire::RawAttributes;
use zerocopy::{FromBytes, Immutable};

use crate::refusal::{NetlinkError, number};

macro_rules! attribute_types {
    ($($name:ident = $value:literal: $rule:expr,)*) => {
        /// `XFRMA_*`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[expect(missing_docs, reason = "the names are the kernel's; the table gives lengths")]
        pub enum AttributeType { $($name = $value,)* }

        /// What the kernel asks of each before it looks at it.
        const RULES: [Rule; HIGHEST + 1] = {
            let mut rules = [Rule::AtLeast(0); HIGHEST + 1];
            $(rules[$value] = $rule;)*
            rules
        };
    };
}

const HIGHEST: usize = 41;

impl From<AttributeType> for u16 {
    fn from(kind: AttributeType) -> Self {
        kind as Self
    }
}

attribute_types! {
    AlgAuth = 1: Rule::AtLeast(68),
    AlgCrypt = 2: Rule::AtLeast(68),
    AlgComp = 3: Rule::AtLeast(68),
    Encap = 4: Rule::AtLeast(24),
    Tmpl = 5: Rule::AtLeast(64),
    Sa = 6: Rule::AtLeast(224),
    Policy = 7: Rule::AtLeast(168),
    SecCtx = 8: Rule::AtLeast(8),
    LtimeVal = 9: Rule::AtLeast(32),
    ReplayVal = 10: Rule::AtLeast(12),
    ReplayThresh = 11: Rule::AtLeast(4),
    EtimerThresh = 12: Rule::AtLeast(4),
    SrcAddr = 13: Rule::AtLeast(16),
    CoAddr = 14: Rule::AtLeast(16),
    LastUsed = 15: Rule::AtLeast(8),
    PolicyType = 16: Rule::AtLeast(6),
    Migrate = 17: Rule::AtLeast(76),
    AlgAead = 18: Rule::AtLeast(72),
    KmAddress = 19: Rule::AtLeast(40),
    AlgAuthTrunc = 20: Rule::AtLeast(72),
    Mark = 21: Rule::AtLeast(8),
    TfcPad = 22: Rule::AtLeast(4),
    ReplayEsnVal = 23: Rule::AtLeast(24),
    SaExtraFlags = 24: Rule::AtLeast(4),
    Proto = 25: Rule::AtLeast(1),
    AddressFilter = 26: Rule::AtLeast(36),
    Pad = 27: Rule::AtLeast(0),
    OffloadDev = 28: Rule::AtLeast(8),
    SetMark = 29: Rule::AtLeast(4),
    SetMarkMask = 30: Rule::AtLeast(4),
    IfId = 31: Rule::AtLeast(4),
    MtimerThresh = 32: Rule::AtLeast(4),
    SaDir = 33: Rule::Strict { len: 1, highest: Some(2) },
    NatKeepaliveInterval = 34: Rule::Strict { len: 4, highest: None },
    SaPcpu = 35: Rule::Strict { len: 4, highest: None },
    IptfsDropTime = 36: Rule::Strict { len: 4, highest: None },
    IptfsReorderWindow = 37: Rule::Strict { len: 2, highest: None },
    IptfsDontFrag = 38: Rule::Strict { len: 0, highest: None },
    IptfsInitDelay = 39: Rule::Strict { len: 4, highest: None },
    IptfsMaxQsize = 40: Rule::Strict { len: 4, highest: None },
    IptfsPktSize = 41: Rule::Strict { len: 4, highest: None },
}

/// The kernel's policy for a value; strict from `XFRMA_SA_DIR` on (`strict_start_type`).
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// So many bytes or more.
    AtLeast(usize),
    /// So many bytes; and if there is a highest value, 1 to that.
    Strict { len: usize, highest: Option<u8> },
}

/// Validated attributes of a request by type; the last of a type counts.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    values: [Option<&'a [u8]>; HIGHEST + 1],
    has_leftover: bool,
}

impl<'a> Attributes<'a> {
    /// Parses bytes that begin `start` bytes into the request. Unknown attributes are skipped.
    ///
    /// # Errors
    /// `ERANGE` or `EINVAL` for a wrong length or value, with the kernel's text and the offset.
    pub fn parse(bytes: &'a [u8], start: usize) -> Result<Self, NetlinkError> {
        let mut found = Self { values: [None; HIGHEST + 1], has_leftover: false };
        let mut attributes = RawAttributes::of(bytes);
        for attribute in attributes.by_ref() {
            let Some(rule) = RULES.get(usize::from(attribute.kind)).filter(|_| attribute.kind != 0)
            else {
                continue;
            };
            rule.check(attribute.value, start + attribute.offset)?;
            found.values[usize::from(attribute.kind)] = Some(attribute.value);
        }
        found.has_leftover = attributes.leftover() != 0;
        Ok(found)
    }

    /// Whether bytes that are no attribute follow the last one: the kernel warns and goes on.
    #[must_use]
    pub const fn has_leftover(&self) -> bool {
        self.has_leftover
    }

    /// The value of an attribute.
    #[must_use]
    pub fn value(&self, kind: AttributeType) -> Option<&'a [u8]> {
        self.values[kind as usize]
    }

    /// Whether it is there.
    #[must_use]
    pub fn has(&self, kind: AttributeType) -> bool {
        self.value(kind).is_some()
    }

    /// The structure that a value begins with; `None` also for a shorter value, which
    /// [`Attributes::parse`] excludes up to the type's minimal length.
    #[must_use]
    pub(crate) fn read<T: FromBytes + Immutable>(&self, kind: AttributeType) -> Option<T> {
        T::read_from_prefix(self.value(kind)?).ok().map(|(value, _)| value)
    }
}

impl Rule {
    fn check(self, value: &[u8], place: usize) -> Result<(), NetlinkError> {
        match self {
            Self::AtLeast(len) if value.len() < len => Err(NetlinkError::too_short(place)),
            Self::Strict { len: 0, .. } if !value.is_empty() => Err(NetlinkError::too_short(place)),
            Self::Strict { len, .. } if value.len() != len => {
                Err(NetlinkError::at(number::EINVAL, "invalid attribute length", place))
            }
            Self::Strict { highest: Some(highest), .. }
                if !value.iter().all(|value| (1..=highest).contains(value)) =>
            {
                Err(NetlinkError::at(number::ERANGE, "integer out of range", place))
            }
            Self::AtLeast(_) | Self::Strict { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        uxfrm_netlink_wire::AttributeWriter::new(&mut bytes).bytes(kind, value);
        bytes
    }

    #[test]
    fn attribute_parse_keeps_last_and_skips_unknown() {
        let mut bytes = attribute(31, &[1, 0, 0, 0]);
        bytes.extend(attribute(31, &[2, 0, 0, 0]));
        bytes.extend(attribute(99, b"whatever"));
        let attributes = Attributes::parse(&bytes, 0).unwrap();
        assert_eq!(attributes.read::<[u8; 4]>(AttributeType::IfId), Some([2, 0, 0, 0]));
        assert!(!attributes.has_leftover());
    }

    #[test]
    fn attribute_of_wrong_length_has_the_kernels_error() {
        let mut bytes = attribute(31, &[1, 0, 0, 0]);
        bytes.extend(attribute(21, b"abc"));
        let refusal = Attributes::parse(&bytes, 184).unwrap_err();
        assert_eq!((refusal.errno, refusal.offset), (34, Some(192)));
        let says = |kind, value: &[u8]| Attributes::parse(&attribute(kind, value), 0).unwrap_err();
        assert_eq!(says(33, &[7]).text.unwrap(), "integer out of range");
        assert_eq!(says(33, &[1, 0]).text.unwrap(), "invalid attribute length");
    }

    #[test]
    fn attribute_cut_short_is_leftover() {
        let mut bytes = attribute(31, &[1, 0, 0, 0]);
        bytes.extend([8, 0, 31]);
        let attributes = Attributes::parse(&bytes, 0).unwrap();
        assert!(attributes.has_leftover() && attributes.has(AttributeType::IfId));
        assert!(Attributes::parse(&[3, 0, 31, 0], 0).unwrap().has_leftover());
    }
}
