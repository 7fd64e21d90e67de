//! Policies and SAs change between interleaved packets of many SAs: cached verdicts stay valid for
//! unaffected ones only. Each batch is compared with a set of hosts that may pass.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::collections::BTreeSet;

use uxfrm_engine::{
    Action, Direction, DropReason, Mark, Policy, PolicyKey, PolicyName, Prefix, Priority, Reqid,
    SaConfig, SaId, SaProtocol, Selector, Spi, Template,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{IpsecSetup, PairDirection, Rng, TestGatewayPair, packets};

const STATES: u32 = 64;

fn prefix(text: &str, length: u8) -> Prefix {
    Prefix::new(text.parse().unwrap(), length).unwrap()
}

fn state(number: u32) -> SaConfig {
    SaConfig {
        reqid: Reqid(1 + number),
        ..IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, 1 + number)
    }
}

fn policy(direction: Direction, source: Prefix) -> Policy {
    let policy = IpsecSetup::tunnel4().policy(direction, PairDirection::LeftToRight);
    Policy { selector: Selector { source, ..policy.selector }, ..policy }
}

/// A policy that blocks a host.
fn block(host: u32) -> Policy {
    let blocks = policy(Direction::In, prefix(&format!("10.1.0.{host}"), 32));
    Policy { action: Action::Block, priority: Priority(1), templates: Vec::new(), ..blocks }
}

fn key(policy: &Policy) -> PolicyKey {
    PolicyKey {
        direction: policy.direction,
        kind: policy.kind,
        mark: policy.mark,
        if_id: policy.if_id,
        name: PolicyName::Selector(policy.selector),
    }
}

/// A pair with an SA per host on the left, and one policy for all on the right.
fn stage() -> TestGatewayPair {
    let mut pair = TestGatewayPair::without_sas(&IpsecSetup::tunnel4());
    for number in 0..STATES {
        pair.left.add_sa(state(number));
        pair.right.add_sa(state(number));
        let own = policy(Direction::Out, prefix(&format!("10.1.0.{number}"), 32));
        let template = Template { reqid: Reqid(1 + number), ..own.templates[0] };
        pair.left.add_policy(Policy { templates: vec![template], priority: Priority(1), ..own });
    }
    let wide = policy(Direction::In, prefix("10.1.0.0", 16));
    let template = Template { reqid: Reqid(0), ..wide.templates[0] };
    pair.right.add_policy(Policy { templates: vec![template], priority: Priority(2), ..wide });
    pair
}

/// One packet of each SA, all in one batch.
fn round() -> Vec<PacketBuf> {
    let packet = |host| packets::udp(&format!("10.1.0.{host}:7"), "10.2.0.1:9", b"payload");
    (0..STATES).map(packet).collect()
}

#[test]
fn policy_change_revalidates_affected_sas_only() {
    let (mut pair, mut rng) = (stage(), Rng::new(7));
    let (mut blocked, mut gone) = (BTreeSet::new(), BTreeSet::new());
    let (mut by_policy, mut without_state) = (0, 0);
    for step in 0..600_u32 {
        let host = u32::try_from(rng.below(STATES as usize)).unwrap();
        let right = &mut pair.right;
        let id = |number: u32| SaId {
            destination: state(number).id.destination,
            spi: Spi(1 + number),
            protocol: SaProtocol::Esp,
        };
        right.database.apply(right.now, |change| match rng.below(6) {
            0 if blocked.insert(host) => drop(change.add_policy(block(host)).unwrap()),
            1 if blocked.remove(&host) => {
                drop(change.delete_policy(&key(&block(host))).unwrap());
            }
            2 if gone.insert(host) => {
                drop(change.delete_sa(id(host), Mark::default()).unwrap());
            }
            // With numbers that continue the sender's.
            3 if gone.remove(&host) => drop(change.add_sa(state(host)).unwrap()),
            // Nobody's.
            4 => {
                let other = policy(Direction::In, prefix(&format!("172.16.{}.0", step % 250), 24));
                let _exists = change.add_policy(other);
            }
            _ => drop(change.update_sa(state(host))),
        });
        let wire = pair.left.outbound(round()).0;
        let arrived: BTreeSet<u32> =
            pair.right.inbound(wire).iter().map(|packet| u32::from(packet.bytes()[15])).collect();
        let expected: BTreeSet<u32> =
            (0..STATES).filter(|host| !blocked.contains(host) && !gone.contains(host)).collect();
        assert_eq!(arrived, expected, "step {step}");
        by_policy += blocked.difference(&gone).count() as u64;
        without_state += gone.len() as u64;
        assert_eq!(pair.right.drops(DropReason::InPolicyBlock), by_policy);
        assert_eq!(pair.right.drops(DropReason::InNoState), without_state);
        if blocked.len() + gone.len() > 20 {
            pair.right.database.apply(pair.right.now, |change| {
                for host in std::mem::take(&mut blocked) {
                    change.delete_policy(&key(&block(host))).unwrap();
                }
                for host in std::mem::take(&mut gone) {
                    change.add_sa(state(host)).unwrap();
                }
            });
        }
    }
    assert!(by_policy > 500 && without_state > 500, "{by_policy}, {without_state}: too few");
}

/// The updated policy may reuse the address of the old one, whose packets passed.
#[test]
fn new_policy_with_other_template_stops_cached_pass() {
    let mut pair = stage();
    let asking = |reqid| {
        let wide = policy(Direction::In, prefix("10.1.0.0", 16));
        let template = Template { reqid: Reqid(reqid), ..wide.templates[0] };
        Policy { templates: vec![template], priority: Priority(2), ..wide }
    };
    for reqid in [0, 99, 0, 5, 0] {
        pair.right
            .database
            .apply(pair.right.now, |change| change.update_policy(asking(reqid)))
            .unwrap();
        let expected = match reqid {
            0 => STATES as usize,
            reqid => usize::from(reqid <= STATES),
        };
        for _ in 0..4 {
            let wire = pair.left.outbound(round()).0;
            assert_eq!(pair.right.inbound(wire).len(), expected, "all together, reqid {reqid}");
            let wire = pair.left.outbound(round()).0;
            let one_by_one = wire.into_iter().flat_map(|packet| pair.right.inbound(vec![packet]));
            assert_eq!(one_by_one.count(), expected, "one by one, reqid {reqid}");
        }
    }
}
