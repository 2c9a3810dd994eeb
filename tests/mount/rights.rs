//! Who may do what, and what happens to the bits that say so.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

use super::{as_user, everywhere, shell};

const OWNER: u32 = 12_345;
const OTHER: u32 = 12_346;

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: impl AsRef<std::path::Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn set_id_bits_go_when_somebody_else_changes_the_file() {
    everywhere(|mounts| {
        let fresh = || {
            fs::write(mounts.here("f"), "x").unwrap();
            chown(mounts.here("f"), Some(OWNER), Some(OWNER)).unwrap();
            chmod(mounts.here("f"), 0o6777);
            assert_eq!(mode(mounts.there("f")), 0o6777);
        };
        chmod(&mounts.0[0], 0o777);
        for script in ["echo more >> f", ": > f", "truncate -s 100 f", "chown :12346 f", "fallocate -l 5000 f"] {
            fresh();
            let who = if script.starts_with("chown") { OWNER } else { OTHER };
            assert!(as_user(who, "12346", &mounts.0[1], script), "{script}");
            for path in mounts.everywhere("f") {
                assert_eq!(mode(path), 0o777, "after {script}");
            }
        }
        // Root keeps them when it writes, and loses them when it gives the file away.
        fresh();
        fs::write(mounts.here("f"), "root").unwrap();
        assert_eq!(mode(mounts.there("f")), 0o6777);
        chown(mounts.here("f"), Some(OTHER), None).unwrap();
        assert_eq!(mode(mounts.there("f")), 0o777);
    });
}

#[test]
fn a_sticky_directory_protects_what_is_in_it() {
    everywhere(|mounts| {
        fs::create_dir(mounts.here("tmp")).unwrap();
        chmod(mounts.here("tmp"), 0o1777);
        assert!(as_user(OWNER, "", &mounts.here("tmp"), "echo mine > f; mkdir d"));
        let tmp = mounts.there("tmp");
        for script in ["rm -f f", "mv f g", "rmdir d", "echo other > h && mv h f"] {
            assert!(!as_user(OTHER, "", &tmp, script), "{script}");
        }
        assert!(as_user(OWNER, "", &tmp, "test $(cat f) = mine && mv f g && rm g && rmdir d"));
    });
}

#[test]
fn further_groups_count() {
    everywhere(|mounts| {
        fs::write(mounts.here("f"), "text").unwrap();
        chown(mounts.here("f"), Some(0), Some(777)).unwrap();
        chmod(mounts.here("f"), 0o660);
        fs::create_dir(mounts.here("d")).unwrap();
        chown(mounts.here("d"), Some(0), Some(888)).unwrap();
        chmod(mounts.here("d"), 0o2770);
        assert!(!as_user(OWNER, "", &mounts.0[1], "cat f"));
        assert!(!as_user(OWNER, "778,779", &mounts.0[1], "cat f"));
        assert!(as_user(OWNER, "778,777", &mounts.0[1], "cat f && echo more >> f"));
        assert!(as_user(OWNER, "888", &mounts.0[1], "echo x > d/f && mkdir d/e && test $(stat -c %g d/f) = 888"));
        assert_eq!(mode(mounts.here("d/e")) & 0o2000, 0o2000, "a directory inherits the group bit");
        // More groups than fit anywhere by accident.
        let many: Vec<String> = (1000..1200).chain([777]).map(|group| group.to_string()).collect();
        assert!(as_user(OWNER, &many.join(","), &mounts.0[2], "cat f"));
    });
}

#[test]
fn a_umask_is_obeyed() {
    everywhere(|mounts| {
        chmod(&mounts.0[0], 0o777);
        assert!(as_user(OWNER, "", &mounts.0[0], "umask 027; echo > f; mkdir d; mkfifo p; umask 0; echo > open"));
        let modes: Vec<u32> = ["f", "d", "p", "open"].iter().map(|name| mode(mounts.there(name))).collect();
        assert_eq!(modes, [0o640, 0o750, 0o640, 0o666]);
        assert_eq!(fs::metadata(mounts.there("f")).unwrap().uid(), OWNER);
    });
}

#[test]
fn permission_is_asked_of_every_directory_on_the_way() {
    everywhere(|mounts| {
        fs::create_dir_all(mounts.here("a/b")).unwrap();
        fs::write(mounts.here("a/b/f"), "x").unwrap();
        assert!(as_user(OTHER, "", &mounts.0[1], "cat a/b/f; ls a/b"));
        chmod(mounts.here("a"), 0o700);
        assert!(!as_user(OTHER, "", &mounts.0[1], "cat a/b/f"), "a change of mode at one mount holds at the other");
        chmod(mounts.there("a"), 0o711);
        assert!(as_user(OTHER, "", &mounts.0[0], "cat a/b/f"));
        assert!(!as_user(OTHER, "", &mounts.0[0], "ls a"));
        assert!(!as_user(OTHER, "", &mounts.0[0], "touch a/g || chmod 777 a || chown 12346 a"));
    });
}

#[test]
fn owners_of_links_are_their_own() {
    everywhere(|mounts| {
        fs::write(mounts.here("f"), "").unwrap();
        symlink("f", mounts.here("l")).unwrap();
        lchown(mounts.here("l"), Some(5), Some(6)).unwrap();
        let link = fs::symlink_metadata(mounts.there("l")).unwrap();
        assert_eq!((link.uid(), link.gid(), link.nlink(), link.len()), (5, 6, 1, 1));
        assert_eq!(fs::metadata(mounts.there("l")).unwrap().uid(), 0);
    });
}

#[test]
fn nothing_internal_is_shown_or_may_be_set() {
    everywhere(|mounts| {
        fs::write(mounts.here("f"), "").unwrap();
        shell(&mounts.0[0], "setfattr -n user.a -v 1 f; setfattr -n trusted.mine -v 2 f");
        let shown = shell(&mounts.0[1], "getfattr --absolute-names -dm - f . | grep -v '^#' | sort | grep .");
        assert_eq!(shown, "trusted.mine=\"2\"\nuser.a=\"1\"\n");
    });
}
