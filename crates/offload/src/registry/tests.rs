//! Check tables of the kernel and the drivers: request, errno and text. And tables that fill and
//! empty.

use super::*;
use uxfrm_engine::{
    IfId, LifetimeLimits, Mode, Offload, PolicyKind, Priority, Reqid, SaProtocol, SoftHardLimit,
    UdpEncapKind,
};
use uxfrm_testkit::{EspSuite, IpsecSetup, PairDirection};

fn device(name: &str) -> Registry {
    Registry::new(Profile::by_name(name).unwrap())
}

fn asks(mut sa: SaConfig, kind: OffloadKind, direction: Direction) -> SaConfig {
    sa.offload = Some(Offload { kind, device: "nic0".into(), direction });
    sa
}

fn crypto(wrapping: &IpsecSetup, spi: u32) -> SaConfig {
    asks(wrapping.sa(PairDirection::LeftToRight, spi), OffloadKind::Crypto, Direction::In)
}

fn packet(wrapping: &IpsecSetup) -> SaConfig {
    asks(wrapping.sa(PairDirection::LeftToRight, 7), OffloadKind::Packet, Direction::In)
}

fn policy(direction: Direction) -> Policy {
    let mut policy = IpsecSetup::tunnel4().policy(direction, PairDirection::LeftToRight);
    policy.offload = Some(Offload { kind: OffloadKind::Packet, device: "nic0".into(), direction });
    policy
}

fn refused(device: &mut Registry, sa: &SaConfig) -> (i32, String) {
    let refusal = Registry::attach_state(Some(device), sa).unwrap_err();
    (refusal.errno.number(), refusal.text)
}

#[test]
fn without_a_device_crypto_is_software_and_packet_is_refused() {
    let transport = IpsecSetup::transport4();
    let software = Registry::attach_state(None, &crypto(&transport, 1));
    assert_eq!(software, Ok(Attached::Software));
    let refusal = Registry::attach_state(None, &packet(&transport)).unwrap_err();
    assert_eq!((refusal.errno.number(), refusal.text.as_str()), (22, ""));
    let refusal = Registry::attach_policy(None, &policy(Direction::Out)).unwrap_err();
    assert_eq!((refusal.errno.number(), refusal.text.as_str()), (22, ""));
}

#[test]
fn niantic_refusals_match_driver() {
    let transport = IpsecSetup::transport4;
    let esn = IpsecSetup { flags: SaFlags::ESN, ..transport() };
    let mut ah = crypto(&transport(), 1);
    ah.id.protocol = SaProtocol::Comp;
    let cbc = IpsecSetup { suite: EspSuite::CbcSha1, ..transport() };
    let long = IpsecSetup { suite: EspSuite::Gcm256, ..transport() };
    let rx = "Failed to get key data for Rx SA table";
    for (sa, text) in [
        (crypto(&esn, 1), "Device doesn't support offload with ESN"),
        (ah, "Unsupported protocol for ipsec offload"),
        (crypto(&IpsecSetup::tunnel4(), 1), "Unsupported mode for ipsec offload"),
        (packet(&transport()), "Unsupported ipsec offload type"),
        (crypto(&cbc, 1), rx),
        (crypto(&long, 1), rx),
        (
            asks(long.sa(PairDirection::LeftToRight, 1), OffloadKind::Crypto, Direction::Out),
            "Failed to get key data for Tx SA table",
        ),
    ] {
        let mut device = device("niantic");
        assert_eq!(refused(&mut device, &sa), (22, text.to_owned()));
        assert_eq!(device.states(), (0, 0));
    }
    let mut profile = Profile::by_name("niantic").unwrap();
    profile.management.push(crypto(&transport(), 1).id.destination);
    let clash = refused(&mut Registry::new(profile), &crypto(&transport(), 1));
    assert_eq!(clash, (22, "IPsec IP addr clash with mgmt filters".to_owned()));
    let no_policies =
        Registry::attach_policy(Some(&mut device("niantic")), &policy(Direction::Out));
    assert_eq!(no_policies.unwrap_err().text, "Policy offload is not supported");
}

#[test]
fn connectx_refusals_match_driver() {
    let base = IpsecSetup::tunnel4;
    let udp = |kind, mode| IpsecSetup { encap: Some(kind), mode, ..base() };
    let limited = |limits| IpsecSetup { limits, ..base() };
    let budget = |soft, hard| SoftHardLimit { soft, hard };
    let with = |change: fn(&mut SaConfig)| {
        let mut sa = packet(&base());
        change(&mut sa);
        sa
    };
    let upper = with(|sa| {
        if let Some(selector) = &mut sa.selector {
            selector.protocol = 1;
        }
    });
    let suite = |suite| packet(&IpsecSetup { suite, ..base() });
    for (sa, text) in [
        (suite(EspSuite::CbcSha1), "Cannot offload authenticated xfrm states"),
        (suite(EspSuite::ChaCha20), "Only AES-GCM-ICV16 xfrm state may be offloaded"),
        (with(|sa| sa.id.protocol = SaProtocol::Ah), "Only ESP xfrm state may be offloaded"),
        (
            packet(&udp(UdpEncapKind::NonIke, Mode::Transport)),
            "Encapsulation other than UDP is not supported",
        ),
        (
            crypto(&udp(UdpEncapKind::Esp, Mode::Transport), 1),
            "Encapsulation is supported in packet offload mode only",
        ),
        (
            packet(&udp(UdpEncapKind::Esp, Mode::Tunnel)),
            "Encapsulation is supported in transport mode only",
        ),
        (with(|sa| sa.tfc_padding = 8), "Cannot offload xfrm states with tfc padding"),
        (upper, "Device does not support upper protocol other than TCP/UDP"),
        (with(|sa| sa.mode = Mode::Beet), "Only transport and tunnel xfrm states may be offloaded"),
        (with(|sa| sa.replay.window = 96), "Unsupported replay window size"),
        (with(|sa| sa.reqid = Reqid(0)), "Cannot offload without reqid"),
        (
            packet(&limited(LifetimeLimits { bytes: budget(9, 9), ..LifetimeLimits::default() })),
            "Hard byte limit must be greater than soft one",
        ),
        (
            packet(&limited(LifetimeLimits { bytes: budget(0, 9), ..LifetimeLimits::default() })),
            "Soft/hard byte limits can't be 0",
        ),
        (
            packet(&limited(LifetimeLimits { packets: budget(9, 8), ..LifetimeLimits::default() })),
            "Hard packet limit must be greater than soft one",
        ),
        (
            packet(&limited(LifetimeLimits { packets: budget(0, 9), ..LifetimeLimits::default() })),
            "Soft/hard packet limits can't be 0",
        ),
    ] {
        let mut device = device("connectx6dx");
        assert_eq!(refused(&mut device, &sa), (22, text.to_owned()));
        assert_eq!(device.states(), (0, 0));
    }
    let aes192 = uxfrm_crypto::Transform::aead("rfc4106(gcm(aes))", 224, 128).unwrap();
    let mut sa = packet(&base());
    sa.transform.transform = aes192;
    let text = "Cannot offload xfrm states with AEAD key length other than 128/256 bit";
    assert_eq!(refused(&mut device("connectx6dx"), &sa), (22, text.to_owned()));
}

#[test]
fn connectx_accepts_supported_sas() {
    for window in [0, 1, 32, 64, 128, 256] {
        let mut device = device("connectx6dx");
        let sa = packet(&IpsecSetup { window, ..IpsecSetup::tunnel4() });
        let taken = Registry::attach_state(Some(&mut device), &sa);
        assert!(matches!(taken, Ok(Attached::Device(_))), "{window}: {taken:?}");
        assert_eq!(device.states(), (1, 0));
    }
    let esn = IpsecSetup { flags: SaFlags::ESN, suite: EspSuite::Gcm256, ..IpsecSetup::tunnel4() };
    assert!(Registry::attach_state(Some(&mut device("connectx6dx")), &crypto(&esn, 1)).is_ok());
    for direction in [Direction::In, Direction::Out] {
        assert!(
            Registry::attach_policy(Some(&mut device("connectx6dx")), &policy(direction)).is_ok()
        );
    }
}

#[test]
fn connectx_policy_refusals_match_driver() {
    let with = |change: fn(&mut Policy)| {
        let mut policy = policy(Direction::Out);
        change(&mut policy);
        policy
    };
    for (policy, text) in [
        (with(|policy| policy.kind = PolicyKind::Sub), "Cannot offload non-main policy types"),
        (
            with(|policy| policy.templates.extend(policy.templates.clone())),
            "Cannot offload more than one template",
        ),
        (policy(Direction::Forward), "Cannot offload forward policy"),
        (
            with(|policy| {
                policy.templates[0].reqid = Reqid(0);
                policy.selector = uxfrm_engine::Selector::any(uxfrm_engine::Family::V4);
            }),
            "Unsupported policy with reqid 0 without at least one of upper protocol or ip addr(s) different than 0",
        ),
        (
            with(|policy| policy.selector.protocol = 1),
            "Device does not support upper protocol other than TCP/UDP",
        ),
        (
            with(|policy| policy.priority = Priority(u32::MAX)),
            "Device does not support requested policy priority",
        ),
        (
            with(|policy| {
                if let Some(offload) = &mut policy.offload {
                    offload.kind = OffloadKind::Crypto;
                }
            }),
            "Unrecognized flags in offload request",
        ),
    ] {
        let mut device = device("connectx6dx");
        let refusal = Registry::attach_policy(Some(&mut device), &policy).unwrap_err();
        assert_eq!((refusal.errno.number(), refusal.text.as_str()), (22, text));
        assert_eq!(device.policies(), 0);
    }
}

#[test]
fn full_niantic_is_enospc_and_deletion_makes_room() {
    let mut device = device("niantic");
    let transport = IpsecSetup::transport4();
    let mut handles = Vec::new();
    for spi in 1..=1024 {
        match Registry::attach_state(Some(&mut device), &crypto(&transport, spi)) {
            Ok(Attached::Device(handle)) => handles.push(handle),
            other => panic!("state {spi}: {other:?}"),
        }
    }
    let more = crypto(&transport, 1025);
    assert_eq!(refused(&mut device, &more), (28, "No space for SA in Rx table!".to_owned()));
    let sending =
        asks(transport.sa(PairDirection::RightToLeft, 1), OffloadKind::Crypto, Direction::Out);
    assert!(Registry::attach_state(Some(&mut device), &sending).is_ok());
    assert_eq!(device.states(), (1024, 1));
    assert!(device.detach_state(handles[500]));
    assert!(!device.detach_state(handles[500]), "it is gone already");
    assert!(Registry::attach_state(Some(&mut device), &more).is_ok());
    device.flush();
    assert_eq!((device.states(), device.policies()), ((0, 0), 0));
}

#[test]
fn address_table_counts_destinations() {
    let to = |last: u8, spi| {
        let mut sa = crypto(&IpsecSetup::transport4(), spi);
        sa.id.destination = [10, 0, 0, last].into();
        sa
    };
    let mut device = device("niantic");
    let mut first = None;
    for last in 0..128 {
        let attached = Registry::attach_state(Some(&mut device), &to(last, 1)).unwrap();
        first = first.or(Some(attached));
    }
    let full = (28, "No space for SA in Rx IP SA table".to_owned());
    assert_eq!(refused(&mut device, &to(128, 1)), full);
    assert!(Registry::attach_state(Some(&mut device), &to(5, 2)).is_ok(), "a known destination");
    let Some(Attached::Device(handle)) = first else { panic!("the first one is on the device") };
    assert!(device.detach_state(handle));
    assert!(Registry::attach_state(Some(&mut device), &to(128, 1)).is_ok());
    assert_eq!(refused(&mut device, &to(0, 1)), full);
}

#[test]
fn netdevsim_has_one_table_for_both_directions() {
    let mut device = device("netdevsim");
    for spi in 1..=33 {
        let direction = if spi % 2 == 0 { Direction::In } else { Direction::Out };
        let sa = asks(
            IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, spi),
            OffloadKind::Crypto,
            direction,
        );
        assert!(Registry::attach_state(Some(&mut device), &sa).is_ok());
    }
    let sa = asks(
        IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, 34),
        OffloadKind::Crypto,
        Direction::Out,
    );
    assert_eq!(refused(&mut device, &sa), (28, "No space for SA in Rx table!".to_owned()));
    let kind = packet(&IpsecSetup::tunnel4());
    assert_eq!(refused(&mut device, &kind), (22, "Unsupported ipsec offload type".to_owned()));
}

#[test]
fn eopnotsupp_falls_back_only_for_crypto() {
    let profile = Profile::from_toml(
        "name = 'mine'\nesn = true\n[[state]]\nrequire = { modes = ['tunnel'] }\nerrno = 'EOPNOTSUPP'\ntext = ''",
    )
    .unwrap();
    let mut device = Registry::new(profile);
    let transport = IpsecSetup::transport4();
    let software = Registry::attach_state(Some(&mut device), &crypto(&transport, 1));
    assert_eq!(software, Ok(Attached::Software));
    let text = "Device failed to offload this state".to_owned();
    assert_eq!(refused(&mut device, &packet(&transport)), (95, text));
}

#[test]
fn all_that_uxfrm_does_fits_the_unlimited_device() {
    let mut device = device("unlimited");
    for suite in EspSuite::ALL {
        let sa = packet(&IpsecSetup { suite, flags: SaFlags::ESN, ..IpsecSetup::tunnel4() });
        assert!(Registry::attach_state(Some(&mut device), &sa).is_ok(), "{suite:?}");
    }
    let mut forward = policy(Direction::Forward);
    forward.if_id = IfId(7);
    assert!(Registry::attach_policy(Some(&mut device), &forward).is_ok());
}
