use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::spd::compact::inline::InlineFields;
use crate::spd::compact::layout::OwnEnds;
use crate::spd::store::PolicyStore;
use crate::{
    Action, Direction, Family, Mode, Moment, PolicyIndex, PortMask, Prefix, Priority, Reqid,
    SaProtocol, Selector, Spi, TemplateLevel,
};

/// Few addresses, so that some are shared and some are not.
fn address(family: Family) -> impl Strategy<Value = IpAddr> {
    (prop_oneof![0_u128..3, 0_u128..1 << 100]).prop_map(move |bits| match family {
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).unwrap()).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    })
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

fn selector() -> impl Strategy<Value = Selector> {
    let ends =
        family().prop_flat_map(|family| [0, 1].map(|_| (address(family), 0..=family.bits())));
    let port = prop_oneof![
        Just(PortMask::default()),
        (0_u16..3, prop_oneof![Just(0xffff), Just(0xf0)])
            .prop_map(|(value, mask)| PortMask { value, mask }),
    ];
    (ends, [port.clone(), port], 0_u8..2).prop_map(|(ends, ports, protocol)| {
        let [source, destination] = ends.map(|(address, len)| Prefix::new(address, len).unwrap());
        let [source_port, destination_port] = ports;
        let any = Selector::any(source.family());
        Selector { source, destination, protocol, source_port, destination_port, ..any }
    })
}

fn template() -> impl Strategy<Value = Template> {
    let ends = [0, 1].map(|_| family().prop_flat_map(address));
    (ends, 0_u32..3, 0_u32..2, any::<bool>()).prop_map(|(ends, reqid, spi, optional)| Template {
        source: ends[0],
        destination: ends[1],
        protocol: SaProtocol::Esp,
        spi: Spi(spi),
        mode: Mode::Tunnel,
        reqid: Reqid(reqid),
        level: if optional { TemplateLevel::Use } else { TemplateLevel::Required },
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    let direction =
        prop_oneof![Just(Direction::In), Just(Direction::Out), Just(Direction::Forward)];
    let templates = prop_oneof![
        1 => prop::collection::vec(template(), 0..1),
        4 => prop::collection::vec(template(), 1..2),
        1 => prop::collection::vec(template(), 2..4),
    ];
    let words = (0_u32..5, prop_oneof![9 => Just(Action::Allow), 1 => Just(Action::Block)]);
    let kind = prop_oneof![9 => Just(PolicyKind::Main), 1 => Just(PolicyKind::Sub)];
    (direction, kind, selector(), templates, words).prop_map(
        |(direction, kind, selector, templates, (priority, action))| Policy {
            direction,
            kind,
            index: PolicyIndex(0),
            selector,
            priority: Priority(priority),
            action,
            templates,
            mark: Mark::default(),
            if_id: IfId(0),
            flags: PolicyFlags::empty(),
            limits: LifetimeLimits::default(),
            offload: None,
        },
    )
}

proptest! {
    /// Whichever form each takes, and whoever else has its words.
    #[test]
    fn policy_entry_round_trips(policies in prop::collection::vec(policy(), 1..300)) {
        let (mut store, mut model) = (PolicyStore::default(), Vec::new());
        for policy in policies {
            if let Ok(entry) = store.add(&policy, None, Moment(0)) {
                model.push((Policy { index: entry.index(), ..policy }, entry));
            }
        }
        for (policy, entry) in &model {
            prop_assert_eq!(&entry.policy(), policy);
            let template = |at| entry.templates().nth(at);
            prop_assert!((0..4).all(|at| template(at).as_ref() == policy.templates.get(at)));
        }
        for (gone, (_, entry)) in model.iter().enumerate() {
            store.remove(entry);
            prop_assert!(model[gone..].iter().all(|(policy, entry)| entry.policy() == *policy));
        }
    }

    /// But for what packets are compared with.
    #[test]
    fn layout_stores_inline_what_fits(policy in policy()) {
        let words = |layout: FieldLayout| layout.bytes(&policy).len();
        let most_own = FieldLayout::most_own(&policy);
        let sharing = FieldLayout::sharing(&policy, INLINE_BYTES);
        let (far, both): (Vec<_>, Vec<_>) = sharing.into_iter().partition(|layout| layout.traffic == OwnEnds::Far);
        prop_assert!(words(most_own) > INLINE_BYTES || both.is_empty());
        prop_assert!(words(most_own) > INLINE_BYTES || far.iter().all(|layout| layout.is_compact()));
        for forms in [far, both] {
            prop_assert!(forms.iter().skip(1).all(|layout| words(*layout) > INLINE_BYTES));
            prop_assert!(forms.iter().all(|layout| words(*layout) < words(most_own)));
        }
    }
}

const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Tunnels between ends that none has twice, from one network to many.
fn own_tunnel(serial: u32, family: Family) -> Policy {
    let end = |high: u32| match family {
        Family::V4 => IpAddr::from(Ipv4Addr::from_bits(high << 24 | serial)),
        // No two are like each other in many bytes.
        Family::V6 => {
            Ipv6Addr::from_bits(u128::from(high << 24 | serial).wrapping_mul(SPREAD)).into()
        }
    };
    let mut policy = crate::spd::table::tests::policy(Direction::Out, serial);
    policy.selector = Selector::any(family);
    policy.selector.source = Prefix::any(family);
    policy.selector.destination = Prefix::host(end(2));
    policy.templates = vec![Template {
        source: end(3),
        destination: end(4),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(serial),
        level: TemplateLevel::Required,
    }];
    policy
}

#[test]
fn shared_fields_of_distinct_tunnels_are_few() {
    let tried = FREE_PER_LAYOUT + 10_000 / POLICIES_PER_ENTRY;
    for (family, one_gateway, most, words) in [
        (Family::V4, false, 1, 23),
        (Family::V6, false, 2 * tried + 2, 54),
        (Family::V6, true, tried + 2, 36),
    ] {
        let mut all = SharedFieldsTable::default();
        for serial in 1..=10_000 {
            let mut policy = own_tunnel(serial, family);
            if one_gateway {
                policy.templates[0].source = own_tunnel(1, family).templates[0].source;
            }
            let fields = all.share(&policy, None, serial.into());
            let own = fields.layout.bytes(&policy).len();
            assert!(serial < 10_000 || own == words, "{own} bytes of words");
        }
        assert!(all.len() <= most, "{} fields", all.len());
    }
}

#[test]
fn shared_fields_intern_common_templates() {
    let mut all = SharedFieldsTable::default();
    for serial in 1..=10_000 {
        let mut policy = own_tunnel(serial, Family::V6);
        policy.templates = own_tunnel(serial % 8, Family::V6).templates;
        let fields = all.share(&policy, None, serial.into());
        assert!(matches!(InlineFields::of(&fields.layout.bytes(&policy)), InlineFields::Inline(_)));
    }
    // Those that came first have no shape yet.
    assert_eq!((all.len(), all.mask_templates()), (2 * 8, 1));
}

/// Networks of some lengths behind one gateway's own, so many sites.
fn site(serial: u32, lens: u8) -> Policy {
    let mut policy = own_tunnel(serial, Family::V6);
    let address = policy.selector.destination.address();
    let len = 128 - u8::try_from(serial % u32::from(lens)).unwrap();
    policy.selector.destination = Prefix::new(address, len).unwrap();
    policy.templates.clear();
    policy
}

#[test]
fn mask_templates_are_few_and_freed_with_last_policy() {
    let (mut all, mut shared) = (SharedFieldsTable::default(), Vec::new());
    for serial in 1..=10_000 {
        shared.push(all.share(&site(serial, 4), None, serial.into()));
    }
    let shaped = |fields: &&Arc<SharedFields>| fields.mask_template.is_some();
    assert!(shared.iter().take(MIN_TEMPLATED - 1).filter(shaped).count() == 0, "too few for that");
    assert_eq!(
        (shared.iter().filter(shaped).count(), all.mask_templates()),
        (10_000 - MIN_TEMPLATED + 1, 4)
    );
    shared.iter().for_each(|fields| all.release(fields));
    assert_eq!((all.len(), all.mask_templates()), (0, 0));
}

/// Ports are asked for apart, and so is what has a network of its own on this side.
#[test]
fn dissimilar_policies_have_no_mask_template() {
    let kinds: [fn(&mut Policy, u32); 2] = [
        |policy, serial| {
            policy.selector.source_port = PortMask::exactly(u16::try_from(serial).unwrap())
        },
        |policy, serial| {
            policy.selector.source = Prefix::host(Ipv6Addr::from_bits(serial.into()).into())
        },
    ];
    for change in kinds {
        let mut all = SharedFieldsTable::default();
        for serial in 1..=10_000 {
            let mut policy = site(serial, 1);
            change(&mut policy, serial);
            all.share(&policy, None, serial.into());
        }
        assert!(
            all.mask_templates() <= 2 * (FREE_PER_LAYOUT + 10_000 / POLICIES_PER_ENTRY),
            "{}",
            all.mask_templates()
        );
    }
}

#[test]
fn insertion_number_exceeds_32_bits() {
    let (mut all, policy) = (SharedFieldsTable::default(), own_tunnel(1, Family::V4));
    let last = u64::from(u32::MAX);
    let epochs = [1, last, last + 1, 5 * last].map(|seq| all.share(&policy, None, seq).epoch);
    assert_eq!((epochs, all.len()), ([0, 0, 1, 4], 3));
}

/// IPComp in a tunnel: the first template has its ends, the second the request id alone. Others ask
/// for an SPI, or have a user or limits of their own.
#[test]
fn shared_fields_hash_covers_all_fields() {
    let kinds: [fn(&mut Policy, u32); 4] = [
        |policy, serial| policy.templates[0].spi = Spi(serial),
        |policy, serial| {
            let second = Template { mode: Mode::Transport, ..policy.templates[0] };
            policy.templates.push(Template { reqid: Reqid(serial), ..second });
        },
        |policy, serial| policy.selector.user = serial,
        |policy, serial| policy.limits.bytes.soft = u64::from(serial),
    ];
    for (kind, change) in kinds.into_iter().enumerate() {
        let mut all = SharedFieldsTable::default();
        for serial in 1..=1000 {
            let mut policy = own_tunnel(serial, Family::V4);
            change(&mut policy, serial);
            all.share(&policy, None, serial.into());
        }
        let hashes: HashSet<_> =
            all.table.iter().map(|interned| interned.fields.hash(&all.hasher)).collect();
        assert_eq!((all.len(), hashes.len()), (1000, 1000), "{kind}");
    }
}
