//! Programs on mounts of a volume of real processes: what only the kernel can ask, and what only a kill can show.
//!
//! Every story runs on a local directory first, so that a wrong story is not taken for a wrong mount. Needs root, `/dev/fuse`
//! and the programs of this build (`cargo build --bins`).

mod acl;
mod bricks;
mod cases;
mod changes;
mod counts;
mod deleted;
mod files;
mod full_disk;
mod link_files;
mod locks;
mod long_names;
mod names;
mod pages;
mod read_times;
mod rename_cases;
mod renames;
mod restarts;
mod rights;
mod space;
mod stale;
mod together;
mod untar;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use mortar_tests::cluster::Cluster;

/// How long a story may take: a hang is a failure.
const LIMIT: Duration = Duration::from_secs(300);

/// How many mounts the shared volume has.
const MOUNTS: usize = 3;

/// Directories that all show the same files.
#[derive(Debug, Clone)]
struct Mounts(Vec<PathBuf>);

impl Mounts {
    /// A path at the first mount.
    fn here(&self, name: &str) -> PathBuf {
        self.0[0].join(name)
    }

    /// The same path at the second.
    fn there(&self, name: &str) -> PathBuf {
        self.0[1].join(name)
    }

    /// The same path at each.
    fn everywhere(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        self.0.iter().map(move |mount| mount.join(name))
    }
}

/// Run a story on a local directory, then on the mounts of a 2 x 3 volume.
fn everywhere(story: fn(&Mounts)) {
    on_a_local_directory(story);
    on_a_volume(story, &shared_cluster());
}

/// The same, on a volume of its own, whose bricks are alike in the end and have nothing left over.
fn everywhere_down_to_the_bricks(story: fn(&Mounts)) {
    on_a_local_directory(story);
    let cluster = Cluster::up(6, 3, MOUNTS).unwrap();
    on_a_volume(story, &cluster);
    bricks::settle(&cluster, 3);
}

fn on_a_local_directory(story: fn(&Mounts)) {
    let local = tempfile::tempdir().unwrap();
    open_to_all(local.path());
    let mounts = Mounts(vec![local.path().to_path_buf(); MOUNTS]);
    within(LIMIT, "on a local directory", move || story(&mounts));
}

fn on_a_volume(story: fn(&Mounts), cluster: &Cluster) {
    let directory = own_name();
    fs::create_dir(cluster.mount(0).join(&directory)).unwrap();
    let mounts = Mounts(cluster.mounts().iter().map(|mount| mount.join(&directory)).collect());
    if let Err(panic) = catch_unwind(|| within(LIMIT, "on the volume", move || story(&mounts))) {
        eprintln!("its logs end with\n{}", cluster.log_tails());
        resume_unwind(panic);
    }
}

/// The volume that all stories share which do it no harm. It lives as long as one of them runs.
fn shared_cluster() -> Arc<Cluster> {
    static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Cluster::up(6, 3, MOUNTS).unwrap());
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

fn own_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("story-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Run it in a thread that is given up when it hangs.
fn within<T: Send + 'static>(limit: Duration, place: &str, story: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver has gone when the limit was reached.
        let _ = done.send(catch_unwind(AssertUnwindSafe(story)));
    });
    match ended.recv_timeout(limit) {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => {
            eprintln!("{place}");
            resume_unwind(panic)
        }
        Err(_) => panic!("not done within {} s {place}", limit.as_secs()),
    }
}

fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Run a shell script as this user, with these further groups; the answer is whether it succeeded.
fn as_user(uid: u32, groups: &str, directory: &Path, script: &str) -> bool {
    let mut command = Command::new("timeout");
    command.args(["60", "setpriv", "--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    command.args(["sh", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    command.output().unwrap().status.success()
}

/// Run a shell script and give what it printed; a failure is a panic with its last words.
fn shell(directory: &Path, script: &str) -> String {
    let output =
        Command::new("timeout").args(["120", "bash", "-euo", "pipefail", "-c", script]).current_dir(directory).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{script}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
