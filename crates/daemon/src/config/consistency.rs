//! Checks across keys: values that are valid alone and contradict each other, or have no effect.

use std::path::Path;

use toml::{Spanned, de::DeTable};

use super::names::{DIVERTED, message_of_tun_name};
use super::{Config, Control, Inline, TunName, Wire, Xfrm, error::RawDiagnostic};

/// What is wrong, and with which key of which section (as it is headed: `wire`,
/// `cache.outbound.ipv4`): of `[[device]]`, the one of this place.
#[derive(Debug)]
pub(super) struct Inconsistency {
    pub(super) section: &'static str,
    pub(super) nth: usize,
    pub(super) key: &'static str,
    pub(super) message: String,
}

impl Inconsistency {
    /// The same, where its key stands.
    pub(super) fn fault(self, document: &DeTable<'_>) -> RawDiagnostic {
        let mut names = self.section.split('.');
        let section = names.try_fold(document, |outer, name| {
            let section = outer.get(name).map(Spanned::get_ref)?;
            let nth = section.as_array().and_then(|sections| sections.get(self.nth));
            nth.map_or(section, Spanned::get_ref).as_table()
        });
        let key = section.and_then(|keys| keys.get_key_value(self.key));
        RawDiagnostic { place: key.map_or(0, |(key, _)| key.span().start), message: self.message }
    }
}

/// All of them.
pub(super) fn find(config: &Config) -> Vec<Inconsistency> {
    let wire = &config.wire;
    let single = [of_af_xdp(config), of_gather(config), of_udp_ports(wire), of_mark(wire)];
    let mut all: Vec<_> = single.into_iter().flatten().collect();
    all.extend(of_loopback(config));
    all.extend(of_names(config));
    all.extend(of_functions(config));
    all.extend(of_paths(config));
    all.extend(of_trust(config));
    all.extend(of_caches(config));
    all
}

fn at(section: &'static str, key: &'static str, message: impl Into<String>) -> Inconsistency {
    Inconsistency { section, nth: 0, key, message: message.into() }
}

fn of_af_xdp(config: &Config) -> Option<Inconsistency> {
    let message = "af_xdp is for host mode; with [inline], wire_by there says the same";
    let are_both = config.inline.is_some() && config.wire.af_xdp.is_some();
    are_both.then(|| at("wire", "af_xdp", message))
}

fn of_gather(config: &Config) -> Option<Inconsistency> {
    let Wire { af_xdp, gather, .. } = &config.wire;
    let has_af_xdp = af_xdp.is_some() || config.inline.as_ref().is_some_and(Inline::has_af_xdp);
    let message = "gather is for devices read by AF_XDP, and there is none";
    (gather.is_some() && !has_af_xdp).then(|| at("wire", "gather", message))
}

fn of_udp_ports(wire: &Wire) -> Option<Inconsistency> {
    let ports = &wire.udp_ports;
    let twice = ports.iter().enumerate().find(|(at, port)| ports[..*at].contains(port));
    twice.map(|(_, port)| at("wire", "udp_ports", format!("UDP port {port} is there twice")))
}

/// Its own packets would be led into the TUN, out of which they come.
fn of_mark(wire: &Wire) -> Option<Inconsistency> {
    let mark = wire.mark.get();
    let message = format!(
        "mark {mark:#x} has the bit {DIVERTED:#x}, by which uxfrm leads packets into its TUN; choose one without it"
    );
    (mark & DIVERTED != 0).then(|| at("wire", "mark", message))
}

/// It is in every network namespace.
fn of_loopback(config: &Config) -> Option<Inconsistency> {
    let message = "lo is the loopback device; the TUN is made by uxfrm and needs a name of its own, as uxfrm0";
    (config.host.tun.as_str() == "lo").then(|| at("host", "tun", message))
}

/// The TUN is uxfrm's own: made at start, and nothing else by any name.
fn of_names(config: &Config) -> impl Iterator<Item = Inconsistency> {
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
    let taken = fixed.chain(devices).filter(move |(.., name)| *name == Some(tun));
    taken.map(move |(section, nth, key, _)| Inconsistency {
        section,
        nth,
        key,
        message: message_of_tun_name(tun),
    })
}

/// Virtual functions are interfaces, named after their device.
fn of_functions(config: &Config) -> impl Iterator<Item = Inconsistency> {
    config.device.iter().enumerate().filter_map(|(nth, device)| {
        let last = device.vfs.count().checked_sub(1)?;
        let name = format!("{}v{last}", device.name);
        let message =
            format!("{name} is too long for an interface's name: 15 characters are the most");
        let refused = TunName::try_from(name).is_err();
        refused.then_some(Inconsistency { section: "device", nth, key: "vfs", message })
    })
}

/// Trust is in a device's virtual functions, of which none can be made later.
fn of_trust(config: &Config) -> impl Iterator<Item = Inconsistency> {
    let devices = config.device.iter().enumerate();
    let in_vain = devices.filter(|(_, device)| device.trust && device.vfs.count() == 0);
    in_vain.map(|(nth, _)| {
        let message = "trust is in virtual functions, and this device has none: say vfs, too";
        Inconsistency { nth, ..at("device", "trust", message) }
    })
}

fn of_paths(config: &Config) -> impl Iterator<Item = Inconsistency> {
    let (Xfrm { sequences, .. }, Control { socket, .. }) = (&config.xfrm, &config.control);
    let paths = [("xfrm", "sequences", sequences), ("control", "socket", socket)];
    let empty = |path: &Option<_>| path.as_deref() == Some(Path::new(""));
    let empty = paths.into_iter().filter(move |(.., path)| empty(path));
    empty.map(|(section, key, _)| {
        at(section, key, format!("{key} is an empty path; without this line it has a default"))
    })
}

fn of_caches(config: &Config) -> impl Iterator<Item = Inconsistency> {
    config.cache.in_vain().map(|(section, key, message)| at(section, key, message))
}
