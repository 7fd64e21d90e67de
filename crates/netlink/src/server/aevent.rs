//! Counters of states: GETAE, NEWAE, and notifications (aevents).
//!
//! The kernel notifies after a number of packets; uxfrm polls counters at most ten times a second.

use std::time::Duration;

use uxfrm_engine::{AeventCause, AeventThresholds, Lifecycle, Moment, Sa, Snapshot};
use uxfrm_netlink_wire::NetlinkFlags;

use super::{
    Call, Server,
    client::Groups,
    outbox::Outbox,
    state::{ReplyAttributes, no_such_state},
};
use crate::{
    AttributeType, MessageType, NetlinkDatagram, NetlinkError,
    decode::{replay, state as decode},
    encode::{common, state as encode},
    layout::RawAevent,
};

/// `XFRM_AE_RTHR`, `XFRM_AE_ETHR`: the answer is to have the thresholds.
const REPLAY_THRESHOLD: u32 = 1;
const TIMER_THRESHOLD: u32 = 8;

/// `XFRM_AE_CR`, `_CE`, `_CU`: why counters are told.
const CAUSE_PACKETS: u32 = 16;
const CAUSE_TIME: u32 = 32;
const CAUSE_UPDATE: u32 = 64;

/// Interval of counter polls: the unit of the timer thresholds.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// States that are polled within a fraction of [`PAUSE`].
const QUICKLY_LOOKED_AT: usize = 100_000;

impl Server {
    pub(super) fn counters(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let raw: RawAevent = call.head()?;
        let found = decode::id(&raw.id)
            .and_then(|id| self.find(id, decode::mark(&call.attributes), call))
            .ok_or(const { no_such_state() })?;
        if let ReplyAttributes::Sa(sa) = &found {
            call.database.update_counts(sa);
        }
        let mut datagram = call.answer(MessageType::NewAe);
        match &found {
            ReplyAttributes::Sa(sa) => self.put_counters(&mut datagram, sa, raw.flags),
            ReplyAttributes::Larval(larval) => {
                let info = larval.info(self.calendar);
                datagram.put(&RawAevent {
                    id: decode::id_of(&info),
                    source: info.source,
                    flags: raw.flags,
                    reqid: info.reqid,
                });
                datagram.attribute(AttributeType::ReplayVal, &[0_u32; 3]);
                datagram.attribute(AttributeType::LtimeVal, &info.usage);
                put_thresholds(&mut datagram, raw.flags, AeventThresholds::default());
                common::put_mark(&mut datagram, larval.mark);
                common::put_if_id(&mut datagram, larval.if_id);
                encode::put_direction(&mut datagram, larval.direction);
            }
        }
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// NEWAE: sets counters to those of another node (HA), and notifies.
    pub(super) fn set_counters(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        use AttributeType as Type;
        let settable = [
            Type::LtimeVal,
            Type::ReplayVal,
            Type::ReplayEsnVal,
            Type::EtimerThresh,
            Type::ReplayThresh,
        ];
        if !settable.iter().any(|kind| call.attributes.has(*kind)) {
            return Err(NetlinkError::invalid("Missing required attribute for AE"));
        }
        if !call.message.flags().contains(NetlinkFlags::REPLACE) {
            return Err(NetlinkError::invalid("NLM_F_REPLACE flag is required"));
        }
        let raw: RawAevent = call.head()?;
        let mark = decode::mark(&call.attributes);
        let found = decode::id(&raw.id)
            .and_then(|id| self.find(id, mark, call))
            .ok_or(const { no_such_state() })?;
        let sa = match found {
            ReplyAttributes::Sa(sa) if sa.lifecycle() <= Lifecycle::Dying => sa,
            ReplyAttributes::Sa(_) | ReplyAttributes::Larval(_) => {
                return Err(NetlinkError::invalid("SA must be in VALID state"));
            }
        };
        let window = sa.config().window;
        let form = replay::ReplayForm::of(sa.config().flags, window);
        replay::check_size(window, form, &call.attributes)?;
        let counters = replay::counters(&call.attributes, form, self.calendar);
        call.database.apply(call.now, |change| change.set_counters(sa.id(), mark, counters))?;
        call.tell(&self.clients, Groups::AEVENTS, MessageType::NewAe, |datagram| {
            self.put_counters(datagram, &sa, CAUSE_UPDATE);
        });
        Ok(())
    }

    /// When [`Server::notify_counters`] is due: while somebody listens, a tenth of a second after
    /// the last call, and another tenth for each 100,000 states.
    #[must_use]
    pub fn poll_counters(&self) -> Option<Moment> {
        let listening = self.clients.are_listening(Groups::AEVENTS);
        listening.then(|| self.next_look.unwrap_or_default())
    }

    /// Notifies listeners of states whose counters exceed their thresholds. `snapshot` is the
    /// newest; does nothing before [`Server::poll_counters`].
    pub fn notify_counters(&mut self, snapshot: &Snapshot, now: Moment, out: &mut Outbox) {
        if !self.clients.are_listening(Groups::AEVENTS) {
            self.next_look = None;
            return;
        }
        if self.next_look.is_some_and(|at| now < at) {
            return;
        }
        self.next_look = Some(now.plus(PAUSE * pauses(snapshot.sad.len())));
        for sa in snapshot.sad.iter() {
            let Some(cause) = sa.due(now) else { continue };
            let cause = match cause {
                AeventCause::Packets => CAUSE_PACKETS,
                AeventCause::Time => CAUSE_TIME,
            };
            out.multicast(&self.clients, Groups::AEVENTS, || {
                let mut datagram = super::notify::begin(MessageType::NewAe, 0);
                self.put_counters(&mut datagram, sa, cause);
                datagram
            });
        }
    }

    /// `build_aevent`.
    fn put_counters(&self, datagram: &mut NetlinkDatagram, sa: &Sa, flags: u32) {
        let config = sa.config();
        datagram.put(&RawAevent {
            id: encode::id(sa),
            source: crate::address::raw(sa.source()),
            flags,
            reqid: sa.reqid().0,
        });
        encode::put_replay(datagram, sa);
        datagram.attribute(AttributeType::LtimeVal, &encode::usage(sa, self.calendar));
        put_thresholds(datagram, flags, sa.thresholds());
        common::put_mark(datagram, config.mark);
        common::put_if_id(datagram, config.if_id);
        encode::put_direction(datagram, config.direction);
    }
}

/// Poll intervals to skip: a poll takes time in proportion to states, and its share of time stays
/// constant.
fn pauses(states: usize) -> u32 {
    u32::try_from(states / QUICKLY_LOOKED_AT).unwrap_or(u32::MAX).saturating_add(1)
}

fn put_thresholds(datagram: &mut NetlinkDatagram, flags: u32, thresholds: AeventThresholds) {
    if flags & REPLAY_THRESHOLD != 0 {
        datagram.attribute(AttributeType::ReplayThresh, &thresholds.packets);
    }
    if flags & TIMER_THRESHOLD != 0 {
        datagram.attribute(AttributeType::EtimerThresh, &thresholds.time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_poll_interval_grows_with_states() {
        assert_eq!([0, 99_999, 100_000, 1_000_000].map(pauses), [1, 1, 2, 11]);
    }
}
