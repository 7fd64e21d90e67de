//! Devices that go down: nothing leaks, and what comes back is taken.

use uxfrm_engine::{
    Action, DeviceEvent, Direction, DropReason, LinkDown, OffloadKind, Policy, PolicyKind, SaConfig,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, PairDirection, PlaintextDetector, Rng, TestGateway, TestGatewayPair,
    packets,
};

use crate::nic::{NIC0, NIC1, Nics, offload};

const SECRET: &[u8] = b"nobody else may read this";

fn datagram() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", SECRET)
}

fn policy(direction: Direction, way: PairDirection) -> Policy {
    let offload = offload(OffloadKind::Packet, "nic0", direction);
    Policy { offload, ..IpsecSetup::tunnel4().policy(direction, way) }
}

fn state(kind: OffloadKind) -> SaConfig {
    let offload = offload(kind, "nic0", Direction::Out);
    SaConfig { offload, ..IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI) }
}

/// The left gateway without policies.
fn bare() -> (TestGateway, Nics) {
    let (mut left, nics) =
        (TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left, Nics::default());
    left.database.set_devices(Box::new(nics.clone()));
    left.database.apply(left.now, |change| change.flush_policies(PolicyKind::Main));
    (left, nics)
}

fn on_device() -> (TestGateway, Nics) {
    let (mut left, nics) = bare();
    left.add_policy(policy(Direction::Out, PairDirection::LeftToRight));
    left.add_policy(policy(Direction::In, PairDirection::RightToLeft));
    left.add_sa(state(OffloadKind::Packet));
    (left, nics)
}

fn down(left: &mut TestGateway, nics: &Nics) {
    nics.go_down(NIC0);
    left.database.hear(NIC0, DeviceEvent::Down, left.now, &mut left.events);
}

#[test]
fn blocking_stand_in_lasts_until_policy_returns() {
    let (mut left, nics) = on_device();
    left.database.hear(NIC1, DeviceEvent::Down, left.now, &mut left.events);
    assert_eq!(left.database.snapshot().sad.len(), 1, "another device");
    down(&mut left, &nics);
    assert_eq!(left.database.snapshot().sad.len(), 0);
    let policies: Vec<_> = left.database.snapshot().spd.iter().cloned().collect();
    assert_eq!(policies.len(), 2);
    for entry in policies {
        assert_eq!((entry.action(), entry.templates().len()), (Action::Block, 0));
        assert_eq!(entry.policy().offload.unwrap().device, "nic0", "it says whose place it has");
    }
    let (wire, host) = left.outbound(vec![datagram()]);
    assert_eq!((wire.len(), host.len(), left.handed.len()), (0, 0, 0));
    assert!(left.inbound(vec![packets::udp("10.2.0.1:9", "10.1.0.1:7", SECRET)]).is_empty());
    let blocked = [(DropReason::OutPolicyBlock, 1), (DropReason::InPolicyBlock, 1)];
    assert_eq!(left.reasons(), blocked);
    // As a key manager does it that knows of nothing: no EEXIST.
    left.add_policy(policy(Direction::Out, PairDirection::LeftToRight));
    left.add_sa(state(OffloadKind::Packet));
    left.outbound(vec![datagram()]);
    assert_eq!((left.handed.len(), nics.held()), (1, (1, 1)));
    let again = policy(Direction::Out, PairDirection::LeftToRight);
    let refused = left.database.apply(left.now, |change| change.add_policy(again));
    assert_eq!(refused.unwrap_err().errno(), 17, "now there is one");
}

#[test]
fn stand_in_precedes_software_policies() {
    let (mut left, nics) = on_device();
    let mut bypass = IpsecSetup::tunnel4().policy(Direction::Out, PairDirection::LeftToRight);
    bypass.templates.clear();
    bypass.priority.0 = 1;
    bypass.selector.protocol = 17;
    left.add_policy(bypass);
    down(&mut left, &nics);
    assert!(left.outbound(vec![datagram()]).0.is_empty());
    let update = policy(Direction::Out, PairDirection::LeftToRight);
    left.database.apply(left.now, |change| change.update_policy(update)).unwrap();
    assert_eq!(nics.held(), (0, 1));
    down(&mut left, &nics);
    let snapshot = left.database.snapshot();
    let stand_in =
        snapshot.spd.iter().find(|one| one.device().is_some() && one.direction() == Direction::Out);
    let key = stand_in.unwrap().key();
    left.database.apply(left.now, |change| change.delete_policy(&key)).unwrap();
    assert_eq!(left.outbound(vec![datagram()]).0.len(), 1, "somebody said so");
}

#[test]
fn link_down_release_behaves_like_linux() {
    let (mut left, nics) = on_device();
    left.database.set_link_down(LinkDown::Release);
    down(&mut left, &nics);
    assert_eq!(left.database.snapshot().spd.iter().count(), 0);
    assert_eq!(left.outbound(vec![datagram()]).0.len(), 1, "in plain");
}

/// Link down and up a thousand times under load, with events that come late and key managers that
/// come when they like: what is on the wire is encrypted, and each packet is accounted for.
#[test]
fn no_plaintext_leaves_while_links_flap() {
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let (mut left, nics) = bare();
        let mut rng = Rng::new(kind as u64);
        let mut listener = PlaintextDetector::new(SECRET);
        let out = || match kind {
            OffloadKind::Packet => policy(Direction::Out, PairDirection::LeftToRight),
            OffloadKind::Crypto => {
                IpsecSetup::tunnel4().policy(Direction::Out, PairDirection::LeftToRight)
            }
        };
        left.add_policy(out());
        let (mut sent, mut lost, mut flaps) = (0, 0, 0);
        while flaps < 1000 {
            match rng.below(6) {
                0 => {
                    nics.go_down(NIC0);
                    flaps += 1;
                }
                1 => left.database.hear(NIC0, DeviceEvent::Down, left.now, &mut left.events),
                // Errors: it is there already.
                2 => drop(left.database.apply(left.now, |change| change.add_policy(out()))),
                3 => drop(left.database.apply(left.now, |change| change.add_sa(state(kind)))),
                _ => {
                    let (wire, _) = left.outbound((0..8).map(|_| datagram()).collect());
                    listener.listen(&wire);
                    for handed in left.handed.drain(..) {
                        let on_wire = match kind {
                            OffloadKind::Packet => {
                                let has =
                                    nics.tables().states.contains_key(&handed.handover.handle);
                                has.then_some(())
                            }
                            OffloadKind::Crypto => nics.encrypt(handed).map(|packet| {
                                listener.listen(&[packet]);
                            }),
                        };
                        match on_wire {
                            Some(()) => sent += 1,
                            None => lost += 1,
                        }
                    }
                }
            }
            left.assert_packets_accounted();
        }
        assert_eq!(listener.seen, 0);
        let out = left.worker.outward();
        assert_eq!((out.sent, out.received), (sent + lost, sent + lost + out.dropped));
        assert!(sent > 0 && lost > 0 && out.dropped > 0, "{kind:?}: {sent} {lost} {out:?}");
    }
}
