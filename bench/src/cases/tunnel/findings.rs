//! What the rounds found, by case, and the rows that it comes to.

use serde_json::Map;

use super::goal;
use crate::report::{Case, Row, Sample};

/// A figure's name, its value in one round, and how many decimals are more than noise.
pub(crate) type Figure = (&'static str, f64, i32);

/// All cases, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

#[derive(Debug)]
struct Finding {
    case: Case,
    samples: Vec<(&'static str, Sample, i32)>,
    /// Why it was not measured.
    excuse: Option<String>,
}

impl Findings {
    /// One round more of a case. The first figure is the one whose spread is shown.
    pub(crate) fn note(&mut self, case: &Case, figures: &[Figure]) {
        let at = self.0.iter().position(|finding| finding.case == *case).unwrap_or_else(|| {
            let samples =
                figures.iter().map(|&(name, _, places)| (name, Sample::default(), places));
            let (case, samples) = (case.clone(), samples.collect());
            self.0.push(Finding { case, samples, excuse: None });
            self.0.len() - 1
        });
        for ((_, sample, _), (_, value, _)) in self.0[at].samples.iter_mut().zip(figures) {
            sample.push(*value);
        }
    }

    /// A case that can't be measured on this machine, and why.
    pub(crate) fn excuse(&mut self, case: &Case, reason: &str) {
        if self.0.iter().all(|finding| finding.case != *case) {
            let excuse = Some(reason.to_owned());
            self.0.push(Finding { case: case.clone(), samples: Vec::new(), excuse });
        }
    }

    /// Medians, the first figure's spread, and how they stand to the goals.
    pub(crate) fn into_rows(self) -> Vec<Row> {
        self.0.into_iter().map(Finding::into_row).collect()
    }
}

impl Finding {
    fn into_row(self) -> Row {
        let mut row = Row { case: self.case, figures: Map::new() };
        if let Some(reason) = self.excuse {
            row.figures.insert("note".to_owned(), reason.into());
            return row;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_case_become_one_row_with_its_spread() {
        let mut findings = Findings::default();
        let case = Case::new().with("path", "clear");
        for gbps in [3.0, 1.0, 2.0] {
            findings.note(&case, &[("gbps", gbps, 2), ("rss_mb", gbps * 10.0, 1)]);
            findings.note(&Case::new(), &[("pps", 7.0, 0)]);
        }
        let rows = findings.into_rows();
        assert_eq!(rows.len(), 2);
        let shown: Vec<_> = rows[0].figures.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(shown.len(), 5);
        for figure in ["gbps=2.0", "min=1.0", "max=3.0", "rounds=3", "rss_mb=20.0"] {
            assert!(shown.iter().any(|has| has == figure), "{figure} in {shown:?}");
        }
    }

    #[test]
    fn what_cannot_be_measured_has_a_row_that_says_why() {
        let mut findings = Findings::default();
        let case = Case::new().with("path", "uxfrm-udp").with("test", "tcp1");
        for _round in 0..2 {
            findings.excuse(&case, "not measured: this kernel has no cubic");
        }
        let rows = findings.into_rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].figures["note"], "not measured: this kernel has no cubic");
        assert_eq!(rows[0].figures.len(), 1, "no goal, no figure: {rows:?}");
    }
}
