//! A disk that is full: the program is told, nothing is damaged, and work goes on when there is room again.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::time::Duration;

use mortar_tests::cluster::{Cluster, Shape};

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

/// Take this much of the disk away.
fn fill(path: &std::path::Path, bytes: u64) {
    let file = File::create(path).unwrap();
    let mut left = bytes;
    // Something is in use already: take less until it fits.
    while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, left).is_err() {
        left -= 10 << 20;
    }
}

/// Read everything that is there.
fn walk(directory: &std::path::Path) {
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
