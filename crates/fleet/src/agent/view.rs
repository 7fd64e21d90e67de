//! What the agent knows of its pool in etcd.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    desired::{Bucket, PoolIndex, PoolState},
    edges::Reach,
    keyspace::PoolKeyspace,
    members::Members,
    names::GatewayName,
    numbers::{KeyFingerprint, NumberRecord},
    seal::{Keyring, Serial},
    store::{KeyChange, StoreRevision, Stored},
};

/// A record, and where it stood in the store's history.
#[derive(Clone, Debug)]
pub(super) struct Versioned<T> {
    pub(super) serial: Serial,
    pub(super) revision: StoreRevision,
    pub(super) record: T,
}

/// That a gateway does not hear another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Vote {
    /// The epoch that the voter knew.
    pub(super) epoch: Serial,
    /// Up to where the voter knows the suspect to have accepted packets.
    pub(super) reach: Reach,
    /// The epoch that the suspect knew when it was heard last.
    pub(super) heard_epoch: Serial,
}

/// What the agent knows of its pool.
#[derive(Debug)]
pub(super) struct PoolView {
    keys: PoolKeyspace,
    /// Up to where it followed the store.
    pub(super) revision: StoreRevision,
    pub(super) members: Option<Versioned<Members>>,
    index: Option<Versioned<PoolIndex>>,
    buckets: BTreeMap<(usize, Serial), Bucket>,
    numbers: BTreeMap<KeyFingerprint, Versioned<NumberRecord>>,
    /// By suspect and voter.
    votes: BTreeMap<(GatewayName, GatewayName), Versioned<Vote>>,
    /// Those that have a lease.
    pub(super) live: BTreeSet<GatewayName>,
    /// What was refused, for people: the newest last.
    pub(super) refused: Vec<String>,
    /// Rises where members or tunnels changed.
    pub(super) changes: u64,
}

impl PoolView {
    pub(super) fn new(keys: PoolKeyspace) -> Self {
        Self {
            keys,
            revision: StoreRevision(0),
            members: None,
            index: None,
            buckets: BTreeMap::new(),
            numbers: BTreeMap::new(),
            votes: BTreeMap::new(),
            live: BTreeSet::new(),
            refused: Vec::new(),
            changes: 0,
        }
    }

    /// All is read anew; what went meanwhile is gone, but for what must not go back.
    pub(super) fn load(
        &mut self,
        keyring: &Keyring,
        revision: StoreRevision,
        records: Vec<(String, Stored)>,
    ) {
        self.votes.clear();
        self.live.clear();
        self.buckets.clear();
        for (key, stored) in records {
            self.change(keyring, KeyChange { key, stored: Some(stored) });
        }
        self.revision = revision;
    }

    pub(super) fn change(&mut self, keyring: &Keyring, change: KeyChange) {
        let KeyChange { key, stored } = change;
        if let Some(stored) = &stored {
            self.revision = self.revision.max(stored.revision);
        }
        let Some(rest) = key.strip_prefix(self.keys.prefix()) else { return };
        let parts: Vec<_> = rest.split('/').collect();
        match (&parts[..], stored) {
            (["members"], Some(stored)) => {
                let opened = newer(keyring, &key, stored, self.members.as_ref());
                self.keep(opened, |view, members| {
                    view.members = Some(members);
                    view.changes += 1;
                });
            }
            (["desired"], Some(stored)) => {
                let opened = newer(keyring, &key, stored, self.index.as_ref());
                self.keep(opened, |view, index| {
                    view.index = Some(index);
                    view.changes += 1;
                });
            }
            (["buckets", number, _], Some(stored)) => {
                let Ok(number) = number.parse() else { return };
                let opened = open(keyring, &key, stored);
                self.keep(opened, |view, bucket: Versioned<Bucket>| {
                    view.buckets.insert((number, bucket.serial), bucket.record);
                    view.changes += 1;
                });
            }
            (["buckets", number, serial], None) => {
                if let (Ok(number), Ok(serial)) = (number.parse(), serial.parse()) {
                    self.buckets.remove(&(number, Serial(serial)));
                }
            }
            (["numbers", name], Some(stored)) => {
                let Ok(name) = u128::from_str_radix(name, 16) else { return };
                let name = KeyFingerprint(name);
                let opened = newer(keyring, &key, stored, self.numbers.get(&name));
                self.keep(opened, |view, record| drop(view.numbers.insert(name, record)));
            }
            (["votes", suspect, voter], stored) => {
                self.vote_changed(keyring, &key, (suspect, voter), stored);
            }
            (["gateways", name], stored) => {
                let Ok(name) = name.parse() else { return };
                if stored.is_some() {
                    self.live.insert(name);
                } else {
                    self.live.remove(&name);
                }
            }
            // A desired state, members or numbers that are deleted: nobody of the fleet does that.
            (_, None | Some(_)) => {}
        }
    }

    fn vote_changed(
        &mut self,
        keyring: &Keyring,
        key: &str,
        (suspect, voter): (&str, &str),
        stored: Option<Stored>,
    ) {
        let (Ok(suspect), Ok(voter)) = (suspect.parse(), voter.parse()) else { return };
        match stored {
            None => drop(self.votes.remove(&(suspect, voter))),
            Some(stored) => {
                let opened = open(keyring, key, stored);
                self.keep(opened, |view, vote| {
                    view.votes.insert((suspect, voter), vote);
                });
            }
        }
    }

    fn keep<T>(&mut self, opened: Result<T, String>, keep: impl FnOnce(&mut Self, T)) {
        match opened {
            Ok(record) => keep(self, record),
            Err(refused) => self.refused.push(refused),
        }
    }

    /// The epoch; 0 before there are members.
    pub(super) fn epoch(&self) -> Serial {
        self.members.as_ref().map_or(Serial(0), |members| members.serial)
    }

    /// The pool's tunnels, where all buckets of the index are there.
    pub(super) fn desired(&self) -> Option<PoolState> {
        let index = self.index.as_ref()?;
        let bucket = |(number, serial): (usize, &Serial)| {
            let bucket = self.buckets.get(&(number, *serial))?;
            Some((*serial, bucket.clone()))
        };
        let buckets = index.record.buckets.iter().enumerate().map(bucket).collect::<Option<_>>()?;
        Some(PoolState { serial: index.serial, lines: index.record.lines.clone(), buckets })
    }

    pub(super) fn numbers(&self, key: KeyFingerprint) -> Option<&Versioned<NumberRecord>> {
        self.numbers.get(&key)
    }

    /// The own transaction wrote this.
    pub(super) fn wrote_numbers(&mut self, key: KeyFingerprint, record: Versioned<NumberRecord>) {
        self.numbers.insert(key, record);
    }

    /// One vote, of whatever epoch.
    pub(super) fn vote(
        &self,
        suspect: &GatewayName,
        voter: &GatewayName,
    ) -> Option<&Versioned<Vote>> {
        self.votes.get(&(suspect.clone(), voter.clone()))
    }

    /// Votes against a gateway under the current epoch.
    pub(super) fn votes_against<'a>(
        &'a self,
        suspect: &'a GatewayName,
    ) -> impl Iterator<Item = (&'a GatewayName, &'a Versioned<Vote>)> + 'a {
        let epoch = self.epoch();
        let all = self.votes.iter().filter(move |((of, _), _)| of == suspect);
        let own = all.filter(move |(_, vote)| vote.record.epoch == epoch);
        own.map(|((_, voter), vote)| (voter, vote))
    }
}

fn open<T: DeserializeOwned>(
    keyring: &Keyring,
    key: &str,
    stored: Stored,
) -> Result<Versioned<T>, String> {
    let opened = keyring.open(key, &stored.value).map_err(|error| format!("{key}: {error}"))?;
    let record = serde_json::from_slice(&opened.text)
        .map_err(|_| format!("{key}: it is no record of this version of uxfrm"))?;
    Ok(Versioned { serial: opened.serial, revision: stored.revision, record })
}

/// The same, where it is not older than what is known.
fn newer<T: DeserializeOwned>(
    keyring: &Keyring,
    key: &str,
    stored: Stored,
    known: Option<&Versioned<T>>,
) -> Result<Versioned<T>, String> {
    let opened = open(keyring, key, stored)?;
    match known {
        Some(known) if known.serial > opened.serial => Err(format!(
            "{key}: it went back from {} to {}: was an old copy of etcd put back?",
            known.serial.0, opened.serial.0
        )),
        Some(_) | None => Ok(opened),
    }
}
