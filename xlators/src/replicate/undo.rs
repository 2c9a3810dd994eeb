//! Takes back a name that a quorum refused to make, on the copies that made it all the same.
//!
//! The directory is still under the exclusive lease of the change, so nobody has seen the name. Without this, copies
//! whose disks fill up at the same time, but not in the same moment, would be left with names that their directory
//! cannot be removed for.

use futures::future::join_all;

use super::Replicate;
use super::acquire::Pins;
use super::copies::CopySet;
use super::lease::Counted;
use crate::ctx::Ctx;
use crate::fop::{Fop, Only, Rmdir, Unlink};
use crate::types::Name;

impl Replicate {
    /// Take the change back on the copies `odd`; answers those that still have it.
    pub(super) async fn undo(&self, pins: &mut Pins, ctx: &Ctx, fop: &Fop, odd: CopySet) -> CopySet {
        let Some(opposite) = opposite(fop).filter(|_| !odd.is_empty()) else { return odd };
        let answers = {
            let (pins, opposite) = (&*pins, &opposite);
            let undo = |copy: usize| async move {
                let ctx = ctx.under(pins.at(copy)?);
                Some((copy, self.copies[copy].subvol.call(&ctx, opposite.clone()).await))
            };
            join_all(odd.iter().map(undo)).await
        };
        let mut left = odd;
        for (copy, answer) in answers.into_iter().flatten() {
            match answer {
                Ok(_) => left = left.without(CopySet::only(copy)),
                Err(error) => tracing::debug!(ctx.id, set = self.name, copy, %error, "an odd name stays"),
            }
            pins.outcome.counted[copy] = pins.outcome.counted[copy].and(Counted::of(&answer));
        }
        left
    }
}

/// What takes away the name that a fop makes.
fn opposite(fop: &Fop) -> Option<Fop> {
    let unlink = |parent, name: &Name, gfid, when| {
        Some(Fop::Unlink(Unlink { parent, name: name.clone(), only: Only::Gfid(gfid), when }))
    };
    match fop {
        Fop::Create(f) => unlink(f.parent, &f.name, f.birth.gfid, f.birth.when),
        Fop::Mknod(f) => unlink(f.parent, &f.name, f.birth.gfid, f.birth.when),
        Fop::Symlink(f) => unlink(f.parent, &f.name, f.birth.gfid, f.birth.when),
        Fop::Link(f) => unlink(f.parent, &f.name, f.gfid, f.when),
        Fop::Mkdir(f) => Some(Fop::Rmdir(Rmdir { parent: f.parent, name: f.name.clone(), when: f.birth.when })),
        _ => None,
    }
}
