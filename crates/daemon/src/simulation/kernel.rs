//! The kernel beneath a gateway: routes into the TUN and a packet filter, which outlive the process
//! and refuse now and then.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    rc::Rc,
};

use uxfrm_engine::{
    Action, Direction, DropCounts, HostView, PathMtus, PolicyChange, PolicyEntry, Spd,
    TemplateLevel,
};
use uxfrm_io::{
    nftables::{
        self, PacketFilter, RuleId, RuleVerdict, SamplePacket, SimulatedTable, Table, TableChange,
    },
    rtnetlink,
};

use crate::{
    firewall::Firewall,
    reconcile::kernel_tables::{FirewallTable, Routes},
    routes::{DivertMode, LastingMtus},
};

const TUN: &str = "uxfrm0";
const MARK: u32 = 0x7866;
const ENOMEM: i32 = 12;

type Destination = (IpAddr, u8);

#[derive(Debug, Default)]
struct Tables {
    routes: BTreeSet<Destination>,
    filter: SimulatedTable,
    /// The TUN's MTU; 0 where it has the kernel's default.
    tun_mtu: u16,
    /// Number of changes that are still to be refused.
    refusals: usize,
    refused: usize,
}

impl Tables {
    fn refuses(&mut self) -> bool {
        let refuses = self.refusals > 0;
        self.refusals = self.refusals.saturating_sub(1);
        self.refused += usize::from(refuses);
        refuses
    }
}

/// One machine's kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel(Rc<RefCell<Tables>>);

/// The outcome of a host's send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendPath {
    /// Into the TUN, or into what refuses packets beneath.
    Tun,
    /// By another device.
    Device,
    /// The filter drops it.
    Nowhere,
}

impl Kernel {
    /// Refuses the next changes.
    pub(super) fn refuse(&self, count: usize) {
        self.0.borrow_mut().refusals = count;
    }

    /// The outcome of sending this packet.
    pub(super) fn send_path(&self, packet: &[u8]) -> SendPath {
        let to = IpAddr::from([packet[16], packet[17], packet[18], packet[19]]);
        let tables = self.0.borrow();
        if tables.routes.iter().any(|(net, length)| covers((*net, *length), to)) {
            return SendPath::Tun;
        }
        match tables.filter.judge("out", &sample(packet)).0 {
            RuleVerdict::Drop => SendPath::Nowhere,
            RuleVerdict::Accept
            | RuleVerdict::Mark(_)
            | RuleVerdict::Jump(_)
            | RuleVerdict::Goto(_)
            | RuleVerdict::Return => SendPath::Device,
        }
    }

    /// Whether a plain packet from the wire reaches a socket of the host.
    pub(super) fn lets_in(&self, packet: &[u8]) -> bool {
        self.0.borrow().filter.judge("in", &sample(packet)).0 != RuleVerdict::Drop
    }

    /// Takes routes and filter over for a start with these policies.
    pub(super) fn start(
        &self,
        spd: &Spd,
        own: &[IpAddr],
    ) -> (Box<dyn FirewallTable>, Box<dyn Routes>) {
        let guard = Firewall::simulated(self.clone(), TUN, MARK, spd).expect("a table");
        let mut routes = FakeRoutes {
            kernel: self.clone(),
            own: own.to_vec(),
            wanted: BTreeMap::new(),
            news: true,
        };
        routes.follow(spd).expect("routes");
        (Box::new(guard), Box::new(routes))
    }

    /// The TUN's MTU, if it was ever set.
    pub(super) fn tun_mtu(&self) -> Option<u16> {
        Some(self.0.borrow().tun_mtu).filter(|mtu| *mtu != 0)
    }

    /// The machine reboots.
    pub(super) fn reboot(&self) {
        *self.0.borrow_mut() = Tables::default();
    }
}

fn sample(packet: &[u8]) -> SamplePacket<'_> {
    SamplePacket { bytes: packet, mark: 0, came_by: 0 }
}

fn covers((net, length): Destination, address: IpAddr) -> bool {
    uxfrm_engine::Prefix::new(net, length).is_ok_and(|prefix| prefix.contains(address))
}

#[derive(Debug)]
struct FakeRoutes {
    kernel: Kernel,
    own: Vec<IpAddr>,
    wanted: BTreeMap<Destination, usize>,
    news: bool,
}

impl FakeRoutes {
    fn host(&self) -> HostView {
        HostView {
            addresses: self.own.iter().copied().collect(),
            mtu: 1500,
            path_mtus: PathMtus::new(),
        }
    }

    /// Installs the wanted routes and removes all others; returns the first refusal.
    fn install(&self) -> Result<(), rtnetlink::Error> {
        let mut tables = self.kernel.0.borrow_mut();
        let wanted: BTreeSet<_> = self.wanted.keys().copied().collect();
        let mut result = Ok(());
        let there = tables.routes.clone();
        for route in wanted.symmetric_difference(&there) {
            if tables.refuses() {
                let kernel = io::Error::from_raw_os_error(ENOMEM);
                result =
                    Err(rtnetlink::Error::Refused { request: format!("route {route:?}"), kernel });
            } else if wanted.contains(route) {
                tables.routes.insert(*route);
            } else {
                tables.routes.remove(route);
            }
        }
        result
    }

    fn count_in(&mut self, entry: &PolicyEntry) {
        if let Some(destination) = wish(entry) {
            *self.wanted.entry(destination).or_default() += 1;
        }
    }

    fn count_out(&mut self, entry: &PolicyEntry) {
        let Some(destination) = wish(entry) else { return };
        // A policy that the kernel did not let go of may go again before all is made anew.
        let Some(count) = self.wanted.get_mut(&destination) else { return };
        *count -= 1;
        if *count == 0 {
            self.wanted.remove(&destination);
        }
    }
}

fn wish(entry: &PolicyEntry) -> Option<Destination> {
    let mut templates = entry.templates();
    let protects = entry.action() == Action::Block
        || templates.any(|template| template.level == TemplateLevel::Required);
    let net = entry.selector().destination;
    (entry.direction() == Direction::Out && protects).then_some((net.address(), net.prefix_len()))
}

impl Routes for FakeRoutes {
    fn bring_up(&mut self, _: DivertMode, spd: &Spd) -> anyhow::Result<HostView> {
        self.follow(spd)?;
        Ok(self.host())
    }

    fn follow(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        self.wanted.clear();
        spd.iter().for_each(|entry| self.count_in(entry));
        self.install()
    }

    fn change(&mut self, changes: &[PolicyChange]) -> Result<(), rtnetlink::Error> {
        for change in changes {
            match change {
                PolicyChange::Added(entry) => self.count_in(entry),
                PolicyChange::Removed(entry) => self.count_out(entry),
            }
        }
        self.install()
    }

    fn finish_deferred(&mut self) -> Result<(), rtnetlink::Error> {
        Ok(())
    }

    fn turn(&mut self, _: DivertMode) -> Result<(), rtnetlink::Error> {
        Ok(())
    }

    fn plan_now(&mut self, _: &Spd) -> Result<(), rtnetlink::Error> {
        Ok(())
    }

    fn review_plan(&mut self, _: &Spd) -> Result<(), rtnetlink::Error> {
        Ok(())
    }

    fn refresh_host(
        &mut self,
        _: rtnetlink::MonitorResult,
        spd: &Spd,
    ) -> Result<(), rtnetlink::Error> {
        self.follow(spd)
    }

    fn take_route_news(&mut self) -> Option<HostView> {
        std::mem::take(&mut self.news).then(|| self.host())
    }

    fn own(&self) -> &[IpAddr] {
        &self.own
    }

    fn tun(&self) -> u32 {
        1
    }

    fn is_peer(&self, _: IpAddr) -> bool {
        false
    }

    fn note_path_mtu(&mut self, _: IpAddr) {}

    fn remeasure_path_mtu(&mut self) {}

    fn lasting_mtus(&self) -> LastingMtus {
        LastingMtus { usual: 1500, narrow: PathMtus::new() }
    }

    fn fit_tun(&mut self, mtu: u16) -> Result<(), rtnetlink::Error> {
        self.kernel.0.borrow_mut().tun_mtu = mtu;
        Ok(())
    }

    fn check_rp_filters(&mut self) {}

    fn close(&mut self) -> anyhow::Result<()> {
        self.kernel.0.borrow_mut().routes.clear();
        Ok(())
    }
}

impl PacketFilter for Kernel {
    fn install(&mut self, table: &Table) -> Result<(), nftables::Error> {
        self.0.borrow_mut().filter.install(table)
    }

    fn replace_rules(&mut self, table: &Table) -> Result<(), nftables::Error> {
        let mut tables = self.0.borrow_mut();
        if tables.refuses() {
            return Err(refused());
        }
        tables.filter.replace_rules(table)
    }

    fn change(
        &mut self,
        table: &str,
        changes: &[TableChange],
    ) -> Result<Vec<RuleId>, nftables::Error> {
        let mut tables = self.0.borrow_mut();
        if tables.refuses() {
            return Err(refused());
        }
        tables.filter.change(table, changes)
    }

    fn remove(&mut self, table: &str) -> Result<(), nftables::Error> {
        self.0.borrow_mut().filter.remove(table)
    }

    fn has(&mut self, table: &str) -> Result<bool, nftables::Error> {
        self.0.borrow_mut().filter.has(table)
    }

    fn rules(&mut self, table: &str, chain: &str) -> Result<Vec<RuleId>, nftables::Error> {
        self.0.borrow_mut().filter.rules(table, chain)
    }
}

fn refused() -> nftables::Error {
    let kernel = io::Error::from_raw_os_error(ENOMEM);
    nftables::Error::Refused { request: "rules".to_owned(), kernel }
}

impl FirewallTable for Firewall<Kernel> {
    fn follow(&mut self, spd: &Spd) -> Result<(), nftables::Error> {
        Self::follow(self, spd)
    }

    fn change(&mut self, changes: &[PolicyChange], spd: &Spd) -> Result<(), nftables::Error> {
        Self::change(self, changes, spd)
    }

    fn divert_mode(&self) -> DivertMode {
        Self::divert_mode(Some(self))
    }

    fn may_skip_outgoing(&self, changes: &[PolicyChange]) -> bool {
        Self::may_skip_outgoing(self, changes)
    }

    fn is_out_of_sync(&self) -> bool {
        Self::is_out_of_sync(self)
    }

    fn mark_out_of_sync(&mut self) {
        Self::mark_out_of_sync(self);
    }

    fn is_there(&mut self) -> Result<bool, nftables::Error> {
        Self::is_there(self)
    }

    fn add_to(&mut self, _: &mut DropCounts) {}

    fn close(self: Box<Self>) -> anyhow::Result<()> {
        Ok(())
    }
}
