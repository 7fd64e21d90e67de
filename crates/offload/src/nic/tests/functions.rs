//! Virtual functions: trust, shares of the tables, and packets in both directions.

use super::*;
use crate::{Refusal, RxQueueId, TableSizes};

const GUEST: DeviceId = DeviceId(70);

fn bed(trust: Trust, share: TableSizes) -> TestBed {
    let profile = Profile::by_name("niantic").unwrap();
    let addresses = vec![IpsecSetup::transport4().hosts(PairDirection::RightToLeft).0];
    let guest = VirtualFunction { device: GUEST, trust, share, addresses };
    TestBed::of(NicSetup { functions: vec![guest], ..NicSetup::new(profile, NIC) })
}

fn guest(bed: &mut TestBed) -> FunctionPort<'_> {
    bed.nic.function(FunctionId::of_virtual(0)).unwrap()
}

fn state(spi: u32, direction: Direction) -> SaConfig {
    offloaded(
        IpsecSetup::transport4().sa(PairDirection::LeftToRight, spi),
        OffloadKind::Crypto,
        direction,
    )
}

fn refused(outcome: Result<Attached, Refusal>) -> (i32, String) {
    let refusal = outcome.unwrap_err();
    (refusal.errno.number(), refusal.text)
}

#[test]
fn an_untrusted_function_is_refused_until_it_is_trusted() {
    let mut bed = bed(Trust::Untrusted, TableSizes::default());
    let denied = (13, "Device failed to offload this state".to_owned());
    assert_eq!(refused(guest(&mut bed).add_state(&state(1, Direction::In), NOW)), denied);
    let policy = IpsecSetup::transport4().policy(Direction::In, PairDirection::LeftToRight);
    assert_eq!(guest(&mut bed).add_policy(&policy).unwrap_err().errno.number(), 13);
    bed.nic.set_trust(FunctionId::of_virtual(0), Trust::Trusted);
    assert!(guest(&mut bed).add_state(&state(1, Direction::In), NOW).is_ok());
    assert_eq!(bed.nic.states(), (1, 0));
}

#[test]
fn function_share_fills_before_device() {
    let share = TableSizes { receive: Some(2), transmit: Some(1), ..TableSizes::default() };
    let mut bed = bed(Trust::Trusted, share);
    let add = |bed: &mut TestBed, spi, direction| guest(bed).add_state(&state(spi, direction), NOW);
    let Ok(Attached::Device(first)) = add(&mut bed, 1, Direction::In) else { panic!("room") };
    assert!(add(&mut bed, 2, Direction::In).is_ok());
    let rx = (28, "No space for SA in Rx table!".to_owned());
    assert_eq!(refused(add(&mut bed, 3, Direction::In)), rx);
    assert!(add(&mut bed, 1, Direction::Out).is_ok());
    let tx = (28, "No space for SA in Tx table".to_owned());
    assert_eq!(refused(add(&mut bed, 2, Direction::Out)), tx);
    assert!(bed.port().add_state(&state(9, Direction::In), NOW).is_ok());
    // A function can only delete its own SAs.
    bed.port().delete_state(first);
    assert_eq!(refused(add(&mut bed, 3, Direction::In)), rx);
    guest(&mut bed).delete_state(first);
    assert!(add(&mut bed, 3, Direction::In).is_ok());
}

#[test]
fn both_directions_work_and_each_function_has_its_own() {
    let wrapping = IpsecSetup::transport4();
    let mut bed = bed(Trust::Trusted, TableSizes::default());
    let into = guest(&mut bed).add_state(&state(FIRST_SPI, Direction::In), NOW).unwrap();
    let out = guest(&mut bed).add_state(&state(FIRST_SPI, Direction::Out), NOW).unwrap();
    let (Attached::Device(into), Attached::Device(out)) = (into, out) else { panic!("software") };
    guest(&mut bed).set_iv_prefix(out, prefix());
    for handle in [into, out] {
        guest(&mut bed).open_state(handle, &SaProgress::default());
    }
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let plain = datagrams(&wrapping, &[64]);
    let held: Vec<_> = bed.nic.held().map(|held| (held.handle, held.function)).collect();
    let whose = FunctionId::of_virtual(0);
    assert_eq!(held, [(into, whose), (out, whose)]);
    // Out: only by its own interface.
    let hand = |device| {
        let task = OffloadTask::Encrypt { sequence: 1 };
        let packet =
            Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI)).frame(&plain[0], 1).0;
        OffloadedPacket { packet, handover: OffloadOrder { device, handle: out, task } }
    };
    assert!(bed.transmit(vec![hand(NIC)]).is_empty());
    assert_eq!(bed.nic.drops().of(NicDrop::TxWrongDevice), 1);
    let expected = sender.esp(&plain[0], 1);
    assert_eq!(bed.transmit(vec![hand(GUEST)])[0].bytes(), expected.bytes());
    // In: to its own queue, with its own interface in the mark; plain packets by address.
    let mut wire: Batch = [sender.esp(&plain[0], 2)].into_iter().chain(copies(&plain)).collect();
    bed.nic.receive(&mut wire, NOW, &mut bed.pool, &mut bed.queues);
    let queue = bed.queues.of(FunctionId::of_virtual(0), RxQueueId(0)).unwrap();
    let marks: Vec<_> = queue.drain(..).map(|received| received.metadata).collect();
    let mark = marks[0].unwrap();
    assert_eq!((mark.device, mark.handle), (GUEST, Some(into)));
    assert_eq!((marks.len(), marks[1]), (2, None));
    assert_eq!(bed.queues.drain().count(), 0);
}

#[test]
fn device_link_down_affects_all_functions() {
    let mut bed = bed(Trust::Untrusted, TableSizes::default());
    bed.nic.set_link(LinkState::Down, &mut bed.pool);
    let mut events = Vec::new();
    guest(&mut bed).take_events(&mut events);
    assert_eq!(events, [NicEvent::LinkDown]);
    assert_eq!(bed.events(), [NicEvent::LinkDown]);
}

/// As after `ip link set nic0v0 down`, or when its netdev is deleted.
#[test]
fn function_link_down_affects_only_that_function() {
    let wrapping = IpsecSetup::transport4();
    let mut bed = bed(Trust::Trusted, TableSizes::default());
    let vf = FunctionId::of_virtual(0);
    let mut handles = Vec::new();
    for (spi, direction) in [(FIRST_SPI, Direction::Out), (FIRST_SPI + 1, Direction::In)] {
        let Ok(Attached::Device(handle)) = guest(&mut bed).add_state(&state(spi, direction), NOW)
        else {
            panic!("software")
        };
        guest(&mut bed).set_iv_prefix(handle, prefix());
        guest(&mut bed).open_state(handle, &SaProgress::default());
        handles.push(handle);
    }
    let own = bed.add(state(FIRST_SPI + 2, Direction::Out), OffloadKind::Crypto, Direction::Out);
    let sender = |spi| Sender::new(&wrapping.sa(PairDirection::LeftToRight, spi));
    let plain = datagrams(&wrapping, &[64]);
    let encrypt = |bed: &mut TestBed, handle, spi, device| {
        let packet = sender(spi).frame(&plain[0], 1).0;
        let handover = OffloadOrder { device, handle, task: OffloadTask::Encrypt { sequence: 1 } };
        bed.transmit(vec![OffloadedPacket { packet, handover }]).len()
    };
    let guests = bed.nic.device_of(vf).unwrap();
    assert_eq!(encrypt(&mut bed, handles[0], FIRST_SPI, guests), 1);
    assert_eq!(bed.receive(vec![sender(FIRST_SPI + 1).esp(&plain[0], 1)]).len(), 1);

    bed.nic.inject(Fault::Delay(Duration::from_secs(1)));
    assert_eq!(encrypt(&mut bed, handles[0], FIRST_SPI, guests), 0, "it is late");
    bed.nic.set_function_link(vf, LinkState::Down, &mut Pool::new());
    bed.nic.inject(Fault::Delay(Duration::ZERO));
    assert_eq!(bed.nic.drops().of(NicDrop::TxLinkDown), 1, "what was late");
    let told = |bed: &mut TestBed| {
        let mut events = Vec::new();
        guest(bed).take_events(&mut events);
        (events, bed.events())
    };
    assert_eq!(told(&mut bed), (vec![NicEvent::LinkDown], Vec::new()));
    assert_eq!(encrypt(&mut bed, handles[0], FIRST_SPI, guests), 0);
    assert_eq!(bed.receive(vec![sender(FIRST_SPI + 1).esp(&plain[0], 2)]).len(), 0);
    assert_eq!(bed.nic.drops().of(NicDrop::TxLinkDown), 2);
    assert_eq!(bed.nic.drops().of(NicDrop::RxLinkDown), 1);
    assert_eq!(encrypt(&mut bed, own, FIRST_SPI + 2, NIC), 1, "the device itself goes on");

    bed.nic.set_link(LinkState::Down, &mut Pool::new());
    bed.nic.set_function_link(vf, LinkState::Up, &mut Pool::new());
    assert_eq!(told(&mut bed), (Vec::new(), vec![NicEvent::LinkDown]), "down it was");
    bed.nic.set_link(LinkState::Up, &mut Pool::new());
    assert_eq!(told(&mut bed), (vec![NicEvent::LinkUp], vec![NicEvent::LinkUp]));
    assert_eq!(encrypt(&mut bed, handles[0], FIRST_SPI, guests), 1);
}
