//! The SAs and policies of the two hosts.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::{
    Action, Direction, Family, IfId, LifetimeLimits, Mark, Mode, Offload, Policy, PolicyFlags,
    PolicyIndex, PolicyKind, Prefix, Priority, ReplayConfig, Reqid, SaConfig, SaId, SaProtocol,
    SaTransform, Selector, Spi, Template, TemplateLevel,
};

use super::plan::ProtectionPath;

/// The device of each host.
pub(super) const DEVICE: &str = "nic0";
const REQID: Reqid = Reqid(7);
/// Replay window: the rings of several workers arrive one after the other.
const WINDOW: u32 = 4096;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostSide {
    Left,
    Right,
}

impl HostSide {
    pub(super) const BOTH: [Self; 2] = [Self::Left, Self::Right];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    pub(super) const fn address(self) -> Ipv4Addr {
        match self {
            Self::Left => Ipv4Addr::new(192, 0, 2, 1),
            Self::Right => Ipv4Addr::new(192, 0, 2, 2),
        }
    }

    /// The SPI of packets to this host.
    const fn spi(self) -> Spi {
        match self {
            Self::Left => Spi(0x100),
            Self::Right => Spi(0x200),
        }
    }

    /// The SA of packets from `self`, as installed at `holder`.
    pub(super) fn state(self, holder: Self, path: ProtectionPath) -> anyhow::Result<SaConfig> {
        let direction = if self == holder { Direction::Out } else { Direction::In };
        let to = self.other();
        let key: Vec<u8> = (0..20).map(|at| at ^ self.address().octets()[3]).collect();
        let id =
            SaId { destination: to.address().into(), spi: to.spi(), protocol: SaProtocol::Esp };
        let transform = SaTransform {
            transform: Transform::aead("rfc4106(gcm(aes))", 160, 128)?,
            encryption_key: KeyMaterial::from(key),
            authentication_key: KeyMaterial::from(Vec::new()),
        };
        Ok(SaConfig {
            reqid: REQID,
            replay: ReplayConfig { window: WINDOW, sent: 0, received: 0 },
            offload: path.kind().map(|kind| Offload { kind, device: DEVICE.into(), direction }),
            ..SaConfig::new(id, self.address().into(), transform)
        })
    }

    /// The policy for packets from `self`, as installed at `holder`.
    pub(super) fn policy(self, holder: Self, path: ProtectionPath) -> Policy {
        let direction = if self == holder { Direction::Out } else { Direction::In };
        let [source, destination] = [self, self.other()].map(|end| IpAddr::V4(end.address()));
        let kind = path.kind().filter(|kind| *kind == uxfrm_engine::OffloadKind::Packet);
        Policy {
            direction,
            kind: PolicyKind::Main,
            index: PolicyIndex(0),
            selector: Selector {
                source: Prefix::host(source),
                destination: Prefix::host(destination),
                ..Selector::any(Family::V4)
            },
            priority: Priority(100),
            action: Action::Allow,
            templates: vec![Template {
                source,
                destination,
                protocol: SaProtocol::Esp,
                spi: Spi(0),
                mode: Mode::Transport,
                reqid: REQID,
                level: TemplateLevel::Required,
            }],
            mark: Mark::default(),
            if_id: IfId(0),
            flags: PolicyFlags::empty(),
            limits: LifetimeLimits::default(),
            offload: kind.map(|kind| Offload { kind, device: DEVICE.into(), direction }),
        }
    }
}
