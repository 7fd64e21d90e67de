//! Counters of states: GETAE, NEWAE.

use uxfrm_engine::Lifecycle;

use super::{
    Call, Server,
    state::{Found, no_such_state},
};
use crate::{
    AttributeType, Datagram, MessageType, Refusal,
    decode::state as decode,
    encode::{common, state as encode},
    layout::RawAevent,
    message::Flags,
};

/// `XFRM_AE_RTHR`, `XFRM_AE_ETHR`: the answer is to have the thresholds.
const REPLAY_THRESHOLD: u32 = 1;
const TIMER_THRESHOLD: u32 = 8;

/// `xfrm_aevent_rseqth`, `xfrm_aevent_etime` as they are by default.
const DEFAULT_REPLAY_THRESHOLD: u32 = 2;
const DEFAULT_TIMER_THRESHOLD: u32 = 10;

impl Server {
    pub(super) fn counters(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let raw: RawAevent = call.head()?;
        let found = decode::id(&raw.id)
            .and_then(|id| self.find(id, decode::mark(&call.attributes), call))
            .ok_or(const { no_such_state() })?;
        let mut datagram = call.answer(MessageType::NewAe);
        match &found {
            Found::Sa(sa) => {
                let config = sa.config();
                datagram.put(&RawAevent {
                    id: encode::id(config),
                    source: crate::address::raw(config.source),
                    flags: raw.flags,
                    reqid: config.reqid.0,
                });
                encode::put_replay(&mut datagram, sa);
                datagram.attribute(AttributeType::LtimeVal, &encode::usage(sa, self.calendar));
                put_thresholds(&mut datagram, raw.flags);
                common::put_mark(&mut datagram, config.mark);
                common::put_if_id(&mut datagram, config.if_id);
                encode::put_direction(&mut datagram, config.direction);
            }
            Found::Larval(larval) => {
                let info = larval.info(self.calendar);
                datagram.put(&RawAevent {
                    id: decode::id_of(&info),
                    source: info.source,
                    flags: raw.flags,
                    reqid: info.reqid,
                });
                datagram.attribute(AttributeType::ReplayVal, &[0_u32; 3]);
                datagram.attribute(AttributeType::LtimeVal, &info.usage);
                put_thresholds(&mut datagram, raw.flags);
                common::put_mark(&mut datagram, larval.mark);
                common::put_if_id(&mut datagram, larval.if_id);
                encode::put_direction(&mut datagram, larval.direction);
            }
        }
        call.out.answer(call.client, datagram);
        Ok(())
    }

    /// Checked as in the kernel, and then refused: the engine's counters only count.
    pub(super) fn set_counters(&self, call: &Call<'_>) -> Result<(), Refusal> {
        use AttributeType as Type;
        let settable = [
            Type::LtimeVal,
            Type::ReplayVal,
            Type::ReplayEsnVal,
            Type::EtimerThresh,
            Type::ReplayThresh,
        ];
        if !settable.iter().any(|kind| call.attributes.has(*kind)) {
            return Err(Refusal::invalid("Missing required attribute for AE"));
        }
        if !call.message.flags().contains(Flags::REPLACE) {
            return Err(Refusal::invalid("NLM_F_REPLACE flag is required"));
        }
        let raw: RawAevent = call.head()?;
        let found = decode::id(&raw.id)
            .and_then(|id| self.find(id, decode::mark(&call.attributes), call))
            .ok_or(const { no_such_state() })?;
        match found {
            Found::Sa(sa) if sa.lifecycle() <= Lifecycle::Dying => {
                Err(Refusal::not_yet("Setting the counters of a state is not supported yet"))
            }
            Found::Sa(_) | Found::Larval(_) => Err(Refusal::invalid("SA must be in VALID state")),
        }
    }
}

fn put_thresholds(datagram: &mut Datagram, flags: u32) {
    if flags & REPLAY_THRESHOLD != 0 {
        datagram.attribute(AttributeType::ReplayThresh, &DEFAULT_REPLAY_THRESHOLD);
    }
    if flags & TIMER_THRESHOLD != 0 {
        datagram.attribute(AttributeType::EtimerThresh, &DEFAULT_TIMER_THRESHOLD);
    }
}
