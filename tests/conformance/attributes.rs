//! Attributes: what was set is what is seen, and times tell what happened.

use mortar_tests::tree::{Tree, no_change};
use mortar_xlators::fop::{Getattr, Setattr};
use mortar_xlators::types::{AttrMask, Time};

use super::stories;

stories![
    mode_and_owner_are_set,
    times_are_set_to_the_nanosecond,
    times_before_1970_and_after_2038_are_kept,
    one_time_is_set_alone,
    a_change_of_mode_is_seen_in_ctime,
    attributes_of_a_directory_hold_everywhere,
    set_user_id_is_cleared_on_request,
    attributes_are_found_by_gfid,
    a_directory_has_one_size,
];

async fn mode_and_owner_are_set(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    tree.mknod("fifo", mortar_xlators::types::Kind::Fifo, 0).await.unwrap();
    for path in ["file", "directory", "fifo"] {
        for mode in [0o600, 0o777, 0, 0o1755] {
            let changed = tree.chmod(path, mode).await.unwrap();
            assert_eq!(changed.iatt.mode, mode, "{path}");
            assert_eq!(tree.stat(path).await.unwrap().mode, mode, "{path}");
        }
        tree.chown(path, 1000, 2000).await.unwrap();
        let iatt = tree.stat(path).await.unwrap();
        assert_eq!((iatt.uid, iatt.gid, iatt.mode), (1000, 2000, 0o1755), "{path}");
    }
    tree.symlink("nowhere", "link").await.unwrap();
    tree.chown("link", 1000, 2000).await.unwrap();
    assert_eq!(tree.stat("link").await.unwrap().uid, 1000);
}

async fn times_are_set_to_the_nanosecond(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    tree.symlink("nowhere", "link").await.unwrap();
    let (atime, mtime) = (Time { sec: 1_000_000_000, nsec: 1 }, Time { sec: 1_000_000_001, nsec: 999_999_999 });
    for path in ["file", "directory", "link"] {
        tree.utimens(path, atime, mtime).await.unwrap();
        let iatt = tree.stat(path).await.unwrap();
        assert_eq!((iatt.atime, iatt.mtime), (atime, mtime), "{path}");
    }
}

async fn times_before_1970_and_after_2038_are_kept(tree: Tree) {
    tree.create("file", "").await.unwrap();
    for (before, after) in [(-1, 3_000_000_000), (-2_000_000_000, 5_000_000_000), (0, 1)] {
        let (atime, mtime) = (Time { sec: before, nsec: 500_000_000 }, Time { sec: after, nsec: 7 });
        tree.utimens("file", atime, mtime).await.unwrap();
        let iatt = tree.stat("file").await.unwrap();
        assert_eq!((iatt.atime, iatt.mtime), (atime, mtime));
    }
}

async fn one_time_is_set_alone(tree: Tree) {
    tree.create("file", "").await.unwrap();
    let before = tree.stat("file").await.unwrap();
    let mtime = Time { sec: 1_234_567_890, nsec: 5 };
    tree.send(Setattr { mtime: Some(mtime), ..no_change(before.gfid) }).await.unwrap();
    let after = tree.stat("file").await.unwrap();
    assert_eq!((after.atime, after.mtime), (before.atime, mtime));
    assert!(after.ctime > before.ctime);
}

async fn a_change_of_mode_is_seen_in_ctime(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    for path in ["file", "directory"] {
        let before = tree.stat(path).await.unwrap();
        tree.chmod(path, 0o700).await.unwrap();
        let after = tree.stat(path).await.unwrap();
        assert!(after.ctime > before.ctime && after.mtime == before.mtime, "{path}");
    }
}

async fn attributes_of_a_directory_hold_everywhere(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    for number in 0..10 {
        tree.create(&format!("directory/{number}"), "").await.unwrap();
    }
    let (atime, mtime) = (Time { sec: 1_000, nsec: 0 }, Time { sec: 2_000, nsec: 0 });
    tree.chown("directory", 11, 22).await.unwrap();
    tree.chmod("directory", 0o711).await.unwrap();
    tree.utimens("directory", atime, mtime).await.unwrap();
    let looked = tree.find("directory").await.unwrap();
    let stat = tree.stat("directory").await.unwrap();
    for iatt in [looked, stat] {
        assert_eq!((iatt.uid, iatt.gid, iatt.mode), (11, 22, 0o711));
        assert_eq!((iatt.atime, iatt.mtime), (atime, mtime));
    }
    tree.create("directory/later", "").await.unwrap();
    assert!(tree.stat("directory").await.unwrap().mtime > mtime);
}

async fn set_user_id_is_cleared_on_request(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.chmod("file", 0o6755).await.unwrap();
    let gfid = tree.gfid("file").await.unwrap();
    tree.send(Setattr { uid: Some(7), kill_priv: true, ..no_change(gfid) }).await.unwrap();
    let iatt = tree.stat("file").await.unwrap();
    assert_eq!((iatt.uid, iatt.mode), (7, 0o755));
}

async fn attributes_are_found_by_gfid(tree: Tree) {
    let file = tree.create("file", "abc").await.unwrap().iatt;
    let directory = tree.mkdir("directory").await.unwrap().iatt;
    for made in [file, directory] {
        let found = tree.send(Getattr { gfid: made.gfid, fd: None, exact: AttrMask::all() }).await.unwrap();
        assert!(found.exact.contains(AttrMask::all()));
        assert_eq!((found.iatt.gfid, found.iatt.kind, found.iatt.ctime), (made.gfid, made.kind, made.ctime));
    }
}

async fn a_directory_has_one_size(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    let looked = tree.find("directory").await.unwrap();
    let stat = tree.stat("directory").await.unwrap();
    let listed = tree.entries("", 4096, true).await.unwrap();
    assert_eq!((looked.size, looked.blocks), (stat.size, stat.blocks));
    if let Some(found) = &listed[0].found {
        assert_eq!((found.iatt.size, found.iatt.blocks, found.iatt.mode), (stat.size, stat.blocks, stat.mode));
    }
}
