//! All that a server and its databases have, as messages, for a process that goes on with them
//! (`uxfrm upgrade`). They are those of dumps, so releases understand each other's.

use std::sync::Arc;

use uxfrm_engine::{
    Counters, Database, Defaults, Failures, History, Lifecycle, Moment, PolicyCursor, PolicyEntry,
    Sa, StateCursor,
};

use super::{Server, info, larval::Larval, state::Found};
use crate::{
    AttributeType, Attributes, Datagram, MessageType, Messages, Refusal,
    decode::{policy as decode_policy, replay, state as decode_state},
    encode::{policy as encode_policy, state as encode_state},
    layout::{RawDefaults, RawPolicy, RawSa},
    message::{Flags, HEADER_LEN, Message, aligned},
    refusal::number,
};

/// What a message of a portrait was.
#[derive(Debug)]
pub enum Restored {
    /// A state, which has the numbers and counts of the message.
    State(Arc<Sa>),
    /// Anything else.
    Other,
}

impl Server {
    /// A message for each state, the oldest first: as many as it gives states.
    pub fn portray_states(&self, database: &Database) -> Vec<(Arc<Sa>, Datagram)> {
        let mut states: Vec<_> = database.states_from(StateCursor::default()).cloned().collect();
        states.reverse();
        let portrait = |sa: Arc<Sa>| {
            let mut datagram = begin(MessageType::NewSa);
            datagram.put(&encode_state::info(&sa, self.calendar));
            encode_state::attributes(&mut datagram, &sa, self.calendar);
            (sa, datagram)
        };
        states.into_iter().map(portrait).collect()
    }

    /// A message for each larval state, for each policy, those of one priority in their order, and for the defaults.
    pub fn portray_others(&self, database: &Database) -> Vec<Datagram> {
        let larvals = self.larvals.iter().map(|larval| {
            let mut datagram = begin(MessageType::NewSa);
            Found::Larval(larval.clone()).put(&mut datagram, self.calendar);
            datagram
        });
        let policies = database.policies_from(PolicyCursor::default());
        let mut policies: Vec<_> = policies.map(|(_, entry)| entry).collect();
        policies.sort_by_key(|entry| entry.place().age());
        let policies = policies.into_iter().map(|entry| self.portray_policy(entry));
        let mut defaults = begin(MessageType::SetDefault);
        defaults.put(&info::raw(database.current().spd.defaults()));
        larvals.chain(policies).chain([defaults]).collect()
    }

    fn portray_policy(&self, entry: &PolicyEntry) -> Datagram {
        let mut datagram = begin(MessageType::NewPolicy);
        datagram.put(&encode_policy::info(entry, self.calendar));
        encode_policy::attributes(&mut datagram, entry);
        datagram
    }

    /// Puts in what one message of a portrait says; nobody is told. Times are whole seconds.
    ///
    /// # Errors
    /// What this release does not take of another's.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        database: &mut Database,
        now: Moment,
    ) -> Result<Restored, Refusal> {
        let message = Messages::of(bytes).next().ok_or(Refusal::bare(number::EINVAL))?;
        match MessageType::from_number(message.header.kind) {
            Some(MessageType::NewSa) => self.restore_state(message, database, now),
            Some(MessageType::NewPolicy) => {
                self.restore_policy(message, database).map(|()| Restored::Other)
            }
            Some(MessageType::SetDefault) => {
                let (raw, _) = parts::<RawDefaults>(message)?;
                let defaults: Defaults = info::defaults(raw);
                database.apply(now, |change| change.set_defaults(defaults));
                Ok(Restored::Other)
            }
            Some(_) | None => Err(Refusal::bare(number::EINVAL)),
        }
    }

    fn restore_state(
        &mut self,
        message: Message<'_>,
        database: &mut Database,
        now: Moment,
    ) -> Result<Restored, Refusal> {
        let (raw, attributes) = parts::<RawSa>(message)?;
        let has_algorithm = [AttributeType::AlgAead, AttributeType::AlgCrypt];
        if !has_algorithm.iter().any(|kind| attributes.has(*kind)) {
            let larval = Larval::restored(&raw, &attributes, self.calendar);
            self.larvals.restore(larval.ok_or(Refusal::bare(number::EINVAL))?);
            return Ok(Restored::Other);
        }
        let config = decode_state::config(&raw, &attributes)?;
        let form = replay::Form::of(config.flags, config.replay.window);
        let counters = Counters {
            usage: Some(replay::usage(raw.usage, self.calendar)),
            ..replay::counters(&attributes, form, self.calendar)
        };
        let (id, mark) = (config.id, config.mark);
        let sa = database.apply(now, |change| {
            change.add_sa(config)?;
            change.set_counters(id, mark, counters)
        })?;
        let failures = Failures {
            replay_window: raw.replay_window_failures,
            replay: raw.replay_failures,
            integrity_failed: raw.integrity_failures,
        };
        let last_used = attributes.read::<u64>(AttributeType::LastUsed);
        let last_used = last_used.map(|seconds| self.calendar.moment(seconds));
        database.set_history(&sa, History { failures, last_used, lifecycle: Lifecycle::Valid });
        Ok(Restored::State(sa))
    }

    fn restore_policy(&self, message: Message<'_>, database: &mut Database) -> Result<(), Refusal> {
        let (raw, attributes) = parts::<RawPolicy>(message)?;
        let policy = decode_policy::shown(&raw, &attributes)?;
        // A policy's moments are whole seconds: the one that the calendar showed as this.
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

fn begin(kind: MessageType) -> Datagram {
    let mut datagram = Datagram::new();
    datagram.begin(kind as u16, Flags::REQUEST.bits(), 0, 0);
    datagram
}

/// A message's structure, and its attributes.
fn parts<T: zerocopy::FromBytes>(message: Message<'_>) -> Result<(T, Attributes<'_>), Refusal> {
    let body = message.body();
    let (raw, _) = T::read_from_prefix(body).map_err(|_| Refusal::bare(number::EINVAL))?;
    let start = aligned(size_of::<T>());
    let tail = body.get(start..).unwrap_or_default();
    Ok((raw, Attributes::parse(tail, HEADER_LEN + start)?))
}
