//! Dropped packets for people: a line each, and what a reason means below its first one.

use std::collections::BTreeSet;

use super::{Colour, DIM, YELLOW, paint};
use crate::{
    drops::{
        DropReport, DropStatus, DropTallyReport, DropTallyStatus, EspStatus, FlowStatus, StateName,
    },
    quantity::{count, things},
};

/// Writes records, and explains each reason once.
#[derive(Clone, Debug, Default)]
pub struct DropText {
    explained: BTreeSet<String>,
}

/// One record without its number, in a line without colours.
#[must_use]
pub fn summary(record: &DropStatus) -> String {
    line(record, Colour::Plain)
}

/// Bytes that a line shows of a packet of which nothing else is known.
const SHOWN: usize = 32;

impl DropText {
    /// The records of an answer, a line each; `time` writes Unix milliseconds.
    pub fn render(
        &mut self,
        report: &DropReport,
        time: impl Fn(u64) -> String,
        colour: Colour,
    ) -> String {
        let mut text = String::new();
        for record in &report.records {
            let (time, number) = (time(record.at_ms), record.number);
            text += &format!("{time} #{number} {}\n", line(record, colour));
            let advice = report.advice.iter().find(|advice| advice.reason == record.reason);
            if let Some(advice) = advice.filter(|_| self.explained.insert(record.reason.clone())) {
                for (word, says) in [("cause", &advice.cause), ("next", &advice.next)] {
                    text += &paint(&format!("    {word}: {says}"), DIM, colour);
                    text.push('\n');
                }
            }
        }
        text
    }
}

fn line(record: &DropStatus, colour: Colour) -> String {
    let mut parts = vec![paint(&record.reason, YELLOW, colour)];
    parts.extend(record.esp.as_ref().map(esp));
    parts.extend(record.flow.as_ref().map(flow));
    let state = record.state.as_ref().filter(|_| record.esp.is_none());
    parts.extend(state.map(|state| format!("state {}", name(state))));
    let reqid = record.state.as_ref().filter(|_| record.esp.is_some());
    parts.extend(reqid.map(|state| format!("reqid {}", state.reqid)));
    parts.extend(record.policy.map(|index| format!("policy {index}")));
    parts.extend(record.device.as_ref().map(|device| format!("device {device}")));
    parts.extend(record.length.map(|length| format!("{} B", count(length))));
    if record.esp.is_none() && record.flow.is_none() {
        let head = record.head.as_ref().filter(|head| !head.is_empty());
        parts.extend(head.map(|head| format!("bytes {}", head.get(..2 * SHOWN).unwrap_or(head))));
    }
    parts.extend(record.send_error.clone());
    if record.packets > 1 {
        parts.push(format!("({})", things(record.packets, "packet", "packets")));
    }
    parts.join(", ")
}

pub(super) fn esp(esp: &EspStatus) -> String {
    let EspStatus { spi, source, destination, ports, sequence } = esp;
    let mut text = format!("ESP {spi} {source} -> {destination}");
    if let Some((from, to)) = ports {
        text += &format!(" UDP {from} {to}");
    }
    if let Some(sequence) = sequence {
        text += &format!(" seq {sequence}");
    }
    text
}

pub(super) fn flow(flow: &FlowStatus) -> String {
    let FlowStatus { protocol, source_port, destination_port, .. } = flow;
    let ports = match protocol {
        1 | 58 => format!(" type {source_port} code {destination_port}"),
        6 | 17 => format!(" {source_port} {destination_port}"),
        _other => String::new(),
    };
    ends(flow) + &ports
}

/// Addresses and protocol, of a packet whose ports are not known.
pub(super) fn ends(flow: &FlowStatus) -> String {
    let FlowStatus { source, destination, protocol, .. } = flow;
    let word = match protocol {
        1 | 58 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        50 => "ESP".to_owned(),
        other => format!("proto {other}"),
    };
    format!("{source} -> {destination} {word}")
}

pub(super) fn name(state: &StateName) -> String {
    let StateName { spi, source, destination, reqid } = state;
    format!("{spi} {source} -> {destination} reqid {reqid}")
}

/// Counts by whose packets were dropped, a line each.
#[must_use]
pub fn tallies(report: &DropTallyReport) -> String {
    let mut text = String::new();
    for tally in &report.tallies {
        let DropTallyStatus { state, policy, device, reason, packets } = tally;
        let whose = [
            state.as_ref().map(name),
            policy.map(|index| format!("policy {index}")),
            device.as_ref().map(|device| format!("device {device}")),
        ];
        let whose: Vec<_> = whose.into_iter().flatten().collect();
        text += &format!("{:<56}\t{reason:<24}\t{packets}\n", whose.join(" "));
    }
    let left = report.tallies_total.saturating_sub(report.tallies.len() as u64);
    if left > 0 {
        text += &format!("and {} with fewer packets\n", count(left));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::{DropAdvice, tests::record};

    fn report(records: Vec<DropStatus>) -> DropReport {
        let advice = |reason: &str| DropAdvice {
            reason: reason.to_owned(),
            cause: format!("Why {reason}."),
            next: "`uxfrm xfrm state`".to_owned(),
        };
        let advice = vec![advice("in_no_state"), advice("out_malformed")];
        DropReport { at: 1, records, advice, next: 9, lost: 0 }
    }

    #[test]
    fn each_reason_is_explained_below_its_first_record() {
        let mut text = DropText::default();
        let time = |at_ms: u64| format!("@{at_ms}");
        let mut second = record(6, "in_no_state");
        second.packets = 12;
        let told = report(vec![record(5, "in_no_state"), second]);
        let line = "in_no_state, ESP 0x00bad5b1 192.0.2.2 -> 192.0.2.1 seq 7, 120 B";
        let advice = "    cause: Why in_no_state.\n    next: `uxfrm xfrm state`";
        let expected = format!("@1000 #5 {line}\n{advice}\n@1000 #6 {line}, (12 packets)\n");
        assert_eq!(text.render(&told, time, Colour::Plain), expected);
        assert_eq!(text.render(&told, time, Colour::Plain).lines().count(), 2, "once");
        assert!(text.render(&told, time, Colour::Ansi).contains("\x1b[33min_no_state\x1b[0m"));
    }

    #[test]
    fn flow_state_policy_and_bytes_are_named() {
        let state = StateName {
            spi: "0x00001001".to_owned(),
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            reqid: 7,
        };
        let packet = FlowStatus {
            source: [10, 1, 0, 1].into(),
            destination: [10, 2, 0, 1].into(),
            protocol: 6,
            source_port: 40_000,
            destination_port: 443,
        };
        let mut of = record(1, "out_state_expired");
        (of.esp, of.flow, of.state) = (None, Some(packet.clone()), Some(state.clone()));
        (of.policy, of.device) = (Some(17), Some("nic0".to_owned()));
        assert_eq!(
            line(&of, Colour::Plain),
            "out_state_expired, 10.1.0.1 -> 10.2.0.1 TCP 40000 443, \
             state 0x00001001 192.0.2.1 -> 192.0.2.2 reqid 7, policy 17, device nic0, 120 B"
        );
        let ping = FlowStatus { protocol: 1, source_port: 8, destination_port: 0, ..packet };
        assert_eq!(flow(&ping), "10.1.0.1 -> 10.2.0.1 ICMP type 8 code 0");
        let mut unknown = record(1, "out_malformed");
        (unknown.esp, unknown.head) = (None, Some("45".repeat(64)));
        assert_eq!(
            line(&unknown, Colour::Plain),
            format!("out_malformed, 120 B, bytes {}", "45".repeat(32))
        );
        let tally = DropTallyStatus {
            state: Some(state),
            policy: None,
            device: None,
            reason: "in_replay".to_owned(),
            packets: 12,
        };
        let told = tallies(&DropTallyReport { at: 1, tallies: vec![tally], tallies_total: 3 });
        assert!(told.starts_with("0x00001001 192.0.2.1 -> 192.0.2.2 reqid 7 "), "{told}");
        assert!(
            told.ends_with("\tin_replay               \t12\nand 2 with fewer packets\n"),
            "{told}"
        );
    }
}
