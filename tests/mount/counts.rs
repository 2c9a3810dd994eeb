//! What ordinary work costs in messages: counted by the bricks, since no time is the same twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mortar_tests::bench::command::run;
use mortar_tests::bench::mortar::program;
use mortar_tests::cluster::Cluster;

use super::within;

const LIMIT: Duration = Duration::from_secs(180);

/// Files of a directory that is listed, and of an archive that is unpacked.
const FILES: u64 = 2000;

/// How often each fop has reached each brick, by the brick's own count.
pub(super) fn calls(cluster: &Cluster) -> BTreeMap<(usize, String), u64> {
    let dump = run(Command::new(program().unwrap()).arg("statedump").arg(cluster.directory()), LIMIT).unwrap();
    let mut calls = BTreeMap::new();
    for (brick, part) in dump.split("==== brick ").enumerate() {
        let table = part.lines().skip_while(|line| !line.starts_with("fop ")).skip(1);
        for row in table.take_while(|line| !line.trim().is_empty()) {
            let mut words = row.split_whitespace();
            let (Some(fop), Some(count)) = (words.next(), words.next().and_then(|word| word.parse().ok())) else {
                break;
            };
            calls.insert((brick, fop.to_owned()), count);
        }
    }
    calls
}

/// How many fops reached all bricks while this was done.
fn cost(cluster: &Cluster, work: impl FnOnce()) -> u64 {
    let before: u64 = calls(cluster).values().sum();
    work();
    calls(cluster).values().sum::<u64>() - before
}

fn fill(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for number in 0..FILES {
        fs::write(directory.join(format!("{number:0200}")), "text").unwrap();
    }
}

/// C042
#[test]
fn a_large_directory_is_listed_in_few_messages() {
    within(LIMIT, "", || {
        let mut cluster = Cluster::up(3, 3, 3).unwrap();
        fill(&cluster.mount(0).join("d"));
        // Who made the files holds them no more.
        cluster.down().unwrap();
        cluster.start_again().unwrap();
        let cold = cost(&cluster, || {
            assert_eq!(fs::read_dir(cluster.mount(1).join("d")).unwrap().count() as u64, FILES);
        });
        let long = |mount: usize| {
            let listed = fs::read_dir(cluster.mount(mount).join("d")).unwrap();
            assert!(listed.map(|entry| entry.unwrap().metadata().unwrap().len()).all(|size| size == 4));
        };
        let long_cold = cost(&cluster, || long(2));
        let long_warm = cost(&cluster, || long(2));
        println!("messages for {FILES} files: names {cold}, with attributes {long_cold}, once more {long_warm}");
        assert!(0 < cold && cold <= FILES / 10, "names only: {cold}");
        assert!(0 < long_cold && long_cold <= FILES / 10, "with attributes: {long_cold}");
        assert!(long_warm <= FILES / 10, "once more: {long_warm}");
    });
}

/// C044
#[test]
fn small_files_are_unpacked_and_removed_in_few_messages() {
    const COPIES: u64 = 3;
    within(LIMIT, "", || {
        let local = tempfile::tempdir().unwrap();
        fill(&local.path().join("tree"));
        let archive = local.path().join("a.tar");
        run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(local.path()).arg("tree"), LIMIT).unwrap();
        let cluster = Cluster::up(3, 3, 1).unwrap();
        let at = cluster.mount(0);
        let unpacked = cost(&cluster, || {
            run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(at), LIMIT).unwrap();
            run(Command::new("sync").arg("-f").arg(at), LIMIT).unwrap();
        });
        let removed = cost(&cluster, || {
            run(Command::new("rm").arg("-r").arg(at.join("tree")), LIMIT).unwrap();
            run(Command::new("sync").arg("-f").arg(at), LIMIT).unwrap();
        });
        println!("messages to each copy for {FILES} files: untar {}, rm {}", unpacked / COPIES, removed / COPIES);
        assert!(FILES <= unpacked / COPIES && unpacked / COPIES <= 4 * FILES, "untar: {unpacked}");
        assert!(FILES <= removed / COPIES && removed / COPIES <= 2 * FILES, "rm: {removed}");
    });
}
