//! Which cases there are: a scene has what two gateways must be set up for, a case what can be varied between them.

use uxfrm_crypto::{Backend, KeyMaterial, SaKey, Transform};

use crate::Options;
use crate::cases::crypto::transforms;
use crate::report::Case;

const SIZES: [u32; 5] = [64, 256, 512, 1024, 1400];
/// With 256 each packet of a batch is another's, and the second-level cache has room for all that they need; it has none for 4096.
const SAS: [usize; 4] = [1, 64, 256, 4096];
/// Enough for all packets of a [`Ring`](crate::ring::Ring), in any order.
pub(super) const WINDOW: u32 = 1024;
const BATCHES: [usize; 4] = [1, 32, 64, 256];

/// Mode and families of a tunnel; the families of inner and outer packets are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Shape {
    Transport4,
    Transport6,
    Tunnel4,
    Tunnel6,
    Transport4Udp,
    Tunnel4Udp,
    Tunnel6Udp,
}

impl Shape {
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

    /// As `mode` has it.
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

/// From the host to the wire, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Out,
    In,
}

/// What two gateways are set up for.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) transform: Transform,
    pub(super) shape: Shape,
    pub(super) sas: usize,
    /// Of the receiver, in packets.
    pub(super) window: u32,
}

/// One row to be.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) case: Case,
    pub(super) way: Way,
    pub(super) bytes: u32,
    pub(super) batch: usize,
    pub(super) shape: Shape,
    pub(super) transform: Transform,
}

/// The scenes that the options leave.
pub(super) fn scenes(options: &Options) -> anyhow::Result<Vec<Scene>> {
    let mut scenes = Vec::new();
    for (name, transform) in transforms()? {
        for shape in Shape::ALL {
            for sas in SAS {
                let scene = Scene { name, transform, shape, sas, window: WINDOW };
                if !scene.cases(options).is_empty() {
                    scenes.push(scene);
                }
            }
        }
    }
    Ok(scenes)
}

impl Scene {
    /// The rows of this scene that the options leave.
    pub(super) fn cases(&self, options: &Options) -> Vec<Variant> {
        let mut variants = Vec::new();
        for (way, direction) in [(Way::Out, "out"), (Way::In, "in")] {
            for bytes in SIZES {
                for batch in BATCHES {
                    let case = Case::new().with("direction", direction);
                    let case = case.with("transform", self.name).with("bytes", bytes);
                    let case = case.with("sas", self.sas).with("mode", self.shape.name());
                    let case = case.with("batch", batch);
                    if self.is_usual(bytes, batch, options) && options.only.admits(&case) {
                        let (shape, transform) = (self.shape, self.transform);
                        variants.push(Variant { case, way, bytes, batch, shape, transform });
                    }
                }
            }
        }
        variants
    }

    /// Whether nobody has to ask for it.
    fn is_usual(&self, bytes: u32, batch: usize, options: &Options) -> bool {
        let named = |key: &str| options.only.names(key);
        let shown = self.name == "gcm128" && (bytes == 64 || bytes == 1400);
        let others = [
            self.shape != Shape::Tunnel4 && !named("mode"),
            self.sas != 1 && !named("sas"),
            batch != 256 && !named("batch"),
        ];
        match others.iter().filter(|other| **other).count() {
            0 => true,
            1 => shown,
            _ => false,
        }
    }

    /// Each SA's key, for the crypto library alone.
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
