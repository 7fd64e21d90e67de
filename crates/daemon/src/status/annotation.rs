//! What is known of a captured packet beside its bytes: verdict, policy, state.
//!
//! Of a dropped packet the worker knows it. For all others it is looked up here, in the snapshot of
//! when the packet is told, so that workers copy bytes and nothing more. Answers are remembered
//! until states or policies change.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use uxfrm_engine::{
    Action, CapturePoint, Direction, DropReason, FlowKey, PacketWay, PolicyEntry, PolicyIndex, Sa,
    SaId, SaProtocol, SaSubject, Settings, Snapshot, Spi, TappedPacket,
    explain::{outbound::OutboundOutcome, states::template_misfits},
};
use uxfrm_status::explanation::FlowOutcome;

use crate::clock::now;

/// Flows and states that are remembered.
const REMEMBERED: usize = 4096;
/// States or policies among which is searched for those that belong together.
const SEARCHED: usize = 20_000;

/// What is known of a packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Annotation {
    /// What becomes of it.
    pub(super) verdict: Option<FlowOutcome>,
    /// Why it is dropped.
    pub(super) reason: Option<DropReason>,
    /// The policy that decides.
    pub(super) policy: Option<PolicyIndex>,
    /// The states that it leaves by, or may have come by.
    pub(super) states: Vec<SaSubject>,
}

/// What annotations are made from, and those that were made.
#[derive(Debug, Default)]
pub(super) struct Annotator {
    generation: Option<u64>,
    settings: Settings,
    flows: HashMap<(PacketWay, FlowKey), Annotation>,
    states: HashMap<(PacketWay, IpAddr, Spi), Annotation>,
}

impl Annotator {
    /// Forgets what was found in another snapshot.
    pub(super) fn begin(&mut self, snapshot: &Snapshot, settings: &Settings) {
        if self.generation == Some(snapshot.generation) {
            return;
        }
        self.generation = Some(snapshot.generation);
        let settings = settings.clone();
        self.settings = match &snapshot.host {
            Some(host) => settings.with_host(host),
            None => settings,
        };
        self.flows.clear();
        self.states.clear();
    }

    /// What is known of a packet.
    pub(super) fn annotate(&mut self, snapshot: &Snapshot, packet: &TappedPacket) -> Annotation {
        if let Some(note) = &packet.drop {
            return Annotation {
                verdict: Some(FlowOutcome::Dropped),
                reason: Some(note.reason),
                policy: note.policy,
                states: note.sa.into_iter().collect(),
            };
        }
        let Some(flow) = &packet.headers.flow else { return Annotation::default() };
        match (packet.point, packet.headers.esp) {
            (CapturePoint::Plain(way), _) => self.plain(snapshot, way, flow),
            (CapturePoint::Wire(way), Some(esp)) => self.esp(snapshot, way, flow, esp.spi),
            (CapturePoint::Wire(PacketWay::Out), None) => {
                Annotation { verdict: Some(FlowOutcome::LeavesPlain), ..Annotation::default() }
            }
            (CapturePoint::Wire(PacketWay::In) | CapturePoint::Drop(_), None)
            | (CapturePoint::Drop(_), Some(_)) => Annotation::default(),
        }
    }

    fn plain(&mut self, snapshot: &Snapshot, way: PacketWay, flow: &FlowKey) -> Annotation {
        if let Some(known) = self.flows.get(&(way, *flow)) {
            return known.clone();
        }
        let annotation = match way {
            PacketWay::Out => self.outgoing(snapshot, flow),
            PacketWay::In => self.delivered(snapshot, flow),
        };
        if self.flows.len() == REMEMBERED {
            self.flows.clear();
        }
        self.flows.insert((way, *flow), annotation.clone());
        annotation
    }

    fn outgoing(&self, snapshot: &Snapshot, flow: &FlowKey) -> Annotation {
        let (policies, outcome) = OutboundOutcome::of(snapshot, &self.settings, flow, now());
        let policy = policies.last().copied();
        let (verdict, reason, states) = match outcome {
            OutboundOutcome::Plain => (FlowOutcome::LeavesPlain, None, Vec::new()),
            OutboundOutcome::Protected(path) => {
                let states = path.states.iter().map(|sa| SaSubject::from(&**sa)).collect();
                (FlowOutcome::LeavesProtected, None, states)
            }
            OutboundOutcome::Waits(_) => (FlowOutcome::Waits, None, Vec::new()),
            OutboundOutcome::Dropped(reason) => (FlowOutcome::Dropped, Some(reason), Vec::new()),
        };
        Annotation { verdict: Some(verdict), reason, policy, states }
    }

    /// A packet that has passed: it came by a state that its policy's template takes.
    fn delivered(&self, snapshot: &Snapshot, flow: &FlowKey) -> Annotation {
        let direction = match self.settings.addresses.holds(flow.destination) {
            true => Direction::In,
            false => Direction::Forward,
        };
        let policy = snapshot.spd.deciding(direction, flow).last();
        let states = match policy {
            Some(entry) if snapshot.sad.len() <= SEARCHED => {
                let fits = |sa: &&Arc<Sa>| satisfies(sa, entry);
                snapshot.sad.iter().filter(fits).map(|sa| SaSubject::from(&**sa)).collect()
            }
            Some(_) | None => Vec::new(),
        };
        Annotation {
            verdict: Some(FlowOutcome::ComesIn),
            reason: None,
            policy: policy.map(|entry| entry.index()),
            states,
        }
    }

    fn esp(
        &mut self,
        snapshot: &Snapshot,
        way: PacketWay,
        outer: &FlowKey,
        spi: Spi,
    ) -> Annotation {
        let key = (way, outer.destination, spi);
        if let Some(known) = self.states.get(&key) {
            return known.clone();
        }
        let annotation = of_state(snapshot, way, outer.destination, spi);
        if self.states.len() == REMEMBERED {
            self.states.clear();
        }
        self.states.insert(key, annotation.clone());
        annotation
    }
}

/// An ESP packet, by its state and a policy that uses it.
fn of_state(snapshot: &Snapshot, way: PacketWay, destination: IpAddr, spi: Spi) -> Annotation {
    let id = SaId { destination, spi, protocol: SaProtocol::Esp };
    let sa = snapshot.sad.with_id(id).next();
    let verdict = match way {
        PacketWay::Out => Some(FlowOutcome::LeavesProtected),
        // Whether it is authentic is not known yet.
        PacketWay::In => None,
    };
    let policy = sa.filter(|_| snapshot.spd.len() <= SEARCHED).and_then(|sa| {
        let is_of_way = |entry: &&Arc<PolicyEntry>| match way {
            PacketWay::Out => entry.direction() == Direction::Out,
            PacketWay::In => entry.direction() != Direction::Out,
        };
        let mut policies = snapshot.spd.iter().filter(is_of_way);
        policies.find(|entry| satisfies(sa, entry)).map(|entry| entry.index())
    });
    let states = sa.map(|sa| SaSubject::from(&**sa)).into_iter().collect();
    Annotation { verdict, reason: None, policy, states }
}

/// Whether a state is one that a template of the policy takes.
fn satisfies(sa: &Sa, entry: &PolicyEntry) -> bool {
    entry.action() == Action::Allow
        && entry.templates().any(|template| {
            let destination = template.destination;
            (destination.is_unspecified() || destination == sa.id().destination)
                && template_misfits(sa, &template, entry.if_id(), entry.device()).is_empty()
        })
}
