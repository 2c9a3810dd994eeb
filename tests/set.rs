//! One replica set in one process: bricks in memory, leases above them, and any number of clients, each behind a wire
//! that a test can cut and read.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use mortar_xlators::cache::Cache;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::*;
use mortar_xlators::graph::{BrickSpec, Quorum};
use mortar_xlators::leases::{Config, Leases, Start};
use mortar_xlators::replicate::{Replicate, ReplicateOptions};
use mortar_xlators::reply::{Found, Looked, Made, Reply, Written};
use mortar_xlators::types::*;
use mortar_xlators::xlator::{Health, Notice, Notices, Subvol, Upcall, Xlator};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::memory::Memory;

/// Several bricks that keep copies of the same.
pub(crate) struct Set {
    pub(crate) bricks: Vec<Brick>,
    quorum: Quorum,
    next_client: AtomicU64,
    pub(crate) log: Arc<Mutex<String>>,
}

/// One brick of the set.
pub(crate) struct Brick {
    pub(crate) disk: Arc<Memory>,
    pub(crate) leases: Arc<Mutex<Arc<Leases>>>,
    spec: BrickSpec,
}

/// How the leases of a test's bricks behave: impatient.
pub(crate) fn config(start: Start, first_epoch: u64) -> Config {
    let mut config = Config::new(start, first_epoch);
    config.clear_every = Duration::from_millis(20);
    config
}

impl Set {
    pub(crate) fn new(copies: usize, quorum: Quorum) -> Self {
        Self::with_arbiter(copies, quorum, usize::MAX)
    }

    pub(crate) fn with_arbiter(copies: usize, quorum: Quorum, arbiter: usize) -> Self {
        Self::with_config(copies, quorum, arbiter, |_| {})
    }

    /// A set whose bricks fence a silent holder soon.
    pub(crate) fn impatient(copies: usize, quorum: Quorum) -> Self {
        Self::with_config(copies, quorum, usize::MAX, |config| config.recall_patience = Duration::from_millis(100))
    }

    /// A set whose bricks fence nobody, so that who waits for what never comes is told so.
    pub(crate) fn patient(copies: usize, quorum: Quorum) -> Self {
        let patience = Duration::from_secs(3600);
        Self::with_config(copies, quorum, usize::MAX, |config| config.recall_patience = patience)
    }

    fn with_config(copies: usize, quorum: Quorum, arbiter: usize, choose: impl Fn(&mut Config)) -> Self {
        let brick = |copy: usize| {
            let arbiter = copy == arbiter;
            let spec =
                BrickSpec { id: format!("v-client-{copy}"), address: String::new(), path: String::new(), arbiter };
            let disk = Memory::new(arbiter);
            // Bricks may number their leases alike.
            let mut config = config(Start::Fresh, 1_000_000);
            choose(&mut config);
            let leases = Leases::new(disk.clone(), disk.clone(), config);
            Brick { disk, leases: Arc::new(Mutex::new(leases)), spec }
        };
        Self { bricks: (0..copies).map(brick).collect(), quorum, next_client: AtomicU64::new(1), log: Arc::default() }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(|_| {})
    }

    /// A client with the cache that a mount has.
    pub(crate) fn caching_client(&self) -> Client {
        let client = self.client_under(|_| {}, |id, above, below| Cache::over(id, above, below));
        self.take_log();
        client
    }

    pub(crate) fn client_with(&self, choose: impl FnOnce(&mut ReplicateOptions)) -> Client {
        self.client_under(choose, |_, above, below| below(&above))
    }

    fn client_under(
        &self,
        choose: impl FnOnce(&mut ReplicateOptions),
        cover: impl FnOnce(ClientId, Arc<dyn Upcall>, &mut dyn FnMut(&Arc<dyn Upcall>) -> Subvol) -> Subvol,
    ) -> Client {
        let id = ClientId(u128::from(self.next_client.fetch_add(1, Ordering::Relaxed)));
        let mut heard = Vec::new();
        let wires: Vec<_> = self
            .bricks
            .iter()
            .enumerate()
            .map(|(copy, brick)| {
                let (notices, hears) = tokio::sync::mpsc::unbounded_channel();
                heard.push(hears);
                let leases = Arc::clone(&brick.leases);
                leases.lock().attach(id, notices.clone()).expect("attached");
                Arc::new(Wire {
                    copy,
                    client: id,
                    leases,
                    notices,
                    faults: Mutex::default(),
                    gate: Semaphore::new(0),
                    log: Arc::clone(&self.log),
                    health: watch::Sender::new(Health::Up { session: 1 }),
                })
            })
            .collect();
        let upcall = Arc::new(Uncovered::default());
        let bricks = self.bricks.iter().zip(&wires).map(|(b, w)| (b.spec.clone(), w.clone() as Subvol)).collect();
        let mut options = ReplicateOptions { settle_every: Duration::from_millis(20), ..ReplicateOptions::default() };
        choose(&mut options);
        let (mut parts, quorum) = (Some((bricks, options, heard)), self.quorum);
        let mut below = |upcall: &Arc<dyn Upcall>| -> Subvol {
            let (bricks, options, heard) = parts.take().expect("a graph is made once");
            Replicate::new("v-replicate-0".into(), bricks, quorum, options, heard, upcall.clone(), id)
        };
        let top = cover(id, upcall.clone(), &mut below);
        Client { id, wires, top, upcall, next: AtomicU64::new(1) }
    }

    /// What was sent since the last time, in order of sending.
    pub(crate) fn take_log(&self) -> String {
        std::mem::take(&mut *self.log.lock())
    }

    /// The bricks hold the same.
    pub(crate) fn agree(&self, copies: &[usize]) {
        let first = self.bricks[copies[0]].disk.everything();
        for &copy in &copies[1..] {
            assert_eq!(self.bricks[copy].disk.everything(), first, "copies {} and {copy} differ", copies[0]);
        }
    }
}

/// What the layers above a client's set were told to forget.
#[derive(Debug, Default)]
pub(crate) struct Uncovered(pub(crate) Mutex<Vec<Gfid>>);

impl Upcall for Uncovered {
    fn uncover<'a>(&'a self, objects: &'a [Gfid], _: LeaseMode) -> BoxFuture<'a, ()> {
        self.0.lock().extend(objects);
        std::future::ready(()).boxed()
    }
}

/// What happens to a fop on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The brick refuses it.
    Refuse(Errno),
    /// It does not arrive.
    LoseRequest,
    /// It is done, and the answer does not arrive.
    LoseAnswer,
    /// It is on its way until the wire's gate is opened; then the next fault for such a fop may befall it.
    Delay,
}

/// The way to one brick.
#[derive(Debug)]
pub(crate) struct Wire {
    copy: usize,
    client: ClientId,
    leases: Arc<Mutex<Arc<Leases>>>,
    notices: Notices,
    pub(crate) faults: Mutex<VecDeque<(FopKind, Fault)>>,
    /// Opened with a permit for each that is delayed.
    pub(crate) gate: Semaphore,
    log: Arc<Mutex<String>>,
    health: watch::Sender<Health>,
}

impl Wire {
    pub(crate) fn cut(&self) {
        self.health.send_replace(Health::Down);
    }

    pub(crate) fn mend(&self, session: u64) {
        self.leases.lock().attach(self.client, self.notices.clone()).expect("attached");
        self.health.send_replace(Health::Up { session });
    }

    fn fault(&self, fop: &Fop) -> Option<Fault> {
        if !self.health.borrow().is_up() {
            return Some(Fault::LoseRequest);
        }
        let mut faults = self.faults.lock();
        let at = faults.iter().position(|(kind, _)| *kind == fop.kind())?;
        faults.remove(at).map(|(_, fault)| fault)
    }
}

impl Xlator for Wire {
    fn name(&self) -> &str {
        "wire"
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        let fault = self.fault(&fop);
        write_line(&mut self.log.lock(), self.copy, ctx, &fop, fault);
        async move {
            let leases = Arc::clone(&self.leases.lock());
            let mut fault = fault;
            if fault == Some(Fault::Delay) {
                self.gate.acquire().await.expect("never closed").forget();
                fault = self.fault(&fop).filter(|fault| *fault != Fault::Delay);
            }
            match fault {
                Some(Fault::Refuse(errno)) => Err(errno.into()),
                Some(Fault::LoseRequest) => Err(FopError::Unreachable),
                Some(Fault::LoseAnswer) => {
                    let _ = leases.call(ctx, fop).await;
                    Err(FopError::Unreachable)
                }
                None | Some(Fault::Delay) => leases.call(ctx, fop).await,
            }
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

fn write_line(log: &mut String, copy: usize, ctx: &Ctx, fop: &Fop, fault: Option<Fault>) {
    let short = |gfid: Gfid| format!("{}", gfid.ino());
    let detail = match fop {
        Fop::Lease(f) => format!(
            "{:?} {}{}{}",
            f.mode,
            short(f.gfids[0]),
            if f.wait { " wait" } else { "" },
            if f.reclaim { " reclaim" } else { "" }
        ),
        Fop::Unlease(f) => {
            let objects: Vec<_> = f.objects.iter().map(|s| format!("{}:{:?}", short(s.gfid), s.changes)).collect();
            format!("{}{}", objects.join(" "), if f.keep_shared { " keep" } else { "" })
        }
        Fop::Settle(f) => {
            f.objects.iter().map(|s| format!("{}:{:?}", short(s.gfid), s.changes)).collect::<Vec<_>>().join(" ")
        }
        Fop::Create(f) => {
            format!("{}/{:?} {} content {}", short(f.parent), f.name, short(f.birth.gfid), f.content.len())
        }
        Fop::Mkdir(f) => format!("{}/{:?} {}", short(f.parent), f.name, short(f.birth.gfid)),
        Fop::Write(f) => format!("{} {:?} {} bytes", short(f.gfid), f.place, f.data.len()),
        Fop::Lookup(f) => format!("{}/{:?}", short(f.parent), f.name),
        Fop::Mark(f) => {
            let blames: Vec<_> = f
                .deltas
                .iter()
                .filter(|d| !d.counters.is_zero())
                .map(|d| format!("{:?}:{:?}", d.key, d.counters.0))
                .collect();
            format!("{} {}", short(f.gfid), blames.join(" "))
        }
        Fop::Backlog(_) => return,
        _ => String::new(),
    };
    let under: Vec<_> = ctx.leases.iter().map(|(gfid, _)| short(*gfid)).collect();
    let under = if under.is_empty() { String::new() } else { format!(" under {}", under.join(" ")) };
    let fault = fault.map(|fault| format!(" -> {fault:?}")).unwrap_or_default();
    writeln!(log, "{copy} {} {detail}{under}{fault}", fop.kind().name()).expect("a string");
}

/// One client of the set.
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) wires: Vec<Arc<Wire>>,
    pub(crate) top: Subvol,
    pub(crate) upcall: Arc<Uncovered>,
    next: AtomicU64,
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

/// A gfid whose inode number is `number`.
pub(crate) fn gfid(number: u64) -> Gfid {
    let mut bytes = [0; 16];
    bytes[0] = 7;
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    Gfid::from_bytes(bytes)
}

pub(crate) fn when(sec: i64) -> Time {
    Time { sec, nsec: 0 }
}

impl Client {
    pub(crate) fn ctx(&self) -> Ctx {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Ctx::new(id, self.id, Caller::root(), Instant::now() + Duration::from_secs(30))
    }

    pub(crate) async fn send<O: Operation>(&self, operation: O) -> Result<O::Reply> {
        let ctx = self.ctx();
        self.top.send(&ctx, operation).await
    }

    pub(crate) fn birth(&self, gfid: Gfid) -> Box<Birth> {
        Box::new(Birth {
            gfid,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            when: when(1),
            times: None,
            xattrs: vec![],
            pending: vec![],
        })
    }

    pub(crate) async fn create(&self, parent: Gfid, text: &str, gfid: Gfid, content: &str) -> Result<Made> {
        let content = Bytes::copy_from_slice(content.as_bytes());
        let birth = self.birth(gfid);
        self.send(Create { parent, name: name(text), birth, content, open: None, lease: false }).await
    }

    pub(crate) async fn mkdir(&self, parent: Gfid, text: &str, gfid: Gfid) -> Result<Made> {
        let birth = self.birth(gfid);
        self.send(Mkdir { parent, name: name(text), birth, layout: None, mds: false, lease: false }).await
    }

    pub(crate) async fn write(&self, gfid: Gfid, place: Place, data: &str) -> Result<Written> {
        let data = Bytes::copy_from_slice(data.as_bytes());
        self.send(Write { gfid, fd: None, place, data, sync: false, kill_priv: false, when: when(2), then: None }).await
    }

    pub(crate) async fn read(&self, gfid: Gfid) -> Result<String> {
        let data = self.send(Read { gfid, fd: None, offset: 0, size: 1 << 20 }).await?;
        Ok(String::from_utf8_lossy(&data.data).into_owned())
    }

    pub(crate) async fn lookup(&self, parent: Gfid, text: &str) -> Result<Looked> {
        self.send(Lookup { parent, name: name(text) }).await
    }

    pub(crate) async fn getattr(&self, gfid: Gfid) -> Result<Found> {
        self.send(Getattr { gfid, fd: None, exact: AttrMask::all() }).await
    }

    /// Wait for something that a task in the background does.
    pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..2000 {
            if done() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("waited in vain until {what}");
    }
}

/// Heard unasked by a session of its own, for tests of the leases layer alone.
pub(crate) fn session(leases: &Leases, client: ClientId) -> tokio::sync::mpsc::UnboundedReceiver<Notice> {
    let (notices, heard) = tokio::sync::mpsc::unbounded_channel();
    leases.attach(client, notices).expect("attached");
    heard
}

/// Splitmix64: enough to shuffle a test.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % sides
    }
}
