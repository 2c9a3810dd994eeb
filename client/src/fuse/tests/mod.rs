//! Stories of a mounted volume. They need root and `/dev/fuse`; without, they say so and pass.

mod volume;

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mortar_xlators::fop::{self, Getattr, Lookup, Open, Release};
use mortar_xlators::types::{ClientId, Gfid, Kind, Lacks, LeaseMode, OpenFlags};
use mortar_xlators::xlator::{Subvol, Upcall};
use rustix::fs::{AtFlags, CWD, RenameFlags, StatxFlags, Timestamps, XattrFlags};

use self::volume::{MemoryVolume, kind_of};
use super::inodes::{Promise, Seen};
use super::opens::How;
use super::{KernelCache, Mount, MountConfig};

struct Story<'a> {
    at: &'a Path,
    volume: &'a MemoryVolume,
    cache: &'a KernelCache,
    runtime: tokio::runtime::Handle,
}

impl Story<'_> {
    fn recall(&self, gfids: &[Gfid]) {
        self.runtime.block_on(self.cache.uncover(gfids, LeaseMode::Exclusive));
    }

    fn lookups(&self) -> u32 {
        self.volume.asked(kind_of::<Lookup>())
    }

    /// How many requests of the kernel the mount has had.
    fn requests(&self) -> u64 {
        // The kernel never answers this from a cache.
        rustix::fs::statfs(self.at).unwrap();
        self.volume.last.load(Ordering::Relaxed)
    }

    /// Whether the kernel believes names: it can be made to forget them (since Linux 6.16).
    fn believes_names(&self) -> bool {
        let path = self.at.join("believed");
        fs::write(&path, b"").unwrap();
        let lookups = self.lookups();
        fs::metadata(&path).unwrap();
        fs::metadata(&path).unwrap();
        self.lookups() == lookups
    }
}

/// Runs a story on a thread of its own, as its calls block on the mount.
fn with_mount(story: impl FnOnce(&Story<'_>) + Send + 'static) {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: a mount needs root and /dev/fuse");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (volume, cache) = (MemoryVolume::new(), KernelCache::new());
        let config = MountConfig::new(dir.path(), "gv0", ClientId(1));
        let subvol: Subvol = Arc::<MemoryVolume>::clone(&volume);
        let mut mount = Mount::start(config, subvol, Arc::clone(&cache)).await.unwrap();
        let at: PathBuf = mount.path().into();
        let runtime = tokio::runtime::Handle::current();
        let told = tokio::task::spawn_blocking(move || {
            story(&Story { at: &at, volume: &volume, cache: &cache, runtime });
        });
        if let Err(failed) = told.await {
            mount.detach().unwrap();
            std::panic::resume_unwind(failed.into_panic());
        }
        // Something that looks at every mount of the machine may be looking at this one.
        if mount.unmount().is_err() {
            mount.detach().unwrap();
        }
        tokio::time::timeout(Duration::from_secs(10), mount.ended()).await.unwrap().unwrap();
    });
}

#[test]
fn a_tree_is_made_listed_and_removed() {
    with_mount(|story| {
        let dir = story.at.join("dir");
        fs::create_dir(&dir).unwrap();
        for n in 0..450 {
            fs::write(dir.join(format!("file-{n:03}")), format!("content {n}")).unwrap();
        }
        std::os::unix::fs::symlink("file-001", dir.join("link")).unwrap();
        fs::hard_link(dir.join("file-002"), dir.join("other")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 453);
        assert_eq!(fs::read_to_string(dir.join("link")).unwrap(), "content 1");
        assert_eq!(fs::metadata(dir.join("other")).unwrap().nlink(), 2);
        let flags = RenameFlags::NOREPLACE;
        let refused = rustix::fs::renameat_with(CWD, dir.join("file-003"), CWD, dir.join("other"), flags);
        assert_eq!(refused, Err(rustix::io::Errno::EXIST));
        fs::rename(dir.join("file-003"), dir.join("other")).unwrap();
        assert_eq!(fs::read_to_string(dir.join("other")).unwrap(), "content 3");
        fs::remove_dir_all(&dir).unwrap();
        assert!(!dir.exists());
        assert_eq!(fs::metadata(story.at).unwrap().ino(), 1);
        assert_eq!(rustix::fs::statvfs(story.at).unwrap().f_bavail, 40);
    });
}

#[test]
fn attributes_are_what_was_set() {
    with_mount(|story| {
        let path = story.at.join("f");
        let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o4711).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().mode(), 0o104_711 & !umask());
        file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        let before_1970 = rustix::time::Timespec { tv_sec: -5, tv_nsec: 999_999_999 };
        let after_2038 = rustix::time::Timespec { tv_sec: 1 << 33, tv_nsec: 1 };
        let times = Timestamps { last_access: before_1970, last_modification: after_2038 };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(12)), Some(rustix::fs::Gid::from_raw(34))).unwrap();
        let seen = fs::metadata(&path).unwrap();
        assert_eq!((seen.mode(), seen.uid(), seen.gid()), (0o100_640, 12, 34));
        assert_eq!((seen.atime(), seen.atime_nsec()), (-5, 999_999_999));
        assert_eq!((seen.mtime(), seen.mtime_nsec()), (1 << 33, 1));
        file.write_all(b"12345").unwrap();
        file.set_len(3).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"123");
        rustix::fs::setxattr(&path, "user.a", b"b", XattrFlags::empty()).unwrap();
        let refused = rustix::fs::setxattr(&path, "trusted.gfid", b"b", XattrFlags::empty());
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
        let mut list = [0u8; 100];
        let length = rustix::fs::listxattr(&path, &mut list).unwrap();
        assert_eq!(&list[..length], b"user.a\0");
    });
}

fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(old);
    old.bits()
}

#[test]
fn appends_go_to_the_end_that_the_volume_knows() {
    with_mount(|story| {
        let path = story.at.join("log");
        fs::write(&path, b"one ").unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"two ").unwrap();
        let gfid = story.volume.set_content("log", b"one two and another client's ");
        story.recall(&[gfid]);
        file.write_all(b"three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one two and another client's three");
    });
}

#[test]
fn what_a_lease_covers_is_not_asked_again_until_it_is_recalled() {
    with_mount(|story| {
        let path = story.at.join("f");
        fs::write(&path, b"old").unwrap();
        fs::metadata(&path).unwrap();
        let (lookups, getattrs) = (story.lookups(), story.volume.asked(kind_of::<Getattr>()));
        for _ in 0..10 {
            assert_eq!(fs::metadata(&path).unwrap().len(), 3);
        }
        assert_eq!((story.lookups(), story.volume.asked(kind_of::<Getattr>())), (lookups, getattrs));
        let gfid = story.volume.set_content("f", b"new content");
        story.recall(&[gfid]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 11);
        assert_eq!(fs::read(&path).unwrap(), b"new content");
        story.volume.remove("f");
        story.recall(&[Gfid::ROOT]);
        assert!(!path.exists());
    });
}

#[test]
fn a_program_can_say_how_exact_stat_must_be() {
    with_mount(|story| {
        story.volume.covers.store(false, Ordering::Relaxed);
        let path = story.at.join("f");
        let file = fs::File::create(&path).unwrap();
        let ask = |flags: AtFlags| {
            let before = story.volume.asked(kind_of::<Getattr>());
            rustix::fs::statx(&file, "", flags | AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
            story.volume.asked(kind_of::<Getattr>()) - before
        };
        assert_eq!(ask(AtFlags::STATX_FORCE_SYNC), 1);
        assert_eq!(ask(AtFlags::empty()), 1);
        assert_eq!(ask(AtFlags::STATX_DONT_SYNC), 0);
        story.volume.covers.store(true, Ordering::Relaxed);
        assert_eq!(ask(AtFlags::empty()), 1);
        assert_eq!(ask(AtFlags::empty()), 0);
        assert_eq!(ask(AtFlags::STATX_FORCE_SYNC), 1);
    });
}

#[test]
fn an_absent_name_is_believed_absent_until_the_recall() {
    with_mount(|story| {
        let path = story.at.join("absent");
        assert!(!path.exists());
        let lookups = story.lookups();
        assert!(!path.exists());
        let asked_again = story.lookups() - lookups;
        fs::write(story.at.join("other"), b"x").unwrap();
        story.recall(&[Gfid::ROOT]);
        let lookups = story.lookups();
        assert!(!path.exists());
        assert_eq!(story.lookups(), lookups + 1);
        // Without INC_EPOCH the kernel never believes a name.
        assert!(asked_again <= 1);
    });
}

#[test]
fn without_leases_everything_is_asked_every_time() {
    with_mount(|story| {
        story.volume.covers.store(false, Ordering::Relaxed);
        let path = story.at.join("f");
        fs::write(&path, b"old").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 3);
        story.volume.set_content("f", b"longer");
        assert_eq!(fs::metadata(&path).unwrap().len(), 6);
        assert_eq!(fs::read(&path).unwrap(), b"longer");
        story.volume.remove("f");
        assert!(!path.exists());
    });
}

#[test]
fn a_covered_file_is_opened_without_a_message() {
    with_mount(|story| {
        let path = story.at.join("f");
        fs::write(&path, b"content").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        fs::write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let told = (story.volume.asked(kind_of::<Open>()), story.volume.asked(kind_of::<Release>()));
        assert_eq!(told, (0, 0));
    });
}

#[test]
fn a_file_that_is_open_outlives_its_name_whoever_removes_it() {
    with_mount(|story| {
        for remover in ["we", "another client", "a rename of ours"] {
            let path = story.at.join("f");
            fs::write(&path, b"content").unwrap();
            let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            match remover {
                "we" => fs::remove_file(&path).unwrap(),
                "another client" => {
                    let gfid = story.volume.gfid("f");
                    story.recall(&[Gfid::ROOT, gfid]);
                    story.volume.remove("f");
                }
                _ => {
                    fs::write(story.at.join("g"), b"g").unwrap();
                    fs::rename(story.at.join("g"), &path).unwrap();
                    assert_eq!(fs::read(&path).unwrap(), b"g");
                    fs::remove_file(&path).unwrap();
                }
            }
            assert!(!path.exists(), "{remover}");
            file.write_all_at(b"still", 7).unwrap();
            file.rewind().unwrap();
            let mut content = String::new();
            file.read_to_string(&mut content).unwrap();
            assert_eq!(content, "contentstill", "{remover}");
            assert_eq!(file.metadata().unwrap().len(), 12, "{remover}");
        }
    });
}

#[test]
fn a_name_that_another_client_made_meanwhile_is_opened_not_refused() {
    with_mount(|story| {
        let path = story.at.join("f");
        assert!(!path.exists());
        fs::write(story.at.join("made"), b"theirs").unwrap();
        story.volume.steal_name("made", "f");
        let exclusive = fs::OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(exclusive.unwrap_err().raw_os_error(), Some(libc::EEXIST));
        let mut file = fs::OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "theirs");
    });
}

#[test]
fn large_files_and_mappings_work() {
    with_mount(|story| {
        let path = story.at.join("big");
        let content: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 253) as u8).collect();
        fs::write(&path, &content).unwrap();
        story.recall(&[story.volume.gfid("big")]);
        assert_eq!(fs::read(&path).unwrap(), content);
        let copied = story.at.join("copy");
        fs::copy(&path, &copied).unwrap();
        assert_eq!(fs::read(&copied).unwrap(), content);
    });
}

/// Another mount reads the old content until then: who has read the new one here would see it go back.
#[test]
fn what_is_only_written_is_not_read_before_the_bricks_have_it() {
    with_mount(|story| {
        let path = story.at.join("f");
        fs::write(&path, b"old").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let before = story.volume.asked(kind_of::<fop::Write>());
        let reader = fs::File::open(&path).unwrap();
        story.volume.writes_wait.send_replace(true);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(b"new", 0).unwrap();
            });
            while story.volume.asked(kind_of::<fop::Write>()) == before {
                std::thread::yield_now();
            }
            let mut seen = [0; 3];
            let read = reader.read_exact_at(&mut seen, 0);
            story.volume.writes_wait.send_replace(false);
            writer.join().unwrap();
            read.unwrap();
            assert_eq!(&seen, b"old");
        });
        assert_eq!(fs::read(&path).unwrap(), b"new");
    });
}

/// The answer to its CREATE may be on its way: what that promises must be taken back as soon as the kernel has it.
#[test]
fn a_recall_of_a_file_that_is_being_made_is_told_again_when_the_kernel_knows_it() {
    with_mount(|story| {
        let gfid = Gfid::from_bytes([7; 16]);
        let inodes = &story.cache.inodes;
        let seen = Seen { gfid, kind: Kind::File, parent: Gfid::ROOT, lacks: Lacks::empty() };
        let (nodeid, _) = inodes.remember(seen, Promise::Covered, inodes.moment());
        let how = How { flags: OpenFlags::WRITE, opener_if_unflushed: None };
        story.cache.opens.insert_born(gfid, how, inodes).unwrap();
        story.recall(&[gfid]);
        assert!(inodes.clear_suspect(nodeid), "the kernel does not know it yet, and would believe what it is told");
    });
}

#[test]
fn a_listing_shows_the_inode_numbers_of_stat() {
    with_mount(|story| {
        for n in 0..250 {
            fs::write(story.at.join(format!("file-{n:03}")), b"").unwrap();
        }
        for entry in fs::read_dir(story.at).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.ino(), fs::symlink_metadata(entry.path()).unwrap().ino());
        }
        let again: Vec<_> = fs::read_dir(story.at).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(again.len(), 250);
        for entry in again {
            assert_eq!(entry.ino(), fs::symlink_metadata(entry.path()).unwrap().ino());
        }
    });
}

/// Another mount replaced a name all the time, and a program that opened it got ESTALE now and then.
#[test]
fn a_name_that_is_replaced_whenever_it_is_to_be_opened_is_opened() {
    with_mount(|story| {
        story.volume.covers.store(false, Ordering::Relaxed);
        let path = story.at.join("f");
        fs::write(&path, b"content").unwrap();
        for times in 0..8 {
            story.volume.replaced.store(times, Ordering::Relaxed);
            assert_eq!(fs::read(&path).unwrap(), b"content", "{times}");
            story.volume.replaced.store(times, Ordering::Relaxed);
            let file = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 7, "{times}");
        }
    });
}

#[test]
fn a_link_that_is_replaced_whenever_it_is_to_be_followed_is_followed() {
    with_mount(|story| {
        story.volume.covers.store(false, Ordering::Relaxed);
        fs::write(story.at.join("f"), b"content").unwrap();
        std::os::unix::fs::symlink("f", story.at.join("link")).unwrap();
        for times in 0..8 {
            story.volume.replaced.store(times, Ordering::Relaxed);
            assert_eq!(fs::read_link(story.at.join("link")).unwrap(), Path::new("f"), "{times}");
            story.volume.replaced.store(times, Ordering::Relaxed);
            assert_eq!(fs::read(story.at.join("link")).unwrap(), b"content", "{times}");
        }
    });
}

/// What `ls -l` shows of a directory: sizes by name, and whether there is an access control list.
fn long_listing(directory: &Path) -> Vec<(String, u64, bool)> {
    let mut listing: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let bytes = entry.metadata().unwrap().len();
            let acl = rustix::fs::getxattr(entry.path(), "system.posix_acl_access", &mut [0; 100]).is_ok();
            (entry.file_name().into_string().unwrap(), bytes, acl)
        })
        .collect();
    listing.sort();
    listing
}

#[test]
fn a_second_listing_asks_nothing_of_single_files() {
    with_mount(|story| {
        if !story.believes_names() {
            eprintln!("skipped: this kernel believes no names");
            return;
        }
        let dir = story.at.join("dir");
        fs::create_dir(&dir).unwrap();
        for n in 0..450 {
            fs::write(dir.join(format!("file-{n:03}")), format!("content {n}")).unwrap();
        }
        let count = |what: &dyn Fn()| {
            let before = story.requests();
            what();
            story.requests() - before
        };
        let list = || assert_eq!(long_listing(&dir).len(), 450);
        assert!(count(&list) > 450, "the first asks for the access control list of each file");
        // Pages and their directory.
        assert!(count(&list) < 30);
        // A file that was changed here is asked about alone.
        fs::write(dir.join("file-007"), b"").unwrap();
        assert!(count(&list) < 40);
        // The kernel has forgotten all names, and not that there are no lists; attributes come with the listing.
        story.recall(&[Gfid::ROOT]);
        list();
        assert!(count(&list) < 30);
    });
}

#[test]
fn a_name_that_comes_and_goes_while_it_is_to_be_made_is_opened() {
    with_mount(|story| {
        story.volume.covers.store(false, Ordering::Relaxed);
        let path = story.at.join("f");
        for times in 0..8 {
            story.volume.removed.store(times, Ordering::Relaxed);
            story.volume.made.store(times + 2, Ordering::Relaxed);
            let mut file = fs::OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
            file.write_all(b"ours").unwrap();
            story.volume.removed.store(0, Ordering::Relaxed);
            story.volume.made.store(0, Ordering::Relaxed);
            assert_eq!(fs::read(&path).unwrap(), b"ours", "{times}");
            let refused = fs::OpenOptions::new().write(true).create_new(true).open(&path);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EEXIST));
            fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn a_directory_that_was_removed_has_attributes_for_who_is_in_it() {
    with_mount(|story| {
        story.volume.covers.store(false, Ordering::Relaxed);
        let path = story.at.join("d");
        fs::create_dir(&path).unwrap();
        let open = fs::File::open(&path).unwrap();
        let ino = open.metadata().unwrap().ino();
        story.volume.remove("d");
        let seen = open.metadata().unwrap();
        assert_eq!((seen.ino(), seen.nlink(), seen.is_dir()), (ino, 0, true));
        let made = rustix::fs::openat(&open, "x", rustix::fs::OFlags::CREATE, 0o600.into());
        assert_eq!(made.unwrap_err(), rustix::io::Errno::NOENT);
        assert_eq!(fs::metadata(&path).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    });
}

/// A program opened a file without a name, which another client had open, and lost it when that client closed it.
#[test]
fn a_file_that_only_others_keep_is_opened_at_the_bricks() {
    with_mount(|story| {
        let path = story.at.join("f");
        fs::write(&path, b"content").unwrap();
        story.volume.open_elsewhere("f");
        let at_path = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let gfid = story.volume.gfid("f");
        story.recall(&[Gfid::ROOT, gfid]);
        story.volume.remove("f");
        assert_eq!(fs::metadata(format!("/proc/self/fd/{}", at_path.as_raw_fd())).unwrap().nlink(), 0);
        let file = fs::File::open(format!("/proc/self/fd/{}", at_path.as_raw_fd())).unwrap();
        assert_eq!(story.volume.asked(kind_of::<Open>()), 1);
        assert_eq!(file.metadata().unwrap().len(), 7);
    });
}

#[test]
fn what_another_client_changes_between_two_listings_is_in_the_second() {
    with_mount(|story| {
        for name in ["a", "b", "c"] {
            fs::write(story.at.join(name), b"123").unwrap();
        }
        let seen = |name: &str, bytes| (name.to_owned(), bytes, false);
        for _ in 0..3 {
            assert_eq!(long_listing(story.at), [seen("a", 3), seen("b", 3), seen("c", 3)]);
        }
        let gfid = story.volume.set_content("a", b"longer");
        story.recall(&[gfid]);
        assert_eq!(long_listing(story.at), [seen("a", 6), seen("b", 3), seen("c", 3)]);
        // One file goes, and another gets its name.
        let gone = story.volume.gfid("b");
        story.volume.remove("b");
        story.volume.steal_name("a", "b");
        story.recall(&[Gfid::ROOT, gone, gfid]);
        assert_eq!(long_listing(story.at), [seen("b", 6), seen("c", 3)]);
        fs::hard_link(story.at.join("c"), story.at.join("d")).unwrap();
        long_listing(story.at);
        let gfid = story.volume.set_content("d", b"");
        story.recall(&[gfid]);
        assert_eq!(long_listing(story.at), [seen("b", 6), seen("c", 0), seen("d", 0)]);
        assert_eq!(fs::metadata(story.at.join("c")).unwrap().nlink(), 2);
        fs::remove_file(story.at.join("d")).unwrap();
        assert_eq!(long_listing(story.at), [seen("b", 6), seen("c", 0)]);
        assert_eq!(fs::metadata(story.at.join("c")).unwrap().nlink(), 1);
    });
}
