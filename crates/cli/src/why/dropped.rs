//! The packet of a drop record, as a question.

use anyhow::Context as _;
use uxfrm_control_client::stat;
use uxfrm_status::drops::{DropAdvice, DropQuery, DropStatus, FlowStatus};
use uxfrm_status::explanation::{EspQuery, FlowExplanation, FlowOutcome, FlowQuery, FlowWay};

/// A record, and what its reason means.
pub(super) struct DroppedPacket {
    record: DropStatus,
    advice: Option<DropAdvice>,
}

impl DroppedPacket {
    /// Asks the gateway for a record.
    ///
    /// # Errors
    /// When it has none of this number.
    pub(super) fn read(number: u64) -> anyhow::Result<Self> {
        let report = stat::read_drops(&DropQuery { from: Some(number), ..DropQuery::default() })?;
        let found = report.records.into_iter().find(|record| record.number == number);
        let record = found.with_context(|| {
            format!("no record has number {number}: `uxfrm drops` lists the last 1,024")
        })?;
        let advice = report.advice.into_iter().find(|advice| advice.reason == record.reason);
        Ok(Self { record, advice })
    }

    /// Its packet, as a question.
    ///
    /// # Errors
    /// When the packet was too broken to have addresses.
    pub(super) fn query(&self) -> anyhow::Result<FlowQuery> {
        let advice = self.advice.as_ref();
        of(&self.record).with_context(|| {
            let next = advice.map_or_else(String::new, |advice| {
                format!(" (cause: {} next: {})", advice.cause, advice.next)
            });
            format!("{} left no addresses to explain{next}", self.record.reason)
        })
    }

    /// The reason that was recorded stands: numbers, keys and sizes are only seen in the packet.
    pub(super) fn tell(self, explanation: &mut FlowExplanation) {
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
    use uxfrm_status::drops::EspStatus;

    fn record(reason: &str) -> DropStatus {
        DropStatus {
            number: 3,
            at_ms: 0,
            reason: reason.to_owned(),
            packets: 1,
            esp: None,
            flow: None,
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
}
