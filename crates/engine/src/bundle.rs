//! What a policy does to a flow, worked out in advance: the chain of SAs, innermost first, with all their lengths.
//!
//! Mirrors `net/xfrm/xfrm_policy.c: xfrm_tmpl_resolve_one` (templates to states) and `xfrm_bundle_create` (states to a chain). Each
//! worker [keeps](cache) its own bundles.

mod cache;
mod device;
mod tx_record;

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_packet::{Version, ipv6};

pub(crate) use cache::{Account, BundleCache, Giving, Grant, Resolution};
pub(crate) use tx_record::Exit;

use crate::esp::encap::{Inside, Layer, Outside, Wrap};
use crate::esp::encap_layout::Room;
use crate::events::acquire::Missing;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    Attachment, DropReason, Family, FlowKey, Handover, Level, Mark, Mode, Moment, OutboundQuery,
    PolicyEntry, PolicyFlags, Sa, SaId, Settings, Snapshot, Spi, Template, Wanted, WireHeaders,
};

/// SAs around one packet at the most: those of a sub policy and of a main one.
pub(crate) const MAX_LAYERS: usize = 2 * MAX_TEMPLATES;

/// The policies that decide over a packet: the one found, and the main one behind a sub policy.
pub(crate) type Deciding<'a> = ArrayVec<&'a Arc<PolicyEntry>, 2>;

/// The states of a chain, innermost first.
type States<'a> = ArrayVec<&'a Arc<Sa>, MAX_LAYERS>;

/// What look-ups found for a flow.
#[derive(Debug, Default)]
struct Chain<'a> {
    states: States<'a>,
    /// Whether other flows between the same addresses may find others.
    is_of_flow: bool,
}

/// A chain of SAs. Without any, the packet passes as it is (templates of level `use` without states). What packets of many states in turn
/// need is in its first cache line, and what most others do in the second one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bundle {
    pub(crate) exit: Option<Exit>,
    /// Innermost first.
    pub(crate) layers: Box<[Layer]>,
    /// When it is to be worked out again; the end of time unless a template of level `use` has no state, or one of a policy with
    /// `flag cpu-acquire` none of this processor: key managers are asked for these again and again.
    until: Moment,
    /// What suffices for plain packets, if it is of one state only, and nothing else is done to them.
    pub(crate) express: Option<Room>,
    /// The largest packet that fits into the outer MTU.
    pub(crate) inner_mtu: usize,
    /// What the network takes towards where it leads.
    pub(crate) mtu: u16,
    /// Of what packets go into it.
    inner: Version,
    /// Whether flows have source ports of their own in one of the layers.
    pub(crate) spreads: bool,
    /// How far the first byte moves forward in all.
    pub(crate) prefix: usize,
    /// Where the outermost state's work is done, if not here.
    pub(crate) device: Option<Attachment>,
    /// What a packet is handed over with that fits and has nothing else done to it here.
    pub(crate) as_it_is: Option<Handover>,
    /// Which of all those made it is.
    made: u64,
}

/// Where one packet lies in the room for the whole chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Bytes before the plain packet.
    pub(crate) prefix: usize,
    /// All bytes.
    pub(crate) total: usize,
}

impl Bundle {
    /// The chain of these states around packets of version `inner`.
    fn of(states: &States<'_>, inner: Version, settings: &Settings) -> Result<Self, DropReason> {
        let outermost = states.len().wrapping_sub(1);
        let mut layers = Vec::with_capacity(states.len());
        let mut version = inner;
        for (place, sa) in states.iter().enumerate() {
            let outside = match settings.headers {
                WireHeaders::UdpSocket if place == outermost => Outside::SocketPayload,
                WireHeaders::UdpSocket | WireHeaders::Engine => Outside::Packet,
            };
            let destination = sa.id().destination;
            let own = settings.addresses.like(destination);
            let layer = Layer::new(sa, own, outside, settings.hop_limit)?;
            match layer.wrap {
                Wrap::Transport if version_of(destination) != version => {
                    return Err(DropReason::OutModeMismatch);
                }
                Wrap::Transport => {}
                Wrap::Tunnel(_) => version = version_of(destination),
            }
            layers.push(layer);
        }
        let mtu = states.last().map_or(settings.mtu, |sa| settings.mtu_to(sa.id().destination));
        let inner_mtu = fit_mtu(&mut layers, mtu.into());
        let prefix = layers.iter().map(Layer::front).sum();
        let spreads = layers.iter().any(Layer::spreads);
        let device = device::device_of(states)?;
        Ok(Self {
            exit: None,
            as_it_is: device.and_then(|device| device::as_it_is(device, &layers)),
            spreads,
            express: match &layers[..] {
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
            made: 0,
        })
    }

    /// What stands where a bundle was: it never works.
    fn gone() -> Self {
        Self {
            exit: None,
            layers: Box::default(),
            inner: Version::V4,
            mtu: 0,
            inner_mtu: 0,
            spreads: false,
            express: None,
            prefix: 0,
            device: None,
            as_it_is: None,
            until: Moment(0),
            made: 0,
        }
    }

    /// Whether none is here.
    fn is_gone(&self) -> bool {
        self.until == Moment(0)
    }

    /// Whether it is the chain of these states, as they are now, around packets of version `inner`, for good.
    fn is_of(&self, states: &States<'_>, inner: Version) -> bool {
        let same =
            |(layer, sa): (&Layer, &&Arc<Sa>)| Arc::ptr_eq(&layer.sa, sa) && layer.is_as_it_was();
        self.until == Moment(u64::MAX)
            && self.inner == inner
            && self.layers.len() == states.len()
            && self.layers.iter().zip(states).all(same)
    }

    /// The room for a packet of `len` bytes; `None` when what comes out would be longer than an IP packet can be.
    #[inline]
    pub(crate) fn frame(&self, len: usize, inside: &Inside) -> Option<Frame> {
        let mut total = len;
        if let Some((last, before)) = self.layers.split_last() {
            let mut inside = *inside;
            for layer in before {
                total = layer.sealed_len(total, &inside);
                layer.enclose(&mut inside);
            }
            total = last.sealed_len(total, &inside);
        }
        (total <= usize::from(u16::MAX)).then_some(Frame { prefix: self.prefix, total })
    }

    /// Whether the innermost state has transport mode.
    pub(crate) fn is_transport(&self) -> bool {
        self.layers.first().is_some_and(|layer| matches!(layer.wrap, Wrap::Transport))
    }

    /// The largest packet of a version that is let in; IPv6 is never told to send less than its minimum.
    #[inline]
    pub(crate) fn limit(&self, version: Version) -> usize {
        match version {
            Version::V4 => self.inner_mtu,
            Version::V6 => self.inner_mtu.max(ipv6::LEAST_MTU),
        }
    }

    /// Whether every state in it works, and none is dying that was not when it was chosen (`xfrm_bundle_ok`, `xfrm_state_look_at`): there may
    /// be a better one.
    #[inline(always)]
    fn works(&self, now: Moment) -> bool {
        for layer in &self.layers {
            if !layer.is_as_it_was() {
                return false;
            }
        }
        now < self.until
    }
}

/// One state per template; `use` templates without one are left out. What is `missing` is noted, a required
/// one last. With `flag cpu-acquire` a state of this very processor is, too, until which another serves (`xfrm_state_find`).
fn chain<'a>(
    snapshot: &'a Snapshot,
    deciding: &Deciding<'_>,
    flow: &FlowKey,
    settings: &Settings,
    missing: &mut Vec<Missing>,
) -> Result<Chain<'a>, DropReason> {
    let mut chain = Chain::default();
    let (mut source, mut destination) = (flow.source, flow.destination);
    for entry in deciding {
        for (place, template) in (0..).zip(entry.templates().take(MAX_TEMPLATES)) {
            let ends = ends(&template, (source, destination));
            let query = query(entry, &template, ends, flow, settings);
            chain.is_of_flow |= snapshot.sad.tells_flows_apart(&query);
            let missing_one = |pcpu| Missing {
                policy: entry.index(),
                template: place,
                wanted: Wanted { pcpu, ..wanted(&query, entry.mark(), settings) },
            };
            match snapshot.sad.outbound_on(entry.device(), &query) {
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
                    if template.level == Level::Required && device::is_amiss(snapshot, &query) {
                        return Err(DropReason::OutDeviceMismatch);
                    }
                    // A state with the very SPI that is wanted, but not the right one (`EEXIST` in `xfrm_state_find`).
                    if !is_taken(snapshot, &query) {
                        missing.push(missing_one(None));
                    } else if template.level == Level::Required {
                        missing.clear();
                    }
                    if template.level == Level::Required {
                        return Err(DropReason::OutNoState);
                    }
                }
                Err(reason) => return Err(reason),
            }
        }
    }
    Ok(chain)
}

/// What a flow will ask for first, when no bundle of it is known.
pub(crate) fn first_query<'a>(
    entry: &PolicyEntry,
    flow: &'a FlowKey,
    settings: &Settings,
) -> Option<OutboundQuery<'a>> {
    let template = entry.templates().next()?;
    let ends = ends(&template, (flow.source, flow.destination));
    Some(query(entry, &template, ends, flow, settings))
}

/// Source and destination of what a template makes of a packet with these.
fn ends(template: &Template, inner: (IpAddr, IpAddr)) -> (IpAddr, IpAddr) {
    match template.mode {
        Mode::Transport | Mode::RouteOptimization | Mode::InTrigger => inner,
        Mode::Tunnel | Mode::Beet | Mode::Iptfs => (template.source, template.destination),
    }
}

fn query<'a>(
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

/// `xfrm_get_saddr` asks the routes for a source that the template leaves open; here it is the host's own address.
fn wanted(query: &OutboundQuery<'_>, mark: Mark, settings: &Settings) -> Wanted {
    let own = || settings.addresses.like(query.destination);
    let source =
        if query.source.is_unspecified() { own().unwrap_or(query.source) } else { query.source };
    Wanted {
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

/// Works the MTU inward, and caps TFC padding by it as `net/ipv4/esp4.c: esp_output` does.
fn fit_mtu(layers: &mut [Layer], mtu: usize) -> usize {
    layers.iter_mut().rev().fold(mtu, |mtu, layer| {
        let inner = layer.inner_mtu(mtu);
        let asked = usize::try_from(layer.sa.config().tfc_padding).unwrap_or(usize::MAX);
        layer.pad_to(match layer.wrap {
            Wrap::Tunnel(_) => asked.min(inner),
            Wrap::Transport => 0,
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
