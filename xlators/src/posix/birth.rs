//! Create, mknod, mkdir and symlink: an inode is made complete first, and gets its name last.
//!
//! A regular file is made without any name (`O_TMPFILE`, in its directory, so that the kernel applies the default ACL),
//! everything else below `.glusterfs/staging`. Content, owner, mode, times and xattrs are set there; then the handle is
//! made, and the name in one last step that fails if the name is taken. So after a crash at any point a name does not
//! exist, or leads to an inode that is complete and has its handle.
//!
//! GlusterFS makes the name before the handle, since it cannot hide the inode otherwise and a handle without a name
//! would stay for ever. What a crash leaves here is found again: an entry in staging is removed with its handle when
//! the brick starts. The handle of a file that never got its name is a regular file with a single link, which nothing
//! else is. It goes when its gfid is used next, as by healing, which knows the file from another copy; or when the
//! brick looks for such handles after it started from a journal that was not empty (`nameless`).
//! A symbolic link alone in a handle would pass for a directory's; therefore it is made in staging, where it has a
//! second link until it has its name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::acl;
use super::at::{At, CName};
use super::data::write_all;
use super::dirs::{Dir, GFID_KEY, Heritage, LAYOUT_KEY, open_dir};
use super::entry::{PARKING_PREFIX, may_make};
use super::files::OpenFile;
use super::gfid2path::Gfid2Path;
use super::handle::{HandleName, Target};
use super::mdata::{self, Known, Mdata};
use super::store::{LINK_FILE_MODE, Store};
use super::xattr::{self, Backend};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Birth, Create, Mkdir, Mknod, Symlink};
use crate::reply::Made;
use crate::types::{Cover, Gfid, Kind, Lacks, MAX_IO_BYTES, Name, SYMLINK_BYTES_MAX};

/// An inode that is being made.
enum Nascent<'s> {
    /// A regular file without any name.
    Unnamed(OwnedFd),
    /// A regular file or directory in staging, open.
    Staged(OwnedFd),
    /// Anything else in staging.
    Closed(BorrowedFd<'s>, HandleName),
}

impl Nascent<'_> {
    fn at(&self) -> At<'_> {
        match self {
            Nascent::Unnamed(fd) | Nascent::Staged(fd) => At::from(fd),
            Nascent::Closed(staging, handle) => At::Name(*staging, handle.text()),
        }
    }

    fn write(&self, content: &[u8]) -> Result<(), Errno> {
        let (Nascent::Unnamed(fd) | Nascent::Staged(fd)) = self else { return Err(Errno::INVAL) };
        let written = write_all(fd.as_fd(), content, 0, ReadWriteFlags::empty())?;
        // A disk that fills up half way makes no file.
        if written == content.len() { Ok(()) } else { Err(Errno::NOSPC) }
    }

    fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Nascent::Unnamed(fd) | Nascent::Staged(fd) => Some(fd),
            Nascent::Closed(..) => None,
        }
    }
}

/// Mode and owner of an inode in the making, after what its directory has to say.
struct Looks {
    mode: u32,
    uid: u32,
    gid: u32,
    /// Where the kernel does not apply it itself.
    access_acl: Option<Vec<u8>>,
}

impl Looks {
    fn new(birth: &Birth, kind: Kind, heritage: &Heritage) -> Self {
        let asked = birth.mode & 0o7777;
        let (mode, access_acl) = match &heritage.acl {
            Some(acl) => acl::inherit(acl, asked, kind),
            None => (asked & !birth.umask, None),
        };
        let setgid = if heritage.gid.is_some() && kind == Kind::Dir { libc::S_ISGID } else { 0 };
        Self { mode: mode | setgid, uid: birth.uid, gid: heritage.gid.unwrap_or(birth.gid), access_acl }
    }
}

/// What is made: the entry, and what its inode is born with.
struct Entry<'a> {
    dir: &'a Dir,
    name: &'a Name,
    birth: &'a Birth,
    kind: Kind,
    /// What the directory gives it.
    heritage: &'a Heritage,
}

impl Entry<'_> {
    /// Xattrs that it is born without, where that needs no look.
    fn lacks(&self) -> Option<Lacks> {
        let bare = self.heritage.acl.is_none() && self.birth.xattrs.is_empty();
        bare.then(Lacks::all)
    }
}

impl Store {
    /// Make a regular file.
    pub(super) fn create(&self, ctx: &Ctx, fop: &Create) -> Result<Made> {
        if fop.content.len() > MAX_IO_BYTES {
            return Err(Errno::INVAL.into());
        }
        let dir = self.may_make(ctx, fop.parent, &fop.name, &fop.birth, fop.content.len())?;
        let heritage = dir.heritage()?;
        let entry = Entry { dir: &dir, name: &fop.name, birth: &fop.birth, kind: Kind::File, heritage: &heritage };
        let looks = Looks::new(&fop.birth, Kind::File, &heritage);
        let locks = (self.names.lock(fop.parent), self.inodes.lock(fop.birth.gfid));
        let nascent = self.new_file(&entry, &looks)?;
        let made = self.finish(&entry, &nascent, || {
            if !fop.content.is_empty() && !self.options.arbiter {
                nascent.write(&fop.content)?;
            }
            self.dress(&entry, &nascent, &looks)
        })?;
        if let (Some((id, _)), Some(fd)) = (fop.open, nascent.into_fd()) {
            let replaced = self.files.insert(ctx.client, id, OpenFile { gfid: fop.birth.gfid, fd });
            drop(locks);
            match replaced {
                Ok(replaced) => self.close(replaced),
                // The file is there, and is served by its gfid.
                Err(errno) => tracing::warn!(gfid = %fop.birth.gfid, %errno, "made, but not kept open"),
            }
        }
        Ok(made)
    }

    /// Make a special file or a link file.
    pub(super) fn mknod(&self, ctx: &Ctx, fop: &Mknod) -> Result<Made> {
        let file_type = match fop.kind {
            Kind::File => FileType::RegularFile,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::Char => FileType::CharacterDevice,
            Kind::Block => FileType::BlockDevice,
            Kind::Dir | Kind::Symlink => return Err(Errno::INVAL.into()),
        };
        let dir = self.may_make(ctx, fop.parent, &fop.name, &fop.birth, 0)?;
        let heritage = dir.heritage()?;
        let entry = Entry { dir: &dir, name: &fop.name, birth: &fop.birth, kind: fop.kind, heritage: &heritage };
        let mut looks = Looks::new(&fop.birth, fop.kind, &heritage);
        if fop.linkto.is_some() {
            // Its mode is what makes it a link file: no ACL may change it.
            looks = Looks { mode: LINK_FILE_MODE, access_acl: None, ..looks };
        }
        let handle = HandleName::new(fop.birth.gfid);
        let _locks = (self.names.lock(fop.parent), self.inodes.lock(fop.birth.gfid));
        let mode = Mode::from_raw_mode(looks.mode);
        self.stage(fop.birth.gfid, || {
            rustix::fs::mknodat(&self.dirs.staging, handle.text(), file_type, mode, fop.rdev)
        })?;
        let nascent = Nascent::Closed(self.dirs.staging.as_fd(), handle);
        let made = self.finish(&entry, &nascent, || {
            if let Some(linkto) = &fop.linkto {
                let value = [linkto, &b"\0"[..]].concat();
                nascent.at().set(xattr::LINKTO_KEY, &value, XattrFlags::empty())?;
            }
            self.dress(&entry, &nascent, &looks)
        })?;
        Ok(made)
    }

    /// Make a symbolic link.
    pub(super) fn symlink(&self, ctx: &Ctx, fop: &Symlink) -> Result<Made> {
        if fop.target.is_empty() || fop.target.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        if fop.target.len() > SYMLINK_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let dir = self.may_make(ctx, fop.parent, &fop.name, &fop.birth, 0)?;
        let heritage = dir.heritage()?;
        let entry = Entry { dir: &dir, name: &fop.name, birth: &fop.birth, kind: Kind::Symlink, heritage: &heritage };
        let looks = Looks { mode: 0o777, ..Looks::new(&fop.birth, Kind::Symlink, &heritage) };
        let handle = HandleName::new(fop.birth.gfid);
        let _locks = (self.names.lock(fop.parent), self.inodes.lock(fop.birth.gfid));
        self.stage(fop.birth.gfid, || rustix::fs::symlinkat(&fop.target[..], &self.dirs.staging, handle.text()))?;
        let nascent = Nascent::Closed(self.dirs.staging.as_fd(), handle);
        Ok(self.finish(&entry, &nascent, || self.dress(&entry, &nascent, &looks))?)
    }

    /// Make a directory.
    pub(super) fn mkdir(&self, ctx: &Ctx, fop: &Mkdir) -> Result<Made> {
        let dir = self.may_make(ctx, fop.parent, &fop.name, &fop.birth, 0)?;
        let heritage = dir.heritage()?;
        let entry = Entry { dir: &dir, name: &fop.name, birth: &fop.birth, kind: Kind::Dir, heritage: &heritage };
        let looks = Looks::new(&fop.birth, Kind::Dir, &heritage);
        let handle = HandleName::new(fop.birth.gfid);
        let _locks = (self.names.lock(fop.parent), self.inodes.lock(fop.birth.gfid));
        let mode = Mode::from_raw_mode(looks.mode);
        self.stage(fop.birth.gfid, || rustix::fs::mkdirat(&self.dirs.staging, handle.text(), mode))?;
        let fd = open_dir(self.dirs.staging.as_fd(), handle.text())?;
        let nascent = Nascent::Staged(fd);
        let made = self.finish(&entry, &nascent, || {
            if let Some(acl) = &heritage.acl {
                nascent.at().set(acl::DEFAULT, acl, XattrFlags::empty())?;
            }
            if let Some(layout) = fop.layout {
                nascent.at().set(LAYOUT_KEY, &layout.0, XattrFlags::empty())?;
            }
            if fop.mds {
                nascent.at().set(xattr::MDS_KEY, &[0; 4], XattrFlags::empty())?;
            }
            self.dress(&entry, &nascent, &looks)
        })?;
        if fop.parent == Gfid::ROOT && fop.name.as_bytes().starts_with(PARKING_PREFIX) {
            self.hidden_dirs.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(fd) = nascent.into_fd() {
            let kept = self.dirs.keep(Dir::new(fop.birth.gfid, fd));
            kept.know_layout(fop.layout);
        }
        Ok(made)
    }

    /// What every fop here begins with: a name that may be made, a gfid that may be given, room on the disk.
    fn may_make(
        &self,
        ctx: &Ctx,
        parent: Gfid,
        name: &Name,
        birth: &Birth,
        content: usize,
    ) -> Result<std::sync::Arc<Dir>, Errno> {
        may_make(ctx, parent, name)?;
        let times = birth.times.map_or([birth.when; 2], |(atime, mtime)| [atime, mtime]);
        // Beyond a second the kernel has codes of its own.
        let valid = times.iter().all(|time| time.nsec < 1_000_000_000);
        if birth.gfid.is_null() || birth.gfid == Gfid::ROOT || !valid {
            return Err(Errno::INVAL);
        }
        self.reserve.check(ctx, self.dirs.root.fd.as_fd(), content as u64)?;
        self.dir(parent)
    }

    /// A new regular file that nobody can see.
    fn new_file(&self, entry: &Entry<'_>, looks: &Looks) -> Result<Nascent<'_>, Errno> {
        if !self.no_tmpfile.load(Ordering::Relaxed) {
            // With a default ACL the kernel itself cuts the mode.
            let mode = if entry.heritage.acl.is_some() { entry.birth.mode & 0o7777 } else { looks.mode };
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::openat(&entry.dir.fd, c".", flags, Mode::from_raw_mode(mode)) {
                Err(Errno::OPNOTSUPP | Errno::ISDIR) => self.no_tmpfile.store(true, Ordering::Relaxed),
                answer => return answer.map(Nascent::Unnamed).map_err(gone),
            }
        }
        let handle = HandleName::new(entry.birth.gfid);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(looks.mode);
        let fd = self.stage(entry.birth.gfid, || rustix::fs::openat(&self.dirs.staging, handle.text(), flags, mode))?;
        Ok(Nascent::Staged(fd))
    }

    /// Make something in staging under its gfid, after what an earlier failure may have left there.
    fn stage<T>(&self, gfid: Gfid, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match make() {
            Err(Errno::EXIST) => {
                self.drop_staged(&HandleName::new(gfid));
                make()
            }
            answer => answer,
        }
    }

    fn drop_staged(&self, handle: &HandleName) {
        let staging = &self.dirs.staging;
        if rustix::fs::unlinkat(staging, handle.text(), AtFlags::empty()) == Err(Errno::ISDIR) {
            // Cannot fail but for what the start of the brick cleans up anyway.
            let _left = rustix::fs::unlinkat(staging, handle.text(), AtFlags::REMOVEDIR);
        }
    }

    /// Owner, mode, xattrs and times.
    fn dress(&self, entry: &Entry<'_>, nascent: &Nascent<'_>, looks: &Looks) -> Result<(), Errno> {
        let at = nascent.at();
        let Entry { dir, name, birth, kind, heritage } = entry;
        // What the kernel made in the directory itself has its group and ACL already.
        let unnamed = matches!(nascent, Nascent::Unnamed(_));
        let kernel_gid = heritage.gid.filter(|_| unnamed).unwrap_or(self.process_ids.1);
        let other_owner = (looks.uid, looks.gid) != (self.process_ids.0, kernel_gid);
        if other_owner {
            at.chown(Some(looks.uid), Some(looks.gid))?;
        }
        // To change the owner takes these bits away, and a directory is not made with them.
        if looks.mode & 0o6000 != 0 && *kind != Kind::Symlink && (other_owner || *kind == Kind::Dir) {
            at.chmod(looks.mode)?;
        }
        if let Some(acl) = looks.access_acl.as_ref().filter(|_| !unnamed) {
            at.set(acl::ACCESS, acl, XattrFlags::empty())?;
        }
        at.set(GFID_KEY, birth.gfid.as_bytes(), XattrFlags::CREATE)?;
        if *kind != Kind::Dir {
            let path = Gfid2Path::new(dir.gfid, name.as_bytes());
            at.set(path.key(), path.value(), XattrFlags::CREATE)?;
        }
        for xattr in &birth.xattrs {
            match xattr::backend_name(&xattr.name) {
                Backend::Name(key) => at.set(key.as_cstr(), &xattr.value, XattrFlags::empty())?,
                Backend::Ours(_) => return Err(Errno::PERM),
            }
        }
        for pending in &birth.pending {
            at.set(
                xattr::afr_key(&pending.key)?.as_cstr(),
                &xattr::counters_to_bytes(pending.counters),
                XattrFlags::empty(),
            )?;
        }
        if let Some((atime, mtime)) = birth.times {
            at.utimens(Some(atime), Some(mtime))?;
        }
        at.set(mdata::KEY, &birth_times(birth).encode(), XattrFlags::empty())
    }

    /// Make the inode complete with `dress`, then give it its handle and its name. Leaves nothing behind where it fails.
    fn finish(
        &self,
        entry: &Entry<'_>,
        nascent: &Nascent<'_>,
        dress: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Made, Errno> {
        let Entry { dir, name, birth, kind, .. } = entry;
        let handle = HandleName::new(birth.gfid);
        let stat = dress()
            .and_then(|()| nascent.at().stat())
            .and_then(|stat| self.give_name(entry, nascent, &handle).map(|()| stat));
        let mut stat = match stat {
            Ok(stat) => stat,
            Err(errno) => {
                if !matches!(nascent, Nascent::Unnamed(_)) {
                    self.drop_staged(&handle);
                }
                return Err(gone(errno));
            }
        };
        count_links(&mut stat, *kind);
        let times = birth_times(birth);
        self.memory.put(birth.gfid, Known { times: Some(times), form: (*kind).into(), lacks: entry.lacks() });
        let parent = self.touch_parent(dir, birth.when)?;
        tracing::trace!(gfid = %birth.gfid, parent = %dir.gfid, ?name, "made");
        Ok(Made { iatt: self.iatt(birth.gfid, &stat, Some(&times)), parent, cover: Cover::empty(), lease: None })
    }

    /// The handle, and then the name; neither where one fails.
    fn give_name(&self, entry: &Entry<'_>, nascent: &Nascent<'_>, handle: &HandleName) -> Result<(), Errno> {
        let gfid = entry.birth.gfid;
        let target = Target::new(entry.dir.gfid, entry.name.as_bytes());
        let other_place = if entry.kind == Kind::Dir {
            self.make_dir_handle(gfid, &target)?
        } else {
            self.link_new_handle(gfid, nascent.at())?;
            OtherPlace::No
        };
        let name = CName::new(entry.name);
        let named = match nascent {
            Nascent::Unnamed(fd) => rustix::fs::linkat(fd, c"", &entry.dir.fd, name.as_cstr(), AtFlags::EMPTY_PATH),
            Nascent::Staged(..) | Nascent::Closed(..) => {
                let staging = &self.dirs.staging;
                let flags = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(staging, handle.text(), &entry.dir.fd, name.as_cstr(), flags)
            }
        };
        match (named, other_place) {
            (Ok(()), OtherPlace::Yes) => self.dirs.replace_dir_handle(gfid, &target),
            (Err(errno), OtherPlace::No) => {
                // Without a name nothing may keep the handle; what cannot be removed now goes when the brick starts.
                let _left = self.dirs.remove_handle(gfid);
                Err(errno)
            }
            (named, _) => named,
        }
    }

    /// A handle for a new inode that is not a directory, after one that a crash left without a name.
    fn link_new_handle(&self, gfid: Gfid, object: At<'_>) -> Result<(), Errno> {
        match self.dirs.link_handle(gfid, object) {
            Err(Errno::EXIST) if self.drop_orphan(gfid) => self.dirs.link_handle(gfid, object),
            answer => answer,
        }
    }

    /// Remove the handle of a file that never got its name; whether it was one.
    pub(super) fn drop_orphan(&self, gfid: Gfid) -> bool {
        let handle = HandleName::new(gfid);
        let stat = At::Name(self.dirs.first(gfid), handle.as_cstr()).stat();
        let orphan = stat.is_ok_and(|stat| {
            let symlink = FileType::from_raw_mode(stat.st_mode).is_symlink();
            stat.st_nlink == 1 && !symlink
        });
        orphan && !self.files.is_open(gfid) && self.dirs.remove_handle(gfid).is_ok()
    }

    /// The handle of a new directory. Where the gfid belongs to a directory in another place (healing makes a renamed
    /// directory anew before it removes the old), the handle moves once the new one has its name.
    fn make_dir_handle(&self, gfid: Gfid, target: &Target) -> Result<OtherPlace, Errno> {
        match self.dirs.make_dir_handle(gfid, target) {
            Ok(()) => Ok(OtherPlace::No),
            Err(Errno::EXIST) if self.dirs.handle_says(gfid, target) => Ok(OtherPlace::Same),
            Err(Errno::EXIST) => {
                let stat = At::Name(self.dirs.first(gfid), HandleName::new(gfid).as_cstr()).stat()?;
                let symlink = FileType::from_raw_mode(stat.st_mode).is_symlink();
                if symlink && stat.st_nlink == 1 { Ok(OtherPlace::Yes) } else { Err(Errno::EXIST) }
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Whether a new directory's gfid had a handle already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherPlace {
    /// No, it was made now.
    No,
    /// Yes, with the text of this very place: left by a crash, or by whoever has the name.
    Same,
    /// Yes, leading elsewhere.
    Yes,
}

/// Times of a new inode.
fn birth_times(birth: &Birth) -> Mdata {
    let born = Mdata::born(birth.when);
    birth.times.map_or(born, |(atime, mtime)| Mdata { atime, mtime, ..born })
}

/// The attributes were read before handle and name were made.
fn count_links(stat: &mut Stat, kind: Kind) {
    if kind != Kind::Dir {
        stat.st_nlink = 2;
    }
}

/// A directory that was removed while it was open takes no names.
fn gone(errno: Errno) -> Errno {
    if errno == Errno::NOENT { Errno::STALE } else { errno }
}
