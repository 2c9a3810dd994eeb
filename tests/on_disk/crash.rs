//! A brick that is killed at any moment: what has a name is complete, and what has none goes.
//!
//! The test runs itself again as a brick that makes, moves and removes names as fast as it can, and kills that process.
//! Then it reads the disk as it was left, without the brick: every name must lead to an inode with a gfid, times and a
//! handle (but for one that was being removed, whose handle goes first). Then it starts the brick: what was only half made
//! must be gone, and after a look at every name nothing must be amiss.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::fop::{Birth, Create, Fop, Lookup, Mkdir, Only, Rename, Replace, Rmdir, Symlink, Unlink};
use mortar_xlators::index::Index;
use mortar_xlators::leases::DirtyJournal;
use mortar_xlators::posix::{Posix, PosixOptions, create_brick, prepare_process};
use mortar_xlators::types::{ClientId, Gfid, Name, Time};
use mortar_xlators::xlator::Xlator;
use uuid::Uuid;

const BRICK_VARIABLE: &str = "MORTAR_CRASH_BRICK";
const VOLUME: Uuid = Uuid::from_u128(43);

/// Few for every run; many are run with `MORTAR_CRASH_ROUNDS`.
const ROUNDS: u64 = 8;

/// Names that come and go, so that most fops meet one that exists.
const NAMES: u64 = 40;

#[test]
fn a_killed_brick_has_only_whole_names() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let brick = folder.path().join("brick");
    prepare_process();
    create_brick(&brick, VOLUME).expect("a new brick");
    drop(serve(&brick));
    let rounds = std::env::var("MORTAR_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    for round in 0..rounds {
        let name = format!("{}::the_brick", module_path!().split_once("::").map_or("", |(_, rest)| rest));
        let mut process = Command::new(std::env::current_exe().expect("the path of this test"))
            .args(["--exact", name.trim_start_matches(':'), "--include-ignored", "--test-threads=1", "--nocapture"])
            .env(BRICK_VARIABLE, &brick)
            .env("SEED", round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test runs again");
        wait_until_it_serves(&mut process);
        // Not a multiple of anything, so that the moments differ.
        std::thread::sleep(Duration::from_micros(20_000 + 7_919 * round));
        process.kill().expect("it can be killed");
        process.wait().expect("it is dead");
        let (whole, going) = check_names(&brick);
        assert!(going <= 2, "SEED={round}: {going} names without handles");
        let index = serve(&brick);
        look_at_every_name(&brick, &index);
        println!("SEED={round}: {whole} names");
        wait_until_handles_agree(&brick, round);
        drop(index);
        assert_eq!(std::fs::read_dir(brick.join(".glusterfs/staging")).expect("staging").count(), 0);
    }
}

fn wait_until_it_serves(process: &mut std::process::Child) {
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(process.stdout.take().expect("it is piped")));
    let serving = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("serving")));
    assert!(serving.is_some(), "the brick ended early");
}

/// The look for handles without names runs beside the brick.
fn wait_until_handles_agree(brick: &Path, round: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let names = inodes(brick) + 1;
    while handles(brick).len() != names {
        let left = || handles(brick).len();
        assert!(Instant::now() < deadline, "SEED={round}: {} handles, {names} inodes with the root", left());
        std::thread::yield_now();
    }
}

fn look_at_every_name(brick: &Path, index: &Index) {
    let deadline = Instant::now() + Duration::from_secs(3600);
    let ctx = Ctx::new(1, ClientId(1), Caller::root(), deadline);
    for entry in std::fs::read_dir(brick).expect("a directory") {
        let name = entry.expect("an entry").file_name().into_encoded_bytes();
        let lookup = Lookup { parent: Gfid::ROOT, name: Name::new(name).expect("a name") };
        index.call(&ctx, lookup.into()).now_or_never().expect("a lookup does not wait").expect("it is found");
    }
}

fn serve(brick: &Path) -> Arc<Index> {
    let posix = Posix::open(brick, VOLUME, PosixOptions::default()).expect("the brick is served");
    Index::open(posix).expect("the indices are read")
}

/// Every handle on the brick.
fn handles(brick: &Path) -> Vec<PathBuf> {
    let list =
        |path: PathBuf| std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path());
    let first = (0..=255u8).map(|byte| brick.join(format!(".glusterfs/{byte:02x}")));
    first.flat_map(list).flat_map(list).collect()
}

/// Whoever has a name is whole; how many have one, and how many of them have no handle.
fn check_names(brick: &Path) -> (usize, usize) {
    let (mut names, mut going) = (0, 0);
    for entry in std::fs::read_dir(brick).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name == ".glusterfs") {
            continue;
        }
        let get = |key: &str| {
            let mut value = [0; 64];
            let length = rustix::fs::lgetxattr(&path, key, &mut value[..]);
            value[..length.unwrap_or_else(|errno| panic!("{}: {key}: {errno}", path.display()))].to_vec()
        };
        let gfid = Gfid::from_slice(&get("trusted.gfid")).expect("16 bytes");
        assert_eq!(get("trusted.glusterfs.mdata").len(), 57);
        let text = gfid.to_string();
        let handle = brick.join(format!(".glusterfs/{}/{}/{text}", &text[..2], &text[2..4]));
        let meta = path.symlink_metadata().expect("it has a name");
        if meta.is_file() {
            assert_eq!(meta.len(), 1000, "{} has its content", path.display());
        }
        // A directory that was being renamed has the handle of its old place until the next lookup.
        if !meta.is_dir() {
            match handle.symlink_metadata() {
                Ok(reached) => assert_eq!(reached.ino(), meta.ino(), "{}", path.display()),
                Err(_) => going += 1,
            }
        }
        names += 1;
    }
    (names, going)
}

/// All names are in the root, and every inode has one.
fn inodes(brick: &Path) -> usize {
    let names = std::fs::read_dir(brick).expect("a directory").map(|entry| entry.expect("an entry"));
    names.filter(|entry| entry.file_name() != ".glusterfs").count()
}

/// Not a test of its own: the brick that is killed.
#[test]
#[ignore = "run by the test above, and killed"]
fn the_brick() {
    let Ok(brick) = std::env::var(BRICK_VARIABLE) else { return };
    let seed: u64 = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    prepare_process();
    let index = serve(Path::new(&brick));
    index.mark_dirty(Gfid::ROOT).expect("the journal takes the root");
    println!("serving");
    let deadline = Instant::now() + Duration::from_secs(3600);
    let ctx = Ctx::new(1, ClientId(1), Caller::root(), deadline);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    while Instant::now() < deadline {
        let fop = random.fop();
        // Most are refused, since the name is taken, absent, or of another kind.
        let _answer = index.call(&ctx, fop).now_or_never();
    }
}

/// Marsaglia's xorshift: enough to mix fops.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn name(&mut self) -> Name {
        let number = self.next() % NAMES;
        Name::new(format!("name-{number}").into_bytes()).expect("a name")
    }

    fn birth(&mut self) -> Box<Birth> {
        let gfid = Gfid::from_random((u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes());
        let when = self.when();
        let (mode, uid) = (0o644, 1000);
        Box::new(Birth { gfid, mode, umask: 0, uid, gid: 0, when, times: None, xattrs: vec![], pending: vec![] })
    }

    fn when(&mut self) -> Time {
        Time { sec: i64::try_from(self.next() >> 32).expect("32 bits"), nsec: 0 }
    }

    fn fop(&mut self) -> Fop {
        let parent = Gfid::ROOT;
        let (name, birth, when) = (self.name(), self.birth(), self.when());
        match self.next() % 10 {
            0..3 => {
                let content = Bytes::from_static(&[7; 1000]);
                Create { parent, name, birth, content, open: None, lease: false }.into()
            }
            3 => Mkdir { parent, name, birth, layout: None, mds: false, lease: false }.into(),
            4 => Symlink { parent, name, birth, target: Bytes::from_static(b"target") }.into(),
            5 => Unlink { parent, name, only: Only::Any, when }.into(),
            6 => Rmdir { parent, name, when }.into(),
            _ => {
                let to_name = self.name();
                let replace = if self.next().is_multiple_of(4) { Replace::Exchange } else { Replace::Yes };
                Rename { from_parent: parent, from_name: name, to_parent: parent, to_name, replace, when }.into()
            }
        }
    }
}
