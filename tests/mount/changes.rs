//! What is done at one mount is seen at the next, at once, whatever its kernel has cached.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Mounts, everywhere};

/// Look in every way, so that whatever caches there are know the answer.
fn warm(mounts: &Mounts, name: &str) {
    for path in mounts.everywhere(name) {
        for _ in 0..2 {
            let _ = fs::symlink_metadata(&path);
            let _ = fs::read(&path);
            let _ = listing(path.parent().unwrap());
        }
    }
}

fn listing(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What each mount says of a name.
fn seen(mounts: &Mounts, name: &str) -> Vec<bool> {
    let listed = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        listing(path.parent().unwrap()).iter().any(|entry| entry == name)
    };
    mounts.everywhere(name).flat_map(|path| [fs::symlink_metadata(&path).is_ok(), listed(&path)]).collect()
}

fn is_seen(mounts: &Mounts, name: &str, what: &str) {
    assert!(seen(mounts, name).iter().all(|seen| *seen), "{what}: {:?}", seen(mounts, name));
}

fn is_not_seen(mounts: &Mounts, name: &str, what: &str) {
    assert!(seen(mounts, name).iter().all(|seen| !*seen), "{what}: {:?}", seen(mounts, name));
}

#[test]
fn names_come_and_go_everywhere_at_once() {
    everywhere(|mounts| {
        for round in 0..60 {
            let (name, moved) = (format!("n{round}"), format!("m{round}"));
            let (maker, other) = (&mounts.0[round % 3], &mounts.0[(round + 1) % 3]);
            warm(mounts, &name);
            is_not_seen(mounts, &name, "before");
            match round % 4 {
                0 => fs::write(maker.join(&name), "x").unwrap(),
                1 => fs::create_dir(maker.join(&name)).unwrap(),
                2 => symlink("x", maker.join(&name)).unwrap(),
                _ => fs::write(maker.join(&name), "y").unwrap(),
            }
            is_seen(mounts, &name, "made");
            warm(mounts, &moved);
            fs::rename(other.join(&name), other.join(&moved)).unwrap();
            is_not_seen(mounts, &name, "moved away");
            is_seen(mounts, &moved, "moved");
            match round % 4 {
                1 => fs::remove_dir(maker.join(&moved)).unwrap(),
                _ => fs::remove_file(maker.join(&moved)).unwrap(),
            }
            is_not_seen(mounts, &moved, "removed");
        }
    });
}

#[test]
fn a_name_that_comes_back_is_the_new_file() {
    everywhere(|mounts| {
        for round in 0..50 {
            let (one, other) = (&mounts.0[round % 3], &mounts.0[(round + 1) % 3]);
            fs::write(one.join("f"), format!("round {round}")).unwrap();
            warm(mounts, "f");
            fs::remove_file(other.join("f")).unwrap();
            if round % 2 == 0 {
                fs::create_dir(other.join("f")).unwrap();
                assert!(fs::metadata(one.join("f")).unwrap().is_dir());
                fs::remove_dir(one.join("f")).unwrap();
            }
            fs::write(other.join("f"), format!("again {round}")).unwrap();
            for path in mounts.everywhere("f") {
                assert_eq!(fs::read_to_string(path).unwrap(), format!("again {round}"));
            }
        }
    });
}

#[test]
fn attributes_are_never_old() {
    everywhere(|mounts| {
        fs::write(mounts.here("f"), "").unwrap();
        fs::create_dir(mounts.here("d")).unwrap();
        for round in 0..50_u32 {
            let one = &mounts.0[round as usize % 3];
            warm(mounts, "f");
            fs::set_permissions(one.join("f"), fs::Permissions::from_mode(0o400 + round)).unwrap();
            std::os::unix::fs::chown(one.join("f"), Some(round), Some(round + 1)).unwrap();
            let file = OpenOptions::new().write(true).open(one.join("f")).unwrap();
            file.set_len(u64::from(round) * 1000).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(round) + 1000);
            file.set_times(fs::FileTimes::new().set_modified(time)).unwrap();
            fs::set_permissions(one.join("d"), fs::Permissions::from_mode(0o700 + round)).unwrap();
            for path in mounts.everywhere("f") {
                let meta = fs::metadata(&path).unwrap();
                let got = (meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.len(), meta.mtime());
                let want = (0o400 + round, round, round + 1, u64::from(round) * 1000, i64::from(round) + 1000);
                assert_eq!(got, want, "round {round} at {}", path.display());
            }
            for path in mounts.everywhere("d") {
                assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o700 + round);
            }
        }
    });
}

#[test]
fn content_and_size_are_never_old() {
    everywhere(|mounts| {
        let open =
            |path: PathBuf| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let files: Vec<File> = mounts.everywhere("f").map(open).collect();
        let mut size = 0;
        for round in 0..200_u64 {
            let text = format!("round {round:>6}").into_bytes();
            let at = (round * 7919) % 20_000;
            files[round as usize % 3].write_all_at(&text, at).unwrap();
            size = size.max(at + text.len() as u64);
            for (door, file) in files.iter().enumerate() {
                let mut got = vec![0; text.len()];
                file.read_exact_at(&mut got, at).unwrap();
                assert_eq!(got, text, "round {round} at mount {door}");
                assert_eq!(file.metadata().unwrap().len(), size, "round {round} at mount {door}");
            }
            if round % 40 == 39 {
                files[(round as usize + 1) % 3].set_len(100).unwrap();
                size = 100;
                assert!(files.iter().all(|file| file.metadata().unwrap().len() == 100));
            }
        }
    });
}

#[test]
fn a_directory_that_is_made_elsewhere_can_be_used_at_once() {
    everywhere(|mounts| {
        for round in 0..30 {
            let (one, other) = (&mounts.0[round % 3], &mounts.0[(round + 1) % 3]);
            let deep = format!("t{round}/a/b/c");
            fs::create_dir_all(one.join(&deep)).unwrap();
            fs::write(other.join(&deep).join("f"), "x").unwrap();
            assert_eq!(listing(&one.join(&deep)), ["f"]);
            fs::rename(one.join(format!("t{round}/a")), one.join(format!("t{round}/z"))).unwrap();
            assert_eq!(fs::read_to_string(other.join(format!("t{round}/z/b/c/f"))).unwrap(), "x");
            assert_eq!(fs::metadata(other.join(&deep)).unwrap_err().kind(), ErrorKind::NotFound);
            fs::remove_dir_all(other.join(format!("t{round}"))).unwrap();
            assert!(!one.join(format!("t{round}")).exists());
        }
    });
}

/// COHERENCE.md R3: a name that is replaced again and again is always there, with one writer's whole content.
#[test]
fn a_name_that_is_replaced_is_always_there() {
    everywhere(|mounts| {
        let text = |round: usize| format!("{round:>6}").repeat(3000);
        fs::write(mounts.here("f"), text(0)).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..150 {
                    let temporary = mounts.here(&format!("f.{round}"));
                    fs::write(&temporary, text(round)).unwrap();
                    fs::rename(&temporary, mounts.here("f")).unwrap();
                }
                is_done.store(true, Ordering::SeqCst);
            });
            for door in 1..mounts.0.len() {
                let is_done = &is_done;
                scope.spawn(move || {
                    let mut last = 0;
                    while !is_done.load(Ordering::SeqCst) {
                        let path = mounts.0[door].join("f");
                        let got = fs::read_to_string(&path).expect("a name that is replaced is always there");
                        let round: usize = got[..6].trim().parse().unwrap();
                        assert!(got == text(round), "torn at round {round}: {} bytes", got.len());
                        assert!(round >= last, "round {round} after {last}");
                        last = round;
                        assert_eq!(fs::metadata(&path).unwrap().len(), 18_000);
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(mounts.there("f")).unwrap(), text(149));
    });
}

#[test]
fn what_a_program_logs_is_seen_while_it_runs() {
    everywhere(|mounts| {
        let mut log = OpenOptions::new().create(true).append(true).open(mounts.here("log")).unwrap();
        let mut want = String::new();
        for line in 0..100 {
            writeln!(log, "line {line}").unwrap();
            want.push_str(&format!("line {line}\n"));
            assert_eq!(fs::metadata(mounts.there("log")).unwrap().len(), want.len() as u64);
            assert_eq!(fs::read_to_string(mounts.there("log")).unwrap(), want);
        }
    });
}
