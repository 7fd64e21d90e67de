//! Datagrams whose fragments span a rekey: the first by the old SA, the last by its successor.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::net::IpAddr;

use uxfrm_engine::{
    Direction, DropReason, Family, IfId, Mark, Mode, PortMask, Reqid, SaConfig, SaFlags, Selector,
    Spi, UdpEncap, UdpEncapKind,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{EspSuite, FIRST_SPI, IpsecSetup, PairDirection, TestGatewayPair, packets};

const NEXT_SPI: u32 = FIRST_SPI + 2;

fn datagram(setup: &IpsecSetup) -> Vec<u8> {
    let (source, destination) = setup.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    packets::udp_bytes(&end(source, 7), &end(destination, 9), &[7; 2000])
}

/// Sends two fragments by different SAs; the second SA is `next` at the receiver. Returns what the
/// host gets.
fn across(setup: &IpsecSetup, pair: &mut TestGatewayPair, next: SaConfig) -> Vec<PacketBuf> {
    let mut fragments = packets::fragments(&datagram(setup), 1200);
    let last = fragments.pop().unwrap();
    assert!(pair.left_to_right(fragments).is_empty());
    pair.right.add_sa(next);
    pair.left.add_sa(setup.sa(PairDirection::LeftToRight, NEXT_SPI));
    pair.left_to_right(vec![last])
}

fn setups() -> Vec<IpsecSetup> {
    let tunnel = |inner| IpsecSetup::new(Mode::Tunnel, inner, Family::V4);
    vec![
        tunnel(Family::V4),
        tunnel(Family::V6),
        IpsecSetup { encap: Some(UdpEncapKind::Esp), ..tunnel(Family::V4) },
    ]
}

#[test]
fn datagram_may_span_a_rekey() {
    for setup in setups() {
        let mut pair = TestGatewayPair::new(&setup);
        let next = setup.sa(PairDirection::LeftToRight, NEXT_SPI);
        let arrived = across(&setup, &mut pair, next);
        assert_eq!(arrived.len(), 1, "{setup:?}: {:?}", pair.right.reasons());
        assert!(arrived[0].bytes() == datagram(&setup));
        pair.assert_accounts();
    }
}

/// Each is another peer, of another policy, or has a wider selector.
#[test]
fn unrelated_sa_adds_no_fragments() {
    let setup = setups().pop().unwrap();
    let like = || setup.sa(PairDirection::LeftToRight, NEXT_SPI);
    let encap = UdpEncap { source_port: 4501, ..like().encap.unwrap() };
    let narrow = Selector { destination_port: PortMask::exactly(9), ..like().selector.unwrap() };
    let mark = Mark { value: 1, mask: 1 };
    let elsewhere: IpAddr = [192, 0, 2, 77].into();
    let mut without_window = like();
    without_window.replay.window = 0;
    for other in [
        SaConfig { source: elsewhere, ..like() },
        SaConfig { source: [0; 4].into(), ..like() },
        SaConfig { reqid: Reqid(2), ..like() },
        SaConfig { encap: Some(encap), ..like() },
        SaConfig { encap: Some(UdpEncap { source_port: 0, ..encap }), ..like() },
        SaConfig { selector: Some(narrow), ..like() },
        SaConfig { if_id: IfId(3), ..like() },
        SaConfig { output_mark: mark, ..like() },
        SaConfig { flags: SaFlags::ICMP, ..like() },
        without_window,
    ] {
        let what = format!("{other:?}");
        let mut pair = TestGatewayPair::new(&setup);
        assert!(across(&setup, &mut pair, other).is_empty(), "{what}");
        assert_eq!(pair.right.worker.inward().held, 2, "{what}: {:?}", pair.right.reasons());
    }
    // Another algorithm may be weaker.
    let mut pair = TestGatewayPair::new(&setup);
    let other = IpsecSetup { suite: EspSuite::NullSha1, ..setup.clone() };
    assert!(across(&other, &mut pair, other.sa(PairDirection::LeftToRight, NEXT_SPI)).is_empty());
    assert_eq!(pair.right.worker.inward().held, 2);
}

/// Without a reqid nothing ties two SAs together; a wildcard source does not identify a peer.
#[test]
fn sas_without_reqid_are_no_family() {
    let setup = IpsecSetup::tunnel4();
    let changes: [fn(&mut SaConfig); 2] =
        [|sa| sa.reqid = Reqid(0), |sa| sa.source = [0; 4].into()];
    for change in changes {
        let changed = |spi| {
            let mut state = setup.sa(PairDirection::LeftToRight, spi);
            change(&mut state);
            state
        };
        let mut pair = TestGatewayPair::without_sas(&setup);
        pair.left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
        pair.right.add_sa(changed(FIRST_SPI));
        assert!(across(&setup, &mut pair, changed(NEXT_SPI)).is_empty());
        assert_eq!(pair.right.worker.inward().held, 2, "{:?}", pair.right.reasons());
    }
}

#[test]
fn template_with_spi_refuses_datagram_across_rekey() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::new(&setup);
    let mut policy = setup.policy(Direction::In, PairDirection::LeftToRight);
    policy.templates[0].spi = Spi(NEXT_SPI);
    let now = pair.right.now;
    pair.right.database.apply(now, |change| change.update_policy(policy)).unwrap();
    let next = setup.sa(PairDirection::LeftToRight, NEXT_SPI);
    assert!(across(&setup, &mut pair, next).is_empty());
    assert_eq!(pair.right.reasons(), [(DropReason::InOtherState, 1)]);
}
