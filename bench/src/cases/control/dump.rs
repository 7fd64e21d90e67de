//! Dumps of policies and states, datagram by datagram. The control thread does nothing else while
//! it makes one, so the longest is the time that another client may have to wait. Each datagram
//! counts with its shortest time of several rounds.

use std::time::Instant;

use uxfrm_engine::Moment;
use uxfrm_netlink::{ClientId, Groups, SocketOptions};

use super::{InProcessServer, MakeRequest, message, new_sa, policy};
use crate::BenchOptions;
use crate::report::{Case, Row, Samples};

const COUNTS: [u32; 3] = [1000, 100_000, 1_000_000];
/// Changes that are published together while the database is filled.
const TURN: u32 = 4096;
const ROUNDS: usize = 9;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP_FLAGS: [u8; 2] = 0x301_u16.to_ne_bytes();

/// `XFRMA_PROTO` of AH, which no state has.
const AH_ONLY: &[u8] = &[5, 0, 25, 0, 51, 0, 0, 0];

/// A dump of many objects of one kind.
#[derive(Clone, Copy)]
pub(super) struct Dump {
    object: &'static str,
    /// The request that adds an object.
    add: MakeRequest,
    /// The message type of the dump request.
    kind: u16,
    /// Its body.
    filter: &'static [u8],
    /// Whether the dump shows all objects, or none.
    shows_all: bool,
}

const DUMPS: [Dump; 3] = [
    Dump {
        object: "policies",
        add: |nth| policy(0x13, nth),
        kind: 0x15,
        filter: &[0; 64],
        shows_all: true,
    },
    Dump { object: "states", add: new_sa, kind: 0x12, filter: &[0; 24], shows_all: true },
    Dump { object: "states of others", add: new_sa, kind: 0x12, filter: AH_ONLY, shows_all: false },
];

/// The dumps that the options leave.
pub(super) fn wanted(options: &BenchOptions) -> Vec<(Case, u32, Dump)> {
    let dumps = DUMPS.into_iter().flat_map(|dump| {
        let counts = COUNTS.into_iter().filter(|count| !options.quick || *count <= 1000);
        counts.map(move |count| {
            (Case::new().with("count", count).with("dump", dump.object), count, dump)
        })
    });
    dumps.filter(|(case, ..)| options.only.admits(case)).collect()
}

/// One row for each dump.
///
/// # Errors
/// A request that is refused, and a dump that does not show all.
pub(super) fn run(wanted: Vec<(Case, u32, Dump)>) -> anyhow::Result<Vec<Row>> {
    let rows = wanted.into_iter().map(|(case, count, dump)| {
        let mut server = InProcessServer::new(0, TURN);
        (0..count).try_for_each(|nth| server.request(&(dump.add)(nth)))?;
        let mut request = message(dump.kind, dump.filter);
        request[6..8].copy_from_slice(&DUMP_FLAGS);
        measure(case, &mut server, &request, if dump.shows_all { count } else { 0 })
    });
    rows.collect()
}

fn measure(
    case: Case,
    server: &mut InProcessServer,
    request: &[u8],
    expected: u32,
) -> anyhow::Result<Row> {
    // Other load on the machine delays some datagrams, but hardly the same one in every round.
    let mut quickest: Vec<f64> = Vec::new();
    for _ in 0..ROUNDS {
        let (parts, shown) = dump(server, request);
        anyhow::ensure!(shown == expected, "a dump of {expected} shows {shown}");
        quickest.resize(parts.len(), f64::INFINITY);
        quickest
            .iter_mut()
            .zip(&parts)
            .for_each(|(quickest, part)| *quickest = part.min(*quickest));
    }
    let mut each = Samples::default();
    quickest.iter().for_each(|micros| each.push(*micros));
    let mut row = Row { case, figures: serde_json::Map::new() };
    row.figure("us_per_datagram", each.median(), 2);
    row.figure("longest_us", each.max(), 1);
    row.figures.insert("datagrams".to_owned(), each.rounds().into());
    row.figures.insert("rounds".to_owned(), ROUNDS.into());
    Ok(row)
}

/// Microseconds of each datagram, the first with its request, and how many objects they showed.
fn dump(server: &mut InProcessServer, request: &[u8]) -> (Vec<f64>, u32) {
    let InProcessServer { server, database, out, .. } = server;
    let client = ClientId { connection: 1, port: 4711 };
    server.join(client, Groups::empty(), SocketOptions::EXT_ACK);
    let (mut parts, mut shown) = (Vec::new(), 0);
    let mut from = Instant::now();
    server.handle(client, request, database, Moment(0), out);
    loop {
        parts.push(from.elapsed().as_secs_f64() * 1e6);
        shown += out.drain().map(|delivery| shown_by(delivery.datagram.bytes())).sum::<u32>();
        if !server.is_dumping(client) {
            break;
        }
        from = Instant::now();
        server.resume(client, database, out);
    }
    server.leave(client);
    (parts, shown)
}

/// Messages of a datagram other than `NLMSG_DONE`.
fn shown_by(mut datagram: &[u8]) -> u32 {
    let mut shown = 0;
    while let [a, b, c, d, kind @ ..] = datagram {
        let len = usize::try_from(u32::from_ne_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
        shown += u32::from(!kind.starts_with(&3_u16.to_ne_bytes()));
        datagram = datagram.get(len.max(16).next_multiple_of(4)..).unwrap_or_default();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_shows_every_policy() {
        let options = BenchOptions {
            quick: true,
            only: "dump=policies".parse().unwrap(),
            ..BenchOptions::default()
        };
        let rows = run(wanted(&options)).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(rows[0].figures["longest_us"].as_f64().unwrap() > 0.0);
    }
}
