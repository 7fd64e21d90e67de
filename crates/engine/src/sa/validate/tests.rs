//! One line per check: the fault and the error.

use crate::sa::config::{SaExtraFlags, SaFlags};
use crate::sa::sample;
use crate::sa::validate::{complete, verify};
use crate::{
    Cpu, Direction, IfId, KeepaliveInterval, Mode, Offload, OffloadKind, ReplayConfig, SaConfig,
    SaProtocol, Selector, Spi, UdpEncap, UdpEncapKind,
};

const EINVAL: i32 = 22;
const EPROTONOSUPPORT: i32 = 93;

fn offload(kind: OffloadKind, direction: Direction) -> Option<Offload> {
    Some(Offload { kind, device: "eth4".to_owned(), direction })
}

fn encap(kind: UdpEncapKind) -> Option<UdpEncap> {
    let original_address = "0.0.0.0".parse().unwrap();
    Some(UdpEncap { kind, source_port: 4500, destination_port: 4500, original_address })
}

type Fault = fn(&mut SaConfig);

#[rustfmt::skip]
const REFUSED: &[(Fault, i32, &str)] = &[
    (|sa| sa.source = "::1".parse().unwrap(), EINVAL, "Invalid address family"),
    (|sa| { let mut mixed = Selector::any(crate::Family::V4); mixed.source = crate::Prefix::any(crate::Family::V6); sa.selector = Some(mixed); },
        EINVAL, "Invalid address family in selector"),
    (|sa| sa.id.protocol = SaProtocol::Any, EINVAL, "Unsupported protocol"),
    (|sa| sa.id.spi = Spi(0), EINVAL, "SPI 0 is reserved: ESP states need 1 or more"),
    (|sa| { sa.tfc_padding = 8; sa.mode = Mode::Transport; }, EINVAL, "TFC padding can only be used in tunnel mode"),
    (|sa| sa.mode = Mode::InTrigger, EINVAL, "Unsupported mode"),
    (|sa| sa.replay.window = 4097, EINVAL, "ESN bitmap length must be <= 128"),
    (|sa| sa.replay.sent = 1 << 32, EINVAL, "Sequence numbers above 0xffffffff need flag esn"),
    (|sa| { sa.extra_flags |= SaExtraFlags::OSEQ_MAY_WRAP; sa.replay.received = 1 << 32; },
        EINVAL, "Sequence numbers above 0xffffffff need flag esn"),
    (|sa| { sa.flags |= SaFlags::ESN; sa.replay.window = 0; }, EINVAL, "ESN replay window must be > 0"),
    (|sa| sa.pcpu = Some(Cpu(1)), EINVAL, "SA_PCPU only supported with SA_DIR"),
    (|sa| sa.direction = Some(Direction::Forward), EINVAL, "Invalid SA direction"),
    (|sa| { out(sa); sa.flags |= SaFlags::DECAP_DSCP; }, EINVAL, "Flag DECAP_DSCP should not be set for output SA"),
    (|sa| { out(sa); sa.flags |= SaFlags::ICMP; }, EINVAL, "Flag ICMP should not be set for output SA"),
    (|sa| { out(sa); sa.flags |= SaFlags::WILDRECV; }, EINVAL, "Flag WILDRECV should not be set for output SA"),
    (|sa| { out(sa); sa.replay.window = 1; }, EINVAL, "Replay window should be 0 for output SA"),
    (|sa| { out(sa); sa.replay.received = 1; }, EINVAL, "Replay seq and bitmap should be 0 for output SA"),
    (|sa| { inward(sa); sa.flags |= SaFlags::NOPMTUDISC; }, EINVAL, "Flag NOPMTUDISC should not be set for input SA"),
    (|sa| { inward(sa); sa.extra_flags |= SaExtraFlags::DONT_ENCAP_DSCP; },
        EINVAL, "Flag DONT_ENCAP_DSCP should not be set for input SA"),
    (|sa| { inward(sa); sa.extra_flags |= SaExtraFlags::OSEQ_MAY_WRAP; },
        EINVAL, "Flag OSEQ_MAY_WRAP should not be set for input SA"),
    (|sa| { inward(sa); sa.replay.sent = 1; }, EINVAL, "Replay oseq should be 0 for input SA"),
    (|sa| { sa.mode = Mode::Transport; sa.selector = Some(Selector::any(crate::Family::V6)); },
        EPROTONOSUPPORT, "Only tunnel modes can accommodate a change of family"),
    (|sa| { sa.mode = Mode::Transport; sa.flags |= SaFlags::AF_UNSPEC; },
        EPROTONOSUPPORT, "Only tunnel modes can accommodate an AF_UNSPEC selector"),
    (|sa| sa.mode = Mode::Beet, EPROTONOSUPPORT, "Requested mode not found"),
    (|sa| sa.mode = Mode::Iptfs, EPROTONOSUPPORT, "Requested mode not found"),
    (|sa| sa.mode = Mode::RouteOptimization, EPROTONOSUPPORT, "Requested mode not found"),
    (|sa| sa.id.protocol = SaProtocol::Ah, EPROTONOSUPPORT, "Requested type not found"),
    (|sa| sa.id.protocol = SaProtocol::Comp, EPROTONOSUPPORT, "Requested type not found"),
    (|sa| sa.id.protocol = SaProtocol::Hao, EPROTONOSUPPORT, "Requested type not found"),
    (|sa| sa.encap = encap(UdpEncapKind::Tcp), EINVAL, "Unsupported encapsulation type for ESP"),
    (|sa| { sa.encap = encap(UdpEncapKind::Esp); sa.nat_keepalive = KeepaliveInterval::from_secs(20); },
        EINVAL, "NAT keepalive is only supported for outbound SAs"),
    (|sa| { inward(sa); sa.nat_keepalive = KeepaliveInterval::from_secs(20); },
        EINVAL, "NAT keepalive is only supported for outbound SAs"),
    (|sa| { out(sa); sa.nat_keepalive = KeepaliveInterval::from_secs(20); },
        EINVAL, "NAT keepalive is only supported for UDP encapsulation"),
    (|sa| { out(sa); sa.encap = encap(UdpEncapKind::NonIke); sa.nat_keepalive = KeepaliveInterval::from_secs(20); },
        EINVAL, "NAT keepalive is only supported for UDP encapsulation"),
    (|sa| { out(sa); sa.offload = offload(OffloadKind::Crypto, Direction::In); },
        EINVAL, "Mismatched SA and offload direction"),
    (|sa| { sa.if_id = IfId(1); sa.offload = offload(OffloadKind::Crypto, Direction::In); },
        EINVAL, "XFRM if_id is not supported in RX path"),
    (|sa| { sa.tfc_padding = 8; sa.offload = offload(OffloadKind::Crypto, Direction::Out); },
        EINVAL, "TFC padding can't be offloaded"),
];

#[rustfmt::skip]
const ACCEPTED: &[Fault] = &[
    |_| {},
    |sa| sa.mode = Mode::Transport,
    |sa| { sa.flags |= SaFlags::ESN; sa.replay = ReplayConfig { window: 4096, sent: 1 << 40, received: 1 << 41 }; },
    |sa| { out(sa); sa.flags |= SaFlags::ESN; },
    |sa| { out(sa); sa.encap = encap(UdpEncapKind::Esp); sa.nat_keepalive = KeepaliveInterval::from_secs(u32::MAX); },
    |sa| { out(sa); sa.extra_flags |= SaExtraFlags::OSEQ_MAY_WRAP | SaExtraFlags::DONT_ENCAP_DSCP; sa.pcpu = Some(Cpu(0)); },
    |sa| { inward(sa); sa.flags |= SaFlags::DECAP_DSCP | SaFlags::ICMP | SaFlags::WILDRECV; sa.replay.window = 32; },
    |sa| sa.encap = encap(UdpEncapKind::Esp),
    |sa| sa.encap = encap(UdpEncapKind::NonIke),
    |sa| sa.offload = offload(OffloadKind::Crypto, Direction::Out),
    |sa| sa.offload = offload(OffloadKind::Packet, Direction::Out),
    |sa| sa.selector = Some(Selector::any(crate::Family::V6)),
    |sa| sa.flags |= SaFlags::AF_UNSPEC,
    |sa| sa.tfc_padding = 1400,
    |sa| sa.id.spi = Spi(1),
];

fn out(sa: &mut SaConfig) {
    sa.direction = Some(Direction::Out);
    sa.replay = ReplayConfig::default();
}

fn inward(sa: &mut SaConfig) {
    sa.direction = Some(Direction::In);
}

#[test]
fn sa_faults_give_kernel_errors() {
    for (row, (fault, errno, text)) in REFUSED.iter().enumerate() {
        let mut config = sample("10.0.0.2", 0x1000);
        fault(&mut config);
        complete(&mut config);
        let error = verify(&config).expect_err(text);
        assert_eq!((error.errno(), error.to_string().as_str()), (*errno, *text), "row {row}");
    }
}

#[test]
fn configs_that_kernel_accepts_are_accepted() {
    for (row, words) in ACCEPTED.iter().enumerate() {
        let mut config = sample("10.0.0.2", 0x1000);
        words(&mut config);
        complete(&mut config);
        assert_eq!(verify(&config), Ok(()), "row {row}");
    }
}

#[test]
fn sa_without_selector_gets_own_family() {
    let mut config = sample("10.0.0.2", 1);
    complete(&mut config);
    assert_eq!(config.selector, Some(Selector::any(crate::Family::V4)));
    let mut config = sample("10.0.0.2", 1);
    config.flags |= SaFlags::AF_UNSPEC;
    complete(&mut config);
    assert_eq!(config.selector, None);
}
