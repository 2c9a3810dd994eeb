//! Files that lose their last name while they are open: the bricks keep them for who has them open, and not a moment longer.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use mortar_tests::bench::command::wait_for;
use mortar_tests::cluster::Cluster;

use super::{MOUNTS, bricks, within};

const LIMIT: Duration = Duration::from_secs(200);

/// How long it may take until a file is gone: more than a lease term (10 s), for which a dead client keeps what it had.
const GONE_WITHIN: Duration = Duration::from_secs(30);

const FILE_BYTES: usize = 16 << 20;
const COPIES: u64 = 3;

/// Beyond what a file has, for names, directories and the marks of each brick.
const SLACK: u64 = 6 << 20;

/// What the bricks have: bytes in use, files in the areas for those without names, and descriptors of files without names.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    bytes: u64,
    unlinked: usize,
    descriptors: usize,
}

impl Kept {
    fn by(cluster: &Cluster) -> Self {
        let disk = rustix::fs::statvfs(cluster.disk()).unwrap();
        let list = |path| fs::read_dir(path).into_iter().flatten().flatten();
        let bricks = 0..cluster.brick_count();
        let unlinked = bricks.clone().map(|brick| list(cluster.brick(brick).join(".glusterfs/unlink")).count()).sum();
        let deleted = |brick| {
            let pid = fs::read_to_string(cluster.directory().join(format!("run/brick-{brick}.pid"))).unwrap();
            let open = list(format!("/proc/{}/fd", pid.trim()).into()).filter_map(|fd| fs::read_link(fd.path()).ok());
            // A file that only has its handle below `unlink` has a name for the kernel.
            let is_deleted = |path: &std::path::PathBuf| {
                let path = path.to_string_lossy();
                path.ends_with(" (deleted)") || path.contains("/.glusterfs/unlink/")
            };
            open.filter(is_deleted).count()
        };
        Self { bytes: (disk.f_blocks - disk.f_bfree) * disk.f_frsize, unlinked, descriptors: bricks.map(deleted).sum() }
    }
}

fn big(path: std::path::PathBuf) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![9; FILE_BYTES]).unwrap();
    file.sync_all().unwrap();
    file
}

/// The bricks hold `files` without names, and still have room for nothing else there.
fn assert_held(cluster: &Cluster, before: &Kept, files: u64) {
    let held = Kept::by(cluster);
    let bytes = files * COPIES * FILE_BYTES as u64;
    assert!(held.bytes >= before.bytes + bytes, "{held:?} after {before:?}");
    assert!(held.unlinked as u64 >= files * COPIES && held.descriptors as u64 >= files * COPIES, "{held:?}");
}

fn assert_gone(cluster: &Cluster, before: &Kept) {
    let mut last = None;
    let gone = wait_for("the end of files that nobody has open", GONE_WITHIN, || {
        let kept = last.insert(Kept::by(cluster));
        kept.unlinked == 0 && kept.descriptors == 0 && kept.bytes <= before.bytes + SLACK
    });
    assert!(gone.is_ok(), "{last:?} after {before:?}\n{}", cluster.log_tails());
}

/// C019
#[test]
fn what_was_deleted_while_open_takes_no_room_once_it_is_closed() {
    within(LIMIT, "", || {
        let cluster = Cluster::up(6, 3, MOUNTS).unwrap();
        let (here, there) = (cluster.mount(0), cluster.mount(1));
        fs::write(here.join("other"), "other").unwrap();
        let before = Kept::by(&cluster);
        let open = [big(here.join("removed")), big(here.join("removed-there")), big(here.join("replaced"))];
        fs::remove_file(here.join("removed")).unwrap();
        fs::remove_file(there.join("removed-there")).unwrap();
        fs::rename(here.join("other"), here.join("replaced")).unwrap();
        assert_held(&cluster, &before, 3);
        assert!(open.iter().all(|file| file.metadata().unwrap().len() == FILE_BYTES as u64));
        drop(open);
        assert_gone(&cluster, &before);
        assert_eq!(fs::read(there.join("replaced")).unwrap(), b"other");
        bricks::settle(&cluster, 3);
    });
}

/// C019: the mount that had the file open is killed.
#[test]
fn what_a_dead_client_had_open_takes_no_room() {
    within(LIMIT, "", || {
        let cluster = Cluster::up(6, 3, MOUNTS).unwrap();
        let (here, there) = (cluster.mount(0), cluster.mount(1));
        let before = Kept::by(&cluster);
        let open = [big(here.join("removed")), big(here.join("removed-there"))];
        fs::remove_file(here.join("removed")).unwrap();
        fs::remove_file(there.join("removed-there")).unwrap();
        assert_held(&cluster, &before, 2);
        cluster.kill_mount(0).unwrap();
        assert_gone(&cluster, &before);
        // The descriptors of a mount that has died are good for nothing but closing.
        drop(open);
        assert_eq!(fs::read_dir(there).unwrap().count(), 0);
        bricks::settle(&cluster, 3);
    });
}
