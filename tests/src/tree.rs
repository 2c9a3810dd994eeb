//! A volume seen through paths, for tests: each method is one fop, and the lookups that lead to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, Result};
use mortar_xlators::fop::{
    Birth, Create, Getattr, Getxattr, Link, Listxattr, Lookup, Mkdir, Mknod, Only, Open, Operation, Place, Read,
    Readdir, Readlink, Release, Removexattr, Rename, Replace, Rmdir, SetHow, Setattr, Setxattr, Symlink, Truncate,
    Unlink, Write,
};
use mortar_xlators::reply::{Changed, DirEntry, Found, Made, Removed, Renamed, Written};
use mortar_xlators::types::{
    AttrMask, ClientId, Fd, Gfid, Iatt, Kind, MAX_IO_BYTES, Name, OpenFlags, Time, Xattr, XattrName,
};
use mortar_xlators::xlator::Subvol;

/// A deadline that no test reaches unless something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

static NEXT_REQUEST: AtomicU64 = AtomicU64::new(1);
static NEXT_FD: AtomicU64 = AtomicU64::new(1);
static NEXT_SECOND: AtomicI64 = AtomicI64::new(1_800_000_000);

/// A volume seen through paths. Paths begin below `base`.
#[derive(Clone, Debug)]
pub struct Tree {
    subvol: Subvol,
    client: ClientId,
    caller: Caller,
    base: Arc<str>,
}

/// A later moment with each call, so that times tell what happened last.
pub fn now() -> Time {
    Time { sec: NEXT_SECOND.fetch_add(1, Ordering::Relaxed), nsec: 123_456_789 }
}

/// A gfid that nobody else has.
pub fn new_gfid() -> Gfid {
    Gfid::from_random(*uuid::Uuid::new_v4().as_bytes())
}

/// What a new inode gets: root's, with these permission bits.
pub fn birth(mode: u32) -> Box<Birth> {
    Box::new(Birth {
        gfid: new_gfid(),
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
        when: now(),
        times: None,
        xattrs: Vec::new(),
        pending: Vec::new(),
    })
}

/// A name that is one.
pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("the test gives a valid name")
}

fn xattr_name(text: &str) -> XattrName {
    XattrName::new(text.as_bytes().to_vec()).expect("the test gives a valid name")
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

impl Tree {
    /// The whole volume, as this client sees it.
    pub fn new(subvol: Subvol, client: ClientId) -> Self {
        Self { subvol, client, caller: Caller::root(), base: "".into() }
    }

    /// The part below a directory.
    pub fn below(&self, path: &str) -> Self {
        Self { base: format!("{}/{path}", self.base).into(), ..self.clone() }
    }

    /// The same as somebody else.
    pub fn acting_as(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// The layer below.
    pub fn subvol(&self) -> &Subvol {
        &self.subvol
    }

    /// A context for one request.
    pub fn ctx(&self) -> Ctx {
        let id = NEXT_REQUEST.fetch_add(1, Ordering::Relaxed);
        Ctx::new(id, self.client, self.caller.clone(), Instant::now() + PATIENCE)
    }

    /// Send one fop.
    pub async fn send<O: Operation>(&self, fop: O) -> Result<O::Reply> {
        self.subvol.send(&self.ctx(), fop).await
    }

    /// What the path leads to, if anything. Every part is looked up.
    pub async fn look(&self, path: &str) -> Result<Option<Box<Found>>> {
        let root = Getattr { gfid: Gfid::ROOT, fd: None, exact: AttrMask::all() };
        let mut found = Box::new(self.send(root).await?);
        for part in parts(&self.base).chain(parts(path)) {
            if found.iatt.kind != Kind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            let lookup = Lookup { parent: found.iatt.gfid, name: name(part) };
            match self.send(lookup).await?.found {
                Some(next) => found = next,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// The inode that the path leads to.
    pub async fn find(&self, path: &str) -> Result<Iatt> {
        self.look(path).await?.map(|found| found.iatt).ok_or(Errno::NOENT.into())
    }

    /// Its gfid.
    pub async fn gfid(&self, path: &str) -> Result<Gfid> {
        Ok(self.find(path).await?.gfid)
    }

    /// The directory that the path is in, and its last part.
    pub async fn split(&self, path: &str) -> Result<(Gfid, Name)> {
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.gfid(parent).await?, name(last)))
    }

    /// The attributes, exactly.
    pub async fn stat(&self, path: &str) -> Result<Iatt> {
        let gfid = self.gfid(path).await?;
        Ok(self.send(Getattr { gfid, fd: None, exact: AttrMask::all() }).await?.iatt)
    }

    /// Make a directory with mode 0755.
    pub async fn mkdir(&self, path: &str) -> Result<Made> {
        let (parent, name) = self.split(path).await?;
        let mkdir = Mkdir { parent, name, birth: birth(0o755), layout: None, mds: false, lease: false };
        self.send(mkdir).await
    }

    /// Make a file with mode 0644 and this content.
    pub async fn create(&self, path: &str, content: &str) -> Result<Made> {
        let (parent, name) = self.split(path).await?;
        let content = Bytes::copy_from_slice(content.as_bytes());
        self.send(Create { parent, name, birth: birth(0o644), content, open: None, lease: false }).await
    }

    /// Make a file and open it.
    pub async fn create_open(&self, path: &str) -> Result<Fd> {
        let (parent, name) = self.split(path).await?;
        let id = NEXT_FD.fetch_add(1, Ordering::Relaxed);
        let open = Some((id, OpenFlags::READ | OpenFlags::WRITE));
        let create = Create { parent, name, birth: birth(0o644), content: Bytes::new(), open, lease: false };
        Ok(Fd { id, gfid: self.send(create).await?.iatt.gfid })
    }

    /// Make a special file.
    pub async fn mknod(&self, path: &str, kind: Kind, rdev: u64) -> Result<Made> {
        let (parent, name) = self.split(path).await?;
        self.send(Mknod { parent, name, birth: birth(0o644), kind, rdev, linkto: None }).await
    }

    /// Make a symbolic link.
    pub async fn symlink(&self, target: &str, path: &str) -> Result<Made> {
        let (parent, name) = self.split(path).await?;
        let target = Bytes::copy_from_slice(target.as_bytes());
        self.send(Symlink { parent, name, birth: birth(0o777), target }).await
    }

    /// The text of a symbolic link.
    pub async fn readlink(&self, path: &str) -> Result<String> {
        let gfid = self.gfid(path).await?;
        let target = self.send(Readlink { gfid }).await?.target;
        Ok(String::from_utf8_lossy(&target).into_owned())
    }

    /// Give a file another name.
    pub async fn link(&self, old: &str, new: &str) -> Result<Made> {
        let gfid = self.gfid(old).await?;
        let (parent, name) = self.split(new).await?;
        self.send(Link { gfid, parent, name, when: now() }).await
    }

    /// Remove a name of a file.
    pub async fn unlink(&self, path: &str) -> Result<Removed> {
        let (parent, name) = self.split(path).await?;
        self.send(Unlink { parent, name, only: Only::Any, when: now() }).await
    }

    /// Remove a directory.
    pub async fn rmdir(&self, path: &str) -> Result<Removed> {
        let (parent, name) = self.split(path).await?;
        self.send(Rmdir { parent, name, when: now() }).await
    }

    /// Move a name, over another if there is one.
    pub async fn rename(&self, from: &str, to: &str) -> Result<Renamed> {
        self.rename_how(from, to, Replace::Yes).await
    }

    /// Move a name.
    pub async fn rename_how(&self, from: &str, to: &str, replace: Replace) -> Result<Renamed> {
        let (from_parent, from_name) = self.split(from).await?;
        let (to_parent, to_name) = self.split(to).await?;
        self.send(Rename { from_parent, from_name, to_parent, to_name, replace, when: now() }).await
    }

    /// Open a file.
    pub async fn open(&self, path: &str, flags: OpenFlags) -> Result<Fd> {
        let fd = Fd { id: NEXT_FD.fetch_add(1, Ordering::Relaxed), gfid: self.gfid(path).await? };
        self.send(Open { fd, flags, when: now() }).await?;
        Ok(fd)
    }

    /// Close it.
    pub async fn close(&self, fd: Fd) -> Result<()> {
        self.send(Release { fd }).await.map(drop)
    }

    /// Write at an offset of an open file.
    pub async fn write_fd(&self, fd: Fd, place: Place, data: impl Into<Bytes>) -> Result<Written> {
        let (gfid, data) = (fd.gfid, data.into());
        self.send(Write { gfid, fd: Some(fd), place, data, sync: false, kill_priv: false, when: now(), then: None })
            .await
    }

    /// Write at an offset.
    pub async fn write(&self, path: &str, offset: u64, data: &str) -> Result<Written> {
        let gfid = self.gfid(path).await?;
        let (place, data) = (Place::At(offset), Bytes::copy_from_slice(data.as_bytes()));
        self.send(Write { gfid, fd: None, place, data, sync: false, kill_priv: false, when: now(), then: None }).await
    }

    /// Read from an open file.
    pub async fn read_fd(&self, fd: Fd, offset: u64, size: u32) -> Result<Bytes> {
        Ok(self.send(Read { gfid: fd.gfid, fd: Some(fd), offset, size }).await?.data)
    }

    /// All of a small file.
    pub async fn read(&self, path: &str) -> Result<String> {
        let gfid = self.gfid(path).await?;
        let size = u32::try_from(MAX_IO_BYTES).expect("the largest payload fits");
        let data = self.send(Read { gfid, fd: None, offset: 0, size }).await?.data;
        Ok(String::from_utf8_lossy(&data).into_owned())
    }

    /// Change the size.
    pub async fn truncate(&self, path: &str, size: u64) -> Result<Changed> {
        let gfid = self.gfid(path).await?;
        self.send(Truncate { gfid, fd: None, size, kill_priv: false, when: now() }).await
    }

    /// Change the permission bits.
    pub async fn chmod(&self, path: &str, mode: u32) -> Result<Changed> {
        let setattr = Setattr { mode: Some(mode), ..no_change(self.gfid(path).await?) };
        self.send(setattr).await
    }

    /// Change the owner and the group.
    pub async fn chown(&self, path: &str, uid: u32, gid: u32) -> Result<Changed> {
        let setattr = Setattr { uid: Some(uid), gid: Some(gid), ..no_change(self.gfid(path).await?) };
        self.send(setattr).await
    }

    /// Set both times.
    pub async fn utimens(&self, path: &str, atime: Time, mtime: Time) -> Result<Changed> {
        let setattr = Setattr { atime: Some(atime), mtime: Some(mtime), ..no_change(self.gfid(path).await?) };
        self.send(setattr).await
    }

    /// Set an extended attribute.
    pub async fn setxattr(&self, path: &str, name: &str, value: &str, how: SetHow) -> Result<Changed> {
        let gfid = self.gfid(path).await?;
        let xattr = Xattr { name: xattr_name(name), value: Bytes::copy_from_slice(value.as_bytes()) };
        self.send(Setxattr { gfid, xattr, how, kill_sgid: false, when: now() }).await
    }

    /// Read an extended attribute.
    pub async fn getxattr(&self, path: &str, name: &str) -> Result<String> {
        let gfid = self.gfid(path).await?;
        let value = self.send(Getxattr { gfid, name: xattr_name(name) }).await?.value;
        Ok(String::from_utf8_lossy(&value).into_owned())
    }

    /// Remove an extended attribute.
    pub async fn removexattr(&self, path: &str, name: &str) -> Result<Changed> {
        let gfid = self.gfid(path).await?;
        self.send(Removexattr { gfid, name: xattr_name(name), when: now() }).await
    }

    /// The names of extended attributes, in order.
    pub async fn listxattr(&self, path: &str) -> Result<Vec<String>> {
        let gfid = self.gfid(path).await?;
        let names = self.send(Listxattr { gfid }).await?.names;
        let mut names: Vec<_> =
            names.iter().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// One page of a listing.
    pub async fn page(&self, readdir: Readdir) -> Result<(Vec<DirEntry>, bool)> {
        let page = self.send(readdir).await?;
        Ok((page.entries, page.end))
    }

    /// A whole listing in pages of about `bytes_max`, as it came.
    pub async fn entries(&self, path: &str, bytes_max: u32, attrs: bool) -> Result<Vec<DirEntry>> {
        let gfid = self.gfid(path).await?;
        let fd = Fd { id: NEXT_FD.fetch_add(1, Ordering::Relaxed), gfid };
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let (page, end) = self.page(Readdir { gfid, fd: Some(fd), after, bytes_max, attrs }).await?;
            let last = page.last().map(|entry| entry.cookie);
            all.extend(page);
            match last {
                Some(last) if !end => after = last,
                _ => break,
            }
        }
        self.close(fd).await?;
        Ok(all)
    }

    /// The names in a directory, in order.
    pub async fn ls(&self, path: &str) -> Result<Vec<String>> {
        let entries = self.entries(path, 32 << 10, false).await?;
        let text = |entry: &DirEntry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
        let mut names: Vec<_> = entries.iter().map(text).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// A `Setattr` that changes nothing yet.
pub fn no_change(gfid: Gfid) -> Setattr {
    Setattr {
        gfid,
        fd: None,
        mode: None,
        uid: None,
        gid: None,
        atime: None,
        mtime: None,
        kill_priv: false,
        when: now(),
    }
}
