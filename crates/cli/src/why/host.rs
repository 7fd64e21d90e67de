//! What the kernel does with a packet before the gateway has it and after: routes, forwarding, the
//! check of ways back.

use std::fs;
use std::net::IpAddr;

use uxfrm_daemon::config::DIVERTED;
use uxfrm_io::rtnetlink::{RouteLookup, Rtnetlink};
use uxfrm_status::explanation::{FlowExplanation, FlowOutcome, FlowQuery, FlowStep, StepResult};

/// A route with its device's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedRoute {
    device: String,
    gateway: Option<IpAddr>,
    mtu: u32,
}

/// What was read of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// Whether the packet's source is an address of this host.
    is_own_source: bool,
    /// The route of the packet as its sender has it.
    plain: Option<NamedRoute>,
    /// The route of packets that are led into the TUN.
    diverted: Option<NamedRoute>,
    /// The route to the other gateway.
    peer: Option<NamedRoute>,
    /// `ip_forward`, or `forwarding` for IPv6.
    forwards: bool,
    /// The strictest `rp_filter` of IPv4 among all devices and the TUN.
    rp_filter: u8,
    /// The gateway's TUN; empty in inline mode.
    tun: String,
}

impl Host {
    /// Reads what matters for this packet. What can't be read is left out.
    pub(super) fn read(query: &FlowQuery, explanation: &FlowExplanation) -> Self {
        let Ok(mut netlink) = Rtnetlink::open() else { return Self::default() };
        let addresses = netlink.addresses().unwrap_or_default();
        let is_own_source = addresses.iter().any(|one| one.prefix.address() == query.source);
        let source = is_own_source.then_some(query.source);
        let peer = explanation.encapsulation.as_ref().map(|outer| outer.destination);
        let plain = route(&mut netlink, source, query.destination, query.mark.unwrap_or(0));
        let diverted = route(&mut netlink, source, query.destination, DIVERTED);
        let peer = peer.and_then(|peer| route(&mut netlink, None, peer, 0));
        let tun = explanation.tun.clone();
        let (family, setting) = match query.destination {
            IpAddr::V4(_) => ("ipv4", "ip_forward"),
            IpAddr::V6(_) => ("ipv6", "conf/all/forwarding"),
        };
        let forwards = number(&format!("{family}/{setting}")) != 0;
        let filters = ["all", &tun].map(|device| number(&format!("ipv4/conf/{device}/rp_filter")));
        let rp_filter = filters.into_iter().max().unwrap_or_default();
        Self { is_own_source, plain, diverted, peer, forwards, rp_filter, tun }
    }

    /// Adds steps for what was read to those of the gateway.
    pub(super) fn add_to(&self, query: &FlowQuery, explanation: &mut FlowExplanation) {
        match explanation.outcome {
            FlowOutcome::LeavesPlain => self.add_plain(explanation),
            FlowOutcome::LeavesProtected | FlowOutcome::Waits => self.add_outbound(explanation),
            FlowOutcome::Dropped if explanation.direction == "out" => {
                self.add_outbound(explanation);
            }
            FlowOutcome::ComesIn => self.add_inbound(query, explanation),
            FlowOutcome::Dropped => {}
        }
    }

    fn add_plain(&self, explanation: &mut FlowExplanation) {
        match &self.plain {
            Some(route) => {
                explanation.verdict =
                    format!("leaves PLAIN by {}: no policy protects it", route.device);
                explanation.steps.insert(0, FlowStep::new("route", words(route)));
            }
            None => explanation.steps.insert(0, no_route()),
        }
        self.add_forwarding(explanation);
    }

    /// A packet that the gateway is to have: it must reach the TUN, and leave afterwards.
    fn add_outbound(&self, explanation: &mut FlowExplanation) {
        if !self.tun.is_empty() {
            explanation.steps.insert(0, self.way_to_tun());
            self.add_forwarding(explanation);
        }
        if explanation.encapsulation.is_none() {
            return;
        }
        match &self.peer {
            Some(route) => {
                explanation.steps.push(FlowStep::new("way out", words(route)));
                explanation.verdict += &format!(", by {}", route.device);
                self.add_device_mtu(route, explanation);
            }
            None => explanation.steps.push(
                FlowStep::new("way out", "the kernel has no route to the other gateway")
                    .with_result(StepResult::Fails),
            ),
        }
    }

    fn way_to_tun(&self) -> FlowStep {
        let leads = |route: &Option<NamedRoute>| {
            route.as_ref().is_some_and(|route| route.device == self.tun)
        };
        if leads(&self.plain) {
            FlowStep::new("route", format!("to uxfrm by dev {}", self.tun))
        } else if leads(&self.diverted) {
            FlowStep::new("route", format!("to uxfrm by dev {}, marked by the guard", self.tun))
        } else {
            let other = self.plain.as_ref().map_or_else(|| "no route".to_owned(), words);
            FlowStep::new("route", format!("{other}: it does not lead to uxfrm ({})", self.tun))
                .with_result(StepResult::Fails)
                .with_notes(vec![
                    "see `ip rule` and `ip route show table all`; `uxfrm check` tells the plan"
                        .to_owned(),
                ])
        }
    }

    /// A packet of another host has to be forwarded to come to the gateway.
    fn add_forwarding(&self, explanation: &mut FlowExplanation) {
        if !self.is_own_source && !self.forwards {
            explanation.steps.push(forwarding_is_off(
                "the source is no address of this host, and the kernel forwards nothing",
                &explanation.flow,
            ));
        }
    }

    fn add_device_mtu(&self, route: &NamedRoute, explanation: &mut FlowExplanation) {
        let Some(outer) = &explanation.encapsulation else { return };
        if route.mtu != 0 && route.mtu < u32::from(outer.path_mtu) {
            let text = format!(
                "the route by {} takes {} bytes, less than the {} that uxfrm sends: the first larger \
                 packet is refused, then uxfrm knows",
                route.device, route.mtu, outer.path_mtu
            );
            let step = FlowStep::new("size", text).with_result(StepResult::Doubtful);
            explanation.steps.push(step);
        }
    }

    /// What came in has to be delivered, or forwarded.
    fn add_inbound(&self, query: &FlowQuery, explanation: &mut FlowExplanation) {
        if explanation.direction == "fwd" && !self.forwards {
            let text = format!("{} is no address of this host", query.destination);
            explanation.steps.push(forwarding_is_off(&text, &explanation.flow));
        }
        if query.destination.is_ipv4() && self.rp_filter == 1 {
            explanation.steps.push(
                FlowStep::new(
                    "filter",
                    format!(
                        "rp_filter is 1 (strict): the kernel drops what comes out of {} unless the \
                         way back leads there",
                        self.tun
                    ),
                )
                .with_result(StepResult::Doubtful)
                .with_notes(vec![format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", self.tun)]),
            );
        }
        match &self.diverted_or_plain() {
            Some(route) => explanation.steps.push(FlowStep::new("way in", words(route))),
            None => explanation.steps.push(no_route()),
        }
    }

    fn diverted_or_plain(&self) -> Option<&NamedRoute> {
        self.plain.as_ref().or(self.diverted.as_ref())
    }
}

fn forwarding_is_off(text: &str, flow: &str) -> FlowStep {
    let setting = match flow.starts_with('[') || flow.contains("::") {
        true => "net.ipv6.conf.all.forwarding",
        false => "net.ipv4.ip_forward",
    };
    FlowStep::new("forward", format!("{text}: {setting} is 0"))
        .with_result(StepResult::Fails)
        .with_notes(vec![format!("sysctl -w {setting}=1")])
}

fn no_route() -> FlowStep {
    FlowStep::new("route", "the kernel has no route to the destination")
        .with_result(StepResult::Fails)
}

fn words(route: &NamedRoute) -> String {
    let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    format!("dev {}{via}", route.device)
}

fn route(
    netlink: &mut Rtnetlink,
    source: Option<IpAddr>,
    destination: IpAddr,
    mark: u32,
) -> Option<NamedRoute> {
    let RouteLookup { link, gateway, mtu, .. } =
        netlink.route_between(source, destination, mark).ok()?;
    let link = netlink.link_of_index(link).ok()?;
    let mtu = if mtu == 0 { link.mtu } else { mtu };
    Some(NamedRoute { device: link.name, gateway, mtu })
}

/// 0 where there is no such setting.
fn number(setting: &str) -> u8 {
    let text = fs::read_to_string(format!("/proc/sys/net/{setting}")).ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
