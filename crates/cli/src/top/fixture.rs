//! Two samples of one gateway, two seconds apart, for tests.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use uxfrm_status::tunnel::StateStatus;

use super::sample::Sample;

/// Before, and now. The clocks are those of `workers`.
pub(crate) fn pair() -> (Sample, Sample) {
    let at = Instant::now();
    (sample(at, 1), sample(at + Duration::from_secs(2), 3))
}

/// A state that carried so many packets of 1,250 bytes.
pub(crate) fn state(direction: &str, spi: &str, packets: u64) -> StateStatus {
    serde_json::from_value(state_document(direction, spi, packets)).unwrap()
}

fn state_document(direction: &str, spi: &str, packets: u64) -> Value {
    json!({
        "spi": spi, "source": "192.0.2.2", "destination": "192.0.2.1", "direction": direction,
        "mode": "tunnel", "reqid": 1, "if_id": 0, "lifecycle": "valid",
        "cipher": "rfc4106(gcm(aes)) 128", "added_seconds_ago": 40,
        "traffic": traffic(packets), "failures": failures(), "replay_window": 32,
        "sequence_sent": 0, "sequence_received": 0, "sequence_ratio": 0.0,
    })
}

fn traffic(packets: u64) -> Value {
    match packets {
        0 => json!({"packets": 0, "bytes": 0}),
        _ => json!({"packets": packets, "bytes": packets * 1250, "last_seconds_ago": 0}),
    }
}

fn failures() -> Value {
    json!({"replay_window": 0, "replay": 0, "integrity_failed": 0})
}

/// A tunnel: its health and why, the last octet of its peer, packets received and sent.
fn tunnel((health, why): (&str, Value), peer: u8, [received, sent]: [u64; 2]) -> Value {
    json!({
        "local": "192.0.2.1", "remote": format!("192.0.2.{peer}"), "mode": "tunnel",
        "protocol": "esp", "reqid": peer, "if_id": 0, "health": health,
        "explanation": why,
        "nets": [
            {"local": "10.1.0.0/16", "remote": format!("10.{peer}.0.0/16")},
            {"local": "fd00:1::/64", "remote": format!("fd00:{peer}::/64")},
        ],
        "nets_total": 2, "policies": {"outbound": 2, "inbound": 2, "forward": 2},
        "cipher": "rfc4106(gcm(aes)) 128",
        "sent": traffic(sent), "received": traffic(received), "failures": failures(), "drops": {},
        "states": [], "states_total": 0,
    })
}

fn status(step: u64) -> Value {
    let mut up = tunnel(("up", Value::Null), 2, [1000 * step, 500 * step]);
    up["states"] = json!([
        state_document("in", "0x00000010", 1000 * step),
        state_document("out", "0x00000011", 500 * step),
    ]);
    up["states_total"] = json!(2);
    up["expiry"] = json!({"of": "added", "used_ratio": 0.2, "left": 2880});
    let why = "no state fits the template, and no key manager listens to make one";
    let mut down = tunnel(("down", json!(why)), 3, [0, 0]);
    down["drops"] = json!({"out_no_state": 2 * step});
    let one_way =
        tunnel(("one-way", json!("sent 412 packets and received none in 30 s")), 4, [0, 412]);
    json!({
        "gateway": {
            "version": "0.1.0", "pid": 4711, "started": 1_764_424_800, "uptime_seconds": 11_100,
            "configuration": "/etc/uxfrm/uxfrm.toml", "mode": "host", "tun": "xfrm0", "workers": 2,
            "udp_ports": [4500], "interfaces": [], "devices": [], "key_manager_listens": false,
        },
        "at": 1_764_424_800 + step, "age_seconds": 0,
        "totals": {
            "tunnels": 3, "up": 1, "idle": 0, "one_way": 1, "down": 1, "states": 2, "policies": 18,
            "sent": traffic(500 * step), "received": traffic(1000 * step), "dropped": 4 + 2 * step,
            "dropped_by_reason": {},
        },
        "plain": {"bypass": 0, "block": 0, "held": 0},
        "tunnels": [up, down, one_way],
        "unmatched_states": [], "unmatched_states_total": 0, "notices": [],
    })
}

fn counters(step: u64) -> Value {
    json!({
        "at": 1_764_424_800 + step, "age_seconds": 0, "kernel": {},
        "reasons": {"in_no_state": 2 * step, "in_replay": 4, "out_no_state": 0},
        "tunnels": {"tunnel_in_short": 1},
        "caches": [{
            "worker": 0, "direction": "out", "family": "ipv4", "entries": 12, "room": 1024,
            "bytes": 65_536, "hits": 400 * step, "misses": 12, "stale": 1, "evicted": 0,
            "bypassed": 0,
        }],
        "notices": [],
    })
}

/// A processor of 3 GHz, of which a worker has half a second each second.
fn worker(number: u64, step: u64) -> Value {
    let ns = 10_000_000_000 + step * 1_000_000_000;
    let share = if number == 0 { 1 } else { 0 };
    let way = |packets: u64| {
        json!({
            "received": packets, "received_bytes": packets * 1250, "sent": packets,
            "sent_bytes": packets * 1250, "dropped": 0,
        })
    };
    json!({
        "worker": number, "measured_ns": ns, "cpu_ns": 7 + share * step * 500_000_000,
        "time_stamp": 3 * ns, "turns": 900 * step, "batches": share * 50 * step, "waiting": 0,
        "outbound": way(share * 500 * step), "inbound": way(share * 1000 * step),
        "ports": [
            {"name": "tun", "batches": share * 20 * step, "received": share * 400 * step,
             "sent": share * 1000 * step, "sent_bytes": share * 1_250_000 * step, "refused": 0},
            {"name": "esp4", "batches": share * 30 * step, "received": share * 1000 * step,
             "sent": share * 500 * step, "sent_bytes": share * 650_000 * step, "refused": 3},
        ],
    })
}

fn workers(step: u64) -> Value {
    json!({
        "at": 1_764_424_800 + step, "age_seconds": 0,
        "workers": [worker(0, step), worker(1, step)],
        "devices": [{
            "name": "nic0", "states_in": 1, "states_out": 1,
            "outbound": {"received": 0, "received_bytes": 0, "sent": 8 * step, "sent_bytes": 800 * step, "dropped": 0},
            "inbound": {"received": 0, "received_bytes": 0, "sent": 0, "sent_bytes": 0, "dropped": 0},
        }],
    })
}

fn sample(at: Instant, step: u64) -> Sample {
    let record = json!({
        "number": 7, "at_ms": 1_764_424_800_000_u64, "reason": "in_no_state", "packets": 1,
        "esp": {"spi": "0x00000099", "source": "192.0.2.9", "destination": "192.0.2.1", "sequence": 5},
        "length": 120,
    });
    let record = serde_json::from_value(record).unwrap();
    Sample {
        at,
        status: serde_json::from_value(status(step)).unwrap(),
        counters: serde_json::from_value(counters(step)).unwrap(),
        workers: Some(serde_json::from_value(workers(step)).unwrap()),
        dropped: BTreeMap::from([("in_no_state".to_owned(), record)]),
    }
}
