//! Names that move: what a program sees right after a rename, and what other mounts see of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::{everywhere, everywhere_down_to_the_bricks, shell};

/// C006: a hard link that another mount removed is not taken for the file that is renamed onto its name.
#[test]
fn a_hard_link_that_another_removed_is_gone_for_rename() {
    everywhere(|mounts| {
        for round in 0..20 {
            let (file, link) = (format!("file-{round}"), format!("file-{round}.link"));
            fs::write(mounts.here(&file), "").unwrap();
            fs::hard_link(mounts.here(&file), mounts.here(&link)).unwrap();
            assert_eq!(fs::metadata(mounts.here(&link)).unwrap().nlink(), 2);
            fs::remove_file(mounts.there(&link)).unwrap();
            shell(&mounts.0[0], &format!("mv {file} {link}"));
            for mount in &mounts.0 {
                assert_eq!(fs::metadata(mount.join(&link)).unwrap().nlink(), 1);
                assert_eq!(fs::metadata(mount.join(&file)).unwrap_err().kind(), ErrorKind::NotFound);
            }
        }
    });
}

/// C007: of two that rename onto one new name without replacing, one wins, and the other keeps its file.
#[test]
fn a_rename_that_must_not_replace_has_one_winner() {
    everywhere(|mounts| {
        for round in 0..100 {
            let (start, winners) = (Barrier::new(2), AtomicUsize::new(0));
            thread::scope(|scope| {
                for door in 0..2 {
                    let (start, winners, mount) = (&start, &winners, &mounts.0[door]);
                    scope.spawn(move || {
                        let own = mount.join(format!("own-{door}-{round}"));
                        fs::write(&own, format!("{door}")).unwrap();
                        start.wait();
                        let new = mount.join(format!("new-{round}"));
                        match renameat_with(CWD, &own, CWD, &new, RenameFlags::NOREPLACE) {
                            Ok(()) => {
                                winners.fetch_add(1, Ordering::SeqCst);
                                assert!(!own.exists());
                            }
                            Err(errno) => {
                                assert_eq!(errno, Errno::EXIST);
                                assert_eq!(fs::read_to_string(&own).unwrap(), format!("{door}"));
                            }
                        }
                    });
                }
            });
            assert_eq!(winners.load(Ordering::SeqCst), 1, "round {round}");
        }
    });
}

/// C007: an exchange exchanges, or is refused; it never replaces.
#[test]
fn an_exchange_never_replaces() {
    everywhere(|mounts| {
        for round in 0..40 {
            let names = [format!("a-{round}"), format!("b-{round}")];
            for name in &names {
                fs::write(mounts.here(name), name).unwrap();
            }
            let [a, b] = &names;
            let done = renameat_with(CWD, mounts.here(a), CWD, mounts.here(b), RenameFlags::EXCHANGE);
            let (in_a, in_b) = if done.is_ok() { (b, a) } else { (a, b) };
            assert!(matches!(done, Ok(()) | Err(Errno::XDEV)), "{done:?}");
            for mount in &mounts.0 {
                assert_eq!(&fs::read_to_string(mount.join(a)).unwrap(), in_a);
                assert_eq!(&fs::read_to_string(mount.join(b)).unwrap(), in_b);
            }
        }
    });
}

/// C012: what was renamed is there under its new name, and no longer under the old one.
#[test]
fn a_new_name_is_there_at_once() {
    everywhere(|mounts| {
        fs::write(mounts.here("a"), "x").unwrap();
        fs::create_dir_all(mounts.here("d/child")).unwrap();
        let (mut file, mut directory) = ("a".to_owned(), "d".to_owned());
        for round in 0..150 {
            let next = (format!("a-{round}"), format!("d-{round}"));
            fs::rename(mounts.here(&file), mounts.here(&next.0)).unwrap();
            assert_eq!(fs::metadata(mounts.here(&next.0)).unwrap().len(), 1);
            assert_eq!(fs::metadata(mounts.there(&file)).unwrap_err().kind(), ErrorKind::NotFound);
            fs::rename(mounts.here(&directory), mounts.here(&next.1)).unwrap();
            assert!(fs::metadata(mounts.here(&next.1)).unwrap().is_dir());
            assert_eq!(fs::read_dir(mounts.there(&next.1)).unwrap().count(), 1);
            assert_eq!(fs::metadata(mounts.here(&directory)).unwrap_err().kind(), ErrorKind::NotFound);
            (file, directory) = next;
        }
        let script = format!("cd {directory}; mv ../{directory} ../moved; pwd -P; ls; cat ../{file}");
        let said = shell(&mounts.0[0], &script);
        assert!(said.ends_with("/moved\nchild\nx"), "{said}");
    });
}

/// C014: a tree that is untarred and whose directories are moved about, as `npm install` does, can be removed, and nothing of it
/// stays. Each round has names of its own, so that the bricks show in the end what any of them has left.
#[test]
fn a_tree_that_was_moved_about_can_be_removed() {
    everywhere_down_to_the_bricks(|mounts| {
        let source = tempfile::tempdir().unwrap();
        for number in 0..24 {
            let package = source.path().join(format!("stage/package-{number}"));
            fs::create_dir_all(package.join("lib")).unwrap();
            for file in 0..5 {
                fs::write(package.join(format!("lib/{file}.js")), format!("{number} {file}")).unwrap();
            }
        }
        shell(source.path(), "tar -cf tree.tar stage");
        let archive = source.path().join("tree.tar");
        for round in 0..2 {
            let (stage, live) = (format!("stage-{round}"), format!("live-{round}"));
            let untar = format!("tar -xf {} && mv stage {stage}", archive.display());
            shell(&mounts.0[0], &untar);
            for number in 0..16 {
                let to = format!("{stage}/.package-{number}-x{round}");
                fs::rename(mounts.here(&format!("{stage}/package-{number}")), mounts.here(&to)).unwrap();
            }
            fs::create_dir(mounts.there(&live)).unwrap();
            for entry in fs::read_dir(mounts.there(&stage)).unwrap() {
                let name = entry.unwrap().file_name();
                fs::rename(mounts.there(&stage).join(&name), mounts.there(&live).join(&name)).unwrap();
            }
            assert_eq!(files(&mounts.here(&live)).len(), 24 * 5);
            shell(&mounts.0[2], &format!("rm -rf {live} {stage}"));
            assert!(mounts.everywhere(&live).chain(mounts.everywhere(&stage)).all(|path| !path.exists()));
        }
    });
}

fn files(top: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap());
        }
    }
    found
}
