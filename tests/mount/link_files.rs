//! Link files as users meet them: many of them, and wrong ones.
//!
//! A file that was renamed stays on its brick; where its new name belongs there is an empty file that says where it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use mortar_tests::cluster::{Cluster, Shape};
use mortar_xlators::distribute::layout::{Layout, Share};
use mortar_xlators::types::RawLayout;

use super::bricks::{settle, xattrs};
use super::full_disk::fill;
use super::{as_user, within};

const LIMIT: Duration = Duration::from_secs(200);

/// Where a link file says where the file is.
const LINKTO: &str = "trusted.glusterfs.dht.linkto";

/// Which brick a name in this directory belongs to, in a volume without copies.
fn layout(cluster: &Cluster, directory: &str) -> Layout {
    let share = |brick| {
        let xattrs = xattrs(&cluster.brick(brick).join(directory)).unwrap();
        let raw = xattrs["trusted.glusterfs.dht"].as_slice().try_into().unwrap();
        Share::of_directory(Some(RawLayout(raw)))
    };
    Layout::new((0..cluster.brick_count()).map(share).collect::<Vec<_>>())
}

/// The link files and the others in a directory of a brick.
fn entries(brick: &Path, directory: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let all = fs::read_dir(brick.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    all.partition(|path| xattrs(path).unwrap().contains_key(LINKTO))
}

/// All names of a directory, with what they lead to; none twice.
fn listed(directory: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let meta = entry.metadata().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.insert(name.clone(), meta.len()), None, "{name} is listed twice");
    }
    found
}

/// C041: seven of eight bricks have nothing to list but link files, page after page.
#[test]
fn a_listing_is_whole_where_most_bricks_have_only_link_files() {
    const FILES: usize = 300;
    within(LIMIT, "", || {
        let cluster = Cluster::up(8, 1, 2).unwrap();
        fs::create_dir(cluster.mount(0).join("d")).unwrap();
        let layout = layout(&cluster, "d");
        let first =
            (0..).map(|number| format!("first-{number}")).filter(|name| layout.set_of(name.as_bytes()) == Some(0));
        let mut want = BTreeMap::new();
        for (number, first) in first.take(FILES).enumerate() {
            let name = format!("{number:0>100}");
            let (from, to) = (cluster.mount(0).join("d").join(first), cluster.mount(0).join("d").join(&name));
            let size = number as u64 % 10;
            File::create(&from).unwrap().set_len(size).unwrap();
            fs::rename(from, to).unwrap();
            want.insert(name, size);
        }
        for brick in 1..8 {
            let (links, files) = entries(&cluster.brick(brick), "d");
            assert!(files.is_empty() && links.len() > FILES / 20, "{brick}: {} links, {files:?}", links.len());
        }
        thread::scope(|scope| {
            for mount in cluster.mounts() {
                let want = &want;
                scope.spawn(move || (0..2).for_each(|_| assert_eq!(&listed(&mount.join("d")), want)));
            }
        });
        assert_eq!(cluster.dead_processes(), Vec::<String>::new(), "{}", cluster.log_tails());
        fs::remove_dir_all(cluster.mount(1).join("d")).unwrap();
        settle(&cluster, 1);
    });
}

/// C133: what an ordinary user owns is usable whatever became of the link files; where the file is lost, its name is free.
#[test]
fn an_ordinary_user_is_not_stopped_by_a_wrong_link_file() {
    within(LIMIT, "", || {
        let mut cluster = Cluster::up(3, 1, 2).unwrap();
        let directory = cluster.mount(0).join("d");
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(1001), Some(1001)).unwrap();
        let make = "umask 077; for i in $(seq 45); do echo text $i > first-$i && mv first-$i name-$i || exit 1; done";
        assert!(as_user(1001, "", &directory, make));
        cluster.down().unwrap();
        let (mut sound, mut lost) = (Vec::new(), Vec::new());
        for (number, link) in (0..3).flat_map(|brick| entries(&cluster.brick(brick), "d").0).enumerate() {
            let name = link.file_name().unwrap().to_str().unwrap().to_owned();
            match number % 3 {
                0 => set_linkto(&link, b"gv0-client-77\0"),
                1 => chown(&link, Some(0), Some(0)).unwrap(),
                _ => remove_content(&cluster, &name),
            }
            if number % 3 == 2 { lost.push(name) } else { sound.push(name) }
        }
        assert!(sound.len() >= 10 && lost.len() >= 5, "{sound:?} {lost:?}");
        cluster.start_again().unwrap();

        for (turn, name) in sound.iter().enumerate() {
            let text = format!("text {}", name.strip_prefix("name-").unwrap());
            let used = format!(
                "test $(stat -c %u:%a {name}) = 1001:600 && test \"$(cat {name})\" = '{text}' && echo >> {name} && rm {name}"
            );
            let again = format!("test ! -e {name} && echo again > {name} && test $(stat -c %u {name}) = 1001");
            assert!(as_user(1001, "", &cluster.mount(turn % 2).join("d"), &used), "{name}: {}", cluster.log_tails());
            assert!(as_user(1001, "", &cluster.mount((turn + 1) % 2).join("d"), &again), "{name}");
        }
        for (turn, name) in lost.iter().enumerate() {
            let again = format!(
                "cat {name} 2>&1 | grep -q 'No such file' && echo again > {name} && test $(stat -c %u {name}) = 1001"
            );
            assert!(as_user(1001, "", &cluster.mount(turn % 2).join("d"), &again), "{name}: {}", cluster.log_tails());
            assert!(
                as_user(1001, "", &cluster.mount((turn + 1) % 2).join("d"), &format!("test $(cat {name}) = again")),
                "{name}"
            );
        }
        assert!(as_user(1001, "", &directory, "test $(ls | wc -l) = 45 && rm name-*"));
        fs::remove_dir(&directory).unwrap();
        settle(&cluster, 1);
    });
}

fn set_linkto(link: &Path, to: &[u8]) {
    rustix::fs::lsetxattr(link, LINKTO, to, rustix::fs::XattrFlags::REPLACE).unwrap();
}

/// Remove a file from the brick that has its content, and its handle there.
fn remove_content(cluster: &Cluster, name: &str) {
    let files =
        (0..3).flat_map(|brick| entries(&cluster.brick(brick), "d").1.into_iter().map(move |path| (brick, path)));
    let (brick, path) = files.into_iter().find(|(_, path)| path.ends_with(name)).expect("it is on one brick");
    let gfid = &xattrs(&path).unwrap()["trusted.gfid"];
    let gfid = mortar_xlators::types::Gfid::from_slice(gfid).unwrap();
    fs::remove_file(super::bricks::handle(&cluster.brick(brick), gfid)).unwrap();
    fs::remove_file(path).unwrap();
}

/// C040: two mounts make the same names while the set where some of them belong is nearly full.
#[test]
fn a_name_that_two_make_where_there_is_no_room_is_one_file() {
    const NAMES: usize = 50;
    within(LIMIT, "", || {
        let cluster = Cluster::up_on_disks(Shape { bricks: 6, replica: 3, clients: 2 }, &[320 << 20; 6]).unwrap();
        (0..3).for_each(|brick| leave(&cluster.brick(brick), 20 << 20));
        fs::create_dir(cluster.mount(0).join("d")).unwrap();
        for round in 0..2 {
            for mount in cluster.mounts() {
                // Whoever asks for the space knows from then on that one set is nearly full.
                rustix::fs::statvfs(mount).unwrap();
            }
            at_once(&cluster, NAMES, |path| {
                fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            });
            let links = entries(&cluster.brick(0), "d").0.len();
            assert!(links > NAMES / 4, "only {links} link files");
            let seen: Vec<_> = cluster.mounts().iter().map(|mount| listed(&mount.join("d"))).collect();
            assert!(seen[0] == seen[1] && seen[0].len() == NAMES, "round {round}: {seen:?}");
            (0..NAMES).for_each(|number| assert_one_file(&cluster, &format!("d/name-{number}")));
            at_once(&cluster, NAMES, |path| {
                if let Err(error) = fs::remove_file(&path) {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", path.display());
                }
            });
            assert!(cluster.mounts().iter().all(|mount| listed(&mount.join("d")).is_empty()));
        }
        settle(&cluster, 3);
    });
}

/// Leave only this much free on the disk of a brick, which has one of its own.
fn leave(brick: &Path, bytes: u64) {
    let disk = rustix::fs::statvfs(brick).unwrap();
    fill(&brick.join(".glusterfs/ballast"), disk.f_bavail * disk.f_frsize - bytes);
}

/// Do it with each name at all mounts, in the same order.
fn at_once(cluster: &Cluster, names: usize, work: impl Fn(PathBuf) + Sync) {
    thread::scope(|scope| {
        for mount in cluster.mounts() {
            let work = &work;
            scope.spawn(move || (0..names).for_each(|number| work(mount.join(format!("d/name-{number}")))));
        }
    });
}

/// All mounts see the same file, and all bricks that have the name have it for that file.
fn assert_one_file(cluster: &Cluster, path: &str) {
    let inos: Vec<_> = cluster.mounts().iter().map(|mount| fs::metadata(mount.join(path)).unwrap().ino()).collect();
    assert!(inos.iter().all(|ino| *ino == inos[0]), "{path}: {inos:?}");
    let places = (0..cluster.brick_count()).map(|brick| cluster.brick(brick).join(path)).filter(|place| place.exists());
    let gfids: Vec<_> = places.map(|place| xattrs(&place).unwrap()["trusted.gfid"].clone()).collect();
    assert!(gfids.len() >= 3 && gfids.iter().all(|gfid| *gfid == gfids[0]), "{path}: {gfids:?}");
}
