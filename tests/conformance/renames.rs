//! Moving names: over nothing, over something, not over something, and in exchange.

use mortar_tests::refused;
use mortar_tests::tree::Tree;
use mortar_xlators::error::Errno;
use mortar_xlators::fop::Replace;

use super::stories;

stories![
    a_file_moves_to_any_name,
    a_file_moves_between_directories,
    a_file_takes_the_place_of_another,
    a_name_that_moved_often_leaves_no_trace,
    one_of_two_names_moves,
    two_names_of_one_inode_both_stay,
    a_rename_may_refuse_to_replace,
    two_files_change_places,
    a_directory_moves_with_all_in_it,
    a_directory_takes_the_place_of_an_empty_one,
    files_and_directories_do_not_replace_each_other,
    a_directory_does_not_move_into_itself,
    what_is_not_there_does_not_move,
    a_symbolic_link_moves_as_it_is,
    both_directories_change_when_a_name_moves,
];

async fn a_file_moves_to_any_name(tree: Tree) {
    let gfid = tree.create("name-0", "content").await.unwrap().iatt.gfid;
    for number in 1..20 {
        let (from, to) = (format!("name-{}", number - 1), format!("name-{number}"));
        let renamed = tree.rename(&from, &to).await.unwrap();
        assert_eq!((renamed.iatt.gfid, renamed.iatt.nlink, renamed.replaced), (gfid, 1, None), "{to}");
        assert!(tree.look(&from).await.unwrap().is_none(), "{from}");
        let iatt = tree.stat(&to).await.unwrap();
        assert_eq!((iatt.gfid, iatt.size, iatt.nlink, iatt.mode), (gfid, 7, 1, 0o644), "{to}");
        assert_eq!(tree.ls("").await.unwrap(), [to]);
    }
    assert_eq!(tree.read("name-19").await.unwrap(), "content");
}

async fn a_file_moves_between_directories(tree: Tree) {
    tree.mkdir("a").await.unwrap();
    tree.mkdir("b").await.unwrap();
    for number in 0..10 {
        let (from, to) = (format!("a/{number}"), format!("b/other-{number}"));
        tree.create(&from, &from).await.unwrap();
        tree.rename(&from, &to).await.unwrap();
        assert_eq!(tree.read(&to).await.unwrap(), from);
    }
    assert_eq!(tree.ls("a").await.unwrap(), [""; 0]);
    assert_eq!(tree.ls("b").await.unwrap().len(), 10);
    tree.rmdir("a").await.unwrap();
}

async fn a_file_takes_the_place_of_another(tree: Tree) {
    // Enough pairs that on a volume of several sets every combination of places occurs.
    for number in 0..24 {
        let (from, to) = (format!("from-{number}"), format!("to-{number}"));
        let moved = tree.create(&from, "new").await.unwrap().iatt;
        let victim = tree.create(&to, "old").await.unwrap().iatt;
        let renamed = tree.rename(&from, &to).await.unwrap();
        let replaced = renamed.replaced.expect("something was replaced");
        assert_eq!((replaced.gfid, replaced.nlink), (victim.gfid, 0), "{number}");
        assert_eq!((renamed.iatt.gfid, renamed.iatt.nlink), (moved.gfid, 1), "{number}");
        assert_eq!(tree.read(&to).await.unwrap(), "new");
        assert!(tree.look(&from).await.unwrap().is_none());
    }
    let names = tree.ls("").await.unwrap();
    assert!(names.len() == 24 && names.iter().all(|name| name.starts_with("to-")), "{names:?}");
    // And once more, over names whose content may be elsewhere by now.
    for number in 0..24 {
        let (from, to) = (format!("to-{number}"), format!("to-{}", (number + 1) % 24));
        if number == 23 {
            break;
        }
        tree.rename(&from, &to).await.unwrap();
        assert_eq!(tree.ls("").await.unwrap().len(), 23 - number, "{from}");
    }
}

async fn a_name_that_moved_often_leaves_no_trace(tree: Tree) {
    tree.mkdir("room").await.unwrap();
    for number in 0..12 {
        tree.create(&format!("room/temporary-{number}"), "x").await.unwrap();
        tree.rename(&format!("room/temporary-{number}"), "room/final").await.unwrap();
    }
    assert_eq!(tree.ls("room").await.unwrap(), ["final"]);
    tree.unlink("room/final").await.unwrap();
    tree.rmdir("room").await.unwrap();
}

async fn one_of_two_names_moves(tree: Tree) {
    let gfid = tree.create("kept", "x").await.unwrap().iatt.gfid;
    for number in 0..8 {
        let (from, to) = (format!("second-{number}"), format!("moved-{number}"));
        tree.link("kept", &from).await.unwrap();
        let renamed = tree.rename(&from, &to).await.unwrap();
        assert_eq!((renamed.iatt.gfid, renamed.iatt.nlink), (gfid, number + 2));
        assert!(tree.look(&from).await.unwrap().is_none());
    }
    assert_eq!(tree.stat("kept").await.unwrap().nlink, 9);
}

async fn two_names_of_one_inode_both_stay(tree: Tree) {
    tree.create("a", "x").await.unwrap();
    for number in 0..6 {
        let other = format!("b-{number}");
        tree.link("a", &other).await.unwrap();
        tree.rename("a", &other).await.unwrap();
        tree.rename(&other, "a").await.unwrap();
        assert_eq!(tree.gfid("a").await.unwrap(), tree.gfid(&other).await.unwrap());
    }
    assert_eq!(tree.ls("").await.unwrap().len(), 7);
}

async fn a_rename_may_refuse_to_replace(tree: Tree) {
    for number in 0..8 {
        let (from, to, free) = (format!("from-{number}"), format!("to-{number}"), format!("free-{number}"));
        tree.create(&from, "from").await.unwrap();
        tree.create(&to, "to").await.unwrap();
        assert_eq!(refused(tree.rename_how(&from, &to, Replace::No).await), Errno::EXIST);
        assert_eq!((tree.read(&from).await.unwrap(), tree.read(&to).await.unwrap()), ("from".into(), "to".into()));
        tree.rename_how(&from, &free, Replace::No).await.unwrap();
        assert_eq!(tree.read(&free).await.unwrap(), "from");
    }
    tree.mkdir("directory").await.unwrap();
    tree.mkdir("taken").await.unwrap();
    assert_eq!(refused(tree.rename_how("directory", "taken", Replace::No).await), Errno::EXIST);
    tree.rename_how("directory", "free", Replace::No).await.unwrap();
}

async fn two_files_change_places(tree: Tree) {
    for number in 0..8 {
        let (left, right) = (format!("left-{number}"), format!("right-{number}"));
        tree.create(&left, "left").await.unwrap();
        tree.create(&right, "right").await.unwrap();
        match tree.rename_how(&left, &right, Replace::Exchange).await {
            Ok(_) => {
                assert_eq!(tree.read(&left).await.unwrap(), "right");
                assert_eq!(tree.read(&right).await.unwrap(), "left");
            }
            // The two are on different sets, and nothing has changed.
            Err(error) => {
                assert_eq!(error.errno(), Errno::XDEV);
                assert_eq!(tree.read(&left).await.unwrap(), "left");
                assert_eq!(tree.read(&right).await.unwrap(), "right");
            }
        }
    }
    assert_eq!(refused(tree.rename_how("left-0", "nobody", Replace::Exchange).await), Errno::NOENT);
    assert_eq!(tree.ls("").await.unwrap().len(), 16);
}

async fn a_directory_moves_with_all_in_it(tree: Tree) {
    tree.mkdir("old").await.unwrap();
    tree.mkdir("old/inner").await.unwrap();
    for number in 0..10 {
        tree.create(&format!("old/inner/{number}"), &number.to_string()).await.unwrap();
    }
    let gfid = tree.gfid("old").await.unwrap();
    tree.mkdir("elsewhere").await.unwrap();
    for (from, to) in [("old", "new"), ("new", "elsewhere/newer"), ("elsewhere/newer", "newest")] {
        let renamed = tree.rename(from, to).await.unwrap();
        assert_eq!((renamed.iatt.gfid, renamed.replaced), (gfid, None));
        assert!(tree.look(from).await.unwrap().is_none());
        for number in 0..10 {
            assert_eq!(tree.read(&format!("{to}/inner/{number}")).await.unwrap(), number.to_string());
        }
        tree.create(&format!("{to}/after"), "").await.unwrap();
        tree.unlink(&format!("{to}/after")).await.unwrap();
    }
    assert_eq!(tree.ls("").await.unwrap(), ["elsewhere", "newest"]);
    tree.rmdir("elsewhere").await.unwrap();
}

async fn a_directory_takes_the_place_of_an_empty_one(tree: Tree) {
    tree.mkdir("full").await.unwrap();
    tree.create("full/file", "x").await.unwrap();
    tree.mkdir("empty").await.unwrap();
    assert_eq!(refused(tree.rename("empty", "full").await), Errno::NOTEMPTY);
    assert_eq!(tree.read("full/file").await.unwrap(), "x");
    let victim = tree.gfid("empty").await.unwrap();
    let renamed = tree.rename("full", "empty").await.unwrap();
    assert_eq!(renamed.replaced.map(|replaced| replaced.gfid), Some(victim));
    assert_eq!(tree.read("empty/file").await.unwrap(), "x");
    assert_eq!(tree.ls("").await.unwrap(), ["empty"]);
}

async fn files_and_directories_do_not_replace_each_other(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    tree.create("file", "x").await.unwrap();
    assert_eq!(refused(tree.rename("file", "directory").await), Errno::ISDIR);
    assert_eq!(refused(tree.rename("directory", "file").await), Errno::NOTDIR);
    assert_eq!(tree.ls("").await.unwrap(), ["directory", "file"]);
}

async fn a_directory_does_not_move_into_itself(tree: Tree) {
    tree.mkdir("outer").await.unwrap();
    tree.mkdir("outer/inner").await.unwrap();
    assert_eq!(refused(tree.rename("outer", "outer/inner/outer").await), Errno::INVAL);
    assert_eq!(refused(tree.rename("outer", "outer/inner").await), Errno::INVAL);
    tree.create("outer/inner/file", "fine").await.unwrap();
    assert_eq!(tree.read("outer/inner/file").await.unwrap(), "fine");
}

async fn what_is_not_there_does_not_move(tree: Tree) {
    assert_eq!(refused(tree.rename("nobody", "somebody").await), Errno::NOENT);
    tree.create("file", "x").await.unwrap();
    assert_eq!(refused(tree.rename("nobody", "file").await), Errno::NOENT);
    assert_eq!(tree.read("file").await.unwrap(), "x");
}

async fn a_symbolic_link_moves_as_it_is(tree: Tree) {
    tree.symlink("nowhere", "link").await.unwrap();
    for number in 0..6 {
        let to = format!("link-{number}");
        tree.rename("link", &to).await.unwrap();
        assert_eq!(tree.readlink(&to).await.unwrap(), "nowhere");
        tree.rename(&to, "link").await.unwrap();
    }
    assert_eq!(tree.ls("").await.unwrap(), ["link"]);
}

async fn both_directories_change_when_a_name_moves(tree: Tree) {
    tree.mkdir("a").await.unwrap();
    tree.mkdir("b").await.unwrap();
    for number in 0..4 {
        tree.create(&format!("a/{number}"), "").await.unwrap();
        let before = (tree.stat("a").await.unwrap(), tree.stat("b").await.unwrap());
        tree.rename(&format!("a/{number}"), &format!("b/moved-{number}")).await.unwrap();
        let after = (tree.stat("a").await.unwrap(), tree.stat("b").await.unwrap());
        assert!(after.0.mtime > before.0.mtime && after.1.mtime > before.1.mtime, "{number}");
    }
}
