//! Names that another mount replaces all the time: whoever uses them gets one of the files, and never hears of `ESTALE`.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{Mounts, everywhere};

/// How often the reader uses the name.
const ROUNDS: usize = 200;

/// Run `once` again and again until the other has done all its rounds.
fn until_done(once: impl Fn(usize) + Send + Sync, rounds: impl FnOnce() + Send) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let disturbs = scope.spawn(|| {
            let mut round = 0;
            while !done.load(Ordering::Acquire) {
                once(round);
                round += 1;
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(rounds));
        done.store(true, Ordering::Release);
        disturbs.join().unwrap();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Replaces `f` at the second mount by a rename.
fn replace(mounts: &Mounts, round: usize) {
    fs::write(mounts.there("new"), format!("{round:>8}")).unwrap();
    fs::rename(mounts.there("new"), mounts.there("f")).unwrap();
}

#[test]
fn a_file_that_another_mount_replaces_is_always_there() {
    everywhere(|mounts| {
        replace(mounts, 0);
        until_done(
            |round| replace(mounts, round),
            || {
                for round in 0..ROUNDS {
                    let mut file = match round % 3 {
                        0 => OpenOptions::new().read(true).append(true).create(true).open(mounts.here("f")),
                        _ => File::open(mounts.here("f")),
                    }
                    .unwrap_or_else(|error| panic!("open in round {round}: {error}"));
                    let seen = file.metadata().unwrap_or_else(|error| panic!("fstat in round {round}: {error}"));
                    assert!(seen.nlink() <= 1);
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap_or_else(|error| panic!("read in round {round}: {error}"));
                    assert_eq!(text.len(), 8, "round {round}: {text:?}");
                    fs::metadata(mounts.here("f")).unwrap_or_else(|error| panic!("stat in round {round}: {error}"));
                }
            },
        );
    });
}

#[test]
fn a_link_that_another_mount_replaces_always_leads_somewhere() {
    everywhere(|mounts| {
        for version in ["one", "two"] {
            fs::write(mounts.here(version), version).unwrap();
        }
        let switch = |round: usize| {
            symlink(["one", "two"][round % 2], mounts.there("next")).unwrap();
            fs::rename(mounts.there("next"), mounts.there("current")).unwrap();
        };
        switch(0);
        until_done(switch, || {
            for round in 0..ROUNDS {
                let text = fs::read_to_string(mounts.here("current"))
                    .unwrap_or_else(|error| panic!("read in round {round}: {error}"));
                assert!(text == "one" || text == "two", "{text}");
                let leads = fs::read_link(mounts.here("current"))
                    .unwrap_or_else(|error| panic!("readlink in round {round}: {error}"));
                assert!(leads.as_os_str() == "one" || leads.as_os_str() == "two", "{leads:?}");
            }
        });
    });
}

#[test]
fn a_file_that_others_make_and_remove_is_made_or_opened() {
    everywhere(|mounts| {
        let flicker = |_| {
            let made = OpenOptions::new().write(true).create(true).truncate(true).open(mounts.there("f"));
            made.unwrap_or_else(|error| panic!("open there: {error}")).write_all(b"there").unwrap();
            match fs::remove_file(mounts.there("f")) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            }
        };
        until_done(flicker, || {
            for round in 0..ROUNDS {
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(mounts.here("f"));
                let mut file = file.unwrap_or_else(|error| panic!("open in round {round}: {error}"));
                file.write_all(b"here").unwrap_or_else(|error| panic!("write in round {round}: {error}"));
                file.metadata().unwrap_or_else(|error| panic!("fstat in round {round}: {error}"));
                if round % 4 == 0 {
                    let _ = fs::remove_file(mounts.here("f"));
                }
            }
        });
    });
}

/// Two programs on one mount: a removal recalls no lease from its own mount.
#[test]
fn a_file_that_its_own_mount_replaces_while_it_is_opened_stays_open() {
    everywhere(|mounts| {
        let mut one = mounts.clone();
        one.0[1] = one.0[0].clone();
        replace(&one, 0);
        until_done(
            |round| replace(&one, round),
            || {
                for round in 0..ROUNDS {
                    let mut file = OpenOptions::new().read(true).write(true).open(one.here("f")).unwrap();
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap_or_else(|error| panic!("read in round {round}: {error}"));
                    file.write_all(b"more").unwrap_or_else(|error| panic!("write in round {round}: {error}"));
                    assert_eq!(file.metadata().unwrap().len(), text.len() as u64 + 4, "round {round}");
                }
            },
        );
    });
}
