//! Notifications of events: limits, acquires, mappings.

use std::{net::SocketAddr, sync::Arc};

use uxfrm_engine::{
    Database, Direction, Event, FlowKey, Lifecycle, Moment, PolicyEntry, PolicyIndex, PolicyKind,
    Sa, SaId, SaRequest, Snapshot, Template,
};

use super::{Server, client::Groups, larval::Larval, outbox::Outbox};
use crate::{
    MessageType, NetlinkDatagram,
    address::raw,
    encode::{
        common::{self, Calendar},
        policy, state,
    },
    layout::{RawAcquire, RawExpire, RawMapping, RawPolicyExpire},
};

/// Which limit was reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Soft,
    Hard,
}

impl Limit {
    /// `hard` of a message: anything but 0 is.
    pub(super) const fn of_byte(hard: u8) -> Self {
        match hard {
            0 => Self::Soft,
            _ => Self::Hard,
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::Soft => 0,
            Self::Hard => 1,
        }
    }
}

/// One event of the engine.
pub(super) fn event(
    server: &mut Server,
    event: &Event,
    (before, database): (&Snapshot, &mut Database),
    now: Moment,
    out: &mut Outbox,
) {
    match event {
        Event::SaSoftLimit(id) => expire(server, before, *id, Lifecycle::Dying, out),
        Event::SaHardLimit(id) => expire(server, before, *id, Lifecycle::Expired, out),
        Event::PolicySoftLimit(entry) => expire_policy(server, entry, Limit::Soft, out),
        Event::PolicyHardLimit(entry) => expire_policy(server, entry, Limit::Hard, out),
        Event::Acquire { policy, template, wanted, flow } => {
            let Some(entry) = asking_policy(before, *policy, flow) else { return };
            let Some(template) = entry.templates().nth(usize::from(*template)) else {
                return;
            };
            acquire(server, database, (entry, &template), (wanted, flow), now, out);
        }
        Event::Mapping { state, from } => mapping(server, before, (*state, *from), now, out),
        // Key managers do not handle path MTUs.
        Event::NarrowPath(_) => {}
    }
}

/// `build_expire`.
pub(super) fn sa_expired(sa: &Sa, limit: Limit, pid: u32, calendar: Calendar) -> NetlinkDatagram {
    let mut datagram = begin(MessageType::Expire, pid);
    let sa_info = state::info(sa, calendar);
    datagram.put(&RawExpire { sa: sa_info, hard: limit.to_byte(), pad: [0; 7] });
    let config = sa.config();
    common::put_mark(&mut datagram, config.mark);
    common::put_if_id(&mut datagram, config.if_id);
    state::put_direction(&mut datagram, config.direction);
    datagram
}

/// A larval state that no key manager completed expires hard.
pub(super) fn larval_expired(larval: &Larval, calendar: Calendar) -> NetlinkDatagram {
    let mut datagram = begin(MessageType::Expire, 0);
    datagram.put(&RawExpire {
        sa: larval.info(calendar),
        hard: Limit::Hard.to_byte(),
        pad: [0; 7],
    });
    common::put_mark(&mut datagram, larval.mark);
    common::put_if_id(&mut datagram, larval.if_id);
    state::put_direction(&mut datagram, larval.direction);
    datagram
}

/// `build_polexpire`.
pub(super) fn policy_expired(
    entry: &PolicyEntry,
    limit: Limit,
    pid: u32,
    calendar: Calendar,
) -> NetlinkDatagram {
    let mut datagram = begin(MessageType::PolExpire, pid);
    let info = policy::info(entry, calendar);
    datagram.put(&RawPolicyExpire { policy: info, hard: limit.to_byte(), pad: [0; 7] });
    policy::attributes(&mut datagram, entry);
    datagram
}

/// Of several states with one id, the one whose counters match the event.
fn expire(server: &Server, before: &Snapshot, id: SaId, stage: Lifecycle, out: &mut Outbox) {
    let candidates = || before.sad.with_id(id);
    let found = candidates().find(|sa| sa.lifecycle() == stage).or_else(|| candidates().next());
    if let Some(sa) = found {
        let limit = if stage == Lifecycle::Expired { Limit::Hard } else { Limit::Soft };
        out.multicast(&server.clients, Groups::EXPIRE, || {
            sa_expired(sa, limit, 0, server.calendar)
        });
    }
}

fn expire_policy(server: &Server, entry: &PolicyEntry, limit: Limit, out: &mut Outbox) {
    out.multicast(&server.clients, Groups::EXPIRE, || {
        policy_expired(entry, limit, 0, server.calendar)
    });
}

/// Acquire for a packet, and its larval state; nothing without listeners or if the device refuses
/// (`xfrm_state_find`, `km_query`, `build_acquire`).
fn acquire(
    server: &mut Server,
    database: &mut Database,
    (entry, template): (&PolicyEntry, &Template),
    (wanted, flow): (&SaRequest, &FlowKey),
    now: Moment,
    out: &mut Outbox,
) {
    if server.clients.listeners(Groups::ACQUIRE).next().is_none() {
        return;
    }
    if !server.larvals.needs_acquire(wanted, now) {
        return;
    }
    let attach = |device| database.attach_larval(device, wanted).map(|handle| (device, handle));
    let Ok(place) = entry.device().map(attach).transpose() else {
        return server.larvals.refuse(*wanted, now);
    };
    let calendar = server.calendar;
    let Some(larval) = server.larvals.acquire(wanted, flow, place, now) else { return };
    let template = policy::template(template);
    let mut datagram = begin(MessageType::Acquire, 0);
    datagram.put(&RawAcquire {
        id: larval.raw_id(),
        source: raw(larval.source),
        selector: larval.info(calendar).selector,
        policy: policy::info(entry, calendar),
        auth_algorithms: template.auth_algorithms,
        encryption_algorithms: template.encryption_algorithms,
        compression_algorithms: template.compression_algorithms,
        seq: larval.seq,
    });
    policy::attributes(&mut datagram, entry);
    larval.put_cpu(&mut datagram);
    out.multicast(&server.clients, Groups::ACQUIRE, || datagram);
}

/// `build_mapping`.
fn mapping(
    server: &Server,
    before: &Snapshot,
    (id, from): (SaId, SocketAddr),
    now: Moment,
    out: &mut Outbox,
) {
    let Some(sa) = before.sad.with_id(id).next() else { return };
    let config = sa.config();
    if !sa.mapping_due(from.port(), now) {
        return;
    }
    let mut datagram = begin(MessageType::Mapping, 0);
    datagram.put(&RawMapping {
        id: state::id(sa),
        reqid: sa.reqid().0,
        old_source: raw(sa.source()),
        new_source: raw(from.ip()),
        old_source_port: config.encap.map_or(0, |encap| encap.source_port).into(),
        new_source_port: from.port().into(),
    });
    out.multicast(&server.clients, Groups::MAPPING, || datagram);
}

/// The policy of a flow, if it still exists; looked up by flow, as there may be a million.
fn asking_policy<'a>(
    snapshot: &'a Snapshot,
    index: PolicyIndex,
    flow: &FlowKey,
) -> Option<&'a Arc<PolicyEntry>> {
    [PolicyKind::Sub, PolicyKind::Main]
        .into_iter()
        .filter_map(|kind| snapshot.spd.lookup_kind(kind, Direction::Out, flow))
        .find(|entry| entry.index() == index)
}

/// Notifications have sequence number 0.
pub(super) fn begin(kind: MessageType, pid: u32) -> NetlinkDatagram {
    NetlinkDatagram::new(kind as u16, 0, 0, pid)
}
