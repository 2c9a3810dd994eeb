//! Writes a line for every fop and for every answer.
//!
//! The line says what a person must know to follow a transaction: which layer, which request, which fop on what, and
//! how it ended. It goes to the log, or into memory for golden tests.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::info;

use crate::ctx::Ctx;
use crate::effect::Target;
use crate::error::{FopError, Result};
use crate::fop::Fop;
use crate::reply::Reply;
use crate::xlator::{Health, Subvol, Xlator};

/// Where lines go.
#[derive(Clone, Debug)]
pub enum Sink {
    /// To the log, at level `info`.
    Log,
    /// Into a list, each with the name of the layer before it.
    Memory(Arc<Mutex<Vec<String>>>),
}

/// Writes a line for every fop and for every answer.
#[derive(Debug)]
pub struct Trace {
    name: String,
    next: Subvol,
    sink: Sink,
}

/// A fop as a line has it: its kind, what it is about, and how large its payload is.
struct Line<'a>(&'a Fop);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind().name())?;
        match self.0.target() {
            Target::Inode(gfid) => write!(f, " {gfid}")?,
            Target::Entry(parent, name) => write!(f, " {parent}/{name:?}")?,
            Target::Volume => {}
        }
        match self.0 {
            Fop::Create(create) => write!(f, " as {} with {} bytes", create.birth.gfid, create.content.len()),
            Fop::Mkdir(mkdir) => write!(f, " as {}", mkdir.birth.gfid),
            Fop::Mknod(mknod) => write!(f, " as {}", mknod.birth.gfid),
            Fop::Symlink(symlink) => write!(f, " as {}", symlink.birth.gfid),
            Fop::Link(link) => write!(f, " to {}", link.gfid),
            Fop::Rename(rename) => write!(f, " to {}/{:?}", rename.to_parent, rename.to_name),
            Fop::Write(write) => write!(f, " {:?} {} bytes", write.place, write.data.len()),
            Fop::Read(read) => write!(f, " at {} {} bytes", read.offset, read.size),
            Fop::Lease(lease) => write!(f, " {:?} {:?}", lease.mode, lease.gfids),
            Fop::Unlease(unlease) => write!(f, " {:?}", unlease.objects),
            Fop::Settle(settle) => write!(f, " {:?}", settle.objects),
            Fop::Mark(mark) => {
                mark.deltas.iter().try_for_each(|delta| write!(f, " {:?} {:?}", delta.key, delta.counters.0))
            }
            _ => Ok(()),
        }
    }
}

impl Trace {
    /// The layer above `next`; lines carry `name`.
    pub fn new(name: impl Into<String>, next: Subvol, sink: Sink) -> Arc<Self> {
        Arc::new(Self { name: name.into(), next, sink })
    }

    fn asked(&self, ctx: &Ctx, fop: &Fop) {
        match &self.sink {
            Sink::Log => info!(layer = self.name, ctx.id, fop = %Line(fop), "asked"),
            Sink::Memory(lines) => lines.lock().push(format!("{} > {}", self.name, Line(fop))),
        }
    }

    fn answered(&self, ctx: &Ctx, kind: &'static str, answer: &Result<Reply>) {
        let outcome = match answer {
            Ok(_) => "ok".to_owned(),
            Err(FopError::Refused(errno)) => format!("refused: {errno:?}"),
            Err(error) => error.to_string(),
        };
        match &self.sink {
            Sink::Log => info!(layer = self.name, ctx.id, fop = kind, outcome, "answered"),
            Sink::Memory(lines) => lines.lock().push(format!("{} < {kind} {outcome}", self.name)),
        }
    }
}

impl Xlator for Trace {
    fn name(&self) -> &str {
        &self.name
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        self.asked(ctx, &fop);
        let kind = fop.kind().name();
        let answer = self.next.call(ctx, fop);
        Box::pin(async move {
            let answer = answer.await;
            self.answered(ctx, kind, &answer);
            answer
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}
