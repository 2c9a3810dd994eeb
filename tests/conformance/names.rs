//! Names of files: they are made once, lead to one inode, and go away.

use bytes::Bytes;
use mortar_tests::refused;
use mortar_tests::tree::{Tree, birth, name, new_gfid, now};
use mortar_xlators::error::Errno;
use mortar_xlators::fop::{Create, Getattr, Lookup, Only, Symlink, Unlink};
use mortar_xlators::types::{AttrMask, Kind, Name};

use super::stories;

stories![
    a_new_file_is_found_with_its_content,
    a_name_is_made_once,
    a_file_is_born_with_what_it_was_given,
    an_absent_name_is_an_answer,
    nothing_is_made_in_a_directory_that_is_not_there,
    special_files_are_made,
    a_link_file_of_nobody_is_never_seen,
    a_symbolic_link_keeps_its_text,
    two_names_lead_to_one_inode,
    a_directory_has_no_second_name,
    a_name_that_is_removed_is_gone,
    the_last_name_takes_the_inode_along,
    a_removal_can_be_meant_for_one_inode_only,
    a_directory_is_not_unlinked,
    names_of_any_bytes_are_kept,
    many_names_all_lead_to_their_own,
];

async fn a_new_file_is_found_with_its_content(tree: Tree) {
    let made = tree.create("new", "content").await.unwrap();
    let found = tree.find("new").await.unwrap();
    assert_eq!((found.gfid, found.kind, found.size, found.nlink), (made.iatt.gfid, Kind::File, 7, 1));
    assert_eq!(tree.read("new").await.unwrap(), "content");
    let directory = tree.stat("").await.unwrap();
    assert_eq!(made.parent.gfid, directory.gfid);
    assert_eq!(directory.mtime, made.iatt.ctime, "the directory changed when the name was made");
}

async fn a_name_is_made_once(tree: Tree) {
    tree.create("one", "first").await.unwrap();
    assert_eq!(refused(tree.create("one", "second").await), Errno::EXIST);
    assert_eq!(refused(tree.mkdir("one").await), Errno::EXIST);
    assert_eq!(refused(tree.symlink("x", "one").await), Errno::EXIST);
    assert_eq!(refused(tree.mknod("one", Kind::Fifo, 0).await), Errno::EXIST);
    tree.create("other", "").await.unwrap();
    assert_eq!(refused(tree.link("other", "one").await), Errno::EXIST);
    assert_eq!(tree.read("one").await.unwrap(), "first");
    tree.mkdir("directory").await.unwrap();
    assert_eq!(refused(tree.create("directory", "").await), Errno::EXIST);
}

async fn a_file_is_born_with_what_it_was_given(tree: Tree) {
    let (parent, name) = tree.split("born").await.unwrap();
    let (atime, mtime) = (now(), now());
    let mut birth = birth(0o640);
    birth.uid = 1234;
    birth.gid = 5678;
    birth.umask = 0o027;
    birth.times = Some((atime, mtime));
    let (gfid, when) = (birth.gfid, birth.when);
    tree.send(Create { parent, name, birth, content: Bytes::from_static(b"x"), open: None, lease: false })
        .await
        .unwrap();
    let iatt = tree.stat("born").await.unwrap();
    assert_eq!((iatt.gfid, iatt.uid, iatt.gid, iatt.mode), (gfid, 1234, 5678, 0o640));
    assert_eq!((iatt.atime, iatt.mtime, iatt.ctime), (atime, mtime, when));
}

async fn an_absent_name_is_an_answer(tree: Tree) {
    assert!(tree.look("nobody").await.unwrap().is_none());
    let lookup = Lookup { parent: new_gfid(), name: name("x") };
    assert!(matches!(refused(tree.send(lookup).await), Errno::NOENT | Errno::STALE));
    tree.create("file", "").await.unwrap();
    let lookup = Lookup { parent: tree.gfid("file").await.unwrap(), name: name("x") };
    assert_eq!(refused(tree.send(lookup).await), Errno::NOTDIR);
}

async fn nothing_is_made_in_a_directory_that_is_not_there(tree: Tree) {
    let create = |parent| Create {
        parent,
        name: name("x"),
        birth: birth(0o644),
        content: Bytes::new(),
        open: None,
        lease: false,
    };
    assert!(matches!(refused(tree.send(create(new_gfid())).await), Errno::NOENT | Errno::STALE));
    tree.mkdir("gone").await.unwrap();
    let gone = tree.gfid("gone").await.unwrap();
    tree.rmdir("gone").await.unwrap();
    assert!(matches!(refused(tree.send(create(gone)).await), Errno::NOENT | Errno::STALE));
    tree.create("file", "").await.unwrap();
    let file = tree.gfid("file").await.unwrap();
    assert_eq!(refused(tree.send(create(file)).await), Errno::NOTDIR);
}

async fn special_files_are_made(tree: Tree) {
    let device = 0x0103;
    for (path, kind, rdev) in [
        ("fifo", Kind::Fifo, 0),
        ("socket", Kind::Socket, 0),
        ("char", Kind::Char, device),
        ("block", Kind::Block, device),
    ] {
        tree.mknod(path, kind, rdev).await.unwrap();
        let iatt = tree.stat(path).await.unwrap();
        assert_eq!((iatt.kind, iatt.rdev, iatt.mode, iatt.nlink), (kind, rdev, 0o644, 1), "{path}");
    }
    tree.mknod("plain", Kind::File, 0).await.unwrap();
    assert_eq!(tree.stat("plain").await.unwrap().kind, Kind::File);
    for path in ["fifo", "socket", "char", "block", "plain"] {
        tree.unlink(path).await.unwrap();
    }
    assert_eq!(tree.ls("").await.unwrap(), [""; 0]);
}

async fn a_link_file_of_nobody_is_never_seen(tree: Tree) {
    // A program may make a file that looks like one; it is a file.
    tree.create("sticky", "").await.unwrap();
    tree.chmod("sticky", 0o1000).await.unwrap();
    assert_eq!(tree.ls("").await.unwrap(), ["sticky"]);
    assert_eq!(tree.stat("sticky").await.unwrap().mode, 0o1000);
    tree.unlink("sticky").await.unwrap();
    assert!(tree.look("sticky").await.unwrap().is_none());
}

async fn a_symbolic_link_keeps_its_text(tree: Tree) {
    // XFS keeps up to 1,023 bytes.
    for (path, target) in [("a", "target"), ("b", "/nowhere/at all"), ("c", "../c"), ("d", &"long/".repeat(200))] {
        tree.symlink(target, path).await.unwrap();
        assert_eq!(tree.readlink(path).await.unwrap(), target);
        let iatt = tree.stat(path).await.unwrap();
        assert_eq!((iatt.kind, iatt.size, iatt.nlink), (Kind::Symlink, target.len() as u64, 1));
    }
    let (parent, name) = tree.split("empty").await.unwrap();
    let empty = Symlink { parent, name, birth: birth(0o777), target: Bytes::new() };
    assert!(matches!(refused(tree.send(empty).await), Errno::INVAL | Errno::NOENT));
    tree.create("file", "").await.unwrap();
    assert_eq!(refused(tree.readlink("file").await), Errno::INVAL);
}

async fn two_names_lead_to_one_inode(tree: Tree) {
    let first = tree.create("first", "shared").await.unwrap().iatt;
    tree.mkdir("elsewhere").await.unwrap();
    // Many, so that on a volume of several sets some belong to another set than the content.
    let names: Vec<_> = (0..16).map(|number| format!("elsewhere/name-{number}")).collect();
    for (number, path) in names.iter().enumerate() {
        let made = tree.link("first", path).await.unwrap();
        assert_eq!((made.iatt.gfid, made.iatt.nlink as usize), (first.gfid, number + 2));
    }
    for path in &names {
        let iatt = tree.stat(path).await.unwrap();
        assert_eq!((iatt.gfid, iatt.nlink), (first.gfid, 17));
        assert_eq!(tree.read(path).await.unwrap(), "shared");
    }
    tree.write("elsewhere/name-3", 0, "SH").await.unwrap();
    assert_eq!(tree.read("elsewhere/name-7").await.unwrap(), "SHared");
    assert_eq!(tree.ls("elsewhere").await.unwrap().len(), 16);
    tree.unlink("first").await.unwrap();
    for (number, path) in names.iter().enumerate() {
        let removed = tree.unlink(path).await.unwrap();
        assert_eq!((removed.iatt.gfid, removed.iatt.nlink as usize), (first.gfid, 15 - number), "{path}");
    }
    assert_eq!(tree.ls("elsewhere").await.unwrap(), [""; 0]);
    tree.rmdir("elsewhere").await.unwrap();
}

async fn a_directory_has_no_second_name(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    assert_eq!(refused(tree.link("directory", "again").await), Errno::PERM);
    assert_eq!(tree.ls("").await.unwrap(), ["directory"]);
}

async fn a_name_that_is_removed_is_gone(tree: Tree) {
    for round in 0..8 {
        let path = format!("file-{round}");
        tree.create(&path, "x").await.unwrap();
        let removed = tree.unlink(&path).await.unwrap();
        assert_eq!(removed.iatt.nlink, 0);
        assert!(tree.look(&path).await.unwrap().is_none());
        assert_eq!(refused(tree.unlink(&path).await), Errno::NOENT);
        let again = tree.create(&path, "again").await.unwrap();
        assert_ne!(again.iatt.gfid, removed.iatt.gfid);
    }
}

async fn the_last_name_takes_the_inode_along(tree: Tree) {
    let gfid = tree.create("only", "x").await.unwrap().iatt.gfid;
    tree.unlink("only").await.unwrap();
    let getattr = Getattr { gfid, fd: None, exact: AttrMask::all() };
    assert!(matches!(refused(tree.send(getattr).await), Errno::NOENT | Errno::STALE));
}

async fn a_removal_can_be_meant_for_one_inode_only(tree: Tree) {
    let gfid = tree.create("file", "x").await.unwrap().iatt.gfid;
    let (parent, name) = tree.split("file").await.unwrap();
    let unlink = |only| Unlink { parent, name: name.clone(), only, when: now() };
    assert_eq!(refused(tree.send(unlink(Only::Gfid(new_gfid()))).await), Errno::STALE);
    assert_eq!(tree.read("file").await.unwrap(), "x");
    tree.send(unlink(Only::Gfid(gfid))).await.unwrap();
    assert!(tree.look("file").await.unwrap().is_none());
}

async fn a_directory_is_not_unlinked(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    assert!(matches!(refused(tree.unlink("directory").await), Errno::ISDIR | Errno::PERM));
    tree.create("file", "").await.unwrap();
    assert_eq!(refused(tree.rmdir("file").await), Errno::NOTDIR);
    assert_eq!(tree.ls("").await.unwrap(), ["directory", "file"]);
}

async fn names_of_any_bytes_are_kept(tree: Tree) {
    let parent = tree.gfid("").await.unwrap();
    let longest = vec![b'n'; 255];
    let strange: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let names =
        [&longest[..], &strange[..200], &strange[200..], b"\xff\xfe", b" ", b"...", b".x", b"\n", "日本".as_bytes()];
    for bytes in names {
        let name = Name::new(bytes.to_vec()).unwrap();
        let create =
            Create { parent, name: name.clone(), birth: birth(0o644), content: Bytes::new(), open: None, lease: false };
        let made = tree.send(create).await.unwrap();
        let found = tree.send(Lookup { parent, name }).await.unwrap().found.unwrap();
        assert_eq!(found.iatt.gfid, made.iatt.gfid);
    }
    let mut listed: Vec<_> =
        tree.entries("", 4096, false).await.unwrap().iter().map(|entry| entry.name.as_bytes().to_vec()).collect();
    listed.sort_unstable();
    let mut expected: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

async fn many_names_all_lead_to_their_own(tree: Tree) {
    for number in 0..100 {
        tree.create(&format!("file-{number}"), &format!("content {number}")).await.unwrap();
    }
    for number in 0..100 {
        assert_eq!(tree.read(&format!("file-{number}")).await.unwrap(), format!("content {number}"));
    }
    assert_eq!(tree.ls("").await.unwrap().len(), 100);
}
