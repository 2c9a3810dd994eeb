//! A fop of every kind with the answer to it: every field has a value that differs from its default.

use bytes::Bytes;
use mortar_xlators::error::Errno;
use mortar_xlators::fop::*;
use mortar_xlators::ranges::{LockMode, Locked, Span};
use mortar_xlators::reply::{self, *};
use mortar_xlators::types::*;
use smallvec::smallvec;

fn gfid(n: u8) -> Gfid {
    let mut bytes = [n; 16];
    bytes[0] = 0xff;
    bytes[15] = n.wrapping_add(1);
    Gfid::from_bytes(bytes)
}

fn name(text: &'static str) -> Name {
    Name::new(text).unwrap()
}

fn key(text: &'static str) -> XattrName {
    XattrName::new(text).unwrap()
}

fn time(sec: i64) -> Time {
    Time { sec, nsec: 999_999_999 }
}

fn fd() -> Fd {
    Fd { id: u64::MAX, gfid: gfid(5) }
}

fn mark(n: i32) -> Pending {
    Pending { key: key("trusted.afr.gv0-client-1"), counters: Counters([n, -n, i32::MIN]) }
}

fn xattr() -> Xattr {
    Xattr { name: key("user.\u{e9}"), value: Bytes::from_static(b"\0value") }
}

fn birth() -> Box<Birth> {
    Box::new(Birth {
        gfid: gfid(1),
        mode: 0o7644,
        umask: 0o027,
        uid: 1001,
        gid: 1002,
        when: time(-5),
        times: Some((time(i64::MIN), time(i64::MAX))),
        xattrs: vec![xattr(), xattr()],
        pending: vec![mark(1), mark(2)],
    })
}

fn iatt(n: u8) -> Iatt {
    Iatt {
        gfid: gfid(n),
        kind: Kind::Char,
        mode: 0o7777,
        nlink: u32::MAX,
        uid: 3,
        gid: 4,
        rdev: u64::MAX,
        size: u64::MAX - 1,
        blocks: 12,
        atime: time(-1),
        mtime: time(1 << 40),
        ctime: time(3),
        lacks: Lacks::ACL | Lacks::XATTRS,
    }
}

fn found() -> Found {
    Found {
        iatt: iatt(3),
        exact: AttrMask::SIZE | AttrMask::IDENTITY,
        cover: Cover::ATTRS,
        layout: Some(RawLayout([9; 16])),
        linkto: Some(Bytes::from_static(b"gv0-replicate-1")),
        marks: vec![mark(7)],
    }
}

fn settled() -> Vec<Settled> {
    let settled = |changes| Settled { gfid: gfid(1), epoch: Epoch(8), changes };
    vec![settled(None), settled(Some(0)), settled(Some(u64::MAX))]
}

/// Every kind, some of them several times.
pub(crate) fn all() -> Vec<(Fop, Reply)> {
    [names(), inodes(), data(), rest(), locks()].concat()
}

fn made() -> Made {
    Made { iatt: iatt(1), parent: iatt(2), cover: Cover::NAME, lease: Some(Epoch(u64::MAX)) }
}

fn names() -> Vec<(Fop, Reply)> {
    let removed = || Removed { iatt: iatt(1), parent: iatt(2) };
    let (parent, when) = (gfid(1), time(0));
    let looked = |found: Option<Found>| Looked { found: found.map(Box::new), cover: Cover::NAME };
    let unlink = |only| Unlink { parent, name: name("u"), only, when };
    let rename = |replace| Rename {
        from_parent: gfid(1),
        from_name: name("from"),
        to_parent: gfid(2),
        to_name: name("to"),
        replace,
        when,
    };
    let renamed = |replaced| Renamed { iatt: iatt(1), replaced, from_parent: iatt(3), to_parent: iatt(4) };
    let create = Create {
        parent,
        name: Name::new(vec![0xff; 255]).unwrap(),
        birth: birth(),
        content: Bytes::from_static(b"content"),
        open: Some((77, OpenFlags::all())),
        lease: true,
    };
    let mknod = Mknod { parent, name: name("n"), birth: birth(), kind: Kind::Block, rdev: 0x801, linkto: None };
    let link_file = Mknod { kind: Kind::File, linkto: Some(Bytes::from_static(b"gv0-replicate-0")), ..mknod.clone() };
    let layout = Some(RawLayout([1; 16]));
    vec![
        (Lookup { parent, name: name("a b\n") }.into(), Lookup::reply(looked(Some(found())))),
        (Lookup { parent, name: name("absent") }.into(), Lookup::reply(looked(None))),
        (create.into(), Create::reply(made())),
        (mknod.into(), Mknod::reply(made())),
        (link_file.into(), Mknod::reply(Made { lease: None, ..made() })),
        (
            Mkdir { parent, name: name("d"), birth: birth(), layout, mds: true, lease: true }.into(),
            Mkdir::reply(made()),
        ),
        (
            Symlink { parent, name: name("s"), birth: birth(), target: Bytes::from_static(b"../x") }.into(),
            Symlink::reply(made()),
        ),
        (Link { gfid: gfid(3), parent, name: name("l"), when }.into(), Link::reply(made())),
        (unlink(Only::Any).into(), Unlink::reply(removed())),
        (unlink(Only::Gfid(gfid(4))).into(), Unlink::reply(removed())),
        (unlink(Only::LinkFile(gfid(4))).into(), Unlink::reply(removed())),
        (unlink(Only::Content).into(), Unlink::reply(removed())),
        (unlink(Only::ContentOf(gfid(4))).into(), Unlink::reply(removed())),
        (Rmdir { parent, name: name("d"), when }.into(), Rmdir::reply(removed())),
        (rename(Replace::Yes).into(), Rename::reply(renamed(Some(iatt(2))))),
        (rename(Replace::No).into(), Rename::reply(renamed(None))),
        (rename(Replace::Exchange).into(), Rename::reply(renamed(Some(iatt(2))))),
    ]
}

fn setattr() -> Setattr {
    Setattr {
        gfid: gfid(1),
        fd: Some(fd()),
        mode: Some(0),
        uid: Some(0),
        gid: Some(5),
        atime: Some(time(0)),
        mtime: Some(time(1)),
        kill_priv: true,
        when: time(0),
    }
}

fn inodes() -> Vec<(Fop, Reply)> {
    let changed = || Changed { iatt: iatt(1), cover: Cover::ATTRS };
    let (id, when) = (gfid(1), time(0));
    let setattr = setattr();
    let nothing =
        Setattr { fd: None, mode: None, uid: None, gid: None, atime: None, mtime: None, kill_priv: false, ..setattr };
    let setxattr = |how| Setxattr { gfid: id, xattr: xattr(), how, kill_sgid: true, when };
    vec![
        (Getattr { gfid: id, fd: Some(fd()), exact: AttrMask::all() }.into(), Getattr::reply(found())),
        (
            Getattr { gfid: id, fd: None, exact: AttrMask::empty() }.into(),
            Getattr::reply(Found { layout: None, linkto: None, marks: vec![], ..found() }),
        ),
        (Readlink { gfid: id }.into(), Readlink::reply(reply::Target { target: Bytes::from_static(b"/t") })),
        (setattr.into(), Setattr::reply(changed())),
        (nothing.into(), Setattr::reply(changed())),
        (Getxattr { gfid: id, name: key("user.a") }.into(), Getxattr::reply(Value { value: Bytes::from_static(b"v") })),
        (setxattr(SetHow::Any).into(), Setxattr::reply(changed())),
        (setxattr(SetHow::Create).into(), Setxattr::reply(changed())),
        (setxattr(SetHow::Replace).into(), Setxattr::reply(changed())),
        (Removexattr { gfid: id, name: key("user.a"), when }.into(), Removexattr::reply(changed())),
        (Listxattr { gfid: id }.into(), Listxattr::reply(XattrNames { names: vec![key("user.a"), key("b")] })),
    ]
}

fn data() -> Vec<(Fop, Reply)> {
    let changed = || Changed { iatt: iatt(1), cover: Cover::ATTRS };
    let written = || Written { offset: 1 << 40, bytes: 5, iatt: iatt(1), cover: Cover::ATTRS };
    let (id, when) = (gfid(1), time(0));
    let write = |place| Write {
        gfid: id,
        fd: Some(fd()),
        place,
        data: Bytes::from_static(b"12345"),
        sync: true,
        kill_priv: true,
        when,
        then: matches!(place, Place::At(_)).then(|| Box::new(setattr())),
    };
    let copy = CopyRange {
        from: gfid(1),
        from_fd: Some(fd()),
        from_offset: 1,
        to: gfid(2),
        to_fd: Some(fd()),
        to_offset: 1 << 33,
        length: 1 << 34,
        when,
    };
    let seek = |to| Seek { gfid: id, fd: Some(fd()), offset: 4, to };
    let mut all = vec![
        (
            Truncate { gfid: id, fd: Some(fd()), size: 1 << 50, kill_priv: true, when }.into(),
            Truncate::reply(changed()),
        ),
        (Open { fd: fd(), flags: OpenFlags::READ | OpenFlags::TRUNCATE, when }.into(), Open::reply(Done)),
        (Release { fd: fd() }.into(), Release::reply(Done)),
        (
            Read { gfid: id, fd: Some(fd()), offset: 1 << 40, size: 1 << 20 }.into(),
            Read::reply(Data { data: Bytes::from(vec![3; 1 << 20]) }),
        ),
        (Read { gfid: id, fd: None, offset: 0, size: 0 }.into(), Read::reply(Data { data: Bytes::new() })),
        (write(Place::End).into(), Write::reply(written())),
        (write(Place::At(0)).into(), Write::reply(written())),
        (write(Place::At(1 << 45)).into(), Write::reply(written())),
        (copy.into(), CopyRange::reply(written())),
        (seek(SeekTo::Data).into(), Seek::reply(Sought { offset: 3 })),
        (seek(SeekTo::Hole).into(), Seek::reply(Sought { offset: u64::MAX })),
        (Flush { gfid: id }.into(), Flush::reply(Done)),
        (Fsync { gfid: id, fd: Some(fd()), data_only: true }.into(), Fsync::reply(Done)),
    ];
    use Allocate::*;
    for how in [Reserve, ReserveKeepSize, Punch, Zero, ZeroKeepSize] {
        let fallocate = Fallocate { gfid: id, fd: Some(fd()), how, offset: 1, length: 2, when };
        all.push((fallocate.into(), Fallocate::reply(changed())));
    }
    all
}

fn rest() -> Vec<(Fop, Reply)> {
    let id = gfid(1);
    let entry = |name_text, found: Option<Found>| DirEntry {
        name: name(name_text),
        kind: Kind::Symlink,
        gfid: if found.is_some() { gfid(3) } else { Gfid::from_bytes([0; 16]) },
        cookie: u64::MAX >> 1,
        found: found.map(Box::new),
    };
    let entries = vec![entry("a", Some(found())), entry("b", None)];
    let grant = |epoch| {
        let found = Some(Box::new(found()));
        Grant { gfid: id, epoch, unsettled: true, nameless: true, marks: vec![mark(1)], found }
    };
    let refused = Grant {
        epoch: Err(Errno::AGAIN),
        unsettled: false,
        nameless: false,
        marks: vec![],
        found: None,
        ..grant(Ok(Epoch(0)))
    };
    let lease = |mode| Lease { gfids: smallvec![gfid(1), gfid(2)], mode, wait: true, reclaim: true, attrs: true };
    let space =
        Space { block_bytes: 4096, blocks: 1, blocks_free: 2, blocks_available: 3, files: 4, files_free: u64::MAX };
    vec![
        (
            Readdir { gfid: id, fd: Some(fd()), after: u64::MAX, bytes_max: 4096, attrs: true }.into(),
            Readdir::reply(Entries { entries, end: true }),
        ),
        (Statfs.into(), Statfs::reply(space)),
        (lease(LeaseMode::Shared).into(), Lease::reply(Granted { grants: vec![grant(Ok(Epoch(u64::MAX))), refused] })),
        (lease(LeaseMode::Exclusive).into(), Lease::reply(Granted { grants: vec![] })),
        (Unlease { objects: settled(), keep_shared: true }.into(), Unlease::reply(Done)),
        (Settle { objects: settled() }.into(), Settle::reply(Done)),
        (Mark { gfid: id, deltas: vec![mark(1), mark(-1)] }.into(), Mark::reply(Marked { marks: vec![mark(3)] })),
        (Backlog.into(), Backlog::reply(Waiting { pending: 1, dirty: u64::MAX })),
    ]
}

fn locks() -> Vec<(Fop, Reply)> {
    let lk = |family, what| Lk {
        gfid: gfid(1),
        fd: Some(fd()),
        owner: LockOwner { family, id: u64::MAX },
        pid: -7,
        what,
        span: Span { start: 3, end: Span::END },
    };
    let held = |mode| Lockable::Held { by: Locked { span: Span { start: 1, end: 2 }, mode }, pid: i32::MAX };
    use LockFamily::{Flock, Posix};
    use LockMode::{Read, Write};
    vec![
        (lk(Posix, LkWhat::Get(Read)).into(), Lk::reply(held(Read))),
        (lk(Posix, LkWhat::Get(Write)).into(), Lk::reply(held(Write))),
        (lk(Flock, LkWhat::Set(Write, Claim::New)).into(), Lk::reply(Lockable::Free)),
        (lk(Posix, LkWhat::Set(Read, Claim::Again)).into(), Lk::reply(Lockable::Late)),
        (lk(Posix, LkWhat::Set(Read, Claim::Vouched)).into(), Lk::reply(Lockable::Grace)),
        (lk(Posix, LkWhat::SetWait(Write)).into(), Lk::reply(Lockable::Free)),
        (lk(Posix, LkWhat::Await(Write)).into(), Lk::reply(Lockable::Free)),
        (Lk { fd: None, ..lk(Flock, LkWhat::Unlock) }.into(), Lk::reply(Lockable::Free)),
    ]
}
