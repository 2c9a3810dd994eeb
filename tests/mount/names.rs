//! Names and listings: any bytes, any length, any order of looking.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};

use rustix::fs::{CWD, RawDir, RenameFlags, SeekFrom, renameat_with};
use rustix::io::Errno;

use super::everywhere;

#[test]
fn a_name_may_have_255_bytes_of_any_kind() {
    everywhere(|mounts| {
        let mut names: BTreeSet<OsString> = (1..=255_u8)
            .filter(|byte| *byte != b'/' && *byte != b'.')
            .map(|byte| OsStr::from_bytes(&[byte]).to_owned())
            .collect();
        names.insert(OsStr::from_bytes(&[0xff; 255]).to_owned());
        names.insert(OsStr::from_bytes(&[b'a'; 255]).to_owned());
        names.insert("...".into());
        for name in &names {
            fs::write(mounts.0[0].join(name), name.as_bytes()).unwrap();
        }
        let listed: BTreeSet<OsString> =
            fs::read_dir(&mounts.0[1]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(listed, names);
        for name in &names {
            assert_eq!(fs::read(mounts.0[2].join(name)).unwrap(), name.as_bytes(), "{name:?}");
        }
        let long = OsString::from("a".repeat(256));
        let refused = |outcome: std::io::Result<()>| {
            assert_eq!(Errno::from_io_error(&outcome.unwrap_err()), Some(Errno::NAMETOOLONG));
        };
        refused(fs::write(mounts.0[0].join(&long), ""));
        refused(fs::create_dir(mounts.0[0].join(&long)));
        refused(fs::metadata(mounts.0[0].join(&long)).map(|_| ()));
        // XFS takes no more.
        symlink("x".repeat(1023), mounts.here("link")).unwrap();
        assert_eq!(fs::read_link(mounts.there("link")).unwrap().as_os_str().len(), 1023);
    });
}

#[test]
fn a_path_may_be_deeper_than_the_kernel_takes_at_once() {
    everywhere(|mounts| {
        // 60 names of 200 bytes: three times what one path may have.
        let name = "d".repeat(200);
        let walk = |start: &std::path::Path, make: bool| {
            let mut at = File::open(start).unwrap();
            for _ in 0..60 {
                if make {
                    rustix::fs::mkdirat(&at, &*name, 0o755.into()).unwrap();
                }
                let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
                at = rustix::fs::openat(&at, &*name, flags, 0.into()).unwrap().into();
            }
            at
        };
        walk(&mounts.0[0], true);
        let deep = walk(&mounts.0[1], false);
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(&deep, "bottom", flags, 0o600.into()).unwrap();
        let again = walk(&mounts.0[0], false);
        assert!(rustix::fs::statat(&again, "bottom", rustix::fs::AtFlags::empty()).is_ok());
    });
}

/// The cookie after each entry, by name, in the order of the listing.
fn cookies(directory: &File) -> Vec<(Vec<u8>, u64)> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut listing = RawDir::new(directory, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry.unwrap();
        found.push((entry.file_name().to_bytes().to_vec(), entry.next_entry_cookie()));
    }
    found
}

/// C030: a cookie leads to the same place, whatever was added or removed meanwhile.
#[test]
fn a_listing_goes_on_from_any_place() {
    everywhere(|mounts| {
        for number in 0..3000 {
            fs::write(mounts.here(&format!("name-{number}")), "").unwrap();
        }
        let directory = File::open(&mounts.0[1]).unwrap();
        let whole = cookies(&directory);
        assert_eq!(whole.len(), 3002);
        assert_eq!(whole.iter().map(|(name, _)| name).collect::<HashSet<_>>().len(), 3002, "a name comes twice");
        let rest = |cookie: u64| {
            rustix::fs::seek(&directory, SeekFrom::Start(cookie)).unwrap();
            cookies(&directory).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        for place in [2500, 10, 1500, 2999, 0, 777] {
            let want: Vec<Vec<u8>> = whole[place + 1..].iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(rest(whole[place].1), want, "after entry {place}");
        }
        // Now with every third removed and others added.
        for number in (0..3000).step_by(3) {
            fs::remove_file(mounts.here(&format!("name-{number}"))).unwrap();
            fs::write(mounts.there(&format!("new-{number}")), "").unwrap();
        }
        let stays = |name: &[u8]| {
            name.strip_prefix(b"name-")
                .is_some_and(|number| std::str::from_utf8(number).unwrap().parse::<u32>().unwrap() % 3 != 0)
        };
        for place in [2000, 100, 1234] {
            let got: Vec<Vec<u8>> = rest(whole[place].1).into_iter().filter(|name| stays(name)).collect();
            let want: Vec<Vec<u8>> =
                whole[place + 1..].iter().map(|(name, _)| name.clone()).filter(|name| stays(name)).collect();
            assert_eq!(got, want, "after entry {place}, with changes");
        }
        rustix::fs::seek(&directory, SeekFrom::Start(0)).unwrap();
        assert_eq!(cookies(&directory).len(), 3002);
    });
}

/// C029: removing what a listing shows skips nothing.
#[test]
fn removing_while_listing_removes_all() {
    everywhere(|mounts| {
        fs::create_dir(mounts.here("d")).unwrap();
        for number in 0..2000 {
            fs::write(mounts.here(&format!("d/{number}")), "").unwrap();
        }
        for entry in fs::read_dir(mounts.there("d")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::remove_dir(mounts.there("d")).unwrap();
        assert!(!mounts.here("d").exists());
    });
}

#[test]
fn rename_keeps_its_flags() {
    everywhere(|mounts| {
        let rename = |from: &str, to: &str, flags| renameat_with(CWD, mounts.here(from), CWD, mounts.here(to), flags);
        for number in 0..20 {
            // Several names, so that some are on one set and some on another.
            let (a, b, c) = (format!("a{number}"), format!("b{number}"), format!("c{number}"));
            fs::write(mounts.there(&a), &a).unwrap();
            fs::write(mounts.there(&b), &b).unwrap();
            assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
            assert_eq!(rename(&a, &c, RenameFlags::NOREPLACE), Ok(()));
            assert_eq!(fs::read_to_string(mounts.there(&c)).unwrap(), a);
            assert_eq!(fs::metadata(mounts.there(&a)).unwrap_err().kind(), ErrorKind::NotFound);
            match rename(&b, &c, RenameFlags::EXCHANGE) {
                Ok(()) => {
                    assert_eq!(fs::read_to_string(mounts.there(&b)).unwrap(), a);
                    assert_eq!(fs::read_to_string(mounts.there(&c)).unwrap(), b);
                }
                Err(errno) => {
                    assert!(
                        matches!(errno, Errno::INVAL | Errno::XDEV),
                        "a swap that is not done says so, not {errno}"
                    );
                    assert_eq!(fs::read_to_string(mounts.there(&b)).unwrap(), b);
                    assert_eq!(fs::read_to_string(mounts.there(&c)).unwrap(), a);
                }
            }
        }
        let both = rename("b1", "c1", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE);
        assert_eq!(both, Err(Errno::INVAL));
    });
}

#[test]
fn renames_of_directories_follow_the_rules() {
    everywhere(|mounts| {
        for name in ["d1", "d2", "d1/sub", "empty"] {
            fs::create_dir(mounts.here(name)).unwrap();
        }
        fs::write(mounts.here("d1/f"), "1").unwrap();
        fs::write(mounts.here("d2/f"), "2").unwrap();
        fs::write(mounts.here("file"), "").unwrap();
        let rename = |from: &str, to: &str| {
            let outcome = fs::rename(mounts.there(from), mounts.there(to));
            outcome.map_err(|error| Errno::from_io_error(&error).unwrap())
        };
        assert!(matches!(rename("d1", "d2"), Err(Errno::NOTEMPTY | Errno::EXIST)));
        assert_eq!(rename("d1", "d1/sub/x"), Err(Errno::INVAL));
        assert_eq!(rename("file", "empty"), Err(Errno::ISDIR));
        assert_eq!(rename("d1", "file"), Err(Errno::NOTDIR));
        assert_eq!(rename("d1", "empty"), Ok(()));
        assert_eq!(fs::read_to_string(mounts.here("empty/f")).unwrap(), "1");
        assert!(mounts.here("empty/sub").is_dir() && !mounts.here("d1").exists());
        assert_eq!(fs::metadata(mounts.here("empty")).unwrap().nlink(), 3);
        assert_eq!(rename("empty", "d2/inner"), Ok(()));
        assert_eq!(fs::read_to_string(mounts.here("d2/inner/f")).unwrap(), "1");
    });
}

#[test]
fn hard_links_are_one_file() {
    everywhere(|mounts| {
        fs::write(mounts.here("first"), "one").unwrap();
        let names: Vec<String> = (0..40).map(|number| format!("link-{number}")).collect();
        for (made, name) in names.iter().enumerate() {
            let door = &mounts.0[made % 2];
            fs::hard_link(door.join("first"), door.join(name)).unwrap();
            assert_eq!(fs::metadata(mounts.here("first")).unwrap().nlink(), made as u64 + 2);
        }
        fs::write(mounts.there("link-7"), "two").unwrap();
        let inodes: BTreeSet<u64> = names.iter().map(|name| fs::metadata(mounts.here(name)).unwrap().ino()).collect();
        assert_eq!(inodes.len(), 1);
        for name in &names {
            assert_eq!(fs::read_to_string(mounts.here(name)).unwrap(), "two");
        }
        fs::rename(mounts.here("link-1"), mounts.here("moved")).unwrap();
        fs::rename(mounts.here("link-2"), mounts.here("link-3")).unwrap();
        assert!(mounts.there("link-2").exists(), "a rename onto another name of the same file does nothing");
        for name in names.iter().filter(|name| *name != "link-1") {
            fs::remove_file(mounts.there(name)).unwrap();
        }
        assert_eq!(fs::metadata(mounts.here("moved")).unwrap().nlink(), 2);
        let refused = fs::hard_link(mounts.here("."), mounts.here("dir-link")).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::PERM));
    });
}

#[test]
fn inode_numbers_are_the_same_everywhere() {
    everywhere(|mounts| {
        for number in 0..200 {
            fs::write(mounts.here(&format!("{number}.tmp")), "").unwrap();
            fs::rename(mounts.here(&format!("{number}.tmp")), mounts.here(&format!("{number}"))).unwrap();
        }
        let listings: Vec<BTreeMap<OsString, u64>> = mounts
            .0
            .iter()
            .map(|mount| {
                let entries = fs::read_dir(mount).unwrap().map(|entry| entry.unwrap());
                entries
                    .map(|entry| {
                        let ino = std::os::unix::fs::DirEntryExt::ino(&entry);
                        assert_eq!(ino, fs::metadata(entry.path()).unwrap().ino(), "{:?}", entry.file_name());
                        (entry.file_name(), ino)
                    })
                    .collect()
            })
            .collect();
        assert_eq!(listings[0].len(), 200);
        assert!(listings.iter().all(|listing| *listing == listings[0]));
        assert_eq!(listings[0].values().collect::<HashSet<_>>().len(), 200);
    });
}
