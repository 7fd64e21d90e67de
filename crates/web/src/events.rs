//! `GET /api/v1/events`: server-sent events about drops and tunnels.
//!
//! One task asks the gateway for all who listen, and only while somebody does. A listener that is
//! too slow misses events and is told how many; nobody waits for it. Where all streams are taken
//! the oldest one of whoever has the most ends for who has fewer; a browser comes again.

mod change;
mod watch;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::get;
use futures_util::{Stream, StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use crate::access::Client;
use crate::answers::GatewayAnswers;
use crate::api::{Query, misfit, wrong};
use crate::problem::{Problem, ProblemKind};
use crate::shared_places::{GivenAway, Need, Place, SharedPlaces};
pub use change::{ChangedTunnel, GatewayTurn, Heartbeat, MissedEvents, ServerSentEvent, TurnKind};
pub use watch::{GatewayNews, TunnelWatch};

/// Streams at a time.
const STREAMS: usize = 16;
/// Events that a listener may be behind.
const BEHIND: usize = 2048;
/// How long a browser waits before it comes again.
const RETRY: Duration = Duration::from_secs(2);

/// What happens, for all who listen.
#[derive(Clone, Debug)]
pub(crate) struct Happenings {
    answers: GatewayAnswers,
    sender: broadcast::Sender<Message>,
    places: SharedPlaces,
    watcher: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// One event, written.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    name: &'static str,
    id: Option<u64>,
    data: Arc<str>,
}

/// For how long a client listens.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListenParameters {
    /// Seconds until the stream ends; without, it lasts until the client goes.
    #[param(maximum = 86_400)]
    seconds: Option<u32>,
}

/// The route.
pub(crate) fn router(answers: &GatewayAnswers) -> Router<GatewayAnswers> {
    let happenings = Happenings::new(answers.clone());
    let listen = move |client: Client, Query(parameters): Query<ListenParameters>| {
        let stream = parameters.duration().and_then(|lasts| happenings.listen(client, lasts));
        async { stream }
    };
    Router::new().route("/api/v1/events", get(listen))
}

/// What happens, as server-sent events; the data of each is JSON.
///
/// `drop`: a packet was dropped (`DropStatus`; the event's id is its number). `tunnel`: the health
/// of a tunnel changed (`ChangedTunnel`). `gateway`: it went, came, or was replaced
/// (`GatewayTurn`). `heartbeat`: each five seconds (`Heartbeat`). `missed`: the listener was too
/// slow for so many events (`MissedEvents`).
#[utoipa::path(get, path = "/api/v1/events", params(ListenParameters), tag = "gateway", responses(
    (status = 200, description = "Events, until the client goes", content_type = "text/event-stream", body = ServerSentEvent),
    crate::openapi::Problems
))]
#[expect(dead_code, reason = "for the OpenAPI document alone; the route has its state in itself")]
pub(crate) fn events() {}

impl ListenParameters {
    /// The longest that can be asked for: a day.
    const LONGEST: u32 = 86_400;

    fn duration(self) -> Result<Option<Duration>, Problem> {
        match self.seconds {
            Some(seconds) if seconds > Self::LONGEST => Err(wrong(misfit("seconds", seconds))),
            Some(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
            None => Ok(None),
        }
    }
}

impl Message {
    fn new(name: &'static str, data: &impl Serialize) -> Self {
        // Maps have text as keys, the only thing that could fail.
        let data = serde_json::to_string(data).unwrap_or_default();
        Self { name, id: None, data: data.into() }
    }

    fn event(self) -> Event {
        let event = Event::default().event(self.name).data(self.data);
        match self.id {
            Some(id) => event.id(id.to_string()),
            None => event,
        }
    }
}

impl Happenings {
    fn new(answers: GatewayAnswers) -> Self {
        let (sender, _receiver) = broadcast::channel(BEHIND);
        let places = SharedPlaces::new(STREAMS);
        Self { answers, sender, places, watcher: Arc::default() }
    }

    fn listen(
        &self,
        client: Client,
        lasts: Option<Duration>,
    ) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, Problem> {
        let (place, given_away) = self.places.enter(client, Need::Busy).ok_or_else(|| {
            let detail = format!(
                "all {STREAMS} streams of events are taken, and nobody has much more than you"
            );
            Problem::new(ProblemKind::Busy, detail, "ask /api/v1/drops?from=… now and then")
        })?;
        let receiver = self.sender.subscribe();
        self.watch();
        let greeting = stream::iter([Ok(Event::default().retry(RETRY).comment("uxfrm"))]);
        let messages = stream::unfold((receiver, place), next).take_until(end(lasts, given_away));
        Ok(Sse::new(greeting.chain(messages)))
    }

    /// Has a task ask the gateway, if none does.
    fn watch(&self) {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if watcher.as_ref().is_none_or(JoinHandle::is_finished) {
            *watcher = Some(tokio::spawn(watch::watch(self.answers.clone(), self.sender.clone())));
        }
    }
}

async fn end(lasts: Option<Duration>, given_away: GivenAway) {
    match lasts {
        // Which of the two it was does not matter.
        Some(lasts) => drop(tokio::time::timeout(lasts, given_away).await),
        None => drop(given_away.await),
    }
}

type Listening = (broadcast::Receiver<Message>, Place);

async fn next((mut receiver, place): Listening) -> Option<(Result<Event, Infallible>, Listening)> {
    let message = match receiver.recv().await {
        Ok(message) => message,
        Err(RecvError::Lagged(events)) => Message::new("missed", &MissedEvents { events }),
        Err(RecvError::Closed) => return None,
    };
    Some((Ok(message.event()), (receiver, place)))
}
