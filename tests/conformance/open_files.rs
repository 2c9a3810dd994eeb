//! Open files: what they are is decided when they are opened.

use mortar_tests::refused;
use mortar_tests::tree::{Tree, no_change, now};
use mortar_xlators::error::Errno;
use mortar_xlators::fop::{Getattr, Open, Place, Setattr, Truncate};
use mortar_xlators::types::{AttrMask, Fd, OpenFlags};

use super::stories;

stories![
    a_file_is_created_open,
    an_open_file_outlives_its_name,
    an_open_file_outlives_its_replacement,
    opening_may_cut,
    an_unknown_number_is_served_by_gfid,
    what_is_not_there_is_not_opened,
    a_file_is_open_many_times,
    a_directory_is_not_opened_as_a_file,
];

async fn a_file_is_created_open(tree: Tree) {
    let fd = tree.create_open("file").await.unwrap();
    tree.write_fd(fd, Place::At(0), "hello").await.unwrap();
    assert_eq!(tree.read_fd(fd, 0, 100).await.unwrap(), "hello");
    tree.close(fd).await.unwrap();
    assert_eq!(tree.read("file").await.unwrap(), "hello");
}

async fn an_open_file_outlives_its_name(tree: Tree) {
    for number in 0..4 {
        let path = format!("file-{number}");
        let fd = tree.create_open(&path).await.unwrap();
        tree.write_fd(fd, Place::At(0), "before").await.unwrap();
        let removed = tree.unlink(&path).await.unwrap();
        assert_eq!(removed.iatt.nlink, 0);
        assert!(tree.look(&path).await.unwrap().is_none());
        tree.write_fd(fd, Place::At(6), " and after").await.unwrap();
        assert_eq!(tree.read_fd(fd, 0, 100).await.unwrap(), "before and after");
        let found = tree.send(Getattr { gfid: fd.gfid, fd: Some(fd), exact: AttrMask::all() }).await.unwrap();
        assert_eq!((found.iatt.size, found.iatt.nlink), (16, 0));
        tree.send(Truncate { gfid: fd.gfid, fd: Some(fd), size: 3, kill_priv: false, when: now() }).await.unwrap();
        let chmod = Setattr { fd: Some(fd), mode: Some(0o600), ..no_change(fd.gfid) };
        assert_eq!(tree.send(chmod).await.unwrap().iatt.mode, 0o600);
        assert_eq!(tree.read_fd(fd, 0, 100).await.unwrap(), "bef");
        tree.close(fd).await.unwrap();
    }
}

async fn an_open_file_outlives_its_replacement(tree: Tree) {
    for number in 0..6 {
        let (old, new) = (format!("old-{number}"), format!("new-{number}"));
        let fd = tree.create_open(&old).await.unwrap();
        tree.write_fd(fd, Place::At(0), "old").await.unwrap();
        tree.create(&new, "new").await.unwrap();
        tree.rename(&new, &old).await.unwrap();
        assert_eq!(tree.read_fd(fd, 0, 100).await.unwrap(), "old");
        assert_eq!(tree.read(&old).await.unwrap(), "new");
        tree.close(fd).await.unwrap();
    }
}

async fn opening_may_cut(tree: Tree) {
    tree.create("file", "content").await.unwrap();
    let before = tree.stat("file").await.unwrap();
    let fd = tree.open("file", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE).await.unwrap();
    let after = tree.stat("file").await.unwrap();
    assert_eq!(after.size, 0);
    assert!(after.mtime > before.mtime);
    tree.close(fd).await.unwrap();
}

async fn an_unknown_number_is_served_by_gfid(tree: Tree) {
    tree.create("file", "content").await.unwrap();
    let lost = Fd { id: u64::MAX - 7, gfid: tree.gfid("file").await.unwrap() };
    assert_eq!(tree.read_fd(lost, 0, 100).await.unwrap(), "content");
    tree.write_fd(lost, Place::At(0), "C").await.unwrap();
    assert_eq!(tree.read("file").await.unwrap(), "Content");
}

async fn what_is_not_there_is_not_opened(tree: Tree) {
    let gfid = mortar_tests::tree::new_gfid();
    let open = Open { fd: Fd { id: u64::MAX - 9, gfid }, flags: OpenFlags::READ, when: now() };
    assert!(matches!(refused(tree.send(open).await), Errno::NOENT | Errno::STALE));
}

async fn a_file_is_open_many_times(tree: Tree) {
    tree.create("file", "content").await.unwrap();
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(tree.open("file", OpenFlags::READ).await.unwrap());
    }
    tree.unlink("file").await.unwrap();
    while let Some(fd) = open.pop() {
        assert_eq!(tree.read_fd(fd, 0, 100).await.unwrap(), "content");
        tree.close(fd).await.unwrap();
    }
}

async fn a_directory_is_not_opened_as_a_file(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    assert_eq!(refused(tree.open("directory", OpenFlags::READ).await), Errno::ISDIR);
    // A listing that nobody began can be ended.
    tree.close(Fd { id: u64::MAX - 11, gfid: tree.gfid("directory").await.unwrap() }).await.unwrap();
}
