//! The protection of packets between the sites.

/// An ESP transform and its encapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The ESP transform.
    pub transform: EspTransform,
    /// The encapsulation of ESP.
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

/// The encapsulation of ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspEncapsulation {
    /// IP protocol 50.
    Ip,
    /// UDP port 4500 (RFC 3948).
    Udp,
}

impl Protection {
    /// The value of the key `path` in rows of `bench tunnel`.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self.encapsulation {
            EspEncapsulation::Udp => "uxfrm-udp",
            EspEncapsulation::Ip => "uxfrm-esp",
        }
    }
}

impl EspTransform {
    /// The value of the key `transform` in rows of all benches.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Gcm128 => "gcm128",
            Self::Cbc128Sha1 => "cbc128-sha1",
        }
    }
}
