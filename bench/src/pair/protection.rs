//! What protects packets between the sites.

/// What packets are protected with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The ESP transform.
    pub transform: EspTransform,
    /// What ESP travels in.
    pub encapsulation: EspEncapsulation,
}

/// An ESP transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspTransform {
    /// `rfc4106(gcm(aes))` with a 128-bit key and a 128-bit ICV.
    Gcm128,
    /// `cbc(aes)` with a 128-bit key and `hmac(sha1)` cut to 96 bits.
    Cbc128Sha1,
}

/// What ESP travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspEncapsulation {
    /// IP protocol 50.
    Ip,
    /// UDP port 4500 (RFC 3948).
    Udp,
}

impl Protection {
    /// `path` of a row's case object, as the bench `tunnel` names it.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self.encapsulation {
            EspEncapsulation::Udp => "uxfrm-udp",
            EspEncapsulation::Ip => "uxfrm-esp",
        }
    }
}

impl EspTransform {
    /// `transform` of a row's case object, as the benches name it.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Gcm128 => "gcm128",
            Self::Cbc128Sha1 => "cbc128-sha1",
        }
    }
}
