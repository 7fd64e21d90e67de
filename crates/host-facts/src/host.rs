//! What the kernel does with a packet before the gateway has it and after: routes, forwarding, the
//! check of ways back.

use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use uxfrm_control::DIVERTED;
use uxfrm_status::explanation::{
    EncapsulationStatus, FlowExplanation, FlowOutcome, FlowQuery, FlowStep, PathMtuOrigin,
    StepResult,
};

use crate::own_filter::{OwnFilter, Passage};
use crate::packet_filter::FilterHook;
use crate::route::{NamedRoute, RouteSocket};
use crate::sender_told::{SenderPlace, SenderTold};

/// What was read of the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    /// Whether the packet's source is an address of this host.
    is_own_source: bool,
    /// The route of the packet as its sender has it.
    plain: Option<NamedRoute>,
    /// The route of packets that are led into the TUN.
    diverted: Option<NamedRoute>,
    /// The route to the other gateway.
    peer: Option<NamedRoute>,
    /// The address from which the kernel answers the packet's sender, of another host.
    answers_from: Option<IpAddr>,
    /// `ip_forward`, or `forwarding` for IPv6; `None` where it can't be read.
    forwards: Option<bool>,
    /// The strictest `rp_filter` of IPv4 among all devices and the TUN.
    rp_filter: u8,
    /// The gateway's TUN; empty in inline mode.
    tun: String,
    /// Its MTU in bytes; 0 where it can't be read.
    tun_mtu: u32,
    filter: OwnFilter,
}

impl Host {
    /// Reads what matters for this packet.
    ///
    /// # Errors
    /// When the kernel can't be asked for routes or addresses.
    pub(crate) fn read(query: &FlowQuery, explanation: &FlowExplanation) -> io::Result<Self> {
        let routes = RouteSocket::open()?;
        let is_own_source = has_address(query.source)?;
        let source = is_own_source.then_some(query.source);
        let peer = explanation.encapsulation.as_ref().map(|outer| outer.destination);
        let plain = routes.route(source, query.destination, query.mark.unwrap_or(0))?;
        let diverted = routes.route(source, query.destination, DIVERTED)?;
        let peer = peer.map(|peer| routes.route(None, peer, 0)).transpose()?.flatten();
        let answers = match is_own_source {
            true => None,
            false => routes.route(None, query.source, 0)?,
        };
        let answers_from = answers.and_then(|route| route.own);
        let tun = explanation.tun.clone();
        let (family, setting) = match query.destination {
            IpAddr::V4(_) => ("ipv4", "ip_forward"),
            IpAddr::V6(_) => ("ipv6", "conf/all/forwarding"),
        };
        let forwards = number(&format!("{family}/{setting}")).map(|number| number != 0);
        let filters = ["all", &tun].map(|device| number(&format!("ipv4/conf/{device}/rp_filter")));
        let rp_filter = filters.into_iter().flatten().max().unwrap_or_default();
        let tun_mtu = if tun.is_empty() { 0 } else { routes.device_mtu(&tun) };
        Ok(Self {
            is_own_source,
            plain,
            diverted,
            peer,
            answers_from,
            forwards,
            rp_filter,
            tun,
            tun_mtu,
            filter: OwnFilter::read(),
        })
    }

    /// Adds steps for what was read to those of the gateway.
    pub(crate) fn add_to(&self, query: &FlowQuery, explanation: &mut FlowExplanation) {
        match explanation.outcome {
            FlowOutcome::LeavesPlain => self.add_plain(explanation),
            FlowOutcome::LeavesProtected | FlowOutcome::Waits => {
                self.add_outbound(query, explanation);
            }
            FlowOutcome::Dropped if explanation.direction == "out" => {
                self.add_outbound(query, explanation);
            }
            FlowOutcome::ComesIn => self.add_inbound(query, explanation),
            FlowOutcome::Dropped => {}
        }
    }

    fn add_plain(&self, explanation: &mut FlowExplanation) {
        match &self.plain {
            Some(route) if !self.tun.is_empty() && route.device == self.tun => {
                explanation.verdict = format!("loops by {}: no policy protects it", route.device);
                let step = FlowStep::new("route", format!("{}, which is uxfrm's", words(route)));
                let step = step.with_result(StepResult::Fails).with_notes(vec![LOOP.to_owned()]);
                explanation.steps.insert(0, step);
            }
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
    fn add_outbound(&self, query: &FlowQuery, explanation: &mut FlowExplanation) {
        if !self.tun.is_empty() {
            explanation.steps.insert(0, self.way_to_tun());
            self.add_forwarding(explanation);
            explanation.steps.extend(self.filter.doubts(&self.passages_out(query, explanation)));
        }
        if explanation.encapsulation.is_none() {
            return;
        }
        match &self.peer {
            Some(route) => {
                explanation.steps.push(FlowStep::new("way out", words(route)));
                explanation.verdict += &format!(", by {}", route.device);
                self.add_mtus(route, explanation);
                self.add_device_mtu(route, explanation);
            }
            None => explanation.steps.push(
                FlowStep::new("way out", "the kernel has no route to the other gateway")
                    .with_result(StepResult::Fails),
            ),
        }
    }

    /// Where the packet filter sees a packet on its way to the gateway, and its ESP behind it.
    fn passages_out(&self, query: &FlowQuery, explanation: &FlowExplanation) -> Vec<Passage> {
        let hook = if self.is_own_source { FilterHook::Output } else { FilterHook::Forward };
        let plain = Passage {
            what: "the packet",
            hook,
            is_ipv4: query.destination.is_ipv4(),
            condition: format!("oifname \"{}\"", self.tun),
        };
        let esp = explanation.encapsulation.as_ref().map(|outer| Passage {
            what: "its ESP",
            hook: FilterHook::Output,
            is_ipv4: outer.destination.is_ipv4(),
            condition: address_condition("daddr", outer.destination),
        });
        [plain].into_iter().chain(esp).collect()
    }

    /// The same of a packet that came in.
    fn passages_in(&self, query: &FlowQuery, explanation: &FlowExplanation) -> Vec<Passage> {
        let esp = query.esp.map(|esp| Passage {
            what: "its ESP",
            hook: FilterHook::Input,
            is_ipv4: esp.source.or(esp.destination).is_none_or(|outer| outer.is_ipv4()),
            condition: match esp.source {
                Some(source) => address_condition("saddr", source),
                None => "meta l4proto esp".to_owned(),
            },
        });
        let hook = match explanation.direction.as_str() {
            "fwd" => FilterHook::Forward,
            _in => FilterHook::Input,
        };
        let plain = Passage {
            what: "the packet",
            hook,
            is_ipv4: query.destination.is_ipv4(),
            condition: format!("iifname \"{}\"", self.tun),
        };
        esp.into_iter().chain([plain]).collect()
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
        if !self.is_own_source {
            self.add_setting(
                "the source is no address of this host, and the kernel forwards nothing",
                explanation,
            );
        }
    }

    /// A packet that is to be forwarded, and may not be.
    fn add_setting(&self, text: &str, explanation: &mut FlowExplanation) {
        let setting = forwarding_setting(&explanation.flow);
        match self.forwards {
            Some(true) => {}
            Some(false) => explanation.steps.push(
                FlowStep::new("forward", format!("{text}: {setting} is 0"))
                    .with_result(StepResult::Fails)
                    .with_notes(vec![format!("sysctl -w {setting}=1")]),
            ),
            None => explanation.steps.push(
                FlowStep::new("forward", format!("{setting} can't be read here"))
                    .with_result(StepResult::Doubtful)
                    .with_notes(vec![format!("it must be 1: sysctl {setting}")]),
            ),
        }
    }

    /// Where the size that fits comes from, and who tells senders.
    fn add_mtus(&self, route: &NamedRoute, explanation: &mut FlowExplanation) {
        let Some(outer) = &mut explanation.encapsulation else { return };
        let (mut notes, mut result) = (Vec::new(), StepResult::Passes);
        if route.mtu == u32::from(outer.path_mtu) {
            outer.path_mtu_origin = Some(route.origin);
            outer.path_mtu_expires =
                Some(route.expires.as_secs()).filter(|_| route.origin == PathMtuOrigin::Learned);
            notes.push(origin_words(route));
        }
        if self.tun_mtu > 0 {
            outer.tun_mtu = Some(self.tun_mtu);
            let sender = match self.is_own_source {
                true => SenderPlace::ThisHost,
                false => SenderPlace::Other { answered_from: self.answers_from },
            };
            let told = SenderTold::of(outer, self.tun_mtu, sender);
            notes.push(format!("{}; {}", tun_words(&self.tun, self.tun_mtu, outer), told.text));
            notes.extend(told.mend);
            result = told.result;
        }
        let Some(step) = explanation.steps.iter_mut().find(|step| step.stage == "size") else {
            return;
        };
        step.result = step.result.max(result);
        step.notes.splice(0..0, notes);
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
        if explanation.direction == "fwd" {
            let text = format!("{} is no address of this host", query.destination);
            self.add_setting(&text, explanation);
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
        if !self.tun.is_empty() && query.esp.is_some() {
            explanation.steps.extend(self.filter.steps(&self.passages_in(query, explanation)));
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

fn origin_words(route: &NamedRoute) -> String {
    let NamedRoute { device, mtu, expires, .. } = route;
    match route.origin {
        PathMtuOrigin::Device => format!("{mtu} is the MTU of dev {device}"),
        PathMtuOrigin::Route => format!("{mtu} is the MTU of the route, not of dev {device}"),
        PathMtuOrigin::Learned => format!(
            "{mtu} was learned from a router by ICMP; the kernel forgets it in {} s",
            expires.as_secs()
        ),
    }
}

fn tun_words(tun: &str, mtu: u32, outer: &EncapsulationStatus) -> String {
    let from = match outer.fixed_tun_mtu {
        Some(_) => "fixed by `[host] mtu`",
        None => "auto: it follows the tunnels",
    };
    format!("dev {tun} has MTU {mtu}, {from}")
}

fn address_condition(field: &str, address: IpAddr) -> String {
    let family = if address.is_ipv4() { "ip" } else { "ip6" };
    format!("{family} {field} {address}")
}

fn forwarding_setting(flow: &str) -> &'static str {
    match flow.starts_with('[') || flow.contains("::") {
        true => "net.ipv6.conf.all.forwarding",
        false => "net.ipv4.ip_forward",
    }
}

fn no_route() -> FlowStep {
    FlowStep::new("route", "the kernel has no route to the destination")
        .with_result(StepResult::Fails)
}

/// Where uxfrm's own table has the route, its rule for what its sockets send stands before.
const LOOP: &str = "uxfrm lets it go on plain, and a route of the host's leads it back until its hop \
                    limit is used up: remove that route, or add a policy. Only without nf_tables \
                    may the route be uxfrm's own, and the packet leaves by the main table";

fn words(route: &NamedRoute) -> String {
    let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    format!("dev {}{via}", route.device)
}

/// Whether an address is one of this host's.
fn has_address(address: IpAddr) -> io::Result<bool> {
    let own = getifaddrs()?.filter_map(|one| one.address);
    Ok(own.filter_map(|own| ip(&own)).any(|own| own == address))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// `None` where there is no such setting, or it can't be read.
fn number(setting: &str) -> Option<u8> {
    let text = fs::read_to_string(format!("/proc/sys/net/{setting}")).ok();
    text.and_then(|text| text.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn query() -> FlowQuery {
        FlowQuery {
            source: [10, 1, 0, 1].into(),
            destination: [10, 2, 0, 1].into(),
            protocol: None,
            source_port: None,
            destination_port: None,
            mark: None,
            way: None,
            esp: None,
        }
    }

    fn explanation(outcome: FlowOutcome, direction: &str) -> FlowExplanation {
        FlowExplanation {
            flow: "10.1.0.1:0 -> 10.2.0.1:0 proto 0".to_owned(),
            direction: direction.to_owned(),
            tun: "uxfrm0".to_owned(),
            outcome,
            verdict: "leaves".to_owned(),
            steps: Vec::new(),
            encapsulation: None,
            drop: None,
        }
    }

    fn by(device: &str) -> Option<NamedRoute> {
        Some(NamedRoute {
            device: device.to_owned(),
            gateway: None,
            own: None,
            mtu: 1500,
            origin: PathMtuOrigin::Device,
            expires: Duration::ZERO,
        })
    }

    #[test]
    fn size_step_tells_which_mtu_applies() {
        use PathMtuOrigin::{Device, Learned, Route};
        for (origin, path_mtu, tun_mtu, fixed, expected) in [
            (
                Device,
                1500,
                1446,
                None,
                &[
                    "1500 is the MTU of dev eth0",
                    "dev uxfrm0 has MTU 1446, auto: it follows the tunnels; the kernel tells senders",
                    "TCP",
                ][..],
            ),
            (
                Route,
                1300,
                1500,
                Some(1500),
                &[
                    "1300 is the MTU of the route, not of dev eth0",
                    "dev uxfrm0 has MTU 1500, fixed by `[host] mtu`; uxfrm tells senders what fits \
                     here",
                    "TCP",
                ],
            ),
            (
                Learned,
                1300,
                0,
                None,
                &["1300 was learned from a router by ICMP; the kernel forgets it in 583 s", "TCP"],
            ),
        ] {
            let expires = Duration::from_secs(if origin == Learned { 583 } else { 0 });
            let route = by("eth0").map(|route| NamedRoute {
                mtu: path_mtu.into(),
                origin,
                expires,
                ..route
            });
            let host = Host { peer: route, tun: "uxfrm0".to_owned(), tun_mtu, ..Host::default() };
            let mut explanation = explanation(FlowOutcome::LeavesProtected, "out");
            let size = FlowStep::new("size", "some").with_notes(vec!["TCP".to_owned()]);
            explanation.steps.push(size);
            explanation.encapsulation = Some(EncapsulationStatus {
                source: [10, 9, 0, 1].into(),
                destination: [10, 9, 0, 2].into(),
                spis: Vec::new(),
                udp_port: None,
                path_mtu,
                path_mtu_origin: None,
                path_mtu_expires: None,
                inner_mtu: u64::from(path_mtu) - 54,
                overhead: 54,
                tun_mtu: None,
                fixed_tun_mtu: fixed,
                clamped_mss: None,
                too_big: None,
                offloaded: false,
            });
            host.add_to(&query(), &mut explanation);
            let size = explanation.steps.iter().find(|step| step.stage == "size").unwrap();
            assert_eq!(size.notes, expected);
            let outer = explanation.encapsulation.unwrap();
            assert_eq!(outer.path_mtu_origin, Some(origin));
            assert_eq!(outer.path_mtu_expires, (origin == Learned).then_some(583));
            assert_eq!(outer.tun_mtu, Some(tun_mtu).filter(|mtu| *mtu > 0));
        }
    }

    /// Stages with their results.
    fn steps(host: &Host, mut explanation: FlowExplanation) -> Vec<(String, StepResult)> {
        host.add_to(&query(), &mut explanation);
        explanation.steps.into_iter().map(|step| (step.stage, step.result)).collect()
    }

    #[test]
    fn steps_by_table() {
        use FlowOutcome::{ComesIn, LeavesPlain, LeavesProtected};
        use StepResult::{Doubtful, Fails, Passes};
        let host = Host {
            is_own_source: true,
            plain: by("eth0"),
            diverted: by("uxfrm0"),
            forwards: Some(true),
            tun: "uxfrm0".to_owned(),
            ..Host::default()
        };
        let astray = Host { diverted: by("eth0"), ..host.clone() };
        let routeless = Host { plain: None, diverted: None, ..host.clone() };
        let looping = Host { plain: by("uxfrm0"), ..host.clone() };
        let router = Host { is_own_source: false, ..host.clone() };
        let closed = Host { forwards: Some(false), ..router.clone() };
        let blind = Host { forwards: None, ..router.clone() };
        let strict = Host { rp_filter: 1, ..host.clone() };
        type Row<'a> = (&'a Host, FlowOutcome, &'a str, &'a [(&'a str, StepResult)]);
        let table: [Row<'_>; 11] = [
            (&host, LeavesPlain, "out", &[("route", Passes)]),
            (&looping, LeavesPlain, "out", &[("route", Fails)]),
            (&routeless, LeavesPlain, "out", &[("route", Fails)]),
            (&host, LeavesProtected, "out", &[("route", Passes)]),
            (&astray, LeavesProtected, "out", &[("route", Fails)]),
            (&router, LeavesProtected, "out", &[("route", Passes)]),
            (&closed, LeavesProtected, "out", &[("route", Passes), ("forward", Fails)]),
            (&blind, LeavesProtected, "out", &[("route", Passes), ("forward", Doubtful)]),
            (&closed, ComesIn, "fwd", &[("forward", Fails), ("way in", Passes)]),
            (&closed, ComesIn, "in", &[("way in", Passes)]),
            (&strict, ComesIn, "in", &[("filter", Doubtful), ("way in", Passes)]),
        ];
        for (host, outcome, direction, expected) in table {
            let steps = steps(host, explanation(outcome, direction));
            let steps: Vec<_> = steps.iter().map(|(stage, end)| (stage.as_str(), *end)).collect();
            assert_eq!(steps, expected, "{outcome:?} {direction} {host:?}");
        }
    }

    #[test]
    fn own_addresses_are_known() {
        assert!(!has_address([203, 0, 113, 77].into()).unwrap());
    }
}
