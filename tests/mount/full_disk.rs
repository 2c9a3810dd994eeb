//! A disk that is full: the program is told, nothing is damaged, and work goes on when there is room again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use mortar_tests::bench::command::wait_for;
use mortar_tests::cluster::{Cluster, Shape};
use rustix::fs::{FallocateFlags, fallocate};

use super::bricks::{settle, xattrs};
use super::untar::{archive, finish, untar, verify};
use super::within;

const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn a_full_disk_in_the_middle_of_an_untar_is_an_error_and_no_damage() {
    within(LIMIT, "", || {
        let archive = archive();
        // Three copies of one tree fit, a ballast beside them does not.
        let shape = Shape { bricks: 3, replica: 3, clients: 2 };
        let room = 3 * fs::metadata(&archive.tar).unwrap().len() + (400 << 20);
        let cluster = Cluster::up_on(shape, room).unwrap();
        let kept = cluster.mount(0).join("kept");
        fs::write(&kept, vec![3; 1 << 20]).unwrap();
        let ballast = cluster.disk().join("ballast");
        fill(&ballast, room - (200 << 20));

        let said = finish(untar(&archive.tar, &cluster.mount(0).join("first"))).unwrap_err();
        assert!(said.contains("No space left on device"), "{said}");
        // The copies do not all refuse at the same moment, and the reserve has room for what must be known of that.
        assert_eq!(cluster.logged("could not write a blame"), 0, "{}", cluster.log_tails());
        assert_eq!(cluster.dead_processes(), Vec::<String>::new(), "{}", cluster.log_tails());
        assert!(fs::read(cluster.mount(1).join("kept")).unwrap() == vec![3; 1 << 20]);
        // What is there can be listed, read and removed, also now.
        walk(&cluster.mount(1).join("first"));
        fs::remove_dir_all(cluster.mount(1).join("first")).unwrap();

        fs::remove_file(&ballast).unwrap();
        finish(untar(&archive.tar, &cluster.mount(0).join("second")))
            .unwrap_or_else(|said| panic!("{said}\n{}", cluster.log_tails()));
        verify(&archive, &cluster.mount(1).join("second"));
        assert!(fs::read(kept).unwrap() == vec![3; 1 << 20]);
    });
}

#[test]
fn a_write_without_room_is_told_and_what_was_written_stays() {
    within(LIMIT, "", || {
        let cluster = Cluster::up_on(Shape { bricks: 3, replica: 3, clients: 2 }, 400 << 20).unwrap();
        let mut file = File::create(cluster.mount(0).join("big")).unwrap();
        let block = vec![5; 1 << 20];
        let mut written = 0;
        let error = loop {
            match file.write(&block) {
                Ok(count) => written += count as u64,
                Err(error) => break error,
            }
            assert!(written < 400 << 20, "three copies of this do not fit");
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(written > 10 << 20, "{written}");
        let seen = fs::read(cluster.mount(1).join("big")).unwrap();
        assert!(seen.len() as u64 >= written && seen[..written as usize].iter().all(|byte| *byte == 5));
        file.set_len(1 << 20).unwrap();
        drop(file);
        fs::write(cluster.mount(1).join("next"), vec![6; 10 << 20]).unwrap();
        assert!(fs::read(cluster.mount(0).join("next")).unwrap() == vec![6; 10 << 20]);
        assert_eq!(fs::metadata(cluster.mount(0).join("big")).unwrap().len(), 1 << 20);
    });
}

/// Write until there is no room for more.
fn write_until_full(path: &Path) {
    let mut file = File::create(path).unwrap();
    for piece in [1 << 20, 1 << 12] {
        let block = vec![8; piece];
        let error = loop {
            if let Err(error) = file.write_all(&block) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }
}

/// C063: an allocation that fails takes nothing.
#[test]
fn an_allocation_without_room_is_refused_and_takes_none() {
    within(LIMIT, "", || {
        let cluster = Cluster::up_on(Shape { bricks: 3, replica: 3, clients: 2 }, 400 << 20).unwrap();
        let (here, there) = (cluster.mount(0), cluster.mount(1));
        fs::write(here.join("text"), "text").unwrap();
        let room = || {
            let space = rustix::fs::statvfs(here).unwrap();
            space.f_bavail * space.f_frsize
        };
        let before = room();
        let allocate = |name: &str, flags, offset| {
            let file = File::options().write(true).create(true).truncate(false).open(here.join(name)).unwrap();
            let error = fallocate(&file, flags, offset, 1 << 30).unwrap_err();
            assert_eq!(error, rustix::io::Errno::NOSPC, "{name} {flags:?}");
        };
        for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
            allocate("new", flags, 0);
            allocate("text", flags, 3);
        }
        // XFS zeroes what is there before it looks for room for the rest.
        allocate("new", FallocateFlags::ZERO_RANGE, 0);
        for brick in 0..3 {
            let made = fs::metadata(cluster.brick(brick).join("new")).unwrap();
            let text = fs::metadata(cluster.brick(brick).join("text")).unwrap();
            assert_eq!((made.len(), made.blocks(), text.len()), (0, 0, 4), "brick {brick}");
        }
        assert_eq!(fs::metadata(there.join("new")).unwrap().len(), 0);
        assert_eq!(fs::read(there.join("text")).unwrap(), b"text");
        wait_for("the space that was free before", Duration::from_secs(10), || room() + (1 << 20) >= before).unwrap();
        // What fits is still given.
        let file = File::options().write(true).open(there.join("new")).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 20 << 20).unwrap();
        assert!(fs::metadata(here.join("new")).unwrap().blocks() * 512 >= 20 << 20);
        drop(file);
        settle(&cluster, 3);
    });
}

/// C063: where one copy of three has no room, the other two are enough; it takes nothing, and is not read.
#[test]
fn an_allocation_that_one_brick_has_no_room_for_is_made_on_the_others() {
    within(LIMIT, "", || {
        let shape = Shape { bricks: 3, replica: 3, clients: 2 };
        let cluster = Cluster::up_on_disks(shape, &[320 << 20, 600 << 20, 600 << 20]).unwrap();
        let bytes = 400 << 20;
        let file = File::create(cluster.mount(0).join("big")).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        let on = |brick| fs::metadata(cluster.brick(brick).join("big")).unwrap();
        assert_eq!((on(0).len(), on(0).blocks()), (0, 0));
        assert_eq!((on(1).len(), on(2).len()), (bytes, bytes));
        let blames = |brick| xattrs(&cluster.brick(brick).join("big")).unwrap().remove("trusted.afr.gv0-client-0");
        for brick in [1, 2] {
            assert!(
                blames(brick).is_some_and(|counters| counters != [0; 12]),
                "brick {brick} does not say what 0 missed"
            );
        }
        for mount in cluster.mounts() {
            assert_eq!(fs::metadata(mount.join("big")).unwrap().len(), bytes);
        }
        fs::remove_file(cluster.mount(1).join("big")).unwrap();
        drop(file);
        settle(&cluster, 3);
    });
}

/// C074: a rename without room works, or both names are as before; no file is mixed or cut.
#[test]
fn a_rename_without_room_works_or_changes_nothing() {
    const ROUNDS: usize = 24;
    within(LIMIT, "", || {
        let cluster = Cluster::up_on(Shape { bricks: 3, replica: 3, clients: 2 }, 400 << 20).unwrap();
        let mut names = Names { here: cluster.mount(0), there: cluster.mount(1), content: BTreeMap::new() };
        for number in 0..ROUNDS {
            names.make(&format!("a-{number}"));
            names.make(&format!("c-{number}"));
        }
        let filler = cluster.mount(1).join("filler");
        write_until_full(&filler);
        let ballast = cluster.disk().join("ballast");
        for number in 0..ROUNDS {
            if number == ROUNDS / 2 {
                // So far the reserve was left; now the disk itself has nothing.
                fill(&ballast, 400 << 20);
            }
            let (a, b, c, d) =
                (format!("a-{number}"), format!("b-{number}"), format!("c-{number}"), format!("d-{number}"));
            names.rename(&a, &b);
            names.no_room(&format!("more-{number}"));
            names.rename(&c, &b);
            if told_or_done(fs::create_dir(names.here.join(&d))) {
                names.rename(&b, &format!("{d}/b"));
            }
        }
        fs::remove_file(ballast).unwrap();
        fs::remove_file(filler).unwrap();
        for (name, content) in &names.content {
            assert!(fs::read(names.there.join(name)).unwrap() == *content, "{name}");
        }
        // A copy that had no room for what the others did is blamed for it until it is healed: that must be on disk.
        assert_eq!(cluster.logged("could not write a blame"), 0, "{}", cluster.log_tails());
    });
}

/// Files at two mounts, and what should be in them.
struct Names<'a> {
    here: &'a Path,
    there: &'a Path,
    content: BTreeMap<String, Vec<u8>>,
}

impl Names<'_> {
    fn make(&mut self, name: &str) {
        let content = name.repeat(3000).into_bytes();
        fs::write(self.here.join(name), &content).unwrap();
        self.content.insert(name.to_owned(), content);
    }

    fn rename(&mut self, from: &str, to: &str) {
        let Some(content) = self.content.get(from).cloned() else { return };
        if told_or_done(fs::rename(self.here.join(from), self.here.join(to))) {
            self.content.remove(from);
            self.content.insert(to.to_owned(), content);
        }
        for name in [from, to] {
            let size = fs::metadata(self.there.join(name)).ok().map(|meta| meta.len() as usize);
            assert_eq!(size, self.content.get(name).map(Vec::len), "{name} after a rename from {from} to {to}");
        }
    }

    /// A write that fails after a while, or when it is synced. What it made before it failed is removed.
    fn no_room(&self, name: &str) {
        let write = || {
            let mut file = File::create(self.there.join(name))?;
            for _ in 0..32 {
                file.write_all(&[4; 1 << 20])?;
                file.sync_all()?;
            }
            Ok(())
        };
        let error: std::io::Error = write().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{name}");
        match fs::remove_file(self.there.join(name)) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }
}

/// Whether it was done; if not, because there is no room.
fn told_or_done(outcome: std::io::Result<()>) -> bool {
    outcome.map_err(|error| assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}")).is_ok()
}

/// Take this much of the disk away, or as much as there is.
pub(super) fn fill(path: &Path, bytes: u64) {
    let file = File::create(path).unwrap();
    let mut taken = 0;
    for piece in [10 << 20, 1 << 20, 64 << 10, 4 << 10] {
        while taken + piece <= bytes && fallocate(&file, FallocateFlags::empty(), taken, piece).is_ok() {
            taken += piece;
        }
    }
}

/// Read everything that is there.
fn walk(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            walk(&entry.path());
        } else if kind.is_file() {
            fs::read(entry.path()).unwrap();
        }
    }
}
