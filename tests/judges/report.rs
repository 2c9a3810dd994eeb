//! What a judge found.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

/// A judge's findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How many things were looked at.
    pub checks: usize,
    /// What was wrong: the name of the case, and what was seen.
    pub failures: BTreeMap<String, String>,
    /// What could not be looked at: the name of the case, and why.
    pub skipped: BTreeMap<String, String>,
    /// A fact for the line that a person reads, such as the seed.
    pub note: String,
}

impl Report {
    /// Note how one case came out.
    pub fn case<T, E: Display>(&mut self, name: &str, outcome: Result<T, E>) {
        self.checks += 1;
        if let Err(error) = outcome {
            self.failures.insert(name.to_owned(), format!("{error:#}"));
        }
    }

    /// What is left when the cases are taken away that fail on the control as well.
    pub fn less(mut self, control: &Self) -> Self {
        self.failures.retain(|case, _| !control.failures.contains_key(case));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_on_the_control_is_not_held_against_a_mount() {
        let mut control = Report::default();
        control.case::<(), _>("chflags", Err("not here"));
        let mut report = Report::default();
        report.case::<(), _>("chflags", Err("not there"));
        report.case::<(), _>("rename", Err("EINVAL"));
        let left = report.less(&control);
        assert_eq!(left.failures.keys().collect::<Vec<_>>(), ["rename"]);
        assert_eq!(left.checks, 2);
    }
}
