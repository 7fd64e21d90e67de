//! What is not the same, and why: a test for each row of the table in `docs/offload.md`.

use uxfrm_engine::{Event, LifetimeLimits, SoftHardLimit, UdpEncapKind};
use uxfrm_offload::LinkState;
use uxfrm_packet::{PacketBuf, Pool};
use uxfrm_testkit::IpsecSetup;

use crate::step::Seen;
use crate::{Engine, Keeping, Step, Subject};

fn add() -> Step {
    Step::Add { sent: 0, received: 0, window: Vec::new() }
}

/// The three of them, with states.
fn all(wrapping: &IpsecSetup) -> [Subject; 3] {
    Engine::ALL.map(|engine| {
        let mut subject = Subject::new(engine, wrapping, Keeping::Nobody);
        subject.take(&add());
        subject
    })
}

fn drops(subject: &mut Subject) -> Vec<(&'static str, u64)> {
    let mut seen = Seen::default();
    subject.look(&mut seen);
    seen.drops
}

/// What devices do not take: software cuts it, kind crypto leaves it to software, kind packet has
/// nobody to leave it to.
#[test]
fn fragmentation_is_not_offloaded_in_kind_packet() {
    let long = [7; 1480];
    let sent = all(&IpsecSetup::tunnel4()).each_mut().map(|subject| {
        let plain = vec![subject.datagram(&long)];
        (subject.outbound(plain).len(), drops(subject))
    });
    let [software, crypto, packet] = sent;
    assert!(software.0 > 1 && software.1.is_empty(), "{software:?}");
    assert_eq!(crypto, software);
    assert_eq!(packet, (0, vec![("out_device_unfit", 1)]));
}

/// A device's events may be lost, so its counts are looked at once a second, and limits that are
/// used up are told of then. Software waits for the packet that would pass one.
#[test]
fn hard_limit_is_reported_within_a_second_in_kind_packet() {
    let limits =
        LifetimeLimits { packets: SoftHardLimit { soft: 2, hard: 4 }, ..LifetimeLimits::default() };
    let heard = all(&IpsecSetup { limits, ..IpsecSetup::tunnel4() }).each_mut().map(|subject| {
        subject.take(&Step::Send(4));
        let waited = subject.take(&Step::Wait(1)).events.len();
        (waited, subject.take(&Step::Send(1)).events.len())
    });
    assert_eq!(heard, [(0, 1), (0, 1), (1, 0)]);
}

/// What waits in a device's ring when its state moves: the numbers of the new place begin right
/// behind those that left.
#[test]
fn packets_in_flight_of_moved_sa_are_dropped() {
    let left = all(&IpsecSetup::tunnel4()).each_mut().map(|subject| {
        let plain = vec![subject.datagram(b"one")];
        let through = subject.gateway.outbound(plain).0;
        assert_eq!(subject.move_states(77), None);
        (subject.leave(through).len(), drops(subject))
    });
    let [software, crypto, packet] = left;
    assert_eq!((software, crypto), ((1, Vec::new()), (1, Vec::new())));
    assert_eq!(packet, (0, vec![("out_device_gone", 1)]));
}

/// What waits in a device's ring when its state is deleted leaves, so that a rekey loses nothing.
#[test]
fn packets_in_flight_of_deleted_sa_leave() {
    let left = all(&IpsecSetup::tunnel4()).each_mut().map(|subject| {
        let plain = vec![subject.datagram(b"one")];
        let through = subject.gateway.outbound(plain).0;
        subject.take(&Step::Flush);
        (subject.leave(through).len(), drops(subject))
    });
    assert_eq!(left, [const { (1, Vec::new()) }; 3]);
}

/// What a device has opened when its state goes: who holds it to policies does not know the state
/// any more.
#[test]
fn decrypted_packets_of_deleted_sa_are_dropped() {
    for engine in [Engine::Crypto, Engine::Packet] {
        let mut subject = Subject::new(engine, &IpsecSetup::tunnel4(), Keeping::Nobody);
        subject.take(&add());
        subject.arrive(1);
        subject.take(&Step::Flush);
        assert_eq!(subject.take_received().len(), 0);
        let [(reason, 1)] = drops(&mut subject)[..] else { panic!("one drop") };
        assert!(["in_no_state", "in_device_mark"].contains(&reason), "{engine:?}: {reason}");
    }
}

/// A device takes UDP off, and nobody behind it sees from which port it came.
#[test]
fn nat_remap_is_not_reported_in_kind_packet() {
    let wrapping = IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
    let told = Engine::ALL.map(|engine| {
        let mut subject = Subject::new(engine, &wrapping, Keeping::Nobody);
        subject.take(&add());
        let mut esp = subject.esp(1);
        // UDP's source port, without a checksum over it.
        esp[20..22].copy_from_slice(&4999_u16.to_be_bytes());
        assert_eq!(subject.inbound(vec![PacketBuf::from_slice(&esp)]).len(), 1, "{engine:?}");
        let mut seen = Seen::default();
        subject.look(&mut seen);
        seen.events.iter().filter(|event| matches!(event, Event::Mapping { .. })).count()
    });
    assert_eq!(told, [1, 1, 0]);
}

/// Who hands over for one device what another has: neither sends it, and it is counted as what it
/// is. Software has no device to disagree with.
#[test]
fn handover_to_device_without_sa_is_mismatch() {
    for engine in [Engine::Crypto, Engine::Packet] {
        let mut subject = Subject::new(engine, &IpsecSetup::tunnel4(), Keeping::Nobody);
        subject.take(&add());
        let plain = vec![subject.datagram(b"one")];
        let through = subject.gateway.outbound(plain).0;
        for handed in &mut subject.gateway.handed {
            handed.handover.device.0 += 1;
        }
        assert_eq!(subject.leave(through).len(), 0, "{engine:?}");
        assert_eq!(drops(&mut subject), [("out_device_mismatch", 1)], "{engine:?}");
        assert_eq!(subject.take(&Step::Send(1)).wire.len(), 1, "{engine:?}: the next one leaves");
    }
}

/// Software has no link. Nothing leaves plain, and nothing comes back by itself.
#[test]
fn a_link_that_goes_down_takes_the_states_of_its_device() {
    let left = Engine::ALL.map(|engine| {
        let mut subject = Subject::new(engine, &IpsecSetup::tunnel4(), Keeping::Nobody);
        subject.take(&add());
        let waiting = vec![subject.datagram(b"on its way")];
        let through = subject.gateway.outbound(waiting).0;
        subject.nic().set_link(LinkState::Down, &mut Pool::new());
        let first = subject.leave(through).len();
        let seen = subject.take(&Step::Send(1));
        subject.nic().set_link(LinkState::Up, &mut Pool::new());
        (first, seen.states.len(), subject.take(&Step::Send(1)).wire.len())
    });
    let [_, crypto, packet] = left;
    assert_eq!((crypto, packet), ((0, 0, 0), (0, 0, 0)));
}
