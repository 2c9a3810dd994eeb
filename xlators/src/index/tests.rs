//! Marks, indices and the journal, on a brick in a temporary directory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::ctx::Caller;
use crate::fop::{Backlog, Birth, Create, Getattr, Lookup, Only, Operation, Readdir, Unlink};
use crate::posix::{PosixOptions, create_brick, prepare_process};
use crate::types::{AttrMask, ClientId, Name, Time};

const VOLUME: Uuid = Uuid::from_u128(7);

struct Brick {
    folder: TempDir,
    index: Option<Arc<Index>>,
    runtime: tokio::runtime::Runtime,
    ctx: Ctx,
}

impl Brick {
    fn new() -> Self {
        prepare_process();
        let folder = tempfile::tempdir().unwrap();
        create_brick(folder.path(), VOLUME).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ctx = Ctx::new(1, ClientId(7), Caller::root(), deadline);
        let mut brick = Self { folder, index: None, runtime, ctx };
        brick.restart();
        brick
    }

    fn restart(&mut self) {
        self.index = None;
        let posix = Posix::open(self.folder.path(), VOLUME, PosixOptions::default()).unwrap();
        self.index = Some(Index::open(posix).unwrap());
    }

    fn index(&self) -> &Arc<Index> {
        self.index.as_ref().unwrap()
    }

    fn ask<O: Operation>(&self, operation: O) -> Result<O::Reply> {
        let subvol: &dyn Xlator = &**self.index();
        self.runtime.block_on(subvol.send(&self.ctx, operation))
    }

    fn create(&self, file: &str, pending: Vec<Pending>) -> Result<Gfid> {
        let birth = Birth {
            gfid: gfid(file),
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            when: Time::default(),
            times: None,
            xattrs: vec![],
            pending,
        };
        let (parent, birth) = (Gfid::ROOT, Box::new(birth));
        let content = Bytes::new();
        let made = self.ask(Create { parent, name: name(file), birth, content, open: None, lease: false })?;
        Ok(made.iatt.gfid)
    }

    fn mark(&self, gfid: Gfid, deltas: &[(&str, [i32; 3])]) -> Vec<[i32; 3]> {
        let deltas = deltas.iter().map(|(key, counters)| mark(key, *counters)).collect();
        self.ask(Mark { gfid, deltas }).unwrap().marks.iter().map(|mark| mark.counters.0).collect()
    }

    fn marks_by_lookup(&self, file: &str) -> Vec<Pending> {
        self.ask(Lookup { parent: Gfid::ROOT, name: name(file) }).unwrap().found.unwrap().marks
    }

    /// What is listed in an index, bases left out.
    fn listed(&self, index: &str) -> BTreeSet<String> {
        let folder = self.folder.path().join(".glusterfs/indices").join(index);
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with(index)).collect()
    }

    fn backlog(&self) -> (u64, u64) {
        let waiting = self.ask(Backlog).unwrap();
        (waiting.pending, waiting.dirty)
    }
}

fn gfid(text: &str) -> Gfid {
    let mut bytes = [9; 16];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Gfid::from_bytes(bytes)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn mark(key: &str, counters: [i32; 3]) -> Pending {
    Pending { key: XattrName::new(format!("trusted.afr.{key}").into_bytes()).unwrap(), counters: Counters(counters) }
}

fn set<const N: usize>(gfids: [Gfid; N]) -> BTreeSet<String> {
    gfids.iter().map(Gfid::to_string).collect()
}

#[test]
fn a_mark_is_counted_listed_and_seen_until_it_is_taken_back() {
    let brick = Brick::new();
    let (x, y) = (brick.create("x", vec![]).unwrap(), brick.create("y", vec![]).unwrap());
    let mut blames = brick.index().blames();
    assert!(!*blames.borrow_and_update());
    assert_eq!(brick.mark(x, &[("c-1", [1, 0, 0]), ("c-2", [0, 0, 0])]), [[1, 0, 0], [0, 0, 0]]);
    assert_eq!(brick.mark(x, &[("c-1", [1, 1, 0]), ("c-2", [0, 0, 0])]), [[2, 1, 0], [0, 0, 0]]);
    assert!(blames.has_changed().unwrap() && *blames.borrow_and_update());
    assert_eq!((brick.listed("xattrop"), brick.backlog()), (set([x]), (1, 0)));
    assert_eq!(brick.marks_by_lookup("x"), [mark("c-1", [2, 1, 0])]);
    assert_eq!(brick.marks_by_lookup("y"), []);
    let found = brick.ask(Getattr { gfid: x, fd: None, exact: AttrMask::all() }).unwrap();
    assert_eq!(found.marks, [mark("c-1", [2, 1, 0])]);
    let page = Readdir { gfid: Gfid::ROOT, fd: None, after: 0, bytes_max: 4096, attrs: true };
    let entries = brick.ask(page).unwrap().entries;
    let marked = entries.iter().filter(|entry| !entry.found.as_ref().unwrap().marks.is_empty());
    assert_eq!(marked.map(|entry| entry.gfid).collect::<Vec<_>>(), [x]);
    assert_eq!(brick.mark(x, &[("c-1", [-2, -1, 0]), ("c-2", [0, 0, 0])]), [[0; 3]; 2]);
    assert!(!*blames.borrow_and_update());
    assert_eq!((brick.listed("xattrop"), brick.backlog()), (set([]), (0, 0)));
    assert_eq!(brick.marks_by_lookup("x"), []);
    assert_eq!(brick.mark(y, &[("c-1", [0; 3]), ("dirty", [0; 3])]), [[0; 3]; 2]);
    let key = |key: &str| rustix::fs::lgetxattr(brick.folder.path().join("y"), key, &mut [0u8; 12][..]);
    assert_eq!(key("trusted.afr.c-1"), Err(Errno::NODATA), "a zero makes no xattr");
}

#[test]
fn a_removed_object_leaves_the_index() {
    let brick = Brick::new();
    let x = brick.create("x", vec![mark("c-1", [1, 1, 0])]).unwrap();
    assert_eq!((brick.listed("xattrop"), brick.marks_by_lookup("x")), (set([x]), vec![mark("c-1", [1, 1, 0])]));
    let unlink = Unlink { parent: Gfid::ROOT, name: name("x"), only: Only::Any, when: Time::default() };
    brick.ask(unlink).unwrap();
    assert_eq!((brick.listed("xattrop"), brick.backlog()), (set([]), (0, 0)));
}

#[test]
fn a_creation_that_fails_lists_nothing() {
    let brick = Brick::new();
    brick.create("x", vec![]).unwrap();
    let birth_fails = brick.create("x", vec![mark("c-1", [1, 1, 0])]);
    assert!(birth_fails.is_err());
    assert_eq!(brick.listed("xattrop"), set([]));
}

#[test]
fn what_was_listed_is_known_after_a_restart() {
    let mut brick = Brick::new();
    let x = brick.create("x", vec![]).unwrap();
    brick.mark(x, &[("c-1", [0, 1, 0])]);
    brick.mark(x, &[("dirty", [1, 0, 0])]);
    brick.restart();
    assert_eq!(brick.backlog(), (1, 1));
    assert!(brick.index().blames_any() && brick.index().left_dirty(x));
    assert_eq!(brick.marks_by_lookup("x"), [mark("c-1", [0, 1, 0]), mark("dirty", [1, 0, 0])]);
    brick.mark(x, &[("c-1", [0, -1, 0]), ("dirty", [-1, 0, 0])]);
    assert!(!brick.index().blames_any() && !brick.index().left_dirty(x));
    brick.restart();
    assert_eq!((brick.backlog(), brick.listed("dirty")), ((0, 0), set([])));
    // A base that nothing is linked to is from an earlier life.
    let bases =
        |index: &str| std::fs::read_dir(brick.folder.path().join(".glusterfs/indices").join(index)).unwrap().count();
    assert_eq!((bases("dirty"), bases("xattrop")), (0, 0));
}

#[test]
fn the_journal_marks_only_what_a_crash_left_in_it() {
    let mut brick = Brick::new();
    let (x, y) = (brick.create("x", vec![]).unwrap(), brick.create("y", vec![]).unwrap());
    let never_made = gfid("z");
    for gfid in [x, x, y, never_made, Gfid::ROOT] {
        brick.index().mark_dirty(gfid).unwrap();
    }
    assert_eq!((brick.listed("dirty"), brick.backlog()), (set([x, y, never_made, Gfid::ROOT]), (0, 4)));
    assert_eq!(brick.marks_by_lookup("x"), [], "only the journal knows");
    brick.index().sync().unwrap();
    brick.index().clear(&[y, gfid("absent")]).unwrap();
    brick.restart();
    assert_eq!((brick.listed("dirty"), brick.backlog()), (set([x, Gfid::ROOT]), (0, 2)));
    assert_eq!(brick.marks_by_lookup("x"), [mark("dirty", [1, 1, 0])]);
    assert!(brick.index().left_dirty(x) && brick.index().left_dirty(Gfid::ROOT) && !brick.index().left_dirty(y));
    // The healer changes it under a lease, and takes the mark back meanwhile.
    brick.index().mark_dirty(x).unwrap();
    brick.mark(x, &[("dirty", [-1, -1, 0])]);
    assert_eq!((brick.listed("dirty"), brick.index().left_dirty(x)), (set([x, Gfid::ROOT]), false));
    brick.index().clear(&[x, Gfid::ROOT]).unwrap();
    assert_eq!(brick.listed("dirty"), set([Gfid::ROOT]), "the root was not healed");
}

#[test]
fn a_file_that_never_got_its_name_goes_if_its_directory_is_in_the_journal() {
    let mut brick = Brick::new();
    let (x, y) = (brick.create("x", vec![]).unwrap(), brick.create("y", vec![]).unwrap());
    std::fs::remove_file(brick.folder.path().join("x")).unwrap();
    let posix = brick.index().posix.clone();
    let look = |parents: &[Gfid], since| {
        let parents = parents.iter().copied().collect();
        (0..=255).map(|first| posix.drop_nameless_of(first, &parents, since).unwrap()).sum::<usize>()
    };
    assert_eq!(look(&[y], 0), 0, "of another directory");
    assert_eq!(look(&[Gfid::ROOT], i64::MAX), 0, "older than the journal");
    let getattr = |gfid| brick.ask(Getattr { gfid, fd: None, exact: AttrMask::all() });
    assert!(getattr(x).is_ok());
    assert_eq!(look(&[Gfid::ROOT], 0), 1);
    assert!(getattr(x).is_err() && getattr(y).is_ok());
    drop(posix);
    brick.index().mark_dirty(Gfid::ROOT).unwrap();
    brick.restart();
}

#[test]
fn only_marks_are_marked() {
    let brick = Brick::new();
    let x = brick.create("x", vec![]).unwrap();
    let wrong = Pending { key: XattrName::new("trusted.gfid").unwrap(), counters: Counters([1; 3]) };
    let many = vec![mark("c-1", [1; 3]); 65];
    for deltas in [vec![wrong], vec![mark("", [1; 3])], many] {
        assert!(brick.ask(Mark { gfid: x, deltas }).is_err());
    }
    assert!(brick.ask(Mark { gfid: gfid("absent"), deltas: vec![mark("c-1", [1; 3])] }).is_err());
    assert_eq!((brick.listed("xattrop"), brick.backlog()), (set([]), (0, 0)));
}
