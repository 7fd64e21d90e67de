//! Lines in the log about dropped packets: one for each reason and state every ten seconds, however
//! many packets there are.

use std::{collections::HashMap, time::Duration};

use uxfrm_engine::{DropReason, DropRecord, EspEnds, FlowKey, Moment, SaId};

use super::refused_send::RefusedSend;

/// A reason and a state have a line no more often.
const INTERVAL: Duration = Duration::from_secs(10);
/// Reasons and states that are told apart; of more, the rest share one line for each reason.
const MOST: usize = 256;

/// Whose packets were dropped, and why.
type Cause = (DropReason, Option<SaId>);

/// What was told when.
#[derive(Debug, Default)]
pub(super) struct DropLines {
    told: HashMap<Cause, LastLine>,
}

/// A line, and what came after it.
#[derive(Clone, Copy, Debug)]
struct LastLine {
    at: Moment,
    /// Packets since.
    since: u64,
}

impl DropLines {
    /// Tells a record, or counts it for the next line.
    pub(super) fn note(&mut self, record: &DropRecord, now: Moment) {
        if let Some(packets) = self.due(cause(record), record.packets, now) {
            write_line(record, packets);
        }
    }

    /// How many packets a line tells of, if one is due. Those of causes that have been quiet are
    /// forgotten.
    fn due(&mut self, cause: Cause, packets: u64, now: Moment) -> Option<u64> {
        if self.told.len() >= MOST && !self.told.contains_key(&cause) {
            self.told.retain(|_, told| now.since(told.at) < INTERVAL);
        }
        let cause = match self.told.len() >= MOST && !self.told.contains_key(&cause) {
            true => (cause.0, None),
            false => cause,
        };
        let told = self.told.entry(cause).or_insert(LastLine { at: Moment(0), since: 0 });
        told.since += packets;
        if told.at != Moment(0) && now.since(told.at) < INTERVAL {
            return None;
        }
        told.at = now;
        Some(std::mem::take(&mut told.since))
    }
}

fn cause(record: &DropRecord) -> Cause {
    (record.reason, record.subject.sa.as_ref().map(|sa| sa.id))
}

/// What is discarded as it should be is of interest only to who looks for it.
fn write_line(record: &DropRecord, packets: u64) {
    let DropRecord { reason, esp, flow, subject, errno, .. } = record;
    let cause = errno.and_then(RefusedSend::of).map_or_else(|| reason.cause(), RefusedSend::cause);
    let name = reason.as_str();
    let esp = esp.as_ref().map(|EspEnds { source, destination, spi, .. }| {
        format!("{source} -> {destination} spi {spi}")
    });
    let flow = flow.as_ref().map(FlowKey::to_string);
    let spi = subject.sa.as_ref().map(|sa| sa.id.spi.to_string());
    let policy = subject.policy.map(|index| index.0);
    if matches!(reason, DropReason::InDummy | DropReason::InKeepalive) {
        tracing::debug!(reason = name, packets, esp, flow, spi, policy, "packets discarded");
    } else {
        tracing::info!(reason = name, packets, esp, flow, spi, policy, cause, "packets dropped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_has_a_line_each_interval_that_counts_all_since() {
        let mut lines = DropLines::default();
        let cause = (DropReason::InForged, None);
        let at = |seconds| Moment::from_secs(100).plus(Duration::from_secs(seconds));
        assert_eq!(lines.due(cause, 3, at(0)), Some(3));
        assert_eq!(lines.due(cause, 5, at(4)), None);
        assert_eq!(lines.due((DropReason::InReplay, None), 1, at(4)), Some(1), "another reason");
        assert_eq!(lines.due(cause, 7, at(10)), Some(12));
        assert_eq!(lines.due(cause, 1, at(11)), None);
    }

    #[test]
    fn causes_are_bounded() {
        let mut lines = DropLines::default();
        let now = Moment::from_secs(100);
        let sa = |spi| SaId {
            destination: [10, 9, 0, 1].into(),
            spi: uxfrm_engine::Spi(spi),
            protocol: uxfrm_engine::SaProtocol::Esp,
        };
        let told = (0..5000)
            .filter(|spi| lines.due((DropReason::InForged, Some(sa(*spi))), 1, now).is_some());
        assert_eq!(told.count(), MOST + 1, "and one for all others");
        assert!(lines.told.len() <= MOST + 1);
        let later = now.plus(INTERVAL);
        assert!(lines.due((DropReason::InForged, Some(sa(9000))), 1, later).is_some());
        assert!(lines.told.len() <= 2, "those that are quiet are forgotten");
    }
}
