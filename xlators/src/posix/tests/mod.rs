//! Every fop on a brick of its own, in a temporary directory.

mod births;
mod bricks;
mod content;
mod crowd;
mod listing;
mod moves;
mod repair;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

use super::{Posix, PosixOptions, create_brick};
use crate::ctx::{Caller, Ctx};
use crate::error::{Errno, FopError, Result};
use crate::fop::{
    Birth, Create, Getattr, Link, Lookup, Mkdir, Only, Operation, Rename, Replace, Rmdir, Symlink, Unlink,
};
use crate::reply::{Found, Made};
use crate::types::{AttrMask, ClientId, Fd, Gfid, Iatt, Name, OpenFlags, Time};
use crate::xlator::Xlator;

const VOLUME: Uuid = Uuid::from_u128(0xe1c4_23c1_52d9_4f2a_ad24_5b50_2fa7_8ef6);
const ROOT: Gfid = Gfid::ROOT;

/// A brick in a temporary directory, and somebody who asks it.
struct Brick {
    folder: TempDir,
    posix: Option<Arc<Posix>>,
    runtime: tokio::runtime::Runtime,
    gfids: AtomicU64,
    ctx: Ctx,
}

impl Brick {
    fn new() -> Self {
        Self::with(PosixOptions::default())
    }

    fn with(options: PosixOptions) -> Self {
        super::prepare_process();
        let folder = tempfile::tempdir().unwrap();
        create_brick(folder.path(), VOLUME).unwrap();
        let posix = Posix::open(folder.path(), VOLUME, options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ctx = Ctx::new(1, ClientId(7), Caller::root(), deadline);
        Self { folder, posix: Some(posix), runtime, gfids: AtomicU64::new(0), ctx }
    }

    /// As our own daemons do.
    fn internal(&self) -> Ctx {
        Ctx { caller: Caller { pid: -1, ..Caller::root() }, ..self.ctx.clone() }
    }

    fn restart(&mut self) {
        self.posix = None;
        self.posix = Some(Posix::open(self.folder.path(), VOLUME, PosixOptions::default()).unwrap());
    }

    fn posix(&self) -> &Arc<Posix> {
        self.posix.as_ref().unwrap()
    }

    fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(below)
    }

    fn handle(&self, gfid: Gfid) -> PathBuf {
        let text = gfid.to_string();
        self.path(format!(".glusterfs/{}/{}/{text}", &text[..2], &text[2..4]))
    }

    fn gfid(&self) -> Gfid {
        let number = self.gfids.fetch_add(1, Ordering::Relaxed);
        Gfid::from_random((u128::from(number) << 64 | 0xabcd_ef00_0000_0000 | u128::from(number)).to_be_bytes())
    }

    fn ask<O: Operation>(&self, operation: O) -> Result<O::Reply> {
        self.ask_as(&self.ctx, operation)
    }

    fn ask_as<O: Operation>(&self, ctx: &Ctx, operation: O) -> Result<O::Reply> {
        let subvol: &dyn Xlator = &**self.posix();
        self.runtime.block_on(subvol.send(ctx, operation))
    }

    fn birth(&self) -> Box<Birth> {
        Box::new(Birth {
            gfid: self.gfid(),
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            when: at(100),
            times: None,
            xattrs: vec![],
            pending: vec![],
        })
    }

    fn create(&self, parent: Gfid, file: &str, content: &str) -> Made {
        self.try_create(parent, file, content).unwrap()
    }

    fn try_create(&self, parent: Gfid, file: &str, content: &str) -> Result<Made> {
        self.ask(create(parent, file, self.birth(), content))
    }

    fn open_new(&self, parent: Gfid, file: &str, content: &str, id: u64) -> (Gfid, Fd) {
        let open = Some((id, OpenFlags::READ | OpenFlags::WRITE));
        let made = self.ask(Create { open, ..create(parent, file, self.birth(), content) }).unwrap();
        (made.iatt.gfid, Fd { id, gfid: made.iatt.gfid })
    }

    fn mkdir(&self, parent: Gfid, dir: &str) -> Gfid {
        self.try_mkdir(parent, dir).unwrap().iatt.gfid
    }

    fn try_mkdir(&self, parent: Gfid, dir: &str) -> Result<Made> {
        let birth = Box::new(Birth { mode: 0o755, ..*self.birth() });
        self.ask(mkdir(parent, dir, birth))
    }

    fn symlink(&self, parent: Gfid, link: &str, target: &str) -> Gfid {
        let target = Bytes::copy_from_slice(target.as_bytes());
        self.ask(Symlink { parent, name: name(link), birth: self.birth(), target }).unwrap().iatt.gfid
    }

    fn lookup(&self, parent: Gfid, entry: &str) -> Option<Found> {
        self.try_lookup(parent, entry).unwrap()
    }

    fn try_lookup(&self, parent: Gfid, entry: &str) -> Result<Option<Found>> {
        Ok(self.ask(Lookup { parent, name: name(entry) })?.found.map(|found| *found))
    }

    fn getattr(&self, gfid: Gfid) -> Result<Iatt> {
        Ok(self.ask(Getattr { gfid, fd: None, exact: AttrMask::all() })?.iatt)
    }

    fn unlink(&self, parent: Gfid, file: &str) -> Result<Iatt> {
        Ok(self.ask(Unlink { parent, name: name(file), only: Only::Any, when: at(200) })?.iatt)
    }

    fn rmdir(&self, parent: Gfid, dir: &str) -> Result<Iatt> {
        Ok(self.ask(Rmdir { parent, name: name(dir), when: at(200) })?.iatt)
    }

    fn link(&self, gfid: Gfid, parent: Gfid, file: &str) -> Result<Iatt> {
        Ok(self.ask(Link { gfid, parent, name: name(file), when: at(200) })?.iatt)
    }

    fn rename(&self, from: (Gfid, &str), to: (Gfid, &str), replace: Replace) -> Result<crate::reply::Renamed> {
        self.ask(Rename {
            from_parent: from.0,
            from_name: name(from.1),
            to_parent: to.0,
            to_name: name(to.1),
            replace,
            when: at(200),
        })
    }

    /// Every xattr on the disk, as text where it is text.
    fn xattrs(&self, path: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut list = vec![0; 65_536];
        let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
        let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let mut value = vec![0; 65_536];
                let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
                value.truncate(length);
                (String::from_utf8(name.to_vec()).unwrap(), value)
            })
            .collect()
    }

    /// Nothing is being made, nothing is kept for anybody.
    fn assert_nothing_left_aside(&self) {
        for folder in ["staging", "unlink"] {
            let left: Vec<_> = std::fs::read_dir(self.path(format!(".glusterfs/{folder}"))).unwrap().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
    }

    /// Every name has a gfid and a handle that is (or leads to) it, and every handle has a name.
    fn assert_whole(&self) {
        let mut inodes = vec![];
        self.walk(self.folder.path(), &mut inodes);
        let mut handles = 0;
        for first in 0..=255u8 {
            for second in std::fs::read_dir(self.path(format!(".glusterfs/{first:02x}"))).unwrap() {
                handles += std::fs::read_dir(second.unwrap().path()).unwrap().count();
            }
        }
        inodes.sort_unstable();
        inodes.dedup();
        assert_eq!(handles, inodes.len() + 1, "handles, and inodes with the root");
        self.assert_nothing_left_aside();
    }

    fn walk(&self, folder: &Path, inodes: &mut Vec<u64>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap() == ".glusterfs" {
                continue;
            }
            let gfid = Gfid::from_slice(&self.xattrs(&path)["trusted.gfid"]).unwrap();
            let meta = path.symlink_metadata().unwrap();
            let handle = self.handle(gfid);
            let reached = if meta.is_dir() { handle.metadata() } else { handle.symlink_metadata() };
            assert_eq!(reached.unwrap().ino(), meta.ino(), "{}", path.display());
            inodes.push(meta.ino());
            if meta.is_dir() {
                self.walk(&path, inodes);
            }
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn at(sec: i64) -> Time {
    Time { sec, nsec: 5 }
}

fn create(parent: Gfid, file: &str, birth: Box<Birth>, content: &str) -> Create {
    let content = Bytes::copy_from_slice(content.as_bytes());
    Create { parent, name: name(file), birth, content, open: None, lease: false }
}

fn mkdir(parent: Gfid, dir: &str, birth: Box<Birth>) -> Mkdir {
    Mkdir { parent, name: name(dir), birth, layout: None, mds: false, lease: false }
}

fn refused<T: std::fmt::Debug>(answer: Result<T>) -> Errno {
    match answer {
        Err(FopError::Refused(errno)) => errno,
        other => panic!("not refused: {other:?}"),
    }
}
