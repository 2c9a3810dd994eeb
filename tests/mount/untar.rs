//! The main job: source trees untarred through two mounts, verified from a third, with a brick that dies meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mortar_tests::bench::packages::LINUX_SOURCE;
use mortar_tests::bench::tree::{Size, Source, manifest};
use mortar_tests::cluster::Cluster;
use mortar_tests::judges::tools::target_directory;

use super::within;

/// Two untars of a tree of some thousand files, and its verification, on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// An archive and a local copy of what is in it.
pub(super) struct Archive {
    pub(super) tar: PathBuf,
    pub(super) manifest: String,
    _local: tempfile::TempDir,
}

/// The file systems of the kernel's source if the machine has it, else a tree of our own.
pub(super) fn archive() -> Archive {
    let local = tempfile::tempdir().unwrap();
    let tree = local.path().join("tree");
    fs::create_dir(&tree).unwrap();
    if LINUX_SOURCE.is_here() {
        let cache = target_directory().unwrap().join("bench");
        let source = Source::prepare(&cache, Size::Small).unwrap();
        tar(&["-C", &tree.to_string_lossy(), "-xf", &source.tar.to_string_lossy(), "./fs"]);
    } else {
        grow(&tree);
    }
    let archive = local.path().join("tree.tar");
    tar(&["-C", &tree.to_string_lossy(), "--format=posix", "-cf", &archive.to_string_lossy(), "."]);
    Archive { tar: archive, manifest: manifest(&tree).unwrap(), _local: local }
}

/// Some thousand files of the sizes that source code has.
fn grow(tree: &Path) {
    for directory in 0..100 {
        let path = tree.join(format!("part-{}/unit-{directory}", directory % 10));
        fs::create_dir_all(&path).unwrap();
        for file in 0..20 {
            let line = format!("{directory} {file} ");
            fs::write(path.join(format!("file-{file}.c")), line.repeat((directory * file) % 3000)).unwrap();
        }
        std::os::unix::fs::symlink("file-1.c", path.join("link")).unwrap();
    }
}

fn tar(arguments: &[&str]) {
    assert!(Command::new("tar").args(arguments).status().unwrap().success(), "tar {arguments:?}");
}

pub(super) fn untar(archive: &Path, into: &Path) -> Child {
    fs::create_dir(into).unwrap();
    let mut command = Command::new("tar");
    command.arg("-C").arg(into).arg("-xf").arg(archive).stdin(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub(super) fn finish(child: Child) -> Result<(), String> {
    let output = child.wait_with_output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Compare a copy with what was untarred, and say where they first differ.
pub(super) fn verify(archive: &Archive, copy: &Path) {
    let found = manifest(copy).unwrap();
    let differs = archive.manifest.lines().zip(found.lines()).find(|(want, got)| want != got);
    assert_eq!(differs, None, "{}", copy.display());
    assert_eq!(found.lines().count(), archive.manifest.lines().count(), "{}", copy.display());
}

#[test]
fn two_mounts_untar_at_once_and_a_third_sees_it_all() {
    within(LIMIT, "", || {
        let archive = archive();
        let cluster = Cluster::up(6, 3, 3).unwrap();
        let one = untar(&archive.tar, &cluster.mount(0).join("one"));
        let other = untar(&archive.tar, &cluster.mount(1).join("other"));
        assert_eq!((finish(one), finish(other)), (Ok(()), Ok(())), "{}", cluster.log_tails());
        verify(&archive, &cluster.mount(2).join("one"));
        verify(&archive, &cluster.mount(2).join("other"));
        fs::remove_dir_all(cluster.mount(2).join("one")).unwrap();
        verify(&archive, &cluster.mount(0).join("other"));
        assert_eq!(cluster.dead_processes(), Vec::<String>::new());
    });
}

#[test]
fn a_brick_that_is_killed_during_an_untar_is_not_missed() {
    within(LIMIT, "", || {
        let archive = archive();
        let cluster = Cluster::up(6, 3, 3).unwrap();
        fs::write(cluster.mount(0).join("before"), "before").unwrap();
        let one = untar(&archive.tar, &cluster.mount(0).join("one"));
        let other = untar(&archive.tar, &cluster.mount(1).join("other"));
        wait_until_some(&cluster.mount(2).join("one"));
        let dead = cluster.kill_brick(1).unwrap();
        assert_eq!((finish(one), finish(other)), (Ok(()), Ok(())), "{}", cluster.log_tails());
        verify(&archive, &cluster.mount(2).join("one"));
        verify(&archive, &cluster.mount(2).join("other"));
        fs::write(cluster.mount(1).join("before"), "after").unwrap();

        cluster.start_brick(&dead).unwrap();
        // The brick has missed much: nobody may read it from there, neither before nor after it is back in the set.
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until {
            assert!(cluster.mounts().iter().all(|mount| fs::read(mount.join("before")).unwrap() == b"after"));
            std::thread::sleep(Duration::from_millis(200));
        }
        verify(&archive, &cluster.mount(0).join("other"));
        verify(&archive, &cluster.mount(1).join("one"));
        finish(untar(&archive.tar, &cluster.mount(0).join("third"))).unwrap();
        verify(&archive, &cluster.mount(1).join("third"));
    });
}

#[test]
fn what_was_untarred_is_there_after_a_restart() {
    within(LIMIT, "", || {
        let archive = archive();
        let mut cluster = Cluster::up(6, 3, 1).unwrap();
        finish(untar(&archive.tar, &cluster.mount(0).join("tree"))).unwrap();
        cluster.down().unwrap();
        cluster.start_again().unwrap();
        verify(&archive, &cluster.mount(0).join("tree"));
    });
}

/// The untar has begun: there is something in the directory, seen from another mount.
fn wait_until_some(directory: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(directory.join("fs")).or_else(|_| fs::read_dir(directory)).map_or(0, Iterator::count) < 5 {
        assert!(Instant::now() < until, "the untar does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
}
