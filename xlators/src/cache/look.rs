//! Questions: answered from what is known, else asked below, after what is kept back has been handed over.

use super::Cache;
use super::attrs::Asked;
use crate::ctx::{Ctx, Turn};
use crate::error::Result;
use crate::fop::{Getattr, Lookup, Readdir};
use crate::reply::{Entries, Found, Looked};
use crate::types::{AttrMask, Cover, Iatt};

/// Taken before a question: what was answered may be kept if nothing has happened since.
#[derive(Clone, Copy, Debug)]
struct Moment {
    asked: Asked,
    recalls: u64,
}

impl Cache {
    fn moment(&self) -> Moment {
        Moment { asked: self.books.attrs.now(), recalls: self.books.recalls() }
    }

    /// Note an answer. What this client has changed meanwhile, or is changing, is not covered by it.
    fn keep(&self, found: &mut Found, moment: Moment) {
        if self.books.removals.any()
            && let Some(iatt) = self.books.removals.directory(found.iatt.gfid)
        {
            (found.iatt, found.exact) = (iatt, AttrMask::all());
        }
        let still_ours = || self.books.recalls() == moment.recalls;
        if found.cover.contains(Cover::ATTRS)
            && found.exact.is_all()
            && !self.books.attrs.keep(&found.iatt, moment.asked, still_ours)
        {
            found.cover.remove(Cover::ATTRS);
        }
    }

    pub(super) async fn getattr(&self, ctx: &Ctx, fop: Getattr) -> Result<Found> {
        if let Some(iatt) = self.books.attrs.get(fop.gfid) {
            return Ok(known(iatt, Cover::ATTRS));
        }
        if self.books.files.knows(fop.gfid) {
            self.books.flush(fop.gfid).await?;
        }
        let moment = self.moment();
        let mut found = self.next.send(ctx, fop).await?;
        self.keep(&mut found, moment);
        Ok(found)
    }

    pub(super) async fn lookup(&self, ctx: &Ctx, fop: Lookup) -> Result<Looked> {
        if self.books.names.lacks(fop.parent, &fop.name) {
            return Ok(Looked { found: None, cover: Cover::NAME });
        }
        let moment = self.moment();
        let mut looked = self.next.send(ctx, fop.clone()).await?;
        let Some(found) = &mut looked.found else { return Ok(looked) };
        if self.books.files.keeps(found.iatt.gfid) {
            self.books.hand_over(found.iatt.gfid, Turn::Waits).await;
            return self.next.send(ctx, fop).await;
        }
        self.keep(found, moment);
        Ok(looked)
    }

    pub(super) async fn readdir(&self, ctx: &Ctx, fop: Readdir) -> Result<Entries> {
        if fop.attrs {
            self.books.hand_over_all().await;
        }
        let (directory, changes) = (fop.gfid, self.books.names.changes(fop.gfid));
        let moment = self.moment();
        let mut page = self.next.send(ctx, fop).await?;
        for found in page.entries.iter_mut().filter_map(|entry| entry.found.as_mut()) {
            self.keep(found, moment);
        }
        self.books.names.listed(directory, &page.entries, changes, || self.books.recalls() == moment.recalls);
        Ok(page)
    }
}

/// As a copy would answer.
pub(super) fn known(iatt: Iatt, cover: Cover) -> Found {
    Found { iatt, exact: AttrMask::all(), cover, layout: None, linkto: None, marks: Vec::new() }
}
