//! The paths whose instructions `make bench-gate` counts. They use the null transform, so that no
//! crypto library picks its code by the processor.

use anyhow::Context;

use super::ends::{EndWorker, TunnelEnds};
use super::measurement::{Measurement, PacketFate};
use super::plan::{EspCase, EspMode, EspSetup, WINDOW};
use crate::direction::TestDirection;
use crate::report::Case;

/// Packets whose instructions are counted.
pub const PACKETS: usize = 1024;

/// The paths by name: direction, mode, bytes, SAs, batch; `drop` where a policy drops all.
pub const PATHS: &[&str] = &[
    "out-tunnel4-64-1-256",
    "out-tunnel4-64-1-1",
    "out-tunnel4-64-64-256",
    "out-tunnel6-64-1-256",
    "out-transport4-64-1-256",
    "out-tunnel4_udp-64-1-256",
    "in-tunnel4-64-1-256",
    "in-tunnel4-64-1-1",
    "in-tunnel4-64-64-256",
    "in-tunnel6-64-1-256",
    "in-transport4-64-1-256",
    "in-tunnel4_udp-64-1-256",
    "out-tunnel4-64-1-256-drop",
    "in-tunnel4-64-1-256-drop",
];

/// Sends [`PACKETS`] packets down a path within calls of `counted`, after twice as many that are
/// not counted.
///
/// # Errors
/// An unknown path, or SAs that can't be made.
pub fn walk(path: &str) -> anyhow::Result<()> {
    let unknown = || format!("no path \"{path}\": there are {}", PATHS.join(", "));
    let (way, fate) = match path.strip_suffix("-drop") {
        Some(way) => (way, PacketFate::Dropped),
        None => (path, PacketFate::Passed),
    };
    let [direction, mode, bytes, sas, batch] =
        way.split('-').collect::<Vec<_>>().try_into().ok().with_context(unknown)?;
    let mode = mode.replace('_', "-");
    let mode = EspMode::ALL.into_iter().find(|known| known.name() == mode);
    let mode = mode.with_context(unknown)?;
    let transform = uxfrm_crypto::Transform::cipher_auth(None, None)?;
    let setup = EspSetup { name: "null", transform, mode, sas: sas.parse()?, window: WINDOW };
    let direction = if direction == "in" { TestDirection::In } else { TestDirection::Out };
    let (bytes, batch) = (bytes.parse()?, batch.parse()?);
    let esp_case = EspCase { case: Case::new(), direction, bytes, batch, mode, transform };
    let mut ends = TunnelEnds::new(&setup, direction)?;
    if fate == PacketFate::Dropped {
        ends.block()?;
    }
    let mut pair = ends.worker_pair(0..setup.sas)?;
    let mut measurement = Measurement::expecting(esp_case, fate);
    // 8 times as many packets as a flow cache needs to hold its flows.
    measurement.walk(&mut pair, 2 * PACKETS, |measurement, end| {
        measurement.pass(end, direction);
    })?;
    measurement.walk(&mut pair, PACKETS, |measurement, end| {
        counted(measurement, end, direction);
    })
}

/// Callgrind counts inside this function, by its name (`scripts/bench-gate`).
#[inline(never)]
fn counted(measurement: &mut Measurement, end: &mut EndWorker, direction: TestDirection) -> f64 {
    measurement.pass(end, direction)
}

#[cfg(test)]
mod tests {
    use super::PATHS;

    #[test]
    fn gate_file_lists_exactly_the_paths() {
        let lines = include_str!("../../../gate.txt").lines().filter(|line| !line.starts_with('#'));
        let named: Vec<&str> =
            lines.filter_map(|line| line.split_ascii_whitespace().next()).collect();
        assert_eq!(named, PATHS, "scripts/bench-gate --update");
    }
}
