//! Several mounts at work on the same names at the same time.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::cases::play;
use super::{everywhere, everywhere_down_to_the_bricks};

#[test]
fn an_exclusive_create_has_one_winner() {
    everywhere(|mounts| {
        for round in 0..60 {
            let winners = AtomicUsize::new(0);
            thread::scope(|scope| {
                for mount in &mounts.0 {
                    scope.spawn(|| {
                        let path = mount.join(format!("lock-{round}"));
                        match OpenOptions::new().write(true).create_new(true).open(path) {
                            Ok(_) => winners.fetch_add(1, Ordering::SeqCst),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::AlreadyExists);
                                0
                            }
                        }
                    });
                }
            });
            assert_eq!(winners.load(Ordering::SeqCst), 1, "round {round}");
        }
    });
}

#[test]
fn making_a_directory_has_one_winner() {
    everywhere(|mounts| {
        for round in 0..60 {
            let winners = AtomicUsize::new(0);
            thread::scope(|scope| {
                for mount in &mounts.0 {
                    scope.spawn(|| match fs::create_dir(mount.join(format!("d-{round}"))) {
                        Ok(()) => winners.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
                            0
                        }
                    });
                }
            });
            assert_eq!(winners.load(Ordering::SeqCst), 1, "round {round}");
        }
    });
}

/// C002: many rename onto one name; every rename succeeds, one file is left.
#[test]
fn renames_onto_one_name_leave_one_file() {
    everywhere(|mounts| {
        thread::scope(|scope| {
            for (door, mount) in mounts.0.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..60 {
                        let own = mount.join(format!("own-{door}-{round}"));
                        fs::write(&own, format!("{door} {round}")).unwrap();
                        fs::rename(&own, mount.join("shared")).unwrap();
                    }
                });
            }
        });
        for mount in &mounts.0 {
            let names: Vec<_> = fs::read_dir(mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, ["shared"]);
            assert!(fs::read_to_string(mount.join("shared")).unwrap().ends_with(" 59"));
        }
    });
}

/// C004: rename and unlink of one name from several mounts neither hang nor fail in another way than with "not found".
#[test]
fn rename_and_unlink_of_one_name_only_miss_each_other() {
    everywhere(|mounts| {
        let missing_is_fine = |outcome: std::io::Result<()>| match outcome {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..150 {
                    fs::write(mounts.here("f"), format!("{round}")).unwrap();
                    missing_is_fine(fs::rename(mounts.here("f"), mounts.here("g")));
                }
            });
            scope.spawn(|| {
                for round in 0..150 {
                    missing_is_fine(fs::remove_file(mounts.there(if round % 2 == 0 { "f" } else { "g" })));
                }
            });
            scope.spawn(|| {
                for _ in 0..150 {
                    missing_is_fine(fs::metadata(mounts.0[2].join("f")).map(|_| ()));
                    missing_is_fine(fs::metadata(mounts.0[2].join("g")).map(|_| ()));
                }
            });
        });
        missing_is_fine(fs::remove_file(mounts.here("f")));
        missing_is_fine(fs::remove_file(mounts.here("g")));
        assert_eq!(fs::read_dir(&mounts.0[2]).unwrap().count(), 0);
    });
}

#[test]
fn files_made_in_one_directory_from_all_mounts_are_all_there() {
    everywhere(|mounts| {
        thread::scope(|scope| {
            for (door, mount) in mounts.0.iter().enumerate() {
                scope.spawn(move || {
                    for number in 0..150 {
                        fs::write(mount.join(format!("{door}-{number}")), format!("{door} {number}")).unwrap();
                        if number % 3 == 0 {
                            fs::create_dir(mount.join(format!("{door}-{number}.d"))).unwrap();
                        }
                    }
                });
            }
        });
        for mount in &mounts.0 {
            let names: HashSet<_> = fs::read_dir(mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 3 * 200);
            for door in 0..3 {
                assert_eq!(fs::read_to_string(mount.join(format!("{door}-149"))).unwrap(), format!("{door} 149"));
            }
        }
    });
}

/// One removes a tree while another makes files in it: each file either fails or is removed, and the tree can be removed at last.
#[test]
fn a_tree_that_is_removed_while_it_grows_can_be_removed() {
    everywhere(|mounts| {
        for round in 0..5 {
            let top = format!("tree-{round}");
            for number in 0..40 {
                fs::create_dir_all(mounts.here(&format!("{top}/{}", number % 7))).unwrap();
                fs::write(mounts.here(&format!("{top}/{}/{number}", number % 7)), "").unwrap();
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..60 {
                        let path = mounts.there(&format!("{top}/{}/late-{number}", number % 7));
                        if let Err(error) = fs::write(path, "late") {
                            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                        }
                    }
                });
                scope.spawn(|| {
                    // It may find the tree not empty again; that is for the end.
                    let _ = fs::remove_dir_all(mounts.here(&top));
                });
            });
            match fs::remove_dir_all(mounts.0[2].join(&top)) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            }
            assert!(mounts.everywhere(&top).all(|path| !path.exists()));
        }
    });
}

/// C037: who copies and removes one tree at the same time as others fails here and there; in the end it is one tree again.
#[test]
fn a_tree_that_many_copy_and_remove_is_whole_in_the_end() {
    everywhere_down_to_the_bricks(|mounts| {
        play(
            mounts,
            r#"
            mkdir p; source=$(mktemp -d); trap 'rm -rf $source' EXIT
            for d in a a/b a/b/c d; do mkdir -p $source/t/$d; for f in 1 2; do echo $d$f > $source/t/$d/$f; done; done
            for at in $M $N $O; do
                ( for i in $(seq 3); do cp -r $source/t $at/p/ 2> /dev/null || true; rm -rf $at/p/t 2> /dev/null || true; done ) &
            done
            wait
            for at in $M $N $O; do
                ls -lR $at/p > /dev/null; mkdir -p $at/p/t; touch $at/p/t/ok; rm -r $at/p/t; is "$(ls -A $at/p)" ""
                cp -r $source/t $at/p/; all diff -r $source/t p/t; rm -r $at/p/t/a
                all test ! -e p/t/a; rm -r $at/p/t
            done
            mkdir -p $N/p/t; touch $O/p/t/ok; all test -e p/t/ok
            "#,
        );
    });
}
