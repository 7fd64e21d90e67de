//! Plain pieces of packets that are to be forwarded, which leave ports and in IPv6 also protocols
//! untold.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use uxfrm_engine::{
    Action, Direction, DropReason, Family, Mode, Policy, PolicyKind, PortMask, Priority,
    TemplateLevel,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{
    IpsecSetup, PairDirection, TestGateway, TestGatewayPair, inbound_outcome, packets,
};

/// The right gateway with this policy for what it forwards, and no other.
fn forwarding(wrapping: &IpsecSetup, change: impl FnOnce(&mut Policy)) -> TestGateway {
    let mut right = TestGatewayPair::new(wrapping).right;
    let mut policy = wrapping.policy(Direction::Forward, PairDirection::LeftToRight);
    change(&mut policy);
    right.database.apply(right.now, |to| {
        to.flush_policies(PolicyKind::Main);
        to.add_policy(policy).unwrap();
    });
    right
}

/// Datagrams to port 9 of a host behind the right gateway, in pieces.
fn in_pieces(family: Family) -> Vec<PacketBuf> {
    let (source, destination) = match family {
        Family::V4 => ("10.1.0.5:7", "10.2.0.5:9"),
        Family::V6 => ("[fd00:1::5]:7", "[fd00:2::5]:9"),
    };
    let whole = packets::udp_bytes(source, destination, &[1; 40]);
    let mut pieces = packets::fragments(&whole, 16);
    if family == Family::V6 {
        // Whole, and behind the header of a fragment all the same.
        pieces.extend(packets::fragments(&whole, 48));
        for protocol in [0, 6, 17, 43, 44, 50, 60, 99, 255] {
            let mut later = PacketBuf::from_slice(pieces[1].bytes());
            later.bytes_mut()[40] = protocol;
            pieces.push(later);
        }
    }
    pieces
}

#[test]
fn plain_fragments_are_refused_if_policy_may_match() {
    let by_port = |policy: &mut Policy| {
        policy.selector.protocol = 17;
        policy.selector.destination_port = PortMask::exactly(9);
    };
    let by_protocol = |policy: &mut Policy| policy.selector.protocol = 17;
    for family in [Family::V4, Family::V6] {
        let wrapping = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
        for change in [by_port as fn(&mut Policy), by_protocol] {
            for piece in in_pieces(family) {
                let mut blocking = forwarding(&wrapping, |policy| {
                    change(policy);
                    policy.action = Action::Block;
                    policy.templates.clear();
                });
                let name = format!("{:x?}", piece.bytes());
                let again = PacketBuf::from_slice(piece.bytes());
                let refused = Err(DropReason::InTemplateMismatch);
                assert_eq!(
                    inbound_outcome(forwarding(&wrapping, change), vec![piece]),
                    refused,
                    "{name}"
                );
                assert!(blocking.inbound(vec![again]).is_empty(), "{name}");
                assert_eq!(blocking.reasons(), [(DropReason::InPolicyBlock, 1)], "{name}");
            }
        }
    }
}

#[test]
fn plain_fragments_pass_without_refusing_policy() {
    for family in [Family::V4, Family::V6] {
        let wrapping = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
        let elsewhere = |policy: &mut Policy| {
            policy.selector.protocol = 17;
            policy.selector.destination_port = PortMask::exactly(9);
            policy.selector.destination = wrapping.networks(PairDirection::RightToLeft).1;
        };
        let optional = |policy: &mut Policy| {
            policy.selector.protocol = 17;
            policy.templates[0].level = TemplateLevel::Use;
        };
        for piece in in_pieces(family).into_iter().take(3) {
            let again = PacketBuf::from_slice(piece.bytes());
            assert_eq!(inbound_outcome(forwarding(&wrapping, elsewhere), vec![piece]), Ok(()));
            assert_eq!(inbound_outcome(forwarding(&wrapping, optional), vec![again]), Ok(()));
        }
    }
}

/// The next header of a later piece is its sender's word: what lets a protocol pass lets no such
/// piece pass a policy for all.
#[test]
fn protocol_policy_does_not_match_later_ipv6_fragment() {
    let wrapping = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    let refused = Err(DropReason::InTemplateMismatch);
    for (number, expected) in [Ok(()), refused, refused].into_iter().enumerate() {
        let mut right = forwarding(&wrapping, |_| {});
        let mut first = wrapping.policy(Direction::Forward, PairDirection::LeftToRight);
        (first.selector.protocol, first.priority) = (17, Priority(1));
        first.templates.clear();
        right.add_policy(first);
        let piece = in_pieces(Family::V6).swap_remove(number);
        assert_eq!(inbound_outcome(right, vec![piece]), expected, "piece {number}");
    }
}
