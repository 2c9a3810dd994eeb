//! Distribute over one subvolume: all names belong to it.
//!
//! New directories get the layout that says so, as in GlusterFS: a second subvolume may be added later.

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::ctx::Ctx;
use crate::distribute::layout;
use crate::error::Result;
use crate::fop::{Fop, Mkdir};
use crate::reply::Reply;
use crate::xlator::{Health, Subvol, Xlator};

/// Distribute over one subvolume.
#[derive(Debug)]
pub struct Single {
    next: Subvol,
}

impl Single {
    /// Over this subvolume.
    pub fn new(next: Subvol) -> Self {
        Self { next }
    }
}

impl Xlator for Single {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            Fop::Mkdir(mkdir) => self.next.call(ctx, Mkdir { layout: Some(layout::WHOLE), ..mkdir }.into()),
            other => self.next.call(ctx, other),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}
