//! The figures: collected, printed as a table, written as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::contender::Kind;
use super::works::{Measured, Work};

/// The contender that everything is compared with.
const YARDSTICK: Kind = Kind::Glusterfs;

/// All measurements of a run.
#[derive(Debug, Default)]
pub struct Report {
    figures: BTreeMap<Work, BTreeMap<Kind, Series>>,
}

/// One contender's figures for one work, one of each for every round.
#[derive(Debug, Default, Serialize)]
struct Series {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
}

impl Report {
    /// Add a measurement.
    pub fn note(&mut self, kind: Kind, work: Work, measured: Measured) {
        let series = self.figures.entry(work).or_default().entry(kind).or_default();
        series.seconds.push(rounded(measured.seconds));
        series.cpu_seconds.push(rounded(measured.cpu_seconds));
    }

    /// A line for each work and contender: seconds, processor seconds, and how many times as fast as GlusterFS.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["work", "contender", "median s", "min s", "max s", "CPU s", "x glusterfs"]);
        for (work, contenders) in &self.figures {
            let yardstick = contenders.get(&YARDSTICK).and_then(|series| median(&series.seconds));
            for (kind, series) in contenders {
                let Some(middle) = median(&series.seconds) else { continue };
                let ratio = yardstick.map_or_else(|| "-".to_owned(), |yardstick| format!("{:.1}", yardstick / middle));
                table.add_row([
                    work.to_string(),
                    kind.to_string(),
                    format!("{middle:.3}"),
                    format!("{:.3}", series.seconds.iter().copied().fold(f64::INFINITY, f64::min)),
                    format!("{:.3}", series.seconds.iter().copied().fold(0.0, f64::max)),
                    format!("{:.2}", median(&series.cpu_seconds).unwrap_or(0.0)),
                    ratio,
                ]);
            }
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// `{"<work>": {"<contender>": {"seconds": [...], "cpu_seconds": [...]}}}`.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let names: BTreeMap<String, BTreeMap<String, &Series>> = self
            .figures
            .iter()
            .map(|(work, contenders)| {
                (work.to_string(), contenders.iter().map(|(kind, series)| (kind.to_string(), series)).collect())
            })
            .collect();
        let text = serde_json::to_string_pretty(&names)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The middle one, or the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// To a tenth of a millisecond: more digits would only look exact.
fn rounded(seconds: f64) -> f64 {
    (seconds * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn the_json_has_works_then_contenders_then_rounds() {
        let mut report = Report::default();
        report.note(Kind::Local, Work::Untar, Measured { seconds: 1.5, cpu_seconds: 0.25 });
        report.note(Kind::Local, Work::Untar, Measured { seconds: 2.5, cpu_seconds: 0.5 });
        let file = tempfile::NamedTempFile::new().unwrap();
        report.write_json(file.path()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(file.path()).unwrap()).unwrap();
        let want = serde_json::json!({"untar": {"local": {"seconds": [1.5, 2.5], "cpu_seconds": [0.25, 0.5]}}});
        assert_eq!(json, want);
    }
}
