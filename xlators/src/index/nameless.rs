//! Looks for files that were being made when the brick died, and never got their names.
//!
//! It takes a look at each of the 65,536 second-level directories of a large brick, so it runs beside the serving of
//! fops, and only where the journal shows that the brick did not stop in order.

use std::sync::{Arc, Weak};

use super::links::Contents;
use crate::posix::Posix;

/// Begin to look, if the journal had anything in it.
pub(super) fn drop_in_background(posix: &Arc<Posix>, journal: Contents) {
    if journal.gfids.is_empty() {
        return;
    }
    // Not an owner: a brick that stops does not wait for this.
    let posix = Arc::downgrade(posix);
    let spawned = std::thread::Builder::new().name("nameless".into()).spawn(move || drop_all(&posix, journal));
    if let Err(error) = spawned {
        tracing::warn!(%error, "no look for files without names");
    }
}

fn drop_all(posix: &Weak<Posix>, journal: Contents) {
    let parents = journal.gfids.into_iter().collect();
    let mut dropped = 0;
    for first in 0..=u8::MAX {
        let Some(posix) = posix.upgrade() else { return };
        match posix.drop_nameless_of(first, &parents, journal.since) {
            Ok(some) => dropped += some,
            Err(errno) => tracing::warn!(first, %errno, "handles not looked at"),
        }
    }
    tracing::info!(dropped, "looked for files that never got their names");
}
