//! `uxfrm bench inline`.

use super::report;

#[test]
fn inline_paths_pass_packets_in_both_directions() {
    let Some(report) = report("inline", &[]) else { return };
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 16);
    for row in rows {
        for figure in ["pps", "pps_per_core", "offered_pps"] {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {row}");
        }
    }
}
