//! Create, mkdir, symlink and mknod.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::fop::{Mknod, Readlink, SetHow, Setxattr};
use crate::types::{Counters, Kind, Lacks, Pending, RawLayout, Xattr, XattrName};

fn acl(entries: &[(u16, u16, u32)]) -> Bytes {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Bytes::from(bytes)
}

fn set(brick: &Brick, gfid: Gfid, key: &str, value: Bytes) {
    let xattr = Xattr { name: XattrName::new(key.as_bytes().to_vec()).unwrap(), value };
    brick.ask(Setxattr { gfid, xattr, how: SetHow::Any, kill_sgid: false, when: at(150) }).unwrap();
}

#[test]
fn a_new_file_is_what_glusterfs_would_have_made() {
    let brick = Brick::new();
    let made = brick.create(ROOT, "x", "hello");
    let gfid = made.iatt.gfid;
    assert_eq!((made.iatt.kind, made.iatt.mode, made.iatt.nlink, made.iatt.size), (Kind::File, 0o644, 1, 5));
    assert_eq!((made.iatt.mtime, made.parent.mtime), (at(100), at(100)));
    assert_eq!(made.parent.nlink, 2);
    let xattrs = brick.xattrs(&brick.path("x"));
    let names: Vec<&str> = xattrs.keys().map(String::as_str).collect();
    assert_eq!(names, ["trusted.gfid", "trusted.gfid2path.a9941a870ca0e4fa", "trusted.glusterfs.mdata"]);
    assert_eq!(xattrs["trusted.gfid"], gfid.as_bytes());
    assert_eq!(xattrs["trusted.gfid2path.a9941a870ca0e4fa"], b"00000000-0000-0000-0000-000000000001/x");
    let mdata = &xattrs["trusted.glusterfs.mdata"];
    assert_eq!((mdata.len(), mdata[0], mdata[16], mdata[24]), (57, 1, 100, 5));
    assert_eq!(std::fs::read(brick.handle(gfid)).unwrap(), b"hello");
    assert_eq!(brick.path("x").metadata().unwrap().nlink(), 2);
    let second = brick.handle(gfid).parent().unwrap().metadata().unwrap();
    assert_eq!(second.mode() & 0o7777, 0o700);
    assert_eq!(brick.lookup(ROOT, "x").unwrap().iatt, made.iatt);
    assert_eq!(brick.getattr(gfid).unwrap(), made.iatt);
    brick.assert_whole();
}

#[test]
fn everything_a_file_is_born_with_is_there_at_once() {
    let brick = Brick::new();
    let xattrs = vec![Xattr { name: XattrName::new("user.a").unwrap(), value: Bytes::from("1") }];
    let pending =
        vec![Pending { key: XattrName::new("trusted.afr.v-client-1").unwrap(), counters: Counters([1, 1, 0]) }];
    let times = Some((Time { sec: -5, nsec: 9 }, Time { sec: 1 << 33, nsec: 0 }));
    let birth = Birth { mode: 0o6755, uid: 1000, gid: 2000, xattrs, pending, times, ..*brick.birth() };
    let iatt = brick.ask(create(ROOT, "x", Box::new(birth), "")).unwrap().iatt;
    assert_eq!((iatt.mode, iatt.uid, iatt.gid), (0o6755, 1000, 2000));
    assert_eq!(
        (iatt.atime, iatt.mtime, iatt.ctime),
        (Time { sec: -5, nsec: 9 }, Time { sec: 1 << 33, nsec: 0 }, at(100))
    );
    let meta = brick.path("x").metadata().unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o6755, 1000, 2000));
    assert_eq!((meta.atime(), meta.mtime()), (-5, 1 << 33));
    let xattrs = brick.xattrs(&brick.path("x"));
    assert_eq!(xattrs["user.a"], b"1");
    assert_eq!(xattrs["trusted.afr.v-client-1"], [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
    let looked = brick.lookup(ROOT, "x").unwrap().iatt;
    assert_eq!(looked, Iatt { lacks: looked.lacks, ..iatt });
}

#[test]
fn a_taken_name_is_never_replaced_and_nothing_is_left() {
    let brick = Brick::new();
    brick.create(ROOT, "x", "first");
    assert_eq!(refused(brick.try_create(ROOT, "x", "second")), Errno::EXIST);
    assert_eq!(refused(brick.try_mkdir(ROOT, "x")), Errno::EXIST);
    let target = Bytes::from("t");
    let symlink = Symlink { parent: ROOT, name: name("x"), birth: brick.birth(), target };
    assert_eq!(refused(brick.ask(symlink)), Errno::EXIST);
    assert_eq!(std::fs::read(brick.path("x")).unwrap(), b"first");
    brick.assert_whole();
}

#[test]
fn a_gfid_is_given_once() {
    let brick = Brick::new();
    let gfid = brick.create(ROOT, "x", "first").iatt.gfid;
    let again = Box::new(Birth { gfid, ..*brick.birth() });
    assert_eq!(refused(brick.ask(create(ROOT, "y", again, "second"))), Errno::EXIST);
    assert_eq!(std::fs::read(brick.handle(gfid)).unwrap(), b"first");
    let root = Box::new(Birth { gfid: ROOT, ..*brick.birth() });
    assert_eq!(refused(brick.ask(create(ROOT, "z", root, ""))), Errno::INVAL);
    brick.assert_whole();
}

#[test]
fn a_directory_has_a_link_for_its_handle() {
    let brick = Brick::new();
    let birth = Box::new(Birth { mode: 0o2751, uid: 1000, gid: 2000, ..*brick.birth() });
    let fop = Mkdir { layout: Some(RawLayout([7; 16])), mds: true, ..mkdir(ROOT, "d", birth) };
    let made = brick.ask(fop).unwrap();
    let gfid = made.iatt.gfid;
    assert_eq!((made.iatt.kind, made.iatt.mode, made.iatt.nlink), (Kind::Dir, 0o2751, 2));
    assert_eq!((made.iatt.uid, made.iatt.gid, made.parent.nlink), (1000, 2000, 3));
    let text = std::fs::read_link(brick.handle(gfid)).unwrap();
    assert_eq!(text.to_str().unwrap(), "../../00/00/00000000-0000-0000-0000-000000000001/d");
    let xattrs = brick.xattrs(&brick.path("d"));
    assert_eq!(xattrs["trusted.glusterfs.dht"], [7; 16]);
    assert_eq!(xattrs["trusted.glusterfs.dht.mds"], [0; 4]);
    assert!(!xattrs.keys().any(|name| name.starts_with("trusted.gfid2path")));
    let found = brick.lookup(ROOT, "d").unwrap();
    assert_eq!((found.iatt, found.layout), (made.iatt, Some(RawLayout([7; 16]))));
    brick.assert_whole();
}

#[test]
fn a_symbolic_link_keeps_its_text_and_is_never_followed() {
    let brick = Brick::new();
    let gfid = brick.symlink(ROOT, "l", "/etc/passwd");
    assert_eq!(brick.ask(Readlink { gfid }).unwrap().target, "/etc/passwd");
    let iatt = brick.lookup(ROOT, "l").unwrap().iatt;
    assert_eq!((iatt.kind, iatt.nlink, iatt.size, iatt.mode), (Kind::Symlink, 1, 11, 0o777));
    assert_eq!(refused(brick.try_create(gfid, "x", "")), Errno::NOTDIR);
    assert_eq!(refused(brick.ask(Readlink { gfid: ROOT })), Errno::INVAL);
    brick.assert_whole();
}

#[test]
fn special_files_are_made_with_their_numbers() {
    let brick = Brick::new();
    let rows = [(Kind::Fifo, 0), (Kind::Socket, 0), (Kind::Char, 0x0103), (Kind::Block, 0x0801), (Kind::File, 0)];
    for (index, (kind, rdev)) in rows.into_iter().enumerate() {
        let birth = Box::new(Birth { mode: 0o620, gid: 5, ..*brick.birth() });
        let file = format!("n{index}");
        let made = brick.ask(Mknod { parent: ROOT, name: name(&file), birth, kind, rdev, linkto: None }).unwrap();
        let found = brick.lookup(ROOT, &file).unwrap();
        assert_eq!(found.iatt, made.iatt);
        assert_eq!((made.iatt.kind, made.iatt.rdev, made.iatt.mode, made.iatt.gid), (kind, rdev, 0o620, 5));
    }
    brick.assert_whole();
}

#[test]
fn a_link_file_has_its_mode_and_its_nul() {
    let brick = Brick::new();
    let linkto = Some(Bytes::from("gv1-replicate-1"));
    let made = brick
        .ask(Mknod { parent: ROOT, name: name("x"), birth: brick.birth(), kind: Kind::File, rdev: 0, linkto })
        .unwrap();
    assert_eq!((made.iatt.mode, made.iatt.size), (0o1000, 0));
    assert_eq!(brick.xattrs(&brick.path("x"))["trusted.glusterfs.dht.linkto"], b"gv1-replicate-1\0");
    assert_eq!(brick.lookup(ROOT, "x").unwrap().linkto.unwrap(), "gv1-replicate-1");
    let gfid = made.iatt.gfid;
    let unlink = |only| Unlink { parent: ROOT, name: name("x"), only, when: at(1) };
    assert_eq!(refused(brick.ask(unlink(Only::Content))), Errno::BUSY);
    assert_eq!(refused(brick.ask(unlink(Only::ContentOf(gfid)))), Errno::BUSY);
    brick.ask(unlink(Only::LinkFile(gfid))).unwrap();
    let gfid = brick.create(ROOT, "y", "data").iatt.gfid;
    let only = Only::LinkFile(gfid);
    assert_eq!(refused(brick.ask(Unlink { parent: ROOT, name: name("y"), only, when: at(1) })), Errno::BUSY);
    for only in [Only::Gfid(made.iatt.gfid), Only::ContentOf(made.iatt.gfid)] {
        assert_eq!(refused(brick.ask(Unlink { parent: ROOT, name: name("y"), only, when: at(1) })), Errno::STALE);
    }
    brick.ask(Unlink { parent: ROOT, name: name("y"), only: Only::ContentOf(gfid), when: at(1) }).unwrap();
    brick.assert_whole();
}

#[test]
fn what_is_made_under_a_default_acl_inherits_it_and_the_umask_means_nothing() {
    let brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    let none = u32::MAX;
    let default = acl(&[(1, 7, none), (2, 7, 1000), (4, 7, none), (0x10, 7, none), (0x20, 5, none)]);
    set(&brick, dir, "system.posix_acl_default", default.clone());
    let birth = || Box::new(Birth { mode: 0o664, umask: 0o077, ..*brick.birth() });
    let file = brick.ask(create(dir, "f", birth(), "")).unwrap().iatt;
    let sub = brick.ask(mkdir(dir, "s", birth())).unwrap().iatt;
    let fifo = Mknod { parent: dir, name: name("p"), birth: birth(), kind: Kind::Fifo, rdev: 0, linkto: None };
    let fifo = brick.ask(fifo).unwrap().iatt;
    assert_eq!((file.mode, sub.mode, fifo.mode), (0o664, 0o664, 0o664));
    let access = |path: &str| brick.xattrs(&brick.path(path)).remove("system.posix_acl_access");
    assert!(access("d/f").is_some());
    // What we computed is what the kernel computed.
    assert_eq!((access("d/s"), access("d/p")), (access("d/f"), access("d/f")));
    assert_eq!(brick.xattrs(&brick.path("d/s"))["system.posix_acl_default"], default[..]);
    let plain = brick.ask(create(ROOT, "f", birth(), "")).unwrap().iatt;
    assert_eq!(plain.mode, 0o600);
}

#[test]
fn a_file_system_without_nameless_files_makes_the_same_ones() {
    let brick = Brick::new();
    let none = u32::MAX;
    let default = acl(&[(1, 7, none), (2, 7, 1000), (4, 7, none), (0x10, 7, none), (0x20, 5, none)]);
    let birth = Box::new(Birth { mode: 0o2775, gid: 50, ..*brick.birth() });
    let dir = brick.ask(mkdir(ROOT, "d", birth)).unwrap().iatt.gfid;
    set(&brick, dir, "system.posix_acl_default", default);
    let birth = || Box::new(Birth { mode: 0o4664, umask: 0o077, uid: 3, gid: 60, ..*brick.birth() });
    let kernel = brick.ask(create(dir, "kernel", birth(), "content")).unwrap();
    brick.posix().store.no_tmpfile.store(true, Ordering::Relaxed);
    let staged = brick.ask(create(dir, "staged", birth(), "content")).unwrap();
    assert_eq!(staged.iatt, Iatt { gfid: staged.iatt.gfid, ..kernel.iatt });
    let access = |path: &str| brick.xattrs(&brick.path(path)).remove("system.posix_acl_access");
    assert!(access("d/kernel").is_some());
    assert_eq!(access("d/staged"), access("d/kernel"));
    assert_eq!(refused(brick.try_create(dir, "staged", "")), Errno::EXIST);
    let (gfid, fd) = brick.open_new(dir, "open", "1", 1);
    assert_eq!(brick.unlink(dir, "open").unwrap().nlink, 0);
    brick.ask(crate::fop::Release { fd }).unwrap();
    assert_eq!(refused(brick.getattr(gfid)), Errno::STALE);
    brick.assert_whole();
}

#[test]
fn what_is_made_in_a_set_group_id_directory_has_its_group() {
    let brick = Brick::new();
    let birth = Box::new(Birth { mode: 0o2775, gid: 50, ..*brick.birth() });
    let dir = brick.ask(mkdir(ROOT, "d", birth)).unwrap().iatt.gfid;
    let birth = || Box::new(Birth { mode: 0o755, uid: 9, gid: 60, ..*brick.birth() });
    let file = brick.ask(create(dir, "f", birth(), "")).unwrap().iatt;
    let sub = brick.ask(mkdir(dir, "s", birth())).unwrap().iatt;
    let link = brick.symlink(dir, "l", "t");
    assert_eq!((file.uid, file.gid, file.mode), (9, 50, 0o755));
    assert_eq!((sub.uid, sub.gid, sub.mode), (9, 50, 0o2755));
    assert_eq!(brick.getattr(link).unwrap().gid, 50);
    assert_eq!(brick.path("d/f").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn names_of_the_brick_itself_are_neither_seen_nor_made() {
    let brick = Brick::new();
    assert_eq!(brick.lookup(ROOT, ".glusterfs"), None);
    assert_eq!(refused(brick.try_mkdir(ROOT, ".glusterfs")), Errno::PERM);
    assert_eq!(refused(brick.try_create(ROOT, ".glusterfs-x", "")), Errno::PERM);
    assert_eq!(refused(brick.rmdir(ROOT, ".glusterfs")), Errno::NOENT);
    brick.create(ROOT, "x", "");
    assert_eq!(refused(brick.rename((ROOT, "x"), (ROOT, ".glusterfs"), Replace::Exchange)), Errno::PERM);
    assert_eq!(refused(brick.rename((ROOT, ".glusterfs"), (ROOT, "y"), Replace::Yes)), Errno::NOENT);
    let sub = brick.mkdir(ROOT, "d");
    brick.create(sub, ".glusterfs", "a name like any other, here");
    let parking = mkdir(ROOT, ".glusterfs-anonymous-inode-1", brick.birth());
    let before = brick.getattr(ROOT).unwrap().nlink;
    let made = brick.ask_as(&brick.internal(), parking).unwrap();
    assert_eq!(made.iatt.kind, Kind::Dir);
    assert_eq!(brick.getattr(ROOT).unwrap().nlink, before, "the root does not count it");
    assert_eq!(brick.lookup(ROOT, ".glusterfs-anonymous-inode-1"), None);
}

#[test]
fn an_arbiter_keeps_the_file_and_not_its_content() {
    let brick = Brick::with(PosixOptions { arbiter: true, ..PosixOptions::default() });
    let iatt = brick.create(ROOT, "x", "content").iatt;
    assert_eq!(iatt.size, 0);
    assert_eq!(brick.path("x").metadata().unwrap().len(), 0);
}

/// Nobody needs to ask for what an answer says is not there: so it must never say so wrongly.
#[test]
fn attributes_tell_which_xattrs_an_inode_lacks() {
    let brick = Brick::new();
    let made = brick.create(ROOT, "f", "").iatt;
    assert_eq!(made.lacks, Lacks::all());
    let (gfid, lacks) = (made.gfid, || brick.getattr(made.gfid).unwrap().lacks);
    assert_eq!(lacks(), Lacks::all());
    set(&brick, gfid, "user.a", Bytes::from_static(b"1"));
    assert_eq!(lacks(), Lacks::all() - Lacks::XATTRS);
    let none = u32::MAX;
    set(
        &brick,
        gfid,
        "system.posix_acl_access",
        acl(&[(1, 6, none), (2, 6, 9), (4, 4, none), (16, 6, none), (32, 4, none)]),
    );
    let capability = [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    set(&brick, gfid, "security.capability", capability);
    assert_eq!(lacks(), Lacks::DEFAULT_ACL);
    brick.posix().store.memory.forget(gfid);
    assert_eq!(brick.lookup(ROOT, "f").unwrap().iatt.lacks, Lacks::empty(), "nobody has looked");
    assert_eq!(lacks(), Lacks::DEFAULT_ACL);
    for name in ["user.a", "system.posix_acl_access", "security.capability"] {
        let name = XattrName::new(name.as_bytes().to_vec()).unwrap();
        brick.ask(crate::fop::Removexattr { gfid, name, when: at(160) }).unwrap();
    }
    assert_eq!(lacks(), Lacks::all());
    let dir = brick.mkdir(ROOT, "d");
    set(&brick, dir, "system.posix_acl_default", acl(&[(1, 7, none), (4, 7, none), (32, 5, none)]));
    assert_eq!(brick.getattr(dir).unwrap().lacks, Lacks::all() - Lacks::XATTRS - Lacks::DEFAULT_ACL);
    assert_eq!(brick.create(dir, "heir", "").iatt.lacks, Lacks::empty());
}
