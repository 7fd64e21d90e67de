//! Answers of the gateway, for many clients at once.
//!
//! The gateway is asked by a few threads at a time, each of which may wait. Requests that are the
//! same share one answer: while it is awaited, and for a quarter of a second after. Only so many
//! wait, of one client a part of them, and a request that nobody waits for any more gives up its
//! place. How much memory answers take together is bounded, also of those that slow clients still
//! read, and of that each client has a share.

mod client_shares;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;
use uxfrm_control_client::stat;
use uxfrm_status::counters::CounterReport;
use uxfrm_status::drops::{DropQuery, DropReport, DropScope, DropTallyQuery, DropTallyReport};
use uxfrm_status::explanation::{FlowExplanation, FlowQuery};
use uxfrm_status::gateway::{GatewayStatus, StatusQuery};
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};
use uxfrm_status::workers::WorkerReport;

use crate::access::Client;
use crate::source::Source;
use client_shares::{ClientShares, ShareBounds, ShareError, TakenShare};

/// For how long an answer is given to others who ask the same.
const FRESH: Duration = Duration::from_millis(250);
/// Requests that the gateway is asked at a time.
const ASKED_AT_ONCE: usize = 4;
/// How long a request may wait for its turn.
const TURN: Duration = Duration::from_secs(10);
/// Requests that wait at a time.
const WAITING: ShareBounds = ShareBounds { all: 64, one: 16, sessions: 32 };
/// Bytes of texts that are on their way to clients, those that several read counted once, for the
/// first.
const MEMORY: ShareBounds = ShareBounds { all: 128 << 20, one: 128 << 20, sessions: 128 << 20 };
/// Bytes that clients have not read yet, those that several read counted for each.
const UNREAD: ShareBounds = ShareBounds { all: usize::MAX, one: 32 << 20, sessions: 64 << 20 };

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The gateway, or none that is there.
    #[error(transparent)]
    Gateway(Arc<stat::Error>),
    /// Too many ask.
    #[error("too many requests are waiting for the gateway")]
    Busy,
    /// This client asks too much.
    #[error("too many requests of yours are waiting for the gateway")]
    Greedy,
    /// This client reads too little.
    #[error("you have not read the answers before")]
    Unread,
    /// The thread that asked has panicked.
    #[error("the request came to nothing")]
    Lost,
}

/// An answer, shared by all who asked for it.
pub struct GatewayAnswer {
    document: StatusAnswer,
    json: OnceLock<Bytes>,
}

/// A document of one kind, as part of its answer.
macro_rules! document {
    ($name:ident, $variant:ident, $document:ty, $doc:literal) => {
        #[doc = $doc]
        #[must_use]
        pub fn $name(&self) -> Option<&$document> {
            if let StatusAnswer::$variant(document) = &self.document {
                Some(document)
            } else {
                None
            }
        }
    };
}

impl GatewayAnswer {
    document!(counters, Counters, CounterReport, "The counters, if it has those.");
    document!(status, Status, GatewayStatus, "The tunnels, if it has those.");
    document!(drops, Drops, DropReport, "The dropped packets, if it has those.");
    document!(drop_tallies, DropTallies, DropTallyReport, "Whose they were, if it has that.");
    document!(workers, Workers, WorkerReport, "The workers, if it has those.");
    document!(why, Why, FlowExplanation, "What a packet would meet, if it has that.");

    /// The document alone, as JSON.
    fn to_json(&self) -> Vec<u8> {
        // Maps have text as keys, the only thing that could fail.
        match &self.document {
            StatusAnswer::Counters(told) => serde_json::to_vec(told),
            StatusAnswer::Status(told) => serde_json::to_vec(told),
            StatusAnswer::Drops(told) => serde_json::to_vec(told),
            StatusAnswer::DropTallies(told) => serde_json::to_vec(told),
            StatusAnswer::Why(told) => serde_json::to_vec(told),
            StatusAnswer::Workers(told) => serde_json::to_vec(told),
            StatusAnswer::Capture(told) => serde_json::to_vec(told),
            StatusAnswer::Trace(told) => serde_json::to_vec(told),
            StatusAnswer::Refusal(told) => serde_json::to_vec(told),
        }
        .unwrap_or_default()
    }
}

impl fmt::Debug for GatewayAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GatewayAnswer").finish_non_exhaustive()
    }
}

type Fetch = BoxFuture<'static, Result<Arc<GatewayAnswer>, Error>>;

/// Answers that are awaited or fresh, by the line that asks for them.
type Recent = Arc<Mutex<HashMap<Arc<[u8]>, Entry>>>;

/// An answer that others may share. It keeps no fetch alive: those who wait do.
struct Entry {
    number: u64,
    awaited: WeakShared<Fetch>,
}

/// The gateway's answers, for a client.
#[derive(Clone)]
pub struct GatewayAnswers {
    client: Client,
    source: Arc<dyn Source>,
    waiting: ClientShares,
    turns: Arc<Semaphore>,
    memory: ClientShares,
    unread: ClientShares,
    numbers: Arc<AtomicU64>,
    recent: Recent,
}

impl fmt::Debug for GatewayAnswers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GatewayAnswers").finish_non_exhaustive()
    }
}

/// Those for the client of a request.
impl FromRequestParts<Self> for GatewayAnswers {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, all: &Self) -> Result<Self, Infallible> {
        let client = Client::from_request_parts(parts, all).await?;
        Ok(Self { client, ..all.clone() })
    }
}

impl GatewayAnswers {
    /// Answers of this source.
    #[must_use]
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self {
            client: Client::Server,
            source,
            waiting: ClientShares::new(WAITING),
            turns: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
            memory: ClientShares::new(MEMORY),
            unread: ClientShares::new(UNREAD),
            numbers: Arc::default(),
            recent: Arc::default(),
        }
    }

    /// The answer to a request.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(&self, request: StatusRequest) -> Result<Arc<GatewayAnswer>, Error> {
        self.awaited(request)?.await
    }

    /// The counters.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn counters(&self) -> Result<Arc<GatewayAnswer>, Error> {
        self.ask(StatusRequest::Counters).await
    }

    /// The tunnels.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn status(&self, query: StatusQuery) -> Result<Arc<GatewayAnswer>, Error> {
        self.ask(StatusRequest::Status(query)).await
    }

    /// The dropped packets.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn drops(&self, query: DropQuery) -> Result<Arc<GatewayAnswer>, Error> {
        self.ask(StatusRequest::Drops(query)).await
    }

    /// Whose they were.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn drop_tallies(&self, by: DropScope) -> Result<Arc<GatewayAnswer>, Error> {
        self.ask(StatusRequest::DropTallies(DropTallyQuery { by })).await
    }

    /// What a packet would meet.
    ///
    /// # Errors
    /// Why that is not known.
    pub async fn why(&self, query: FlowQuery) -> Result<Arc<GatewayAnswer>, Error> {
        self.ask(StatusRequest::Why(query)).await
    }

    /// The document of an answer as JSON, written once for all who read it.
    ///
    /// # Errors
    /// As [`GatewayAnswers::written`].
    pub async fn json(&self, answer: Arc<GatewayAnswer>) -> Result<Bytes, Error> {
        if let Some(json) = answer.json.get() {
            return self.owed(json.clone());
        }
        let written = Arc::clone(&answer);
        let json = self.write(move || written.to_json()).await?;
        self.owed(answer.json.get_or_init(|| json).clone())
    }

    /// What `write` writes on a thread that may take its time. It has its room until nobody reads
    /// it any more.
    ///
    /// # Errors
    /// [`Error::Busy`] where clients have not read what came before, [`Error::Unread`] where this
    /// one has not.
    pub async fn written(
        &self,
        write: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Result<Bytes, Error> {
        self.owed(self.write(write).await?)
    }

    async fn write(
        &self,
        write: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Result<Bytes, Error> {
        let (memory, client) = (self.memory.clone(), self.client);
        let written = tokio::task::spawn_blocking(move || {
            let text = write();
            let room = memory.take(client, text.len()).map_err(|_full| Error::Busy)?;
            Ok(Bytes::from_owner(Held { text, _room: room }))
        });
        written.await.unwrap_or(Err(Error::Lost))
    }

    /// A text that this client is to read, and has of its share until it has.
    fn owed(&self, text: Bytes) -> Result<Bytes, Error> {
        let room = self.unread.take(self.client, text.len()).map_err(|_full| Error::Unread)?;
        Ok(Bytes::from_owner(Held { text, _room: room }))
    }

    /// The answer that somebody else awaits or has had, or one that is asked for now.
    fn awaited(&self, request: StatusRequest) -> Result<Shared<Fetch>, Error> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let line: Arc<[u8]> = request.to_line().into();
        if let Some(awaited) = recent.get(&line).and_then(|entry| entry.awaited.upgrade()) {
            return Ok(awaited);
        }
        let place = self.waiting.take(self.client, 1).map_err(|error| match error {
            ShareError::Exhausted => Error::Busy,
            ShareError::Greedy => Error::Greedy,
        })?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let listed = Listed { recent: Arc::clone(&self.recent), line: Arc::clone(&line), number };
        let fetch = self.clone().fetch(request, place, listed).boxed().shared();
        // What nobody has polled is not done, so there is something to share.
        if let Some(awaited) = fetch.downgrade() {
            recent.insert(line, Entry { number, awaited });
        }
        Ok(fetch)
    }

    /// Waits for a turn while anybody waits for the answer, and asks. What is asked comes to its
    /// end though all have gone, so that nobody's going disturbs others.
    async fn fetch(
        self,
        request: StatusRequest,
        place: TakenShare,
        listed: Listed,
    ) -> Result<Arc<GatewayAnswer>, Error> {
        let turn = tokio::time::timeout(TURN, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Error::Busy) };
        drop(place);
        // Whoever polls this shares it, so it is listed.
        if let Some(awaited) = listed.awaited() {
            drop(tokio::spawn(listed.keep(awaited)));
        }
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            self.source.ask(&request)
        });
        match asked.await {
            Ok(Ok(document)) => Ok(Arc::new(GatewayAnswer { document, json: OnceLock::new() })),
            Ok(Err(error)) => Err(Error::Gateway(Arc::new(error))),
            Err(_panicked) => Err(Error::Lost),
        }
    }
}

/// An entry among the recent answers, until this is dropped.
struct Listed {
    recent: Recent,
    line: Arc<[u8]>,
    number: u64,
}

impl Listed {
    fn awaited(&self) -> Option<Shared<Fetch>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(&self.line).and_then(|entry| entry.awaited.upgrade())
    }

    /// Has the answer come, and keeps it while it is fresh.
    async fn keep(self, awaited: Shared<Fetch>) {
        drop(awaited.clone().await);
        tokio::time::sleep(FRESH).await;
        drop(awaited);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // Another may have come since: of this one nobody was left.
        if recent.get(&self.line).is_some_and(|entry| entry.number == self.number) {
            recent.remove(&self.line);
        }
    }
}

/// A text, which has its room until nobody reads it any more.
struct Held<T> {
    text: T,
    _room: TakenShare,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Held<T> {
    fn as_ref(&self) -> &[u8] {
        self.text.as_ref()
    }
}
