//! What is done to an inode: on the subvolume that has the file, or for a directory on all of them.

use futures::future::BoxFuture;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::hold::{FENCES_MAX, Reach};
use crate::distribute::memory::Place;
use crate::distribute::merge;
use crate::error::{Errno, FopError, Result};
use crate::fop::{CopyRange, Fop, Getattr, Operation, Release};
use crate::reply::{Changed, Done, Found, Reply, Written};
use crate::types::{AttrMask, Cover, Fd, Gfid, Kind};

impl Core {
    /// Where the content of an inode is, remembered or asked for.
    pub(super) async fn place_of(&self, ctx: &Ctx, gfid: Gfid, fd: Option<Fd>) -> Result<Place> {
        match self.memory.places.get(&gfid) {
            Some(place) => Ok(place),
            None => self.find_place(ctx, gfid, fd).await,
        }
    }

    async fn find_place(&self, ctx: &Ctx, gfid: Gfid, fd: Option<Fd>) -> Result<Place> {
        let getattr = Getattr { gfid, fd, exact: AttrMask::empty() };
        let mut absent = FopError::Refused(Errno::STALE);
        let mut unreachable = false;
        for (set, answer) in self.sets.ask_all(ctx, &getattr).await {
            match answer {
                Ok(Found { linkto: Some(_), .. }) => {}
                Ok(found) => {
                    let place = if found.iatt.kind == Kind::Dir { Place::Everywhere } else { Place::On(set) };
                    self.memory.places.put(gfid, place);
                    return Ok(place);
                }
                Err(error) if error.is_absent() => absent = error,
                Err(FopError::Unreachable) => unreachable = true,
                Err(error) => return Err(error),
            }
        }
        Err(if unreachable { FopError::Unreachable } else { absent })
    }

    /// One fop to the subvolume that has the file. If the file is not there (any more) it is sought once.
    pub(super) async fn on_file(&self, ctx: &Ctx, gfid: Gfid, fd: Option<Fd>, set: usize, fop: Fop) -> Result<Reply> {
        match self.sets.get(set).call(ctx, fop.clone()).await {
            Err(error) if error.is_absent() => {
                self.memory.places.remove(&gfid);
                match self.find_place(ctx, gfid, fd).await {
                    Ok(Place::On(other)) if other != set => self.sets.get(other).call(ctx, fop).await,
                    Ok(Place::On(_) | Place::Everywhere) => Err(error),
                    Err(FopError::Unreachable) => Err(FopError::Unreachable),
                    Err(_) => Err(error),
                }
            }
            answer => answer,
        }
    }

    /// Send a fop to where its inode is; a directory's is made of several.
    pub(super) fn on_inode<'a>(
        &'a self,
        ctx: &'a Ctx,
        gfid: Gfid,
        fd: Option<Fd>,
        fop: Fop,
    ) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            match self.place_of(ctx, gfid, fd).await? {
                Place::On(set) => self.on_file(ctx, gfid, fd, set, fop).await,
                Place::Everywhere => self.on_directory(ctx, fop).await,
            }
        })
    }

    async fn on_directory(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        Ok(match fop {
            Fop::Getattr(fop) => Reply::Getattr(self.getattr_directory(ctx, fop).await?),
            Fop::Setattr(fop) => Reply::Setattr(self.change_directory(ctx, fop.gfid, fop).await?),
            Fop::Setxattr(fop) => Reply::Setxattr(self.change_directory(ctx, fop.gfid, fop).await?),
            Fop::Removexattr(fop) => Reply::Removexattr(self.change_directory(ctx, fop.gfid, fop).await?),
            Fop::Getxattr(fop) => Reply::Getxattr(self.ask_one(ctx, fop.gfid, &fop).await?),
            Fop::Listxattr(fop) => Reply::Listxattr(self.ask_one(ctx, fop.gfid, &fop).await?),
            Fop::Fsync(fop) => {
                for (_, answer) in self.sets.ask_all(ctx, &fop).await {
                    answer?;
                }
                Reply::Fsync(Done)
            }
            Fop::Flush(_) => Reply::Flush(Done),
            // All clients must go to the same.
            Fop::Lk(fop) => Reply::Lk(self.sets.ask(ctx, self.first_for(fop.gfid), fop).await?),
            Fop::Readlink(_) | Fop::Seek(_) => return Err(Errno::INVAL.into()),
            // Content, which a directory has not.
            _ => return Err(Errno::ISDIR.into()),
        })
    }

    /// The directory as all have it together, from those who answer.
    async fn getattr_directory(&self, ctx: &Ctx, getattr: Getattr) -> Result<Found> {
        let mut views = Vec::with_capacity(self.sets.count());
        let mut error = FopError::Refused(Errno::STALE);
        let mut all = true;
        for (_, answer) in self.sets.ask_all(ctx, &getattr).await {
            match answer {
                Ok(found) if found.iatt.kind == Kind::Dir => views.push(found),
                Ok(_) => all = false,
                Err(refused) => {
                    all = false;
                    error = if error == FopError::Unreachable { error } else { refused };
                }
            }
        }
        let Some((first, others)) = views.split_first() else { return Err(error) };
        let found = merge::directory(first, others);
        Ok(if all { found } else { Found { cover: Cover::empty(), ..found } })
    }

    /// A change of a directory is made on all subvolumes, or refused while one cannot hear it. The directory stands still
    /// meanwhile, so that two who change it at once do so in one order everywhere.
    async fn change_directory<O: Operation<Reply = Changed> + Clone>(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        fop: O,
    ) -> Result<Changed> {
        self.sets.need_all()?;
        if self.sets.count() == 1 {
            return self.change_parts(ctx, fop).await;
        }
        let mut fences = 0;
        loop {
            let hold = self.hold(ctx, &[gfid], &Reach::of(self.sets.all())).await?;
            match self.change_parts(&hold.ctx, fop.clone()).await {
                Err(FopError::Fenced) if fences < FENCES_MAX => fences += 1,
                answer => return answer,
            }
        }
    }

    async fn change_parts<O: Operation<Reply = Changed> + Clone>(&self, ctx: &Ctx, fop: O) -> Result<Changed> {
        let mut changed: Option<Changed> = None;
        let mut missing = None;
        for (_, answer) in self.sets.ask_all(ctx, &fop).await {
            match (answer, &mut changed) {
                (Ok(other), Some(changed)) => {
                    changed.iatt = merge::iatts(changed.iatt, &other.iatt);
                    changed.cover &= other.cover;
                }
                (Ok(first), none) => *none = Some(Changed { iatt: merge::shown(first.iatt), ..first }),
                (Err(error), _) if error.is_absent() => missing = Some(error),
                (Err(error), _) => return Err(error),
            }
        }
        match (changed, missing) {
            (Some(changed), None) => Ok(changed),
            // The next lookup makes the missing part, as the others are now.
            (Some(changed), Some(_)) => Ok(Changed { cover: Cover::empty(), ..changed }),
            (None, error) => Err(error.unwrap_or(Errno::STALE.into())),
        }
    }

    /// The subvolume that speaks for a directory where one is enough.
    fn first_for(&self, gfid: Gfid) -> usize {
        (gfid.ino() % self.sets.count() as u64) as usize
    }

    /// What is the same on all subvolumes, from one of them; another if that does not answer.
    async fn ask_one<O: Operation + Clone>(&self, ctx: &Ctx, gfid: Gfid, fop: &O) -> Result<O::Reply> {
        let (first, count) = (self.first_for(gfid), self.sets.count());
        let mut last = FopError::Unreachable;
        for set in (first..count).chain(0..first) {
            match self.sets.ask(ctx, set, fop.clone()).await {
                Err(error) if error == FopError::Unreachable || error.is_absent() => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }

    /// An open directory is a listing on each subvolume; an unknown inode may be either.
    pub(super) async fn release(&self, ctx: &Ctx, release: Release) -> Result<Done> {
        if let Some(Place::On(set)) = self.memory.places.get(&release.fd.gfid) {
            return self.sets.ask(ctx, set, release).await;
        }
        // Who does not know the number has nothing to close.
        self.sets.ask_all(ctx, &release).await;
        Ok(Done)
    }

    /// Within one subvolume only; `EXDEV` makes the program copy by itself.
    pub(super) async fn copy_range(&self, ctx: &Ctx, copy: CopyRange) -> Result<Written> {
        let from = self.place_of(ctx, copy.from, copy.from_fd).await?;
        let to = self.place_of(ctx, copy.to, copy.to_fd).await?;
        match (from, to) {
            (Place::On(from), Place::On(to)) if from == to => self.sets.ask(ctx, to, copy).await,
            (Place::On(_), Place::On(_)) => Err(Errno::XDEV.into()),
            (Place::Everywhere, _) | (_, Place::Everywhere) => Err(Errno::ISDIR.into()),
        }
    }
}
