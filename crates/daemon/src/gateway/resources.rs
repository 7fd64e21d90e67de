//! What a gateway brings up before it carries packets and takes down when it ends: in which order,
//! and how.
//!
//! Databases, TUN and sockets are there before ([`Gateway::open`]): each needs the one before it,
//! none leads a packet here, and all go with their last descriptor. [`PREPARED`] comes up next,
//! then [`STARTED`]; between the two a successor takes over. [`DOWN`] is the way back.

use anyhow::Context as _;
use uxfrm_runtime::WorkerThread;

use super::Gateway;
use crate::{
    config::{AtExit, Config},
    firewall::{Firewall, host_bypass::HostBypass},
    ports::workers::RunningWorkers,
    reconcile::kernel_tables::AnyFilter,
    routes::{DivertMode, PreviousGateway, STAYS},
};

/// What comes up and goes down by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    /// The packet filter's table that drops plain packets.
    Guard,
    /// Rules and routes that bring packets to the TUN.
    Routes,
    /// The packet filter's table that keeps the host's stack out of inline mode.
    HostBypass,
    /// The threads of offload devices.
    Devices,
    /// The threads of workers and of next hops, and with them the TUN.
    Workers,
    /// TUNs, sockets and the thread of tunnels.
    Tunnels,
    /// The file of what programs' policies protect.
    SavedPolicies,
    /// The store of sequence numbers.
    SequenceNumbers,
}

/// The guard first: what routes miss meets it.
const PREPARED: [Resource; 3] = [Resource::Guard, Resource::Routes, Resource::HostBypass];

/// Whoever takes packets comes before those who bring them.
const STARTED: [Resource; 3] = [Resource::Devices, Resource::Workers, Resource::Tunnels];

/// Nothing is brought to workers that are gone; what keeps plain packets back goes after them; only
/// numbers that nobody uses any more are written down.
const DOWN: [Resource; 8] = [
    Resource::Routes,
    Resource::Workers,
    Resource::Devices,
    Resource::Tunnels,
    Resource::SavedPolicies,
    Resource::Guard,
    Resource::HostBypass,
    Resource::SequenceNumbers,
];

/// What stays unless `[host] at_exit` is `open`: without the TUN it refuses.
const KEPT: [Resource; 3] = [Resource::Routes, Resource::Guard, Resource::HostBypass];

/// What a fault takes down: nothing leaves or comes in plain.
const DOWN_BY_FAULT: [Resource; 1] = [Resource::Workers];

/// What becomes of inline mode when a gateway ends by a fault: its table stays.
pub(super) const KEPT_OUT: &str =
    "nothing passes between the devices of [inline] until uxfrm runs again";

impl Gateway {
    /// Makes the host ready for workers that are open and not started.
    pub(super) fn prepare(
        &mut self,
        config: &Config,
        before: PreviousGateway,
    ) -> anyhow::Result<()> {
        PREPARED.into_iter().try_for_each(|resource| self.up(resource, config, before))
    }

    /// Has packets carried.
    pub(super) fn start(&mut self, config: &Config, before: PreviousGateway) -> anyhow::Result<()> {
        let started =
            STARTED.into_iter().try_for_each(|resource| self.up(resource, config, before));
        // The store of numbers closes with the gateway: no worker may use numbers by then.
        started.map_err(|error| self.down_by_fault(error))
    }

    /// The orderly end.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let kept: &[_] = match self.at_exit {
            AtExit::Open => &[],
            AtExit::Block => &KEPT,
        };
        let mut down = DOWN.into_iter().filter(|resource| !kept.contains(resource));
        down.try_for_each(|resource| self.down(resource))
    }

    /// The end by a fault. Routes stay: beneath those to the TUN lie unreachable ones, and nothing
    /// leaves plain. The guard stays: nothing comes in plain.
    pub(super) fn abort(mut self, error: anyhow::Error) -> anyhow::Error {
        self.down_by_fault(error).context(STAYS)
    }

    fn down_by_fault(&mut self, error: anyhow::Error) -> anyhow::Error {
        match DOWN_BY_FAULT.into_iter().try_for_each(|resource| self.down(resource)) {
            Ok(()) => error,
            Err(cause) => cause.context(error),
        }
    }

    fn up(
        &mut self,
        resource: Resource,
        config: &Config,
        before: PreviousGateway,
    ) -> anyhow::Result<()> {
        let stays = if config.inline.is_some() { KEPT_OUT } else { STAYS };
        match resource {
            Resource::Guard => {
                let snapshot = self.database.snapshot();
                let guard = Firewall::open(config, &snapshot.spd, &mut self.descriptors)?;
                self.filter = guard.as_ref().and_then(Firewall::watch);
                self.reconciler.tables.set_guard(guard.map(|guard| Box::new(guard) as AnyFilter));
            }
            Resource::Routes => {
                self.warn_without_marks(config);
                let host = self.reconciler.tables.bring_up_routes(&self.database.snapshot().spd)?;
                self.database.set_host(host);
                self.database.publish();
                if before == PreviousGateway::Gone {
                    self.reconciler.follow_tun_mtu(&self.database);
                }
            }
            // Up before there were sockets.
            Resource::HostBypass if config.inline.is_some() => {}
            Resource::HostBypass => HostBypass::sweep(),
            Resource::Devices => self.devices.resume().context(stays)?,
            Resource::Workers => {
                let prepared = std::mem::take(&mut self.prepared);
                let RunningWorkers {
                    workers,
                    drops,
                    feeds,
                    caches,
                    figures,
                    settings,
                    resolver,
                    requested,
                } = prepared.start(config).context(stays)?;
                (self.workers, self.resolver, self.requested) = (workers, resolver, requested);
                self.drops.extend(drops);
                self.feeds.extend(feeds);
                self.caches.extend(caches);
                self.figures.extend(figures);
                self.settings = settings;
            }
            Resource::Tunnels => match before {
                PreviousGateway::Gone => {
                    self.tunnels = self.reload.plan().clone().start().context(STAYS)?;
                }
                PreviousGateway::Runs => self.tunnels.resume()?,
            },
            // Open since the start.
            Resource::SavedPolicies | Resource::SequenceNumbers => {}
        }
        Ok(())
    }

    fn down(&mut self, resource: Resource) -> anyhow::Result<()> {
        match resource {
            Resource::Guard => self.reconciler.tables.close_guard()?,
            Resource::Routes => self.reconciler.tables.close_routes()?,
            Resource::HostBypass => self.reconciler.tables.take_down_host_bypass()?,
            Resource::Devices => self.devices.stop()?,
            Resource::Workers => {
                // The TUN goes with its last descriptor.
                self.descriptors.close();
                let workers = std::mem::take(&mut self.workers).into_iter();
                workers.chain(self.resolver.take()).try_for_each(WorkerThread::stop)?;
            }
            Resource::Tunnels => std::mem::take(&mut self.tunnels).stop()?,
            Resource::SavedPolicies => {
                self.policy_saver.end(&self.database, self.reload.written(), self.at_exit);
                if self.at_exit == AtExit::Block {
                    tracing::info!(
                        "what is protected stays refused until the next start; `uxfrm clean` opens it"
                    );
                }
            }
            Resource::SequenceNumbers => self
                .reconciler
                .close_store(&mut self.database)
                .context("can't write down used sequence numbers")?,
        }
        Ok(())
    }

    fn warn_without_marks(&self, config: &Config) {
        if self.reconciler.tables.divert_mode() == DivertMode::Destinations {
            let tun = &config.host.tun;
            tracing::warn!(
                "packets are led into {tun} by their destinations alone, as they can't be marked: what no policy protects there passes \
                 uxfrm as well, and a socket without an address gets the one that a policy names"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(order: &[Resource], resource: Resource) -> usize {
        order.iter().position(|other| *other == resource).unwrap()
    }

    #[test]
    fn every_resource_goes_down_once() {
        let mut numbers = DOWN.map(|resource| resource as usize);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..=Resource::SequenceNumbers as usize), "{DOWN:?}");
    }

    #[test]
    fn what_leads_packets_here_comes_up_between_guard_and_workers() {
        assert!(place(&PREPARED, Resource::Guard) < place(&PREPARED, Resource::Routes));
        assert!(!PREPARED.contains(&Resource::Workers));
    }

    #[test]
    fn an_end_that_opens_leaves_no_route_to_workers_that_are_gone() {
        assert!(place(&DOWN, Resource::Routes) < place(&DOWN, Resource::Workers));
        assert!(place(&DOWN, Resource::Workers) < place(&DOWN, Resource::Guard));
        assert!(place(&DOWN, Resource::Workers) < place(&DOWN, Resource::HostBypass));
    }

    #[test]
    fn what_keeps_plain_packets_back_outlives_an_end_that_blocks_and_a_fault() {
        for resource in PREPARED {
            assert!(KEPT.contains(&resource), "{resource:?}");
            assert!(!DOWN_BY_FAULT.contains(&resource), "{resource:?}");
        }
    }

    #[test]
    fn numbers_are_written_down_when_nobody_sends_any_more() {
        assert_eq!(DOWN.last(), Some(&Resource::SequenceNumbers));
    }
}
