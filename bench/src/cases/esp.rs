//! `uxfrm bench esp`: cycles per packet of the whole data path in memory, beside the crypto library alone.
//!
//! A round is 4,096 packets of as many SAs in turn. 256 of them wait in a port in memory, warm as from a network
//! card; batch by batch they are received, walk through a [`Worker`](uxfrm_engine::Worker), and are transmitted to a port in
//! memory. Then the floor is measured with the same packets in the same buffers: the crypto library's calls and nothing else, or for the
//! null transform a copy. A round's figure is the median over its 256s, so that what else runs on the machine does not count.

pub mod gate;
mod gateways;
mod plan;
mod trial;
pub mod workers;

use crate::Options;
use crate::clock::TscClock;
use crate::report::{Machine, Report, Row};
use gateways::Sites;
use plan::{Scene, Way};
use trial::{Trial, Yardstick};

pub use plan::Shape;

/// Packets of a round.
const ROUND: usize = 4096;

/// Measures what the options leave. Without a word about them, sizes are combined with transforms; more SAs, other modes and other batches are
/// shown for 64 and 1400 bytes of AES-GCM.
///
/// # Errors
/// What making states and keys has, or a packet that did not come through, which no figure would excuse.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let (rounds, steps) = if options.quick { (2, 2) } else { (15, ROUND / crate::ring::ROOM) };
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    let scenes = plan::scenes(options)?;
    options.ensure_all_values_select()?;
    for scene in scenes {
        for way in [Way::Out, Way::In] {
            let cases = scene.cases(options).into_iter().filter(|case| case.way == way);
            let trial = if options.stages { Trial::by_stages } else { Trial::new };
            let mut trials: Vec<Trial> = cases.map(trial).collect();
            if !trials.is_empty() {
                measure(&scene, way, &mut trials, (rounds, steps))?;
            }
            rows.extend(trials.into_iter().map(|trial| -> Row { trial.row(clock.hz()) }));
        }
    }
    Ok(Report { bench: "esp", machine: Machine::here(clock.hz()), rows })
}

/// So many rounds of all trials of a way in turn.
fn measure(
    scene: &Scene,
    way: Way,
    trials: &mut [Trial],
    (rounds, steps): (usize, usize),
) -> anyhow::Result<()> {
    let mut gateways = Sites::new(scene, way)?.gateways(0..scene.sas)?;
    let mut yardstick = Yardstick::new(scene)?;
    // The flow caches know all flows after their second packets, and those of many once they have taken more room, perhaps twice.
    let warm = if scene.sas > crate::ring::ROOM { 16 } else { 3 };
    // A round ends where the flows begin anew.
    let steps = if scene.sas > crate::ring::ROOM { ROUND / crate::ring::ROOM } else { steps };
    for round in 0..warm + rounds {
        for trial in &mut *trials {
            trial.round(&mut gateways, &mut yardstick, steps)?;
            if round < warm {
                trial.forget();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(only: &str) -> Vec<Row> {
        let only = only.parse().unwrap();
        run(&Options { only, quick: true, stages: true, ..Options::default() }).unwrap().rows
    }

    #[test]
    fn every_mode_carries_packets_both_ways() {
        let rows = rows(
            "transform=gcm128,bytes=64,sas=1,batch=64,mode=transport4,mode=transport6,mode=tunnel4,mode=tunnel6,\
             mode=transport4-udp,mode=tunnel4-udp,mode=tunnel6-udp",
        );
        assert_eq!(rows.len(), 2 * Shape::ALL.len());
        for row in &rows {
            assert!(row.figures["cycles_per_packet"].as_f64().unwrap() > 0.0);
            assert!(row.figures["floor_cycles"].as_f64().unwrap() > 0.0);
        }
    }

    /// Of the long way, which many states in transport mode take both ways.
    #[test]
    fn every_stage_of_a_way_is_timed() {
        for row in rows("transform=null,bytes=64,sas=64,batch=256,mode=transport4") {
            let stages: Vec<&str> = row.stages().map(|(name, _)| name).collect();
            let expected = ["look_up", "port_in", "port_out"].map(|name| format!("stage_{name}"));
            assert!(expected.iter().all(|name| stages.contains(&name.as_str())), "{stages:?}");
            assert!(stages.len() > 7 && row.stages().all(|(_, cycles)| cycles > 0.0));
        }
    }

    #[test]
    fn every_path_of_the_gate_can_be_walked() {
        for path in gate::PATHS {
            gate::walk(path).unwrap();
        }
        assert!(gate::walk("out-tunnel5-64-1-1").is_err());
    }

    #[test]
    fn every_transform_has_a_floor() {
        let rows = rows("bytes=64,sas=1,batch=64,mode=tunnel4,direction=in");
        assert_eq!(rows.len(), crate::cases::crypto::transforms().unwrap().len());
    }
}
