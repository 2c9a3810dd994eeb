//! fsx: random reads, writes, truncates, mappings, holes and copies on one file, against a model.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::Judge;
use super::place::Place;
use super::report::Report;
use super::tools::CrateTool;

const LIMIT: Duration = Duration::from_secs(3000);

const TOOL: CrateTool = CrateTool { name: "fsx", version: "0.3.2" };

pub(super) const FSX: Judge = Judge {
    name: "fsx",
    about: "a million random operations on one file, against a model",
    packages: &[],
    crates: &[TOOL],
    mounts: 1,
    limit: LIMIT,
    run: judge,
};

fn judge(place: &Place) -> Result<Report> {
    let configuration = place.scratch.join("fsx.toml");
    fs::write(&configuration, include_str!("fsx.toml"))?;
    let operations = place.size("20000", "1000000");
    // Its seed has 32 bits.
    let seed = u32::try_from(place.seed & u64::from(u32::MAX))?.to_string();
    let mut command = place.command(&TOOL.path()?.to_string_lossy());
    command.args(["-q", "-N", operations, "-S", &seed, "-P"]).arg(&place.scratch).arg("-f").arg(&configuration);
    let mut report = Report { note: format!("{operations} operations, seed {seed}"), ..Report::default() };
    report.case("content and size", place.run(command.arg("fsx-file"), LIMIT));
    Ok(report)
}
