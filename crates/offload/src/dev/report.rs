//! Builds reports of a device.

use std::collections::BTreeMap;

use uxfrm_engine::{Direction, OffloadKind, SaId, TrafficCounters};

use super::{
    DeviceReport, DirectionReport, EventReport, Fill, FunctionReport, LinkWord, RuleReport,
    StateReport, TableName,
};
use crate::{FunctionId, HeldState, LinkState, ModelNic, NicEvent, Trust, profile::TableSizes};

impl DeviceReport {
    /// The report of a device without its SAs; `name` and `functions` are its interfaces, in order.
    #[must_use]
    pub fn of(nic: &ModelNic, name: &str, port: Option<&str>, functions: &[String]) -> Self {
        let profile = nic.profile();
        let rules = profile
            .steering
            .map(|limits| Fill { used: nic.rules().count(), size: Some(limits.rules) });
        let function = |(vf, name): (u16, &String)| function_of(nic, vf, name);
        Self {
            name: name.to_owned(),
            ifindex: nic.device_of(FunctionId::PHYSICAL).map_or(0, |device| device.0),
            port: port.map(str::to_owned),
            profile: profile.name.clone(),
            link: Some(LinkWord::from(nic.link())),
            features: features(nic),
            tables: tables(profile.tables, nic.states(), nic.addresses()),
            policies: nic.policies(),
            functions: (0..).zip(functions).filter_map(function).collect(),
            queues: nic.queue_packets().to_vec(),
            rules,
            flows: nic
                .rules()
                .map(|(place, rule)| RuleReport { loc: place.0, rule: rule.to_string() })
                .collect(),
            tx: DirectionReport::from(nic.outward()),
            rx: DirectionReport::from(nic.inward()),
            drops: nic.drops().iter().map(|(why, n)| (why.as_str().to_owned(), n)).collect(),
            states: Vec::new(),
        }
    }
}

fn features(nic: &ModelNic) -> Vec<String> {
    let profile = nic.profile();
    let named = [
        ("esp-hw-offload", true),
        ("tx-esp-segmentation", profile.segmentation),
        ("esp-tx-csum-hw-offload", profile.checksums),
        ("esn", profile.esn),
        ("policies", profile.policies),
        ("marks", profile.marks_received),
    ];
    named.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect()
}

fn tables(
    sizes: TableSizes,
    (receiving, transmitting): (usize, usize),
    addresses: usize,
) -> BTreeMap<TableName, Fill> {
    let fill = |used, size| Fill { used, size };
    [
        (TableName::Receive, fill(receiving, sizes.receive)),
        (TableName::Transmit, fill(transmitting, sizes.transmit)),
        (TableName::Both, fill(receiving + transmitting, sizes.both)),
        (TableName::Addresses, fill(addresses, sizes.addresses)),
    ]
    .into()
}

fn function_of(nic: &ModelNic, vf: u16, name: &str) -> Option<FunctionReport> {
    let function = FunctionId::of_virtual(vf);
    let found = nic.virtual_function(function)?;
    let (receiving, transmitting) = nic.states_of(function);
    Some(FunctionReport {
        vf,
        name: name.to_owned(),
        ifindex: found.device.0,
        link: Some(LinkWord::from(nic.link_of(function))),
        trusted: found.trust == Trust::Trusted,
        receive: Fill { used: receiving, size: found.share.receive },
        transmit: Fill { used: transmitting, size: found.share.transmit },
    })
}

impl From<HeldState> for StateReport {
    fn from(held: HeldState) -> Self {
        let HeldState { handle, state, kind, direction, function, slot, counts } = held;
        Self {
            slot,
            handle: handle.0,
            kind: match kind {
                OffloadKind::Packet => "packet".to_owned(),
                OffloadKind::Crypto => "crypto".to_owned(),
            },
            dir: match direction {
                Direction::In => "in".to_owned(),
                Direction::Out | Direction::Forward => "out".to_owned(),
            },
            dst: state.destination,
            spi: state.spi.0,
            vf: function.0.checked_sub(1),
            packets: counts.packets,
            bytes: counts.bytes,
            oseq: counts.sent,
            seq: counts.received,
            replay: counts.failures.replay,
            replay_window: counts.failures.replay_window,
            integrity_failed: counts.failures.integrity_failed,
        }
    }
}

impl EventReport {
    /// An event without an SA: `added`, `deleted`.
    #[must_use]
    pub fn bare(device: &str, event: &str) -> Self {
        let (device, event) = (device.to_owned(), event.to_owned());
        Self { device, event, handle: None, spi: None, dst: None }
    }

    /// An event of interface `device`.
    #[must_use]
    pub fn of(device: &str, event: NicEvent) -> Self {
        let (word, about) = match event {
            NicEvent::SoftLimit { handle, state } => ("soft-limit", Some((handle, state))),
            NicEvent::HardLimit { handle, state } => ("hard-limit", Some((handle, state))),
            NicEvent::SequenceWrap { handle, state } => ("sequence-wrap", Some((handle, state))),
            NicEvent::SequenceEnd { handle, state } => ("sequence-end", Some((handle, state))),
            NicEvent::LinkDown => ("link-down", None),
            NicEvent::LinkUp => ("link-up", None),
        };
        let state = about.map(|(_, state): (_, SaId)| state);
        Self {
            handle: about.map(|(handle, _)| handle.0),
            spi: state.map(|state| state.spi.0),
            dst: state.map(|state| state.destination),
            ..Self::bare(device, word)
        }
    }
}

impl From<LinkState> for LinkWord {
    fn from(link: LinkState) -> Self {
        match link {
            LinkState::Up => Self::Up,
            LinkState::Down => Self::Down,
        }
    }
}

impl From<LinkWord> for LinkState {
    fn from(word: LinkWord) -> Self {
        match word {
            LinkWord::Up => Self::Up,
            LinkWord::Down => Self::Down,
        }
    }
}

impl From<TrafficCounters> for DirectionReport {
    fn from(traffic: TrafficCounters) -> Self {
        let TrafficCounters { received, sent, sent_bytes, dropped, held, .. } = traffic;
        Self { received, passed: sent, bytes: sent_bytes, dropped, held }
    }
}
