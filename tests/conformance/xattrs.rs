//! Extended attributes: kept on everything, told apart by name, and ours never shown.

use mortar_tests::refused;
use mortar_tests::tree::Tree;
use mortar_xlators::error::Errno;
use mortar_xlators::fop::SetHow;

use super::stories;

stories![
    what_is_set_is_read,
    setting_may_demand_that_it_is_new_or_known,
    what_is_removed_is_gone,
    ours_are_neither_shown_nor_changed,
    a_directory_keeps_them_everywhere,
    an_empty_and_a_large_value_are_kept,
];

async fn what_is_set_is_read(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    for path in ["file", "directory"] {
        assert_eq!(tree.listxattr(path).await.unwrap(), [""; 0], "{path}");
        tree.setxattr(path, "user.colour", "red", SetHow::Any).await.unwrap();
        tree.setxattr(path, "user.size", "large", SetHow::Any).await.unwrap();
        assert_eq!(tree.getxattr(path, "user.colour").await.unwrap(), "red", "{path}");
        assert_eq!(tree.listxattr(path).await.unwrap(), ["user.colour", "user.size"], "{path}");
        tree.setxattr(path, "user.colour", "green", SetHow::Any).await.unwrap();
        assert_eq!(tree.getxattr(path, "user.colour").await.unwrap(), "green", "{path}");
        assert_eq!(refused(tree.getxattr(path, "user.absent").await), Errno::NODATA, "{path}");
    }
}

async fn setting_may_demand_that_it_is_new_or_known(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    for path in ["file", "directory"] {
        assert_eq!(refused(tree.setxattr(path, "user.x", "1", SetHow::Replace).await), Errno::NODATA);
        tree.setxattr(path, "user.x", "1", SetHow::Create).await.unwrap();
        assert_eq!(refused(tree.setxattr(path, "user.x", "2", SetHow::Create).await), Errno::EXIST);
        tree.setxattr(path, "user.x", "3", SetHow::Replace).await.unwrap();
        assert_eq!(tree.getxattr(path, "user.x").await.unwrap(), "3");
    }
}

async fn what_is_removed_is_gone(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    for path in ["file", "directory"] {
        tree.setxattr(path, "user.x", "1", SetHow::Any).await.unwrap();
        tree.removexattr(path, "user.x").await.unwrap();
        assert_eq!(refused(tree.getxattr(path, "user.x").await), Errno::NODATA);
        assert_eq!(refused(tree.removexattr(path, "user.x").await), Errno::NODATA);
        assert_eq!(tree.listxattr(path).await.unwrap(), [""; 0]);
    }
}

async fn ours_are_neither_shown_nor_changed(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.mkdir("directory").await.unwrap();
    let ours = ["trusted.gfid", "trusted.glusterfs.dht", "trusted.glusterfs.mdata", "trusted.afr.dirty"];
    for path in ["file", "directory"] {
        for name in ours {
            assert!(
                matches!(tree.getxattr(path, name).await.unwrap_err().errno(), Errno::NODATA | Errno::PERM),
                "{path} {name}"
            );
            let answer = tree.setxattr(path, name, "nonsense", SetHow::Any).await;
            assert!(answer.is_err(), "{path} {name} {answer:?}");
            assert!(tree.removexattr(path, name).await.is_err(), "{path} {name}");
        }
        assert_eq!(tree.listxattr(path).await.unwrap(), [""; 0], "{path}");
    }
}

async fn a_directory_keeps_them_everywhere(tree: Tree) {
    for number in 0..6 {
        let path = format!("directory-{number}");
        tree.mkdir(&path).await.unwrap();
        tree.setxattr(&path, "user.number", &number.to_string(), SetHow::Any).await.unwrap();
        tree.rename(&path, &format!("moved-{number}")).await.unwrap();
        assert_eq!(tree.getxattr(&format!("moved-{number}"), "user.number").await.unwrap(), number.to_string());
    }
}

async fn an_empty_and_a_large_value_are_kept(tree: Tree) {
    tree.create("file", "").await.unwrap();
    tree.setxattr("file", "user.empty", "", SetHow::Any).await.unwrap();
    assert_eq!(tree.getxattr("file", "user.empty").await.unwrap(), "");
    let large = "v".repeat(2000);
    tree.setxattr("file", "user.large", &large, SetHow::Any).await.unwrap();
    assert_eq!(tree.getxattr("file", "user.large").await.unwrap(), large);
}
