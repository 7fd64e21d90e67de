//! `uxfrm bench esp`: cycles per packet of the whole data path in memory, beside the crypto library
//! alone.
//!
//! A round is 4,096 packets, which use the SAs in turn. 256 packets at a time wait in a port in
//! memory, warm as from a network card. Batch by batch they are received, processed by a
//! [`Worker`](uxfrm_engine::Worker), and transmitted to a port in memory. Then the floor is
//! measured on the same packets in the same buffers: only the crypto library's calls, or a copy for
//! the null transform. A round's figure is the median over its groups of 256, so that other load on
//! the machine does not count.

mod ends;
pub mod gate;
mod measurement;
mod plan;
pub mod workers;

use crate::BenchOptions;
use crate::clock::TscClock;
use crate::direction::TestDirection;
use crate::report::{BenchReport, Machine, Row};
use ends::TunnelEnds;
use measurement::{Baseline, Measurement};
use plan::EspSetup;

pub use plan::EspMode;

/// Packets of a round.
const ROUND: usize = 4096;

/// Measures what the options leave. By default all sizes and transforms are combined; more SAs,
/// other modes and other batches are shown for 64 and 1400 bytes of AES-GCM.
///
/// # Errors
/// SAs or keys that can't be made, or a packet that did not come through.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let (rounds, steps) = if options.quick { (2, 2) } else { (15, ROUND / crate::ring::ROOM) };
    let clock = TscClock::calibrate();
    let mut rows = Vec::new();
    let setups = plan::setups(options)?;
    options.ensure_all_values_select()?;
    for setup in setups {
        for direction in TestDirection::BOTH {
            let cases = setup.cases(options).into_iter().filter(|case| case.direction == direction);
            let measurement =
                if options.stages { Measurement::by_stages } else { Measurement::new };
            let mut measurements: Vec<Measurement> = cases.map(measurement).collect();
            if !measurements.is_empty() {
                measure(&setup, direction, &mut measurements, (rounds, steps))?;
            }
            rows.extend(
                measurements.into_iter().map(|measurement| -> Row { measurement.row(clock.hz()) }),
            );
        }
    }
    Ok(BenchReport { bench: "esp", machine: Machine::here(clock.hz()), rows })
}

/// Runs the rounds of all measurements of one direction in turn.
fn measure(
    setup: &EspSetup,
    direction: TestDirection,
    measurements: &mut [Measurement],
    (rounds, steps): (usize, usize),
) -> anyhow::Result<()> {
    let mut pair = TunnelEnds::new(setup, direction)?.worker_pair(0..setup.sas)?;
    let mut baseline = Baseline::new(setup)?;
    // Flow caches hold all flows after the flows' second packets; those of many flows may first
    // have to grow twice.
    let warm = if setup.sas > crate::ring::ROOM { 16 } else { 3 };
    // With many SAs a round ends where the flows begin again.
    let steps = if setup.sas > crate::ring::ROOM { ROUND / crate::ring::ROOM } else { steps };
    for round in 0..warm + rounds {
        for measurement in &mut *measurements {
            measurement.round(&mut pair, &mut baseline, steps)?;
            if round < warm {
                measurement.forget();
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
        run(&BenchOptions { only, quick: true, stages: true, ..BenchOptions::default() })
            .unwrap()
            .rows
    }

    #[test]
    fn every_mode_passes_packets_in_both_directions() {
        let rows = rows(
            "transform=gcm128,bytes=64,sas=1,batch=64,mode=transport4,mode=transport6,mode=tunnel4,mode=tunnel6,\
             mode=transport4-udp,mode=tunnel4-udp,mode=tunnel6-udp",
        );
        assert_eq!(rows.len(), 2 * EspMode::ALL.len());
        for row in &rows {
            assert!(row.figures["cycles_per_packet"].as_f64().unwrap() > 0.0);
            assert!(row.figures["floor_cycles"].as_f64().unwrap() > 0.0);
        }
    }

    /// Many SAs in transport mode take the slow path in both directions.
    #[test]
    fn slow_path_has_cycles_of_every_stage() {
        for row in rows("transform=null,bytes=64,sas=64,batch=256,mode=transport4") {
            let stages: Vec<&str> = row.stages().map(|(name, _)| name).collect();
            let expected = ["look_up", "port_in", "port_out"].map(|name| format!("stage_{name}"));
            assert!(expected.iter().all(|name| stages.contains(&name.as_str())), "{stages:?}");
            assert!(stages.len() > 7 && row.stages().all(|(_, cycles)| cycles > 0.0));
        }
    }

    #[test]
    fn gate_walks_every_path_and_refuses_unknown_ones() {
        for path in gate::PATHS {
            gate::walk(path).unwrap();
        }
        assert!(gate::walk("out-tunnel5-64-1-1").is_err());
    }

    #[test]
    fn every_transform_has_a_row() {
        let rows = rows("bytes=64,sas=1,batch=64,mode=tunnel4,direction=in");
        assert_eq!(rows.len(), uxfrm_crypto::Transform::COMMON.len());
    }
}
