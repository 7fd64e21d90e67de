//! Policies by their networks, for what a packet does not tell: found whatever else they ask for.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Family, PolicyEntry, Prefix};

/// Some of the policies, in their order for each pair of networks.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkIndex {
    shards: Option<Arc<[Shard; SHARDS]>>,
    /// Number of policies for each pair of prefix lengths.
    lengths: Arc<BTreeMap<Lengths, usize>>,
}

/// In shards, so that a change copies little.
type Shard = Arc<HashMap<Networks, Vec<Arc<PolicyEntry>>, foldhash::fast::RandomState>>;
type Lengths = (Family, u8, u8);
/// Networks of source and destination.
type Networks = (Prefix, Prefix);

const SHARDS: usize = 64;

impl NetworkIndex {
    pub(super) fn insert(&mut self, entry: &Arc<PolicyEntry>) {
        let networks = networks_of(entry);
        *Arc::make_mut(&mut self.lengths).entry(lengths(networks)).or_default() += 1;
        let all = self.shard_mut(networks).entry(networks).or_default();
        all.insert(
            all.partition_point(|other| other.precedence() < entry.precedence()),
            Arc::clone(entry),
        );
    }

    /// Removes a policy that is present.
    pub(super) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        let networks = networks_of(entry);
        let shard = self.shard_mut(networks);
        let Some(all) = shard.get_mut(&networks) else { return };
        all.retain(|other| !Arc::ptr_eq(other, entry));
        if all.is_empty() {
            shard.remove(&networks);
        }
        let counts = Arc::make_mut(&mut self.lengths);
        if let Some(count) = counts.get_mut(&lengths(networks)) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&lengths(networks));
            }
        }
    }

    /// The first policy that is for both addresses and `fits`.
    pub(super) fn first(
        &self,
        source: IpAddr,
        destination: IpAddr,
        fits: impl Fn(&PolicyEntry) -> bool,
    ) -> Option<&Arc<PolicyEntry>> {
        let shards = self.shards.as_ref()?;
        let family = Family::of(destination);
        let lengths = self.lengths.keys().filter(|(of, ..)| *of == family);
        let found = lengths.filter_map(|(_, source_len, destination_len)| {
            let networks = (network(source, *source_len), network(destination, *destination_len));
            shards[shard_of(networks)].get(&networks)?.iter().find(|entry| fits(entry))
        });
        found.min_by_key(|entry| entry.precedence())
    }

    fn shard_mut(
        &mut self,
        networks: Networks,
    ) -> &mut HashMap<Networks, Vec<Arc<PolicyEntry>>, foldhash::fast::RandomState> {
        let shards =
            self.shards.get_or_insert_with(|| Arc::new(std::array::from_fn(|_| Shard::default())));
        Arc::make_mut(&mut Arc::make_mut(shards)[shard_of(networks)])
    }
}

fn networks_of(entry: &PolicyEntry) -> Networks {
    let selector = entry.selector();
    (selector.source.network(), selector.destination.network())
}

fn lengths((source, destination): Networks) -> Lengths {
    (destination.family(), source.prefix_len(), destination.prefix_len())
}

/// Network of an address; the address itself if the prefix length exceeds its family.
fn network(address: IpAddr, len: u8) -> Prefix {
    Prefix::new(address, len).unwrap_or_else(|_| Prefix::host(address)).network()
}

fn shard_of((source, destination): Networks) -> usize {
    let bits = |prefix: Prefix| match prefix.address() {
        IpAddr::V4(v4) => v4.to_bits(),
        #[expect(clippy::cast_possible_truncation, reason = "folded")]
        IpAddr::V6(v6) => (v6.to_bits() ^ v6.to_bits() >> 64 ^ v6.to_bits() >> 96) as u32,
    };
    let spread = (bits(source) ^ bits(destination).rotate_left(9)).wrapping_mul(0x9e37_79b1);
    (spread >> 26) as usize % SHARDS
}
