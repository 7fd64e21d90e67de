//! The packet of a drop record, as a question of what it would meet.

use crate::{
    drops::{DropAdvice, DropQuery, DropReport, DropStatus, FlowStatus},
    explanation::{EspQuery, FlowExplanation, FlowOutcome, FlowQuery, FlowWay},
};

/// A record, and what its reason means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedPacket {
    record: DropStatus,
    advice: Option<DropAdvice>,
}

/// Why nothing can be asked about a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is none of this number.
    #[error("no record has number {0}: `uxfrm drops` lists the last 1,024")]
    Unknown(u64),
    /// The packet was too broken to have addresses.
    #[error("{reason} left no addresses to explain{next}")]
    NoAddresses {
        /// Why it was dropped.
        reason: String,
        /// Cause and next step of that, if they are known.
        next: String,
    },
}

impl DroppedPacket {
    /// What to ask the gateway for, so that the record is in its answer.
    #[must_use]
    pub fn request(number: u64) -> DropQuery {
        DropQuery { from: Some(number), ..DropQuery::default() }
    }

    /// The record of this number in an answer.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn find(report: &DropReport, number: u64) -> Result<Self, Error> {
        let record = report.records.iter().find(|record| record.number == number);
        let record = record.cloned().ok_or(Error::Unknown(number))?;
        let advice = report.advice.iter().find(|advice| advice.reason == record.reason).cloned();
        Ok(Self { record, advice })
    }

    /// Its packet, as a question.
    ///
    /// # Errors
    /// [`Error::NoAddresses`].
    pub fn query(&self) -> Result<FlowQuery, Error> {
        of(&self.record).ok_or_else(|| {
            let words = |DropAdvice { cause, next, .. }: &DropAdvice| {
                format!(" (cause: {cause} next: {next})")
            };
            let next = self.advice.as_ref().map(words).unwrap_or_default();
            Error::NoAddresses { reason: self.record.reason.clone(), next }
        })
    }

    /// The reason that was recorded stands: numbers, keys and sizes are only seen in the packet.
    pub fn tell(self, explanation: &mut FlowExplanation) {
        explanation.outcome = FlowOutcome::Dropped;
        explanation.verdict = format!("was dropped: {}", self.record.reason);
        explanation.drop = self.advice;
        if self.record.flow.is_none() {
            // Policies are for what is inside, which was not seen.
            explanation.steps.retain(|step| step.stage == "state");
        }
    }
}

/// What to ask about a record. Of ESP that was not opened only the outside is known.
fn of(record: &DropStatus) -> Option<FlowQuery> {
    let is_inbound = record.reason.starts_with("in_");
    let way = if is_inbound { FlowWay::In } else { FlowWay::Out };
    let esp = record.esp.as_ref().filter(|_| is_inbound).and_then(|esp| {
        let digits = esp.spi.trim_start_matches("0x");
        let spi = u32::from_str_radix(digits, 16).ok()?;
        let (source, destination) = (Some(esp.source), Some(esp.destination));
        Some(EspQuery { spi, source, destination })
    });
    let outside = record.esp.as_ref().map(|esp| FlowStatus {
        source: esp.source,
        destination: esp.destination,
        protocol: 50,
        source_port: 0,
        destination_port: 0,
    });
    let flow = record.flow.clone().or(outside)?;
    Some(FlowQuery {
        source: flow.source,
        destination: flow.destination,
        protocol: Some(flow.protocol),
        source_port: Some(flow.source_port),
        destination_port: Some(flow.destination_port),
        mark: None,
        way: Some(way),
        esp,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::EspStatus;

    fn record(reason: &str) -> DropStatus {
        DropStatus {
            number: 3,
            at_ms: 0,
            reason: reason.to_owned(),
            packets: 1,
            esp: None,
            flow: None,
            send_error: None,
            state: None,
            policy: None,
            device: None,
            length: None,
            head: None,
        }
    }

    #[test]
    fn record_is_asked_about_by_what_it_knows() {
        let outside = EspStatus {
            spi: "0x00001009".to_owned(),
            source: [10, 9, 0, 2].into(),
            destination: [10, 9, 0, 1].into(),
            ports: None,
            sequence: Some(7),
        };
        let unopened = DropStatus { esp: Some(outside.clone()), ..record("in_no_state") };
        let query = of(&unopened).unwrap();
        assert_eq!((query.way, query.protocol), (Some(FlowWay::In), Some(50)));
        assert_eq!(query.esp.unwrap().spi, 0x1009);

        let flow = FlowStatus {
            source: [10, 1, 0, 1].into(),
            destination: [10, 2, 0, 1].into(),
            protocol: 17,
            source_port: 7,
            destination_port: 9,
        };
        let leaving =
            DropStatus { esp: Some(outside), flow: Some(flow), ..record("out_state_expired") };
        let query = of(&leaving).unwrap();
        assert_eq!((query.way, query.destination_port), (Some(FlowWay::Out), Some(9)));
        assert_eq!(query.esp, None);
        assert!(of(&record("in_malformed")).is_none());
    }

    #[test]
    fn record_is_found_by_its_number_or_it_is_said_why_not() {
        let advice = |reason: &str| DropAdvice {
            reason: reason.to_owned(),
            cause: "It is broken.".to_owned(),
            next: "`uxfrm drops`".to_owned(),
        };
        let records = vec![record("in_malformed"), record("in_replay")];
        let advice = vec![advice("in_replay"), advice("in_malformed")];
        let report = DropReport { at: 0, records, advice, next: 4, lost: 0 };
        assert_eq!(DroppedPacket::find(&report, 4), Err(Error::Unknown(4)));
        let error = DroppedPacket::find(&report, 3).unwrap().query().unwrap_err().to_string();
        assert!(
            error.starts_with("in_malformed left no addresses to explain (cause: It"),
            "{error}"
        );
    }
}
