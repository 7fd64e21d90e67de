//! Plain fragments to be forwarded, whose ports, and in IPv6 also protocols, are unknown.
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
fn forwarding(setup: &IpsecSetup, change: impl FnOnce(&mut Policy)) -> TestGateway {
    let mut right = TestGatewayPair::new(setup).right;
    let mut policy = setup.policy(Direction::Forward, PairDirection::LeftToRight);
    change(&mut policy);
    right.database.apply(right.now, |to| {
        to.flush_policies(PolicyKind::Main);
        to.add_policy(policy).unwrap();
    });
    right
}

/// Datagrams to port 9 of a host behind the right gateway, in fragments.
fn in_fragments(family: Family) -> Vec<PacketBuf> {
    let (source, destination) = match family {
        Family::V4 => ("10.1.0.5:7", "10.2.0.5:9"),
        Family::V6 => ("[fd00:1::5]:7", "[fd00:2::5]:9"),
    };
    let whole = packets::udp_bytes(source, destination, &[1; 40]);
    let mut fragments = packets::fragments(&whole, 16);
    if family == Family::V6 {
        // Whole, and behind the header of a fragment all the same.
        fragments.extend(packets::fragments(&whole, 48));
        for protocol in [0, 6, 17, 43, 44, 50, 60, 99, 255] {
            let mut later = PacketBuf::from_slice(fragments[1].bytes());
            later.bytes_mut()[40] = protocol;
            fragments.push(later);
        }
    }
    fragments
}

#[test]
fn plain_fragments_are_refused_if_policy_may_match() {
    let by_port = |policy: &mut Policy| {
        policy.selector.protocol = 17;
        policy.selector.destination_port = PortMask::exactly(9);
    };
    let by_protocol = |policy: &mut Policy| policy.selector.protocol = 17;
    for family in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
        for change in [by_port as fn(&mut Policy), by_protocol] {
            for fragment in in_fragments(family) {
                let mut blocking = forwarding(&setup, |policy| {
                    change(policy);
                    policy.action = Action::Block;
                    policy.templates.clear();
                });
                let name = format!("{:x?}", fragment.bytes());
                let again = PacketBuf::from_slice(fragment.bytes());
                let refused = Err(DropReason::InUnprotected);
                assert_eq!(
                    inbound_outcome(forwarding(&setup, change), vec![fragment]),
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
        let setup = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
        let elsewhere = |policy: &mut Policy| {
            policy.selector.protocol = 17;
            policy.selector.destination_port = PortMask::exactly(9);
            policy.selector.destination = setup.networks(PairDirection::RightToLeft).1;
        };
        let optional = |policy: &mut Policy| {
            policy.selector.protocol = 17;
            policy.templates[0].level = TemplateLevel::Use;
        };
        for fragment in in_fragments(family).into_iter().take(3) {
            let again = PacketBuf::from_slice(fragment.bytes());
            assert_eq!(inbound_outcome(forwarding(&setup, elsewhere), vec![fragment]), Ok(()));
            assert_eq!(inbound_outcome(forwarding(&setup, optional), vec![again]), Ok(()));
        }
    }
}

/// Nothing proves a later fragment's next header: a bypass for a protocol lets no such fragment
/// pass a protect policy for all.
#[test]
fn protocol_policy_does_not_match_later_ipv6_fragment() {
    let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    let refused = Err(DropReason::InUnprotected);
    for (number, expected) in [Ok(()), refused, refused].into_iter().enumerate() {
        let mut right = forwarding(&setup, |_| {});
        let mut first = setup.policy(Direction::Forward, PairDirection::LeftToRight);
        (first.selector.protocol, first.priority) = (17, Priority(1));
        first.templates.clear();
        right.add_policy(first);
        let fragment = in_fragments(Family::V6).swap_remove(number);
        assert_eq!(inbound_outcome(right, vec![fragment]), expected, "fragment {number}");
    }
}
