//! What a change, or one that was refused, has left when every process has been started anew.

use std::fs;
use std::path::Path;

use mortar_tests::cluster::Cluster;
use rustix::fs::rename;
use rustix::io::Errno;

use super::{LIMIT, bricks, within};

/// C005
#[test]
fn a_directory_that_could_not_be_moved_is_whole_after_a_restart() {
    let local = tempfile::tempdir().unwrap();
    let at = local.path().to_owned();
    within(LIMIT, "on a local directory", move || move_onto_what_is_full_and_then_empty(&at, || {}));
    within(LIMIT, "on the volume", || {
        let mut cluster = Cluster::up(6, 3, 1).unwrap();
        let at = cluster.mount(0).to_owned();
        move_onto_what_is_full_and_then_empty(&at, || {
            cluster.down().unwrap();
            cluster.start_again().unwrap();
            bricks::settle(&cluster, 3);
        });
    });
}

fn move_onto_what_is_full_and_then_empty(at: &Path, mut restart: impl FnMut()) {
    let (from, to) = (at.join("from"), at.join("to"));
    for directory in [&from, &to] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("file"), directory.to_str().unwrap()).unwrap();
    }
    let refused = rename(&from, &to);
    assert!(matches!(refused, Err(Errno::NOTEMPTY | Errno::EXIST)), "{refused:?}");
    restart();
    for directory in [&from, &to] {
        assert_eq!(names(directory), ["file"]);
        assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), directory.to_str().unwrap());
        fs::write(directory.join("new"), "text").unwrap();
        fs::remove_file(directory.join("new")).unwrap();
    }
    fs::remove_file(to.join("file")).unwrap();
    rename(&from, &to).unwrap();
    restart();
    assert_eq!(names(at), ["to"]);
    assert_eq!(names(&to), ["file"]);
    assert_eq!(fs::read_to_string(to.join("file")).unwrap(), from.to_str().unwrap());
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
