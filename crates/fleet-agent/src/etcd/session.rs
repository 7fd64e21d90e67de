//! A lease, a watch and requests at etcd, for as long as the agent runs.
//!
//! One endpoint at a time serves. Where it fails, the next one is tried, for ever and with pauses
//! that grow and differ between gateways. The watch goes on where it ended; where etcd has
//! compacted that away, the pool is read anew. A request of which nobody knows whether it was done
//! is answered so, and late enough that nobody asks in a loop.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::mpsc::UnboundedSender,
    time::{Instant, sleep, sleep_until},
};
use uxfrm_fleet::{
    agent::{AgentInput, Millis, RequestId, StoreAnswer, StoreRequest},
    keyspace::PoolKeyspace,
    names::GatewayName,
    seal::Keyring,
    store::{KeyChange, StoreOperation, StoreRevision, StoreTransaction, Stored},
};

use super::{
    client::{EtcdClient, EtcdError},
    history::StoreHistory,
    mapping::{self, EtcdLease},
    messages::WatchResponse,
};
use crate::{clock, config::EtcdConfig};

/// Between two keepalives: several in the time without etcd that the agent allows.
const KEEPALIVE: Duration = Duration::from_millis(300);
/// Before the answer to a request of which nobody knows.
const UNKNOWN_AFTER: Duration = Duration::from_millis(500);
/// Pauses between attempts, from and up to.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// A session that lasted so long was a good one.
const LASTING: Duration = Duration::from_secs(10);

/// What a session is for.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Where etcd is.
    pub etcd: EtcdConfig,
    /// The keys of the pool.
    pub keys: PoolKeyspace,
    /// The own gateway.
    pub gateway: GatewayName,
    /// How long the lease lives.
    pub lease: Millis,
}

/// What comes of it.
#[derive(Debug)]
pub enum StoreEvent {
    /// For the agent.
    Input(AgentInput),
    /// An endpoint serves.
    Connected(String),
    /// None does, and why the last one does not.
    Lost(String),
    /// A record that is not believed, and why.
    Refused(String),
}

/// The session. Copies are the same one.
#[derive(Clone, Debug)]
pub struct EtcdSession {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: SessionConfig,
    history: StoreHistory,
    keyring: Mutex<Keyring>,
    events: UnboundedSender<StoreEvent>,
    /// Who serves now, and the lease there.
    current: Mutex<Option<(EtcdClient, EtcdLease)>>,
}

/// What lasts from one connection to the next.
#[derive(Default)]
struct Progress {
    lease: Option<EtcdLease>,
    /// Up to where the agent knows all changes; none before the pool was read.
    watched: Option<StoreRevision>,
    endpoint: usize,
}

impl EtcdSession {
    /// One that tells `events` what comes.
    #[must_use]
    pub fn new(
        config: SessionConfig,
        history: StoreHistory,
        keyring: Keyring,
        events: UnboundedSender<StoreEvent>,
    ) -> Self {
        let (keyring, current) = (Mutex::new(keyring), Mutex::new(None));
        Self { shared: Arc::new(Shared { config, history, keyring, events, current }) }
    }

    /// Other keys open records from now on.
    pub fn set_keyring(&self, keyring: Keyring) {
        *lock(&self.shared.keyring) = keyring;
    }

    /// Asks etcd; the answer comes as an event.
    pub fn ask(&self, id: RequestId, request: StoreRequest) {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let asked_at = Instant::now();
            let answer = shared.answer(request).await;
            if answer == StoreAnswer::Unknown {
                sleep_until(asked_at + UNKNOWN_AFTER).await;
            }
            shared.tell(AgentInput::Answered(id, answer));
        });
    }

    /// Keeps the lease and follows changes, for ever.
    pub async fn run(self) {
        let mut progress = Progress::default();
        let mut pause = PAUSES.0;
        loop {
            let begun_at = Instant::now();
            let Err(why) = self.shared.serve(&mut progress).await;
            *lock(&self.shared.current) = None;
            self.shared.emit(StoreEvent::Lost(why.to_string()));
            progress.endpoint += 1;
            pause = if begun_at.elapsed() >= LASTING { PAUSES.0 } else { pause };
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Ends the lease, so that nobody waits for its end. For who leaves on purpose.
    pub async fn end(&self) {
        let current = lock(&self.shared.current).clone();
        if let Some((client, lease)) = current {
            // It ends by itself as well.
            let _ended = client.revoke(lease).await;
        }
    }
}

enum Never {}

impl Shared {
    async fn serve(&self, progress: &mut Progress) -> Result<Never, EtcdError> {
        let endpoints = &self.config.etcd.endpoints;
        let endpoint = endpoints.get(progress.endpoint % endpoints.len().max(1));
        let endpoint = endpoint.map(String::as_str).unwrap_or_default();
        let history = self.history.clone();
        let client = EtcdClient::connect(&self.config.etcd, endpoint, history).await?;
        // By consensus: a node that lags behind, or an etcd of the past, is not taken.
        client.read(&self.config.keys.members()).await?;
        let lease = self.hold_lease(&client, progress.lease).await?;
        progress.lease = Some(lease);
        *lock(&self.current) = Some((client.clone(), lease));
        self.emit(StoreEvent::Connected(endpoint.to_owned()));
        let Progress { lease: held, watched, .. } = progress;
        tokio::select! {
            ended = self.keep_lease(&client, held) => ended,
            ended = self.follow(&client, watched) => ended,
        }
    }

    /// The lease that was, or a new one.
    async fn hold_lease(
        &self,
        client: &EtcdClient,
        held: Option<EtcdLease>,
    ) -> Result<EtcdLease, EtcdError> {
        let asked_at = clock::boot_millis();
        if let Some(lease) = held
            && client.keep_alive(lease).await?
        {
            self.tell(AgentInput::LeaseHeld { asked_at });
            return Ok(lease);
        }
        self.tell(AgentInput::LeaseGone);
        let asked_at = clock::boot_millis();
        let lease = client.grant(seconds(self.config.lease)).await?;
        self.tell(AgentInput::LeaseHeld { asked_at });
        Ok(lease)
    }

    async fn keep_lease(
        &self,
        client: &EtcdClient,
        held: &mut Option<EtcdLease>,
    ) -> Result<Never, EtcdError> {
        loop {
            sleep(KEEPALIVE).await;
            let lease = self.hold_lease(client, *held).await?;
            if *held != Some(lease) {
                *held = Some(lease);
                *lock(&self.current) = Some((client.clone(), lease));
            }
        }
    }

    /// Reads the pool, where it is not known, and all changes from there on.
    async fn follow(
        &self,
        client: &EtcdClient,
        watched: &mut Option<StoreRevision>,
    ) -> Result<Never, EtcdError> {
        let prefix = self.config.keys.prefix();
        loop {
            let from = match *watched {
                Some(from) => from,
                None => self.load(client, prefix).await?,
            };
            *watched = Some(from);
            let mut changes = client.watch(prefix, from).await?;
            loop {
                let came = changes.message().await.map_err(|status| client.refused(&status))?;
                let came = came.ok_or_else(|| client.ended())?;
                client.check(came.header, StoreRevision(0))?;
                if came.compact_revision != 0 {
                    // What came between is not to be had any more.
                    *watched = None;
                    break;
                }
                if came.canceled {
                    let why = came.cancel_reason.clone();
                    return Err(client.refused(&tonic::Status::unavailable(why)));
                }
                self.pass_on(came, watched);
            }
        }
    }

    async fn load(&self, client: &EtcdClient, prefix: &str) -> Result<StoreRevision, EtcdError> {
        let (revision, records) = client.read_all(prefix).await?;
        let mut believed = Vec::with_capacity(records.len());
        for (key, stored) in records {
            match self.believe(&key, &stored) {
                Ok(()) => believed.push((key, stored)),
                Err(why) => self.emit(StoreEvent::Refused(why)),
            }
        }
        self.tell(AgentInput::Loaded(revision, believed));
        Ok(revision)
    }

    fn pass_on(&self, came: WatchResponse, watched: &mut Option<StoreRevision>) {
        let (is_part, header) = (came.fragment, came.header.unwrap_or_default());
        for (_, change) in came.events.into_iter().filter_map(mapping::change) {
            let KeyChange { key, stored } = &change;
            let believed = stored.as_ref().map_or(Ok(()), |stored| self.believe(key, stored));
            match believed {
                Ok(()) => self.tell(AgentInput::Changed(change)),
                Err(why) => self.emit(StoreEvent::Refused(why)),
            }
        }
        // A word without events says as well up to where all is told. The first parts of an answer
        // do not.
        if !is_part && !came.created {
            *watched = (*watched).max(Some(mapping::revision(header.revision)));
        }
    }

    async fn answer(&self, request: StoreRequest) -> StoreAnswer {
        let Some((client, lease)) = lock(&self.current).clone() else {
            return StoreAnswer::Unknown;
        };
        let answered = match request {
            StoreRequest::Read(key) => client.read(&key).await.map(|(revision, stored)| {
                let records = stored.map(|stored| (key, stored)).into_iter().collect();
                self.records(revision, records)
            }),
            StoreRequest::ReadAll(prefix) => client
                .read_all(&prefix)
                .await
                .map(|(revision, records)| self.records(revision, records)),
            StoreRequest::Commit(transaction) => self.commit(&client, lease, &transaction).await,
        };
        answered.unwrap_or_else(|error| {
            tracing::debug!("{error}");
            StoreAnswer::Unknown
        })
    }

    /// Records, where all of them are believed: one that is left out could mean that nobody ever
    /// accepted a packet.
    fn records(&self, revision: StoreRevision, records: Vec<(String, Stored)>) -> StoreAnswer {
        for (key, stored) in &records {
            if let Err(why) = self.believe(key, stored) {
                self.emit(StoreEvent::Refused(why));
                return StoreAnswer::Unknown;
            }
        }
        StoreAnswer::Records(revision, records)
    }

    async fn commit(
        &self,
        client: &EtcdClient,
        lease: EtcdLease,
        transaction: &StoreTransaction,
    ) -> Result<StoreAnswer, EtcdError> {
        let committed = client.commit_leased(transaction, Some(lease)).await?;
        let Some(revision) = committed else { return Ok(StoreAnswer::Refused) };
        if self.note_own(transaction)
            && let Err(why) = self.save_history().await
        {
            let why = format!("{why}: after a restart an etcd that went back is not noticed");
            self.emit(StoreEvent::Refused(why));
        }
        Ok(StoreAnswer::Committed(revision))
    }

    /// Notes the own numbers and edges; whether numbers are among them, which are on the disk
    /// before they are used.
    fn note_own(&self, transaction: &StoreTransaction) -> bool {
        let keys = &self.config.keys;
        let (numbers, edges) = (keys.all_numbers(), keys.edges(&self.config.gateway));
        let mut has_numbers = false;
        for operation in &transaction.operations {
            let StoreOperation::Put { key, value, .. } = operation else { continue };
            let is_number = key.starts_with(&numbers);
            if (is_number || *key == edges)
                && let Ok(opened) = lock(&self.keyring).open(key, value)
            {
                self.history.note(key, opened.serial);
                has_numbers |= is_number;
            }
        }
        has_numbers
    }

    async fn save_history(&self) -> io::Result<()> {
        let history = self.history.clone();
        tokio::task::spawn_blocking(move || history.save()).await.map_err(io::Error::other)?
    }

    /// Whether a record is no older than one that was seen under its key. Records that do not open
    /// are the agent's to refuse.
    fn believe(&self, key: &str, stored: &Stored) -> Result<(), String> {
        let keys = &self.config.keys;
        let is_noted = key == keys.members() || key == keys.desired();
        let known = self.history.serial(key);
        if !is_noted && known.is_none() {
            return Ok(());
        }
        let Ok(opened) = lock(&self.keyring).open(key, &stored.value) else { return Ok(()) };
        if let Some(known) = known.filter(|known| *known > opened.serial) {
            let (known, now) = (known.0, opened.serial.0);
            return Err(format!(
                "{key}: it went back from {known} to {now}: was an old copy of etcd put back?"
            ));
        }
        if is_noted {
            self.history.note(key, opened.serial);
        }
        Ok(())
    }

    fn tell(&self, input: AgentInput) {
        self.emit(StoreEvent::Input(input));
    }

    fn emit(&self, event: StoreEvent) {
        // Nobody listens where the agent ends.
        let _ended = self.events.send(event);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(millis: Millis) -> i64 {
    i64::try_from(millis.div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// Between half of a pause and all of it.
fn jittered(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or_default();
    pause / 2 + pause / 2 * (random % 1024) / 1024
}

#[cfg(test)]
mod tests;
