//! Making a brick, and the checks before one is served.
//!
//! The volume id on the root says that a directory is a brick, so it is written last when one is made: what a crash
//! left half made is no brick, and is finished by making it again.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, XattrFlags};
use rustix::io::Errno;
use uuid::Uuid;

use super::at::At;
use super::dirs::{Dirs, GFID_KEY, RootHandle, open_dir, open_root};
use super::{PosixOptions, clean};
use crate::types::Gfid;

const VOLUME_ID_KEY: &std::ffi::CStr = c"trusted.glusterfs.volume-id";
const PROBE_KEY: &std::ffi::CStr = c"trusted.glusterfs.test";
const PROBE_VALUE: &[u8] = b"working\0";

/// As many as the kernel lets a process have by default at most.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// How long a start waits for the process before it: one that was killed lets go when the kernel has closed its files.
const SERVED_WAIT: Duration = Duration::from_secs(2);

/// How often it looks.
const SERVED_POLL: Duration = Duration::from_millis(20);

/// Why a directory is not served, or not made, as a brick. Every text is one line that says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrickError {
    path: PathBuf,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    NotADirectory,
    NoXattrs,
    NotABrick,
    DamagedVolumeId(usize),
    OtherVolume { found: Uuid, wanted: Uuid },
    HalfMade,
    WrongRootGfid,
    WrongRootHandle,
    Served,
    AlreadyABrick,
    InsideABrick(PathBuf),
    NotEmpty(String),
    System { doing: &'static str, errno: Errno },
}

impl fmt::Display for BrickError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "brick {}: ", self.path.display())?;
        match &self.why {
            Why::NotADirectory => f.write_str("not a directory"),
            Why::NoXattrs => {
                f.write_str("the file system keeps no trusted extended attributes (use XFS or ext4, as root)")
            }
            Why::NotABrick => f.write_str("not a brick: it has no volume id (is its disk mounted?)"),
            Why::DamagedVolumeId(length) => write!(f, "the volume id is damaged: {length} bytes instead of 16"),
            Why::OtherVolume { found, wanted } => write!(f, "belongs to volume {found}, not to {wanted}"),
            Why::HalfMade => f.write_str("half made or damaged: .glusterfs is missing"),
            Why::WrongRootGfid => {
                f.write_str("its gfid is not that of a volume's root: a directory from inside a volume")
            }
            Why::WrongRootHandle => f.write_str("the root's handle in .glusterfs leads to another directory"),
            Why::Served => f.write_str("another process serves it: stop that one first"),
            Why::AlreadyABrick => f.write_str("is a brick already"),
            Why::InsideABrick(parent) => write!(f, "is inside the brick {}", parent.display()),
            Why::NotEmpty(name) => write!(f, "is not empty: it has {name}"),
            Why::System { doing, errno } => write!(f, "cannot {doing}: {errno}"),
        }
    }
}

impl std::error::Error for BrickError {}

impl BrickError {
    /// The directory was to be made a brick, and is one: of which volume, opening it will say.
    pub fn is_a_brick_already(&self) -> bool {
        self.why == Why::AlreadyABrick
    }
}

/// Give errors of system calls the path and what was being done.
fn doing<'p>(path: &'p Path, doing: &'static str) -> impl Fn(Errno) -> BrickError + 'p {
    move |errno| BrickError { path: path.into(), why: Why::System { doing, errno } }
}

fn refuse(path: &Path, why: Why) -> BrickError {
    BrickError { path: path.into(), why }
}

/// What a daemon does once before it serves bricks: modes arrive as the client wants them, so the process masks none;
/// and every brick holds some hundred descriptors besides the files that clients open.
pub fn prepare_process() {
    rustix::process::umask(Mode::empty());
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    let (soft, hard) = (limit.current, limit.maximum);
    for wanted in [OPEN_FILES_MAX, 65_536] {
        limit.maximum = Some(hard.map_or(OPEN_FILES_MAX, |hard| hard.max(wanted)));
        limit.current = Some(wanted);
        if soft.is_none_or(|soft| soft >= wanted) || rustix::process::setrlimit(resource, limit).is_ok() {
            return;
        }
    }
    tracing::warn!(?soft, ?hard, "limit of open files not raised");
}

/// Make a directory (which may not exist yet) a brick of a volume.
///
/// Refuses a brick, a directory inside one, and a directory with foreign content.
pub fn create_brick(path: &Path, volume_id: Uuid) -> Result<(), BrickError> {
    // The process may have no umask any more, and this is the mode of the volume's root.
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| {
        let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        doing(path, "make the directory")(errno)
    })?;
    let path = &path.canonicalize().map_err(|_| refuse(path, Why::NotADirectory))?;
    let root = open_directory(path)?;
    probe_xattrs(path, &root)?;
    refuse_bricks(path)?;
    refuse_content(path, &root)?;
    make_tree(root.as_fd()).map_err(doing(path, "make .glusterfs"))?;
    let glusterfs = open_dir(root.as_fd(), c".glusterfs").and_then(super::stopped::leave);
    glusterfs.map_err(doing(path, "write to .glusterfs"))?;
    let set = At::from(&root).set(VOLUME_ID_KEY, volume_id.as_bytes(), XattrFlags::CREATE);
    set.and_then(|()| rustix::fs::fsync(&root)).map_err(doing(path, "write the volume id"))
}

fn open_directory(path: &Path) -> Result<OwnedFd, BrickError> {
    open_root(path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => refuse(path, Why::NotADirectory),
        errno => doing(path, "open it")(errno),
    })
}

/// Set and remove an xattr, as the management daemon of GlusterFS does.
fn probe_xattrs(path: &Path, root: &OwnedFd) -> Result<(), BrickError> {
    let at = At::from(root);
    let probe = at.set(PROBE_KEY, PROBE_VALUE, XattrFlags::empty()).and_then(|()| at.remove(PROBE_KEY));
    match probe {
        Err(Errno::OPNOTSUPP | Errno::PERM) => Err(refuse(path, Why::NoXattrs)),
        answer => answer.map_err(doing(path, "set an extended attribute")),
    }
}

/// Neither the directory nor any above it may be (in) a brick.
fn refuse_bricks(path: &Path) -> Result<(), BrickError> {
    for above in path.ancestors() {
        let dir = open_directory(above)?;
        for key in [GFID_KEY, VOLUME_ID_KEY] {
            match At::from(&dir).get_into(key, &mut []) {
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(doing(above, "read its extended attributes")(errno)),
                Ok(_) if above == path => return Err(refuse(path, Why::AlreadyABrick)),
                Ok(_) => return Err(refuse(path, Why::InsideABrick(above.into()))),
            }
        }
    }
    Ok(())
}

/// Only what a file system has by itself, and what an earlier attempt left.
fn refuse_content(path: &Path, root: &OwnedFd) -> Result<(), BrickError> {
    let list = || rustix::fs::Dir::read_from(root)?.collect::<Result<Vec<_>, Errno>>();
    for entry in list().map_err(doing(path, "list it"))? {
        if !matches!(entry.file_name().to_bytes(), b"." | b".." | b".glusterfs" | b"lost+found") {
            return Err(refuse(path, Why::NotEmpty(entry.file_name().to_string_lossy().into_owned())));
        }
    }
    Ok(())
}

/// Everything that GlusterFS wants to find when it starts a brick, with the modes that it gives.
fn make_tree(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let glusterfs = make(root, c".glusterfs", 0o600)?;
    let glusterfs = glusterfs.as_fd();
    let indices = make(glusterfs, c"indices", 0o600)?;
    for name in [c"xattrop", c"dirty", c"entry-changes"] {
        make(indices.as_fd(), name, 0o600)?;
    }
    let changelogs = make(glusterfs, c"changelogs", 0o600)?;
    for name in [c"htime", c"csnap"] {
        make(changelogs.as_fd(), name, 0o600)?;
    }
    make(glusterfs, c"landfill", 0o755)?;
    make(glusterfs, c"unlink", 0o600)?;
    Ok(())
}

/// A directory of exactly this mode, whatever the process masks.
pub(crate) fn make(dir: BorrowedFd<'_>, name: &std::ffi::CStr, mode: u32) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let made = open_dir(dir, name)?;
    At::from(&made).chmod(mode)?;
    Ok(made)
}

/// Open the brick at `path` of the volume `volume_id`, after every check of a start.
pub(super) fn open(path: &Path, volume_id: Uuid, options: &PosixOptions) -> Result<Dirs, BrickError> {
    let root = open_directory(path)?;
    let at = At::from(&root);
    if at.get_into(c"user.x", &mut []) == Err(Errno::OPNOTSUPP) {
        return Err(refuse(path, Why::NoXattrs));
    }
    check_volume_id(path, at, volume_id)?;
    claim(path, &root)?;
    check_root_gfid(path, at)?;
    if at.get_into(super::acl::ACCESS, &mut []) == Err(Errno::OPNOTSUPP) {
        tracing::warn!(path = %path.display(), "the brick's file system keeps no ACLs");
    }
    match rustix::fs::statat(&root, c".glusterfs", AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() => {}
        Ok(_) | Err(Errno::NOENT) => return Err(refuse(path, Why::HalfMade)),
        Err(errno) => return Err(doing(path, "look at .glusterfs")(errno)),
    }
    let start = || {
        make_tree(root.as_fd())?;
        let dirs = Dirs::open(root, options.dirs_open_max)?;
        let handle = dirs.check_root_handle()?;
        Ok((dirs, handle))
    };
    match start().map_err(doing(path, "open .glusterfs"))? {
        (dirs, RootHandle::Right) => {
            clean::unlinked(&dirs).map_err(doing(path, "empty .glusterfs/unlink"))?;
            clean::staging(&dirs).map_err(doing(path, "empty .glusterfs/staging"))?;
            Ok(dirs)
        }
        (_, RootHandle::Wrong) => Err(refuse(path, Why::WrongRootHandle)),
    }
}

/// Two processes on one brick would each trust what they remember of it, so the descriptor of the root, which stays open
/// for the life of the brick, holds a lock. The kernel has no event for "free at last" that a deadline could bound.
fn claim(path: &Path, root: &OwnedFd) -> Result<(), BrickError> {
    let until = Instant::now() + SERVED_WAIT;
    loop {
        match rustix::fs::flock(root, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(SERVED_POLL),
            Err(Errno::WOULDBLOCK) => return Err(refuse(path, Why::Served)),
            Err(errno) => return Err(doing(path, "claim it for this process")(errno)),
        }
    }
}

fn check_volume_id(path: &Path, at: At<'_>, wanted: Uuid) -> Result<(), BrickError> {
    let found = match at.get(VOLUME_ID_KEY) {
        Ok(value) => value,
        Err(Errno::NODATA) => return Err(refuse(path, Why::NotABrick)),
        Err(errno) => return Err(doing(path, "read the volume id")(errno)),
    };
    match Uuid::from_slice(&found) {
        Ok(found) if found == wanted => Ok(()),
        Ok(found) => Err(refuse(path, Why::OtherVolume { found, wanted })),
        Err(_) => Err(refuse(path, Why::DamagedVolumeId(found.len()))),
    }
}

/// The root gets its gfid at the first start.
fn check_root_gfid(path: &Path, at: At<'_>) -> Result<(), BrickError> {
    match at.get(GFID_KEY) {
        Ok(value) if value[..] == Gfid::ROOT.as_bytes()[..] => Ok(()),
        Ok(_) => Err(refuse(path, Why::WrongRootGfid)),
        Err(Errno::NODATA) => {
            at.set(GFID_KEY, Gfid::ROOT.as_bytes(), XattrFlags::CREATE).map_err(doing(path, "give the root its gfid"))
        }
        Err(errno) => Err(doing(path, "read the root's gfid")(errno)),
    }
}
