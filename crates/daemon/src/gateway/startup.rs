//! Opens what a gateway is made of, before packets are led to it.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self},
    },
};

use anyhow::Context as _;
use nix::net::if_::if_nametoindex;
use uxfrm_engine::{Database, HostView, Settings};
use uxfrm_io::{
    icmp_errors::IcmpErrors,
    poll::{Poller, Waker},
    rtnetlink::Rtnetlink,
    tun::{QueueCount, QueueOrder, Tun, TunOptions},
    uevents::Uevents,
};
use uxfrm_runtime::Events;

use super::{Gateway, ReadyLine, resources::KEPT_OUT};
use crate::reconcile::databases::state_directory;
use crate::tun::bring_up;
use crate::{
    config::{Config, Mtu, TunName},
    control::{AccessTerms, Control, XfrmServer},
    descriptor_store::DescriptorStore,
    devices::{self, Devices},
    firewall::host_bypass::HostBypass,
    inline,
    ports::{
        af_xdp::AfXdpDevice, keepalive::Keepalives, next_hops::RequestedDestinations, workers,
    },
    reconcile::{
        Reconciler,
        fail_closed::{self, PolicyFiles, saver::PolicySaver},
        rebuild::PolicyRebuild,
        sequences::SequenceStore,
    },
    reload::Reload,
    routes::{HostRoutes, PreviousGateway},
    status::board::ExpiredStates,
    tun::gso_limit,
    tunnels::TunnelService,
    upgrade::Upgrade,
};

/// The store of sequence numbers, for this gateway alone.
pub(super) fn open_store(
    config: &Config,
    waker: Waker,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<SequenceStore> {
    let path = state_directory(config)?;
    let store = SequenceStore::open(path, waker, descriptors)
        .with_context(|| format!("can't have used sequence numbers in {}", path.display()))?;
    store.report();
    Ok(store)
}

/// Opens the control socket, if there is to be one; requests wait there until the gateway is up.
pub(super) fn control(config: &Config) -> anyhow::Result<Option<Control>> {
    if !config.control.enabled {
        return Ok(None);
    }
    let terms = AccessTerms { user: config.control.user, mark: config.wire.mark.get() };
    let path = config.control.socket.as_deref();
    Control::open(path, terms).map(Some).with_context(|| match path {
        Some(path) => format!("can't open the control socket {}", path.display()),
        None => "can't open the control socket of this network namespace".to_owned(),
    })
}

/// The devices of inline mode, and what keeps the host's stack away from what passes between them.
pub(super) fn inline_devices(
    config: &Config,
    own: &[IpAddr],
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Option<(Arc<inline::InlineDevices>, HostBypass)>> {
    let Some(inline) = &config.inline else { return Ok(None) };
    let inline_devices = Arc::new(inline::InlineDevices::find(config, inline, own, descriptors)?);
    inline_devices.warn_about_forwarding();
    let host_bypass =
        HostBypass::put_up(&inline_devices, workers::numbers(config), own, descriptors)?;
    Ok(Some((inline_devices, host_bypass)))
}

/// The device past the kernel's network stack, if there is to be one.
pub(super) fn af_xdp(
    config: &Config,
    own: &[IpAddr],
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Option<AfXdpDevice>> {
    let find = |name: &TunName| AfXdpDevice::find(config, name.as_str(), own, descriptors);
    config.wire.af_xdp.as_ref().map(find).transpose()
}

/// What the workers must know of the host, which is told how much it may hand over by the TUN of
/// this index at a time.
pub(super) fn surroundings(
    routes: &HostRoutes,
    index: u32,
    destinations: Vec<IpAddr>,
) -> anyhow::Result<workers::HostContext> {
    let HostView { addresses: own, mtu, .. } = routes.host();
    gso_limit::fit(&mut Rtnetlink::open()?, index, mtu.into());
    Ok(workers::HostContext { mtu: mtu.into(), own, destinations })
}

/// What a gateway is made of before it has the TUN, workers and kernel tables.
pub(super) struct GatewayParts {
    pub(super) poller: Poller,
    /// Workers see what is in it.
    pub(super) database: Database,
    pub(super) store: SequenceStore,
    pub(super) devices: Devices,
    pub(super) reload: Reload,
    pub(super) descriptors: DescriptorStore,
    pub(super) xfrm: XfrmServer,
    /// Destinations that the gateway before has ways to, past the host's stack.
    pub(super) destinations: Vec<IpAddr>,
}

/// The netlink server, without clients.
pub(super) fn xfrm(config: &Config) -> anyhow::Result<XfrmServer> {
    XfrmServer::new(config.control.acquire_expires.get()).context("no random numbers")
}

pub(super) fn listen_for_snapshots() -> Option<Uevents> {
    let opened = Uevents::open();
    let told = opened.inspect_err(|error| {
        tracing::debug!(%error, "the kernel's word that a virtual machine was restored is not heard");
    });
    told.ok()
}

/// The TUN, up, and its index.
pub(super) fn open_tun(
    config: &Config,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<(Tun, u32)> {
    let are_several = config.runtime.workers.count().get() > 1;
    let queues = if are_several { QueueCount::Several } else { QueueCount::Single };
    let name = &config.host.tun;
    let is_there = if_nametoindex(name.as_str()).is_ok();
    let why = if is_there {
        ", as there is an interface of that name, no TUN or in use"
    } else {
        " (needs CAP_NET_ADMIN and /dev/net/tun)"
    };
    let options = TunOptions { queues, ..TunOptions::new(name.as_str()) };
    let tun = match descriptors.take(&workers::tun_queue(0)) {
        Some(queue) => Tun::of_queue(queue, &options, QueueOrder::First),
        None => Tun::open(&options),
    };
    let tun = tun.with_context(|| format!("can't open the TUN {name}{why}"))?;
    let mtu = match config.host.mtu {
        // The kernel's default, or that of the gateway before, until states are known.
        Mtu::Auto => None,
        Mtu::Fixed(bytes) => Some(bytes),
    };
    let index = bring_up(&tun, mtu)?;
    Ok((tun, index))
}

/// What the last run's policies protected stays refused.
pub(super) fn take_up(config: &Config, database: &mut Database) -> anyhow::Result<()> {
    let at_start = config.host.at_start;
    fail_closed::take_up(database, state_directory(config)?, at_start, PolicyFiles::Decide);
    let policies = fail_closed::refuses(database);
    if policies > 0 {
        tracing::warn!(
            policies,
            "what programs' policies protected in the last run is refused until policies of the same selectors come; `uxfrm stat` says \
             which, `uxfrm release` lets go of them"
        );
    }
    Ok(())
}

impl Gateway {
    /// One that is ready for packets, while its workers are open and not started.
    pub(super) fn open(
        config: &Config,
        parts: GatewayParts,
        before: PreviousGateway,
    ) -> anyhow::Result<Self> {
        let GatewayParts { poller, database, store, mut devices, reload, .. } = parts;
        let GatewayParts { mut descriptors, xfrm, destinations, .. } = parts;
        let (tun, index) = open_tun(config, &mut descriptors)?;
        let (table, mark) = (config.wire.table.number(), config.wire.mark.get());
        let routes = HostRoutes::open(index, table, mark, before)?;
        let (inline_devices, host_bypass) =
            inline_devices(config, routes.own(), &mut descriptors)?.unzip();
        let (sender, events) = mpsc::channel();
        let sender = Events::new(sender, poller.waker());
        let policy_rebuild = PolicyRebuild::new(poller.waker());
        let policy_saver = PolicySaver::new(state_directory(config)?, poller.waker());
        let network = routes.watch()?;
        let around = surroundings(&routes, index, destinations)?;
        let af_xdp = af_xdp(config, routes.own(), &mut descriptors)?;
        let bay = devices.bay();
        let stored = &mut descriptors;
        let prepared = match &inline_devices {
            None => {
                let attachments = workers::WorkerAttachments { bay, af_xdp: af_xdp.as_ref() };
                workers::open_all(config, tun, &database, &around, &sender, attachments, stored)?
            }
            Some(inline_devices) => {
                let attachments = inline::InlineAttachments { devices: inline_devices, bay };
                inline::open(config, attachments, tun, &database, &around, &sender, stored)
                    .context(KEPT_OUT)?
            }
        };
        let mode =
            inline_devices.as_ref().map_or(devices::WireMode::Host, |_| devices::WireMode::Inline);
        let (events_of_devices, tun) = (sender.clone(), config.host.tun.to_string());
        devices.open(devices::DeviceContext { mark, mode, events: events_of_devices, tun })?;
        // The last of what may fail while nothing of the host's has changed.
        let icmp_errors =
            IcmpErrors::open().context("no socket for ICMP errors (needs CAP_NET_RAW)")?;
        let (snapshot, routes) = (database.snapshot(), Box::new(routes));
        let reconciler = Reconciler::new(store, None, host_bypass, af_xdp, routes, &snapshot.spd)
            .with_tun_mtu(config.host.mtu);
        let mut gateway = Self {
            database,
            reconciler,
            prepared,
            workers: Vec::new(),
            resolver: None,
            requested: RequestedDestinations::default(),
            tunnels: TunnelService::default(),
            drops: Vec::new(),
            feeds: Vec::new(),
            earlier_drops: Vec::new(),
            caches: Vec::new(),
            figures: Vec::new(),
            settings: Settings::default(),
            events,
            poller,
            network,
            icmp_errors,
            filter: None,
            uevents: listen_for_snapshots(),
            keepalives: Keepalives::new(mark),
            policy_rebuild,
            policy_saver,
            xfrm,
            devices,
            device_events: Vec::new(),
            expired: ExpiredStates::default(),
            at_exit: config.host.at_exit,
            reload,
            upgrade: Upgrade::default(),
            descriptors,
            ready: ReadyLine::default(),
        };
        gateway.prepare(config, before)?;
        Ok(gateway)
    }
}
