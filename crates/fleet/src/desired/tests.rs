use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::{keyspace::Keyspace, names::PoolName};

fn keyspace() -> Keyspace {
    Keyspace::of(&"example".parse().unwrap())
}

fn pool() -> PoolName {
    "default".parse().unwrap()
}

/// etcd, without seals.
#[derive(Default)]
struct Store {
    records: HashMap<String, Vec<u8>>,
    pools: BTreeMap<PoolName, PoolState>,
    generation: u64,
}

impl Store {
    /// Writes what a plan says, and reads all back as a gateway would.
    fn apply(&mut self, file: &DesiredFile) -> Plan {
        self.generation += 1;
        let plan = plan(&keyspace(), &self.pools, file, Serial(self.generation));
        for write in plan.parts.iter().chain(&plan.indices) {
            assert_eq!(write.serial, Serial(self.generation));
            self.records.insert(write.path.clone(), write.text.to_vec());
        }
        for path in &plan.obsolete {
            assert!(self.records.remove(path).is_some(), "{path}");
        }
        let names = self.pools.keys().cloned().chain(file.pools.keys().cloned());
        let names: Vec<_> = names.collect();
        self.pools = names.into_iter().map(|name| (name.clone(), self.read(&name))).collect();
        plan
    }

    fn read(&self, pool: &PoolName) -> PoolState {
        let keys = keyspace().pool(pool);
        let index: PoolIndex = self.record(&keys.desired());
        let bucket = |(number, serial): (usize, &Serial)| {
            (*serial, self.record(&keys.bucket(number, *serial)))
        };
        let buckets = index.buckets.iter().enumerate().map(bucket).collect();
        PoolState { serial: Serial(self.generation), lines: index.lines, buckets }
    }

    fn record<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let text = self.records.get(path).unwrap_or_else(|| panic!("no {path}"));
        serde_json::from_slice(text).unwrap()
    }

    /// What the store says, as a file would.
    fn file(&self) -> DesiredFile {
        let tunnel = |name: &PoolName, (tunnel, entry): (&TunnelName, &TunnelEntry)| {
            let path = keyspace().pool(name).tunnel(tunnel, entry.serial);
            (tunnel.clone(), self.record(&path))
        };
        let pool = |(name, state): (&PoolName, &PoolState)| {
            let tunnels = state.tunnels().map(|entry| tunnel(name, entry)).collect();
            (name.clone(), DesiredPool { lines: state.lines.clone(), tunnels })
        };
        DesiredFile { pools: self.pools.iter().map(pool).collect() }
    }
}

fn tunnel(text: &str) -> DesiredTunnel {
    DesiredTunnel { lines: Lines::new(text.to_owned()), children: vec![Lines::default()] }
}

fn file(tunnels: impl IntoIterator<Item = (String, DesiredTunnel)>) -> DesiredFile {
    let named = |(name, tunnel): (String, DesiredTunnel)| (name.parse().unwrap(), tunnel);
    let tunnels = tunnels.into_iter().map(named).collect();
    let desired = DesiredPool { lines: Lines::default(), tunnels };
    DesiredFile { pools: BTreeMap::from([(pool(), desired)]) }
}

fn many(count: usize, changed: usize) -> DesiredFile {
    let text = |number| if number == changed { "changed" } else { "as it was" };
    file((0..count).map(|number| (format!("tunnel-{number}"), tunnel(text(number)))))
}

#[test]
fn one_changed_tunnel_writes_three_records() {
    let mut store = Store::default();
    store.apply(&many(10_000, usize::MAX));
    let buckets = store.pools[&pool()].buckets.len();
    assert_eq!(buckets, 128);
    let plan = store.apply(&many(10_000, 77));
    let name = "tunnel-77".parse().unwrap();
    assert_eq!(plan.changes, [DesiredChange::Tunnel(pool(), name, TunnelDiff::Changed)]);
    assert_eq!((plan.parts.len(), plan.indices.len(), plan.obsolete.len()), (2, 1, 2));
    // What a gateway reads that has no child of it.
    let bytes: usize = plan.parts[1..].iter().chain(&plan.indices).map(|w| w.text.len()).sum();
    assert!(bytes < 10_000, "{bytes}");
}

#[test]
fn what_is_there_is_not_written_again() {
    let mut store = Store::default();
    store.apply(&many(100, 1));
    assert_eq!(store.apply(&many(100, 1)), Plan::default());
}

#[test]
fn a_pool_that_goes_leaves_an_index_without_anything() {
    let mut store = Store::default();
    store.apply(&many(3, 1));
    let plan = store.apply(&DesiredFile::default());
    assert_eq!(plan.changes.len(), 4);
    assert_eq!(store.records.len(), 1);
    assert_eq!(store.pools[&pool()].children().count(), 0);
    assert_eq!(store.apply(&DesiredFile::default()), Plan::default());
}

#[test]
fn buckets_by_table() {
    for (tunnels, now, count) in [
        (0, 0, 1),
        (10, 0, 4),
        (10_000, 0, 128),
        (10_000, 128, 128),
        (100_000, 128, 128),
        (1_000_000, 128, 1024),
        (10, 128, 4),
        (1 << 30, 0, MOST_BUCKETS),
    ] {
        assert_eq!(buckets_for(tunnels, now), count, "{tunnels} tunnels, {now} buckets");
    }
}

const FILE: &str = r#"
[pools.default]
lines = "policy setdefault out block"

[tunnels.branch-1]
lines = "policy add one"
children = ["state add a", "state add b"]

[tunnels.branch-2]
lines = """
state add c
"""

[pools.eu]
[tunnels.berlin]
pool = "eu"
"#;

#[test]
fn a_file_reads() {
    let file = DesiredFile::parse(FILE).unwrap();
    let tunnels = &file.pools[&pool()].tunnels;
    assert_eq!(tunnels[&"branch-1".parse().unwrap()].children.len(), 2);
    assert_eq!(tunnels[&"branch-2".parse().unwrap()].children, [Lines::default()]);
    assert_eq!(file.pools[&pool()].lines.as_str(), "policy setdefault out block");
    assert_eq!(file.pools[&"eu".parse().unwrap()].tunnels.len(), 1);
}

#[test]
fn wrong_files_are_told_without_their_keys() {
    for (text, told) in [
        ("[pools.Default]", "line 1: `Default` is no name: letters a to z"),
        ("\n[tunnels.a]\nlinez = 1", "line 3: unknown field `linez`"),
        ("[tunnels.a]\nchildren = \"0xsecret\"", "line 2: invalid type: string …, expected"),
        ("[tunnels.a]\nlines = 0xsecret", "line 2: "),
        ("[tunnels.a]\npool = \"eu\"", "tunnel `a`: there is no pool `eu`; say [pools.eu]"),
    ] {
        let error = DesiredFile::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let many = format!("[tunnels.a]\nchildren = [{}]", "'',".repeat(1025));
    assert!(DesiredFile::parse(&many).unwrap_err().to_string().contains("1025 children"));
}

#[test]
fn keys_are_not_shown() {
    let file = file([("a".to_owned(), tunnel("0xsecret"))]);
    let mut store = Store::default();
    let plan = store.apply(&file);
    let shown = format!("{file:?} {plan:?} {:?}", store.pools);
    assert!(!shown.contains("secret"), "{shown}");
}

/// Files with few names, so that tunnels come, change and go.
fn files() -> impl Strategy<Value = DesiredFile> {
    let tunnel = ("[ab]", 1_usize..3).prop_map(|(text, children)| DesiredTunnel {
        lines: Lines::new(text),
        children: vec![Lines::default(); children],
    });
    let tunnels = proptest::collection::btree_map("[a-e][0-9]", tunnel, 0..40);
    let pool = ("[xy]", tunnels).prop_map(|(lines, tunnels)| DesiredPool {
        lines: Lines::new(lines),
        tunnels: tunnels
            .into_iter()
            .map(|(name, tunnel)| (name.parse().unwrap(), tunnel))
            .collect(),
    });
    let pools = proptest::collection::btree_map("[pq]", pool, 0..3);
    pools.prop_map(|pools| DesiredFile {
        pools: pools.into_iter().map(|(name, pool)| (name.parse().unwrap(), pool)).collect(),
    })
}

proptest! {
    #[test]
    fn the_store_says_what_was_applied_last(files in proptest::collection::vec(files(), 1..6)) {
        let mut store = Store::default();
        for file in &files {
            let plan = store.apply(file);
            let mut said = store.file();
            said.pools.retain(|name, pool| {
                file.pools.contains_key(name) || *pool != DesiredPool::default()
            });
            prop_assert_eq!(&said, file);
            prop_assert_eq!(plan.changes.is_empty(), plan.indices.is_empty());
        }
        // Nothing is left over.
        let held: usize = store.pools.values()
            .map(|pool| 1 + pool.buckets.len() + pool.tunnels().count()).sum();
        prop_assert_eq!(store.records.len(), held);
    }
}
