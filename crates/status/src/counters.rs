//! Counters of a gateway: what it dropped, by the kernel's names and by reason; flow caches.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap as _};

/// Named counts in an order of their own; in JSON an object.
///
/// ```
/// use uxfrm_status::counters::CounterList;
///
/// let counts = CounterList(vec![("in_no_state".to_owned(), 3), ("in_replay".to_owned(), 0)]);
/// let json = serde_json::to_string(&counts)?;
/// assert_eq!(json, r#"{"in_no_state":3,"in_replay":0}"#);
/// assert_eq!(serde_json::from_str::<CounterList>(&json)?, counts);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(description = "Counts by name.", value_type = std::collections::BTreeMap<String, u64>))]
pub struct CounterList(pub Vec<(String, u64)>);

/// What a gateway has counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CounterReport {
    /// When this was read, in Unix seconds.
    pub at: u64,
    /// How many seconds ago the gateway's control thread told what it alone knows: `notices`, what
    /// the kernel and devices dropped. 0 unless it was too busy to answer in time.
    pub age_seconds: u64,
    /// The lines of `/proc/net/xfrm_stat`, in the kernel's order.
    pub kernel: CounterList,
    /// Packets dropped, by reason.
    pub reasons: CounterList,
    /// Drops of tunnels (IPIP, GRE and their like) and receive ports by reason, and what each of
    /// them carried; empty without any.
    pub tunnels: CounterList,
    /// The workers' flow caches that were used.
    pub caches: Vec<CacheReport>,
    /// What is wrong with the store of sequence numbers, or held from the last run; a sentence
    /// each.
    pub notices: Vec<String>,
}

/// What one worker's flow cache of one direction and family holds and did, about a second ago at
/// the most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheReport {
    /// The worker's number, from 0.
    pub worker: u32,
    /// `out` or `in`.
    pub direction: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Flows that it holds.
    pub entries: u64,
    /// Flows that it has room for.
    pub room: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Look-ups that found their flow.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Look-ups that found what had changed meanwhile.
    pub stale: u64,
    /// Flows that made room for others.
    pub evicted: u64,
    /// Look-ups that passed the cache by, as it did not pay.
    pub bypassed: u64,
}

/// Columns of a line of `/proc/net/xfrm_stat` (`net/xfrm/xfrm_proc.c: xfrm_statistics_seq_show`).
const KERNEL_WIDTH: usize = 24;
/// Columns of the longer names of tunnels.
const TUNNEL_WIDTH: usize = 32;

impl CounterList {
    /// The count of this name; `None` where it is not in the list.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, count)| *count)
    }

    /// Those that are not zero.
    #[must_use]
    pub fn nonzero(&self) -> Self {
        Self(self.0.iter().filter(|(_, count)| *count != 0).cloned().collect())
    }

    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// What came since `before`, of what changed. A count that is lower than before began anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let grown = self.0.iter().filter_map(|(name, count)| {
            let was = before.of(name).unwrap_or_default();
            let came = count.checked_sub(was).unwrap_or(*count);
            (came != 0).then(|| (name.clone(), came))
        });
        Self(grown.collect())
    }

    fn lines(&self, width: usize) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, count)| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<width$}\t{count}");
            text
        })
    }
}

impl CounterReport {
    /// The text of `/proc/net/xfrm_stat`, byte for byte.
    #[must_use]
    pub fn kernel_text(&self) -> String {
        self.kernel.lines(KERNEL_WIDTH)
    }

    /// A line for each drop reason in the same form, and behind them those of tunnels.
    #[must_use]
    pub fn reasons_text(&self) -> String {
        self.reasons.lines(KERNEL_WIDTH) + &self.tunnels.lines(TUNNEL_WIDTH)
    }

    /// A table of the flow caches, with a head.
    #[must_use]
    pub fn caches_text(&self) -> String {
        let mut text = String::from(
            "worker\tdirection\tfamily\tentries\troom\tbytes\thits\tmisses\tstale\tevicted\tbypassed\n",
        );
        for cache in &self.caches {
            text += &cache.line();
        }
        text
    }
}

impl CacheReport {
    fn line(&self) -> String {
        let Self { worker, direction, family, entries, room, bytes, hits, .. } = self;
        let Self { misses, stale, evicted, bypassed, .. } = self;
        format!(
            "{worker}\t{direction}\t{family}\t{entries}\t{room}\t{bytes}\t{hits}\t{misses}\t{stale}\t{evicted}\t{bypassed}\n"
        )
    }

    /// Its counts by name, which begin with worker, direction and family.
    pub fn counts(&self) -> impl Iterator<Item = (String, u64)> {
        let Self { worker, direction, family, .. } = self;
        let of = format!("worker_{worker}_{direction}_{family}");
        let counts = [
            ("entries", self.entries),
            ("hits", self.hits),
            ("misses", self.misses),
            ("stale", self.stale),
            ("evicted", self.evicted),
            ("bypassed", self.bypassed),
        ];
        counts.into_iter().map(move |(name, count)| (format!("{of}_{name}"), count))
    }
}

impl Serialize for CounterList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, count) in &self.0 {
            map.serialize_entry(name, count)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for CounterList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> de::Visitor<'de> for InOrder {
            type Value = CounterList;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object of counts")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<CounterList, A::Error> {
                let mut counts = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    counts.push(entry);
                }
                Ok(CounterList(counts))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(counts: &[(&str, u64)]) -> CounterList {
        CounterList(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }

    #[test]
    fn counter_lines_are_the_kernels() {
        let report = CounterReport {
            kernel: list(&[("XfrmInError", 0), ("XfrmInNoStates", 12)]),
            reasons: list(&[("in_no_state", 12)]),
            tunnels: list(&[("tunnel_in_no_tunnel", 1)]),
            ..CounterReport::default()
        };
        assert_eq!(
            report.kernel_text(),
            "XfrmInError             \t0\nXfrmInNoStates          \t12\n"
        );
        assert_eq!(
            report.reasons_text(),
            "in_no_state             \t12\ntunnel_in_no_tunnel             \t1\n"
        );
        assert_eq!(report.caches_text().lines().count(), 1, "a head alone");
    }

    #[test]
    fn counts_keep_their_order_in_json() {
        let counts = list(&[("z", 1), ("a", u64::MAX), ("m", 0)]);
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, r#"{"z":1,"a":18446744073709551615,"m":0}"#);
        assert_eq!(serde_json::from_str::<CounterList>(&json).unwrap(), counts);
        assert!(serde_json::from_str::<CounterList>(r#"{"z":-1}"#).is_err());
    }

    #[test]
    fn difference_names_what_grew() {
        let (before, after) = (list(&[("a", 5), ("b", 7), ("c", 9)]), list(&[("a", 5), ("b", 8)]));
        assert_eq!(after.since(&before), list(&[("b", 1)]));
        let anew = list(&[("b", 2), ("new", 4)]);
        assert_eq!(anew.since(&after), list(&[("b", 2), ("new", 4)]), "a gateway that began anew");
    }

    #[test]
    fn cache_line_has_all_columns() {
        let cache = CacheReport {
            worker: 1,
            direction: "out".to_owned(),
            family: "ipv6".to_owned(),
            hits: 3,
            ..CacheReport::default()
        };
        assert_eq!(cache.line(), "1\tout\tipv6\t0\t0\t0\t3\t0\t0\t0\t0\n");
        let report = CounterReport { caches: vec![cache], ..CounterReport::default() };
        let columns = |line: &str| line.split('\t').count();
        assert!(report.caches_text().lines().all(|line| columns(line) == 11));
    }
}
