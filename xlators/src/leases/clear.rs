//! Takes settled objects off the dirty journal, in batches.
//!
//! One flush of the disk for a whole batch comes first, so that a mark never goes before what it stands for is durable.

use std::sync::atomic::Ordering;

use super::Leases;

impl Leases {
    /// Some objects became settled: see to it that they leave the journal. An idle brick runs nothing.
    pub(super) fn clear_soon(&self, settled: usize) {
        if settled == 0 || self.clearing.swap(true, Ordering::AcqRel) {
            return;
        }
        let leases = self.shared();
        tokio::spawn(async move {
            tokio::time::sleep(leases.config.clear_every).await;
            leases.clearing.store(false, Ordering::Release);
            leases.clear_settled().await;
        });
    }

    /// Take every settled object off the journal now; also what a brick does before it stops.
    pub async fn clear_settled(&self) {
        let batch = self.table.take_settled();
        if batch.is_empty() {
            return;
        }
        let leases = self.shared();
        let work = tokio::task::spawn_blocking(move || {
            if let Err(error) = leases.journal.sync() {
                tracing::warn!(%error, "cannot flush the brick, so nothing leaves the dirty journal");
                leases.table.put_back(batch);
                return;
            }
            let batch = leases.table.begin_clearing(batch);
            let cleared = leases.journal.clear(&batch);
            if let Err(error) = cleared {
                tracing::warn!(%error, "cannot take settled objects off the dirty journal");
            }
            leases.table.end_clearing(&batch, cleared.is_ok());
            leases.cleared.notify_waiters();
        });
        if let Err(error) = work.await {
            tracing::error!(%error, "clearing the dirty journal broke off");
        }
    }
}
