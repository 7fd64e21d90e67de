//! Configuration keys that take effect at the next start only; a reload names them.

use crate::config::{Config, Control, Crypto, Host, Runtime, StatusSettings, Wire, Xfrm};

/// Names of the keys that differ and that a running gateway does not follow. All of a section are
/// named here, so that a new key is thought of.
pub(super) fn waiting(now: &Config, wanted: &Config) -> Vec<&'static str> {
    let Config {
        host,
        inline,
        wire,
        xfrm,
        tunnel: _,
        control,
        status,
        runtime,
        crypto,
        cache,
        device,
    } = now;
    let Host { tun, mtu: _, clamp_mss, guard, at_exit: _, at_start } = host;
    let Wire { encapsulation, udp_ports, mark, table, queue_delay, af_xdp, gather } = wire;
    let Xfrm { batch: _, sequences } = xfrm;
    let Control { enabled, socket, acquire_expires: _, user } = control;
    let StatusSettings { group } = status;
    let Runtime { workers, pin, sandbox } = runtime;
    let Crypto { backend } = crypto;
    let keys = [
        ("[host] tun", *tun == wanted.host.tun),
        ("[host] clamp_mss", *clamp_mss == wanted.host.clamp_mss),
        ("[host] guard", *guard == wanted.host.guard),
        ("[host] at_start", *at_start == wanted.host.at_start),
        ("[inline]", *inline == wanted.inline),
        ("[wire] encapsulation", *encapsulation == wanted.wire.encapsulation),
        ("[wire] udp_ports", *udp_ports == wanted.wire.udp_ports),
        ("[wire] mark", *mark == wanted.wire.mark),
        ("[wire] table", *table == wanted.wire.table),
        ("[wire] queue_delay", *queue_delay == wanted.wire.queue_delay),
        ("[wire] af_xdp", *af_xdp == wanted.wire.af_xdp),
        ("[wire] gather", *gather == wanted.wire.gather),
        ("[xfrm] sequences", *sequences == wanted.xfrm.sequences),
        ("[control] enabled", *enabled == wanted.control.enabled),
        ("[control] socket", *socket == wanted.control.socket),
        ("[control] user", *user == wanted.control.user),
        ("[status] group", *group == wanted.status.group),
        ("[runtime] workers", *workers == wanted.runtime.workers),
        ("[runtime] pin", *pin == wanted.runtime.pin),
        ("[runtime] sandbox", *sandbox == wanted.runtime.sandbox),
        ("[crypto] backend", *backend == wanted.crypto.backend),
        ("[cache]", *cache == wanted.cache),
        ("[[device]] (`uxfrm dev` changes devices)", *device == wanted.device),
    ];
    keys.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_names_keys_that_need_restart() {
        let parse = |text| Config::parse("test", text).expect("it is right");
        let now = parse("");
        assert!(waiting(&now, &parse("[host]\nat_exit = \"open\"\nmtu = 1400")).is_empty());
        assert!(waiting(&now, &parse("[control]\nacquire_expires = 5")).is_empty());
        let wanted = parse("[wire]\ntable = 77\n[runtime]\nworkers = 2");
        assert_eq!(waiting(&now, &wanted), ["[wire] table", "[runtime] workers"]);
    }
}
