//! Which policies refuse pieces, against a naive reading of the rules.

use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use uxfrm_crypto::Backend;
use uxfrm_packet::Protocol;

use super::*;
use crate::spd::table::tests::{any_policy, applies, flow};
use crate::{Database, Mode, Moment, Policy, Reqid, SaProtocol, Spi, Template};

/// Ports that are asked for in masks that fit each other, too, and policies that refuse, let pass,
/// or protect if they can.
fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let one = (any_policy(), 0_u8..4, 0_u8..8, any::<bool>());
    let one = one.prop_map(|(mut policy, deed, ports, forward)| {
        if forward {
            policy.direction = Direction::Forward;
        }
        if ports == 0 {
            policy.selector.source_port = PortMask { value: 0, mask: 0x8000 };
        } else if ports == 1 {
            policy.selector.source_port = PortMask { value: 0x8000, mask: 0x8000 };
        }
        let template = |level| template(policy.selector.family(), level);
        (policy.action, policy.templates) = match deed {
            0 => (Action::Block, vec![]),
            1 => (Action::Allow, vec![template(TemplateLevel::Required)]),
            2 => (Action::Allow, vec![template(TemplateLevel::Use)]),
            _ => (Action::Allow, vec![]),
        };
        policy
    });
    prop::collection::vec(one, 0..40)
}

fn template(family: Family, level: TemplateLevel) -> Template {
    Template {
        source: family.unspecified(),
        destination: family.unspecified(),
        spi: Spi(0),
        protocol: SaProtocol::Esp,
        mode: Mode::Transport,
        reqid: Reqid(0),
        level,
    }
}

fn refuses(policy: &Policy) -> bool {
    let must = policy.templates.iter().any(|template| template.level == TemplateLevel::Required);
    policy.action == Action::Block || must
}

/// Whether a policy decides over a piece: with untold fields left out if it refuses, and not at all
/// by them if not.
fn takes(policy: &Policy, piece: &PlainFragment<'_>) -> bool {
    let mut wide = policy.clone();
    wide.selector.source_port.mask = 0;
    wide.selector.destination_port.mask = 0;
    if !piece.tells_protocol {
        wide.selector.protocol = 0;
    }
    let selector = &policy.selector;
    let is_certain = selector.source_port.mask == 0
        && selector.destination_port.mask == 0
        && selector.protocol == wide.selector.protocol;
    policy.direction == Direction::Forward
        && applies(&wide, piece.flow)
        && (refuses(policy) || is_certain)
}

proptest! {
    #[test]
    fn fragment_rules_agree_with_scan(
        policies in policies(),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        pieces in prop::collection::vec((flow(), any::<bool>()), 1..60),
    ) {
        let mut database = Database::new(Backend::Portable, 1);
        let mut model: Vec<Arc<PolicyEntry>> = Vec::new();
        // One by one and many at once, with snapshots of other generations beside.
        let mut snapshots = Vec::new();
        for some in policies.chunks(7) {
            database.apply(Moment(0), |change| {
                let added = some.iter().filter_map(|one| change.add_policy(one.clone()).ok());
                model.extend(added);
            });
            snapshots.push(database.snapshot());
        }
        for pick in removed {
            if model.is_empty() { break; }
            let entry = model.remove(pick.index(model.len()));
            database.apply(Moment(0), |change| change.delete_policy(&entry.key())).unwrap();
        }
        let snapshot = database.snapshot();
        for (mut flow, told) in pieces {
            (flow.source_port, flow.destination_port) = (0, 0);
            let piece = PlainFragment { flow: &flow, tells_protocol: told || flow.source.is_ipv4() };
            let first = |kind| {
                let fits = model.iter().enumerate().filter(move |(_, entry)| {
                    entry.kind() == kind && takes(&entry.policy(), &piece)
                });
                fits.min_by_key(|(seq, entry)| (entry.precedence().priority(), *seq)).map(|(_, entry)| entry)
            };
            let kinds = [PolicyKind::Sub, PolicyKind::Main].into_iter();
            let expected = kinds.filter_map(first).find(|entry| refuses(&entry.policy()));
            // Where every policy can tell of pieces, too, they are judged as all packets are.
            let usual = [PolicyKind::Sub, PolicyKind::Main].into_iter().find_map(|kind| {
                snapshot.spd.lookup_kind(kind, Direction::Forward, &flow).filter(|entry| refuses(&entry.policy()))
            });
            let found = match snapshot.spd.needs_whole_datagrams(Direction::Forward) {
                true => snapshot.spd.refuses_fragment(&piece),
                false => usual,
            };
            prop_assert_eq!(found.map(|entry| entry.index()), expected.map(|entry| entry.index()));
        }
    }
}

#[test]
fn fragment_rules_later_ipv6_fragment_has_no_protocol() {
    let ends = |first: &str| format!("{first}1").parse::<IpAddr>().unwrap();
    for (source, fragment, told) in [
        ("10.0.0.", Fragment::Later { id: 1, more: false, offset: 8 }, true),
        ("fd00::", Fragment::Later { id: 1, more: false, offset: 8 }, false),
        ("fd00::", Fragment::First { id: 1, more: true }, true),
    ] {
        let bytes = uxfrm_testkit::packets::ip(ends(source), ends(source), Protocol::UDP, &[0; 8]);
        let ip = IpPacket { fragment, ..IpPacket::parse(&bytes).unwrap() };
        let flow = FlowKey::of_bytes(&ip, &bytes);
        assert_eq!(PlainFragment::of(&flow, &ip).tells_protocol, told, "{source} {fragment:?}");
    }
}
