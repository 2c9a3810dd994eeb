//! The network is the identity: what goes into `remote` comes out of `service`, and back.
//!
//! Over a layer that records what reaches it and answers what it was told to, so that nothing here depends on a disk.

#[path = "wire/hostile.rs"]
mod hostile;
#[path = "wire/proxy.rs"]
mod proxy;
#[path = "wire/samples.rs"]
mod samples;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use mortar_brick::session::Clients;
use mortar_brick::{Brick, BrickConfig, Extras, Stack, Threads};
use mortar_client::remote::Remote;
use mortar_proto::volume::{Shape, VolumeFile};
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Fop, FopKind, Getattr, Lease, Rmdir, Unlink, Write};
use mortar_xlators::graph::BrickSpec;
use mortar_xlators::reply::Reply;
use mortar_xlators::types::{AttrMask, ClientId, Epoch, Gfid, LeaseMode, Name, Time};
use mortar_xlators::xlator::{Health, Notice, Notices, Subvol, Xlator};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

/// Answers what it was told to, and remembers what it was asked.
#[derive(Debug)]
struct Recorder {
    asked: Mutex<Vec<String>>,
    answers: Mutex<HashMap<FopKind, Result<Reply>>>,
    /// Fops of these kinds wait until they are let go.
    held: Mutex<HashMap<FopKind, Arc<Notify>>>,
    gone: watch::Sender<u64>,
    blames: watch::Sender<bool>,
    notices: Mutex<Option<Notices>>,
    calls: AtomicU64,
    health: watch::Sender<Health>,
}

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            asked: Mutex::default(),
            answers: Mutex::default(),
            held: Mutex::default(),
            gone: watch::Sender::new(0),
            blames: watch::Sender::new(false),
            notices: Mutex::default(),
            calls: AtomicU64::new(0),
            health: watch::Sender::new(Health::Up { session: 1 }),
        })
    }

    fn hold(&self, kind: FopKind) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        self.held.lock().insert(kind, Arc::clone(&gate));
        gate
    }
}

/// What must be the same on both ends; the deadline is not, since it travels as what is left of it.
fn line(ctx: &Ctx, fop: &Fop) -> String {
    format!("{} {:?} {:?} {:?} {fop:?}", ctx.id, ctx.client, ctx.caller, ctx.leases)
}

impl Xlator for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let kind = fop.kind();
            self.asked.lock().push(line(ctx, &fop));
            let gate = self.held.lock().get(&kind).cloned();
            if let Some(gate) = gate {
                gate.notified().await;
            }
            self.answers.lock().get(&kind).cloned().unwrap_or(Err(Errno::NOSYS.into()))
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

#[derive(Debug)]
struct Watcher(Arc<Recorder>);

impl Clients for Watcher {
    fn attach(&self, _: ClientId, notices: Notices) -> Result<()> {
        *self.0.notices.lock() = Some(notices);
        Ok(())
    }

    fn gone(&self, _: ClientId) {
        self.0.gone.send_modify(|gone| *gone += 1);
    }

    fn blames(&self) -> watch::Receiver<bool> {
        self.0.blames.subscribe()
    }

    fn stopped(&self) {}
}

struct Pair {
    recorder: Arc<Recorder>,
    brick: Brick,
    remote: Subvol,
    notices: mpsc::UnboundedReceiver<Notice>,
    client: ClientId,
    volume: VolumeFile,
}

fn volume() -> VolumeFile {
    let shape = Shape { replica: 1, arbiter: false, quorum: Default::default() };
    VolumeFile::create("gv0", uuid::Uuid::new_v4(), shape, &["127.0.0.1:1:/bricks/0".to_owned()]).unwrap()
}

fn config(volume: &VolumeFile, listen: &str, term: Duration) -> BrickConfig {
    let mut config = BrickConfig::new("/bricks/0", listen, volume.clone(), "gv0-client-0");
    config.lease_term = term;
    config.threads = Threads::Own(2);
    config
}

fn stack(recorder: &Arc<Recorder>) -> Stack {
    let bottom: Subvol = Arc::<Recorder>::clone(recorder);
    Stack::over("gv0-client-0", bottom, Arc::new(Watcher(Arc::clone(recorder))), Extras::default())
}

fn spec(address: &str) -> BrickSpec {
    let path = "/bricks/0".to_owned();
    BrickSpec { id: "gv0-client-0".to_owned(), address: address.to_owned(), path, arbiter: false }
}

impl Pair {
    async fn new() -> Self {
        Self::with_term(Duration::from_secs(10)).await
    }

    async fn with_term(term: Duration) -> Self {
        let (recorder, volume, client) = (Recorder::new(), volume(), ClientId(7 << 64 | 9));
        let brick = Brick::start_over(config(&volume, "127.0.0.1:0", term), stack(&recorder)).await.unwrap();
        let (notices_tx, notices) = mpsc::unbounded_channel();
        let remote = Remote::connect(&spec(&brick.address().to_string()), volume.id, client, notices_tx);
        until(&remote, Health::is_up).await;
        Self { recorder, brick, remote, notices, client, volume }
    }

    fn ctx(&self) -> Ctx {
        Ctx::new(1, self.client, Caller::root(), Instant::now() + Duration::from_secs(20))
    }
}

async fn until(layer: &Subvol, wanted: impl Fn(Health) -> bool) -> Health {
    let mut health = layer.health();
    let found = health.wait_for(|health| wanted(*health)).await.unwrap();
    *found
}

fn gfid(n: u8) -> Gfid {
    Gfid::from_bytes([n; 16])
}

fn rmdir(n: u8) -> Rmdir {
    Rmdir { parent: gfid(n), name: Name::new("x").unwrap(), when: Time::default() }
}

#[tokio::test]
async fn every_fop_and_every_answer_arrive_as_they_were_sent() {
    let pair = Pair::new().await;
    let caller = Caller { uid: 1000, gid: 100, groups: [4, 24, 100_000].into_iter().collect(), pid: -3 };
    for (fop, reply) in samples::all() {
        let mut ctx = Ctx::new(0xabcd_0123, pair.client, caller.clone(), Instant::now() + Duration::from_secs(20));
        ctx.leases.push((gfid(9), Epoch(u64::MAX)));
        ctx.leases.push((gfid(8), Epoch(0)));
        let kind = fop.kind();
        pair.recorder.answers.lock().insert(kind, Ok(reply.clone()));
        let answer = pair.remote.call(&ctx, fop.clone()).await.unwrap();
        assert_eq!(pair.recorder.asked.lock().pop().unwrap(), line(&ctx, &fop));
        assert_eq!(format!("{answer:?}"), format!("{reply:?}"));
        for error in [FopError::Refused(Errno::NOTEMPTY), FopError::Fenced, FopError::Unreachable] {
            pair.recorder.answers.lock().insert(kind, Err(error));
            assert_eq!(pair.remote.call(&ctx, fop.clone()).await.unwrap_err(), error, "{kind:?}");
        }
    }
    let seen: std::collections::HashSet<_> = samples::all().iter().map(|sample| sample.0.kind()).collect();
    assert_eq!(seen.len(), FopKind::ALL.len(), "a fop has no sample");
}

#[tokio::test]
async fn recalls_and_blames_arrive() {
    let mut pair = Pair::new().await;
    assert_eq!(pair.notices.recv().await, Some(Notice::Blames { any: false }));
    let recall = Notice::Recall { gfid: gfid(3), epoch: Epoch(77), wanted: LeaseMode::Exclusive };
    pair.recorder.notices.lock().as_ref().unwrap().send(recall).unwrap();
    assert_eq!(pair.notices.recv().await, Some(recall));
    pair.recorder.blames.send_replace(true);
    assert_eq!(pair.notices.recv().await, Some(Notice::Blames { any: true }));
}

#[tokio::test]
async fn a_lease_that_waits_holds_up_nobody() {
    let pair = Pair::new().await;
    let gate = pair.recorder.hold(FopKind::Lease);
    let lease = |n| Lease {
        gfids: [gfid(n)].into_iter().collect(),
        mode: LeaseMode::Exclusive,
        wait: true,
        reclaim: false,
        attrs: false,
    };
    let (ctx, remote) = (pair.ctx(), Arc::clone(&pair.remote));
    let waits = tokio::spawn(async move { remote.call(&ctx, lease(1).into()).await });
    let unlease = mortar_xlators::fop::Unlease { objects: Vec::new(), keep_shared: false };
    assert_eq!(pair.remote.call(&pair.ctx(), unlease.into()).await.unwrap_err(), Errno::NOSYS.into());
    assert_eq!(pair.remote.call(&pair.ctx(), rmdir(1).into()).await.unwrap_err(), Errno::NOSYS.into());
    assert!(!waits.is_finished());
    gate.notify_one();
    assert_eq!(waits.await.unwrap().unwrap_err(), Errno::NOSYS.into());
}

#[tokio::test]
async fn requests_for_one_object_run_in_order_and_others_beside_them() {
    let pair = Pair::new().await;
    let gate = pair.recorder.hold(FopKind::Rmdir);
    let call = |fop: Fop| {
        let (ctx, remote) = (pair.ctx(), Arc::clone(&pair.remote));
        tokio::spawn(async move { remote.call(&ctx, fop).await })
    };
    let first = call(rmdir(1).into());
    while pair.recorder.calls.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    let name = Name::new("y").unwrap();
    let only = mortar_xlators::fop::Only::Any;
    let second = call(Unlink { parent: gfid(1), name, only, when: Time::default() }.into());
    let other = call(Getattr { gfid: gfid(2), fd: None, exact: AttrMask::all() }.into());
    assert!(other.await.unwrap().is_err());
    assert!(!second.is_finished() && !first.is_finished());
    assert_eq!(pair.recorder.calls.load(Ordering::SeqCst), 2);
    gate.notify_one();
    assert!(first.await.unwrap().is_err() && second.await.unwrap().is_err());
}

#[tokio::test]
async fn a_caller_is_not_kept_beyond_its_deadline() {
    let pair = Pair::new().await;
    pair.recorder.hold(FopKind::Rmdir);
    let ctx = Ctx { deadline: Instant::now() + Duration::from_millis(50), ..pair.ctx() };
    assert_eq!(pair.remote.call(&ctx, rmdir(1).into()).await.unwrap_err(), FopError::Unreachable);
}

#[tokio::test]
async fn a_brick_that_dies_hangs_nobody_and_is_found_when_it_is_back() {
    let mut pair = Pair::new().await;
    pair.recorder.hold(FopKind::Rmdir);
    let (ctx, remote) = (pair.ctx(), Arc::clone(&pair.remote));
    let asked = tokio::spawn(async move { remote.call(&ctx, rmdir(1).into()).await });
    while pair.recorder.calls.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    let address = pair.brick.address().to_string();
    drop(pair.brick);
    assert_eq!(asked.await.unwrap().unwrap_err(), FopError::Unreachable);
    until(&pair.remote, |health| health == Health::Down).await;
    let ctx = Ctx::new(1, pair.client, Caller::root(), Instant::now() + Duration::from_secs(20));
    assert_eq!(pair.remote.call(&ctx, rmdir(1).into()).await.unwrap_err(), FopError::Unreachable);
    let recorder = Recorder::new();
    let term = Duration::from_secs(10);
    pair.brick = Brick::start_over(config(&pair.volume, &address, term), stack(&recorder)).await.unwrap();
    assert_eq!(until(&pair.remote, Health::is_up).await, Health::Up { session: 2 });
    assert_eq!(pair.remote.call(&ctx, rmdir(1).into()).await.unwrap_err(), Errno::NOSYS.into());
}

/// A client behind a network that can be cut.
async fn behind_a_proxy() -> (Pair, proxy::Proxy) {
    let mut pair = Pair::new().await;
    let proxy = proxy::Proxy::before(pair.brick.address()).await;
    let (notices_tx, notices) = mpsc::unbounded_channel();
    // Another client, so that the first one's session is not taken for its former life.
    pair.client = ClientId(12);
    pair.remote = Remote::connect(&spec(&proxy.address), pair.volume.id, pair.client, notices_tx);
    pair.notices = notices;
    assert_eq!(until(&pair.remote, Health::is_up).await, Health::Up { session: 1 });
    (pair, proxy)
}

#[tokio::test]
async fn a_request_that_runs_while_the_network_breaks_is_not_run_again() {
    let (pair, proxy) = behind_a_proxy().await;
    let gate = pair.recorder.hold(FopKind::Rmdir);
    let (ctx, remote) = (pair.ctx(), Arc::clone(&pair.remote));
    let asked = tokio::spawn(async move { remote.call(&ctx, rmdir(1).into()).await });
    while pair.recorder.calls.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    proxy.cut();
    // The answer to another request shows that the connection is back, and the first request was sent again.
    let ctx = pair.ctx();
    let other = Getattr { gfid: gfid(2), fd: None, exact: AttrMask::all() };
    assert_eq!(pair.remote.call(&ctx, other.into()).await.unwrap_err(), Errno::NOSYS.into());
    gate.notify_one();
    assert_eq!(asked.await.unwrap().unwrap_err(), Errno::NOSYS.into());
    assert_eq!(pair.recorder.calls.load(Ordering::SeqCst), 2);
    assert_eq!(*pair.remote.health().borrow(), Health::Up { session: 1 });
}

#[tokio::test]
async fn an_answer_that_the_network_lost_is_given_again() {
    let (pair, proxy) = behind_a_proxy().await;
    proxy.swallow_answers();
    let (ctx, remote) = (pair.ctx(), Arc::clone(&pair.remote));
    let asked = tokio::spawn(async move { remote.call(&ctx, rmdir(1).into()).await });
    while pair.recorder.calls.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    proxy.cut();
    assert_eq!(asked.await.unwrap().unwrap_err(), Errno::NOSYS.into());
    assert_eq!(pair.recorder.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_that_is_silent_for_a_lease_term_is_gone() {
    let term = Duration::from_millis(300);
    let pair = Pair::with_term(term).await;
    let mut gone = pair.recorder.gone.subscribe();
    // Heartbeats keep it for longer than a term.
    tokio::time::sleep(term * 2).await;
    assert_eq!(*gone.borrow_and_update(), 0);
    drop(pair.remote);
    gone.wait_for(|gone| *gone == 1).await.unwrap();
}

#[tokio::test]
async fn a_brick_of_another_volume_is_refused_with_one_clear_line() {
    let pair = Pair::new().await;
    let address = pair.brick.address().to_string();
    let (notices, _) = mpsc::unbounded_channel();
    let other = Remote::connect(&spec(&address), uuid::Uuid::new_v4(), ClientId(1), notices.clone());
    let another = Remote::connect(
        &BrickSpec { id: "gv0-client-1".to_owned(), ..spec(&address) },
        pair.volume.id,
        ClientId(1),
        notices,
    );
    // A client that is let in afterwards shows that the others had their turn.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!other.health().borrow().is_up() && !another.health().borrow().is_up());
}

#[tokio::test]
async fn a_write_of_the_largest_size_fits() {
    let pair = Pair::new().await;
    let data = bytes::Bytes::from(vec![7; mortar_xlators::types::MAX_IO_BYTES]);
    let place = mortar_xlators::fop::Place::End;
    let write = |data| Write {
        gfid: gfid(1),
        fd: None,
        place,
        data,
        sync: false,
        kill_priv: false,
        when: Time::default(),
        then: None,
    };
    let many = (0..32).map(|_| {
        let (ctx, remote, fop) = (pair.ctx(), Arc::clone(&pair.remote), write(data.clone()));
        tokio::spawn(async move { remote.call(&ctx, fop.into()).await })
    });
    for answer in many.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap().unwrap_err(), Errno::NOSYS.into());
    }
    assert_eq!(pair.recorder.calls.load(Ordering::SeqCst), 32);
    let larger = bytes::Bytes::from(vec![7; mortar_xlators::types::MAX_IO_BYTES + 1]);
    assert_eq!(pair.remote.call(&pair.ctx(), write(larger).into()).await.unwrap_err(), Errno::INVAL.into());
}
