//! What `df` says of a volume whose bricks have disks of their own, of different sizes.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use mortar_tests::cluster::{Cluster, Shape};
use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};

use super::within;

const LIMIT: Duration = Duration::from_secs(120);

const MEBIBYTE: u64 = 1 << 20;

/// Each set has one that is smallest, each at another place.
const DISKS: [u64; 6] =
    [400 * MEBIBYTE, 320 * MEBIBYTE, 360 * MEBIBYTE, 340 * MEBIBYTE, 500 * MEBIBYTE, 500 * MEBIBYTE];

fn bytes(space: &StatVfs, blocks: fn(&StatVfs) -> u64) -> u64 {
    blocks(space) * space.f_frsize
}

/// The sum over the sets of the smallest copy in each.
fn expected(cluster: &Cluster, of: fn(&StatVfs) -> u64) -> u64 {
    let disks: Vec<_> = (0..6).map(|brick| bytes(&statvfs(cluster.brick(brick)).unwrap(), of)).collect();
    disks.chunks(3).map(|set| set.iter().min().unwrap()).sum()
}

fn check(cluster: &Cluster, mount: &Path) {
    let space = statvfs(mount).unwrap();
    assert_eq!(space.f_namemax, 255);
    // Blocks of a set are those of its smallest copy, to the block.
    assert_eq!(bytes(&space, |space| space.f_blocks), expected(cluster, |disk| disk.f_blocks));
    // The reserve of 1 % is not for clients, and the disks have a little traffic of their own.
    let reserve = bytes(&space, |space| space.f_blocks) / 100;
    let free = expected(cluster, |disk| disk.f_bavail) - reserve;
    let seen = bytes(&space, |space| space.f_bavail);
    assert!(seen.abs_diff(free) < 2 * MEBIBYTE, "{seen} of {free} bytes are available");
    assert!(space.f_ffree > 1000 && space.f_ffree < space.f_files, "{} of {} inodes", space.f_ffree, space.f_files);
}

/// C076: also after everything was restarted.
#[test]
fn the_space_of_a_volume_is_that_of_its_smallest_copies() {
    within(LIMIT, "", || {
        let mut cluster = Cluster::up_on_disks(Shape { bricks: 6, replica: 3, clients: 2 }, &DISKS).unwrap();
        cluster.mounts().iter().for_each(|mount| check(&cluster, mount));
        let before = bytes(&statvfs(cluster.mount(1)).unwrap(), |space| space.f_bavail);
        let file = cluster.mount(0).join("file");
        // A program that writes may have a disk set more aside for a while.
        fallocate(File::create(&file).unwrap(), FallocateFlags::empty(), 0, 40 << 20).unwrap();
        let used = before - bytes(&statvfs(cluster.mount(1)).unwrap(), |space| space.f_bavail);
        assert!(used.abs_diff(40 * MEBIBYTE) < 2 * MEBIBYTE, "{used} bytes more in use");
        cluster.down().unwrap();
        cluster.start_again().unwrap();
        cluster.mounts().iter().for_each(|mount| check(&cluster, mount));
    });
}
