//! What the bricks of a volume have, seen from beside it: copies are alike, and nothing is left over.
//!
//! A program may go on before all of what it did has reached the bricks, so each look waits for what is right, within a limit.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mortar_tests::bench::command::wait_for;
use mortar_tests::cluster::Cluster;
use mortar_xlators::types::Gfid;

/// How long what programs were told of early may take. More than a lease term (10 s): a dead client may have to be given up.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// What a brick has at each path below its root.
type Tree = BTreeMap<PathBuf, Entry>;

/// One name on a brick.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    is_dir: bool,
    gfid: Option<Gfid>,
    /// Everything that copies have in common.
    text: String,
    /// What is wrong with it even if all copies agree.
    wrong: Option<&'static str>,
}

/// Wait until the bricks have settled: copies are alike, no copy is blamed for anything, each directory is everywhere, each handle
/// has a name, and no file lives on without one.
pub(super) fn settle(cluster: &Cluster, copies: usize) {
    let mut last = None;
    let settled = wait_for("bricks that are alike", SETTLED_WITHIN, || {
        last = difference(cluster, copies).unwrap_or_else(|error| Some(format!("cannot read a brick: {error}")));
        last.is_none()
    });
    assert!(settled.is_ok(), "{}\n{}", last.unwrap_or_default(), cluster.log_tails());
}

/// The first thing that is not as it should be.
fn difference(cluster: &Cluster, copies: usize) -> io::Result<Option<String>> {
    let bricks: Vec<PathBuf> = (0..cluster.brick_count()).map(|index| cluster.brick(index)).collect();
    let mut trees = Vec::new();
    for brick in &bricks {
        if let Some(left) = left_over(brick)? {
            return Ok(Some(left));
        }
        let mut tree = Tree::new();
        read(brick, Path::new(""), &mut tree)?;
        trees.push(tree);
    }
    for (path, entry) in trees.iter().flatten() {
        if let Some(wrong) = entry.wrong {
            return Ok(Some(format!("{}: {wrong}: {entry:?}", path.display())));
        }
    }
    let copies = trees.chunks(copies).flat_map(|set| set[1..].iter().map(move |copy| (&set[0], copy)));
    let sets = trees[1..].iter().map(|other| (&trees[0], other));
    let unlike = copies.into_iter().find_map(|(one, other)| differ(one, other, |entry| Some(&entry.text)));
    // Directories with their gfids are all that sets have in common.
    let apart =
        sets.into_iter().find_map(|(one, other)| differ(one, other, |entry| entry.is_dir.then_some(&entry.gfid)));
    Ok(unlike.or(apart))
}

/// The first path where the part that matters is not the same.
fn differ<T: PartialEq>(one: &Tree, other: &Tree, part: fn(&Entry) -> Option<&T>) -> Option<String> {
    let mut paths = one.keys().chain(other.keys());
    let path = paths.find(|path| one.get(*path).and_then(part) != other.get(*path).and_then(part))?;
    Some(format!("{}: {:?}\nand {:?}", path.display(), one.get(path), other.get(path)))
}

/// Add what is below `at`.
fn read(brick: &Path, at: &Path, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(brick.join(at))? {
        let name = entry?.file_name();
        if at == Path::new("") && name == ".glusterfs" {
            continue;
        }
        let below = at.join(name);
        let path = brick.join(&below);
        let meta = path.symlink_metadata()?;
        tree.insert(below.clone(), describe(brick, &path, &meta)?);
        if meta.is_dir() {
            read(brick, &below, tree)?;
        }
    }
    Ok(())
}

fn describe(brick: &Path, path: &Path, meta: &Metadata) -> io::Result<Entry> {
    let mut xattrs = xattrs(path)?;
    // Counters of zero blame nobody.
    xattrs.retain(|name, value| !(name.starts_with("trusted.afr.") && value.iter().all(|byte| *byte == 0)));
    let gfid = xattrs.get("trusted.gfid").and_then(|bytes| Gfid::from_slice(bytes));
    // The handle of a directory is a symbolic link to it.
    let found = gfid.map(|gfid| handle(brick, gfid)).and_then(|handle| {
        let found = if meta.is_dir() { fs::metadata(handle) } else { handle.symlink_metadata() };
        found.ok()
    });
    let wrong = if found.is_none_or(|found| found.ino() != meta.ino()) {
        Some("it has no handle")
    } else {
        xattrs.keys().any(|name| name.starts_with("trusted.afr.")).then_some("it blames a copy")
    };
    let content = if meta.is_file() {
        format!("{} bytes {:016x}", meta.len(), xxhash_rust::xxh64::xxh64(&fs::read(path)?, 0))
    } else if meta.is_symlink() {
        format!("to {:?}", fs::read_link(path)?)
    } else {
        format!("device {}", meta.rdev())
    };
    let links = if meta.is_dir() { 0 } else { meta.nlink() };
    let shown: Vec<String> = xattrs.iter().map(|(name, value)| format!("{name}={}", hex(value))).collect();
    let (mode, owner) = (meta.mode(), (meta.uid(), meta.gid()));
    let text = format!("mode {mode:o} of {owner:?}, {content}, {links} links, {}", shown.join(" "));
    Ok(Entry { is_dir: meta.is_dir(), gfid, text, wrong })
}

fn hex(value: &[u8]) -> String {
    value.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first handle without a name, or file in the areas for what has none.
fn left_over(brick: &Path) -> io::Result<Option<String>> {
    let inside = brick.join(".glusterfs");
    for area in ["unlink", "staging"] {
        if let Some(entry) = fs::read_dir(inside.join(area))?.next() {
            return Ok(Some(format!("{} is left", entry?.path().display())));
        }
    }
    for byte in 0..=255_u8 {
        for second in fs::read_dir(inside.join(format!("{byte:02x}")))? {
            for handle in fs::read_dir(second?.path())? {
                let path = handle?.path();
                let meta = path.symlink_metadata()?;
                // A symbolic link with one link is the handle of a directory.
                let is_alone = if meta.is_symlink() && meta.nlink() == 1 {
                    fs::metadata(&path).is_err()
                } else {
                    meta.nlink() == 1
                };
                if is_alone {
                    return Ok(Some(format!("{} has no name", path.display())));
                }
            }
        }
    }
    Ok(None)
}

/// Where the brick has the handle of this gfid.
pub(super) fn handle(brick: &Path, gfid: Gfid) -> PathBuf {
    let text = gfid.to_string();
    brick.join(format!(".glusterfs/{}/{}/{text}", &text[..2], &text[2..4]))
}

/// All xattrs of a file on a brick.
pub(super) fn xattrs(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names)?;
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = BTreeMap::new();
    for name in names {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, &*name, &mut value)?;
        found.insert(name, value[..length].to_vec());
    }
    Ok(found)
}
