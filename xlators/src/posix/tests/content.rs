//! Open, read, write and sizes; attributes and xattrs of what is there.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::fop::{
    Allocate, CopyRange, Fallocate, Fsync, Getxattr, Listxattr, Open, Place, Read, Release, Removexattr, Seek, SeekTo,
    SetHow, Setattr, Setxattr, Statfs, Truncate, Write,
};
use crate::reply::Written;
use crate::types::{Xattr, XattrName};

fn write_at(gfid: Gfid, fd: Option<Fd>, place: Place, data: &str, kill_priv: bool) -> Write {
    let data = Bytes::copy_from_slice(data.as_bytes());
    Write { gfid, fd, place, data, sync: false, kill_priv, when: at(300), then: None }
}

fn write(brick: &Brick, gfid: Gfid, fd: Option<Fd>, place: Place, data: &str) -> Result<Written> {
    brick.ask(write_at(gfid, fd, place, data, false))
}

fn read(brick: &Brick, gfid: Gfid, fd: Option<Fd>, offset: u64, size: u32) -> Result<Bytes> {
    Ok(brick.ask(Read { gfid, fd, offset, size })?.data)
}

fn setattr(gfid: Gfid) -> Setattr {
    let when = at(300);
    Setattr { gfid, fd: None, mode: None, uid: None, gid: None, atime: None, mtime: None, kill_priv: false, when }
}

fn key(text: &str) -> XattrName {
    XattrName::new(text.as_bytes().to_vec()).unwrap()
}

fn setxattr(gfid: Gfid, name: &str, value: &[u8], how: SetHow) -> Setxattr {
    let xattr = Xattr { name: key(name), value: Bytes::copy_from_slice(value) };
    Setxattr { gfid, xattr, how, kill_sgid: false, when: at(300) }
}

#[test]
fn a_write_is_read_back_with_and_without_an_open_file() {
    let brick = Brick::new();
    let (gfid, fd) = brick.open_new(ROOT, "x", "", 1);
    let written = write(&brick, gfid, Some(fd), Place::At(3), "abc").unwrap();
    assert_eq!((written.offset, written.bytes, written.iatt.size), (3, 3, 6));
    assert_eq!((written.iatt.mtime, written.iatt.ctime, written.iatt.atime), (at(300), at(300), at(100)));
    write(&brick, gfid, None, Place::At(0), "XYZ").unwrap();
    assert_eq!(read(&brick, gfid, Some(fd), 0, 100).unwrap(), "XYZabc");
    assert_eq!(read(&brick, gfid, None, 2, 2).unwrap(), "Za");
    assert_eq!(read(&brick, gfid, None, 6, 2).unwrap(), "");
    let unknown = Fd { id: 99, gfid };
    assert_eq!(read(&brick, gfid, Some(unknown), 0, 1).unwrap(), "X");
    brick.ask(Release { fd: unknown }).unwrap();
    assert_eq!(brick.lookup(ROOT, "x").unwrap().iatt, brick.getattr(gfid).unwrap());
}

#[test]
fn a_large_or_durable_write_is_the_same() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    let data = "0123456789abcdef".repeat(1 << 16);
    assert_eq!(write(&brick, gfid, None, Place::At(0), &data).unwrap().bytes, 1 << 20);
    let durable = Write { sync: true, ..write_at(gfid, None, Place::End, "end", false) };
    assert_eq!(brick.ask(durable).unwrap().offset, 1 << 20);
    assert_eq!(read(&brick, gfid, None, 0, 2 << 20).unwrap().len(), 1 << 20);
    assert_eq!(read(&brick, gfid, None, (1 << 20) - 1, 100).unwrap(), "fend");
    assert_eq!(refused(write(&brick, gfid, None, Place::At(0), &(data + "x"))), Errno::INVAL);
    // From the disk, with nothing in the page cache.
    let file = std::fs::File::open(brick.path("x")).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(read(&brick, gfid, None, (1 << 20) - 1, 100).unwrap(), "fend");
}

#[test]
fn appends_tell_where_they_went() {
    let brick = Brick::new();
    let (gfid, fd) = brick.open_new(ROOT, "x", "12345", 1);
    let rows = [("ab", 5), ("c", 7), ("", 8), ("d", 8)];
    for (data, offset) in rows {
        let written = write(&brick, gfid, Some(fd), Place::End, data).unwrap();
        assert_eq!((written.offset, written.iatt.size), (offset, offset + data.len() as u64));
    }
    assert_eq!(read(&brick, gfid, None, 0, 100).unwrap(), "12345abcd");
}

#[test]
fn privileges_go_when_asked() {
    let brick = Brick::new();
    let birth = Box::new(Birth { mode: 0o6755, ..*brick.birth() });
    let gfid = brick.ask(create(ROOT, "x", birth, "")).unwrap().iatt.gfid;
    let mode = |file: Result<Iatt>| file.unwrap().mode;
    write(&brick, gfid, None, Place::At(0), "a").unwrap();
    assert_eq!(mode(brick.getattr(gfid)), 0o6755);
    assert_eq!(brick.ask(write_at(gfid, None, Place::At(0), "a", true)).unwrap().iatt.mode, 0o755);
    brick.ask(Setattr { mode: Some(0o6745), ..setattr(gfid) }).unwrap();
    let truncate = Truncate { gfid, fd: None, size: 0, kill_priv: true, when: at(300) };
    // Without leave to execute, set-group-id meant mandatory locking.
    assert_eq!(brick.ask(truncate).unwrap().iatt.mode, 0o2745);
    brick.ask(Setattr { mode: Some(0o6755), ..setattr(gfid) }).unwrap();
    assert_eq!(brick.ask(Setattr { kill_priv: true, ..setattr(gfid) }).unwrap().iatt.mode, 0o755);
}

#[test]
fn sizes_and_ranges_change_with_their_times() {
    let brick = Brick::new();
    let (gfid, fd) = brick.open_new(ROOT, "x", "0123456789", 1);
    let fd = Some(fd);
    let iatt = brick.ask(Truncate { gfid, fd, size: 4, kill_priv: false, when: at(300) }).unwrap().iatt;
    assert_eq!((iatt.size, iatt.mtime, iatt.ctime), (4, at(300), at(300)));
    let allocate = |how, offset, length| Fallocate { gfid, fd, how, offset, length, when: at(400) };
    assert_eq!(brick.ask(allocate(Allocate::ReserveKeepSize, 0, 1 << 20)).unwrap().iatt.size, 4);
    let iatt = brick.ask(allocate(Allocate::Reserve, 0, 1 << 20)).unwrap().iatt;
    assert_eq!((iatt.size, iatt.mtime), (1 << 20, at(400)));
    assert!(iatt.blocks >= 2048);
    let iatt = brick.ask(allocate(Allocate::Punch, 4096, (1 << 20) - 4096)).unwrap().iatt;
    assert!(iatt.blocks < 2048);
    brick.ask(allocate(Allocate::ZeroKeepSize, 0, 2)).unwrap();
    assert_eq!(read(&brick, gfid, fd, 0, 5).unwrap(), "\0\x0023\0");
    brick.ask(allocate(Allocate::Zero, 0, 2 << 20)).unwrap();
    assert_eq!(brick.getattr(gfid).unwrap().size, 2 << 20);
    assert_eq!(refused(brick.ask(allocate(Allocate::Punch, 0, 0))), Errno::INVAL);
}

#[test]
fn data_and_holes_are_found() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    write(&brick, gfid, None, Place::At(1 << 20), "data").unwrap();
    let seek = |offset, to| brick.ask(Seek { gfid, fd: None, offset, to }).map(|answer| answer.offset);
    assert_eq!(seek(0, SeekTo::Hole).unwrap(), 0);
    assert_eq!(seek(0, SeekTo::Data).unwrap(), 1 << 20);
    assert_eq!(seek(1 << 20, SeekTo::Hole).unwrap(), (1 << 20) + 4);
    assert_eq!(refused(seek(1 << 21, SeekTo::Data)), Errno::NXIO);
    assert_eq!(refused(seek(u64::MAX, SeekTo::Data)), Errno::NXIO);
}

#[test]
fn a_range_is_copied_on_the_brick() {
    let brick = Brick::new();
    let from = brick.create(ROOT, "x", "0123456789").iatt.gfid;
    let to = brick.create(ROOT, "y", "ab").iatt.gfid;
    let copy = |from, to, length| CopyRange {
        from,
        from_fd: None,
        from_offset: 3,
        to,
        to_fd: None,
        to_offset: 2,
        length,
        when: at(300),
    };
    let written = brick.ask(copy(from, to, u64::MAX)).unwrap();
    assert_eq!((written.offset, written.bytes, written.iatt.size, written.iatt.mtime), (2, 7, 9, at(300)));
    assert_eq!(read(&brick, to, None, 0, 100).unwrap(), "ab3456789");
    assert_eq!(refused(brick.ask(copy(from, from, 5))), Errno::INVAL);
}

#[test]
fn opening_again_replaces_and_truncates() {
    let brick = Brick::new();
    let (gfid, fd) = brick.open_new(ROOT, "x", "content", 1);
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    brick.ask(Open { fd, flags, when: at(300) }).unwrap();
    let iatt = brick.getattr(gfid).unwrap();
    assert_eq!((iatt.size, iatt.mtime), (0, at(300)));
    brick.unlink(ROOT, "x").unwrap();
    brick.ask(Release { fd }).unwrap();
    brick.assert_whole();
    let dir = brick.mkdir(ROOT, "d");
    let open = |gfid| Open { fd: Fd { id: 5, gfid }, flags: OpenFlags::READ, when: at(1) };
    assert_eq!(refused(brick.ask(open(dir))), Errno::ISDIR);
    assert_eq!(refused(brick.ask(open(brick.symlink(ROOT, "l", "t")))), Errno::INVAL);
    assert_eq!(refused(brick.ask(open(gfid))), Errno::STALE);
    let none = Brick::with(PosixOptions { open_files_max: 0, ..PosixOptions::default() });
    let gfid = none.create(ROOT, "x", "").iatt.gfid;
    assert_eq!(refused(none.ask(open(gfid))), Errno::NFILE);
}

#[test]
fn attributes_change_one_by_one() {
    let brick = Brick::new();
    let (file, fd) = brick.open_new(ROOT, "x", "", 1);
    let (dir, link) = (brick.mkdir(ROOT, "d"), brick.symlink(ROOT, "l", "t"));
    for gfid in [file, dir, link] {
        let iatt = brick.ask(Setattr { uid: Some(5), gid: Some(6), ..setattr(gfid) }).unwrap().iatt;
        assert_eq!((iatt.uid, iatt.gid, iatt.ctime, iatt.mtime), (5, 6, at(300), at(100)));
        assert_eq!(brick.getattr(gfid).unwrap(), iatt);
    }
    let through = Setattr { fd: Some(fd), mode: Some(0o100_600), ..setattr(file) };
    assert_eq!(brick.ask(through).unwrap().iatt.mode, 0o600);
    assert_eq!(brick.ask(Setattr { mode: Some(0o1777), ..setattr(dir) }).unwrap().iatt.mode, 0o1777);
    assert_eq!(refused(brick.ask(Setattr { mode: Some(0o600), ..setattr(link) })), Errno::OPNOTSUPP);
    assert_eq!(refused(brick.ask(Setattr { uid: Some(u32::MAX), ..setattr(file) })), Errno::INVAL);
    assert_eq!(brick.getattr(link).unwrap().mode, 0o777);
}

#[test]
fn set_times_hold_and_other_changes_only_move_forward() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    let (old, far) = (Time { sec: -10, nsec: 999_999_999 }, Time { sec: 5_000_000_000, nsec: 1 });
    let iatt = brick.ask(Setattr { atime: Some(far), mtime: Some(old), ..setattr(gfid) }).unwrap().iatt;
    assert_eq!((iatt.atime, iatt.mtime, iatt.ctime), (far, old, at(300)));
    let meta = brick.path("x").metadata().unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec(), meta.atime()), (-10, 999_999_999, 5_000_000_000));
    let mut late = write_at(gfid, None, Place::At(0), "x", false);
    late.when = at(50);
    let iatt = brick.ask(late).unwrap().iatt;
    assert_eq!((iatt.mtime, iatt.ctime), (at(50), at(300)));
    let code_for_now = Time { sec: 0, nsec: (1 << 30) - 1 };
    assert_eq!(refused(brick.ask(Setattr { mtime: Some(code_for_now), ..setattr(gfid) })), Errno::INVAL);
    let mut brick = brick;
    brick.restart();
    assert_eq!(brick.getattr(gfid).unwrap(), iatt);
}

#[test]
fn an_inode_without_times_of_its_own_has_those_of_the_disk() {
    let mut brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "").iatt.gfid;
    rustix::fs::lremovexattr(brick.path("x"), "trusted.glusterfs.mdata").unwrap();
    brick.restart();
    let meta = brick.path("x").metadata().unwrap();
    assert_eq!(brick.getattr(gfid).unwrap().mtime.sec, meta.mtime());
    let iatt = brick.ask(Setattr { mtime: Some(at(7)), ..setattr(gfid) }).unwrap().iatt;
    assert_eq!(iatt.mtime, at(7));
    assert!(!brick.xattrs(&brick.path("x")).contains_key("trusted.glusterfs.mdata"));
    let iatt = brick.ask(Setattr { mode: Some(0o600), ..setattr(gfid) }).unwrap().iatt;
    assert_eq!((iatt.mtime, iatt.ctime), (at(300), at(300)));
    assert!(brick.xattrs(&brick.path("x")).contains_key("trusted.glusterfs.mdata"));
}

#[test]
fn xattrs_of_programs_come_back_and_ours_stay_hidden() {
    let brick = Brick::new();
    let file = brick.create(ROOT, "x", "").iatt.gfid;
    let dir = brick.mkdir(ROOT, "d");
    let get = |gfid, name| brick.ask(Getxattr { gfid, name: key(name) }).map(|answer| answer.value);
    for gfid in [file, dir] {
        let long = vec![7; 3000];
        brick.ask(setxattr(gfid, "user.a", &long, SetHow::Create)).unwrap();
        assert_eq!(refused(brick.ask(setxattr(gfid, "user.a", b"", SetHow::Create))), Errno::EXIST);
        assert_eq!(refused(brick.ask(setxattr(gfid, "user.b", b"", SetHow::Replace))), Errno::NODATA);
        let changed = brick.ask(setxattr(gfid, "security.selinux", b"label", SetHow::Any)).unwrap();
        assert_eq!((changed.iatt.ctime, changed.iatt.mtime), (at(300), at(100)));
        assert_eq!(
            (get(gfid, "user.a").unwrap(), get(gfid, "security.selinux").unwrap()),
            (long.into(), "label".into())
        );
        let mut names = brick.ask(Listxattr { gfid }).unwrap().names;
        names.sort();
        assert_eq!(names, [key("security.selinux"), key("user.a")]);
        for ours in ["trusted.gfid", "trusted.glusterfs.mdata", "trusted.glusterfs.dht", "trusted.afr.dirty"] {
            assert_eq!(refused(get(gfid, ours)), Errno::NODATA);
            assert_eq!(refused(brick.ask(setxattr(gfid, ours, b"x", SetHow::Any))), Errno::PERM);
            assert!(brick.ask(Removexattr { gfid, name: key(ours), when: at(1) }).is_err());
        }
        brick.ask(Removexattr { gfid, name: key("user.a"), when: at(400) }).unwrap();
        assert_eq!(refused(get(gfid, "user.a")), Errno::NODATA);
        assert_eq!(brick.getattr(gfid).unwrap().ctime, at(400));
    }
    assert!(brick.xattrs(&brick.path("x")).contains_key("trusted.glusterfs.selinux"));
}

#[test]
fn our_own_daemons_see_and_set_what_is_ours() {
    let brick = Brick::new();
    let root = brick.internal();
    let dir = brick.mkdir(ROOT, "d");
    assert_eq!(brick.lookup(ROOT, "d").unwrap().layout, None);
    brick.ask_as(&root, setxattr(dir, "trusted.glusterfs.dht", &[3; 16], SetHow::Any)).unwrap();
    assert_eq!(brick.lookup(ROOT, "d").unwrap().layout, Some(crate::types::RawLayout([3; 16])));
    let gfid = brick.ask_as(&root, Getxattr { gfid: dir, name: key("trusted.gfid") }).unwrap().value;
    assert_eq!(gfid[..], dir.as_bytes()[..]);
    assert_eq!(refused(brick.ask_as(&root, setxattr(dir, "trusted.gfid", &[3; 16], SetHow::Any))), Errno::PERM);
    // Times are merged, never set.
    let mut times = [0; 57];
    times[0] = 1;
    (times[16], times[32], times[48]) = (50, 150, 250);
    let iatt = brick.ask_as(&root, setxattr(dir, "trusted.glusterfs.mdata", &times, SetHow::Any)).unwrap().iatt;
    assert_eq!((iatt.ctime.sec, iatt.mtime.sec, iatt.atime.sec), (100, 150, 250));
}

#[test]
fn a_mode_follows_the_access_acl() {
    let brick = Brick::new();
    let birth = Box::new(Birth { mode: 0o2755, ..*brick.birth() });
    let gfid = brick.ask(create(ROOT, "x", birth, "")).unwrap().iatt.gfid;
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm) in [(1u16, 6u16), (4, 4), (0x20, 0)] {
        acl.extend([tag.to_le_bytes(), perm.to_le_bytes(), [0xff; 2], [0xff; 2]].concat());
    }
    let set = setxattr(gfid, "system.posix_acl_access", &acl, SetHow::Any);
    let iatt = brick.ask(Setxattr { kill_sgid: true, ..set }).unwrap().iatt;
    assert_eq!(iatt.mode, 0o640);
}

#[test]
fn an_arbiter_says_yes_to_writes_and_no_to_reads() {
    let brick = Brick::with(PosixOptions { arbiter: true, ..PosixOptions::default() });
    let (gfid, fd) = brick.open_new(ROOT, "x", "", 1);
    let fd = Some(fd);
    let written = write(&brick, gfid, fd, Place::At(4), "abc").unwrap();
    assert_eq!((written.offset, written.bytes, written.iatt.size), (4, 3, 0));
    let truncate = Truncate { gfid, fd, size: 4, kill_priv: false, when: at(300) };
    assert_eq!(brick.ask(truncate).unwrap().iatt.size, 0);
    assert_eq!(refused(read(&brick, gfid, fd, 0, 1)), Errno::NOSYS);
    assert_eq!(brick.ask(Setattr { mode: Some(0o600), ..setattr(gfid) }).unwrap().iatt.mode, 0o600);
}

#[test]
fn everything_can_be_made_durable_and_the_disk_measured() {
    let brick = Brick::new();
    let (file, fd) = brick.open_new(ROOT, "x", "1", 1);
    let (dir, link) = (brick.mkdir(ROOT, "d"), brick.symlink(ROOT, "l", "t"));
    for (gfid, fd) in [(file, Some(fd)), (file, None), (dir, None), (ROOT, None), (link, None)] {
        brick.ask(Fsync { gfid, fd, data_only: fd.is_none() }).unwrap();
    }
    let space = brick.ask(Statfs).unwrap();
    assert!(space.blocks > space.blocks_free && space.block_bytes >= 512 && space.files_free > 0);
}

#[test]
fn below_the_reserve_only_our_daemons_write() {
    let brick = Brick::with(PosixOptions { reserve_percent: 100, ..PosixOptions::default() });
    assert_eq!(refused(brick.try_create(ROOT, "x", "")), Errno::NOSPC);
    assert_eq!(refused(brick.try_mkdir(ROOT, "d")), Errno::NOSPC);
    let made = brick.ask_as(&brick.internal(), create(ROOT, "x", brick.birth(), "")).unwrap();
    assert_eq!(refused(write(&brick, made.iatt.gfid, None, Place::At(0), "x")), Errno::NOSPC);
    brick.unlink(ROOT, "x").unwrap();
    brick.assert_whole();
}
