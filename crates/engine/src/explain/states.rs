//! In what states differ from what a template or a packet demands.

use std::net::IpAddr;
use std::sync::Arc;

use super::nearest::Nearest;
use crate::{
    DeviceId, Direction, IfId, Lifecycle, Mode, OutboundQuery, PolicyEntry, Sa, SaId, Sad, Spi,
    Template,
};

/// States that do not fit and are still told, for each template or packet.
pub const MAX_NEAR_STATES: usize = 3;

/// A state that does not fit.
#[derive(Clone, Debug)]
pub struct NearState {
    /// The state.
    pub sa: Arc<Sa>,
    /// All respects in which it does not, at least one.
    pub misfits: Vec<StateMisfit>,
}

/// A respect in which a state does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateMisfit {
    /// Another destination of the outer header.
    Destination,
    /// Another source of the outer header.
    Source,
    /// Another IPsec protocol.
    Protocol,
    /// Another SPI.
    Spi,
    /// Another mode.
    Mode,
    /// Another request id.
    Reqid,
    /// Another XFRM interface.
    IfId,
    /// It is for packets with another mark.
    Mark,
    /// It belongs to another worker (`pcpu-num`).
    Cpu,
    /// Its selector does not match the packet.
    Selector,
    /// It has `dir in` and the packet leaves, or the other way round.
    Direction,
    /// It is larval, could not be made, or has expired.
    Lifecycle(Lifecycle),
    /// It is on another device than the policy, or only one of them is on any.
    Device,
}

/// The state that a template finds.
#[derive(Clone, Debug)]
pub struct TemplateExplanation {
    /// The template.
    pub template: Template,
    /// Source and destination that the state must have. An unspecified source matches any.
    pub ends: (IpAddr, IpAddr),
    /// The state that is used.
    pub state: Option<Arc<Sa>>,
    /// States that nearly fit, nearest first, at most [`MAX_NEAR_STATES`]. Empty where one is used.
    pub near: Vec<NearState>,
}

/// Whether packets by this state satisfy a template of an `in` or `fwd` policy.
#[must_use]
pub fn satisfies_inbound(sa: &Sa, entry: &PolicyEntry, template: &Template) -> bool {
    inbound_template_misfits(sa, entry, template).is_empty()
}

fn inbound_template_misfits(sa: &Sa, entry: &PolicyEntry, template: &Template) -> Vec<StateMisfit> {
    let mut misfits = template_misfits(sa, template, entry.if_id(), entry.device());
    if sa.config().direction == Some(Direction::Out) {
        misfits.push(StateMisfit::Direction);
    }
    misfits
}

impl TemplateExplanation {
    /// The state by which packets would satisfy a template of an `in` or `fwd` policy.
    #[must_use]
    pub fn of_inbound(sad: &Sad, entry: &PolicyEntry, template: Template) -> Self {
        let misfits = |sa: &Sa| inbound_template_misfits(sa, entry, &template);
        let state = sad.iter().find(|sa| misfits(sa).is_empty()).cloned();
        let near = match state {
            Some(_) => Vec::new(),
            // The check does not ask for it, but a state that was meant has it.
            None => nearest(sad, |sa| {
                let is_other = sa.id().destination != template.destination;
                let destination = is_other.then_some(StateMisfit::Destination);
                destination.into_iter().chain(misfits(sa)).collect()
            }),
        };
        Self { template, ends: (template.source, template.destination), state, near }
    }
}

/// States that nearly fit an outbound packet.
pub(super) fn near_outbound(
    sad: &Sad,
    query: &OutboundQuery<'_>,
    device: Option<DeviceId>,
) -> Vec<NearState> {
    nearest(sad, |sa| outbound_misfits(sa, query, device))
}

/// States that nearly fit an inbound packet: with its SPI, or between its ends.
pub(super) fn near_inbound(sad: &Sad, id: SaId, source: IpAddr, mark: u32) -> Vec<NearState> {
    nearest(sad, |sa| inbound_misfits(sa, id, source, mark))
}

fn nearest(sad: &Sad, misfits: impl Fn(&Sa) -> Vec<StateMisfit>) -> Vec<NearState> {
    let mut nearest = Nearest::new(MAX_NEAR_STATES);
    for sa in sad.iter() {
        let misfits = misfits(sa);
        let distance = misfits.iter().map(|misfit| misfit.distance()).sum();
        if distance < UNRELATED {
            nearest.offer(distance, || NearState { sa: Arc::clone(sa), misfits });
        }
    }
    nearest.into_vec()
}

fn outbound_misfits(
    sa: &Sa,
    query: &OutboundQuery<'_>,
    device: Option<DeviceId>,
) -> Vec<StateMisfit> {
    let (config, id) = (sa.config(), sa.id());
    let is_open = |address: IpAddr| address.is_unspecified();
    let is_source = sa.source() == query.source || is_open(sa.source()) || is_open(query.source);
    let is_usable = matches!(sa.lifecycle(), Lifecycle::Valid | Lifecycle::Dying);
    let selected = config.selector.as_ref().is_none_or(|one| one.matches(query.flow));
    collect([
        (id.destination != query.destination, StateMisfit::Destination),
        (!is_source, StateMisfit::Source),
        (id.protocol != query.protocol, StateMisfit::Protocol),
        (query.spi != Spi(0) && id.spi != query.spi, StateMisfit::Spi),
        (config.mode != query.mode, StateMisfit::Mode),
        (sa.reqid() != query.reqid, StateMisfit::Reqid),
        (config.if_id != query.if_id, StateMisfit::IfId),
        (!config.mark.fits(query.mark), StateMisfit::Mark),
        (config.pcpu.is_some_and(|cpu| cpu != query.cpu), StateMisfit::Cpu),
        (!selected, StateMisfit::Selector),
        (config.direction == Some(Direction::In), StateMisfit::Direction),
        (!is_usable, StateMisfit::Lifecycle(sa.lifecycle())),
        (sa.packet_device() != device, StateMisfit::Device),
    ])
}

fn inbound_misfits(sa: &Sa, wanted: SaId, source: IpAddr, mark: u32) -> Vec<StateMisfit> {
    let (config, id) = (sa.config(), sa.id());
    let is_usable = matches!(sa.lifecycle(), Lifecycle::Valid | Lifecycle::Dying);
    collect([
        (id.destination != wanted.destination, StateMisfit::Destination),
        (sa.source() != source && !source.is_unspecified(), StateMisfit::Source),
        (id.protocol != wanted.protocol, StateMisfit::Protocol),
        (id.spi != wanted.spi, StateMisfit::Spi),
        (!config.mark.fits(mark), StateMisfit::Mark),
        (config.direction == Some(Direction::Out), StateMisfit::Direction),
        (!is_usable, StateMisfit::Lifecycle(sa.lifecycle())),
    ])
}

/// In what a state that a packet came by differs from a template of its policy (`xfrm_state_ok`).
#[must_use]
pub fn template_misfits(
    sa: &Sa,
    template: &Template,
    if_id: IfId,
    device: Option<DeviceId>,
) -> Vec<StateMisfit> {
    let config = sa.config();
    let is_source = config.mode == Mode::Transport
        || template.source.is_unspecified()
        || template.source == sa.source();
    collect([
        (!is_source, StateMisfit::Source),
        (sa.id().protocol != template.protocol, StateMisfit::Protocol),
        (template.spi.0 != 0 && template.spi != sa.id().spi, StateMisfit::Spi),
        (config.mode != template.mode, StateMisfit::Mode),
        (template.reqid.0 != 0 && template.reqid != sa.reqid(), StateMisfit::Reqid),
        (if_id.0 != 0 && if_id != config.if_id, StateMisfit::IfId),
        (device.is_some_and(|one| sa.packet_device() != Some(one)), StateMisfit::Device),
    ])
}

fn collect<const N: usize>(misfits: [(bool, StateMisfit); N]) -> Vec<StateMisfit> {
    misfits.into_iter().filter_map(|(differs, misfit)| differs.then_some(misfit)).collect()
}

/// Sum of distances from which on a state has nothing to do with the packet. The state of the other
/// direction, whose ends are swapped, has as much.
const UNRELATED: u32 = 10;

impl StateMisfit {
    /// How much the misfit speaks against the state being the one that was meant.
    const fn distance(self) -> u32 {
        match self {
            Self::Destination | Self::Source | Self::Protocol => 5,
            Self::Mode | Self::Selector | Self::Reqid | Self::Spi => 3,
            Self::IfId | Self::Mark | Self::Cpu | Self::Direction | Self::Device => 2,
            Self::Lifecycle(_) => 1,
        }
    }
}
