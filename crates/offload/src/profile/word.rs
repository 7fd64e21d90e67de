//! Words of profiles for types of the engine.

use std::sync::LazyLock;

use serde::de::{Deserialize, Deserializer, Error};
use uxfrm_engine::{Direction, Mode, OffloadKind, SaProtocol, UdpEncapKind};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident of $of:ident { $($word:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub(super) enum $name { $($word),* }

        impl $name {
            pub(super) fn means(self, value: $of) -> bool {
                match self { $(Self::$word => value == $of::$word),* }
            }
        }
    };
}

words!(
    /// `esp`, `ah`
    ProtocolWord of SaProtocol { Esp, Ah }
);
words!(
    /// `transport`, `tunnel`, `beet`
    ModeWord of Mode { Transport, Tunnel, Beet }
);
words!(
    /// `crypto`, `packet`
    KindWord of OffloadKind { Crypto, Packet }
);
words!(
    /// `in`, `out`, `forward`
    DirectionWord of Direction { In, Out, Forward }
);

/// `encap` words of the kinds that are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncapsulationWord(pub(super) UdpEncapKind);

static ENCAPSULATIONS: LazyLock<Vec<&str>> =
    LazyLock::new(|| UdpEncapKind::processed().map(|kind| kind.properties().word).collect());

impl<'de> Deserialize<'de> for EncapsulationWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let kind = UdpEncapKind::processed().find(|kind| kind.properties().word == word);
        kind.map(Self).ok_or_else(|| Error::unknown_variant(&word, &ENCAPSULATIONS))
    }
}
