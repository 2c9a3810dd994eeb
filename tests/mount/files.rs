//! One file: holes, sizes, times, descriptors that outlive their names.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Timespec, Timestamps, XattrFlags, fallocate, fsetxattr, utimensat};
use rustix::io::Errno;

use super::{everywhere, shell};

fn read_write(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// C016, C018: a file that has lost its last name works on for those who have it open.
#[test]
fn an_unlinked_file_lives_on_for_who_has_it_open() {
    everywhere(|mounts| {
        for (name, door) in [("by-this", mounts.here("by-this")), ("by-other", mounts.there("by-other"))] {
            let mut file = read_write(mounts.here(name));
            file.write_all(b"before").unwrap();
            fs::remove_file(door).unwrap();
            let text = vec![7; 5 << 20];
            file.write_all(&text).unwrap();
            file.sync_all().unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 0, "{name}");
            let mut got = Vec::new();
            file.seek(SeekFrom::Start(6)).unwrap();
            file.read_to_end(&mut got).unwrap();
            assert!(got == text, "{name}: {} bytes read", got.len());
            file.set_len(16384).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o604)).unwrap();
            std::os::unix::fs::fchown(&file, Some(12), Some(34)).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, 32768).unwrap();
            fsetxattr(&file, "user.a", b"1", XattrFlags::empty()).unwrap();
            let meta = file.metadata().unwrap();
            assert_eq!((meta.len(), meta.mode() & 0o7777, meta.uid(), meta.gid()), (32768, 0o604, 12, 34), "{name}");
            assert!(!mounts.here(name).exists() && !mounts.there(name).exists(), "{name}");
        }
    });
}

#[test]
fn a_replaced_file_lives_on_for_who_has_it_open() {
    everywhere(|mounts| {
        fs::write(mounts.here("f"), "old").unwrap();
        let old = File::open(mounts.here("f")).unwrap();
        fs::write(mounts.there("g"), "new").unwrap();
        fs::rename(mounts.there("g"), mounts.there("f")).unwrap();
        let mut bytes = [0; 3];
        old.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"old");
        assert_eq!(fs::read(mounts.here("f")).unwrap(), b"new");
        assert_eq!(old.metadata().unwrap().nlink(), 0);
    });
}

#[test]
fn a_file_may_be_sparse_and_beyond_four_gibibytes() {
    everywhere(|mounts| {
        let file = read_write(mounts.here("big"));
        for gibibytes in [0_u64, 4, 5, 1024] {
            file.write_all_at(format!("at {gibibytes:>5}").as_bytes(), gibibytes << 30).unwrap();
        }
        let other = File::open(mounts.there("big")).unwrap();
        assert_eq!(other.metadata().unwrap().len(), (1024 << 30) + 8);
        assert!(other.metadata().unwrap().blocks() < 1000, "{} blocks", other.metadata().unwrap().blocks());
        for gibibytes in [0_u64, 4, 5, 1024] {
            let mut bytes = [0; 8];
            other.read_exact_at(&mut bytes, gibibytes << 30).unwrap();
            assert_eq!(bytes, *format!("at {gibibytes:>5}").as_bytes());
        }
        let mut bytes = [1; 4096];
        other.read_exact_at(&mut bytes, 3 << 30).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        file.set_len((4 << 30) + 3).unwrap();
        assert_eq!(other.metadata().unwrap().len(), (4 << 30) + 3);
    });
}

#[test]
fn holes_are_found_and_made() {
    everywhere(|mounts| {
        let file = read_write(mounts.here("holes"));
        let mebibyte = 1 << 20;
        file.write_all_at(&vec![1; mebibyte], 8 << 20).unwrap();
        let seek = |whence| rustix::fs::seek(&file, whence);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(8 << 20));
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(8 << 20)), Ok(9 << 20));
        assert_eq!(seek(rustix::fs::SeekFrom::Data(9 << 20)), Err(Errno::NXIO));
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8 << 20, 1 << 19).unwrap();
        let mut bytes = vec![2; mebibyte];
        File::open(mounts.there("holes")).unwrap().read_exact_at(&mut bytes, 8 << 20).unwrap();
        assert!(bytes[..1 << 19].iter().all(|byte| *byte == 0) && bytes[1 << 19..].iter().all(|byte| *byte == 1));
        fallocate(&file, FallocateFlags::ZERO_RANGE, (8 << 20) + (1 << 19), 1 << 19).unwrap();
        File::open(mounts.there("holes")).unwrap().read_exact_at(&mut bytes, 8 << 20).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        fallocate(&file, FallocateFlags::KEEP_SIZE, 20 << 20, 1 << 20).unwrap();
        assert_eq!(fs::metadata(mounts.there("holes")).unwrap().len(), 9 << 20);
        fallocate(&file, FallocateFlags::empty(), 20 << 20, 1 << 20).unwrap();
        assert_eq!(fs::metadata(mounts.there("holes")).unwrap().len(), 21 << 20);
    });
}

#[test]
fn times_have_nanoseconds_before_1970_and_after_2038() {
    everywhere(|mounts| {
        fs::write(mounts.here("t"), "").unwrap();
        for seconds in [-2_000_000_000_i64, -1, 0, 1, 2_147_483_647, 2_147_483_648, 4_102_444_800] {
            let time = |tv_nsec| Timespec { tv_sec: seconds, tv_nsec };
            let times = Timestamps { last_access: time(123_456_789), last_modification: time(987_654_321) };
            utimensat(CWD, mounts.here("t"), &times, AtFlags::empty()).unwrap();
            for path in mounts.everywhere("t") {
                let meta = fs::metadata(path).unwrap();
                assert_eq!((meta.atime(), meta.atime_nsec()), (seconds, 123_456_789));
                assert_eq!((meta.mtime(), meta.mtime_nsec()), (seconds, 987_654_321));
            }
        }
        std::os::unix::fs::symlink("nowhere", mounts.here("l")).unwrap();
        let time = Timespec { tv_sec: 5, tv_nsec: 6 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, mounts.here("l"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!(fs::symlink_metadata(mounts.there("l")).unwrap().mtime(), 5);
    });
}

#[test]
fn copy_file_range_copies() {
    everywhere(|mounts| {
        let text: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        fs::write(mounts.here("from"), &text).unwrap();
        let (from, to) = (File::open(mounts.there("from")).unwrap(), read_write(mounts.there("to")));
        let (mut at, mut into) = (100, 7);
        while at < 2_500_000 {
            let left = 2_500_000 - at as usize;
            let count = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), left);
            assert!(count.unwrap() > 0);
        }
        let copied = fs::read(mounts.here("to")).unwrap();
        assert_eq!(copied.len(), 2_499_907);
        assert!(copied[7..] == text[100..2_500_000] && copied[..7] == [0; 7]);
    });
}

#[test]
fn special_files_are_what_they_are() {
    everywhere(|mounts| {
        let script = "mkfifo fifo; mknod null c 1 3; mknod loop b 7 200; ln -s target link; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
        shell(&mounts.0[0], script);
        let listed = shell(
            &mounts.0[1],
            "find . -mindepth 1 -printf '%f %y %Y\\n' | sort; stat -c '%n %t %T' loop null; readlink link; echo x > null",
        );
        assert_eq!(listed, "fifo p p\nlink l N\nloop b b\nnull c c\nsocket s s\nloop 7 c8\nnull 1 3\ntarget\n");
        let through = shell(&mounts.0[0], "cat fifo & echo through > fifo; wait");
        assert_eq!(through, "through\n");
    });
}

#[test]
fn appending_from_two_mounts_loses_nothing() {
    everywhere(|mounts| {
        let append = |path| OpenOptions::new().append(true).create(true).open(path).unwrap();
        let (one, other) = (append(mounts.here("log")), append(mounts.there("log")));
        for number in 0..100 {
            let file = if number % 2 == 0 { &one } else { &other };
            assert_eq!(rustix::io::write(file, format!("{number:>4}\n").as_bytes()).unwrap(), 5);
        }
        let want: String = (0..100).map(|number| format!("{number:>4}\n")).collect();
        for path in mounts.everywhere("log") {
            assert_eq!(fs::read_to_string(path).unwrap(), want);
        }
    });
}

#[test]
fn an_open_directory_outlives_its_name() {
    everywhere(|mounts| {
        fs::create_dir(mounts.here("d")).unwrap();
        let open = File::open(mounts.here("d")).unwrap();
        fs::remove_dir(mounts.there("d")).unwrap();
        let seen = open.metadata().unwrap();
        assert!(seen.is_dir() && seen.nlink() == 0, "{} links", seen.nlink());
        let again = open.try_clone().unwrap();
        assert_eq!(rustix::fs::Dir::new(again).unwrap().filter(|entry| !is_dot(entry)).count(), 0);
        let made =
            rustix::fs::openat(&open, "x", rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY, 0o600.into());
        assert_eq!(made.err(), Some(Errno::NOENT));
        assert_eq!(rustix::fs::statat(&open, "x", AtFlags::empty()).err(), Some(Errno::NOENT));
    });
}

fn is_dot(entry: &rustix::io::Result<rustix::fs::DirEntry>) -> bool {
    let name: CString = entry.as_ref().unwrap().file_name().to_owned();
    name.as_bytes() == b"." || name.as_bytes() == b".."
}
