//! Brings a gateway up, in order.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self},
    },
};

use anyhow::Context as _;
use nix::net::if_::if_nametoindex;
use uxfrm_engine::{Database, Host};
use uxfrm_io::{
    path_errors::PathErrors,
    poll::{Poller, Waker},
    rtnetlink::Rtnetlink,
    tun::{Place, Queues, Tun, TunOptions},
    uevents::Uevents,
};
use uxfrm_runtime::Events;

use super::{
    Gateway,
    shutdown::{KEPT_OUT, STAYS},
};
use crate::reconcile::databases::state_directory;
use crate::tun::bring_up;
use crate::{
    config::{Config, TunName},
    control::{Control, Terms, Xfrm},
    descriptor_store::DescriptorStore,
    devices::{self, Devices},
    firewall::{Guard, host_bypass::KeepOut},
    inline,
    ports::{af_xdp::Express, keepalive::Keepalives, next_hops::Asked, workers},
    reconcile::{
        AnyFilter, Following,
        fail_closed::{self, Files, saver::Keeping},
        rebuild::Planner,
        sequences::SequenceStore,
    },
    reload::Reload,
    routes::{Before, HostRoutes, LedBy},
    tun::gso_limit,
    tunnels::Carrying,
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
    let terms = Terms { user: config.control.user, mark: config.wire.mark.get() };
    let path = config.control.socket.as_deref();
    Control::open(path, terms).map(Some).with_context(|| match path {
        Some(path) => format!("can't open the control socket {}", path.display()),
        None => "can't open the control socket of this network namespace".to_owned(),
    })
}

/// The devices of inline mode, and what keeps the host's stack away from what passes between them.
pub(super) fn sides(
    config: &Config,
    own: &[IpAddr],
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Option<(Arc<inline::Devices>, KeepOut)>> {
    let Some(inline) = &config.inline else { return Ok(None) };
    let sides = Arc::new(inline::Devices::find(config, inline, own, descriptors)?);
    sides.warn_of_forwarding();
    let keep_out = KeepOut::put_up(&sides, workers::numbers(config), own, descriptors)?;
    Ok(Some((sides, keep_out)))
}

/// The device past the kernel's network stack, if there is to be one.
pub(super) fn express(
    config: &Config,
    own: &[IpAddr],
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Option<Express>> {
    let find = |name: &TunName| Express::find(config, name.as_str(), own, descriptors);
    config.wire.af_xdp.as_ref().map(find).transpose()
}

/// What the lanes must know of the host, which is told how much it may hand over by the TUN of this index at a time.
pub(super) fn surroundings(
    routes: &HostRoutes,
    index: u32,
    destinations: Vec<IpAddr>,
) -> anyhow::Result<workers::Surroundings> {
    let Host { addresses: own, mtu, .. } = routes.host();
    gso_limit::fit(&mut Rtnetlink::open()?, index, mtu.into());
    Ok(workers::Surroundings { mtu: mtu.into(), own, destinations })
}

/// What a gateway is made of.
pub(super) struct Parts {
    pub(super) poller: Poller,
    /// Workers see what is in it.
    pub(super) database: Database,
    pub(super) store: SequenceStore,
    pub(super) devices: Devices,
    pub(super) reload: Reload,
    pub(super) descriptors: DescriptorStore,
    pub(super) xfrm: Xfrm,
    /// Destinations that the gateway before has ways to, past the host's stack.
    pub(super) destinations: Vec<IpAddr>,
}

/// A gateway whose lanes have yet to start.
pub(super) struct Opening {
    pub(super) gateway: Gateway,
    pub(super) lanes: workers::Opened,
}

impl Opening {
    pub(super) fn start(self, config: &Config) -> anyhow::Result<Gateway> {
        let Self { mut gateway, lanes } = self;
        let stays = if config.inline.is_some() { KEPT_OUT } else { STAYS };
        gateway.devices.resume().context(stays)?;
        let workers::Started { lanes, drops, caches, guidance, asked } =
            lanes.start(config).context(stays)?;
        (gateway.lanes, gateway.guidance, gateway.asked) = (lanes, guidance, asked);
        gateway.drops.extend(drops);
        gateway.caches.extend(caches);
        Ok(gateway)
    }
}

/// The netlink server, without clients.
pub(super) fn xfrm(config: &Config) -> anyhow::Result<Xfrm> {
    Xfrm::new(config.control.acquire_expires.get()).context("no random numbers")
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
    let queues = if are_several { Queues::Several } else { Queues::Single };
    let name = &config.host.tun;
    let is_there = if_nametoindex(name.as_str()).is_ok();
    let why = if is_there {
        ", as there is an interface of that name, no TUN or in use"
    } else {
        " (needs CAP_NET_ADMIN and /dev/net/tun)"
    };
    let options = TunOptions { queues, ..TunOptions::new(name.as_str()) };
    let tun = match descriptors.take(&workers::tun_queue(0)) {
        Some(queue) => Tun::of_queue(queue, &options, Place::First),
        None => Tun::open(&options),
    };
    let tun = tun.with_context(|| format!("can't open the TUN {name}{why}"))?;
    let index = bring_up(&tun, config.host.mtu.bytes())?;
    Ok((tun, index))
}

/// What the last run's policies protected stays refused.
pub(super) fn take_up(config: &Config, database: &mut Database) -> anyhow::Result<()> {
    let at_start = config.host.at_start;
    fail_closed::take_up(database, state_directory(config)?, at_start, Files::Decide);
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
    pub(super) fn open(config: &Config, parts: Parts, before: Before) -> anyhow::Result<Opening> {
        let Parts { poller, mut database, store, mut devices, reload, .. } = parts;
        let Parts { mut descriptors, xfrm, destinations, .. } = parts;
        let (tun, index) = open_tun(config, &mut descriptors)?;
        let (table, mark) = (config.wire.table.number(), config.wire.mark.get());
        let mut routes = HostRoutes::open(index, table, mark, before)?;
        let (sides, keep_out) = sides(config, routes.own(), &mut descriptors)?.unzip();
        let snapshot = database.snapshot();
        let (sender, events) = mpsc::channel();
        let sender = Events::new(sender, poller.waker());
        let planner = Planner::new(poller.waker());
        let keeping = Keeping::new(state_directory(config)?, poller.waker());
        let network = routes.watch()?;
        let around = surroundings(&routes, index, destinations)?;
        let express = express(config, routes.own(), &mut descriptors)?;
        let bay = devices.bay();
        let stored = &mut descriptors;
        let lanes = match &sides {
            None => {
                let beside = workers::Beside { bay, express: express.as_ref() };
                workers::open_all(config, tun, &database, &around, &sender, beside, stored)?
            }
            Some(sides) => {
                let beside = inline::Beside { devices: sides, bay };
                inline::open(config, beside, tun, &database, &around, &sender, stored)
                    .context(KEPT_OUT)?
            }
        };
        let mode = sides.as_ref().map_or(devices::Mode::Host, |_| devices::Mode::Inline);
        let (events_of_devices, tun) = (sender.clone(), config.host.tun.to_string());
        devices.open(devices::Surroundings { mark, mode, events: events_of_devices, tun })?;
        // The last of what may fail while nothing of the host's has changed.
        let paths = PathErrors::open().context("no socket for ICMP errors (needs CAP_NET_RAW)")?;
        let guard = Guard::open(config, &snapshot.spd, &mut descriptors)?;
        let led_by = Guard::led_by(guard.as_ref());
        if led_by == LedBy::Destinations {
            let tun = &config.host.tun;
            tracing::warn!(
                "packets are led into {tun} by their destinations alone, as they can't be marked: what no policy protects there passes \
                 uxfrm as well, and a socket without an address gets the one that a policy names"
            );
        }
        routes.lead(led_by)?;
        routes.follow(&snapshot.spd).context(STAYS)?;
        routes.sweep().context("can't let go of what an earlier run left").context(STAYS)?;
        if keep_out.is_none() {
            KeepOut::sweep();
        }
        database.set_host(routes.host());
        database.publish();
        let filter = guard.as_ref().and_then(Guard::watch);
        let guard = guard.map(|guard| Box::new(guard) as AnyFilter);
        let routes = Box::new(routes);
        let following = Following::new(store, guard, keep_out, express, routes, &snapshot.spd);
        let keepalives = Keepalives::new(config.wire.mark.get());
        let tunnels = Carrying::default();
        let gateway = Self {
            database,
            following,
            lanes: Vec::new(),
            guidance: None,
            asked: Asked::default(),
            tunnels,
            drops: Vec::new(),
            caches: Vec::new(),
            events,
            poller,
            network,
            paths,
            filter,
            uevents: listen_for_snapshots(),
            keepalives,
            planner,
            keeping,
            xfrm,
            devices,
            happened: Vec::new(),
            at_exit: config.host.at_exit,
            reload,
            upgrade: Upgrade::default(),
            descriptors,
        };
        Ok(Opening { gateway, lanes })
    }
}
