//! Published figures of ESP offload: Gbit/s of many TCP streams ("Extend XFRM core to allow packet
//! offload configuration", v9: ConnectX-6 Dx, Xeon 8380), and a lock manager's messages
//! ("Niantic": 82599, 10 Gbit/s).

use crate::report::rows::Row;

/// Figures of one path.
struct PublishedOffload {
    path: &'static str,
    /// Gbit/s on one processor and on two.
    gbps: [f64; 2],
    /// Messages a second, and microseconds of each; the 82599 had no packet offload.
    messages: Option<[f64; 2]>,
}

const PUBLISHED: [PublishedOffload; 4] = [
    PublishedOffload { path: "clear", gbps: [27.9, 59.0], messages: Some([1272.0, 394.0]) },
    PublishedOffload { path: "software", gbps: [6.0, 11.9], messages: Some([597.0, 839.0]) },
    PublishedOffload { path: "crypto", gbps: [15.0, 29.7], messages: Some([1246.0, 402.0]) },
    PublishedOffload { path: "packet", gbps: [28.0, 57.0], messages: None },
];

/// Adds the published figures of the row's case; those of TCP streams go to super-packets.
pub(crate) fn add(row: &mut Row) {
    let value = |key: &str| row.case.value(key).unwrap_or_default();
    let (test, path, workers) = (value("test"), value("path"), value("workers"));
    let found = PUBLISHED.into_iter().find(|published| published.path == path);
    let Some(PublishedOffload { gbps, messages, .. }) = found else { return };
    match (test.as_str(), value("bytes").as_str(), workers.as_str(), messages) {
        ("forward", "tso", "1", _) => row.figure("published_gbps", gbps[0], 1),
        ("forward", "tso", "2", _) => row.figure("published_gbps", gbps[1], 1),
        ("lock-manager", _, _, Some([messages, latency])) => {
            row.figure("published_messages_per_s", messages, 0);
            row.figure("published_us", latency, 0);
        }
        _not_published => {}
    }
}
