//! Requests about states.

use std::sync::Arc;

use uxfrm_engine::{Mark, Sa, SaConfig, SaId};

use super::{Call, Server, client::Groups, larval::Larval, notify};
use crate::{
    AttributeType, MessageType, NetlinkDatagram, NetlinkError,
    decode::{common, replay, state as decode},
    encode::{common::Calendar, state as encode},
    layout::{RawExpire, RawSa, RawSaId},
    refusal::number,
};

/// A state or a larval state.
#[derive(Debug)]
pub(super) enum ReplyAttributes {
    Sa(Arc<Sa>),
    Larval(Larval),
}

impl Server {
    /// NEWSA. An SPI of a larval state counts as taken, as in the kernel: UPDSA completes it.
    pub(super) fn new_sa(&mut self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let config = decode::config(&call.head::<RawSa>()?, &call.attributes)?;
        self.check_pcpu(call, number::ERANGE)?;
        if self.larvals.find(config.id, config.mark).is_some() {
            return Err(NetlinkError::bare(number::EEXIST));
        }
        let sa = self.add(call, config)?;
        self.larvals.remove_answered_by(&sa);
        self.notify_sa(MessageType::NewSa, &sa, call);
        Ok(())
    }

    /// UPDSA: changes a state, or completes a larval one.
    pub(super) fn update_sa(&mut self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let config = decode::config(&call.head::<RawSa>()?, &call.attributes)?;
        self.check_pcpu(call, number::ERANGE)?;
        let (id, mark) = (config.id, config.mark);
        let Some(larval) = self.larvals.find(id, mark) else {
            let sa = call.database.apply(call.now, |change| change.update_sa(config))?;
            self.notify_sa(MessageType::UpdSa, &sa, call);
            return Ok(());
        };
        if config.direction.is_some() && larval.direction != config.direction {
            return Err(no_such_state());
        }
        let sa = self.add(call, config)?;
        self.larvals.take(id, mark);
        self.notify_sa(MessageType::UpdSa, &sa, call);
        Ok(())
    }

    pub(super) fn delete_sa(&mut self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let (id, mark) = sa_id(&call.head()?, call)?;
        let found = self.remove(id, mark, call)?;
        call.tell(&self.clients, Groups::SA, MessageType::DelSa, |datagram| match &found {
            ReplyAttributes::Sa(sa) => {
                datagram.put(&encode::id(sa));
                datagram.attribute(AttributeType::Sa, &encode::info(sa, self.calendar));
                encode::attributes(datagram, sa, self.calendar);
            }
            ReplyAttributes::Larval(larval) => {
                let info = larval.info(self.calendar);
                datagram.put(&decode::id_of(&info)).attribute(AttributeType::Sa, &info);
                larval.attributes(datagram);
            }
        });
        Ok(())
    }

    /// GETSA of one.
    pub(super) fn one_sa(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let (id, mark) = sa_id(&call.head()?, call)?;
        let found = self.find(id, mark, call).ok_or(const { no_such_state() })?;
        if let ReplyAttributes::Sa(sa) = &found {
            call.database.update_counts(sa);
        }
        let mut datagram = call.answer(MessageType::NewSa);
        found.put(&mut datagram, self.calendar);
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// An empty flush is no error and is not notified.
    pub(super) fn flush_sas(&mut self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let protocol: u8 = call.head()?;
        let doomed: Vec<_> = {
            let snapshot = call.database.current();
            let meant = |sa: &&Arc<Sa>| common::protocol_is_meant(sa.id().protocol, protocol);
            snapshot.sad.iter().filter(meant).map(|sa| (sa.id(), sa.config().mark)).collect()
        };
        let gone = call.database.apply(call.now, |change| {
            doomed.iter().filter(|(id, mark)| change.delete_sa(*id, *mark).is_ok()).count()
        });
        if gone + self.larvals.flush(protocol) != 0 {
            call.tell(&self.clients, Groups::SA, MessageType::FlushSa, |datagram| {
                datagram.put(&protocol);
            });
        }
        Ok(())
    }

    /// EXPIRE from a client: notifies, and deletes on a hard limit.
    pub(super) fn expire_sa(&self, call: &mut Call<'_>) -> Result<(), NetlinkError> {
        let raw: RawExpire = call.head()?;
        let mark = decode::mark(&call.attributes);
        let id = decode::id(&decode::id_of(&raw.sa)).ok_or(NetlinkError::bare(number::ENOENT))?;
        let sa = match self.find(id, mark, call) {
            Some(ReplyAttributes::Sa(sa)) => sa,
            Some(ReplyAttributes::Larval(_)) => {
                return Err(NetlinkError::invalid("SA must be in VALID state"));
            }
            None => return Err(NetlinkError::bare(number::ENOENT)),
        };
        let pid = call.message.header.pid;
        call.out.multicast(&self.clients, Groups::EXPIRE, || {
            notify::sa_expired(&sa, notify::Limit::of_byte(raw.hard), pid, self.calendar)
        });
        if raw.hard != 0 {
            call.database.apply(call.now, |change| change.delete_sa(id, mark))?;
        }
        Ok(())
    }

    /// Looks up a state, larval ones included.
    pub(super) fn find(&self, id: SaId, mark: Mark, call: &Call<'_>) -> Option<ReplyAttributes> {
        let larval = || self.larvals.find(id, mark).cloned().map(ReplyAttributes::Larval);
        let snapshot = call.database.current();
        snapshot
            .sad
            .find(id, mark.value & mark.mask)
            .cloned()
            .map(ReplyAttributes::Sa)
            .or_else(larval)
    }

    fn remove(
        &mut self,
        id: SaId,
        mark: Mark,
        call: &mut Call<'_>,
    ) -> Result<ReplyAttributes, NetlinkError> {
        if let Ok(sa) = call.database.apply(call.now, |change| change.delete_sa(id, mark)) {
            return Ok(ReplyAttributes::Sa(sa));
        }
        self.larvals.take(id, mark).map(ReplyAttributes::Larval).ok_or(const { no_such_state() })
    }

    /// Adds a state with the counters of its request.
    fn add(&self, call: &mut Call<'_>, config: SaConfig) -> Result<Arc<Sa>, NetlinkError> {
        let form = replay::ReplayForm::of(config.flags, config.replay.window);
        let counters = replay::counters(&call.attributes, form, self.calendar);
        let (id, mark) = (config.id, config.mark);
        Ok(call.database.apply(call.now, |change| {
            change.add_sa(config)?;
            // Its own counters do not go back; sequence numbers were checked with the state.
            change.set_counters(id, mark, counters)
        })?)
    }

    fn notify_sa(&self, kind: MessageType, sa: &Sa, call: &mut Call<'_>) {
        call.tell(&self.clients, Groups::SA, kind, |datagram| {
            datagram.put(&encode::info(sa, self.calendar));
            encode::attributes(datagram, sa, self.calendar);
        });
    }
}

impl ReplyAttributes {
    /// Structure and attributes of NEWSA.
    pub(super) fn put(&self, datagram: &mut NetlinkDatagram, calendar: Calendar) {
        match self {
            Self::Sa(sa) => {
                datagram.put(&encode::info(sa, calendar));
                encode::attributes(datagram, sa, calendar);
            }
            Self::Larval(larval) => {
                datagram.put(&larval.info(calendar));
                larval.attributes(datagram);
            }
        }
    }
}

/// The id that a request names. Protocols without SPIs are looked up by addresses: none exist here.
pub(super) fn sa_id(raw: &RawSaId, call: &Call<'_>) -> Result<(SaId, Mark), NetlinkError> {
    const WITH_SPI: [u8; 3] = [50, 51, 108];
    let by_address = !WITH_SPI.contains(&raw.protocol);
    if by_address && !call.attributes.has(AttributeType::SrcAddr) {
        return Err(NetlinkError::bare(number::EINVAL));
    }
    let id = decode::id(raw).filter(|_| !by_address).ok_or(const { no_such_state() })?;
    Ok((id, decode::mark(&call.attributes)))
}

pub(super) const fn no_such_state() -> NetlinkError {
    NetlinkError::bare(number::ESRCH)
}
