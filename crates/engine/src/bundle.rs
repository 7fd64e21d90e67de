//! Bundles: what policies do to a flow, computed in advance: a chain of SAs, innermost first, with
//! all lengths.
//!
//! Mirrors `net/xfrm/xfrm_policy.c: xfrm_tmpl_resolve_one` (templates to SAs) and
//! `xfrm_bundle_create` (SAs to a chain). Each worker has its own [cache] of bundles.

mod cache;
mod device;
mod tx_record;

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_packet::{Version, ipv6};

pub(crate) use cache::{BundleCache, Resolution, SaTally, SeqGrant, SeqMode};
pub(crate) use tx_record::TxRecord;

use crate::esp::encap::{EncapLayer, EncapMode, InnerInfo, OuterForm};
use crate::esp::encap_layout::EncapRoom;
use crate::events::acquire::MissingSa;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    Attachment, BundleOrigin, DropReason, DropSubject, Family, FlowKey, Mark, Mode, Moment,
    OffloadOrder, OutboundQuery, PolicyEntry, PolicyFlags, Sa, SaId, SaRequest, SaSubject,
    Settings, Snapshot, Spi, Template, TemplateLevel, TraceStep, WireHeaders,
};

/// Upper bound of SAs per packet: those of a sub policy and a main policy.
pub(crate) const MAX_LAYERS: usize = 2 * MAX_TEMPLATES;

/// The policies that decide about a packet: the one found, and the main policy behind a sub policy.
pub(crate) type Deciding<'a> = ArrayVec<&'a Arc<PolicyEntry>, 2>;

/// SAs of a chain, innermost first.
type ChainSas<'a> = ArrayVec<&'a Arc<Sa>, MAX_LAYERS>;

/// Result of the SA look-ups for a flow.
#[derive(Debug, Default)]
struct SaChain<'a> {
    states: ChainSas<'a>,
    /// Whether other flows between these addresses may use other SAs.
    is_per_flow: bool,
}

/// A chain of SAs. An empty one lets packets pass in plaintext (only optional templates, without
/// SAs). The first cache line serves the interleaved fast path, the second one most other packets.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bundle {
    pub(crate) tx_record: Option<TxRecord>,
    /// Innermost first.
    pub(crate) layers: Box<[EncapLayer]>,
    /// When to resolve again. The end of time, unless an optional template has no SA, or
    /// `flag cpu-acquire` found none of this CPU: then acquires are repeated.
    until: Moment,
    /// Room that plain packets need, if the bundle is one SA and nothing else.
    pub(crate) fast_room: Option<EncapRoom>,
    /// The largest packet that fits into the outer MTU.
    pub(crate) inner_mtu: usize,
    /// Path MTU towards the outermost destination.
    pub(crate) mtu: u16,
    /// IP version of the packets that enter.
    inner: Version,
    /// Whether some layer takes its UDP source port from the flow.
    pub(crate) uses_flow_ports: bool,
    /// Headroom for all layers.
    pub(crate) prefix: usize,
    /// Where the outermost layer is offloaded, if it is.
    pub(crate) device: Option<Attachment>,
    /// Handover for packets that fit and need nothing but the device.
    pub(crate) plain_handover: Option<OffloadOrder>,
    /// Creation sequence number.
    created: u64,
}

/// Position of a packet within its buffer, with room for all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLayout {
    /// Headroom before the plain packet.
    pub(crate) prefix: usize,
    /// Total length.
    pub(crate) total: usize,
}

impl Bundle {
    /// What it is, for a trace.
    pub(crate) fn step(&self, origin: BundleOrigin) -> TraceStep {
        let states = self.layers.iter().map(|layer| SaSubject::from(&*layer.sa)).collect();
        let (path_mtu, inner_mtu) = (self.mtu, self.inner_mtu);
        let limit = self.limit(self.inner);
        TraceStep::Bundle { origin, states, path_mtu, inner_mtu, limit }
    }

    /// Builds the bundle of a chain for packets of version `inner`.
    fn of(states: &ChainSas<'_>, inner: Version, settings: &Settings) -> Result<Self, DropReason> {
        let outermost = states.len().wrapping_sub(1);
        let mut layers = Vec::with_capacity(states.len());
        let mut version = inner;
        for (place, sa) in states.iter().enumerate() {
            let outside = match settings.headers {
                WireHeaders::UdpSocket if place == outermost => OuterForm::SocketPayload,
                WireHeaders::UdpSocket | WireHeaders::Engine => OuterForm::Packet,
            };
            let destination = sa.id().destination;
            let own = settings.addresses.like(destination);
            let layer = EncapLayer::new(sa, own, outside, settings.hop_limit)?;
            match layer.wrap {
                EncapMode::Transport if version_of(destination) != version => {
                    return Err(DropReason::OutModeMismatch);
                }
                EncapMode::Transport => {}
                EncapMode::Tunnel(_) => version = version_of(destination),
            }
            layers.push(layer);
        }
        let mtu = states.last().map_or(settings.mtu, |sa| settings.mtu_to(sa.id().destination));
        let inner_mtu = fit_mtu(&mut layers, mtu.into());
        let prefix = layers.iter().map(EncapLayer::headroom).sum();
        let uses_flow_ports = layers.iter().any(EncapLayer::uses_flow_ports);
        let device = device::device_of(states)?;
        Ok(Self {
            tx_record: None,
            plain_handover: device.and_then(|device| device::plain_handover(device, &layers)),
            uses_flow_ports,
            fast_room: match &layers[..] {
                [only] if device.is_none() => only.room(),
                _ => None,
            },
            layers: layers.into(),
            inner,
            mtu,
            inner_mtu,
            prefix,
            device,
            until: Moment(u64::MAX),
            created: 0,
        })
    }

    /// Placeholder of a removed bundle; it is never usable.
    fn gone() -> Self {
        Self {
            tx_record: None,
            layers: Box::default(),
            inner: Version::V4,
            mtu: 0,
            inner_mtu: 0,
            uses_flow_ports: false,
            fast_room: None,
            prefix: 0,
            device: None,
            plain_handover: None,
            until: Moment(0),
            created: 0,
        }
    }

    /// Whether this is the placeholder.
    fn is_gone(&self) -> bool {
        self.until == Moment(0)
    }

    /// Whether the bundle is this chain, unchanged, for packets of version `inner`, without expiry.
    fn is_of(&self, states: &ChainSas<'_>, inner: Version) -> bool {
        let same = |(layer, sa): (&EncapLayer, &&Arc<Sa>)| {
            Arc::ptr_eq(&layer.sa, sa) && layer.is_unchanged()
        };
        self.until == Moment(u64::MAX)
            && self.inner == inner
            && self.layers.len() == states.len()
            && self.layers.iter().zip(states).all(same)
    }

    /// Frame of a packet of `len` bytes; `None` if the result would exceed an IP packet.
    #[inline]
    pub(crate) fn frame(&self, len: usize, inner: &InnerInfo) -> Option<FrameLayout> {
        let mut total = len;
        if let Some((last, before)) = self.layers.split_last() {
            let mut inner = *inner;
            for layer in before {
                total = layer.sealed_len(total, &inner);
                layer.apply_to(&mut inner);
            }
            total = last.sealed_len(total, &inner);
        }
        (total <= usize::from(u16::MAX)).then_some(FrameLayout { prefix: self.prefix, total })
    }

    /// Whether the innermost SA has transport mode.
    pub(crate) fn is_transport(&self) -> bool {
        self.layers.first().is_some_and(|layer| matches!(layer.wrap, EncapMode::Transport))
    }

    /// The largest packet of a version that is let in. IPv6 senders are never told less than the
    /// minimum MTU.
    #[inline]
    pub(crate) fn limit(&self, version: Version) -> usize {
        match version {
            Version::V4 => self.inner_mtu,
            Version::V6 => self.inner_mtu.max(ipv6::LEAST_MTU),
        }
    }

    /// The outermost SA and the device, for packets that are dropped.
    #[cold]
    pub(crate) fn subject(&self) -> DropSubject {
        DropSubject {
            sa: self.layers.last().map(|layer| SaSubject::from(&*layer.sa)),
            policy: None,
            device: self.device.map(|device| device.device),
        }
    }

    /// Whether every SA is usable and none has started dying since (`xfrm_bundle_ok`,
    /// `xfrm_state_look_at`): there may be a better one.
    #[inline(always)]
    fn works(&self, now: Moment) -> bool {
        for layer in &self.layers {
            if !layer.is_unchanged() {
                return false;
            }
        }
        now < self.until
    }
}

/// Finds one SA per template; optional templates without one are left out. Records missing SAs, a
/// required one last. With `flag cpu-acquire` an SA of this CPU is missing until another serves
/// (`xfrm_state_find`).
fn resolve_chain<'a>(
    snapshot: &'a Snapshot,
    deciding: &Deciding<'_>,
    flow: &FlowKey,
    settings: &Settings,
    missing: &mut Vec<MissingSa>,
) -> Result<SaChain<'a>, DropReason> {
    let mut chain = SaChain::default();
    let (mut source, mut destination) = (flow.source, flow.destination);
    for entry in deciding {
        for (place, template) in (0..).zip(entry.templates().take(MAX_TEMPLATES)) {
            let ends = ends(&template, (source, destination));
            let query = query(entry, &template, ends, flow, settings);
            chain.is_per_flow |= snapshot.sad.has_flow_selectors(&query);
            let missing_one = |pcpu| MissingSa {
                policy: entry.index(),
                template: place,
                wanted: SaRequest { pcpu, ..wanted(&query, entry.mark(), settings) },
            };
            match snapshot.sad.lookup_outbound_on(entry.device(), &query) {
                Ok(sa) => {
                    if entry.flags().contains(PolicyFlags::CPU_ACQUIRE)
                        && sa.config().pcpu != Some(query.cpu)
                        && query.spi == Spi(0)
                    {
                        missing.push(missing_one(Some(query.cpu)));
                    }
                    (source, destination) = ends;
                    chain.states.push(sa);
                }
                Err(DropReason::OutNoState) => {
                    if template.level == TemplateLevel::Required
                        && device::is_on_other_device(snapshot, &query)
                    {
                        return Err(DropReason::OutDeviceMismatch);
                    }
                    // The SPI of the template is taken by another SA (`EEXIST` in
                    // `xfrm_state_find`).
                    if !is_taken(snapshot, &query) {
                        missing.push(missing_one(None));
                    } else if template.level == TemplateLevel::Required {
                        missing.clear();
                    }
                    if template.level == TemplateLevel::Required {
                        return Err(DropReason::OutNoState);
                    }
                }
                Err(reason) => return Err(reason),
            }
        }
    }
    Ok(chain)
}

/// The bundle of a flow, kept nowhere. Records missing SAs, a required one last.
pub(crate) fn build(
    snapshot: &Snapshot,
    deciding: &Deciding<'_>,
    flow: &FlowKey,
    settings: &Settings,
    missing: &mut Vec<MissingSa>,
) -> Result<Bundle, DropReason> {
    let chain = resolve_chain(snapshot, deciding, flow, settings, missing)?;
    Bundle::of(&chain.states, version_of(flow.destination), settings)
}

/// The first SA look-up of a flow without a bundle.
pub(crate) fn first_query<'a>(
    entry: &PolicyEntry,
    flow: &'a FlowKey,
    settings: &Settings,
) -> Option<OutboundQuery<'a>> {
    let template = entry.templates().next()?;
    let ends = ends(&template, (flow.source, flow.destination));
    Some(query(entry, &template, ends, flow, settings))
}

/// Source and destination of a packet after a template.
pub(crate) fn ends(template: &Template, inner: (IpAddr, IpAddr)) -> (IpAddr, IpAddr) {
    match template.mode {
        Mode::Transport | Mode::RouteOptimization | Mode::InTrigger => inner,
        Mode::Tunnel | Mode::Beet | Mode::Iptfs => (template.source, template.destination),
    }
}

/// What a template demands of an SA for a flow.
pub(crate) fn query<'a>(
    entry: &PolicyEntry,
    template: &Template,
    (source, destination): (IpAddr, IpAddr),
    flow: &'a FlowKey,
    settings: &Settings,
) -> OutboundQuery<'a> {
    OutboundQuery {
        source,
        destination,
        protocol: template.protocol,
        spi: template.spi,
        mode: template.mode,
        reqid: template.reqid,
        if_id: entry.if_id(),
        mark: entry.mark().value,
        cpu: settings.cpu,
        flow,
    }
}

fn is_taken(snapshot: &Snapshot, query: &OutboundQuery<'_>) -> bool {
    let id = SaId { destination: query.destination, spi: query.spi, protocol: query.protocol };
    query.spi != Spi(0) && snapshot.sad.find(id, query.mark).is_some()
}

/// `xfrm_get_saddr` asks the routing table for an open source address; here it is the host's own
/// address.
fn wanted(query: &OutboundQuery<'_>, mark: Mark, settings: &Settings) -> SaRequest {
    let own = || settings.addresses.like(query.destination);
    let source =
        if query.source.is_unspecified() { own().unwrap_or(query.source) } else { query.source };
    SaRequest {
        source,
        destination: query.destination,
        protocol: query.protocol,
        spi: query.spi,
        mode: query.mode,
        reqid: query.reqid,
        mark,
        if_id: query.if_id,
        pcpu: None,
    }
}

/// Computes the MTU inward and caps TFC padding by it, as `net/ipv4/esp4.c: esp_output` does.
fn fit_mtu(layers: &mut [EncapLayer], mtu: usize) -> usize {
    layers.iter_mut().rev().fold(mtu, |mtu, layer| {
        let inner = layer.inner_mtu(mtu);
        let asked = usize::try_from(layer.sa.config().tfc_padding).unwrap_or(usize::MAX);
        layer.set_tfc(match layer.wrap {
            EncapMode::Tunnel(_) => asked.min(inner),
            EncapMode::Transport => 0,
        });
        inner
    })
}

fn version_of(address: IpAddr) -> Version {
    match Family::of(address) {
        Family::V4 => Version::V4,
        Family::V6 => Version::V6,
    }
}
