//! MIGRATE: new addresses for a policy's states and templates (`net/xfrm/xfrm_policy.c:
//! xfrm_migrate`).
//!
//! Sequence numbers go on above the old state's, and its replay window is kept: Linux copies both
//! too, but the old state sends for a moment longer. All states and the policy change at once, or
//! none.

use std::{net::IpAddr, sync::Arc};

use uxfrm_engine::{
    Direction, Family, FlowKey, Mode, PolicyEntry, PolicyKind, Sa, SaMove, SaProtocol, Template,
    UdpEncap,
};
use zerocopy::FromBytes as _;

use super::{Call, Server, client::Groups};
use crate::{
    AttributeType, MessageType, NetlinkError,
    address::{self, address},
    decode::{common, state as decode},
    encode::policy::put_kind,
    layout::{RawMigration, RawPolicyId},
    refusal::number,
};

/// One entry of the attribute.
#[derive(Clone, Copy, Debug)]
struct Migration {
    old: (IpAddr, IpAddr),
    new: (IpAddr, IpAddr),
    protocol: SaProtocol,
    mode: Mode,
    /// 0 is any.
    reqid: u32,
}

const MOST: usize = uxfrm_engine::MAX_TEMPLATES;
const ANY_PROTOCOL: u8 = 255;

impl Server {
    pub(super) fn migrate(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let id: RawPolicyId = call.head()?;
        if !call.attributes.has(AttributeType::Migrate) {
            return Err(NetlinkError::invalid("Missing required MIGRATE attribute"));
        }
        let kind = common::policy_kind(&call.attributes)?;
        let raw = entries(call)?;
        let direction = common::policy_direction(id.direction)?;
        let entry = policy(&id, kind, direction, call)?;
        // What names no family or protocol that there is, no template has.
        let migrations: Vec<_> = raw.iter().filter_map(migration).collect();
        let templates = moved(entry.templates().collect(), &migrations)
            .ok_or(const { NetlinkError::bare(number::ENODATA) })?;
        let if_id = common::if_id(&call.attributes);
        let encap = call
            .attributes
            .has(AttributeType::Encap)
            .then(|| decode::encap(&call.attributes, entry.family()))
            .transpose()?
            .flatten();
        call.database.apply(call.now, |change| {
            let doomed = migrations.iter().filter_map(|migration| {
                let is_meant = |sa: &&Arc<Sa>| {
                    migration.means(sa) && (if_id.0 == 0 || sa.config().if_id == if_id)
                };
                let found = change.states().filter(is_meant).max_by_key(|sa| sa.added());
                found.map(|sa| (Arc::clone(sa), migration.of(sa, encap)))
            });
            let doomed: Vec<_> = doomed.collect();
            // Whatever is wrong with one, the kernel says this.
            change.move_sas(doomed).map_err(|_| NetlinkError::bare(number::ENODATA))?;
            let policy = uxfrm_engine::Policy { templates, index: entry.index(), ..entry.policy() };
            change.update_policy(policy).map(|_| ()).map_err(NetlinkError::from)
        })?;
        self.notify_migration(&id, kind, &raw, call);
        Ok(())
    }

    /// `build_migrate`, as it was asked for.
    fn notify_migration(
        &self,
        id: &RawPolicyId,
        kind: PolicyKind,
        raw: &[RawMigration],
        call: &mut Call<'_>,
    ) {
        let attributes = &call.attributes;
        call.out.multicast(&self.clients, Groups::MIGRATE, || {
            let mut datagram = super::notify::begin(MessageType::Migrate, 0);
            datagram.put(&RawPolicyId { index: 0, pad: [0; 3], ..*id });
            for (kind, len) in [(AttributeType::KmAddress, 40), (AttributeType::Encap, 24)] {
                if let Some(value) = attributes.value(kind).and_then(|value| value.get(..len)) {
                    datagram.attribute(kind, value);
                }
            }
            put_kind(&mut datagram, kind);
            for migration in raw {
                datagram.attribute(AttributeType::Migrate, migration);
            }
            datagram
        });
    }
}

impl Migration {
    /// `xfrm_migrate_state_find`
    fn means(&self, sa: &Sa) -> bool {
        (sa.source(), sa.id().destination) == self.old
            && sa.id().protocol == self.protocol
            && sa.config().mode == self.mode
            && (self.reqid == 0 || sa.reqid().0 == self.reqid)
    }

    /// What becomes of a state; without `encap` its encapsulation stays.
    fn of(&self, sa: &Sa, encap: Option<UdpEncap>) -> SaMove {
        let stays = SaMove::of(sa);
        let (source, destination) = self.new;
        SaMove { source, destination, encap: encap.or(stays.encap), ..stays }
    }

    /// `migrate_tmpl_match`: the ends of a transport template are the packet's own.
    fn fits(&self, template: &Template) -> bool {
        template.mode == self.mode
            && template.protocol == self.protocol
            && (self.reqid == 0 || template.reqid.0 == self.reqid)
            && match template.mode {
                Mode::Tunnel | Mode::Beet | Mode::Iptfs => {
                    (template.source, template.destination) == self.old
                }
                Mode::Transport => true,
                Mode::RouteOptimization | Mode::InTrigger => false,
            }
    }
}

/// `copy_from_user_migrate`, `xfrm_migrate_check`.
fn entries(call: &Call<'_>) -> Result<Vec<RawMigration>, NetlinkError> {
    let value = call.attributes.value(AttributeType::Migrate).unwrap_or_default();
    let raw: Vec<_> = value
        .chunks_exact(size_of::<RawMigration>())
        .filter_map(|bytes| RawMigration::read_from_bytes(bytes).ok())
        .collect();
    if raw.is_empty() || raw.len() > MOST {
        return Err(NetlinkError::invalid(
            "Invalid number of SAs to migrate, must be 0 < num <= XFRM_MAX_DEPTH (6)",
        ));
    }
    for (place, one) in raw.iter().enumerate() {
        if is_null(one.new_family, one.new_destination) || is_null(one.new_family, one.new_source) {
            return Err(NetlinkError::invalid(
                "Addresses in the MIGRATE attribute's list cannot be null",
            ));
        }
        let same = |other: &RawMigration| {
            (other.old_destination, other.old_source) == (one.old_destination, one.old_source)
                && (other.protocol, other.mode) == (one.protocol, one.mode)
                && (other.reqid, other.old_family) == (one.reqid, one.old_family)
        };
        if raw.iter().skip(place + 1).any(same) {
            return Err(NetlinkError::invalid(
                "Entries in the MIGRATE attribute's list must be unique",
            ));
        }
    }
    Ok(raw)
}

/// `xfrm_addr_any`: no address of an unknown family is null.
fn is_null(number: u16, raw: address::RawAddress) -> bool {
    address::family(number).is_some_and(|family| address(family, raw).is_unspecified())
}

/// `xfrm_migrate_policy_find`: the policy that a packet with the selector's addresses would meet.
fn policy(
    id: &RawPolicyId,
    kind: PolicyKind,
    direction: Direction,
    call: &Call<'_>,
) -> Result<Arc<PolicyEntry>, NetlinkError> {
    const NOT_FOUND: &str = "Target policy not found";
    let selector = &id.selector;
    let family = address::family(selector.family)
        .ok_or(const { NetlinkError::new(number::EAFNOSUPPORT, NOT_FOUND) })?;
    let named = selector.protocol != ANY_PROTOCOL;
    let flow = FlowKey {
        source: address(family, selector.source),
        destination: address(family, selector.destination),
        protocol: selector.protocol,
        source_port: if named { selector.source_port.get() } else { 0 },
        destination_port: if named { selector.destination_port.get() } else { 0 },
        mark: 0,
        if_id: common::if_id(&call.attributes).0,
        ifindex: if named { selector.ifindex } else { 0 },
    };
    let found = call.database.current().spd.lookup_kind(kind, direction, &flow);
    found.cloned().ok_or(const { NetlinkError::new(number::ENOENT, NOT_FOUND) })
}

/// The kernel takes an unknown old family for IPv4 (`xfrm_addr_equal`) and stores an unknown new
/// one; here the new one is refused.
fn migration(raw: &RawMigration) -> Option<Migration> {
    let old = address::family(raw.old_family).unwrap_or(Family::V4);
    let new = address::family(raw.new_family)?;
    Some(Migration {
        old: (address(old, raw.old_source), address(old, raw.old_destination)),
        new: (address(new, raw.new_source), address(new, raw.new_destination)),
        protocol: common::protocol(raw.protocol)?,
        mode: common::mode(raw.mode)?,
        reqid: raw.reqid,
    })
}

/// The templates with new ends; `None` when no entry fits any (`xfrm_policy_migrate`).
fn moved(mut templates: Vec<Template>, migrations: &[Migration]) -> Option<Vec<Template>> {
    let mut found = false;
    for template in &mut templates {
        for migration in migrations {
            if !migration.fits(template) {
                continue;
            }
            found = true;
            if template.mode != Mode::Transport {
                (template.source, template.destination) = migration.new;
            }
        }
    }
    found.then_some(templates)
}
