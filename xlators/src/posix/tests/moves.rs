//! Link, unlink, rmdir and rename.

use super::*;
use crate::fop::{Read, Release};
use crate::types::Kind;

fn gfid2paths(brick: &Brick, path: &str) -> Vec<String> {
    let xattrs = brick.xattrs(&brick.path(path));
    let ours = xattrs.into_iter().filter(|(name, _)| name.starts_with("trusted.gfid2path."));
    let mut values: Vec<_> = ours.map(|(_, value)| String::from_utf8(value).unwrap()).collect();
    values.iter_mut().for_each(|value| *value = value.replace("00000000-0000-0000-0000-000000000001", "root"));
    values.sort();
    values
}

#[test]
fn a_second_name_is_counted_recorded_and_taken_away_again() {
    let brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    let gfid = brick.create(ROOT, "x", "1").iatt.gfid;
    let iatt = brick.link(gfid, dir, "y").unwrap();
    assert_eq!((iatt.nlink, iatt.ctime, iatt.mtime), (2, at(200), at(100)));
    assert_eq!(brick.lookup(dir, "y").unwrap().iatt, iatt);
    assert_eq!(gfid2paths(&brick, "x"), [format!("{dir}/y").as_str(), "root/x"]);
    brick.assert_whole();
    assert_eq!(brick.unlink(ROOT, "x").unwrap().nlink, 1);
    assert_eq!(gfid2paths(&brick, "d/y"), [format!("{dir}/y")]);
    assert_eq!(brick.getattr(gfid).unwrap().nlink, 1);
    brick.assert_whole();
    assert_eq!(brick.unlink(dir, "y").unwrap().nlink, 0);
    assert_eq!(refused(brick.getattr(gfid)), Errno::STALE);
    brick.assert_whole();
}

#[test]
fn a_link_is_refused_where_a_name_is_and_to_a_directory() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    let dir = brick.mkdir(ROOT, "d");
    assert_eq!(refused(brick.link(gfid, ROOT, "d")), Errno::EXIST);
    assert_eq!(refused(brick.link(dir, ROOT, "e")), Errno::PERM);
    assert_eq!(refused(brick.link(brick.gfid(), ROOT, "e")), Errno::STALE);
    let soft = brick.symlink(ROOT, "s", "x");
    assert_eq!(brick.link(soft, dir, "t").unwrap().kind, Kind::Symlink);
    brick.assert_whole();
    let few = Brick::with(PosixOptions { hardlinks_max: Some(2), ..PosixOptions::default() });
    let gfid = few.create(ROOT, "x", "").iatt.gfid;
    few.link(gfid, ROOT, "y").unwrap();
    assert_eq!(refused(few.link(gfid, ROOT, "z")), Errno::MLINK);
}

#[test]
fn an_open_file_outlives_its_names_until_the_last_close() {
    let brick = Brick::new();
    let (gfid, fd) = brick.open_new(ROOT, "x", "content", 1);
    assert_eq!(brick.unlink(ROOT, "x").unwrap().nlink, 0);
    assert_eq!(brick.lookup(ROOT, "x"), None);
    assert!(brick.path(format!(".glusterfs/unlink/{gfid}")).exists());
    let read = |fd| brick.ask(Read { gfid, fd, offset: 0, size: 100 }).map(|answer| answer.data);
    assert_eq!(read(Some(fd)).unwrap(), "content");
    assert_eq!(read(None).unwrap(), "content");
    assert_eq!(brick.getattr(gfid).unwrap().nlink, 0);
    brick.ask(Release { fd }).unwrap();
    assert_eq!(refused(read(None)), Errno::STALE);
    assert_eq!(refused(brick.getattr(gfid)), Errno::STALE);
    brick.assert_whole();
}

#[test]
fn a_client_that_is_gone_has_nothing_open() {
    let brick = Brick::new();
    let (gfid, _) = brick.open_new(ROOT, "x", "content", 1);
    brick.unlink(ROOT, "x").unwrap();
    brick.posix().client_gone(ClientId(8));
    assert_eq!(brick.getattr(gfid).unwrap().nlink, 0);
    brick.posix().client_gone(ClientId(7));
    assert_eq!(refused(brick.getattr(gfid)), Errno::STALE);
    brick.assert_whole();
}

#[test]
fn an_open_file_without_names_can_get_one_again() {
    let brick = Brick::new();
    let (gfid, fd) = brick.open_new(ROOT, "x", "content", 1);
    brick.unlink(ROOT, "x").unwrap();
    assert_eq!(brick.link(gfid, ROOT, "y").unwrap().nlink, 1);
    brick.ask(Release { fd }).unwrap();
    assert_eq!(brick.lookup(ROOT, "y").unwrap().iatt.size, 7);
    brick.assert_whole();
}

#[test]
fn unlink_and_rmdir_take_their_own_kind_only() {
    let brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    brick.create(dir, "x", "");
    assert_eq!(refused(brick.unlink(ROOT, "d")), Errno::ISDIR);
    assert_eq!(refused(brick.rmdir(dir, "x")), Errno::NOTDIR);
    assert_eq!(refused(brick.rmdir(ROOT, "d")), Errno::NOTEMPTY);
    assert_eq!(refused(brick.unlink(dir, "absent")), Errno::NOENT);
    assert_eq!(refused(brick.rmdir(dir, "absent")), Errno::NOENT);
    brick.assert_whole();
    brick.unlink(dir, "x").unwrap();
    let iatt = brick.rmdir(ROOT, "d").unwrap();
    assert_eq!((iatt.gfid, iatt.nlink), (dir, 0));
    assert_eq!(refused(brick.try_create(dir, "x", "")), Errno::STALE);
    assert_eq!(brick.getattr(ROOT).unwrap().nlink, 2);
    brick.assert_whole();
}

#[test]
fn a_file_moves_with_its_recorded_name() {
    let brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    let gfid = brick.create(ROOT, "x", "1").iatt.gfid;
    let renamed = brick.rename((ROOT, "x"), (dir, "y"), Replace::Yes).unwrap();
    assert_eq!((renamed.iatt.gfid, renamed.iatt.ctime, renamed.replaced), (gfid, at(200), None));
    assert_eq!((renamed.from_parent.mtime, renamed.to_parent.mtime), (at(200), at(200)));
    assert_eq!(gfid2paths(&brick, "d/y"), [format!("{dir}/y")]);
    assert_eq!(brick.lookup(dir, "y").unwrap().iatt, renamed.iatt);
    assert_eq!(brick.lookup(ROOT, "x"), None);
    brick.assert_whole();
}

#[test]
fn a_replaced_file_is_gone_unless_it_has_another_name_or_is_open() {
    let brick = Brick::new();
    brick.create(ROOT, "x", "new");
    let old = brick.create(ROOT, "y", "old").iatt.gfid;
    let renamed = brick.rename((ROOT, "x"), (ROOT, "y"), Replace::Yes).unwrap();
    assert_eq!(renamed.replaced.map(|iatt| (iatt.gfid, iatt.nlink)), Some((old, 0)));
    assert_eq!(refused(brick.getattr(old)), Errno::STALE);
    brick.assert_whole();

    let kept = brick.create(ROOT, "a", "kept").iatt.gfid;
    brick.link(kept, ROOT, "b").unwrap();
    brick.rename((ROOT, "y"), (ROOT, "a"), Replace::Yes).unwrap();
    assert_eq!(gfid2paths(&brick, "b"), ["root/b"]);
    assert_eq!(brick.getattr(kept).unwrap().nlink, 1);
    brick.assert_whole();

    let (open, fd) = brick.open_new(ROOT, "o", "open", 1);
    brick.rename((ROOT, "a"), (ROOT, "o"), Replace::Yes).unwrap();
    assert_eq!(brick.ask(Read { gfid: open, fd: Some(fd), offset: 0, size: 9 }).unwrap().data, "open");
    assert_eq!(brick.getattr(open).unwrap().nlink, 0);
    brick.ask(Release { fd }).unwrap();
    brick.assert_whole();
}

#[test]
fn two_names_of_one_inode_both_stay() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    brick.link(gfid, ROOT, "y").unwrap();
    brick.rename((ROOT, "x"), (ROOT, "y"), Replace::Yes).unwrap();
    assert_eq!(brick.getattr(gfid).unwrap().nlink, 2);
    assert_eq!(gfid2paths(&brick, "x"), ["root/x", "root/y"]);
    brick.assert_whole();
}

#[test]
fn a_directory_moves_with_all_below_it() {
    let brick = Brick::new();
    let (a, b) = (brick.mkdir(ROOT, "a"), brick.mkdir(ROOT, "b"));
    let sub = brick.mkdir(a, "sub");
    brick.create(sub, "x", "deep");
    let renamed = brick.rename((ROOT, "a"), (b, "c"), Replace::Yes).unwrap();
    assert_eq!((renamed.from_parent.nlink, renamed.to_parent.nlink), (3, 3));
    assert_eq!(std::fs::read_link(brick.handle(a)).unwrap().file_name().unwrap(), "c");
    brick.assert_whole();
    brick.create(sub, "y", "after");
    assert_eq!(std::fs::read(brick.path("b/c/sub/y")).unwrap(), b"after");
    // Nothing is remembered of it.
    let mut brick = brick;
    brick.restart();
    assert_eq!(brick.lookup(sub, "x").unwrap().iatt.size, 4);
    assert_eq!(refused(brick.rename((ROOT, "b"), (sub, "b"), Replace::Yes)), Errno::INVAL);
    brick.assert_whole();
}

#[test]
fn an_empty_directory_is_replaced_and_a_full_one_is_not() {
    let brick = Brick::new();
    let a = brick.mkdir(ROOT, "a");
    let b = brick.mkdir(ROOT, "b");
    brick.create(b, "x", "");
    brick.create(ROOT, "f", "");
    assert_eq!(refused(brick.rename((ROOT, "a"), (ROOT, "b"), Replace::Yes)), Errno::NOTEMPTY);
    assert_eq!(refused(brick.rename((ROOT, "a"), (ROOT, "f"), Replace::Yes)), Errno::NOTDIR);
    assert_eq!(refused(brick.rename((ROOT, "f"), (ROOT, "a"), Replace::Yes)), Errno::ISDIR);
    brick.assert_whole();
    let renamed = brick.rename((ROOT, "b"), (ROOT, "a"), Replace::Yes).unwrap();
    assert_eq!(renamed.replaced.map(|iatt| (iatt.gfid, iatt.nlink)), Some((a, 0)));
    assert_eq!(refused(brick.getattr(a)), Errno::STALE);
    brick.assert_whole();
}

#[test]
fn no_replace_and_exchange_do_what_they_say() {
    let brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    let file = brick.create(ROOT, "x", "1").iatt.gfid;
    let sub = brick.mkdir(dir, "s");
    assert_eq!(refused(brick.rename((ROOT, "x"), (dir, "s"), Replace::No)), Errno::EXIST);
    assert_eq!(refused(brick.rename((ROOT, "x"), (dir, "absent"), Replace::Exchange)), Errno::NOENT);
    let renamed = brick.rename((ROOT, "x"), (dir, "s"), Replace::Exchange).unwrap();
    assert_eq!((renamed.iatt.gfid, renamed.replaced.unwrap().gfid), (file, sub));
    assert_eq!(brick.lookup(ROOT, "x").unwrap().iatt.gfid, sub);
    assert_eq!(brick.lookup(dir, "s").unwrap().iatt.gfid, file);
    assert_eq!(gfid2paths(&brick, "d/s"), [format!("{dir}/s")]);
    brick.assert_whole();
    brick.rename((dir, "s"), (ROOT, "new"), Replace::No).unwrap();
    brick.assert_whole();
}
