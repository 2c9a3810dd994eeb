//! pjdfstest: hundreds of small cases about what POSIX says of each call.
//!
//! A case that the local XFS of this kernel fails is not held against a mount.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Judge;
use super::place::Place;
use super::report::Report;
use super::tools::{CrateTool, Package, make_user};
use crate::bench::command::SETUP_LIMIT;
use crate::bench::mortar::folder;

const LIMIT: Duration = Duration::from_secs(1200);

const TOOL: CrateTool = CrateTool { name: "pjdfstest", version: "0.2.2" };

/// The cases that make the file system read-only for a moment.
const REMOUNTING: &str = "erofs";

/// The users that the configuration names.
const USERS: [&str; 2] = ["mortar-judge-1", "mortar-judge-2"];

pub(super) const PJDFSTEST: Judge = Judge {
    name: "pjdfstest",
    about: "what POSIX says of each call, as root and as two users",
    packages: &[
        Package { name: "libacl1-dev", file: "/usr/include/sys/acl.h" },
        Package { name: "acl", file: "/usr/bin/setfacl" },
    ],
    crates: &[TOOL],
    mounts: 1,
    limit: LIMIT,
    run: judge,
};

fn judge(place: &Place) -> Result<Report> {
    for user in USERS {
        make_user(user)?;
    }
    let configuration = place.scratch.join("pjdfstest.toml");
    fs::write(&configuration, include_str!("pjdfstest.toml"))?;
    let secondary = SecondDisk::mount(place)?;
    let _helper = Helper::install()?;
    let run = |pattern: Option<&str>| -> Result<Report> {
        let mut command = place.command("sh");
        // It exits with an error when a case failed, which is for us to judge. An open file hinders a remount.
        command.args(["-c", r#"cd /; "$@" || test $? -eq 1"#, "sh"]).arg(TOOL.path()?).arg("-c").arg(&configuration);
        command.arg("--secondary-fs").arg(&secondary.0).arg("-p").arg(place.mount()).args(pattern);
        let said = place.run(&mut command, LIMIT)?;
        let report = read(&said);
        ensure!(report.checks > 0, "pjdfstest said nothing: {said}");
        Ok(report)
    };
    let mut report = run(None)?;
    // Cases before leave descriptors of removed files open, and with those nobody can remount: these cases once more, alone.
    let alone = run(Some(REMOUNTING))?;
    report.failures.retain(|case, _| !case.contains(REMOUNTING));
    report.failures.extend(alone.failures);
    Ok(report)
}

/// What mount(8) asks for a remount, as it is installed on a real host (see `deploy/README.md`). Taken away in the end, unless it
/// was there before.
struct Helper(Option<&'static Path>);

impl Helper {
    fn install() -> Result<Self> {
        let link = Path::new("/sbin/mount.fuse.mortar");
        if link.symlink_metadata().is_ok() {
            return Ok(Self(None));
        }
        symlink(folder()?.join("mortar"), link)?;
        Ok(Self(Some(link)))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            // What is left is used by the next run.
            let _ = fs::remove_file(link);
        }
    }
}

/// A file system of another kind, for the cases about renames and links across file systems.
struct SecondDisk(PathBuf);

impl SecondDisk {
    fn mount(place: &Place) -> Result<Self> {
        let path = place.scratch.join("second");
        fs::create_dir_all(&path)?;
        place.run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs"]).arg(&path), SETUP_LIMIT)?;
        Ok(Self(path))
    }
}

impl Drop for SecondDisk {
    fn drop(&mut self) {
        crate::bench::command::clean_up(Command::new("umount").arg(&self.0));
    }
}

/// Make findings of what it printed: a name and a word a line, what was wrong in the lines after it.
fn read(said: &str) -> Report {
    let mut report = Report::default();
    let mut lines = said.lines().peekable();
    while let Some(line) = lines.next() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(word), None) = (words.next(), words.next(), words.next()) else { continue };
        let mut detail = String::new();
        while let Some(next) = lines.next_if(|next| next.starts_with('\t')) {
            detail.push_str(next.trim());
        }
        match word {
            "ok" => report.case::<_, String>(name, Ok(())),
            "FAILED" => report.case::<(), _>(name, Err(detail)),
            "skipped" => {
                report.skipped.insert(name.to_owned(), detail);
            }
            _ => {}
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_output_is_understood() {
        let said = "chmod::errno_is   ok\nopen::x   FAILED\n\tassertion failed\nchflags::y   skipped\n\trequires features: chflags\n\nSummary: 1 failed, 1 skipped\n";
        let report = read(said);
        assert_eq!(report.checks, 2);
        assert_eq!(report.failures["open::x"], "assertion failed");
        assert_eq!(report.skipped["chflags::y"], "requires features: chflags");
    }
}
