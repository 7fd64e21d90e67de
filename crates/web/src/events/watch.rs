//! Asks the gateway what is new, again and again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};
use uxfrm_status::drops::{DropQuery, DropReport};
use uxfrm_status::gateway::{GatewayStatus, StatusQuery, StatusTotals};
use uxfrm_status::health::Health;
use uxfrm_status::tunnel::TunnelStatus;

use super::Message;
use super::change::{ChangedTunnel, GatewayTurn, Heartbeat, TurnKind};
use crate::answers::{self, GatewayAnswers};

/// Between two questions for drops.
const ROUND: Duration = Duration::from_secs(1);
/// Between two questions for tunnels, at the least.
const SURVEY: Duration = Duration::from_secs(2);
/// The gateway looks through its tunnels for one part in so many of the time.
const SHARE: u32 = 20;
/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Tunnels that are watched: so many of the worst.
const WATCHED: u32 = 1000;

/// Tells all who listen what is new, while there are any.
pub(super) async fn watch(answers: GatewayAnswers, listeners: broadcast::Sender<Message>) {
    let mut tunnels = TunnelWatch::default();
    let mut from = None;
    let (mut survey, mut heartbeat) = (Instant::now(), Instant::now());
    while listeners.receiver_count() > 0 {
        let began = Instant::now();
        let mut messages = drops(&answers, &mut from).await;
        if survey <= began {
            let asked = Instant::now();
            messages.extend(tunnels_of(&answers, &mut tunnels).await);
            survey = Instant::now() + SURVEY.max(asked.elapsed() * SHARE);
        }
        if heartbeat <= began {
            messages.push(tunnels.heartbeat());
            heartbeat = began + HEARTBEAT;
        }
        for message in messages {
            // Who goes is not told.
            let _gone = listeners.send(message);
        }
        sleep_until(began + ROUND).await;
    }
}

/// New records; none at first, as they are not new then.
async fn drops(answers: &GatewayAnswers, from: &mut Option<u64>) -> Vec<Message> {
    let query = DropQuery { from: *from, ..DropQuery::default() };
    let Ok(answer) = answers.drops(query).await else { return Vec::new() };
    let Some(report) = answer.drops() else { return Vec::new() };
    let is_first = from.is_none();
    // A gateway that began anew begins at 0.
    let began_anew = from.is_some_and(|from| report.next < from);
    *from = Some(if began_anew { 0 } else { report.next });
    if is_first { Vec::new() } else { records(report) }
}

fn records(report: &DropReport) -> Vec<Message> {
    let records = report.records.iter();
    records
        .map(|record| Message { id: Some(record.number), ..Message::new("drop", record) })
        .collect()
}

async fn tunnels_of(answers: &GatewayAnswers, watch: &mut TunnelWatch) -> Vec<Message> {
    let query = StatusQuery { limit: Some(WATCHED), ..StatusQuery::default() };
    let changes = match answers.status(query).await {
        Ok(answer) => answer.status().map(|status| watch.see(status)).unwrap_or_default(),
        Err(answers::Error::Busy | answers::Error::Greedy) => Vec::new(),
        Err(error) => watch.lose(&error.to_string()).into_iter().collect(),
    };
    changes.iter().map(GatewayNews::message).collect()
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayNews {
    /// A tunnel's health.
    Tunnel(ChangedTunnel),
    /// Who answers.
    Gateway(GatewayTurn),
}

impl GatewayNews {
    fn message(&self) -> Message {
        match self {
            Self::Tunnel(tunnel) => Message::new("tunnel", tunnel),
            Self::Gateway(turn) => Message::new("gateway", turn),
        }
    }
}

/// By what a tunnel is known.
type TunnelKey = (IpAddr, IpAddr, String, u32, u32);

/// What was known of a gateway.
#[derive(Debug, Default)]
pub struct TunnelWatch {
    known: Option<LastSurvey>,
    totals: Option<StatusTotals>,
    /// Nobody answered the last time.
    is_away: bool,
}

#[derive(Debug)]
struct LastSurvey {
    /// The process that answered.
    pid: u32,
    /// Whether all tunnels were told.
    is_complete: bool,
    tunnels: HashMap<TunnelKey, Health>,
}

impl TunnelWatch {
    /// What is different from the document before; nothing for the first one.
    pub fn see(&mut self, status: &GatewayStatus) -> Vec<GatewayNews> {
        self.totals = Some(status.totals.clone());
        let came = std::mem::take(&mut self.is_away);
        let told = |tunnel: &TunnelStatus| (key(tunnel), tunnel.health);
        let now = LastSurvey {
            pid: status.gateway.pid,
            is_complete: status.tunnels.len() as u64 == status.totals.tunnels,
            tunnels: status.tunnels.iter().map(told).collect(),
        };
        let before = self.known.take();
        let mut changes: Vec<_> =
            turn(came, before.as_ref().map(|before| before.pid), now.pid).into_iter().collect();
        let Some(before) = before else {
            self.known = Some(now);
            return changes;
        };
        changes.extend(status.tunnels.iter().filter_map(|tunnel| compare(tunnel, &before)));
        let gone = before.tunnels.iter().filter(|(key, _)| !now.tunnels.contains_key(*key));
        changes.extend(gone.map(|(key, health)| GatewayNews::Tunnel(without(key, *health))));
        self.known = Some(now);
        changes
    }

    /// Nobody answers: news, the first time.
    pub fn lose(&mut self, detail: &str) -> Option<GatewayNews> {
        self.totals = None;
        let is_news = !std::mem::replace(&mut self.is_away, true);
        is_news.then(|| {
            let detail = Some(detail.to_owned());
            GatewayNews::Gateway(GatewayTurn { kind: TurnKind::Went, pid: None, detail })
        })
    }

    fn heartbeat(&self) -> Message {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Message::new("heartbeat", &Heartbeat { at: now.as_secs(), totals: self.totals.clone() })
    }
}

fn turn(came: bool, before: Option<u32>, now: u32) -> Option<GatewayNews> {
    let kind = match (came, before) {
        (true, _) => TurnKind::Came,
        (false, Some(before)) if before != now => TurnKind::Replaced,
        (false, Some(_) | None) => return None,
    };
    Some(GatewayNews::Gateway(GatewayTurn { kind, pid: Some(now), detail: None }))
}

fn key(tunnel: &TunnelStatus) -> TunnelKey {
    (tunnel.local, tunnel.remote, tunnel.mode.clone(), tunnel.reqid, tunnel.if_id)
}

/// What is new of a tunnel. One that comes into the list as others left it is no news, if it is
/// well.
fn compare(tunnel: &TunnelStatus, before: &LastSurvey) -> Option<GatewayNews> {
    let was = before.tunnels.get(&key(tunnel)).copied();
    let is_news = match was {
        Some(was) => was != tunnel.health,
        None => before.is_complete || tunnel.health.is_bad(),
    };
    is_news.then(|| {
        GatewayNews::Tunnel(ChangedTunnel {
            before: was,
            health: Some(tunnel.health),
            explanation: tunnel.explanation.clone(),
            ..without(&key(tunnel), tunnel.health)
        })
    })
}

/// A tunnel that is not told any more.
fn without(key: &TunnelKey, before: Health) -> ChangedTunnel {
    let (local, remote, mode, reqid, if_id) = key.clone();
    ChangedTunnel {
        local,
        remote,
        mode,
        reqid,
        if_id,
        before: Some(before),
        health: None,
        explanation: None,
    }
}
