//! What a policy does to a flow, worked out in advance: the chain of SAs, innermost first, with all their lengths.
//!
//! Mirrors `net/xfrm/xfrm_policy.c: xfrm_tmpl_resolve_one` (templates to states) and `xfrm_bundle_create` (states to a chain). Each
//! worker keeps its own bundles; they hold for one generation of the snapshot and are dropped together with it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use uxfrm_packet::Version;

use crate::acquire::Missing;
use crate::esp::layer::{Inside, Layer, Outside, Wrap};
use crate::sa::usage::Lifecycle;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    DropReason, Family, FlowKey, KeyManagers, Level, Mark, Mode, Moment, OutboundQuery,
    PolicyEntry, Sa, SaId, Settings, Snapshot, Spi, Wanted, WireHeaders, pmtu,
};

/// SAs around one packet at the most: those of a sub policy and of a main one.
pub(crate) const MAX_LAYERS: usize = 2 * MAX_TEMPLATES;

/// The policies that decide over a packet: the one found, and the main one behind a sub policy.
pub(crate) type Deciding<'a> = ArrayVec<&'a Arc<PolicyEntry>, 2>;

/// A chain of SAs. Without any, the packet passes as it is (templates of level `use` without states).
#[derive(Debug)]
pub(crate) struct Bundle {
    /// Innermost first.
    pub(crate) layers: Box<[Layer]>,
    /// Which account of the cache each layer's SA has.
    pub(crate) accounts: Box<[u32]>,
    /// The largest packet that fits into the outer MTU.
    pub(crate) inner_mtu: usize,
    /// How far the first byte moves forward in all.
    pub(crate) prefix: usize,
    /// When it is to be worked out again; the end of time unless a template of level `use` has no state, for which key managers
    /// are asked again and again.
    until: Moment,
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
    /// The chain for a flow under its policies.
    pub(crate) fn resolve(
        snapshot: &Snapshot,
        deciding: &Deciding<'_>,
        flow: &FlowKey,
        settings: &Settings,
        missing: &mut Vec<Missing>,
    ) -> Result<Self, DropReason> {
        missing.clear();
        let states = states(snapshot, deciding, flow, settings, missing)?;
        let outermost = states.len().wrapping_sub(1);
        let mut layers = Vec::with_capacity(states.len());
        let mut version = version_of(flow.destination);
        for (place, sa) in states.into_iter().enumerate() {
            let outside = match settings.headers {
                WireHeaders::UdpSocket if place == outermost => Outside::SocketPayload,
                WireHeaders::UdpSocket | WireHeaders::Engine => Outside::Packet,
            };
            let destination = sa.config().id.destination;
            let own = settings.addresses.like(destination);
            let layer = Layer::new(sa, version, own, outside, settings.hop_limit)?;
            match layer.wrap {
                Wrap::Transport if version_of(destination) != version => {
                    return Err(DropReason::OutModeMismatch);
                }
                Wrap::Transport => {}
                Wrap::Tunnel(_) => version = version_of(destination),
            }
            layers.push(layer);
        }
        let inner_mtu = fit_mtu(&mut layers, settings.mtu.into());
        let prefix = layers.iter().map(Layer::front).sum();
        Ok(Self {
            layers: layers.into(),
            accounts: Box::default(),
            inner_mtu,
            prefix,
            until: Moment(u64::MAX),
        })
    }

    /// The room for a packet of `len` bytes; `None` when what comes out would be longer than an IP packet can be.
    pub(crate) fn frame(&self, len: usize, inside: &Inside) -> Option<Frame> {
        let mut total = len;
        let mut inside = *inside;
        for layer in &self.layers {
            total = layer.sealed_len(total, &inside);
            inside = layer.after(&inside);
        }
        (total <= usize::from(u16::MAX)).then_some(Frame { prefix: self.prefix, total })
    }

    /// The largest packet of a version that is let in; IPv6 is never told to send less than its minimum.
    pub(crate) fn limit(&self, version: Version) -> usize {
        match version {
            Version::V4 => self.inner_mtu,
            Version::V6 => self.inner_mtu.max(pmtu::IPV6_LEAST),
        }
    }

    /// Whether a state is for some protocols or ports only.
    fn wants_more_than_addresses(&self) -> bool {
        self.layers.iter().filter_map(|layer| layer.sa.config().selector.as_ref()).any(|selector| {
            let ports = selector.source_port.mask | selector.destination_port.mask;
            selector.protocol != 0 || ports != 0
        })
    }

    /// Whether every state in it still works and is for this flow (`xfrm_bundle_ok`, `xfrm_state_look_at`).
    fn serves(&self, flow: &FlowKey, now: Moment) -> bool {
        let mut selectors = self.layers.iter().map(|layer| layer.sa.config().selector.as_ref());
        self.works(now) && selectors.all(|one| one.is_none_or(|selector| selector.matches(flow)))
    }

    /// Whether every state in it still works.
    #[inline]
    fn works(&self, now: Moment) -> bool {
        let works =
            |layer: &Layer| matches!(layer.sa.lifecycle(), Lifecycle::Valid | Lifecycle::Dying);
        now < self.until && self.layers.iter().all(works)
    }
}

/// One state per template, innermost first; `use` templates without one are left out. What is `missing` is noted, a required
/// one last.
fn states<'a>(
    snapshot: &'a Snapshot,
    deciding: &Deciding<'_>,
    flow: &FlowKey,
    settings: &Settings,
    missing: &mut Vec<Missing>,
) -> Result<ArrayVec<&'a Arc<Sa>, MAX_LAYERS>, DropReason> {
    let mut states = ArrayVec::new();
    let (mut source, mut destination) = (flow.source, flow.destination);
    for entry in deciding {
        for (place, template) in (0..).zip(entry.templates().iter().take(MAX_TEMPLATES)) {
            let ends = match template.mode {
                Mode::Transport | Mode::RouteOptimization | Mode::InTrigger => {
                    (source, destination)
                }
                Mode::Tunnel | Mode::Beet | Mode::Iptfs => (template.source, template.destination),
            };
            let query = OutboundQuery {
                source: ends.0,
                destination: ends.1,
                protocol: template.protocol,
                spi: template.spi,
                mode: template.mode,
                reqid: template.reqid,
                if_id: entry.if_id(),
                flow,
            };
            match snapshot.sad.outbound(&query) {
                Ok(sa) => {
                    (source, destination) = ends;
                    states.push(sa);
                }
                Err(DropReason::OutNoState) => {
                    // A state with the very SPI that is wanted, but not the right one (`EEXIST` in `xfrm_state_find`).
                    if !is_taken(snapshot, &query) {
                        let wanted = wanted(&query, entry.mark(), settings);
                        missing.push(Missing { policy: entry.index(), template: place, wanted });
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
    Ok(states)
}

fn is_taken(snapshot: &Snapshot, query: &OutboundQuery<'_>) -> bool {
    let id = SaId { destination: query.destination, spi: query.spi, protocol: query.protocol };
    query.spi != Spi(0) && snapshot.sad.find(id, query.flow.mark).is_some()
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
    }
}

/// Works the MTU inward, and caps TFC padding by it as `net/ipv4/esp4.c: esp_output` does.
fn fit_mtu(layers: &mut [Layer], mtu: usize) -> usize {
    layers.iter_mut().rev().fold(mtu, |mtu, layer| {
        let inner = layer.inner_mtu(mtu);
        let asked = usize::try_from(layer.sa.config().tfc_padding).unwrap_or(usize::MAX);
        layer.tfc = match layer.wrap {
            Wrap::Tunnel(_) => asked.min(inner),
            Wrap::Transport => 0,
        };
        inner
    })
}

fn version_of(address: IpAddr) -> Version {
    match Family::of(address) {
        Family::V4 => Version::V4,
        Family::V6 => Version::V6,
    }
}

/// What all packets of one batch want of one SA, and what it gave them.
#[derive(Debug)]
pub(crate) struct Account {
    /// Its place in the cache.
    pub(crate) place: u32,
    pub(crate) sa: Arc<Sa>,
    /// Packets and bytes asked for.
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    /// The next sequence number, and how many are left of the block.
    pub(crate) next: u64,
    pub(crate) left: u32,
    /// Why there are no more than those.
    pub(crate) refusal: DropReason,
    pub(crate) giving: Giving,
}

/// How an account gives numbers to the items of this batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Giving {
    /// From the block, until it is used up.
    Block,
    /// Only some packets fit under a hard limit: each is charged on its own.
    OneByOne,
}

/// The answer for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The bundle's place in the cache.
    Bundle(u32),
    /// The bundle's place; it is new, and key managers are to be asked for all that is [`missing`](BundleCache::missing).
    Asking(u32),
    /// There is none.
    Refused(DropReason),
    /// There is none before what is [`missing`](BundleCache::missing) is there, the last of which is required.
    Missing,
}

/// Bundles of one generation.
#[derive(Debug)]
pub(crate) struct BundleCache {
    bundles: Vec<Bundle>,
    index: HashMap<Key, Entry, foldhash::fast::RandomState>,
    pub(crate) accounts: Vec<Account>,
    account_of: HashMap<usize, u32, foldhash::fast::RandomState>,
    generation: u64,
    /// What the latest resolution found no states for.
    pub(crate) missing: Vec<Missing>,
}

/// Policies by address: they live as long as the snapshot, and the cache is emptied with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    policies: [usize; 2],
    source: IpAddr,
    destination: IpAddr,
    mark: u32,
    upper: Option<(u8, u16, u16)>,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Bundle(u32),
    /// States with selectors for ports: to be found by the whole flow.
    Finer,
}

/// Bundles kept at the most. More flows than this make the cache begin anew between two batches.
const MOST: usize = 16_384;
/// How soon it is looked again whether somebody listens who can be asked for what is optional.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

impl BundleCache {
    pub(crate) fn new() -> Self {
        Self {
            bundles: Vec::new(),
            index: HashMap::default(),
            accounts: Vec::new(),
            account_of: HashMap::default(),
            generation: 0,
            missing: Vec::new(),
        }
    }

    /// To be called before a batch: forgets what another generation, or too many flows, left behind. True when places are void.
    pub(crate) fn begin(&mut self, generation: u64) -> bool {
        let void =
            self.generation != generation || self.bundles.len() >= MOST || self.index.len() >= MOST;
        if void {
            self.bundles.clear();
            self.index.clear();
            self.accounts.clear();
            self.account_of.clear();
            self.generation = generation;
        }
        void
    }

    pub(crate) fn bundle(&self, place: u32) -> &Bundle {
        &self.bundles[place as usize]
    }

    /// Whether the bundle at a place, which is known from an earlier packet of the same flow, still works.
    #[inline]
    pub(crate) fn works(&self, place: u32, now: Moment) -> bool {
        self.bundles.get(place as usize).is_some_and(|bundle| bundle.works(now))
    }

    /// The account and the layer at `depth` of a bundle; `None` when it is not so deep.
    pub(crate) fn draw(&mut self, place: u32, depth: usize) -> Option<(&mut Account, &Layer)> {
        let bundle = &self.bundles[place as usize];
        let account = *bundle.accounts.get(depth)?;
        Some((&mut self.accounts[account as usize], bundle.layers.get(depth)?))
    }

    /// The bundle of a flow, made if need be.
    pub(crate) fn resolve(
        &mut self,
        snapshot: &Snapshot,
        deciding: &Deciding<'_>,
        flow: &FlowKey,
        settings: &Settings,
        now: Moment,
    ) -> Resolution {
        let key = Key::of(deciding, flow);
        match self.index.get(&key) {
            Some(Entry::Bundle(place)) if self.bundle(*place).serves(flow, now) => {
                return Resolution::Bundle(*place);
            }
            Some(Entry::Finer) => {
                if let Some(Entry::Bundle(place)) = self.index.get(&key.finer(flow))
                    && self.bundle(*place).serves(flow, now)
                {
                    return Resolution::Bundle(*place);
                }
            }
            Some(Entry::Bundle(_)) | None => {}
        }
        match Bundle::resolve(snapshot, deciding, flow, settings, &mut self.missing) {
            Ok(bundle) if self.missing.is_empty() => {
                Resolution::Bundle(self.keep(key, flow, bundle))
            }
            Ok(mut bundle) => {
                bundle.until = ask_again(snapshot, now);
                Resolution::Asking(self.keep(key, flow, bundle))
            }
            Err(DropReason::OutNoState) if !self.missing.is_empty() => Resolution::Missing,
            Err(reason) => Resolution::Refused(reason),
        }
    }

    fn keep(&mut self, key: Key, flow: &FlowKey, mut bundle: Bundle) -> u32 {
        bundle.accounts = bundle.layers.iter().map(|layer| self.account(&layer.sa)).collect();
        let place = narrow(self.bundles.len());
        if bundle.wants_more_than_addresses() {
            self.index.insert(key, Entry::Finer);
            self.index.insert(key.finer(flow), Entry::Bundle(place));
        } else {
            self.index.insert(key, Entry::Bundle(place));
        }
        self.bundles.push(bundle);
        place
    }

    fn account(&mut self, sa: &Arc<Sa>) -> u32 {
        let accounts = &mut self.accounts;
        *self.account_of.entry(Arc::as_ptr(sa).addr()).or_insert_with(|| {
            let place = narrow(accounts.len());
            accounts.push(Account {
                place,
                sa: Arc::clone(sa),
                packets: 0,
                bytes: 0,
                next: 0,
                left: 0,
                refusal: DropReason::OutSequenceOverflow,
                giving: Giving::Block,
            });
            place
        })
    }
}

impl Key {
    fn of(deciding: &Deciding<'_>, flow: &FlowKey) -> Self {
        let mut policies = [0; 2];
        for (place, entry) in policies.iter_mut().zip(deciding) {
            *place = Arc::as_ptr(entry).addr();
        }
        let (source, destination) = (flow.source, flow.destination);
        Self { policies, source, destination, mark: flow.mark, upper: None }
    }

    fn finer(self, flow: &FlowKey) -> Self {
        let upper = Some((flow.protocol, flow.source_port, flow.destination_port));
        Self { upper, ..self }
    }
}

fn ask_again(snapshot: &Snapshot, now: Moment) -> Moment {
    let acquires = &snapshot.acquires;
    now.plus(match acquires.key_managers {
        KeyManagers::Absent => LISTEN_AGAIN,
        KeyManagers::Listening => acquires.lifetime,
    })
}

/// Places in the cache, which holds no more than [`MOST`] and one batch.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
