//! Any state and any policy that the kernel's interface takes and a line of `ip xfrm` can say.
//! Devices are left out: a host has few.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
};

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::{
    Action, Cpu, Direction, Family, IfId, KeepaliveInterval, LifetimeLimits, MAX_TEMPLATES, Mark,
    Mode, Policy, PolicyFlags, PolicyIndex, PolicyKind, PortMask, Prefix, Priority, ReplayConfig,
    Reqid, SaConfig, SaExtraFlags, SaFlags, SaId, SaProtocol, SaTransform, Selector, SoftHardLimit,
    Spi, Template, TemplateLevel, UdpEncap, UdpEncapKind,
};

use crate::Rng;

/// AEADs with the bytes of their keys, salt included, and the bits of their ICVs.
const AEADS: [(&str, usize, u32); 5] = [
    ("rfc4106(gcm(aes))", 20, 64),
    ("rfc4106(gcm(aes))", 28, 96),
    ("rfc4106(gcm(aes))", 36, 128),
    ("rfc4543(gcm(aes))", 20, 128),
    ("rfc7539esp(chacha20,poly1305)", 36, 128),
];

/// Ciphers with the bytes of their keys.
const CIPHERS: [(&str, usize); 4] =
    [("cbc(aes)", 16), ("cbc(aes)", 32), ("rfc3686(ctr(aes))", 20), ("ecb(cipher_null)", 0)];

/// Authentication with the bytes of their keys and the bits that are left of the ICV.
const AUTHS: [(&str, usize, u32); 5] = [
    ("hmac(sha1)", 20, 96),
    ("hmac(sha256)", 32, 96),
    ("hmac(sha256)", 32, 128),
    ("hmac(sha512)", 64, 256),
    ("digest_null", 0, 0),
];

/// A state, with numbers that begin at 0.
#[must_use]
pub fn state(rng: &mut Rng) -> SaConfig {
    let family = family(rng);
    let id = SaId {
        destination: address(rng, family),
        spi: Spi(nonzero(rng)),
        protocol: SaProtocol::Esp,
    };
    let direction = one_of(rng, [None, Some(Direction::In), Some(Direction::Out)]);
    let mode = one_of(rng, [Mode::Tunnel, Mode::Transport, Mode::Beet]);
    let window = if direction == Some(Direction::Out) {
        0
    } else {
        one_of(rng, [0, 1, 31, 32, 33, 64, 255, 4096])
    };
    let flags = flags(rng, direction, window);
    let encap = maybe(rng, |rng| UdpEncap {
        kind: one_of(rng, UdpEncapKind::ALL),
        source_port: port(rng),
        destination_port: port(rng),
        original_address: address(rng, family),
    });
    let is_out = direction == Some(Direction::Out);
    let own = SaConfig::new(id, address(rng, family), transform(rng));
    SaConfig {
        mode,
        reqid: Reqid(sparse(rng)),
        acquire_seq: sparse(rng),
        selector: own_selector(rng, flags, family),
        mark: mark(rng),
        output_mark: Mark { value: sparse(rng), mask: sparse(rng) },
        if_id: IfId(sparse(rng)),
        replay: ReplayConfig { window, ..ReplayConfig::default() },
        limits: limits(rng),
        flags,
        extra_flags: match direction {
            Some(Direction::In) => SaExtraFlags::empty(),
            Some(Direction::Out | Direction::Forward) | None => {
                SaExtraFlags::from_bits_retain(one_of(rng, [0, 1, 2, 3, 0x80, 0x8000_0003]))
            }
        },
        nat_keepalive: encap
            .filter(|encap| is_out && encap.kind == UdpEncapKind::Esp)
            .and_then(|_| KeepaliveInterval::from_secs(sparse(rng))),
        mapping_age: encap.filter(|_| !is_out).and_then(|_| NonZeroU32::new(sparse(rng))),
        tfc_padding: if mode == Mode::Tunnel { sparse(rng) } else { 0 },
        pcpu: direction.and_then(|_| maybe(rng, |rng| Cpu(one_of(rng, [0, 1, 4095])))),
        encap,
        direction,
        ..own
    }
}

/// A policy; without an index, or with one of its direction.
#[must_use]
pub fn policy(rng: &mut Rng) -> Policy {
    let family = family(rng);
    let direction = one_of(rng, [Direction::In, Direction::Out, Direction::Forward]);
    let bits = match direction {
        Direction::In => 0,
        Direction::Out => 1,
        Direction::Forward => 2,
    };
    let index = sparse(rng) & !7;
    let mut inner = family;
    let count = rng.below(MAX_TEMPLATES + 1);
    Policy {
        direction,
        kind: one_of(rng, [PolicyKind::Main, PolicyKind::Sub]),
        index: PolicyIndex(if index == 0 { 0 } else { index | bits }),
        selector: selector(rng, family),
        priority: Priority(sparse(rng)),
        action: one_of(rng, [Action::Allow, Action::Block]),
        templates: (0..count).map(|_| template(rng, &mut inner, direction)).collect(),
        mark: mark(rng),
        if_id: IfId(sparse(rng)),
        flags: PolicyFlags::from_bits_retain(one_of(rng, [0, 1, 2, 3, 4, 7, 0x40, 0x47])),
        limits: limits(rng),
        offload: None,
    }
}

/// A template for packets of `inner`, which is then its own family.
fn template(rng: &mut Rng, inner: &mut Family, direction: Direction) -> Template {
    let mode = one_of(rng, [Mode::Tunnel, Mode::Transport, Mode::Beet]);
    if mode != Mode::Transport {
        *inner = family(rng);
    }
    let takes_use = mode == Mode::Transport || direction != Direction::Out;
    let level = one_of(rng, [TemplateLevel::Required, TemplateLevel::Use]);
    let ends = [address(rng, *inner), address(rng, *inner)];
    let [source, destination] = one_of(rng, [ends, [inner.unspecified(); 2]]);
    Template {
        source,
        destination,
        protocol: one_of(rng, [SaProtocol::Esp, SaProtocol::Ah, SaProtocol::Comp]),
        spi: Spi(sparse(rng) & 0xffff),
        mode,
        reqid: Reqid(sparse(rng)),
        level: if takes_use { level } else { TemplateLevel::Required },
    }
}

fn transform(rng: &mut Rng) -> SaTransform {
    if rng.below(2) == 0 {
        let (name, bytes, icv_bits) = one_of(rng, AEADS);
        return SaTransform::aead(name, key(rng, bytes), icv_bits).expect("crypto has them all");
    }
    let (cipher, cipher_bytes) = one_of(rng, CIPHERS);
    let (auth, auth_bytes, icv_bits) = one_of(rng, AUTHS);
    let transform = Transform::cipher_auth(
        Some((cipher, cipher_bytes * 8)),
        Some((auth, auth_bytes * 8, Some(icv_bits))),
    );
    SaTransform {
        transform: transform.expect("crypto has them all"),
        encryption_key: key(rng, cipher_bytes),
        authentication_key: key(rng, auth_bytes),
    }
}

fn key(rng: &mut Rng, bytes: usize) -> KeyMaterial {
    let mut material = vec![0; bytes];
    rng.fill(&mut material);
    KeyMaterial::new(&material)
}

fn flags(rng: &mut Rng, direction: Option<Direction>, window: u32) -> SaFlags {
    let mut flags = SaFlags::from_bits_retain(number(rng).to_be_bytes()[0]);
    let is_out = direction == Some(Direction::Out);
    match direction {
        Some(Direction::Out) => {
            flags.remove(SaFlags::DECAP_DSCP | SaFlags::ICMP | SaFlags::WILDRECV)
        }
        Some(Direction::In | Direction::Forward) => flags.remove(SaFlags::NOPMTUDISC),
        None => {}
    }
    if window == 0 && !is_out {
        flags.remove(SaFlags::ESN);
    }
    flags
}

/// None for either family only with its flag.
fn own_selector(rng: &mut Rng, flags: SaFlags, family: Family) -> Option<Selector> {
    let other = self::family(rng);
    let is_either = flags.contains(SaFlags::AF_UNSPEC);
    let all = [Selector::any(family), selector(rng, family), selector(rng, other)];
    let some = one_of(rng, all);
    (!is_either || rng.below(2) == 0).then_some(some)
}

fn selector(rng: &mut Rng, family: Family) -> Selector {
    let [source, destination] = [prefix(rng, family), prefix(rng, family)];
    Selector {
        source,
        destination,
        protocol: one_of(rng, [0, 1, 6, 17, 33, 47, 50, 58, 132, 135, 200]),
        source_port: port_mask(rng),
        destination_port: port_mask(rng),
        ifindex: 0,
        user: 0,
    }
}

fn prefix(rng: &mut Rng, family: Family) -> Prefix {
    let len = u8::try_from(rng.below(usize::from(family.bits()) + 1)).expect("at most 128");
    Prefix::new(address(rng, family), len).expect("it is not too long")
}

fn port_mask(rng: &mut Rng) -> PortMask {
    let value = one_of(rng, [0, 8, 255, 256, 0xffff]);
    PortMask { value, mask: one_of(rng, [0, 0xffff, 0xffff, 0xfc00, 1]) }
}

fn limits(rng: &mut Rng) -> LifetimeLimits {
    let mut pair = || SoftHardLimit { soft: limit(rng), hard: limit(rng) };
    LifetimeLimits { bytes: pair(), packets: pair(), added_seconds: pair(), used_seconds: pair() }
}

fn limit(rng: &mut Rng) -> u64 {
    one_of(rng, [0, 1, 3600, u64::MAX - 1, u64::MAX, u64::MAX, u64::MAX])
}

fn mark(rng: &mut Rng) -> Mark {
    let all = [0, u32::MAX, 0xff, nonzero(rng)];
    let mask = one_of(rng, all);
    Mark { value: if mask == 0 { 0 } else { sparse(rng) }, mask }
}

fn address(rng: &mut Rng, family: Family) -> IpAddr {
    let mut octets = [0; 16];
    rng.fill(&mut octets);
    match family {
        Family::V4 => Ipv4Addr::from(number(rng)).into(),
        Family::V6 => Ipv6Addr::from(octets).into(),
    }
}

fn family(rng: &mut Rng) -> Family {
    one_of(rng, [Family::V4, Family::V6])
}

fn port(rng: &mut Rng) -> u16 {
    one_of(rng, [0, 1, 4500, u16::MAX])
}

fn nonzero(rng: &mut Rng) -> u32 {
    number(rng).max(1)
}

fn number(rng: &mut Rng) -> u32 {
    let mut bytes = [0; 4];
    rng.fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// 0 in half of all cases.
fn sparse(rng: &mut Rng) -> u32 {
    if rng.below(2) == 0 { 0 } else { nonzero(rng) }
}

fn maybe<T>(rng: &mut Rng, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.below(2) == 0).then(|| value(rng))
}

fn one_of<T: Copy, const N: usize>(rng: &mut Rng, all: [T; N]) -> T {
    all[rng.below(N)]
}
