//! What is known of the gateway: the last two samples, and whether it answers.

use std::collections::VecDeque;

use super::{
    sample::{Interval, Sample, WorkerRates},
    source::Reading,
};

/// Samples of the line of rates.
const HISTORY: usize = 240;

/// Whether the gateway answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// It has not been heard yet.
    Waiting,
    /// It answers.
    Live,
    /// It does not, and why.
    Gone(String),
}

/// Rates of the whole gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Bytes and packets a second to the host.
    pub(crate) inbound: Option<(f64, f64)>,
    /// From the host.
    pub(crate) outbound: Option<(f64, f64)>,
    /// Packets dropped in a second.
    pub(crate) dropped: Option<f64>,
}

/// The model.
#[derive(Debug)]
pub(crate) struct Model {
    now: Option<Box<Sample>>,
    before: Option<Box<Sample>>,
    pub(crate) connection: Connection,
    /// Bits a second in and out, the latest last.
    pub(crate) history: VecDeque<(u64, u64)>,
}

impl Model {
    /// Nothing is known.
    pub(crate) fn new() -> Self {
        let history = VecDeque::new();
        Self { now: None, before: None, connection: Connection::Waiting, history }
    }

    /// Takes what the gateway said. Counters of another process begin anew.
    pub(crate) fn take(&mut self, reading: Reading) {
        let sample = match reading {
            Ok(sample) => sample,
            Err(reason) => {
                // Rates of what was before are no more: what is known stays, without them.
                self.before = None;
                return self.connection = Connection::Gone(reason);
            }
        };
        self.connection = Connection::Live;
        let earlier = self.before.take();
        self.before = self.now.take().filter(|before| sample.continues(before));
        if let (Some(before), Some(earlier)) = (&mut self.before, earlier) {
            before.keep_workers(&sample, &earlier);
        }
        self.now = Some(sample);
        self.remember();
    }

    /// Whether the rates of the workers are known.
    pub(crate) fn has_rates(&self) -> bool {
        self.totals().inbound.is_some()
    }

    /// The latest sample, with the one before it.
    pub(crate) fn interval(&self) -> Option<Interval<'_>> {
        let now = self.now.as_deref()?;
        Some(Interval { now, before: self.before.as_deref() })
    }

    /// Rates of the whole gateway.
    pub(crate) fn totals(&self) -> Totals {
        let Some(interval) = self.interval() else { return Totals::default() };
        let rates: Option<Vec<_>> =
            interval.workers().map(|(now, before)| WorkerRates::between(before?, now)).collect();
        let rates = rates.filter(|rates| !rates.is_empty());
        let sum = |part: fn(&WorkerRates) -> (f64, f64)| {
            let parts = rates.as_ref()?.iter().map(part);
            Some(parts.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1)))
        };
        Totals {
            inbound: sum(|rates| (rates.inbound.bytes, rates.inbound.packets)),
            outbound: sum(|rates| (rates.outbound.bytes, rates.outbound.packets)),
            dropped: interval.rate(|sample| Some(sample.status.totals.dropped)),
        }
    }

    fn remember(&mut self) {
        let Totals { inbound, outbound, .. } = self.totals();
        let Some(((inbound, _), (outbound, _))) = inbound.zip(outbound) else { return };
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((whole(inbound * 8.0), whole(outbound * 8.0)));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and a rate is not negative"
)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn workers_that_are_asked_more_often_than_they_tell_keep_their_rates() {
        let (before, now) = fixture::pair();
        let mut model = Model::new();
        model.take(Ok(Box::new(before)));
        assert!(!model.has_rates());
        model.take(Ok(Box::new(now.clone())));
        let rates = model.totals();
        model.take(Ok(Box::new(now)));
        assert_eq!(model.totals().outbound, rates.outbound);
        assert!(model.has_rates() && rates.outbound.is_some());
    }

    #[test]
    fn a_gateway_that_goes_and_comes_is_said_and_begins_anew() {
        let (before, now) = fixture::pair();
        let mut model = Model::new();
        assert!(model.interval().is_none() && model.connection == Connection::Waiting);
        model.take(Ok(Box::new(before)));
        model.take(Ok(Box::new(now.clone())));
        assert_eq!(model.totals().dropped, Some(2.0));
        assert_eq!(model.totals().outbound, Some((625_000.0, 500.0)));
        assert_eq!(model.history.len(), 1);
        model.take(Err("no uxfrm runs".to_owned()));
        assert_eq!(model.connection, Connection::Gone("no uxfrm runs".to_owned()));
        assert!(model.interval().is_some(), "what was known is shown on");
        assert_eq!(model.totals(), Totals::default(), "and no rate, as nothing moves");
        let mut other = now;
        other.status.gateway.pid += 1;
        model.take(Ok(Box::new(other)));
        assert_eq!(
            (model.connection.clone(), model.totals()),
            (Connection::Live, Totals::default())
        );
    }
}
