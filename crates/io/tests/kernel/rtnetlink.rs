use uxfrm_io::rtnetlink::{
    Error, FirewallMark, MonitorResult, Route, RouteChange, RoutePrefix, RoutingRule, RtnlMonitor,
    RuleAction, RuleOrigin, ScopedRoutes, Via,
};
use uxfrm_io::{Namespace, Rtnetlink};
use uxfrm_packet::Version;

use crate::{in_namespace, prefix};

#[test]
fn a_veth_pair_spans_two_namespaces() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let mut here = Rtnetlink::open().unwrap();
        here.add_veth("near", "far", std::os::fd::AsFd::as_fd(&far)).unwrap();
        assert!(matches!(
            here.add_veth("near", "far2", std::os::fd::AsFd::as_fd(&far)),
            Err(Error::Exists { .. })
        ));
        let near = here.link("near").unwrap();
        assert!(!near.is_up && near.mtu == 1500);
        here.set_mtu(near.index, 1400).unwrap();
        assert!(!has_segments(&mut here, near.index, 44));
        here.set_segments(near.index, 44).unwrap();
        assert!(has_segments(&mut here, near.index, 44));
        here.set_up(near.index).unwrap();
        let mut there = far.enter(|| Rtnetlink::open().unwrap()).unwrap();
        let other = there.link("far").unwrap();
        there.set_up(other.index).unwrap();
        let near = here.link_of_index(near.index).unwrap();
        assert!(near.is_up && near.mtu == 1400 && near.name == "near");
        here.delete_link(near.index).unwrap();
        assert!(matches!(there.link("far"), Err(Error::NotFound { .. })));
        assert_eq!(there.links().unwrap().len(), 1);
    });
}

/// Whether a device takes super-packets of so many packets at the most.
fn has_segments(kernel: &mut Rtnetlink, index: u32, most: u32) -> bool {
    const IFLA_GSO_MAX_SEGS: u16 = 40;
    let header = [8, IFLA_GSO_MAX_SEGS].map(u16::to_ne_bytes).concat();
    let attribute = [&header[..], &most.to_ne_bytes()].concat();
    kernel.link_body(index).unwrap().windows(attribute.len()).any(|part| part == attribute)
}

#[test]
fn a_link_moves_to_another_namespace() {
    in_namespace(|| {
        let (far, here) = (Namespace::new().unwrap(), Namespace::current().unwrap());
        let mut kernel = Rtnetlink::open().unwrap();
        kernel.add_veth("stays", "moves", std::os::fd::AsFd::as_fd(&here)).unwrap();
        let index = kernel.link("moves").unwrap().index;
        kernel.move_link(index, std::os::fd::AsFd::as_fd(&far)).unwrap();
        assert!(kernel.link("moves").is_err());
        assert!(far.enter(|| Rtnetlink::open().unwrap().link("moves").is_ok()).unwrap());
    });
}

#[test]
fn addresses_come_and_go() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let lo = kernel.link("lo").unwrap();
        assert!(lo.is_loopback);
        for address in ["192.0.2.1/24", "2001:db8::1/64"].map(prefix) {
            kernel.add_address(lo.index, address).unwrap();
            assert!(matches!(kernel.add_address(lo.index, address), Err(Error::Exists { .. })));
            let found = kernel.addresses().unwrap();
            assert!(found.iter().any(|found| found.link == lo.index && found.prefix == address));
            kernel.delete_address(lo.index, address).unwrap();
            assert!(matches!(
                kernel.delete_address(lo.index, address),
                Err(Error::NotFound { .. })
            ));
        }
    });
}

#[test]
fn routes_and_rules_are_added_found_and_removed() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let lo = kernel.link("lo").unwrap().index;
        for (version, source, net) in [
            (Version::V4, "192.0.2.1/32", "198.51.100.0/24"),
            (Version::V6, "2001:db8::1/128", "2001:db8:1::/48"),
        ] {
            let (source, net) = (prefix(source), prefix(net));
            kernel.add_address(lo, source).unwrap();
            let route = Route {
                table: 51_820,
                source: Some(source.address()),
                metric: Some(7),
                mtu: Some(1300),
                ..Route::new(net, Via::Link(lo))
            };
            let closed =
                Route { table: 51_820, metric: Some(9999), ..Route::new(net, Via::Unreachable) };
            let rule = RoutingRule {
                version,
                mark: FirewallMark::IsNot(0x1234, 0xffff),
                sender: RuleOrigin::Any,
                source: None,
                destination: None,
                action: RuleAction::Lookup(51_820),
                priority: 100,
                suppress_prefix_length: None,
            };
            let main = RoutingRule {
                mark: FirewallMark::Any,
                sender: RuleOrigin::Host,
                action: RuleAction::Lookup(254),
                priority: 90,
                suppress_prefix_length: Some(0),
                ..rule
            };
            for route in [&route, &closed] {
                kernel.add_route(route).unwrap();
                assert!(matches!(kernel.add_route(route), Err(Error::Exists { .. })));
            }
            for rule in [&rule, &main] {
                kernel.add_rule(rule).unwrap();
                assert!(kernel.rules(version).unwrap().contains(rule), "{rule}");
            }
            let found = kernel.routes(51_820).unwrap();
            assert!(found.contains(&route), "{found:?}");
            assert!(
                found
                    .iter()
                    .any(|found| found.via == Via::Unreachable && found.metric == Some(9999)),
                "{found:?}"
            );

            let inside = net.address();
            let chosen = kernel.route_to(inside, 0).unwrap();
            assert_eq!(
                (chosen.link, chosen.source, chosen.mtu),
                (lo, Some(source.address()), 1300)
            );
            let marked = kernel.route_to(inside, 0x1234);
            assert!(matches!(marked, Err(Error::Refused { .. })), "{marked:?}");

            for rule in [&rule, &main] {
                kernel.delete_rule(rule).unwrap();
                assert!(!kernel.rules(version).unwrap().contains(rule));
            }
            for route in [&route, &closed] {
                kernel.delete_route(route).unwrap();
                assert!(matches!(kernel.delete_route(route), Err(Error::NotFound { .. })));
            }
            let own = kernel.route_to(source.address(), 0).unwrap();
            assert!(own.is_local, "{own:?}");
        }
    });
}

#[test]
fn a_gateway_is_chosen_with_the_devices_mtu() {
    in_namespace(|| {
        let far = Namespace::new().unwrap();
        let mut kernel = Rtnetlink::open().unwrap();
        kernel.add_veth("wire", "wire", std::os::fd::AsFd::as_fd(&far)).unwrap();
        let wire = kernel.link("wire").unwrap().index;
        kernel.set_up(wire).unwrap();
        kernel.add_address(wire, prefix("192.0.2.1/24")).unwrap();
        let gateway = "192.0.2.254".parse().unwrap();
        kernel.add_route(&Route::new(prefix("0.0.0.0/0"), Via::Gateway(gateway, None))).unwrap();
        let everything = RoutePrefix::new("0.0.0.0".parse().unwrap(), 0).unwrap();
        assert!(kernel.routes(254).unwrap().iter().any(|route| route.destination == everything));
        let chosen = kernel.route_to("203.0.113.9".parse().unwrap(), 0).unwrap();
        assert_eq!((chosen.link, chosen.gateway, chosen.mtu), (wire, Some(gateway), 1500));
    });
}

#[test]
fn scoped_routes_are_removed() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let lo = kernel.link("lo").unwrap().index;
        let route = Route { table: 99, ..Route::new(prefix("198.51.100.0/24"), Via::Link(lo)) };
        let gone = Route { table: 99, ..Route::new(prefix("203.0.113.0/24"), Via::Blackhole) };
        let mark = FirewallMark::IsNot(1, u32::MAX);
        let rule = RoutingRule {
            version: Version::V4,
            mark,
            sender: RuleOrigin::Any,
            source: None,
            destination: None,
            action: RuleAction::Lookup(99),
            priority: 100,
            suppress_prefix_length: None,
        };
        kernel.add_rule(&rule).unwrap();
        let mut installed = ScopedRoutes::new(Rtnetlink::open().unwrap());
        for route in [route, gone] {
            installed.add_route(route).unwrap();
            assert!(matches!(installed.add_route(route), Err(Error::Exists { .. })));
        }
        installed.add_rule(rule).unwrap();
        kernel.delete_route(&gone).unwrap();
        installed.remove().unwrap();
        assert_eq!(kernel.routes(99).unwrap(), []);
        assert!(!kernel.rules(Version::V4).unwrap().contains(&rule));
    });
}

#[test]
fn failed_route_change_does_not_stop_others() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let lo = kernel.link("lo").unwrap().index;
        kernel.set_up(lo).unwrap();
        kernel.add_address(lo, prefix("192.0.2.1/32")).unwrap();
        let table = 51_821;
        let routes: Vec<_> = (0..200_u32)
            .map(|n| prefix(&format!("10.1.{n}.0/24")))
            .chain((0..200_u32).map(|n| prefix(&format!("2001:db8:{n:x}::/48"))))
            .map(|net| Route { table, metric: Some(7), ..Route::new(net, Via::Link(lo)) })
            .collect();
        let put: Vec<_> = routes.iter().map(|route| RouteChange::Put(*route)).collect();
        kernel.change_routes(&put).unwrap();
        kernel.change_routes(&put).unwrap();
        assert_eq!(kernel.routes(table).unwrap().len(), 400);

        let source = Some("192.0.2.1".parse().unwrap());
        kernel.change_routes(&[RouteChange::Put(Route { source, ..routes[0] })]).unwrap();
        let found = kernel.routes(table).unwrap();
        assert_eq!(found.iter().filter(|route| route.source == source).count(), 1);
        assert_eq!(found.len(), 400);

        let foreign = Some("192.0.2.77".parse().unwrap());
        let wrong = RouteChange::Put(Route { source: foreign, ..routes[1] });
        let gone = RouteChange::Delete(Route { metric: Some(8), ..routes[2] });
        let mut changes: Vec<_> = routes.iter().map(|route| RouteChange::Delete(*route)).collect();
        changes.splice(100..100, [wrong, gone]);
        let error = kernel.change_routes(&changes).unwrap_err();
        assert!(error.to_string().contains("10.1.1.0/24"), "{error}");
        assert_eq!(error.errno(), 22, "{error}");
        assert_eq!(kernel.routes(table).unwrap(), []);
    });
}

#[test]
fn monitor_reports_links_addresses_and_foreign_removals() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let monitor = RtnlMonitor::open(&kernel, [30_000, 30_001]).unwrap();
        let lo = kernel.link("lo").unwrap().index;
        assert_eq!(monitor.take_news(lo), MonitorResult::Nothing);
        kernel.add_address(lo, prefix("192.0.2.1/32")).unwrap();
        assert_eq!(monitor.take_news(lo), MonitorResult::Changed);
        kernel.set_down(lo).unwrap();
        kernel.set_up(lo).unwrap();
        assert_eq!(monitor.take_news(lo), MonitorResult::RoutesGone);
        kernel.set_down(lo).unwrap();
        kernel.set_up(lo).unwrap();
        assert_eq!(monitor.take_news(lo + 1), MonitorResult::Changed);
        let mut other = Rtnetlink::open().unwrap();
        for destination in ["198.51.100.0/24", "2001:db8::/64"] {
            for table in [30_000, 30_001, 77] {
                let route = Route {
                    table,
                    metric: Some(7),
                    ..Route::new(prefix(destination), Via::Link(lo))
                };
                let went =
                    if table != 77 { MonitorResult::RoutesGone } else { MonitorResult::Nothing };
                for (by, expected) in [(&mut other, went), (&mut kernel, MonitorResult::Nothing)] {
                    by.add_route(&route).unwrap();
                    assert_eq!(monitor.take_news(lo), MonitorResult::Nothing);
                    by.delete_route(&route).unwrap();
                    assert_eq!(monitor.take_news(lo), expected, "{destination} {table}");
                }
            }
        }
        for version in [Version::V4, Version::V6] {
            let rule = RoutingRule {
                version,
                mark: FirewallMark::IsNot(7, u32::MAX),
                sender: RuleOrigin::Any,
                source: None,
                destination: None,
                action: RuleAction::Lookup(30_000),
                priority: 5000,
                suppress_prefix_length: None,
            };
            other.add_rule(&rule).unwrap();
            assert_eq!(monitor.take_news(lo), MonitorResult::Nothing);
            other.delete_rule(&rule).unwrap();
            assert_eq!(monitor.take_news(lo), MonitorResult::Changed);
        }
    });
}
