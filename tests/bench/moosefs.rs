//! MooseFS 3.0, as Debian packages it: a master, three chunk servers, and three copies of every file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::command::{SETUP_LIMIT, run, start, wait_for};
use super::contender::{Contender, Reaped, Site};
use super::disk::{Mount, RamDisk};
use super::namespace::{ADDRESS, Namespace};

/// The empty metadata that the master's package ships.
const EMPTY_METADATA: &str = "/var/lib/mfs/metadata.mfs.empty";

/// One chunk server for each copy.
const COPIES: u16 = 3;

/// The master listens on 9419 to 9421; these are the chunk servers'.
const FIRST_PORT: u16 = 9425;

/// The contender. Fields are dropped in this order.
#[derive(Debug)]
pub struct MooseFs {
    mount: Mount,
    namespace: Namespace,
    _processes: Vec<Reaped>,
    _disk: RamDisk,
}

impl MooseFs {
    /// Set one up, fresh and empty.
    pub fn start(site: &Site) -> Result<Self> {
        let disk = RamDisk::new(&site.scratch.join("disk"), site.disk_bytes)?;
        let namespace = Namespace::new("moosefs")?;
        let mut processes = vec![master(site, &namespace)?];
        for number in 1..=COPIES {
            processes.push(chunk_server(site, &namespace, disk.path(), number)?);
        }
        let mount = Mount::expected_at(&site.scratch.join("mnt"))?;
        // The master listens a moment after its start, and a mount that finds no master gives up.
        wait_for("a mount of MooseFS", SETUP_LIMIT, || {
            run(namespace.command("mfsmount").arg(mount.path()).args(["-H", ADDRESS]), SETUP_LIMIT).is_ok()
        })?;
        mount.wait()?;
        run(namespace.command("mfssetgoal").args(["-r", &COPIES.to_string()]).arg(mount.path()), SETUP_LIMIT)?;
        let moosefs = Self { mount, namespace, _processes: processes, _disk: disk };
        wait_for("three copies of a file", SETUP_LIMIT, || moosefs.makes_all_copies().unwrap_or(false))?;
        Ok(moosefs)
    }

    /// Chunk servers come one by one, and a file written too early has fewer copies than the goal.
    fn makes_all_copies(&self) -> Result<bool> {
        let probe = self.mount.path().join("probe");
        fs::write(&probe, b"probe")?;
        let told = run(self.namespace.command("mfsfileinfo").arg(&probe), SETUP_LIMIT)?;
        fs::remove_file(&probe)?;
        Ok(told.matches(":94").count() >= usize::from(COPIES))
    }
}

impl Contender for MooseFs {
    fn root(&self) -> &Path {
        self.mount.path()
    }

    fn cpu_seconds(&self) -> f64 {
        self.namespace.cpu_seconds()
    }
}

fn master(site: &Site, namespace: &Namespace) -> Result<Reaped> {
    let data = site.scratch.join("master");
    fs::create_dir_all(&data)?;
    fs::copy(EMPTY_METADATA, data.join("metadata.mfs")).context("cannot copy MooseFS's empty metadata")?;
    let exports = site.scratch.join("exports.cfg");
    fs::write(&exports, "* / rw,alldirs,admin,maproot=0:0\n")?;
    let config = site.scratch.join("master.cfg");
    fs::write(&config, format!("{}EXPORTS_FILENAME = {}\n", common(&data), exports.display()))?;
    daemon(namespace, "mfsmaster", &config)
}

fn chunk_server(site: &Site, namespace: &Namespace, disk: &Path, number: u16) -> Result<Reaped> {
    let data = site.scratch.join(format!("chunkserver{number}"));
    let chunks = disk.join(number.to_string());
    fs::create_dir_all(&data)?;
    fs::create_dir_all(&chunks)?;
    let disks = site.scratch.join(format!("disks{number}.cfg"));
    fs::write(&disks, format!("{}\n", chunks.display()))?;
    let config = site.scratch.join(format!("chunkserver{number}.cfg"));
    let port = FIRST_PORT + number;
    let text = format!(
        "{}HDD_CONF_FILENAME = {}\nMASTER_HOST = {ADDRESS}\nCSSERV_LISTEN_PORT = {port}\n",
        common(&data),
        disks.display()
    );
    fs::write(&config, text)?;
    daemon(namespace, "mfschunkserver", &config)
}

fn common(data: &Path) -> String {
    format!("WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {}\n", data.display())
}

fn daemon(namespace: &Namespace, program: &str, config: &Path) -> Result<Reaped> {
    let mut command: Command = namespace.command(program);
    command.arg("-f").arg("-c").arg(config).arg("start");
    Ok(Reaped(start(&mut command, &config.with_extension("log"))?))
}
