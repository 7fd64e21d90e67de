//! Injected faults, and the promises that hold all the same.

use std::time::Duration;

use uxfrm_testkit::{PlaintextDetector, Rng};

use super::*;

/// Payload that must not appear on the wire.
const MARKER: &[u8] = b"plaintext must not leave";

fn marked(wrapping: &IpsecSetup, count: usize) -> Vec<PacketBuf> {
    let (source, destination) = wrapping.hosts(PairDirection::LeftToRight);
    let end = |address| std::net::SocketAddr::new(address, 5).to_string();
    let one = |_| packets::udp(&end(source), &end(destination), &MARKER.repeat(4));
    (0..count).map(one).collect()
}

#[test]
fn link_flapping_leaks_no_plaintext_and_keeps_counts() {
    let wrapping = IpsecSetup::tunnel4();
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let (mut left, mut right) = (TestBed::new("unlimited"), TestBed::new("unlimited"));
        let sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
        let mut out = left.add_sending(&wrapping, kind);
        let _ = right.add_receiving(&wrapping, OffloadKind::Packet);
        let mut listener = PlaintextDetector::new(MARKER);
        let mut rng = Rng::new(6);
        let mut sequence = 0;
        let mut arrived = 0;
        for round in 0..1000 {
            left.nic.inject(Fault::Delay(Duration::from_micros(rng.below(3) as u64)));
            for up in [true, false] {
                let link = if up { LinkState::Up } else { LinkState::Down };
                left.nic.set_link(link, &mut left.pool);
                left.assert_accounts();
                let (task, handed) = (OffloadTask::Protect, marked(&wrapping, 3));
                let handed = handed.into_iter().map(|packet| match kind {
                    OffloadKind::Packet => OffloadedPacket {
                        packet,
                        handover: OffloadOrder { device: NIC, handle: out, task },
                    },
                    OffloadKind::Crypto => {
                        sequence += 1;
                        let packet = sender.frame(&packet, sequence).0;
                        let task = OffloadTask::Encrypt { sequence };
                        OffloadedPacket {
                            packet,
                            handover: OffloadOrder { device: NIC, handle: out, task },
                        }
                    }
                });
                let wire = left.transmit(handed.collect());
                listener.listen(&wire);
                arrived += right.receive(wire).len();
                left.now = left.now.plus(Duration::from_micros(2));
            }
            // Linux removes the SAs; late packets find none.
            if round % 2 == 0 {
                let sent = left.counts(out).sent;
                left.port().delete_state(out);
                assert!(left.protect(out, marked(&wrapping, 1)).is_empty());
                left.port().free_state(out);
                let mut sa = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI);
                sa.replay.sent = sent;
                out = left.add(sa, kind, Direction::Out);
            }
        }
        let events = left.events();
        let downs = events.iter().filter(|event| **event == NicEvent::LinkDown).count();
        assert_eq!((downs, events.len()), (1000, 1999));
        assert_eq!(listener.seen, 0, "{kind:?}");
        assert!(arrived > 1000, "{arrived}");
        let (outward, drops) = (left.nic.outward(), left.nic.drops());
        assert_eq!(outward.received, outward.sent + drops.total() + outward.held);
        assert_eq!(drops.of(NicDrop::TxNoState) + drops.of(NicDrop::TxLinkDown), drops.total());
        assert_eq!(outward.sent, arrived as u64);
    }
}

#[test]
fn link_down_drops_delayed_packets() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    bed.nic.inject(Fault::Delay(Duration::from_secs(1)));
    assert!(bed.protect(handle, marked(&wrapping, 5)).is_empty());
    assert_eq!(bed.nic.outward().held, 5);
    assert_eq!(bed.nic.next_due(), Some(NOW.plus(Duration::from_secs(1))));
    bed.nic.set_link(LinkState::Down, &mut bed.pool);
    assert_eq!(bed.nic.drops().of(NicDrop::TxLinkDown), 5);
    assert_eq!(bed.nic.next_due(), None);
    bed.assert_accounts();
}

#[test]
fn delayed_completions_keep_order_and_due_time() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    bed.nic.inject("delay 1000000".parse().unwrap());
    assert!(bed.protect(handle, datagrams(&wrapping, &[1, 2, 3])).is_empty());
    let mut wire = Batch::new();
    let due = bed.nic.next_due().unwrap();
    bed.nic.complete(Moment(due.0 - 1), &mut wire, &mut bed.queues);
    assert!(wire.is_empty());
    bed.nic.complete(due, &mut wire, &mut bed.queues);
    let right = TestGatewayPair::new(&wrapping).right.inbound(wire.drain().collect());
    assert_eq!(bytes_of(&right), bytes_of(&datagrams(&wrapping, &[1, 2, 3])));
}

#[test]
fn reordered_completions_swap_with_successor() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    bed.nic.inject(Fault::Reorder(1));
    let wire = bed.protect(handle, datagrams(&wrapping, &[1, 2, 3]));
    let numbers: Vec<_> = wire.iter().map(|packet| packet.bytes()[27]).collect();
    assert_eq!(numbers, [2, 1, 3]);
}

#[test]
fn wrong_decryption_is_named_in_both_kinds() {
    let wrapping = IpsecSetup::tunnel4();
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let plain = datagrams(&wrapping, &[64]);
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let mut bed = TestBed::new("unlimited");
        let handle = bed.add_receiving(&wrapping, kind);
        bed.nic.inject(Fault::WrongDecryptions(2));
        let wire = (1..=3).map(|number| sender.esp(&plain[0], number)).collect();
        let received = bed.receive(wire);
        let statuses: Vec<_> =
            received.iter().map(|received| received.metadata.unwrap().status).collect();
        let (good, bad) = (DeviceStatus::Success, DeviceStatus::AuthFailed);
        match kind {
            OffloadKind::Packet => {
                assert_eq!(statuses, [good]);
                assert_eq!(bed.nic.drops().of(NicDrop::RxAuthFailed), 2);
            }
            OffloadKind::Crypto => assert_eq!(statuses, [bad, bad, good]),
        }
        assert_eq!(bed.counts(handle).failures.integrity_failed, 2);
    }
}

#[test]
fn lost_event_fault_suppresses_events() {
    let mut bed = TestBed::new("unlimited");
    bed.nic.inject(Fault::LostEvents(1));
    bed.nic.set_link(LinkState::Down, &mut bed.pool);
    bed.nic.set_link(LinkState::Down, &mut bed.pool);
    bed.nic.set_link(LinkState::Up, &mut bed.pool);
    assert_eq!(bed.events(), [NicEvent::LinkUp]);
}

#[test]
fn full_and_busy_faults_refuse_given_times() {
    let wrapping = IpsecSetup::transport4();
    let sa = |kind| offloaded(wrapping.sa(PairDirection::LeftToRight, 1), kind, Direction::In);
    let refusal = |bed: &mut TestBed, kind| {
        let refused = bed.port().add_state(&sa(kind), NOW).err();
        refused.map(|refusal| (refusal.errno.number(), refusal.text))
    };
    let text = |number, text: &str| Some((number, text.to_owned()));
    for (profile, words) in [
        ("niantic", "No space for SA in Rx table!"),
        ("unlimited", "Device failed to offload this state"),
    ] {
        let mut bed = TestBed::new(profile);
        bed.nic.inject(Fault::FullTables(2));
        for expected in [text(28, words), text(28, words), None] {
            assert_eq!(refusal(&mut bed, OffloadKind::Crypto), expected);
        }
    }
    let mut bed = TestBed::new("connectx6dx");
    bed.nic.inject(Fault::Busy(1));
    assert_eq!(refusal(&mut bed, OffloadKind::Crypto), None, "crypto does not need it alone");
    let busy = text(16, "Device failed to offload this state");
    assert_eq!(refusal(&mut bed, OffloadKind::Packet), busy);
    assert_eq!(refusal(&mut bed, OffloadKind::Packet), None);
    let mut policy = wrapping.policy(Direction::Out, PairDirection::LeftToRight);
    let device = "nic0".into();
    policy.offload = Some(Offload { kind: OffloadKind::Packet, device, direction: Direction::Out });
    for (fault, number) in [(Fault::Busy(1), 16), (Fault::FullTables(1), 28)] {
        bed.nic.inject(fault);
        let refusal = bed.port().add_policy(&policy).unwrap_err();
        let expected = (number, "Device failed to offload this policy");
        assert_eq!((refusal.errno.number(), refusal.text.as_str()), expected);
    }
    assert!(bed.port().add_policy(&policy).is_ok());
}
