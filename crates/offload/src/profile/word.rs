//! Words of profiles for types of the engine.

use serde::Deserialize;
use uxfrm_engine::{Direction, Mode, OffloadKind, SaProtocol, UdpEncapKind};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident of $of:ident { $($word:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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

/// `espinudp`, `espinudp-nonike`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum EncapsulationWord {
    #[serde(rename = "espinudp")]
    Esp,
    #[serde(rename = "espinudp-nonike")]
    NonIke,
}

impl EncapsulationWord {
    pub(super) fn means(self, kind: UdpEncapKind) -> bool {
        match self {
            Self::Esp => kind == UdpEncapKind::Esp,
            Self::NonIke => kind == UdpEncapKind::NonIke,
        }
    }
}
