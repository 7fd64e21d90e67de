//! Steering of received packets: by inner packet in both kinds, by SPI, VLAN tag and flex field.

use uxfrm_packet::Protocol;

use super::*;
use crate::RxQueueId;

/// Output queues of packets.
fn queues(bed: &mut TestBed, packets: Vec<PacketBuf>) -> Vec<usize> {
    let mut batch: Batch = packets.into_iter().collect();
    bed.nic.receive(&mut batch, NOW, &mut bed.pool, &mut bed.queues);
    bed.assert_accounts();
    let queues = bed.queues.physical().enumerate();
    queues.flat_map(|(place, queue)| queue.drain(..).map(move |_| place)).collect()
}

fn flow(wrapping: &IpsecSetup, port: u16) -> PacketBuf {
    let (source, destination) = wrapping.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    packets::udp(&end(source, port), &end(destination, 9), b"flow")
}

#[test]
fn flows_of_one_sa_spread_by_inner_tuple() {
    for (wrapping, kind) in [
        (IpsecSetup::tunnel4(), OffloadKind::Packet),
        // In kind crypto the engine has the window, if there is one.
        (IpsecSetup { window: 0, ..IpsecSetup::tunnel4() }, OffloadKind::Crypto),
        (IpsecSetup::transport4(), OffloadKind::Packet),
        (IpsecSetup { window: 0, ..IpsecSetup::transport4() }, OffloadKind::Crypto),
    ] {
        let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
        let mut bed = TestBed::new("unlimited");
        let _ = bed.add_receiving(&wrapping, kind);
        let mut used = std::collections::BTreeSet::new();
        for port in 1..60 {
            let plain = flow(&wrapping, port);
            let esp = sender.esp(&plain, port.into());
            let queue = queues(&mut bed, vec![esp]);
            used.extend(queue.clone());
            assert_eq!(queues(&mut bed, vec![plain]), queue, "{kind:?}");
        }
        assert!(used.len() > 20, "{} queues for 59 flows", used.len());
    }
}

#[test]
fn flow_rules_match_inner_tuple_and_outer_spi() {
    let wrapping = IpsecSetup::transport4();
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut bed = TestBed::new("niantic");
    let _ = bed.add_receiving(&wrapping, OffloadKind::Crypto);
    let mut number = 0;
    let mut steered = |bed: &mut TestBed, port| {
        number += 1;
        queues(bed, vec![sender.esp(&flow(&wrapping, port), number)])
    };
    let rule = |bed: &mut TestBed, line: &str| bed.nic.change_rule(line.parse().unwrap());
    rule(&mut bed, "flow-type udp4 src-port 52790 action 14 loc 5").unwrap();
    assert_eq!(steered(&mut bed, 52790), [14]);
    rule(&mut bed, "flow-type esp4 spi 0x1000 action 3 loc 7").unwrap();
    assert_eq!(steered(&mut bed, 7), [3]);
    assert_eq!(steered(&mut bed, 52790), [14], "the lower place decides");
    rule(&mut bed, "flow-type udp4 src-port 66 action -1 loc 6").unwrap();
    assert_eq!(steered(&mut bed, 66), [0; 0]);
    assert_eq!(bed.nic.drops().of(NicDrop::RxFlowRule), 1);
    rule(&mut bed, "delete 5").unwrap();
    assert_eq!(steered(&mut bed, 52790), [3]);
    assert_eq!(bed.nic.rules().count(), 2);
    // Other hosts' ESP, never decrypted, is steered by its SPI too.
    let ends = wrapping.hosts(PairDirection::LeftToRight);
    let body = [&0x1000_u32.to_be_bytes()[..], &[0; 60]].concat();
    let mut alien = stand_without_states();
    rule(&mut alien, "flow-type esp4 spi 0x1000 action 3").unwrap();
    let packet = packets::ip(ends.0, ends.1, Protocol::ESP, &body);
    assert_eq!(queues(&mut alien, vec![PacketBuf::from_slice(&packet)]), [3]);
}

fn stand_without_states() -> TestBed {
    TestBed::new("niantic")
}

#[test]
fn frames_have_tags_and_the_flex_field_is_counted_from_their_start() {
    let wrapping = IpsecSetup::tunnel4();
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let profile = Profile::by_name("unlimited").unwrap();
    let mut profile = profile;
    profile.steering.as_mut().unwrap().flex_field = true;
    let setup = NicSetup { framing: Framing::Ethernet, ..NicSetup::new(profile, NIC) };
    let mut bed = TestBed::of(setup);
    let _ = bed.add_receiving(&wrapping, OffloadKind::Packet);
    for line in [
        "flow-type ip4 vlan 0x2064 m 0xf000 action 9 loc 2",
        "flow-type ip4 user-def 0x2a0077 action 5 loc 1",
        "flow-type ip4 action 1 loc 3",
    ] {
        bed.nic.change_rule(line.parse().unwrap()).unwrap();
    }
    let frame = |mut packet: PacketBuf, tag: &[u8]| {
        let addresses = [[2; 6], [4; 6]].concat();
        let header = [addresses.as_slice(), tag, &[8, 0]].concat();
        packet.push(header.len()).unwrap().copy_from_slice(&header);
        packet
    };
    let tag = [0x81, 0, 0x20, 0x64];
    let datagram = |first: u8| packets::udp("10.1.0.1:7", "10.2.0.1:9", &[0, first]);
    // 42 bytes of Ethernet, IPv4 and UDP precede the inner packet's payload.
    for (payload, tag, queue) in
        [(0x77, &[][..], 5), (0x78, &[][..], 1), (0x78, &tag[..], 9), (0x77, &tag[..], 9)]
    {
        let plain = frame(datagram(payload), tag);
        assert_eq!(queues(&mut bed, vec![plain]), [queue], "plain {payload:x} {tag:?}");
    }
    let esp = frame(sender.esp(&datagram(0x77), 1), &[]);
    assert_eq!(queues(&mut bed, vec![esp]), [5]);
    let arp = frame(datagram(1), &[0x08, 0x06]);
    assert_eq!(queues(&mut bed, vec![arp]), [0; 0]);
    assert_eq!(bed.nic.drops().of(NicDrop::RxNotIp), 1);
}

#[test]
fn a_device_without_a_flow_director_has_one_queue() {
    let mut bed = TestBed::new("netdevsim");
    let packets = (1..9).map(|port| flow(&IpsecSetup::tunnel4(), port)).collect();
    assert_eq!(queues(&mut bed, packets), [0; 8]);
    let line = "flow-type ip4 action 0".parse().unwrap();
    assert_eq!(bed.nic.change_rule(line), Err(RuleError::NoFlowDirector));
    assert!(bed.queues.of(FunctionId::PHYSICAL, RxQueueId(1)).is_none());
}
