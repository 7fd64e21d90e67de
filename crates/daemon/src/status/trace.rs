//! A client's trace: what really happened to packets, in the words of `uxfrm why`.

use uxfrm_crypto::OpenStatus;
use uxfrm_engine::{
    BundleOrigin, CacheAnswer, DatapathKind, Direction, DropNote, PacketHeaders, PacketTrace,
    PolicyIndex, PolicyOutcome, SaSubject, Snapshot, TracePort, TraceReader, TraceStep,
};
use uxfrm_status::{
    explanation::{FlowStep, StepResult},
    packet_bytes::PacketBytes,
    trace::{TraceOutcome, TraceQuery, TraceReport, TraceStatus},
};

use super::{
    board::Posted,
    capture::{esp, way},
    drops,
    watch::{PacketSource, filter},
};
use crate::{clock::epoch, wording};

/// Traces of one answer.
const TRACES: usize = 64;
/// Policies among which one is searched for by its index.
const SEARCHED: usize = 20_000;

/// A trace of some packets.
#[derive(Debug)]
pub(super) struct TraceSession {
    query: TraceQuery,
    reader: TraceReader,
}

impl TraceSession {
    /// Has the workers trace packets.
    pub(super) fn new(query: &TraceQuery, source: PacketSource<'_>) -> Self {
        let reader = TraceReader::new(source.taps, filter(&query.filter), query.packets);
        Self { query: query.clone(), reader }
    }

    /// Whether it is the trace that a request asks for.
    pub(super) fn is_for(&self, query: &TraceQuery) -> bool {
        self.query == *query
    }

    /// What has come since the last report.
    pub(super) fn report(&self, source: PacketSource<'_>, posted: &Posted) -> TraceReport {
        let snapshot = source.published.load_full();
        // Before traces are taken: those that end it are among them.
        let left = self.reader.left();
        let taken = std::iter::from_fn(|| self.reader.take()).take(TRACES);
        let telling = Telling { snapshot: &snapshot, posted };
        let traces: Vec<_> = taken.map(|trace| telling.status(&trace)).collect();
        let is_full = traces.len() == TRACES;
        let left = if is_full { left.max(1) } else { left };
        TraceReport { traces, left, passed_over: self.reader.passed_over() }
    }
}

/// What traces are told by.
#[derive(Clone, Copy)]
struct Telling<'a> {
    snapshot: &'a Snapshot,
    posted: &'a Posted,
}

impl Telling<'_> {
    fn status(self, trace: &PacketTrace) -> TraceStatus {
        let mut status = TraceStatus {
            at_ns: epoch() + trace.at.0,
            worker: trace.worker,
            way: way(trace.way),
            port: match trace.port {
                TracePort::Host => "host",
                TracePort::Protected => "protected",
                TracePort::Wire => "wire",
            }
            .to_owned(),
            length: trace.len as u64,
            packets: trace.packets,
            flow: trace.headers.flow.as_ref().map(drops::flow_status),
            esp: esp(&trace.headers),
            bytes: PacketBytes::from(trace.bytes.as_slice()),
            outcome: TraceOutcome::Consumed,
            path: None,
            cache: None,
            policies: Vec::new(),
            states: Vec::new(),
            sequence: None,
            reason: None,
            steps: Vec::new(),
        };
        for step in &trace.steps {
            let told = self.tell(step, &mut status);
            status.steps.push(told);
        }
        status
    }

    /// A step in words; its facts go into the status.
    fn tell(self, step: &TraceStep, status: &mut TraceStatus) -> FlowStep {
        match step {
            TraceStep::Path(kind) => {
                let (path, words) = match kind {
                    DatapathKind::Fast => ("fast", "fast (for single packets)"),
                    DatapathKind::Slow => ("slow", "slow"),
                };
                status.path = Some(path.to_owned());
                FlowStep::new("path", words)
            }
            TraceStep::LookUp { direction, outcome, policies, cache } => {
                let cache = cache.map(cache_word);
                if let Some(cache) = cache {
                    status.cache = Some(cache.to_owned());
                }
                status.policies.extend(policies.iter().map(|index| index.0));
                self.look_up((*direction, *outcome), policies, cache)
            }
            TraceStep::Bundle { origin, states, path_mtu, inner_mtu, limit } => {
                status.states.extend(states.iter().map(drops::state));
                let origin = match origin {
                    BundleOrigin::Cached => "cached",
                    BundleOrigin::Resolved => "made from policy and states",
                };
                let names: Vec<_> = states.iter().map(state_words).collect();
                let text = format!("{}; {origin}", names.join(", then "));
                let peer = states.last().map(|outermost| outermost.id.destination);
                let size = |peer| wording::size(*path_mtu, (*inner_mtu, *limit), peer);
                FlowStep::new("bundle", text).with_notes(peer.map(size).into_iter().collect())
            }
            TraceStep::State { sa, sequence } => {
                status.states.push(drops::state(sa));
                status.sequence.get_or_insert(*sequence);
                let text = format!("{}, number {sequence} is new to its window", state_words(sa));
                FlowStep::new("state", text)
            }
            TraceStep::Opened(opened) => opened_step(*opened),
            TraceStep::Sent { headers, len, packets } => {
                status.outcome = match headers.esp {
                    Some(_) => TraceOutcome::LeftProtected,
                    None => TraceOutcome::LeftPlain,
                };
                let sequence = headers.esp.map(|esp| esp.sequence.into());
                status.sequence = status.sequence.or(sequence);
                sent_step(headers, *len, *packets)
            }
            TraceStep::HandedOver(device) => {
                status.outcome = TraceOutcome::HandedOver;
                FlowStep::new("device", drops::device(*device, self.posted))
            }
            TraceStep::Delivered { flow, len } => {
                status.outcome = TraceOutcome::Delivered;
                let flow = flow.map_or_else(|| "no IP packet".to_owned(), |flow| flow.to_string());
                FlowStep::new("deliver", format!("{flow}, {len} B"))
            }
            TraceStep::Answered => FlowStep::new("answer", "its sender is told by an ICMP error")
                .with_result(StepResult::Doubtful),
            TraceStep::Waits => {
                status.outcome = TraceOutcome::Waits;
                FlowStep::new("wait", "for a state, or for the rest of its datagram")
                    .with_result(StepResult::Doubtful)
            }
            TraceStep::Dropped(note) => {
                status.outcome = TraceOutcome::Dropped;
                status.reason = Some(note.reason.as_str().to_owned());
                dropped_step(note)
            }
        }
    }

    fn look_up(
        self,
        (direction, outcome): (Direction, PolicyOutcome),
        policies: &[PolicyIndex],
        cache: Option<&str>,
    ) -> FlowStep {
        let says = match outcome {
            PolicyOutcome::Default => {
                let action = self.snapshot.spd.defaults().of(direction);
                format!(
                    "none matches dir {direction}; the default is to {}",
                    wording::action(action)
                )
            }
            PolicyOutcome::Block => "blocks it".to_owned(),
            PolicyOutcome::Bypass => "allows it plain".to_owned(),
            PolicyOutcome::Protect => "asks for ESP".to_owned(),
        };
        let names: Vec<_> = policies.iter().map(|index| format!("index {}", index.0)).collect();
        let mut text = says;
        if !names.is_empty() {
            text += &format!(", by {} dir {direction}", names.join(" and "));
        }
        if let Some(cache) = cache {
            text += &format!("; flow cache: {cache}");
        }
        let result = match outcome {
            PolicyOutcome::Block => StepResult::Fails,
            PolicyOutcome::Default | PolicyOutcome::Bypass | PolicyOutcome::Protect => {
                StepResult::Passes
            }
        };
        let notes = policies.iter().filter_map(|index| self.policy(*index)).collect();
        FlowStep::new("policy", text).with_result(result).with_notes(notes)
    }

    /// A policy as its line has it, if it is still there.
    fn policy(self, index: PolicyIndex) -> Option<String> {
        let spd = &self.snapshot.spd;
        if spd.len() > SEARCHED {
            return None;
        }
        let entry = spd.iter().find(|entry| entry.index() == index);
        entry.map(|entry| format!("`{}`", wording::policy(entry)))
    }
}

const fn cache_word(answer: CacheAnswer) -> &'static str {
    match answer {
        CacheAnswer::Hit => "hit",
        CacheAnswer::Miss => "miss",
        CacheAnswer::Stale => "stale",
        CacheAnswer::Bypassed => "bypassed",
    }
}

fn state_words(sa: &SaSubject) -> String {
    let (id, source) = (sa.id, sa.source);
    format!("spi {} {source} -> {} reqid {}", id.spi, id.destination, sa.reqid.0)
}

fn opened_step(opened: OpenStatus) -> FlowStep {
    let (text, result) = match opened {
        OpenStatus::Authentic => ("authentic", StepResult::Passes),
        OpenStatus::Forged => ("not authentic: the ICV is wrong", StepResult::Fails),
        OpenStatus::TooShort => ("shorter than IV and ICV", StepResult::Fails),
        OpenStatus::Pending => ("not decrypted", StepResult::Fails),
    };
    FlowStep::new("open", text).with_result(result)
}

fn sent_step(headers: &PacketHeaders, len: usize, packets: u64) -> FlowStep {
    let flow = headers.flow.map_or_else(|| "no IP packet".to_owned(), |flow| flow.to_string());
    let many = if packets > 1 { format!(" in {packets} packets") } else { String::new() };
    match headers.esp {
        Some(esp) => FlowStep::new(
            "send",
            format!("ESP {} number {}, {flow}, {len} B{many}", esp.spi, esp.sequence),
        ),
        None => FlowStep::new("send", format!("PLAIN {flow}, {len} B{many}"))
            .with_result(StepResult::Doubtful),
    }
}

fn dropped_step(note: &DropNote) -> FlowStep {
    let reason = note.reason;
    let mut notes =
        vec![format!("cause: {}", reason.cause()), format!("next: {}", reason.next_step())];
    if let Some(sa) = &note.sa {
        notes.insert(0, format!("state {}", state_words(sa)));
    }
    FlowStep::new("drop", reason.as_str()).with_result(StepResult::Fails).with_notes(notes)
}
