//! `uxfrm fleet run`: one gateway's agent, with etcd, the other gateways and the own gateway.
//!
//! An agent lives as long as its session with the gateway. Where the gateway goes, its states are
//! gone: the lease ends at once, so that the others need not wait, and a new agent waits for the
//! next gateway.

mod leftover;
mod report;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use sd_notify::NotifyState;
use tokio::{
    net::UdpSocket,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, MissedTickBehavior, interval, interval_at, sleep},
};
use uxfrm_control_client::leases::{LeaseNews, LeaseSession};
use uxfrm_fleet::{
    agent::{Agent, AgentConfig, AgentInput, AgentOutput, GatewayOrder},
    keyspace::Keyspace,
};

pub(crate) use self::report::{AgentStatus, sentence};
use self::{leftover::Leftover, report::Reporter};
use crate::{
    clock,
    config::{FleetConfig, GatewayConfig},
    etcd::{EtcdSession, SessionConfig, StoreEvent, StoreHistory},
    gateway, key_file,
};

/// Between two looks of the agent at the time.
const TICK: Duration = Duration::from_millis(10);
/// Between two attempts to reach the gateway.
const GATEWAY_PAUSE: Duration = Duration::from_millis(200);
/// Between two writings of what was seen, and of what people are told.
const REPORT: Duration = Duration::from_secs(1);
/// The largest datagram.
const LARGEST: usize = 64 << 10;

/// Runs until a signal ends it.
///
/// # Errors
/// Where the configuration, the key or the state directory is not as it has to be.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let config = FleetConfig::load(path).map_err(anyhow::Error::msg)?;
    let own = config.gateway.clone().with_context(|| {
        let file = path.display();
        format!("{file}: no [gateway]: `uxfrm fleet join NAME --address ADDRESS:PORT` adds it")
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, own))
}

async fn serve(config: FleetConfig, own: GatewayConfig) -> anyhow::Result<()> {
    // A configuration with a gateway has an agent.
    let agent = config.agent().context("[gateway]: none")?;
    let state = own.state.display();
    let history = StoreHistory::load(&own.state)
        .with_context(|| format!("[gateway] state: `{state}` is to be a directory of ours"))?;
    history.check_writable()?;
    let socket = bind(own.address).await?;
    let mut signals = Signals::new()?;
    let mut reporter = Reporter::new(&own.state);
    key_file::read_keyring(&config.key_file).map_err(anyhow::Error::msg)?;
    let _not_under_systemd = sd_notify::notify(&[NotifyState::Ready]);
    tracing::info!("gateway {} of fleet {}, pool {}", agent.name, agent.fleet, agent.pool);
    loop {
        let Some(session) = wait_for_gateway(own.control.clone(), &mut signals).await else {
            return Ok(());
        };
        let parts = Parts { config: &config, agent: &agent, history: &history, socket: &socket };
        let mut life = parts.begin(session)?;
        let ended = life.live(&mut signals, &mut reporter).await;
        life.end(&history).await;
        match ended {
            Ended::BySignal => return Ok(()),
            Ended::ByGateway(why) => tracing::warn!("the gateway went: {why}"),
        }
    }
}

async fn bind(address: SocketAddr) -> anyhow::Result<UdpSocket> {
    UdpSocket::bind(address).await.with_context(|| {
        format!("[gateway] address `{address}`: it is to be an address of this host, and free")
    })
}

/// A session with the gateway; none where a signal came first.
async fn wait_for_gateway(control: Option<PathBuf>, signals: &mut Signals) -> Option<LeaseSession> {
    let mut said = String::new();
    loop {
        match gateway::connect(control.clone()).await {
            Ok(session) => return Some(session),
            Err(error) => {
                let why = error.to_string();
                if why != said {
                    tracing::warn!("waiting for the gateway: {why}");
                    said = why;
                }
            }
        }
        tokio::select! {
            () = sleep(GATEWAY_PAUSE) => {}
            ask = signals.next() => {
                // Keys are read when there is a gateway.
                if ask == SignalAsk::End {
                    return None;
                }
            }
        }
    }
}

/// Signals that the agent follows.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reload: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> SignalAsk {
        tokio::select! {
            _came = self.terminate.recv() => SignalAsk::End,
            _came = self.interrupt.recv() => SignalAsk::End,
            _came = self.reload.recv() => SignalAsk::Reload,
        }
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SignalAsk {
    End,
    Reload,
}

/// What lives on from one gateway to the next.
struct Parts<'a> {
    config: &'a FleetConfig,
    agent: &'a AgentConfig,
    history: &'a StoreHistory,
    socket: &'a UdpSocket,
}

/// One agent, from the gateway's welcome to its end.
struct Life<'a> {
    agent: Agent,
    config: &'a FleetConfig,
    socket: &'a UdpSocket,
    etcd: EtcdSession,
    events: UnboundedReceiver<StoreEvent>,
    orders: UnboundedSender<GatewayOrder>,
    news: UnboundedReceiver<LeaseNews>,
    leftover: Leftover,
    tasks: tokio::task::JoinSet<Option<std::io::Error>>,
}

/// Why an agent's life ended.
enum Ended {
    BySignal,
    ByGateway(String),
}

impl<'a> Parts<'a> {
    fn begin(self, session: LeaseSession) -> anyhow::Result<Life<'a>> {
        let keyring = key_file::read_keyring(&self.config.key_file).map_err(anyhow::Error::msg)?;
        let (event_sender, events) = unbounded_channel();
        let (orders, order_receiver) = unbounded_channel();
        let (news_sender, news) = unbounded_channel();
        let session_config = SessionConfig {
            etcd: self.config.etcd.clone(),
            keys: Keyspace::of(&self.agent.fleet).pool(&self.agent.pool),
            gateway: self.agent.name.clone(),
            lease: self.agent.timings.lease,
        };
        let history = self.history.clone();
        let etcd = EtcdSession::new(session_config, history, keyring.clone(), event_sender);
        let mut tasks = tokio::task::JoinSet::new();
        let running = etcd.clone();
        tasks.spawn(async move {
            running.run().await;
            None
        });
        tasks
            .spawn(async move { Some(gateway::carry(session, order_receiver, news_sender).await) });
        Ok(Life {
            agent: Agent::new(self.agent.clone(), keyring),
            config: self.config,
            socket: self.socket,
            etcd,
            events,
            orders,
            news,
            leftover: Leftover::default(),
            tasks,
        })
    }
}

impl Life<'_> {
    async fn live(&mut self, signals: &mut Signals, reporter: &mut Reporter) -> Ended {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut report = interval_at(Instant::now() + REPORT, REPORT);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut datagram = vec![0; LARGEST];
        loop {
            tokio::select! {
                ask = signals.next() => match ask {
                    SignalAsk::End => return Ended::BySignal,
                    SignalAsk::Reload => self.reload_keys(),
                },
                Some(ended) = self.tasks.join_next() => {
                    // Only the link to the gateway ends.
                    let why = ended.ok().flatten().map(|error| error.to_string());
                    return Ended::ByGateway(why.unwrap_or_default());
                }
                Some(event) = self.events.recv() => self.store_said(event, reporter),
                Some(news) = self.news.recv() => self.gateway_said(news, reporter),
                Ok(length) = self.socket.recv(&mut datagram) => {
                    self.step(AgentInput::Heard(datagram[..length].to_vec()));
                }
                _ = tick.tick() => self.step(AgentInput::Tick),
                _ = report.tick() => self.report(reporter),
            }
        }
    }

    /// Ends the lease, so that the others do not wait for its end: the gateway's states are gone,
    /// or go on until its deadline at the most.
    async fn end(mut self, history: &StoreHistory) {
        self.tasks.shutdown().await;
        self.etcd.end().await;
        if let Err(error) = history.save() {
            tracing::error!("{error}");
        }
    }

    fn store_said(&mut self, event: StoreEvent, reporter: &mut Reporter) {
        match event {
            StoreEvent::Input(input) => self.step(input),
            StoreEvent::Connected(endpoint) => reporter.connected(&endpoint),
            StoreEvent::Lost(why) => reporter.lost(&why),
            StoreEvent::Refused(why) => reporter.refused(&why),
        }
    }

    fn gateway_said(&mut self, news: LeaseNews, reporter: &mut Reporter) {
        match news {
            LeaseNews::Present(children) => self.leftover.found(children),
            LeaseNews::Report(report) => self.step(AgentInput::Reported(report)),
            LeaseNews::Failed(why) => reporter.refused(&format!("the gateway: {why}")),
        }
    }

    fn reload_keys(&mut self) {
        match key_file::read_keyring(&self.config.key_file) {
            Ok(keyring) => {
                self.etcd.set_keyring(keyring.clone());
                self.agent.set_keyring(keyring);
                tracing::info!("read {}", self.config.key_file.display());
            }
            Err(why) => tracing::error!("the keys stay as they were: {why}"),
        }
    }

    fn step(&mut self, input: AgentInput) {
        // The kernel's random numbers fail before it has booted alone; nothing may be sealed then.
        let mut random = || getrandom::u64().expect("the kernel has random numbers");
        let now = clock::boot_millis();
        for output in self.agent.step(input, now, &mut random) {
            match output {
                AgentOutput::Ask(id, request) => self.etcd.ask(id, request),
                // One that is lost is followed by the next one.
                AgentOutput::Send(to, datagram) => drop(self.socket.try_send_to(&datagram, to)),
                AgentOutput::Order(order) => {
                    self.leftover.note(&order, now);
                    self.order(order);
                }
            }
        }
        for order in self.leftover.due(now) {
            self.order(order);
        }
    }

    fn order(&self, order: GatewayOrder) {
        // Where the link has ended, the life does.
        let _ended = self.orders.send(order);
    }

    fn report(&mut self, reporter: &mut Reporter) {
        for why in self.agent.take_refused() {
            reporter.refused(&why);
        }
        reporter.tell(&self.agent.summary());
    }
}
