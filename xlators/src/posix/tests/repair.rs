//! What crashes, administrators and damaged disks leave, and what becomes of it.

use std::os::unix::fs::symlink;

use rustix::fs::{XattrFlags, lsetxattr};

use super::*;
use crate::fop::Readlink;

#[test]
fn a_missing_handle_is_made_by_the_next_lookup() {
    let mut brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    let file = brick.create(dir, "x", "1").iatt.gfid;
    for gfid in [dir, file] {
        std::fs::remove_file(brick.handle(gfid)).unwrap();
    }
    brick.restart();
    assert_eq!(refused(brick.getattr(file)), Errno::STALE);
    assert_eq!(refused(brick.getattr(dir)), Errno::STALE);
    brick.lookup(ROOT, "d").unwrap();
    brick.lookup(dir, "x").unwrap();
    assert_eq!(brick.getattr(file).unwrap().nlink, 1);
    brick.assert_whole();
}

#[test]
fn a_handle_lost_while_the_brick_runs_is_made_again_too() {
    let brick = Brick::new();
    let file = brick.create(ROOT, "x", "1").iatt.gfid;
    std::fs::remove_file(brick.handle(file)).unwrap();
    assert_eq!(refused(brick.getattr(file)), Errno::STALE);
    brick.lookup(ROOT, "x").unwrap();
    assert_eq!(brick.getattr(file).unwrap().size, 1);
    brick.assert_whole();
}

#[test]
fn a_directory_renamed_by_a_crashed_brick_is_found_by_its_new_name() {
    let mut brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    brick.create(dir, "x", "1");
    brick.restart();
    std::fs::rename(brick.path("d"), brick.path("e")).unwrap();
    // The old name now belongs to another: the handle must not lead there.
    let other = brick.mkdir(ROOT, "d");
    assert_eq!(refused(brick.try_lookup(dir, "x")), Errno::STALE);
    assert_eq!(brick.lookup(ROOT, "e").unwrap().iatt.gfid, dir);
    assert_eq!(brick.lookup(dir, "x").unwrap().iatt.size, 1);
    assert_ne!(dir, other);
    brick.assert_whole();
}

#[test]
fn what_was_being_made_when_the_brick_died_is_gone_with_its_handle() {
    let mut brick = Brick::new();
    let link = brick.symlink(ROOT, "l", "t");
    let dir = brick.mkdir(ROOT, "d");
    let (_, _fd) = brick.open_new(ROOT, "x", "1", 1);
    brick.unlink(ROOT, "x").unwrap();
    std::fs::rename(brick.path("l"), brick.path(format!(".glusterfs/staging/{link}"))).unwrap();
    std::fs::rename(brick.path("d"), brick.path(format!(".glusterfs/staging/{dir}"))).unwrap();
    symlink("x", brick.path(format!(".glusterfs/staging/{dir}~"))).unwrap();
    brick.restart();
    assert_eq!(refused(brick.ask(Readlink { gfid: link })), Errno::STALE);
    brick.assert_whole();
    brick.try_mkdir(ROOT, "d").unwrap();
}

#[test]
fn a_handle_that_never_got_its_name_gives_way() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "half").iatt.gfid;
    std::fs::remove_file(brick.path("x")).unwrap();
    let again = Box::new(Birth { gfid, ..*brick.birth() });
    assert_eq!(brick.ask(create(ROOT, "y", again, "whole")).unwrap().iatt.size, 5);
    brick.assert_whole();
}

#[test]
fn a_stale_directory_handle_gives_way_to_the_directory_made_again() {
    let mut brick = Brick::new();
    let gfid = brick.mkdir(ROOT, "d");
    std::fs::remove_dir(brick.path("d")).unwrap();
    brick.restart();
    let birth = || Box::new(Birth { gfid, mode: 0o755, ..*brick.birth() });
    brick.ask(mkdir(ROOT, "d", birth())).unwrap();
    brick.assert_whole();
    brick.rmdir(ROOT, "d").unwrap();
    brick.assert_whole();
    // As heal does for a directory renamed elsewhere: the new place first, then the old one goes.
    brick.ask(mkdir(ROOT, "old", birth())).unwrap();
    brick.ask(mkdir(ROOT, "new", birth())).unwrap();
    brick.rmdir(ROOT, "old").unwrap();
    assert_eq!(brick.lookup(ROOT, "new").unwrap().iatt.gfid, gfid);
    brick.try_create(gfid, "x", "").unwrap();
    brick.assert_whole();
}

#[test]
fn a_file_without_a_gfid_is_absent_while_young_and_refused_when_old() {
    let brick = Brick::new();
    std::fs::write(brick.path("stranger"), "").unwrap();
    assert_eq!(brick.lookup(ROOT, "stranger"), None);
    let old = rustix::fs::statat(rustix::fs::CWD, brick.path("stranger"), rustix::fs::AtFlags::empty()).unwrap();
    let mut stat = old;
    stat.st_ctime -= 5;
    assert_eq!(super::super::entry::without_gfid(&stat), Errno::NODATA);
    assert_eq!(refused(brick.try_create(ROOT, "stranger", "")), Errno::EXIST);
}

#[test]
fn directories_of_any_depth_are_found() {
    let mut brick = Brick::new();
    let mut dir = ROOT;
    for _ in 0..300 {
        dir = brick.mkdir(dir, "a-directory-with-a-name-of-some-length");
    }
    brick.create(dir, "x", "deep");
    brick.restart();
    assert_eq!(brick.lookup(dir, "x").unwrap().iatt.size, 4);
}

#[test]
fn hostile_handles_lead_nowhere() {
    let mut brick = Brick::new();
    let (a, b) = (brick.mkdir(ROOT, "a"), brick.mkdir(ROOT, "b"));
    let file = brick.create(ROOT, "x", "").iatt.gfid;
    let target = |parent: Gfid, name: &str| {
        let text = parent.to_string();
        format!("../../{}/{}/{text}/{name}", &text[..2], &text[2..4])
    };
    let rows = [
        ("/etc", Errno::STALE),
        ("../../..", Errno::STALE),
        ("../../../../../../etc", Errno::STALE),
        (&target(a, "a"), Errno::LOOP),
        (&target(b, "a"), Errno::LOOP),
        (&target(file, "a"), Errno::STALE),
        (&target(ROOT, ".glusterfs"), Errno::STALE),
        (&target(ROOT, "x"), Errno::STALE),
    ];
    std::fs::remove_file(brick.handle(b)).unwrap();
    symlink(target(a, "b"), brick.handle(b)).unwrap();
    for (text, errno) in rows {
        std::fs::remove_file(brick.handle(a)).unwrap();
        symlink(text, brick.handle(a)).unwrap();
        brick.restart();
        assert_eq!((text, refused(brick.getattr(a))), (text, errno));
        assert_eq!(refused(brick.try_create(a, "x", "")), errno);
    }
}

#[test]
fn hostile_xattrs_harm_nobody() {
    let mut brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    let set = |name: &str, value: &[u8]| lsetxattr(brick.path("x"), name, value, XattrFlags::empty()).unwrap();
    set("trusted.glusterfs.mdata", &[0xff; 57]);
    set("trusted.glusterfs.dht.linkto", &[]);
    set("trusted.gfid", &[0; 16]);
    assert_eq!(refused(brick.try_lookup(ROOT, "x")), Errno::IO);
    set("trusted.gfid", ROOT.as_bytes());
    assert_eq!(refused(brick.try_lookup(ROOT, "x")), Errno::IO);
    assert_eq!(refused(brick.unlink(ROOT, "x")), Errno::IO);
    set("trusted.gfid", gfid.as_bytes());
    brick.restart();
    assert_eq!(brick.lookup(ROOT, "x").unwrap().iatt.gfid, gfid);
    std::fs::remove_file(brick.handle(gfid)).unwrap();
    std::fs::create_dir(brick.handle(gfid)).unwrap();
    brick.restart();
    assert_eq!(refused(brick.getattr(gfid)), Errno::STALE);
}
