//! GlusterFS 10.3, as Debian packages it, with the options its documentation gives for small files.
//!
//! `Glusterd` is the management daemon with a working directory of its own, so that a volume of this machine's own is never
//! touched; `GlusterFs` is the contender.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::command::{SETUP_LIMIT, run, start, wait_for};
use super::contender::{Contender, Reaped, Site};
use super::disk::{Mount, RamDisk};
use super::namespace::{ADDRESS, Namespace};

const VOLUME: &str = "bench";

/// How many bricks the volume of the benchmark has, in sets of three.
const BRICKS: usize = 6;

/// The documented options for small files: both caches (each a group of settings), and the directory settings.
const OPTIONS: [[&str; 2]; 4] = [
    ["group", "metadata-cache"],
    ["group", "nl-cache"],
    ["performance.parallel-readdir", "on"],
    ["cluster.lookup-optimize", "on"],
];

/// A management daemon in a namespace, started by hand: there is no systemd in a namespace. The namespace ends it.
#[derive(Debug)]
pub struct Glusterd {
    socket: PathBuf,
    _process: Reaped,
}

impl Glusterd {
    /// Start one that keeps everything below `directory`.
    pub fn start(namespace: &Namespace, directory: &Path) -> Result<Self> {
        let socket = directory.join("glusterd.sock");
        for name in ["work", "run"] {
            fs::create_dir_all(directory.join(name))?;
        }
        let volfile = directory.join("glusterd.vol");
        fs::write(&volfile, volfile_text(directory, &socket))?;
        let mut glusterd = namespace.command("glusterd");
        glusterd.arg("--no-daemon").arg(argument("--volfile", &volfile));
        glusterd.arg(argument("--pid-file", &directory.join("glusterd.pid")));
        glusterd.arg(argument("--log-file", &directory.join("glusterd.log")));
        let process = Reaped(start(&mut glusterd, &directory.join("glusterd.out"))?);
        let daemon = Self { socket, _process: process };
        wait_for("an answer of glusterd", SETUP_LIMIT, || daemon.cli(namespace, &["volume", "list"]).is_ok())?;
        Ok(daemon)
    }

    /// A command of the `gluster` program.
    pub fn cli(&self, namespace: &Namespace, words: &[&str]) -> Result<String> {
        let mut command = namespace.command("gluster");
        command.arg("--mode=script").arg(argument("--glusterd-sock", &self.socket)).args(words);
        run(&mut command, SETUP_LIMIT)
    }

    /// Make a volume of brick directories in sets of three.
    pub fn create(&self, namespace: &Namespace, volume: &str, bricks: &[PathBuf]) -> Result<()> {
        let bricks: Vec<String> = bricks.iter().map(|path| format!("{ADDRESS}:{}", path.display())).collect();
        let mut words = vec!["volume", "create", volume, "replica", "3"];
        words.extend(bricks.iter().map(String::as_str));
        words.push("force");
        self.cli(namespace, &words).map(|_| ())
    }

    /// Mount a volume that has been started.
    pub fn mount(&self, namespace: &Namespace, volume: &str, path: &Path) -> Result<Mount> {
        let mount = Mount::expected_at(path)?;
        let mut command = namespace.command("glusterfs");
        command.args(["--process-name", "fuse"]).arg(format!("--volfile-server={ADDRESS}"));
        command
            .arg(format!("--volfile-id={volume}"))
            .arg(argument("--log-file", &path.with_extension("log")))
            .arg(path);
        run(&mut command, SETUP_LIMIT)?;
        mount.wait()?;
        run(Command::new("ls").arg(path), SETUP_LIMIT).context("the new mount does not answer")?;
        Ok(mount)
    }
}

/// The contender: 2 x 3 on six directories of one disk. Fields are dropped in this order.
#[derive(Debug)]
pub struct GlusterFs {
    mount: Mount,
    namespace: Namespace,
    _daemon: Glusterd,
    _disk: RamDisk,
}

impl GlusterFs {
    /// Set one up, fresh and empty.
    pub fn start(site: &Site) -> Result<Self> {
        let disk = RamDisk::new(&site.scratch.join("disk"), site.disk_bytes)?;
        let namespace = Namespace::new("glusterfs")?;
        let daemon = Glusterd::start(&namespace, &site.scratch)?;
        let bricks: Vec<PathBuf> = (1..=BRICKS).map(|number| disk.path().join(format!("brick{number}/data"))).collect();
        for brick in &bricks {
            fs::create_dir_all(brick)?;
        }
        daemon.create(&namespace, VOLUME, &bricks)?;
        for [key, value] in OPTIONS {
            daemon.cli(&namespace, &["volume", "set", VOLUME, key, value])?;
        }
        daemon.cli(&namespace, &["volume", "start", VOLUME])?;
        let mount = daemon.mount(&namespace, VOLUME, &site.scratch.join("mnt"))?;
        Ok(Self { mount, namespace, _daemon: daemon, _disk: disk })
    }
}

impl Contender for GlusterFs {
    fn root(&self) -> &Path {
        self.mount.path()
    }

    fn cpu_seconds(&self) -> f64 {
        self.namespace.cpu_seconds()
    }
}

fn argument(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn volfile_text(directory: &Path, socket: &Path) -> String {
    format!(
        "volume management
    type mgmt/glusterd
    option working-directory {0}/work
    option run-directory {0}/run
    option glusterd-sockfile {1}
    option transport-type socket
    option transport.socket.read-fail-log off
    option transport.socket.listen-port 24007
    option ping-timeout 0
end-volume
",
        directory.display(),
        socket.display()
    )
}
