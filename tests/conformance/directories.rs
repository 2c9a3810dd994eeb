//! Directories: they are made, hold names, and go away only when they are empty.

use mortar_tests::refused;
use mortar_tests::tree::{Tree, birth};
use mortar_xlators::error::Errno;
use mortar_xlators::fop::{Fsync, Mkdir};
use mortar_xlators::types::Kind;

use super::stories;

stories![
    a_new_directory_is_found_and_empty,
    directories_nest_deeply,
    a_directory_with_a_name_in_it_stays,
    an_empty_directory_goes,
    a_directory_can_be_made_again,
    a_directory_counts_its_directories,
    a_directory_changes_when_a_name_in_it_does,
    a_group_directory_hands_its_group_down,
    a_directory_can_be_made_durable,
];

async fn a_new_directory_is_found_and_empty(tree: Tree) {
    let made = tree.mkdir("new").await.unwrap();
    let iatt = tree.stat("new").await.unwrap();
    assert_eq!((iatt.gfid, iatt.kind, iatt.mode), (made.iatt.gfid, Kind::Dir, 0o755));
    assert_eq!(tree.ls("new").await.unwrap(), [""; 0]);
    assert_eq!(refused(tree.mkdir("new").await), Errno::EXIST);
}

async fn directories_nest_deeply(tree: Tree) {
    let mut path = String::from("0");
    tree.mkdir(&path).await.unwrap();
    for depth in 1..60 {
        path = format!("{path}/{depth}");
        tree.mkdir(&path).await.unwrap();
    }
    tree.create(&format!("{path}/leaf"), "deep").await.unwrap();
    assert_eq!(tree.read(&format!("{path}/leaf")).await.unwrap(), "deep");
}

async fn a_directory_with_a_name_in_it_stays(tree: Tree) {
    tree.mkdir("full").await.unwrap();
    for content in ["file", "other", "third", "fourth"] {
        let path = format!("full/{content}");
        tree.create(&path, "").await.unwrap();
        assert_eq!(refused(tree.rmdir("full").await), Errno::NOTEMPTY);
        assert_eq!(tree.ls("full").await.unwrap(), [content]);
        tree.unlink(&path).await.unwrap();
    }
    tree.mkdir("full/directory").await.unwrap();
    assert_eq!(refused(tree.rmdir("full").await), Errno::NOTEMPTY);
    tree.create("full/directory/file", "still here").await.unwrap();
    assert_eq!(tree.read("full/directory/file").await.unwrap(), "still here");
}

async fn an_empty_directory_goes(tree: Tree) {
    tree.mkdir("empty").await.unwrap();
    tree.mkdir("empty/inner").await.unwrap();
    for number in 0..10 {
        tree.create(&format!("empty/inner/{number}"), "").await.unwrap();
    }
    for number in 0..10 {
        tree.unlink(&format!("empty/inner/{number}")).await.unwrap();
    }
    tree.rmdir("empty/inner").await.unwrap();
    let removed = tree.rmdir("empty").await.unwrap();
    assert_eq!(removed.iatt.nlink, 0);
    assert!(tree.look("empty").await.unwrap().is_none());
    assert_eq!(refused(tree.rmdir("empty").await), Errno::NOENT);
    assert_eq!(tree.ls("").await.unwrap(), [""; 0]);
}

async fn a_directory_can_be_made_again(tree: Tree) {
    let mut last = None;
    for _ in 0..5 {
        let made = tree.mkdir("again").await.unwrap().iatt.gfid;
        assert_ne!(last, Some(made));
        last = Some(made);
        tree.create("again/file", "").await.unwrap();
        tree.unlink("again/file").await.unwrap();
        tree.rmdir("again").await.unwrap();
    }
}

async fn a_directory_counts_its_directories(tree: Tree) {
    let before = tree.stat("").await.unwrap().nlink;
    tree.mkdir("a").await.unwrap();
    tree.mkdir("b").await.unwrap();
    tree.create("file", "").await.unwrap();
    // Some file systems say 1 for every directory.
    let after = tree.stat("").await.unwrap().nlink;
    assert!(after == before + 2 || (before, after) == (1, 1), "{before} {after}");
    tree.rmdir("a").await.unwrap();
    tree.rmdir("b").await.unwrap();
    assert_eq!(tree.stat("").await.unwrap().nlink, before);
}

async fn a_directory_changes_when_a_name_in_it_does(tree: Tree) {
    let mut last = tree.stat("").await.unwrap();
    for round in 0..4 {
        let path = format!("file-{round}");
        tree.create(&path, "").await.unwrap();
        let after_create = tree.stat("").await.unwrap();
        assert!(after_create.mtime > last.mtime && after_create.ctime > last.ctime, "create {round}");
        tree.unlink(&path).await.unwrap();
        last = tree.stat("").await.unwrap();
        assert!(last.mtime > after_create.mtime && last.ctime > after_create.ctime, "unlink {round}");
    }
}

async fn a_group_directory_hands_its_group_down(tree: Tree) {
    tree.mkdir("group").await.unwrap();
    tree.chown("group", 0, 4321).await.unwrap();
    tree.chmod("group", 0o2775).await.unwrap();
    tree.create("group/file", "").await.unwrap();
    let (parent, name) = tree.split("group/inner").await.unwrap();
    tree.send(Mkdir { parent, name, birth: birth(0o755), layout: None, mds: false, lease: false }).await.unwrap();
    assert_eq!(tree.stat("group/file").await.unwrap().gid, 4321);
    let inner = tree.stat("group/inner").await.unwrap();
    assert_eq!((inner.gid, inner.mode), (4321, 0o2755));
}

async fn a_directory_can_be_made_durable(tree: Tree) {
    tree.create("file", "").await.unwrap();
    let gfid = tree.gfid("").await.unwrap();
    tree.send(Fsync { gfid, fd: None, data_only: false }).await.unwrap();
}
