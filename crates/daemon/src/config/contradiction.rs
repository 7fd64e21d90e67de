//! Keys that are right by themselves and go with none of the others, or would do nothing beside them.

use std::path::Path;

use super::{Config, Control, Inline, TunName, Wire, Xfrm};

/// What is wrong, and with which key of which section (as it is headed: `wire`, `cache.outbound.ipv4`): of `[[device]]`, the one of this place.
#[derive(Debug)]
pub(super) struct Contradiction {
    pub(super) section: &'static str,
    pub(super) nth: usize,
    pub(super) key: &'static str,
    pub(super) message: String,
}

/// The first one, if there is one.
pub(super) fn find(config: &Config) -> Option<Contradiction> {
    let of_wire = [of_af_xdp(config), of_gather(config), of_udp_ports(&config.wire)];
    let of_all = [of_names(config), of_functions(config), of_paths(config), of_caches(config)];
    of_wire.into_iter().chain(of_all).flatten().next()
}

fn at(section: &'static str, key: &'static str, message: impl Into<String>) -> Contradiction {
    Contradiction { section, nth: 0, key, message: message.into() }
}

fn of_af_xdp(config: &Config) -> Option<Contradiction> {
    let message = "af_xdp is for host mode; with [inline], wire_by there says the same";
    let are_both = config.inline.is_some() && config.wire.af_xdp.is_some();
    are_both.then(|| at("wire", "af_xdp", message))
}

fn of_gather(config: &Config) -> Option<Contradiction> {
    let Wire { af_xdp, gather, .. } = &config.wire;
    let has_af_xdp = af_xdp.is_some() || config.inline.as_ref().is_some_and(Inline::has_af_xdp);
    let message = "gather is for devices read by AF_XDP, and there is none";
    (gather.is_some() && !has_af_xdp).then(|| at("wire", "gather", message))
}

fn of_udp_ports(wire: &Wire) -> Option<Contradiction> {
    let ports = &wire.udp_ports;
    let twice = ports.iter().enumerate().find(|(at, port)| ports[..*at].contains(port));
    twice.map(|(_, port)| at("wire", "udp_ports", format!("UDP port {port} is there twice")))
}

/// The TUN is uxfrm's own: made at start, and nothing else by any name.
fn of_names(config: &Config) -> Option<Contradiction> {
    let tun = config.host.tun.as_str();
    let inline = config.inline.as_ref();
    let fixed = [
        ("inline", "protected", inline.map(Inline::protected)),
        ("inline", "wire", inline.map(Inline::wire)),
        ("wire", "af_xdp", config.wire.af_xdp.as_ref().map(TunName::as_str)),
    ];
    let fixed = fixed.into_iter().map(|(section, key, name)| (section, 0, key, name));
    let devices = config.device.iter().enumerate().flat_map(|(nth, device)| {
        let over = device.over.as_ref().map(TunName::as_str);
        [("device", nth, "name", Some(device.name.as_str())), ("device", nth, "over", over)]
    });
    let taken = fixed.chain(devices).find(|(.., name)| *name == Some(tun));
    taken.map(|(section, nth, key, _)| {
        let message =
            format!("{tun} is the TUN that uxfrm makes ([host] tun); name another device");
        Contradiction { section, nth, key, message }
    })
}

/// Virtual functions are interfaces, named after their device.
fn of_functions(config: &Config) -> Option<Contradiction> {
    config.device.iter().enumerate().find_map(|(nth, device)| {
        let last = device.vfs.count().checked_sub(1)?;
        let name = format!("{}v{last}", device.name);
        let message =
            format!("{name} is too long for an interface's name: 15 characters are the most");
        let refused = TunName::try_from(name).is_err();
        refused.then_some(Contradiction { section: "device", nth, key: "vfs", message })
    })
}

fn of_paths(config: &Config) -> Option<Contradiction> {
    let (Xfrm { sequences, .. }, Control { socket, .. }) = (&config.xfrm, &config.control);
    let paths = [("xfrm", "sequences", sequences), ("control", "socket", socket)];
    let empty = |path: &Option<_>| path.as_deref() == Some(Path::new(""));
    let empty = paths.into_iter().find(|(.., path)| empty(path));
    empty.map(|(section, key, _)| {
        at(section, key, format!("{key} is an empty path; without this line it has a default"))
    })
}

fn of_caches(config: &Config) -> Option<Contradiction> {
    let found = config.cache.in_vain().next();
    found.map(|(section, key, message)| at(section, key, message))
}
