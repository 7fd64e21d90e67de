//! One state as it is told.

use uxfrm_engine::{
    Direction, Lifecycle, LifetimeLimits, Mode, Moment, OffloadDevices as _, Sa, SaFailures,
    SaProtocol, SoftHardLimit, UdpEncap,
};
use uxfrm_status::{
    limit::{LimitKind, LimitStatus, LimitUse},
    tunnel::{FailureStatus, StateStatus, TrafficStatus, UdpStatus},
};

use super::survey::ReadAt;

/// What a state has carried so far, by whoever counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) first_used: Option<Moment>,
    pub(super) last_used: Option<Moment>,
    failures: SaFailures,
    /// The last sequence number sent.
    pub(super) sent: u64,
    received: u64,
}

/// Which of a state's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitSide {
    /// At which it is to be replaced.
    Soft,
    /// At which it ends.
    Hard,
}

impl StateCounts {
    /// What `sa` has carried: a device that carries its packets counts them.
    pub(super) fn of(sa: &Sa, read: &ReadAt<'_>) -> Self {
        let place = sa.attachment().filter(|_| sa.device_counts());
        let counts = place.and_then(|place| {
            let mut nics = read.posted.post.nics.clone();
            nics.counts(place.device, place.handle)
        });
        if let Some(counts) = counts {
            return Self {
                packets: counts.packets,
                bytes: counts.bytes,
                first_used: counts.first_used,
                last_used: counts.last_used,
                failures: counts.failures,
                sent: counts.sent,
                received: counts.received,
            };
        }
        let usage = sa.usage();
        Self {
            packets: usage.packets(),
            bytes: usage.bytes(),
            first_used: usage.first_used(),
            last_used: usage.last_used(),
            failures: usage.failures(),
            sent: sa.sequence().last(),
            received: sa.highest_received(),
        }
    }

    pub(super) fn traffic(&self, now: Moment) -> TrafficStatus {
        TrafficStatus {
            packets: self.packets,
            bytes: self.bytes,
            last_seconds_ago: self.last_used.map(|last| now.since(last).as_secs()),
        }
    }

    pub(super) fn failures(&self) -> FailureStatus {
        let SaFailures { replay_window, replay, integrity_failed } = self.failures;
        FailureStatus {
            replay_window: replay_window.into(),
            replay: replay.into(),
            integrity_failed: integrity_failed.into(),
        }
    }

    /// The limit of `sa` of which most is used.
    pub(super) fn limit(&self, sa: &Sa, side: LimitSide, now: Moment) -> Option<LimitStatus> {
        let LifetimeLimits { bytes, packets, added_seconds, used_seconds } = sa.config().limits;
        let use_of = |of, count, pair: SoftHardLimit| {
            let limit = match side {
                LimitSide::Soft => pair.soft,
                LimitSide::Hard => pair.hard,
            };
            LimitUse { of, count, limit }
        };
        let age = now.since(sa.added()).as_secs();
        let used = self.first_used.map(|first| now.since(first).as_secs());
        let used = used.map(|used| use_of(LimitKind::Used, used, used_seconds));
        let others = [
            use_of(LimitKind::Added, age, added_seconds),
            use_of(LimitKind::Bytes, self.bytes, bytes),
            use_of(LimitKind::Packets, self.packets, packets),
        ];
        LimitStatus::nearest(used.into_iter().chain(others))
    }

    /// How much of its sequence numbers `sa` has sent, from 0 to 1.
    pub(super) fn sequence_ratio(&self, sa: &Sa) -> f64 {
        self.sent as f64 / sa.config().last_number() as f64
    }
}

/// A state as it is told.
pub(super) fn status(sa: &Sa, direction: Option<Direction>, read: &ReadAt<'_>) -> StateStatus {
    let (carried, config, now) = (StateCounts::of(sa, read), sa.config(), read.now);
    let id = sa.id();
    StateStatus {
        spi: id.spi.to_string(),
        source: sa.source(),
        destination: id.destination,
        direction: direction.map(|direction| direction_word(direction).to_owned()),
        mode: mode_word(config.mode).to_owned(),
        reqid: sa.reqid().0,
        if_id: config.if_id.0,
        lifecycle: lifecycle_word(sa.lifecycle()).to_owned(),
        cipher: cipher(sa),
        encapsulation: config.encap.map(encapsulation),
        device: device(sa, read),
        added_seconds_ago: now.since(sa.added()).as_secs(),
        traffic: carried.traffic(now),
        failures: carried.failures(),
        replay_window: config.window,
        sequence_sent: carried.sent,
        sequence_received: carried.received,
        sequence_ratio: carried.sequence_ratio(sa),
        rekey: carried.limit(sa, LimitSide::Soft, now),
        expiry: carried.limit(sa, LimitSide::Hard, now),
    }
}

/// The kernel's name of its algorithms, and the bits of the cipher's key without salt or nonce.
pub(super) fn cipher(sa: &Sa) -> String {
    let transform = sa.transform();
    let name = transform.name();
    // RFC 4309 §4, RFC 3686 §5.1, RFC 4106 §4, RFC 4543 §3.2, RFC 7634 §2.
    let salt = match name.get(..7) {
        Some("rfc4309") => 3,
        Some("rfc3686" | "rfc4106" | "rfc4543" | "rfc7539") => 4,
        Some(_) | None => 0,
    };
    match transform.key_len().saturating_sub(salt) * 8 {
        0 => name,
        bits => format!("{name} {bits}"),
    }
}

pub(super) fn encapsulation(encap: UdpEncap) -> UdpStatus {
    UdpStatus {
        kind: encap.kind.properties().word.to_owned(),
        source_port: encap.source_port,
        destination_port: encap.destination_port,
    }
}

/// The device that has it.
pub(super) fn device(sa: &Sa, read: &ReadAt<'_>) -> Option<String> {
    let device = sa.attachment()?.device;
    let known = read.posted.post.devices.iter().find(|(number, _)| *number == device);
    Some(known.map_or_else(|| format!("if{}", device.0), |(_, name)| name.clone()))
}

/// The words of `ip xfrm`.
pub(super) const MODES: [(Mode, &str); 6] = [
    (Mode::Transport, "transport"),
    (Mode::Tunnel, "tunnel"),
    (Mode::RouteOptimization, "ro"),
    (Mode::InTrigger, "in_trigger"),
    (Mode::Beet, "beet"),
    (Mode::Iptfs, "iptfs"),
];

/// The words of `ip xfrm`.
pub(super) const PROTOCOLS: [(SaProtocol, &str); 6] = [
    (SaProtocol::Esp, "esp"),
    (SaProtocol::Ah, "ah"),
    (SaProtocol::Comp, "comp"),
    (SaProtocol::Route2, "route2"),
    (SaProtocol::Hao, "hao"),
    (SaProtocol::Any, "ipsec-any"),
];

pub(super) fn mode_word(mode: Mode) -> &'static str {
    MODES.iter().find(|(known, _)| *known == mode).map_or("?", |(_, word)| word)
}

pub(super) fn protocol_word(protocol: SaProtocol) -> &'static str {
    PROTOCOLS.iter().find(|(known, _)| *known == protocol).map_or("?", |(_, word)| word)
}

const fn direction_word(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Forward => "fwd",
    }
}

const fn lifecycle_word(lifecycle: Lifecycle) -> &'static str {
    match lifecycle {
        Lifecycle::Acquire => "acquire",
        Lifecycle::Valid => "valid",
        Lifecycle::Dying => "dying",
        Lifecycle::Error => "error",
        Lifecycle::Expired => "expired",
    }
}
