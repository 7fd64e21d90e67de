//! Captured and traced packets for people: a line for a packet, and lines for what it met.

use super::{
    Colour, GREEN, RED, YELLOW,
    drops::{ends, esp, flow, name},
    fragment::{Fragment, fragment},
    paint,
};
use crate::{
    capture::{CaptureSide, CapturedPacketStatus},
    drops::FlowStatus,
    explanation::{FlowOutcome, FlowStep, FlowWay, StepResult},
    packet_bytes::PacketBytes,
    quantity::count,
    trace::{TraceOutcome, TraceStatus},
};

/// Columns of the names of a trace's steps.
const STAGE_WIDTH: usize = 9;

/// What is known of a captured packet beside its bytes: the comment in a capture file.
#[must_use]
pub fn comment(packet: &CapturedPacketStatus) -> String {
    let mut parts = vec![verdict(packet)];
    parts.extend(packet.esp.as_ref().map(esp));
    parts.extend(packet.policy.map(|index| format!("policy {index}")));
    parts.extend(packet.state.as_ref().map(|state| format!("state {}", name(state))));
    parts.extend(packet.device.as_ref().map(|device| format!("device {device}")));
    parts.extend(packet.segment.map(|size| format!("segments of {size} B")));
    parts.extend(packet.packets.map(|packets| format!("{} packets", count(packets))));
    parts.push(format!("worker {}", packet.worker));
    parts.join(", ")
}

fn verdict(packet: &CapturedPacketStatus) -> String {
    let way = match packet.way {
        FlowWay::Out => "out",
        FlowWay::In => "in",
    };
    let way = match packet.side {
        CaptureSide::Plain | CaptureSide::Wire => way,
        // The reason says it, where it is known.
        CaptureSide::Drops => "",
    };
    let says = match packet.verdict {
        Some(FlowOutcome::LeavesPlain) => "plain",
        Some(FlowOutcome::LeavesProtected) => "protected",
        Some(FlowOutcome::Waits) => "waits for a state",
        Some(FlowOutcome::ComesIn) => "passes",
        Some(FlowOutcome::Dropped) => "dropped",
        None => return way.to_owned(),
    };
    match &packet.reason {
        Some(reason) => format!("{way} {says} {reason}"),
        None => format!("{way} {says}"),
    }
    .trim_start()
    .to_owned()
}

/// A line of a captured packet; `time` writes nanoseconds since 1970.
pub fn packet_line(
    packet: &CapturedPacketStatus,
    time: impl Fn(u64) -> String,
    colour: Colour,
) -> String {
    let side = match packet.side {
        CaptureSide::Plain => "plain",
        CaptureSide::Wire => "wire ",
        CaptureSide::Drops => "drop ",
    };
    let is_dropped = packet.verdict == Some(FlowOutcome::Dropped);
    let comment = comment(packet);
    let comment = if is_dropped { paint(&comment, YELLOW, colour) } else { comment };
    let what = shown(packet.flow.as_ref(), &packet.bytes);
    let (time, length) = (time(packet.at_ns), count(packet.length));
    format!("{time} {side} {what}, {length} B: {comment}\n")
}

/// A packet by its addresses and ports. Of fragments policies see no ports, so none are told.
fn shown(packet: Option<&FlowStatus>, bytes: &PacketBytes) -> String {
    let Some(packet) = packet else { return "no IP packet".to_owned() };
    match fragment(&bytes.0) {
        None => flow(packet),
        Some(Fragment::First) => format!("{} first fragment", ends(packet)),
        Some(Fragment::Later(offset)) => format!("{} fragment at {offset}", ends(packet)),
    }
}

/// A traced packet and what it met; `time` writes nanoseconds since 1970.
pub fn trace(trace: &TraceStatus, time: impl Fn(u64) -> String, colour: Colour) -> String {
    let TraceStatus { worker, port, length, packets, .. } = trace;
    let mut what: Vec<_> = trace.esp.as_ref().map(esp).into_iter().collect();
    if trace.esp.is_none() {
        what.push(shown(trace.flow.as_ref(), &trace.bytes));
    }
    let many = if *packets > 1 { format!(", {packets} packets") } else { String::new() };
    let mut text = format!(
        "{} {}, {} B{many}, from {port}, worker {worker}\n",
        time(trace.at_ns),
        what.join(", "),
        count(*length)
    );
    trace.steps.iter().for_each(|step| text += &step_line(step, colour));
    let tint = match trace.outcome {
        TraceOutcome::LeftPlain | TraceOutcome::Dropped => RED,
        TraceOutcome::LeftProtected
        | TraceOutcome::HandedOver
        | TraceOutcome::Delivered
        | TraceOutcome::Consumed => GREEN,
        TraceOutcome::Waits => YELLOW,
    };
    let words = match &trace.reason {
        Some(reason) => format!("{}: {reason}", trace.outcome.words()),
        None => trace.outcome.words().to_owned(),
    };
    text + &paint(&words, tint, colour) + "\n"
}

fn step_line(step: &FlowStep, colour: Colour) -> String {
    let tint = match step.result {
        StepResult::Passes => GREEN,
        StepResult::Doubtful => YELLOW,
        StepResult::Fails => RED,
    };
    let word = paint(&format!("{:<4}", step.result.word()), tint, colour);
    let mut text = format!("  {word} {:<STAGE_WIDTH$} {}\n", step.stage, step.text);
    for note in &step.notes {
        text += &format!("       {:<STAGE_WIDTH$} {note}\n", "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::{EspStatus, StateName};

    fn ping() -> FlowStatus {
        FlowStatus {
            source: [10, 1, 0, 1].into(),
            destination: [10, 2, 0, 1].into(),
            protocol: 1,
            source_port: 8,
            destination_port: 0,
        }
    }

    fn state() -> StateName {
        StateName {
            spi: "0x00001001".to_owned(),
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            reqid: 7,
        }
    }

    fn packet() -> CapturedPacketStatus {
        CapturedPacketStatus {
            at_ns: 5,
            side: CaptureSide::Plain,
            way: FlowWay::Out,
            worker: 1,
            length: 1284,
            bytes: PacketBytes::default(),
            flow: Some(ping()),
            esp: None,
            segment: None,
            verdict: Some(FlowOutcome::LeavesProtected),
            reason: None,
            packets: None,
            state: Some(state()),
            policy: Some(33),
            device: None,
        }
    }

    fn time(at: u64) -> String {
        format!("@{at}")
    }

    #[test]
    fn captured_packet_is_a_line() {
        assert_eq!(
            packet_line(&packet(), time, Colour::Plain),
            "@5 plain 10.1.0.1 -> 10.2.0.1 ICMP type 8 code 0, 1,284 B: out protected, policy 33, \
             state 0x00001001 192.0.2.1 -> 192.0.2.2 reqid 7, worker 1\n"
        );
        let dropped = CapturedPacketStatus {
            side: CaptureSide::Drops,
            way: FlowWay::In,
            verdict: Some(FlowOutcome::Dropped),
            reason: Some("in_replay".to_owned()),
            packets: Some(12),
            esp: Some(EspStatus {
                spi: "0x00001001".to_owned(),
                source: [192, 0, 2, 2].into(),
                destination: [192, 0, 2, 1].into(),
                ports: None,
                sequence: Some(7),
            }),
            policy: None,
            state: None,
            ..packet()
        };
        assert_eq!(
            comment(&dropped),
            "dropped in_replay, ESP 0x00001001 192.0.2.2 -> 192.0.2.1 seq 7, 12 packets, worker 1"
        );
        assert!(packet_line(&dropped, time, Colour::Ansi).contains("\x1b[33mdropped"));
        let wire = CapturedPacketStatus { verdict: None, segment: Some(1400), ..packet() };
        assert!(comment(&wire).starts_with("out, policy 33, "), "{}", comment(&wire));
        assert!(comment(&wire).contains(", segments of 1400 B, "));
    }

    #[test]
    fn fragments_are_told_by_their_place() {
        let mut bytes = vec![0; 20];
        (bytes[0], bytes[6]) = (0x45, 0x20);
        let mut piece = CapturedPacketStatus { bytes: PacketBytes(bytes), ..packet() };
        let line = |piece: &CapturedPacketStatus| packet_line(piece, time, Colour::Plain);
        let first = "10.1.0.1 -> 10.2.0.1 ICMP first fragment, 1,284 B";
        assert!(line(&piece).contains(first), "{}", line(&piece));
        (piece.bytes.0[6], piece.bytes.0[7]) = (0, 185);
        let later = "10.1.0.1 -> 10.2.0.1 ICMP fragment at 1480, 1,284 B";
        assert!(line(&piece).contains(later), "{}", line(&piece));
    }

    #[test]
    fn trace_has_a_line_for_each_step() {
        let told = TraceStatus {
            at_ns: 5,
            worker: 1,
            way: FlowWay::Out,
            port: "host".to_owned(),
            length: 84,
            packets: 3,
            flow: Some(ping()),
            esp: None,
            bytes: PacketBytes::default(),
            outcome: TraceOutcome::Dropped,
            path: Some("slow".to_owned()),
            cache: None,
            policies: vec![33],
            states: Vec::new(),
            sequence: None,
            reason: Some("out_no_state".to_owned()),
            steps: vec![
                FlowStep::new("policy", "ESP").with_notes(vec!["`policy …`".to_owned()]),
                FlowStep::new("drop", "out_no_state").with_result(StepResult::Fails),
            ],
        };
        assert_eq!(
            trace(&told, time, Colour::Plain),
            "@5 10.1.0.1 -> 10.2.0.1 ICMP type 8 code 0, 84 B, 3 packets, from host, worker 1\n  \
             ok   policy    ESP\n                 `policy …`\n  fail drop      out_no_state\nwas \
             dropped: out_no_state\n"
        );
        assert!(trace(&told, time, Colour::Ansi).contains("\x1b[31mwas dropped"));
    }
}
