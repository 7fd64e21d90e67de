//! Tables that fill under traffic, policies on the device, and netdevsim's text.

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::{Action, Policy, Priority, Reqid, Spi};

use super::*;

fn state(spi: u32) -> SaConfig {
    offloaded(
        IpsecSetup::transport4().sa(PairDirection::LeftToRight, spi),
        OffloadKind::Crypto,
        Direction::In,
    )
}

#[test]
fn full_niantic_keeps_sas_and_deletion_makes_room() {
    let wrapping = IpsecSetup::transport4();
    let mut bed = TestBed::new("niantic");
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let plain = datagrams(&wrapping, &[64]);
    let kept = bed.add_receiving(&wrapping, OffloadKind::Crypto);
    let mut sequence = 0;
    let mut passes = |bed: &mut TestBed| {
        sequence += 1;
        let received = bed.receive(vec![sender.esp(&plain[0], sequence)]);
        received[0]
            .metadata
            .is_some_and(|mark| (mark.handle, mark.status) == (Some(kept), DeviceStatus::Success))
    };
    let mut second = None;
    for spi in 1..1024 {
        let attached = bed.port().add_state(&state(spi), NOW).unwrap();
        second = second.or(Some(attached));
        assert!(spi % 100 != 0 || passes(&mut bed));
    }
    for _ in 0..3 {
        let refusal = bed.port().add_state(&state(2000), NOW).unwrap_err();
        assert_eq!(refusal.errno.number(), 28);
        assert_eq!(refusal.text, "No space for SA in Rx table!");
        assert!(passes(&mut bed));
    }
    let Some(Attached::Device(second)) = second else { panic!("the device has it") };
    bed.port().delete_state(second);
    assert!(passes(&mut bed));
    assert!(bed.port().add_state(&state(2000), NOW).is_ok());
    assert!(passes(&mut bed));
    // Freeing a deleted one makes no more room.
    bed.port().free_state(second);
    assert!(bed.port().add_state(&state(2001), NOW).is_err());
    assert_eq!(bed.nic.states(), (1024, 0));
}

#[test]
fn software_fallback_takes_no_table_entry() {
    let profile = Profile::from_toml(
        "name = 'mine'\n[[state]]\nrequire = { modes = ['tunnel'] }\nerrno = 'EOPNOTSUPP'\ntext = ''",
    );
    let mut bed = TestBed::of(NicSetup::new(profile.unwrap(), NIC));
    assert_eq!(bed.port().add_state(&state(1), NOW), Ok(Attached::Software));
    assert_eq!(bed.nic.states(), (0, 0));
}

#[test]
fn invalid_key_is_refused_without_trace() {
    let mut sa = state(1);
    sa.transform.encryption_key = KeyMaterial::new(&[1; 3]);
    let mut bed = TestBed::new("unlimited");
    let refusal = bed.port().add_state(&sa, NOW).unwrap_err();
    assert_eq!(refusal.errno.number(), 22);
    assert_eq!(bed.nic.states(), (0, 0));
}

#[test]
fn larval_states_need_a_device_of_kind_packet() {
    let wanted = packet_kind::wanted(&IpsecSetup::tunnel4());
    assert!(TestBed::new("connectx6dx").port().add_larval(&wanted).is_ok());
    assert!(TestBed::new("niantic").port().add_larval(&wanted).is_err());
}

#[test]
fn options_and_fragments_are_not_ok() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    let whole = datagrams(&wrapping, &[64]).remove(0);
    let ip = |bytes: &[u8]| uxfrm_packet::IpPacket::parse(bytes).unwrap();
    assert!(bed.port().offload_ok(handle, &ip(whole.bytes())));
    let piece = packets::fragments(whole.bytes(), 64).remove(0);
    assert!(!bed.port().offload_ok(handle, &ip(piece.bytes())));
    let options = uxfrm_packet::IpPacket { has_options: true, ..ip(whole.bytes()) };
    assert!(!bed.port().offload_ok(handle, &options));
    assert!(!bed.port().offload_ok(Handle(99), &ip(whole.bytes())));
}

#[test]
fn policies_on_the_device_block_and_want_their_states() {
    let wrapping = IpsecSetup::tunnel4();
    let with = |direction, way, priority, change: fn(&mut Policy)| {
        let mut policy = wrapping.policy(direction, way);
        policy.priority = Priority(priority);
        let device = "nic0".into();
        policy.offload = Some(Offload { kind: OffloadKind::Packet, device, direction });
        change(&mut policy);
        policy
    };
    let (mut left, mut right) = (TestBed::new("connectx6dx"), TestBed::new("connectx6dx"));
    let out = left.add_sending(&wrapping, OffloadKind::Packet);
    let _ = right.add_receiving(&wrapping, OffloadKind::Packet);
    let carried = |left: &mut TestBed, right: &mut TestBed| {
        let wire = left.protect(out, datagrams(&wrapping, &[64]));
        (wire.len(), right.receive(wire).len())
    };
    assert_eq!(carried(&mut left, &mut right), (1, 1), "without any");
    for (direction, bed) in [(Direction::Out, &mut left), (Direction::In, &mut right)] {
        let allow = with(direction, PairDirection::LeftToRight, 20, |_| ());
        bed.port().add_policy(&allow).unwrap();
    }
    assert_eq!(carried(&mut left, &mut right), (1, 1));
    let other = with(Direction::In, PairDirection::LeftToRight, 15, |policy| {
        policy.templates[0].reqid = Reqid(9)
    });
    let other = right.port().add_policy(&other).unwrap();
    assert_eq!(carried(&mut left, &mut right), (1, 0));
    assert_eq!(right.nic.drops().of(NicDrop::RxPolicyMismatch), 1);
    right.port().delete_policy(other);
    right.port().free_policy(other);
    for (direction, sent, received) in [(Direction::In, 1, 0), (Direction::Out, 0, 0)] {
        let block =
            with(direction, PairDirection::LeftToRight, 10, |policy| policy.action = Action::Block);
        let bed = if direction == Direction::In { &mut right } else { &mut left };
        bed.port().add_policy(&block).unwrap();
        assert_eq!(carried(&mut left, &mut right), (sent, received));
    }
    assert_eq!(right.nic.drops().of(NicDrop::RxPolicyBlock), 1);
    assert_eq!(left.nic.drops().of(NicDrop::TxPolicyBlock), 1);
    assert_eq!((left.nic.policies(), right.nic.policies()), (2, 2));
}

/// SAs, packets and text of the kernel's `tools/testing/selftests/net/rtnetlink.sh:
/// kci_test_ipsec_offload`.
#[test]
fn netdevsim_text_matches_kernel_selftest() {
    let ends: [std::net::IpAddr; 2] =
        ["192.168.123.4", "192.168.123.3"].map(|a| a.parse().unwrap());
    let state = |source, destination, direction| {
        let mut sa = IpsecSetup::transport4().sa(PairDirection::LeftToRight, 9);
        (sa.source, sa.id.destination, sa.id.spi) = (source, destination, Spi(9));
        sa.transform.transform = Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap();
        sa.transform.encryption_key = KeyMaterial::new(b"1234567890123456dcba");
        offloaded(sa, OffloadKind::Crypto, direction)
    };
    let mut bed = TestBed::new("netdevsim");
    let outward = state(ends[1], ends[0], Direction::Out);
    let Ok(Attached::Device(handle)) = bed.port().add_state(&outward, NOW) else {
        panic!("the device has it")
    };
    bed.port().set_iv_prefix(handle, prefix());
    let inward = state(ends[0], ends[1], Direction::In);
    let Ok(Attached::Device(receiving)) = bed.port().add_state(&inward, NOW) else {
        panic!("the device has it")
    };
    for handle in [handle, receiving] {
        bed.opened(handle);
    }
    let sender = Sender::new(&outward);
    let plain = packets::echo(ends[1], ends[0], b"ping");
    let handed = (1..=3).map(|sequence| OffloadedPacket {
        packet: sender.frame(&plain, sequence).0,
        handover: OffloadOrder { device: NIC, handle, task: OffloadTask::Encrypt { sequence } },
    });
    assert_eq!(bed.transmit(handed.collect()).len(), 3);
    let expected = "SA count=2 tx=3\n\
        sa[0] tx ipaddr=0x00000000 00000000 00000000 00000000\n\
        sa[0]    spi=0x00000009 proto=0x32 salt=0x61626364 crypt=1\n\
        sa[0]    key=0x34333231 38373635 32313039 36353433\n\
        sa[1] rx ipaddr=0x00000000 00000000 00000000 037ba8c0\n\
        sa[1]    spi=0x00000009 proto=0x32 salt=0x61626364 crypt=1\n\
        sa[1]    key=0x34333231 38373635 32313039 36353433\n";
    assert_eq!(bed.nic.debug_text(), expected);
    bed.port().delete_state(handle);
    assert!(bed.nic.debug_text().starts_with("SA count=1 tx=3\nsa[1] rx "));
    assert!(bed.port().add_state(&outward, NOW).is_ok());
    assert_eq!(bed.nic.debug_text(), expected, "the lowest place that is free");
}
