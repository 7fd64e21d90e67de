//! The project's goals for each row.

use crate::report::Row;

/// A figure and its bound.
#[derive(Clone, Copy, Debug)]
struct Goal {
    figure: &'static str,
    bound: Bound,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

use Bound::{AtLeast, AtMost};

/// The row's `goal` text: which goals are met or missed; `None` where there are none.
pub(crate) fn verdict(row: &Row) -> Option<String> {
    let goals = goals(row);
    if goals.is_empty() {
        return None;
    }
    let misses: Vec<_> = goals.iter().filter(|goal| !goal.is_met(row)).map(Goal::text).collect();
    if misses.is_empty() {
        return Some(format!(
            "met: {}",
            goals.iter().map(Goal::text).collect::<Vec<_>>().join(", ")
        ));
    }
    Some(format!("MISSED: {}", misses.join(", ")))
}

impl Goal {
    fn is_met(&self, row: &Row) -> bool {
        let value = row.figures.get(self.figure).and_then(serde_json::Value::as_f64);
        value.is_some_and(|value| match self.bound {
            AtLeast(least) => value >= least,
            AtMost(most) => value <= most,
        })
    }

    fn text(&self) -> String {
        match self.bound {
            AtLeast(least) => format!("{} ≥ {least}", self.figure),
            AtMost(most) => format!("{} ≤ {most}", self.figure),
        }
    }
}

/// Packet order is a goal with any number of workers. All other goals are for AES-GCM-128 and one
/// worker: 12 Gbit/s where super-packets stay whole, 6 where each frame travels alone, as raw ESP
/// always does.
fn goals(row: &Row) -> Vec<Goal> {
    let is = |key: &str, value: &str| row.case.value(key).as_deref() == Some(value);
    let whole = is("path", "uxfrm-udp") && is("frames", "super");
    let goal = |figure, bound| Goal { figure, bound };
    let tcp = || {
        let mut goals = vec![goal("gbps", AtLeast(if whole { 12.0 } else { 6.0 }))];
        if whole {
            goals.push(goal("cpu_s_per_gb", AtMost(1.2)));
        }
        goals.push(goal("rss_mb", AtMost(64.0)));
        goals
    };
    let order = goal("out_of_order", AtMost(0.0));
    let test = row.case.value("test").unwrap_or_default();
    let load = row.case.value("load").unwrap_or_default();
    if row.case.value("workers").is_none() {
        return Vec::new();
    }
    if !is("transform", "gcm128") || !is("workers", "1") {
        return if test.starts_with("udp") { vec![order] } else { Vec::new() };
    }
    match (test.as_str(), load.as_str()) {
        ("tcp1" | "tcp4", _) => tcp(),
        ("udp64", "160k") => vec![goal("loss_percent", AtMost(1.0)), order],
        ("udp64", "peak") => vec![goal("kpps", AtLeast(300.0)), order],
        ("udp64", "2xpeak") => {
            vec![goal("percent_of_peak", AtLeast(95.0)), goal("rss_mb", AtMost(64.0)), order]
        }
        ("udp1300", _) => vec![order],
        ("rtt", "idle") => vec![goal("rtt_us", AtMost(200.0))],
        ("rtt", "tcp1") => vec![goal("rtt_us", AtMost(1000.0))],
        _no_goal => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::report::Case;

    fn row(path: &str, frames: &str, gbps: f64) -> Row {
        let case = Case::new().with("path", path).with("transform", "gcm128").with("workers", 1);
        let case = case.with("frames", frames).with("test", "tcp1");
        let mut row = Row { case, figures: Map::new() };
        row.figure("gbps", gbps, 2);
        row.figure("cpu_s_per_gb", 1.0, 2);
        row.figure("rss_mb", 30.0, 1);
        row
    }

    #[test]
    fn verdict_names_goals_met_and_missed() {
        let verdict = |path, frames, gbps| verdict(&row(path, frames, gbps)).unwrap();
        assert_eq!(
            verdict("uxfrm-udp", "super", 12.0),
            "met: gbps ≥ 12, cpu_s_per_gb ≤ 1.2, rss_mb ≤ 64"
        );
        assert_eq!(verdict("uxfrm-udp", "super", 11.9), "MISSED: gbps ≥ 12");
        assert_eq!(verdict("uxfrm-udp", "1500", 11.9), "met: gbps ≥ 6, rss_mb ≤ 64");
        assert_eq!(verdict("uxfrm-esp", "super", 5.9), "MISSED: gbps ≥ 6");
    }

    #[test]
    fn clear_path_has_no_goals() {
        let clear = Row { case: Case::new().with("path", "clear"), figures: Map::new() };
        assert_eq!(verdict(&clear), None);
    }
}
