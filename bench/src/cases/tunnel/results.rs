//! Figures of each case over all rounds, and the rows made of them.

use serde_json::Map;

use super::goal;
use crate::report::{Case, Row, Samples};

/// A figure's name, its value in one round, and how many decimals are more than noise.
pub(crate) type Figure = (&'static str, f64, i32);

/// All cases, in the order in which they were first recorded.
#[derive(Debug, Default)]
pub(crate) struct CaseResults(Vec<CaseResult>);

#[derive(Debug)]
struct CaseResult {
    case: Case,
    samples: Vec<(&'static str, Samples, i32)>,
    /// Why it was not measured.
    unmeasured: Option<String>,
}

impl CaseResults {
    /// Adds a round of a case. The row shows the spread of the first figure.
    pub(crate) fn record(&mut self, case: &Case, figures: &[Figure]) {
        let at = self.0.iter().position(|result| result.case == *case).unwrap_or_else(|| {
            let samples =
                figures.iter().map(|&(name, _, places)| (name, Samples::default(), places));
            let (case, samples) = (case.clone(), samples.collect());
            self.0.push(CaseResult { case, samples, unmeasured: None });
            self.0.len() - 1
        });
        for ((_, sample, _), (_, value, _)) in self.0[at].samples.iter_mut().zip(figures) {
            sample.push(*value);
        }
    }

    /// Whether [`record_unmeasured`](Self::record_unmeasured) was called for this case.
    pub(crate) fn is_unmeasured(&self, case: &Case) -> bool {
        self.0.iter().any(|result| result.case == *case && result.unmeasured.is_some())
    }

    /// Adds a case that can't be measured, and why; only the first reason counts.
    pub(crate) fn record_unmeasured(&mut self, case: &Case, reason: &str) {
        if self.0.iter().all(|result| result.case != *case) {
            let unmeasured = Some(reason.to_owned());
            self.0.push(CaseResult { case: case.clone(), samples: Vec::new(), unmeasured });
        }
    }

    /// Rows with medians, the first figure's spread, and whether goals are met.
    pub(crate) fn into_rows(self) -> Vec<Row> {
        self.0.into_iter().map(CaseResult::into_row).collect()
    }
}

impl CaseResult {
    fn into_row(self) -> Row {
        if let Some(reason) = self.unmeasured {
            return unmeasured(self.case, &reason);
        }
        let mut row = Row { case: self.case, figures: Map::new() };
        for (nth, (name, sample, places)) in self.samples.iter().enumerate() {
            row.figure(name, sample.median(), *places);
            if nth == 0 {
                row.figure("min", sample.min(), *places);
                row.figure("max", sample.max(), *places);
                row.figures.insert("rounds".to_owned(), sample.rounds().into());
            }
        }
        if let Some(verdict) = goal::verdict(&row) {
            row.figures.insert("goal".to_owned(), verdict.into());
        }
        row
    }
}

/// A row with a note instead of figures.
pub(crate) fn unmeasured(case: Case, reason: &str) -> Row {
    let mut row = Row { case, figures: Map::new() };
    row.figures.insert("note".to_owned(), reason.into());
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_case_make_one_row_with_spread() {
        let mut results = CaseResults::default();
        let case = Case::new().with("path", "clear");
        for gbps in [3.0, 1.0, 2.0] {
            results.record(&case, &[("gbps", gbps, 2), ("rss_mb", gbps * 10.0, 1)]);
            results.record(&Case::new(), &[("pps", 7.0, 0)]);
        }
        let rows = results.into_rows();
        assert_eq!(rows.len(), 2);
        let shown: Vec<_> = rows[0].figures.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(shown.len(), 5);
        for figure in ["gbps=2.0", "min=1.0", "max=3.0", "rounds=3", "rss_mb=20.0"] {
            assert!(shown.iter().any(|has| has == figure), "{figure} in {shown:?}");
        }
    }

    #[test]
    fn unmeasured_case_has_row_with_the_reason() {
        let mut results = CaseResults::default();
        let case = Case::new().with("path", "uxfrm-udp").with("test", "tcp1");
        for _round in 0..2 {
            results.record_unmeasured(&case, "not measured: this kernel has no cubic");
        }
        let rows = results.into_rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].figures["note"], "not measured: this kernel has no cubic");
        assert_eq!(rows[0].figures.len(), 1, "no goal, no figure: {rows:?}");
    }
}
