//! Sends what has been kept back: when somebody asks for it, and when it has been kept for long.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::future::join_all;

use super::Books;
use super::behind::{KEEP_TIME_MAX, Kept, Sent, Step};
use crate::ctx::{Ctx, Turn};
use crate::error::{Errno, FopError, Result};
use crate::fop::{Place, Write};
use crate::types::{Gfid, Iatt};
use crate::xlator::Subvol;

/// How long sending may take, with all that a quorum needs to be found again.
const SEND_WITHIN: Duration = Duration::from_secs(30);

/// The same while a lease is waited for by others: well below the time after which a brick fences who does not answer.
const LAST_WITHIN: Duration = Duration::from_secs(3);

/// How often it is looked for what has been kept for long.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Books {
    fn ctx(&self, kept: &Kept, turn: Turn) -> Ctx {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let within = if turn == Turn::Last { LAST_WITHIN } else { SEND_WITHIN };
        Ctx::new(id, self.client, kept.caller.clone(), Instant::now() + within)
    }

    /// The layer below, as long as there is one.
    pub(super) fn below(&self) -> Result<Subvol> {
        self.next.get().and_then(Weak::upgrade).ok_or(FopError::Unreachable)
    }

    pub(super) fn shared(&self) -> Arc<Self> {
        self.me.upgrade().expect("what is called is held by somebody")
    }

    /// Send what is kept back of a file, and say whether all of it arrived.
    pub(super) async fn flush(&self, gfid: Gfid) -> Result<()> {
        self.hand_over(gfid, Turn::Waits).await;
        self.files.result(gfid)
    }

    /// The same, and nothing more is kept back of it.
    pub(super) async fn close(&self, gfid: Gfid) -> Result<()> {
        self.hand_over(gfid, Turn::Waits).await;
        self.files.close(gfid)
    }

    /// Send what is kept back of a file. Ends when that has arrived; what could not be sent is still kept.
    pub(super) async fn hand_over(&self, gfid: Gfid, turn: Turn) {
        loop {
            match self.files.next_step(gfid) {
                Step::Done => return,
                Step::Wait(end) => end.await,
                Step::Send(mut kept) => {
                    let books = self.shared();
                    // In a task of its own: who asked may stop waiting, and then it must not be lost.
                    let sending = self.runtime.spawn(async move {
                        let data = std::mem::take(&mut kept.data).freeze();
                        let sent = books.send(&kept, &data, turn).await;
                        if sent == Sent::Later {
                            kept.data = BytesMut::from(data);
                        }
                        // Before anybody who waits for it asks again.
                        books.attrs.changed(gfid);
                        books.files.sent(gfid, kept, sent);
                    });
                    if sending.await.is_err() {
                        tracing::error!(%gfid, "what was kept back of a file could not be sent: the runtime ends");
                    }
                    // What somebody else has written meanwhile is not what was asked for.
                    return;
                }
            }
        }
    }

    /// Send what is kept back of all files.
    pub(super) async fn hand_over_all(&self) {
        let all = self.files.all_kept();
        join_all(all.into_iter().map(|gfid| self.hand_over(gfid, Turn::Waits))).await;
    }

    /// Send what is kept back of files that others wait for. What is on its way already may be waiting for what others
    /// hold: it is not waited for longer than a brick would.
    pub(super) async fn hand_over_last(&self, gfids: Vec<Gfid>) {
        let all = join_all(gfids.iter().map(|&gfid| self.hand_over(gfid, Turn::Last)));
        if tokio::time::timeout(LAST_WITHIN, all).await.is_err() {
            tracing::warn!(files = gfids.len(), "what was kept back is not on the bricks when its lease goes");
        }
    }

    /// A lease that is on its way back waits for this, whoever sends it; one that is gone is taken again, unless others
    /// wait for it.
    async fn send(&self, kept: &Kept, data: &Bytes, turn: Turn) -> Sent {
        let ctx = self.ctx(kept, turn);
        let sent = match self.write(&ctx.last(), kept, data.clone()).await {
            Err(FopError::Fenced) if turn == Turn::Waits => self.write(&ctx, kept, data.clone()).await,
            sent => sent,
        };
        match sent {
            Ok(iatt) => Sent::Done(iatt),
            Err(FopError::Fenced | FopError::Unreachable) => Sent::Later,
            Err(error @ FopError::Refused(Errno::NOTCONN | Errno::TIMEDOUT | Errno::AGAIN)) => {
                tracing::debug!(ctx.id, gfid = %kept.write.gfid, %error, "what was kept back could not be sent yet");
                Sent::Later
            }
            Err(error) => {
                tracing::info!(ctx.id, gfid = %kept.write.gfid, %error, "what was kept back was refused");
                Sent::Refused(error)
            }
        }
    }

    async fn write(&self, ctx: &Ctx, kept: &Kept, mut data: Bytes) -> Result<Iatt> {
        let next = self.below()?;
        if let (true, Some(then)) = (data.is_empty(), &kept.then) {
            return Ok(next.send(ctx, then.clone()).await?.iatt);
        }
        let mut place = kept.write.place;
        loop {
            let then = kept.then.clone().map(Box::new);
            let write = Write { place, data: data.clone(), then, ..kept.write.clone() };
            let written = next.send(ctx, write).await?;
            let bytes = usize::try_from(written.bytes).unwrap_or(usize::MAX);
            if bytes >= data.len() {
                return Ok(written.iatt);
            }
            if bytes == 0 {
                return Err(FopError::Refused(Errno::NOSPC));
            }
            // Asked again for the rest, the bricks say why.
            data = data.slice(bytes..);
            place = Place::At(written.offset.saturating_add(u64::from(written.bytes)));
        }
    }

    /// Something of a file is kept back: see that it does not stay for long.
    pub(super) fn kept(&self, gfid: Gfid) {
        self.attrs.changed(gfid);
        self.look_after();
    }

    fn look_after(&self) {
        if self.looking.load(Ordering::Relaxed) || self.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = self.me.clone();
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(books) = weak.upgrade() else { return };
                let old = Instant::now().checked_sub(KEEP_TIME_MAX).unwrap_or_else(Instant::now);
                let old = books.files.kept_before(old);
                // All at once: a set that is slow delays no other.
                join_all(old.into_iter().map(|gfid| books.hand_over(gfid, Turn::Waits))).await;
                if books.files.all_kept().is_empty() {
                    books.looking.store(false, Ordering::Release);
                    // What was kept meanwhile found somebody who no longer looked.
                    if !books.files.all_kept().is_empty() {
                        books.look_after();
                    }
                    return;
                }
            }
        });
    }
}
