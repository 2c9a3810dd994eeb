//! A brick whose disk is full: nothing half made, nothing damaged, and on it goes as soon as there is room.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Allocate, Birth, Create, Fallocate, Mkdir, Only, Operation, Place, Symlink, Unlink, Write};
use mortar_xlators::posix::{Posix, PosixOptions, create_brick, prepare_process};
use mortar_xlators::types::{ClientId, Gfid, Name, Time};
use mortar_xlators::xlator::Subvol;
use tempfile::TempDir;
use uuid::Uuid;

const VOLUME: Uuid = Uuid::from_u128(45);
const DISK_BYTES: u64 = 48 << 20;
const FILE_BYTES: usize = 100_000;

/// A small ext4 in a file, mounted, and the brick on it.
struct Brick {
    folder: TempDir,
    subvol: Option<Subvol>,
    runtime: tokio::runtime::Runtime,
    ctx: Ctx,
    number: u64,
}

impl Brick {
    fn new() -> Self {
        prepare_process();
        let folder = tempfile::tempdir().unwrap();
        let (image, mounted) = (folder.path().join("image"), folder.path().join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        std::fs::create_dir(&mounted).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-I", "512", "-N", "8192"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ctx = Ctx::new(1, ClientId(1), Caller::root(), deadline);
        let mut brick = Self { folder, subvol: None, runtime, ctx, number: 0 };
        create_brick(&brick.path(), VOLUME).unwrap();
        brick.subvol = Some(Posix::open(&brick.path(), VOLUME, PosixOptions::default()).unwrap());
        brick
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mounted/brick")
    }

    /// As our own daemons, whom the reserve does not stop.
    fn internal(&self) -> Ctx {
        Ctx { caller: Caller { pid: -1, ..Caller::root() }, ..self.ctx.clone() }
    }

    fn ask<O: Operation>(&self, ctx: &Ctx, operation: O) -> Result<O::Reply> {
        self.runtime.block_on(self.subvol.as_ref().unwrap().send(ctx, operation))
    }

    fn birth(&mut self) -> Box<Birth> {
        self.number += 1;
        let gfid = Gfid::from_random((0x4242_4242 << 96 | u128::from(self.number)).to_be_bytes());
        let when = Time { sec: 1, nsec: 0 };
        Box::new(Birth {
            gfid,
            mode: 0o755,
            umask: 0,
            uid: 5,
            gid: 6,
            when,
            times: None,
            xattrs: vec![],
            pending: vec![],
        })
    }

    fn create(&mut self, ctx: &Ctx, bytes: usize) -> Result<Gfid> {
        let (birth, content) = (self.birth(), Bytes::from(vec![7; bytes]));
        let name = name(&format!("file-{}", self.number));
        let create = Create { parent: Gfid::ROOT, name, birth, content, open: None, lease: false };
        Ok(self.ask(ctx, create)?.iatt.gfid)
    }

    /// Make files until there is no room.
    fn fill(&mut self, ctx: &Ctx, bytes: usize) -> Vec<Gfid> {
        let mut made = vec![];
        loop {
            match self.create(ctx, bytes) {
                Ok(gfid) => made.push(gfid),
                Err(error) => {
                    assert_eq!(error, FopError::Refused(Errno::NOSPC));
                    return made;
                }
            }
            // What the file system only promised it must now find room for.
            std::process::Command::new("sync").arg("-f").arg(self.path()).status().unwrap();
        }
    }

    fn unlink(&self, number: u64) {
        let (parent, name, only) = (Gfid::ROOT, name(&format!("file-{number}")), Only::Any);
        self.ask(&self.ctx, Unlink { parent, name, only, when: Time { sec: 2, nsec: 0 } }).unwrap();
    }

    fn assert_whole(&self) {
        let list = |path: PathBuf| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let names = list(self.path()).filter(|path| path.file_name().unwrap() != ".glusterfs").count();
        let first = (0..=255u8).map(|byte| self.path().join(format!(".glusterfs/{byte:02x}")));
        assert_eq!(first.flat_map(list).flat_map(list).count(), names + 1, "handles, and names with the root");
        assert_eq!(list(self.path().join(".glusterfs/staging")).count(), 0);
    }
}

impl Drop for Brick {
    fn drop(&mut self) {
        self.subvol = None;
        let _unmounted = Command::new("umount").arg("-l").arg(self.folder.path().join("mounted")).status();
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn content_of(path: &Path) -> usize {
    std::fs::metadata(path).unwrap().len() as usize
}

#[test]
#[ignore = "needs root and a loop device"]
fn a_full_brick_refuses_leaves_nothing_and_goes_on_when_there_is_room() {
    let mut brick = Brick::new();
    let (ordinary, internal) = (brick.ctx.clone(), brick.internal());
    let made = brick.fill(&ordinary, FILE_BYTES).len() as u64;
    assert!(made > 100, "{made}");
    brick.assert_whole();
    // The reserve is left for our own daemons; then the disk itself is full.
    brick.fill(&internal, FILE_BYTES);
    brick.fill(&internal, 1000);
    let after = brick.fill(&internal, 0).len();
    brick.assert_whole();
    let symlink = Symlink { parent: Gfid::ROOT, name: name("link"), birth: brick.birth(), target: "t".into() };
    let birth = brick.birth();
    let mkdir = Mkdir { parent: Gfid::ROOT, name: name("dir"), birth, layout: None, mds: false, lease: false };
    let (symlink, mkdir) = (brick.ask(&internal, symlink), brick.ask(&internal, mkdir));
    assert!(after == 0 || symlink.is_err() || mkdir.is_err(), "something was refused");
    brick.assert_whole();
    (1..=made).for_each(|number| assert_eq!(content_of(&brick.path().join(format!("file-{number}"))), FILE_BYTES));
    (1..=50).for_each(|number| brick.unlink(number));
    run(Command::new("sync").arg("-f").arg(brick.path()));
    let gfid = brick.create(&ordinary, FILE_BYTES).expect("there is room again, and it is seen at once");
    let data = Bytes::from_static(&[7; 1000]);
    let when = Time { sec: 3, nsec: 0 };
    let write = Write { gfid, fd: None, place: Place::End, data, sync: true, kill_priv: false, when, then: None };
    assert_eq!(brick.ask(&ordinary, write).unwrap().iatt.size, 101_000);
    brick.assert_whole();
}

/// C063: ext4 keeps what it found of an allocation that is too large, and counts it to the size.
#[test]
#[ignore = "needs root and a loop device"]
fn an_allocation_that_does_not_fit_leaves_nothing() {
    let mut brick = Brick::new();
    let ordinary = brick.ctx.clone();
    let gfid = brick.create(&ordinary, 1000).unwrap();
    let path = brick.path().join("file-1");
    let look = || {
        let meta = std::fs::metadata(&path).unwrap();
        (meta.len(), meta.blocks())
    };
    let before = look();
    for how in [Allocate::Reserve, Allocate::ReserveKeepSize, Allocate::Zero, Allocate::ZeroKeepSize] {
        let when = Time { sec: 4, nsec: 0 };
        let fallocate = Fallocate { gfid, fd: None, how, offset: 100_000, length: 2 * DISK_BYTES, when };
        assert_eq!(brick.ask(&ordinary, fallocate).unwrap_err(), FopError::Refused(Errno::NOSPC), "{how:?}");
        assert_eq!(look(), before, "{how:?}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), [7; 1000]);
    let when = Time { sec: 5, nsec: 0 };
    let fits = Fallocate { gfid, fd: None, how: Allocate::Reserve, offset: 0, length: DISK_BYTES / 2, when };
    assert_eq!(brick.ask(&ordinary, fits).unwrap().iatt.size, DISK_BYTES / 2);
}
