//! The packet of a drop record, as a question.

use anyhow::Context as _;
use uxfrm_control_client::stat;
use uxfrm_status::drops::{DropQuery, DropStatus, FlowStatus};
use uxfrm_status::explanation::{EspQuery, FlowQuery, FlowWay};

/// Asks the gateway for a record.
///
/// # Errors
/// When it has none of this number; when its packet was too broken to have a flow.
pub(super) fn query(number: u64) -> anyhow::Result<FlowQuery> {
    let report = stat::read_drops(&DropQuery { from: Some(number), ..DropQuery::default() })?;
    let record = report.records.iter().find(|record| record.number == number);
    let record = record.with_context(|| {
        format!("no record has number {number}: `uxfrm drops` lists the last 1,024")
    })?;
    of(record).with_context(|| {
        format!("what was dropped as {} has no addresses that can be read", record.reason)
    })
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
