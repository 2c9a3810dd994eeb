//! Counts fops, their errors and their latency, by kind.
//!
//! Sits at the top of a brick and of a client's graph. Costs two readings of the clock and four additions per fop.
//! Latencies go into 64 buckets, two to each doubling, so a quantile is right to within a third.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Fop, FopKind};
use crate::reply::Reply;
use crate::xlator::{Health, Subvol, Xlator};

const BUCKETS: usize = 64;

/// The upper end of the first bucket is 2^9 = 512 ns: nothing is quicker.
const FIRST_BITS: u32 = 9;

/// Counts fops, their errors and their latency, by kind.
#[derive(Debug)]
pub struct IoStats {
    next: Subvol,
    rows: Rows,
}

struct Rows(Box<[Row]>);

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rows")
    }
}

struct Row {
    calls: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
    nanos_max: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// What was counted of one kind of fop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Which.
    pub kind: FopKind,
    /// Answers of every sort.
    pub calls: u64,
    /// Those that were errors.
    pub errors: u64,
    /// All latencies together.
    pub total: Duration,
    /// Half of the fops were no slower.
    pub median: Duration,
    /// 99 of 100 were no slower.
    pub p99: Duration,
    /// The slowest.
    pub max: Duration,
}

impl Row {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            calls: zero(),
            errors: zero(),
            nanos: zero(),
            nanos_max: zero(),
            buckets: std::array::from_fn(|_| zero()),
        }
    }

    fn add(&self, nanos: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        if nanos > self.nanos_max.load(Ordering::Relaxed) {
            self.nanos_max.fetch_max(nanos, Ordering::Relaxed);
        }
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, kind: FopKind) -> Count {
        let calls = self.calls.load(Ordering::Relaxed);
        let max = self.nanos_max.load(Ordering::Relaxed);
        let quantile = |percent: u64| {
            let rank = (calls * percent).div_ceil(100);
            let mut seen = 0;
            let found = self.buckets.iter().position(|count| {
                seen += count.load(Ordering::Relaxed);
                seen >= rank
            });
            Duration::from_nanos(found.map_or(max, |index| upper_end(index).min(max)))
        };
        Count {
            kind,
            calls,
            errors: self.errors.load(Ordering::Relaxed),
            total: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
            median: quantile(50),
            p99: quantile(99),
            max: Duration::from_nanos(max),
        }
    }
}

/// Bucket 0 ends at 512 ns; then two buckets to each doubling.
fn bucket(nanos: u64) -> usize {
    if nanos < 1 << FIRST_BITS {
        return 0;
    }
    let bits = nanos.ilog2();
    let upper_half = (nanos >> (bits - 1)) & 1;
    let index = u64::from(bits - FIRST_BITS) * 2 + upper_half + 1;
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// Where a bucket ends, in nanoseconds.
fn upper_end(index: usize) -> u64 {
    let halves = index as u64;
    let base = 1u64 << (u64::from(FIRST_BITS) + halves / 2);
    if halves.is_multiple_of(2) { base } else { base + base / 2 }
}

impl IoStats {
    /// The layer above `next`, with all counters zero.
    pub fn new(next: Subvol) -> Arc<Self> {
        Arc::new(Self { next, rows: Rows(FopKind::ALL.iter().map(|_| Row::new()).collect()) })
    }

    /// What was counted, of the kinds that were called at all.
    pub fn counts(&self) -> Vec<Count> {
        let rows = FopKind::ALL.iter().zip(&self.rows.0);
        rows.map(|(kind, row)| row.count(*kind)).filter(|count| count.calls > 0).collect()
    }

    /// The counters as a table, for a statedump.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<12} {:>10} {:>8} {:>12} {:>10} {:>10} {:>10} {:>10}\n",
            "fop", "calls", "errors", "total ms", "mean us", "median us", "p99 us", "max us"
        );
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        for count in self.counts() {
            let Count { kind, calls, errors, total, median, p99, max } = count;
            #[allow(clippy::cast_precision_loss)] // a mean for people
            let mean = micros(total) / calls as f64;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<12} {calls:>10} {errors:>8} {:>12.1} {mean:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                kind.name(),
                micros(total) / 1e3,
                micros(median),
                micros(p99),
                micros(max),
            );
        }
        text
    }
}

impl Xlator for IoStats {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        let row = &self.rows.0[fop.kind() as usize];
        let began = Instant::now();
        let answer = self.next.call(ctx, fop);
        Box::pin(async move {
            let answer = answer.await;
            row.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            if answer.is_err() {
                row.errors.fetch_add(1, Ordering::Relaxed);
            }
            answer
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_below_the_end_of_its_bucket_and_above_the_one_before() {
        for nanos in [0, 511, 512, 767, 768, 1023, 1024, 50_000, 1_000_000, 7_000_000_000] {
            let index = bucket(nanos);
            assert!(nanos < upper_end(index), "{nanos} in {index}");
            assert!(index == 0 || nanos >= upper_end(index - 1), "{nanos} in {index}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_right_to_within_a_bucket() {
        let row = Row::new();
        for _ in 0..98 {
            row.add(10_000);
        }
        row.add(1_000_000);
        row.add(1_000_000);
        let count = row.count(FopKind::Lookup);
        assert!(count.median >= Duration::from_nanos(10_000) && count.median < Duration::from_nanos(15_000));
        assert_eq!((count.p99, count.max), (Duration::from_millis(1), Duration::from_millis(1)));
        assert_eq!(count.calls, 100);
    }
}
