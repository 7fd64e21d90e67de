//! Exports a server and its databases as messages, for the next process
//! (`uxfrm upgrade`). The messages are those of dumps, so releases understand each other.

use std::sync::Arc;

use uxfrm_engine::{
    Counters, Database, DefaultActions, Lifecycle, Moment, PolicyCursor, PolicyEntry, Sa,
    SaFailures, SaHistory, StateCursor,
};
use uxfrm_netlink_wire::{NetlinkFlags, NetlinkMessage, NetlinkMessages};

use super::{Server, info, larval::Larval, state::ReplyAttributes};
use crate::{
    AttributeType, MessageType, NetlinkDatagram, NetlinkError,
    decode::{common::parts, policy as decode_policy, replay, state as decode_state},
    encode::{policy as encode_policy, state as encode_state},
    layout::{RawDefaults, RawPolicy, RawSa},
    refusal::number,
};

/// What an exported message restored.
#[derive(Debug)]
pub enum RestoredItem {
    /// A state, with the sequence numbers and counters of the message.
    State(Arc<Sa>),
    /// Anything else.
    Other,
}

impl Server {
    /// One message for each state, the oldest first.
    pub fn export_states(&self, database: &Database) -> Vec<(Arc<Sa>, NetlinkDatagram)> {
        let mut states: Vec<_> = database.states_from(StateCursor::default()).cloned().collect();
        states.reverse();
        let export = |sa: Arc<Sa>| {
            let mut datagram = begin(MessageType::NewSa);
            datagram.put(&encode_state::info(&sa, self.calendar));
            encode_state::attributes(&mut datagram, &sa, self.calendar);
            (sa, datagram)
        };
        states.into_iter().map(export).collect()
    }

    /// Messages for larval states, for policies, of one priority in their order, and for defaults.
    pub fn export_others(&self, database: &Database) -> Vec<NetlinkDatagram> {
        let larvals = self.larvals.iter().map(|larval| {
            let mut datagram = begin(MessageType::NewSa);
            ReplyAttributes::Larval(larval.clone()).put(&mut datagram, self.calendar);
            datagram
        });
        let policies = database.policies_from(PolicyCursor::default());
        let mut policies: Vec<_> = policies.map(|(_, entry)| entry).collect();
        policies.sort_by_key(|entry| entry.precedence().insertion_seq());
        let policies = policies.into_iter().map(|entry| self.export_policy(entry));
        let mut defaults = begin(MessageType::SetDefault);
        defaults.put(&info::raw(database.current().spd.defaults()));
        larvals.chain(policies).chain([defaults]).collect()
    }

    fn export_policy(&self, entry: &PolicyEntry) -> NetlinkDatagram {
        let mut datagram = begin(MessageType::NewPolicy);
        datagram.put(&encode_policy::info(entry, self.calendar));
        encode_policy::attributes(&mut datagram, entry);
        datagram
    }

    /// Restores one exported message, without notifications. Times are whole seconds.
    ///
    /// # Errors
    /// Settings of another release that this one refuses.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        database: &mut Database,
        now: Moment,
    ) -> Result<RestoredItem, NetlinkError> {
        let message =
            NetlinkMessages::of(bytes).next().ok_or(NetlinkError::bare(number::EINVAL))?;
        match MessageType::from_number(message.header.kind) {
            Some(MessageType::NewSa) => self.restore_state(message, database, now),
            Some(MessageType::NewPolicy) => {
                self.restore_policy(message, database).map(|()| RestoredItem::Other)
            }
            Some(MessageType::SetDefault) => {
                let (raw, _) = parts::<RawDefaults>(message)?;
                let defaults: DefaultActions = info::defaults(raw);
                database.apply(now, |change| change.set_defaults(defaults));
                Ok(RestoredItem::Other)
            }
            Some(_) | None => Err(NetlinkError::bare(number::EINVAL)),
        }
    }

    fn restore_state(
        &mut self,
        message: NetlinkMessage<'_>,
        database: &mut Database,
        now: Moment,
    ) -> Result<RestoredItem, NetlinkError> {
        let (raw, attributes) = parts::<RawSa>(message)?;
        let has_algorithm = [AttributeType::AlgAead, AttributeType::AlgCrypt];
        if !has_algorithm.iter().any(|kind| attributes.has(*kind)) {
            let larval = Larval::restored(&raw, &attributes, self.calendar);
            self.larvals.restore(larval.ok_or(NetlinkError::bare(number::EINVAL))?);
            return Ok(RestoredItem::Other);
        }
        let config = decode_state::config(&raw, &attributes)?;
        let form = replay::ReplayForm::of(config.flags, config.replay.window);
        let counters = Counters {
            usage: Some(replay::usage(raw.usage, self.calendar)),
            ..replay::counters(&attributes, form, self.calendar)
        };
        let (id, mark) = (config.id, config.mark);
        let sa = database.apply(now, |change| {
            change.add_sa(config)?;
            change.set_counters(id, mark, counters)
        })?;
        let failures = SaFailures {
            replay_window: raw.replay_window_failures,
            replay: raw.replay_failures,
            integrity_failed: raw.integrity_failures,
        };
        let last_used = attributes.read::<u64>(AttributeType::LastUsed);
        let last_used = last_used.map(|seconds| self.calendar.moment(seconds));
        database.set_history(&sa, SaHistory { failures, last_used, lifecycle: Lifecycle::Valid });
        Ok(RestoredItem::State(sa))
    }

    fn restore_policy(
        &self,
        message: NetlinkMessage<'_>,
        database: &mut Database,
    ) -> Result<(), NetlinkError> {
        let (raw, attributes) = parts::<RawPolicy>(message)?;
        let policy = decode_policy::shown(&raw, &attributes)?;
        // Times of a policy are whole seconds, as the calendar shows them.
        let whole = |seconds| {
            let moment = self.calendar.moment(seconds);
            Moment::from_secs(moment.0.div_ceil(1_000_000_000))
        };
        // Its limits count from then.
        let added = whole(raw.usage.added);
        let entry = database.apply(added, |change| change.add_policy(policy))?;
        let used = (raw.usage.used != 0).then(|| whole(raw.usage.used));
        entry.set_counts(raw.usage.packets, raw.usage.bytes, used);
        Ok(())
    }
}

fn begin(kind: MessageType) -> NetlinkDatagram {
    NetlinkDatagram::new(kind as u16, NetlinkFlags::REQUEST.bits(), 0, 0)
}
