//! A brick whose host loses power: what was made durable is there, and what has a name is complete.
//!
//! The brick is on an XFS of its own, in a file. `xfs_io -x -c shutdown` stops that file system as a lost power does: what
//! is only in memory never reaches the file. After a mount again (which replays the log) the brick is read without its
//! daemon, then started.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::fop::{Birth, Create, Fsync, Lookup, Mkdir, Operation, Place, Write};
use mortar_xlators::index::Index;
use mortar_xlators::leases::DirtyJournal;
use mortar_xlators::posix::{Posix, PosixOptions, create_brick, prepare_process};
use mortar_xlators::types::{ClientId, Gfid, Name, Time};
use mortar_xlators::xlator::Xlator;
use tempfile::TempDir;
use uuid::Uuid;

const VOLUME: Uuid = Uuid::from_u128(44);
const DISK_BYTES: u64 = 400 << 20;

/// Files made while the log is written again and again, each time in the middle of something.
const FILES: u128 = 2000;

/// An XFS in a file, mounted.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Self { folder };
        std::fs::File::create(disk.image()).unwrap().set_len(DISK_BYTES).unwrap();
        std::fs::create_dir(disk.mounted()).unwrap();
        run(Command::new("mkfs.xfs").arg("-q").arg(disk.image()));
        disk.mount();
        disk
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mounted(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    fn brick(&self) -> PathBuf {
        self.mounted().join("brick")
    }

    fn mount(&self) {
        run(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(self.mounted()));
    }

    /// Lose power, and get it back.
    fn power_cut(&self) {
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(self.mounted()));
        run(Command::new("umount").arg(self.mounted()));
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(self.mounted()).status();
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// A brick on a disk, and somebody who asks it.
struct Brick {
    index: Arc<Index>,
    runtime: tokio::runtime::Runtime,
    ctx: Ctx,
}

impl Brick {
    fn serve(path: &Path) -> Self {
        let posix = Posix::open(path, VOLUME, PosixOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ctx = Ctx::new(1, ClientId(1), Caller::root(), deadline);
        Self { index: Index::open(posix).unwrap(), runtime, ctx }
    }

    fn ask<O: Operation>(&self, operation: O) -> O::Reply {
        let subvol: &dyn Xlator = &*self.index;
        self.runtime.block_on(subvol.send(&self.ctx, operation)).unwrap()
    }

    fn mkdir(&self, parent: Gfid, dir: &str, number: u128) -> Gfid {
        let (name, birth) = (name(dir), birth(number));
        self.ask(Mkdir { parent, name, birth, layout: None, mds: false, lease: false }).iatt.gfid
    }

    fn create(&self, parent: Gfid, file: &str, number: u128) -> Gfid {
        let (name, birth, content) = (name(file), birth(number), Bytes::from_static(b"content"));
        self.ask(Create { parent, name, birth, content, open: None, lease: false }).iatt.gfid
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn birth(number: u128) -> Box<Birth> {
    let gfid = Gfid::from_random((number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_0c0b_1234_5679)).to_be_bytes());
    let when = Time { sec: 100, nsec: 0 };
    Box::new(Birth { gfid, mode: 0o755, umask: 0, uid: 5, gid: 6, when, times: None, xattrs: vec![], pending: vec![] })
}

/// Somebody else on the disk makes something durable, and with it whatever the log has.
fn write_the_log_until(disk: &Disk, made: &std::sync::atomic::AtomicBool) {
    let file = std::fs::File::create(disk.mounted().join("other")).unwrap();
    for size in 0.. {
        if made.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        file.set_len(size).unwrap();
        file.sync_all().unwrap();
    }
}

/// Every name leads to an inode with a gfid, times and a handle; how many names there are.
fn assert_whole(brick: &Path, folder: &Path) -> usize {
    let mut names = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == ".glusterfs" {
            continue;
        }
        let get = |key: &str| {
            let mut value = [0; 64];
            let length = rustix::fs::lgetxattr(&path, key, &mut value[..]);
            value[..length.unwrap_or_else(|errno| panic!("{}: {key}: {errno}", path.display()))].to_vec()
        };
        let text = Gfid::from_slice(&get("trusted.gfid")).unwrap().to_string();
        assert_eq!(get("trusted.glusterfs.mdata").len(), 57);
        let handle = brick.join(format!(".glusterfs/{}/{}/{text}", &text[..2], &text[2..4]));
        let meta = path.symlink_metadata().unwrap();
        let reached = if meta.is_dir() { handle.metadata() } else { handle.symlink_metadata() };
        assert_eq!(reached.unwrap().ino(), meta.ino(), "{}", path.display());
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (5, 0o755));
        names += 1;
        if meta.is_dir() {
            names += assert_whole(brick, &path);
        }
    }
    names
}

#[test]
#[ignore = "needs root, a loop device and xfsprogs"]
fn what_was_made_durable_outlives_the_power_and_the_rest_is_whole_or_absent() {
    let disk = Disk::new();
    prepare_process();
    create_brick(&disk.brick(), VOLUME).unwrap();
    for round in 0..2u128 {
        let brick = Brick::serve(&disk.brick());
        brick.index.mark_dirty(Gfid::ROOT).unwrap();
        let number = 100_000 * (round + 1);
        let dir = brick.mkdir(Gfid::ROOT, &format!("dir-{round}"), number);
        let sub = brick.mkdir(dir, "sub", number + 1);
        let file = brick.create(sub, "durable", number + 2);
        let data = Bytes::from_static(b" and more");
        let when = Time { sec: 200, nsec: 0 };
        brick.ask(Write {
            gfid: file,
            fd: None,
            place: Place::End,
            data,
            sync: false,
            kill_priv: false,
            when,
            then: None,
        });
        brick.ask(Fsync { gfid: file, fd: None, data_only: false });
        let made = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| write_the_log_until(&disk, &made));
            for other in 0..FILES {
                brick.create(sub, &format!("file-{other}"), number + 10 + other);
            }
            made.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        drop(brick);
        disk.power_cut();
        let durable = disk.brick().join(format!("dir-{round}/sub/durable"));
        assert_eq!(std::fs::read(durable).unwrap(), b"content and more");
        let names = assert_whole(&disk.brick(), &disk.brick());
        println!("round {round}: {names} names");
        assert!(names > 100, "the log was written in between");
        let brick = Brick::serve(&disk.brick());
        assert!(brick.index.left_dirty(Gfid::ROOT), "the journal outlives the power");
        let found = brick.ask(Lookup { parent: sub, name: name("durable") }).found.unwrap();
        assert_eq!((found.iatt.size, found.iatt.mtime.sec), (16, 200));
        assert_eq!(std::fs::read_dir(disk.brick().join(".glusterfs/staging")).unwrap().count(), 0);
    }
}

#[test]
#[ignore = "needs root, a loop device and xfsprogs"]
fn a_durable_directory_keeps_its_names() {
    let disk = Disk::new();
    prepare_process();
    create_brick(&disk.brick(), VOLUME).unwrap();
    let brick = Brick::serve(&disk.brick());
    let dir = brick.mkdir(Gfid::ROOT, "dir", 1);
    (0..50).for_each(|number| assert!(!brick.create(dir, &format!("file-{number}"), 10 + number).is_null()));
    brick.ask(Fsync { gfid: dir, fd: None, data_only: false });
    drop(brick);
    disk.power_cut();
    assert_eq!(assert_whole(&disk.brick(), &disk.brick()), 51);
}
