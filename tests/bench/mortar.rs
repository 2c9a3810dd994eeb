//! This product: what `mortar up` gives, on the same kind of disk as the others have.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use super::command::{SETUP_LIMIT, clean_up, run};
use super::contender::{Contender, Site};
use super::disk::{Mount, RamDisk};
use super::namespace::Namespace;

/// How many bricks the volume of the benchmark has, in sets of three.
const BRICKS: &str = "6";

/// Optimised builds of all of the product take minutes on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// The contender. Fields are dropped in this order, after `mortar down`.
#[derive(Debug)]
pub struct Mortar {
    mount: Mount,
    program: PathBuf,
    namespace: Namespace,
    disk: RamDisk,
}

impl Mortar {
    /// Set one up, fresh and empty.
    pub fn start(site: &Site) -> Result<Self> {
        let program = program()?;
        let disk = RamDisk::new(&site.scratch.join("disk"), site.disk_bytes)?;
        let namespace = Namespace::new("mortar")?;
        let mount = Mount::expected_at(&site.scratch.join("mnt"))?;
        let mortar = Self { mount, program, namespace, disk };
        let mut up = mortar.namespace.command(&mortar.program.to_string_lossy());
        up.arg("up").arg(mortar.disk.path()).args(["--bricks", BRICKS, "--replica", "3", "--mount"]);
        run(up.arg(mortar.mount.path()).arg("--detach"), SETUP_LIMIT)?;
        mortar.mount.wait()?;
        Ok(mortar)
    }
}

impl Contender for Mortar {
    fn root(&self) -> &Path {
        self.mount.path()
    }

    fn cpu_seconds(&self) -> f64 {
        self.namespace.cpu_seconds()
    }
}

impl Drop for Mortar {
    fn drop(&mut self) {
        let mut down = self.namespace.command(&self.program.to_string_lossy());
        clean_up(down.arg("down").arg(self.disk.path()));
    }
}

/// Build the product in the profile this program was built in, once: `cargo run` and `cargo test` build only what belongs to
/// this package, and what an old binary does would mislead.
pub fn build() -> Result<()> {
    static BUILT: Mutex<bool> = Mutex::new(false);
    let mut built = BUILT.lock();
    let cargo = std::env::var_os("CARGO").filter(|_| !*built);
    let Some(cargo) = cargo else { return Ok(()) };
    let target = folder()?.parent().map(Path::to_owned).context("cannot find the target directory")?;
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "-p", "mortar-client", "-p", "mortar-brick", "--bins", "--target-dir"])
        .arg(target);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    eprintln!("building mortar");
    run(&mut command, BUILD_LIMIT)?;
    *built = true;
    Ok(())
}

/// The directory of the programs of this build; test programs are one directory further down.
pub fn folder() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().context("a program is in a directory")?;
    let folder = if folder.ends_with("deps") { folder.parent().context("deps is in a directory")? } else { folder };
    Ok(folder.to_owned())
}

/// The `mortar` program of this build, which is made if it can be.
pub fn program() -> Result<PathBuf> {
    build()?;
    let program = folder()?.join("mortar");
    let advice = "`cargo build --bins` makes it, with --release if this is";
    if program.is_file() { Ok(program) } else { bail!("there is no {}: {advice}", program.display()) }
}
