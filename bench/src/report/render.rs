//! Writes a report as a text table, as JSON, as an HTML page, or as an SVG picture of its curves.

use std::fmt::Write as _;
use std::io::Write;

use super::published::lookup;
use super::rows::{BenchReport, Machine, Row, shown};
use super::{bars, curves};

impl BenchReport {
    /// The JSON object.
    ///
    /// # Errors
    /// None is known: every key is a string.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// Writes a text table, one line a row.
    ///
    /// # Errors
    /// Writing to `out`.
    pub fn table(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{}", self.heading())?;
        let (names, lines) = self.cells();
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].len());
            cells.chain([names[column].len()]).max().unwrap_or(0)
        };
        for line in std::iter::once(&names).chain(&lines) {
            let padded: Vec<String> = line
                .iter()
                .enumerate()
                .map(|(column, cell)| format!("{cell:>width$}", width = width(column)))
                .collect();
            writeln!(out, "{}", padded.join("  ").trim_end())?;
        }
        if self.bench == "lookup" {
            write!(out, "{}", lookup::text(self))?;
        }
        Ok(())
    }

    /// A self-contained HTML page with the table.
    #[must_use]
    pub fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>uxfrm bench {0}</title>\n<style>{STYLE}</style>\n\
             <h1>uxfrm bench {0}</h1>\n<p>{1}</p>\n",
            self.bench,
            escaped(&self.heading()),
        );
        if self.bench == "lookup" {
            page.push_str(LOOKUP);
            page.extend(curves::figures(self));
            page.push_str(&lookup::html(self));
            let _ = write!(page, "<details><summary>All {} rows</summary>", self.rows.len());
            page.push_str(&self.html_table());
            page.push_str("</details>\n");
        } else {
            match self.bench {
                "fou" => page.extend(bars::fou::figures(self)),
                "tunnel" => page.push_str(&bars::tunnel::html(self)),
                "offload" => page.push_str(&bars::offload::html(self)),
                _ => {}
            }
            page.push_str(&self.html_table());
        }
        page
    }

    /// Only the curves, as one picture.
    ///
    /// # Errors
    /// If this bench draws none, or there are too few rows for a curve.
    pub fn svg(&self) -> anyhow::Result<String> {
        if self.bench != "lookup" || curves::figures(self).is_empty() {
            anyhow::bail!("bench {} has no curves of these rows: name an .html file", self.bench);
        }
        Ok(curves::file(self))
    }

    fn html_table(&self) -> String {
        let (names, lines) = self.cells();
        let row = |tag: &str, cells: &[String]| {
            let cells: String =
                cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let mut table = String::from("<table>\n");
        table.push_str(&row(
            "th",
            &names.iter().map(|name| name.replace('_', " ")).collect::<Vec<_>>(),
        ));
        for line in &lines {
            table.push_str(&row("td", line));
        }
        table.push_str("</table>\n");
        table
    }

    fn heading(&self) -> String {
        let Machine { cpu, cores, tsc_hz, kernel } = &self.machine;
        let mut line = format!("{cpu}, {cores} cores, TSC {:.0} MHz, Linux {kernel}", tsc_hz / 1e6);
        if cfg!(debug_assertions) {
            let _ = write!(line, "; a debug build: no figures"); // writing to a string cannot fail
        }
        line
    }

    /// Column names and cells; a figure that a row lacks is an empty cell.
    fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut names: Vec<String> = Vec::new();
        for row in &self.rows {
            for name in row.case.keys().chain(row.figures.keys().map(String::as_str)) {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
        }
        let cell = |row: &Row, name: &String| {
            row.case.raw(name).or_else(|| row.figures.get(name)).map_or_else(String::new, shown)
        };
        let lines = self
            .rows
            .iter()
            .map(|row| names.iter().map(|name| cell(row, name)).collect())
            .collect();
        (names, lines)
    }
}

const STYLE: &str = "body{font:15px system-ui,sans-serif;margin:2em;color:#1f2328}svg{max-width:100%;height:auto;display:block;margin:1em 0}\
                     table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .7em;text-align:right;white-space:nowrap}\
                     th{font-weight:600}tr:nth-child(even){background:#f6f8fa}summary{cursor:pointer;margin:1.5em 0 .5em}details{overflow-x:auto}p{max-width:60em}";

const LOOKUP: &str = "<p>Cycles of the time-stamp counter for each packet: parsing, finding the policies, reading the verdict. Each figure is \
                      the median of its rounds; the rounds of all caches take turns.</p>\n";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::report::{Case, Samples};

    fn report() -> BenchReport {
        let mut sample = Samples::default();
        for cycles in [300.0, 200.0, 250.0] {
            sample.push(cycles);
        }
        let case = Case::new().with("op", "seal").with("bytes", 1000);
        let machine =
            Machine { cpu: "a<b".to_owned(), cores: 2, tsc_hz: 2e9, kernel: "6.1".to_owned() };
        BenchReport {
            bench: "crypto",
            machine,
            rows: vec![Row::of_packets(case, &sample, 1000, 2e9)],
        }
    }

    #[test]
    fn json_has_the_published_shape() {
        let json: Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        let row = &json["rows"][0];
        assert_eq!(json["bench"], "crypto");
        assert_eq!(json["machine"]["tsc_hz"], 2e9);
        assert_eq!((&row["case"]["op"], &row["case"]["bytes"]), (&"seal".into(), &1000.into()));
        assert_eq!(
            (&row["cycles_per_packet"], &row["min"], &row["max"]),
            (&250.0.into(), &200.0.into(), &300.0.into())
        );
        assert_eq!(
            (&row["mpps"], &row["gbps"], &row["rounds"]),
            (&8.0.into(), &64.0.into(), &3.into())
        );
    }

    #[test]
    fn table_and_page_show_every_cell() {
        let mut table = Vec::new();
        report().table(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let page = report().html();
        for cell in ["op", "seal", "1000", "250.0", "64.0"] {
            assert!(table.contains(cell) && page.contains(cell), "{cell}");
        }
        assert!(page.contains("a&lt;b"));
    }
}
