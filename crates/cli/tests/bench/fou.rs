//! `uxfrm bench fou`.

use serde_json::Value;

use super::report;

#[test]
fn fou_rows_have_measured_and_published_figures() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("fou.html");
    let page_option = ["--html".as_ref(), page.as_os_str()];
    let Some(report) = report("fou", &page_option) else { return };
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 36);
    for row in rows {
        let of_stream = ["gbps", "cpu_s_per_gb"].as_slice();
        let of_requests =
            ["tps", "p90_us", "p95_us", "p99_us", "cpu_us_per_transaction"].as_slice();
        let figures = if row["case"]["test"] == "stream" { of_stream } else { of_requests };
        for figure in figures.iter().chain(&["time_against_none"]) {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {row}");
        }
        let (encap, test) = (&row["case"]["encap"], &row["case"]["test"]);
        assert_eq!(row["published_cpu_percent"].is_number(), encap != "gue" && test != "rr1");
        assert_eq!(row["goal"].is_string(), encap == "fou" || encap == "fou-csum");
    }
    let is_ours =
        |row: &&Value| row["case"]["tunnel"] == "gre" && row["case"]["encap"] == "fou-csum";
    let published: Vec<_> = rows
        .iter()
        .filter(is_ours)
        .filter_map(|row| row["published_gbps"].as_f64().or_else(|| row["published_tps"].as_f64()))
        .collect();
    assert_eq!(published, [9.311, 1_170_180.0]);
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 3);
    assert_eq!(page.matches("<rect").count(), 36 + 18);
}
