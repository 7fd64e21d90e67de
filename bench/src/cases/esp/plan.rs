//! The cases: an [`EspSetup`] is what two gateways are built for, an [`EspCase`] varies on it.

use uxfrm_crypto::{Backend, KeyMaterial, SaKey, Transform};

use crate::BenchOptions;
use crate::direction::TestDirection;
use crate::report::Case;

const SIZES: [u32; 5] = [64, 256, 512, 1024, 1400];
/// With 256 SAs each packet of a batch has its own, and their data fit the second-level cache;
/// those of 4096 do not.
const SAS: [usize; 4] = [1, 64, 256, 4096];
/// Replay window: enough for all packets of a [`Ring`](crate::ring::Ring), in any order.
pub(super) const WINDOW: u32 = 1024;
const BATCHES: [usize; 4] = [1, 32, 64, 256];

/// Mode, address family and encapsulation; inner and outer packets have the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum EspMode {
    Transport4,
    Transport6,
    Tunnel4,
    Tunnel6,
    Transport4Udp,
    Tunnel4Udp,
    Tunnel6Udp,
}

impl EspMode {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Tunnel4,
        Self::Tunnel6,
        Self::Transport4,
        Self::Transport6,
        Self::Tunnel4Udp,
        Self::Tunnel6Udp,
        Self::Transport4Udp,
    ];

    /// The value of the `mode` key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transport4 => "transport4",
            Self::Transport6 => "transport6",
            Self::Tunnel4 => "tunnel4",
            Self::Tunnel6 => "tunnel6",
            Self::Transport4Udp => "transport4-udp",
            Self::Tunnel4Udp => "tunnel4-udp",
            Self::Tunnel6Udp => "tunnel6-udp",
        }
    }

    pub(super) const fn is_ipv6(self) -> bool {
        matches!(self, Self::Transport6 | Self::Tunnel6 | Self::Tunnel6Udp)
    }

    pub(super) const fn is_tunnel(self) -> bool {
        matches!(self, Self::Tunnel4 | Self::Tunnel6 | Self::Tunnel4Udp | Self::Tunnel6Udp)
    }

    pub(super) const fn is_in_udp(self) -> bool {
        matches!(self, Self::Transport4Udp | Self::Tunnel4Udp | Self::Tunnel6Udp)
    }
}

/// What two gateways are set up for.
#[derive(Debug)]
pub(super) struct EspSetup {
    pub(super) name: &'static str,
    pub(super) transform: Transform,
    pub(super) mode: EspMode,
    pub(super) sas: usize,
    /// The receiver's replay window in packets.
    pub(super) window: u32,
}

/// The parameters of one row.
#[derive(Debug)]
pub(super) struct EspCase {
    pub(super) case: Case,
    pub(super) direction: TestDirection,
    pub(super) bytes: u32,
    pub(super) batch: usize,
    pub(super) mode: EspMode,
    pub(super) transform: Transform,
}

/// The setups that the options leave.
pub(super) fn setups(options: &BenchOptions) -> anyhow::Result<Vec<EspSetup>> {
    let mut setups = Vec::new();
    for &(name, transform) in Transform::COMMON {
        for mode in EspMode::ALL {
            for sas in SAS {
                let setup = EspSetup { name, transform, mode, sas, window: WINDOW };
                if !setup.cases(options).is_empty() {
                    setups.push(setup);
                }
            }
        }
    }
    Ok(setups)
}

impl EspSetup {
    /// The rows of this setup that the options leave.
    pub(super) fn cases(&self, options: &BenchOptions) -> Vec<EspCase> {
        let mut cases = Vec::new();
        for direction in TestDirection::BOTH {
            for bytes in SIZES {
                for batch in BATCHES {
                    let case = Case::new().with("direction", direction.name());
                    let case = case.with("transform", self.name).with("bytes", bytes);
                    let case = case.with("sas", self.sas).with("mode", self.mode.name());
                    let case = case.with("batch", batch);
                    if self.is_usual(bytes, batch, options) && options.only.admits(&case) {
                        let (mode, transform) = (self.mode, self.transform);
                        cases.push(EspCase { case, direction, bytes, batch, mode, transform });
                    }
                }
            }
        }
        cases
    }

    /// Whether the case is offered: without its keys in the filter, only near the usual one.
    fn is_usual(&self, bytes: u32, batch: usize, options: &BenchOptions) -> bool {
        let named = |key: &str| options.only.names(key);
        let shown = self.name == "gcm128" && (bytes == 64 || bytes == 1400);
        let others = [
            self.mode != EspMode::Tunnel4 && !named("mode"),
            self.sas != 1 && !named("sas"),
            batch != 256 && !named("batch"),
        ];
        match others.iter().filter(|other| **other).count() {
            0 => true,
            1 => shown,
            _ => false,
        }
    }

    /// Each SA's key, for the baseline.
    pub(super) fn keys(&self) -> anyhow::Result<Vec<SaKey>> {
        (0..self.sas)
            .map(|number| {
                let [cipher, auth] = self.material(number);
                Ok(SaKey::new(&self.transform, &cipher, &auth, Backend::Auto)?)
            })
            .collect()
    }

    /// Encryption and authentication key of an SA.
    pub(super) fn material(&self, number: usize) -> [KeyMaterial; 2] {
        let lengths = [self.transform.key_len(), self.transform.auth_key_len()];
        lengths.map(|len| {
            let bytes = (0..len).map(|at| (number.wrapping_mul(31) ^ at).to_le_bytes()[at % 2]);
            KeyMaterial::from(bytes.collect::<Vec<u8>>())
        })
    }
}
