//! The figures of "net: foo-over-udp (fou)" (Tom Herbert, 14 September 2014, "v2 net-next 0/7"):
//! netperf on bnx2x of 10 Gbit/s, TSO and GSO off at the sender; CPU is the receiver's in
//! `TCP_STREAM`.

use crate::report::rows::Row;

/// One tunnel's results: `TCP_STREAM` in Mbit/s and CPU percent; `TCP_RR` in transactions a second,
/// CPU percent, and 90, 95 and 99 % latencies in microseconds.
struct PublishedFou {
    mbps: f64,
    stream_cpu: f64,
    tps: f64,
    rr_cpu: f64,
    latencies: [f64; 3],
}

/// Adds the published figures of the row's case, if there are any. The series has no `rr1`, a
/// single connection.
pub(crate) fn add(row: &mut Row) {
    let value = |key: &str| row.case.value(key).unwrap_or_default();
    let Some(published) = find(&value("tunnel"), &value("encap")) else { return };
    match value("test").as_str() {
        "stream" => {
            row.figure("published_gbps", published.mbps / 1e3, 3);
            row.figure("published_cpu_percent", published.stream_cpu, 2);
        }
        "rr" => {
            row.figure("published_tps", published.tps, 0);
            row.figure("published_cpu_percent", published.rr_cpu, 2);
            for (percent, value) in [90, 95, 99].into_iter().zip(published.latencies) {
                row.figure(&format!("published_p{percent}_us"), value, 0);
            }
        }
        _not_published => {}
    }
}

const fn published(
    (mbps, stream_cpu): (f64, f64),
    (tps, rr_cpu): (f64, f64),
    latencies: [f64; 3],
) -> PublishedFou {
    PublishedFou { mbps, stream_cpu, tps, rr_cpu, latencies }
}

fn find(tunnel: &str, encap: &str) -> Option<PublishedFou> {
    Some(match (tunnel, encap) {
        ("gre", "fou-csum") => published((9310.6, 24.85), (1.17018e6, 94.2), [155.0, 249.0, 460.0]),
        ("gre", "fou") => published((9302.22, 31.04), (1.17555e6, 94.13), [154.0, 239.0, 419.0]),
        ("gre", "none") => published((9354.58, 23.13), (1.18169e6, 90.24), [156.0, 228.0, 360.0]),
        ("ipip", "fou-csum") => {
            published((9328.0, 24.13), (1.19553e6, 94.23), [149.0, 237.0, 429.0])
        }
        ("ipip", "fou") => published((9370.25, 29.13), (1.19225e6, 94.13), [149.0, 232.0, 398.0]),
        ("ipip", "none") => published((5302.03, 10.43), (864_998.0, 51.53), [215.0, 324.0, 475.0]),
        ("sit", "fou-csum") => {
            published((9176.76, 30.38), (1.03372e6, 96.9), [170.0, 281.0, 581.0])
        }
        ("sit", "fou") => published((9176.57, 39.6), (1.03203e6, 97.14), [167.0, 272.0, 548.0]),
        ("sit", "none") => published((4636.05, 11.2), (813_199.0, 59.51), [232.0, 346.0, 489.0]),
        _not_published => return None,
    })
}
