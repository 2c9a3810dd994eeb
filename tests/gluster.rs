//! GlusterFS 10.3 as the judge of the brick format: bricks that one product has written are handed to the other, and back.
//!
//! A story has two sides that own the same brick directories in turn, never at once. The first makes a tree with everything that
//! a file system can hold, the second sees the same tree and goes on working in it, then the first again. What is compared is
//! what a program sees through a mount: names, kinds, modes, owners, times, sizes, links, xattrs and content.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use mortar_tests::bench::command::{clean_up, run};
use mortar_tests::bench::disk::{Mount, RamDisk};
use mortar_tests::bench::glusterfs::Glusterd;
use mortar_tests::bench::mortar;
use mortar_tests::bench::namespace::Namespace;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use uuid::Uuid;

const VOLUME: &str = "oracle";

/// Room for the bricks; memory is only taken as it is filled.
const DISK_BYTES: u64 = 8 << 30;

/// How long one side may take to work in a mount or to look through it.
const MOUNT_LIMIT: Duration = Duration::from_secs(300);

/// Two GlusterFS volumes at once make a small machine so slow that limits are met for no reason.
static ALONE: Mutex<()> = Mutex::new(());

const SETUP_LIMIT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs root and Debian's glusterfs-server"]
fn what_mortar_wrote_in_three_copies_is_read_by_glusterfs() {
    there_and_back(Side::Mortar, Side::Gluster, 1).unwrap();
}

#[test]
#[ignore = "needs root and Debian's glusterfs-server"]
fn what_mortar_wrote_on_two_sets_is_read_by_glusterfs() {
    there_and_back(Side::Mortar, Side::Gluster, 2).unwrap();
}

#[test]
#[ignore = "needs root and Debian's glusterfs-server"]
fn what_glusterfs_wrote_in_three_copies_is_served_by_mortar() {
    there_and_back(Side::Gluster, Side::Mortar, 1).unwrap();
}

#[test]
#[ignore = "needs root and Debian's glusterfs-server"]
fn what_glusterfs_wrote_on_two_sets_is_served_by_mortar() {
    there_and_back(Side::Gluster, Side::Mortar, 2).unwrap();
}

/// GlusterFS must agree with itself in these stories, or they prove nothing about anybody else.
#[test]
#[ignore = "needs root and Debian's glusterfs-server"]
fn what_glusterfs_wrote_is_read_by_another_glusterfs() {
    there_and_back(Side::Gluster, Side::Gluster, 2).unwrap();
}

/// Who serves the bricks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Mortar,
    Gluster,
}

/// `first` makes a tree, `second` sees it and changes it, `first` sees that and changes it again, `second` sees that too.
fn there_and_back(first: Side, second: Side, sets: usize) -> Result<()> {
    let _alone = ALONE.lock();
    let scratch = tempfile::Builder::new().prefix("mortar-oracle-").tempdir()?;
    let scratch = scratch.path().canonicalize()?;
    let stage = Stage::new(&scratch, sets)?;
    let mut known = stage.with(first, "first", |root| {
        make(root)?;
        set_directory_times(root)?;
        tree(root)
    })?;
    let mut complaints = Vec::new();
    for (turn, side, name) in [(1, second, "second"), (2, first, "first"), (3, second, "second")] {
        let (found, changed) = stage.with(side, name, move |root| {
            let found = tree(root)?;
            change(root, turn)?;
            set_directory_times(root)?;
            Ok((found, tree(root)?))
        })?;
        // All turns are told about: what is wrong in one may explain another.
        for (outcome, what) in [
            (agree(&known, &found), "does not see what was left"),
            (stage.nothing_to_heal(), "leaves something to be healed"),
            (stage.copies_agree(), "leaves copies that differ"),
        ] {
            complaints.extend(outcome.err().map(|error| format!("turn {turn}: {side:?} {what}: {error:#}")));
        }
        known = changed;
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// The bricks, and the namespace in which the two sides live in turn.
#[derive(Debug)]
struct Stage {
    namespace: Namespace,
    disk: RamDisk,
    scratch: PathBuf,
    id: Uuid,
    sets: usize,
}

impl Stage {
    fn new(scratch: &Path, sets: usize) -> Result<Self> {
        let disk = RamDisk::new(&scratch.join("disk"), DISK_BYTES)?;
        let namespace = Namespace::new("oracle")?;
        Ok(Self { namespace, disk, scratch: scratch.to_owned(), id: Uuid::new_v4(), sets })
    }

    fn bricks(&self) -> Vec<PathBuf> {
        (0..3 * self.sets).map(|index| self.disk.path().join(format!("brick-{index}"))).collect()
    }

    /// Let one side serve the bricks, do something in its mount, and take it down again.
    fn with<T: Send + 'static>(
        &self,
        side: Side,
        name: &str,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let home = self.scratch.join(name);
        fs::create_dir_all(&home)?;
        let outcome = match side {
            Side::Mortar => self.with_mortar(&home, work),
            Side::Gluster => self.with_gluster(&home, work),
        };
        self.namespace.end_processes();
        outcome.with_context(|| format!("{side:?} ({name})"))
    }

    fn with_mortar<T: Send + 'static>(
        &self,
        home: &Path,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let program = mortar::program()?.to_string_lossy().into_owned();
        let file = home.join("volume.toml");
        let is_new = !self.bricks().iter().any(|brick| brick.join(".glusterfs").exists());
        if !file.exists() {
            let bricks = self.bricks();
            let bricks = bricks
                .iter()
                .enumerate()
                .map(|(index, path)| format!("127.0.0.1:{}:{}", 24100 + index, path.display()));
            let mut create = self.namespace.command(&program);
            create.args(["volume", "create", VOLUME, "--replica", "3", "--id", &self.id.to_string()]).args(bricks);
            run(create.arg("--output").arg(&file), SETUP_LIMIT)?;
        }
        if is_new {
            // What `mortar up` itself leaves when it was stopped before the bricks were made: it makes them now.
            fs::create_dir_all(home.join("run"))?;
            fs::write(home.join("run/unfinished"), "")?;
        }
        let mount = Mount::expected_at(&home.join("mnt"))?;
        let mut up = self.namespace.command(&program);
        let outcome = run(up.arg("up").arg(home).arg("--mount").arg(mount.path()).arg("--detach"), SETUP_LIMIT)
            .and_then(|_| mount.wait())
            .and_then(|()| within(mount.path(), work));
        clean_up(self.namespace.command(&program).arg("down").arg(home));
        outcome
    }

    fn with_gluster<T: Send + 'static>(
        &self,
        home: &Path,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if !home.join("work/vols").join(VOLUME).exists() {
            self.introduce(home)?;
        }
        let daemon = Glusterd::start(&self.namespace, home)?;
        daemon.cli(&self.namespace, &["volume", "start", VOLUME])?;
        let mount = daemon.mount(&self.namespace, VOLUME, &home.join("mnt"))?;
        let outcome = within(mount.path(), work);
        drop(mount);
        daemon.cli(&self.namespace, &["volume", "stop", VOLUME])?;
        outcome
    }

    /// Make a management daemon know bricks that exist, under the identity that they carry.
    ///
    /// It only makes volumes of its own and marks their bricks with a new identity, so that has to be taken back, in the
    /// bricks and in its own files.
    fn introduce(&self, home: &Path) -> Result<()> {
        let bricks = self.bricks();
        for brick in &bricks {
            fs::create_dir_all(brick)?;
        }
        let daemon = Glusterd::start(&self.namespace, home)?;
        daemon.create(&self.namespace, VOLUME, &bricks)?;
        drop(daemon);
        self.namespace.end_processes();
        let volume = home.join("work/vols").join(VOLUME);
        let info = fs::read_to_string(volume.join("info"))?;
        let made = info.lines().find_map(|line| line.strip_prefix("volume-id=")).context("no volume-id in info")?;
        for entry in fs::read_dir(&volume)? {
            let path = entry?.path();
            if path.is_file() {
                let text = fs::read_to_string(&path)?;
                fs::write(&path, text.replace(made, &self.id.to_string()))?;
            }
        }
        for brick in &bricks {
            rustix::fs::lsetxattr(brick, "trusted.glusterfs.volume-id", self.id.as_bytes(), XattrFlags::empty())?;
        }
        Ok(())
    }

    /// No brick has an entry in its index of what must be healed. (`gluster volume heal info` would be GlusterFS's own word,
    /// but its program only finds a management daemon at the usual place.)
    fn nothing_to_heal(&self) -> Result<()> {
        let mut entries = Vec::new();
        for brick in self.bricks() {
            for index in ["xattrop", "dirty"] {
                for entry in fs::read_dir(brick.join(".glusterfs/indices").join(index))? {
                    let name = entry?.file_name().to_string_lossy().into_owned();
                    // The file that all entries are links of.
                    if !name.starts_with(&format!("{index}-")) {
                        entries.push(format!("{}: {index}/{name} ({})", brick.display(), pending(&brick, &name)));
                    }
                }
            }
        }
        ensure!(
            entries.is_empty(),
            "{} entries in the indices:\n  {}",
            entries.len(),
            entries[..entries.len().min(8)].join("\n  ")
        );
        Ok(())
    }

    /// Within a set, the bricks hold the same. Their own times are theirs, and they are not compared.
    fn copies_agree(&self) -> Result<()> {
        for set in self.bricks().chunks(3) {
            let first = brick_tree(&set[0])?;
            for other in &set[1..] {
                agree(&first, &brick_tree(other)?).with_context(|| format!("{} differs", other.display()))?;
            }
        }
        Ok(())
    }
}

/// Work in a mount, and give it up when it takes too long: a thread stuck in a dead mount goes when the mount does.
fn within<T: Send + 'static>(root: &Path, work: impl FnOnce(&Path) -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    let root = root.to_owned();
    std::thread::spawn(move || sender.send(work(&root)));
    receiver.recv_timeout(MOUNT_LIMIT).map_err(|_| anyhow!("the mount did not answer within {MOUNT_LIMIT:?}"))?
}

/// Everything below a directory, one line each.
type Tree = BTreeMap<PathBuf, String>;

fn agree(wanted: &Tree, found: &Tree) -> Result<()> {
    let paths = wanted.keys().chain(found.keys().filter(|path| !wanted.contains_key(*path)));
    let differences: Vec<String> = paths
        .filter(|path| wanted.get(*path) != found.get(*path))
        .map(|path| format!("{path:?}: want {:?}, got {:?}", wanted.get(path), found.get(path)))
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    let shown = differences.iter().take(8).cloned().collect::<Vec<_>>().join("\n  ");
    bail!("{} of {} differ:\n  {shown}", differences.len(), wanted.len())
}

/// What a program sees below a mount.
fn tree(root: &Path) -> Result<Tree> {
    walk(root, &|path, meta| {
        let times = format!("{}.{:09}", meta.mtime(), meta.mtime_nsec());
        // A directory's links count its subdirectories on some file systems and nothing on others.
        let links = if meta.is_dir() { 0 } else { meta.nlink() };
        Ok(format!("{} mtime {times} links {links} {}", common(path, meta)?, xattrs(path, "user.")?))
    })
}

/// What is on a brick, without its own book-keeping and without times.
fn brick_tree(brick: &Path) -> Result<Tree> {
    walk(brick, &|path, meta| Ok(format!("{} {}", common(path, meta)?, xattrs(path, "")?)))
}

fn walk(root: &Path, describe: &dyn Fn(&Path, &fs::Metadata) -> Result<String>) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut to_do = vec![PathBuf::new()];
    while let Some(relative) = to_do.pop() {
        let path = root.join(&relative);
        let meta = fs::symlink_metadata(&path).with_context(|| format!("stat of {relative:?}"))?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| format!("listing of {relative:?}"))? {
                let name = entry?.file_name();
                let is_ours = relative.as_os_str().is_empty()
                    && (name == ".glusterfs" || name.to_string_lossy().starts_with(".glusterfs-"));
                if !is_ours {
                    to_do.push(relative.join(name));
                }
            }
        }
        let line = describe(&path, &meta).with_context(|| format!("{relative:?}"))?;
        tree.insert(relative, line);
    }
    Ok(tree)
}

fn common(path: &Path, meta: &fs::Metadata) -> Result<String> {
    let content = if meta.is_file() {
        let bytes = fs::read(path)?;
        format!("size {} {:016x}", meta.len(), xxhash_rust::xxh64::xxh64(&bytes, 0))
    } else if meta.is_symlink() {
        format!("to {:?}", fs::read_link(path)?)
    } else {
        format!("device {}", meta.rdev())
    };
    Ok(format!("{:o} {}:{} {content}", meta.mode(), meta.uid(), meta.gid()))
}

/// The pending counters of the inode with this gfid.
fn pending(brick: &Path, gfid: &str) -> String {
    let handle = brick.join(format!(".glusterfs/{}/{}/{gfid}", &gfid[..2], &gfid[2..4]));
    // A directory's handle is a symbolic link to it.
    let inode = fs::canonicalize(&handle).unwrap_or(handle);
    xattrs(&inode, "trusted.afr.").unwrap_or_else(|error| format!("{}: {error}", inode.display()))
}

/// The xattrs whose names begin so. A `trusted.afr` that is all zero says the same as none.
fn xattrs(path: &Path, prefix: &str) -> Result<String> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names)?;
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        if !name.starts_with(prefix) {
            continue;
        }
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, &*name, &mut value)?;
        let value = &value[..length];
        if !(name.starts_with("trusted.afr.") && value.iter().all(|byte| *byte == 0)) {
            let shown: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            found.push(format!("{name}={shown}"));
        }
    }
    found.sort();
    Ok(found.join(" "))
}

/// Make a tree with everything a file system can hold.
fn make(root: &Path) -> Result<()> {
    let many = root.join("many");
    fs::create_dir(&many)?;
    for number in 0..200_usize {
        fs::write(many.join(format!("file{number}")), content(number))?;
    }
    for number in (0..200).step_by(5) {
        fs::rename(many.join(format!("file{number}")), many.join(format!("moved from {number}")))?;
    }
    make_names(&root.join("names"))?;
    make_kinds(&root.join("kinds"))?;
    make_attributes(&root.join("attributes"))?;
    make_directories(root)
}

/// Names that need care: long ones, bytes that are no text, and those that the placement hash treats in its own way.
fn make_names(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    let mut names: Vec<Vec<u8>> = vec![vec![b'n'; 255], b"\xff\xfe\x01 not utf-8".to_vec(), b"line\nbreak".to_vec()];
    names.extend(
        [&b".munged.x7Hq2Z"[..], b"...", b" ", b"-rf", "gr\u{fc}n".as_bytes(), b"a%b\\c\"d"].map(<[u8]>::to_vec),
    );
    for (number, name) in names.into_iter().enumerate() {
        fs::write(directory.join(OsString::from_vec(name)), content(number))?;
    }
    Ok(())
}

/// One of each kind, and names that share an inode.
fn make_kinds(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    fs::write(directory.join("file"), b"twice here")?;
    fs::hard_link(directory.join("file"), directory.join("second name"))?;
    fs::create_dir(directory.join("below"))?;
    fs::hard_link(directory.join("file"), directory.join("below/third name"))?;
    symlink("file", directory.join("link"))?;
    symlink("a/".repeat(500), directory.join("long link to nowhere"))?;
    fs::hard_link(directory.join("link"), directory.join("second name of the link"))?;
    let mode = Mode::from_raw_mode(0o640);
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("disk", FileType::BlockDevice, rustix::fs::makedev(7, 200)),
    ] {
        rustix::fs::mknodat(CWD, directory.join(name), kind, mode, device).with_context(|| name.to_owned())?;
    }
    let sparse = File::create(directory.join("sparse"))?;
    sparse.write_all_at(b"end", 3 << 20)?;
    let mut large = File::create(directory.join("large"))?;
    for number in 0..1000 {
        large.write_all(&content(number * 37))?;
    }
    large.set_len(2_000_001)?;
    Ok(())
}

/// Modes, owners, times and xattrs that a copy may lose.
fn make_attributes(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    for mode in [0o4755, 0o2755, 0o000, 0o1644, 0o777] {
        let path = directory.join(format!("mode {mode:o}"));
        fs::write(&path, b"mode")?;
        std::os::unix::fs::chown(&path, Some(1000 + mode % 7), Some(1001))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    for seconds in [-86_400_i64, 0, 1, 2_208_988_800, 4_000_000_000] {
        let path = directory.join(format!("time {seconds}"));
        fs::write(&path, b"time")?;
        set_mtime(&path, seconds)?;
    }
    let path = directory.join("xattrs");
    fs::write(&path, b"xattrs")?;
    rustix::fs::lsetxattr(&path, "user.empty", b"", XattrFlags::empty())?;
    rustix::fs::lsetxattr(&path, "user.bytes", &content(40), XattrFlags::empty())?;
    rustix::fs::lsetxattr(directory, "user.of a directory", b"\0\x01", XattrFlags::empty())?;
    Ok(())
}

/// Deep, empty, moved, removed and sticky directories.
fn make_directories(root: &Path) -> Result<()> {
    let deep: PathBuf = (0..20).map(|level| format!("level{level}")).collect();
    fs::create_dir_all(root.join("deep").join(&deep))?;
    fs::write(root.join("deep").join(&deep).join("bottom"), b"bottom")?;
    fs::create_dir_all(root.join("before/inside"))?;
    fs::write(root.join("before/inside/file"), b"moved with its directory")?;
    fs::rename(root.join("before"), root.join("deep/after"))?;
    fs::create_dir(root.join("empty"))?;
    fs::create_dir(root.join("again"))?;
    fs::remove_dir(root.join("again"))?;
    fs::create_dir(root.join("again"))?;
    fs::create_dir(root.join("sticky"))?;
    fs::set_permissions(root.join("sticky"), fs::Permissions::from_mode(0o1777))?;
    Ok(std::os::unix::fs::chown(root.join("sticky"), Some(1000), Some(1000))?)
}

/// Go on working in the tree. Each turn finds what those before it have left, and leaves work for the next.
fn change(root: &Path, turn: usize) -> Result<()> {
    let many = root.join("many");
    let mut files: Vec<PathBuf> = fs::read_dir(&many)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    for (number, file) in files.iter().enumerate() {
        change_file(file, number, turn).with_context(|| format!("turn {turn}: {file:?}"))?;
    }
    let made = root.join(format!("made in turn {turn}"));
    fs::create_dir(&made)?;
    for number in 0..50 {
        fs::write(made.join(format!("new{number}")), content(number * turn))?;
    }
    fs::rename(root.join("kinds/second name"), made.join("came over"))?;
    fs::hard_link(made.join("came over"), root.join("kinds/second name"))?;
    fs::remove_dir(root.join("again"))?;
    fs::create_dir(root.join("again"))?;
    let (old, new) = (
        root.join(format!("deep/after{}", "!".repeat(turn - 1))),
        root.join(format!("deep/after{}", "!".repeat(turn))),
    );
    fs::rename(old, &new)?;
    fs::write(new.join(format!("inside/turn{turn}")), b"the directory is still one on all sets")?;
    rustix::fs::lsetxattr(root.join("attributes/xattrs"), format!("user.turn{turn}"), b"here", XattrFlags::empty())?;
    Ok(File::options().append(true).open(root.join("kinds/link"))?.write_all(b", and once more")?)
}

fn change_file(file: &Path, number: usize, turn: usize) -> Result<()> {
    let beside = |word: &str| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.with_file_name(format!("{word} {turn} {name}"))
    };
    match number % 11 {
        0 => File::options().append(true).open(file)?.write_all(&content(turn))?,
        1 => fs::write(file, content(number + turn))?,
        2 => fs::set_permissions(file, fs::Permissions::from_mode(0o600 + turn as u32))?,
        3 => fs::rename(file, beside("renamed"))?,
        4 => fs::remove_file(file)?,
        5 => fs::hard_link(file, beside("linked"))?,
        6 => std::os::unix::fs::chown(file, Some(2000 + turn as u32), None)?,
        7 => set_mtime(file, 1_600_000_000 + turn as i64)?,
        8 => File::options().write(true).open(file)?.set_len(turn as u64)?,
        9 => fs::write(beside("new beside"), content(number))?,
        _ => {}
    }
    Ok(())
}

/// Give all directories a time as tar does. The time that entries leave in a directory may be one set's or another's, and GlusterFS
/// does not agree with itself on it after a new mount.
fn set_directory_times(root: &Path) -> Result<()> {
    let mut to_do = vec![root.to_owned()];
    while let Some(directory) = to_do.pop() {
        set_mtime(&directory, 1_400_000_000 + to_do.len() as i64)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                to_do.push(entry.path());
            }
        }
    }
    Ok(())
}

fn set_mtime(path: &Path, seconds: i64) -> Result<()> {
    let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Bytes that differ from file to file, in length too.
fn content(number: usize) -> Vec<u8> {
    (0..number * number % 9001).map(|index| (index * 31 + number) as u8).collect()
}
