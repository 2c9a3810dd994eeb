//! What the judges need on the machine, and how to get it.
//!
//! Only Debian packages and programs from crates.io at a fixed version; both are found by a file, so that a second run asks no
//! registry.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bench::command::run;

/// Installing compiles some of it.
const INSTALL_LIMIT: Duration = Duration::from_secs(1800);

/// A Debian package, known to be there by a file of its own.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// A file of it.
    pub file: &'static str,
}

/// A program from crates.io.
#[derive(Debug, Clone, Copy)]
pub struct CrateTool {
    /// The crate, and the program it installs.
    pub name: &'static str,
    /// Exactly this version.
    pub version: &'static str,
}

impl CrateTool {
    /// Where it is installed.
    pub fn path(&self) -> Result<PathBuf> {
        Ok(self.root()?.join("bin").join(self.name))
    }

    /// A directory for this version alone.
    fn root(&self) -> Result<PathBuf> {
        Ok(target_directory()?.join("judges/tools").join(format!("{}-{}", self.name, self.version)))
    }

    fn install(&self) -> Result<()> {
        eprintln!("installing {} {}", self.name, self.version);
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["install", "--quiet", "--locked", "--version", self.version, self.name, "--root"])
            .arg(self.root()?);
        run(&mut command, INSTALL_LIMIT).map(|_| ())
    }
}

/// The directory that cargo builds into, found from our own place in it.
pub fn target_directory() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    Ok(here.parent().and_then(Path::parent).context("cannot find the target directory")?.to_path_buf())
}

/// What is missing, in words for a person; nothing if nothing is.
pub fn missing(packages: &[Package], crates: &[CrateTool]) -> Result<Vec<String>> {
    let mut missing: Vec<String> = packages
        .iter()
        .filter(|package| !Path::new(package.file).exists())
        .map(|package| package.name.to_owned())
        .collect();
    for tool in crates {
        if !tool.path()?.exists() {
            missing.push(format!("{} {} (crates.io)", tool.name, tool.version));
        }
    }
    Ok(missing)
}

/// Install what is missing.
pub fn install(packages: &[Package], crates: &[CrateTool]) -> Result<()> {
    let wanted: Vec<&str> =
        packages.iter().filter(|package| !Path::new(package.file).exists()).map(|package| package.name).collect();
    if !wanted.is_empty() {
        eprintln!("installing {}", wanted.join(" "));
        run(Command::new("apt-get").args(["update", "-qq"]), INSTALL_LIMIT)?;
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "-qq", "--no-install-recommends"]);
        run(command.args(wanted), INSTALL_LIMIT)?;
    }
    for tool in crates {
        if !tool.path()?.exists() {
            tool.install()?;
        }
    }
    Ok(())
}

/// Make sure that a user with a group of the same name exists.
pub fn make_user(name: &str) -> Result<()> {
    let passwd = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    if passwd.lines().any(|line| line.split(':').next() == Some(name)) {
        return Ok(());
    }
    let mut command = Command::new("useradd");
    command.args(["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]);
    if run(&mut command, Duration::from_secs(30)).is_err() && !Path::new("/usr/sbin/useradd").exists() {
        bail!("cannot make the user {name}: useradd is missing");
    }
    Ok(())
}
