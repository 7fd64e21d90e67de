//! What `make bench-gate` counts the instructions of: fixed paths, with the null transform, so that no crypto library chooses its way by the
//! processor.

use anyhow::Context;

use super::gateways::{Gateway, Sites};
use super::plan::{Scene, Shape, Variant, WINDOW, Way};
use super::trial::Trial;
use crate::report::Case;

/// Packets whose instructions are counted.
pub const PACKETS: usize = 1024;

/// The paths by name: direction, mode, bytes, SAs, batch.
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
];

/// Sends [`PACKETS`] packets down a path, within calls of `counted`; twice as many before, which are not counted.
///
/// # Errors
/// An unknown path, or what making its states has.
pub fn walk(path: &str) -> anyhow::Result<()> {
    let unknown = || format!("no path \"{path}\": there are {}", PATHS.join(", "));
    let [direction, mode, bytes, sas, batch] =
        path.split('-').collect::<Vec<_>>().try_into().ok().with_context(unknown)?;
    let mode = mode.replace('_', "-");
    let shape = Shape::ALL.into_iter().find(|shape| shape.name() == mode);
    let shape = shape.with_context(unknown)?;
    let transform = uxfrm_crypto::Transform::cipher_auth(None, None)?;
    let scene = Scene { name: "null", transform, shape, sas: sas.parse()?, window: WINDOW };
    let way = if direction == "in" { Way::In } else { Way::Out };
    let (bytes, batch) = (bytes.parse()?, batch.parse()?);
    let variant = Variant { case: Case::new(), way, bytes, batch, shape, transform };
    let mut gateways = Sites::new(&scene, way)?.gateways(0..scene.sas)?;
    let mut trial = Trial::new(variant);
    // 8 times as many packets as a flow cache needs to know its flows.
    trial.walk(&mut gateways, 2 * PACKETS, |trial, gateway| {
        trial.pass(gateway, way);
    })?;
    trial.walk(&mut gateways, PACKETS, |trial, gateway| {
        counted(trial, gateway, way);
    })
}

/// Under this name callgrind counts (`scripts/bench-gate`).
#[inline(never)]
fn counted(trial: &mut Trial, gateway: &mut Gateway, way: Way) -> f64 {
    trial.pass(gateway, way)
}

#[cfg(test)]
mod tests {
    use super::PATHS;

    #[test]
    fn each_path_has_its_figure_and_each_figure_its_path() {
        let lines = include_str!("../../../gate.txt").lines().filter(|line| !line.starts_with('#'));
        let named: Vec<&str> =
            lines.filter_map(|line| line.split_ascii_whitespace().next()).collect();
        assert_eq!(named, PATHS, "scripts/bench-gate --update");
    }
}
