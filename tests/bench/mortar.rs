//! This product: what `mortar up` gives, on the same kind of disk as the others have.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

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

/// Build the product in the profile this program was built in: `cargo run` builds only the program that it runs, and figures of
/// an old binary would be worse than none.
pub fn build() -> Result<()> {
    let Some(cargo) = std::env::var_os("CARGO") else { return Ok(()) };
    let here = std::env::current_exe()?;
    let target = here.parent().and_then(Path::parent).context("cannot find the target directory")?;
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "-p", "mortar-client", "-p", "mortar-brick", "--bins", "--target-dir"])
        .arg(target);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    eprintln!("building mortar");
    run(&mut command, BUILD_LIMIT).map(|_| ())
}

/// The `mortar` program beside this one; test programs are one directory further down.
pub fn program() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let places = here.ancestors().skip(1).take(2).map(|directory| directory.join("mortar"));
    places.into_iter().find(|program| program.is_file()).with_context(|| {
        format!(
            "there is no `mortar` beside {}: `cargo build --bins` makes it, with --release if this is",
            here.display()
        )
    })
}
