//! Locks of programs over three copies: what clients that see different copies, lose messages, or give up, leave behind.
//!
//! Bricks have nothing below their locks. What programs see is told in `mount/locks.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, poll};
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Claim, Fop, Lk, LkWhat};
use mortar_xlators::graph::{BrickSpec, Quorum};
use mortar_xlators::locks::{Locks, Memory};
use mortar_xlators::ranges::{LockMode, Span};
use mortar_xlators::replicate::{Replicate, ReplicateOptions};
use mortar_xlators::reply::{Lockable, Reply};
use mortar_xlators::types::{ClientId, Fd, Gfid, LeaseMode, LockFamily, LockOwner};
use mortar_xlators::xlator::{Health, Subvol, Upcall, Xlator};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

/// Nothing is below the locks of a brick.
#[derive(Debug)]
struct Floor;

impl Xlator for Floor {
    fn name(&self) -> &str {
        "floor"
    }

    fn call<'a>(&'a self, _: &'a Ctx, _: Fop) -> BoxFuture<'a, Result<Reply>> {
        std::future::ready(Err(Errno::OPNOTSUPP.into())).boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        watch::channel(Health::Up { session: 1 }).1
    }
}

/// A brick that can lose its memory.
type Brick = Arc<Mutex<Arc<Locks>>>;

fn three() -> Vec<Brick> {
    (0..3).map(|_| Arc::new(Mutex::new(Locks::new(Arc::new(Floor), Memory::Empty)))).collect()
}

fn restart(brick: &Brick) {
    *brick.lock() = Locks::new(Arc::new(Floor), Memory::Lost(Duration::from_secs(3600)));
}

/// The way to a brick.
#[derive(Debug)]
struct Wire {
    brick: Brick,
    health: watch::Sender<Health>,
    /// Requests pass as long as this is open.
    gate: Semaphore,
    /// So many requests get lost.
    lose: AtomicUsize,
}

impl Xlator for Wire {
    fn name(&self) -> &str {
        "wire"
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            let _passed = self.gate.acquire().await.expect("nobody closes it");
            let lost = self.lose.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if lost || !self.health.borrow().is_up() {
                return Err(FopError::Unreachable);
            }
            let locks = Arc::clone(&*self.brick.lock());
            locks.call(ctx, fop).await
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

#[derive(Debug, Default)]
struct Lost(Mutex<Vec<Fd>>);

impl Upcall for Lost {
    fn uncover<'a>(&'a self, _: &'a [Gfid], _: LeaseMode) -> BoxFuture<'a, ()> {
        std::future::ready(()).boxed()
    }

    fn lock_lost(&self, _: Gfid, through: &[Fd]) {
        self.0.lock().extend(through);
    }
}

struct Client {
    id: ClientId,
    wires: Vec<Arc<Wire>>,
    top: Subvol,
    lost: Arc<Lost>,
}

const FILE: Gfid = Gfid::from_bytes([7; 16]);
const THROUGH: Fd = Fd { id: 3, gfid: FILE };

impl Client {
    fn new(number: u128, bricks: &[Brick]) -> Self {
        Self::seeing(number, bricks, 0..3)
    }

    /// A client that is connected to some of the bricks.
    fn seeing(number: u128, bricks: &[Brick], seen: std::ops::Range<usize>) -> Self {
        let id = ClientId(number);
        let wire = |(copy, brick): (usize, &Brick)| {
            let health = if seen.contains(&copy) { Health::Up { session: 1 } } else { Health::Down };
            let (health, lose) = (watch::Sender::new(health), AtomicUsize::new(0));
            Arc::new(Wire { brick: Arc::clone(brick), health, gate: Semaphore::new(1024), lose })
        };
        let wires: Vec<_> = bricks.iter().enumerate().map(wire).collect();
        let spec = |copy: usize| BrickSpec {
            id: format!("v-client-{copy}"),
            address: String::new(),
            path: String::new(),
            arbiter: false,
        };
        let subvols = wires.iter().enumerate().map(|(copy, wire)| (spec(copy), Arc::clone(wire) as Subvol)).collect();
        let notices = wires.iter().map(|_| tokio::sync::mpsc::unbounded_channel().1).collect();
        let (lost, options) = (Arc::new(Lost::default()), ReplicateOptions::default());
        let upcall: Arc<dyn Upcall> = Arc::<Lost>::clone(&lost);
        let top = Replicate::new("v-replicate-0".into(), subvols, Quorum::Auto, options, notices, upcall, id);
        Self { id, wires, top, lost }
    }

    async fn ask(&self, what: LkWhat) -> Result<Lockable> {
        let ctx = Ctx::new(1, self.id, Caller::root(), Instant::now() + Duration::from_secs(60));
        let owner = LockOwner { family: LockFamily::Posix, id: 1 };
        self.top.send(&ctx, Lk { gfid: FILE, fd: Some(THROUGH), owner, pid: 1, what, span: Span::ALL }).await
    }

    async fn try_lock(&self) -> Result<Lockable> {
        self.ask(LkWhat::Set(LockMode::Write, Claim::New)).await
    }

    async fn unlock(&self) {
        assert_eq!(self.ask(LkWhat::Unlock).await, Ok(Lockable::Free));
    }

    fn cut(&self, copy: usize) {
        self.wires[copy].health.send_replace(Health::Down);
    }

    fn mend(&self, copy: usize, session: u64) {
        self.wires[copy].health.send_replace(Health::Up { session });
    }
}

const WAIT: LkWhat = LkWhat::SetWait(LockMode::Write);

/// Look until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a brick by itself says that the file is locked.
async fn knows(brick: &Brick) -> bool {
    let locks: Subvol = Arc::<Locks>::clone(&*brick.lock());
    let owner = LockOwner { family: LockFamily::Posix, id: 9 };
    let ctx = Ctx::new(1, ClientId(99), Caller::root(), Instant::now() + Duration::from_secs(60));
    let what = LkWhat::Set(LockMode::Write, Claim::Vouched);
    let ask = |what| Lk { gfid: FILE, fd: None, owner, pid: 0, what, span: Span::ALL };
    match locks.send(&ctx, ask(what)).await.unwrap() {
        Lockable::Free => {
            locks.send(&ctx, ask(LkWhat::Unlock)).await.unwrap();
            false
        }
        _ => true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_see_different_copies_never_hold_a_lock_together() {
    let bricks = three();
    let inside = Arc::new(AtomicUsize::new(0));
    let seen = [0..3, 1..3, 0..2];
    let clients = seen.into_iter().zip(1..).map(|(seen, number)| {
        let (client, inside) = (Client::seeing(number, &bricks, seen), Arc::clone(&inside));
        tokio::spawn(async move {
            for _ in 0..30 {
                assert_eq!(client.ask(WAIT).await, Ok(Lockable::Free));
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "client {number} is not alone");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                client.unlock().await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    for brick in &bricks {
        assert!(!knows(brick).await);
    }
}

#[tokio::test]
async fn a_lock_that_comes_after_its_caller_has_gone_is_given_back() {
    let bricks = three();
    let (holder, waiter) = (Client::new(1, &bricks), Client::new(2, &bricks));
    assert_eq!(holder.try_lock().await, Ok(Lockable::Free));
    let mut waiting = Box::pin(waiter.ask(WAIT));
    assert!(poll!(&mut waiting).is_pending());
    let stopped = waiter.wires[1].gate.acquire_many(1024).await.unwrap();
    holder.unlock().await;
    // It gets the first copy, and is stopped on its way to the second.
    until("the first copy is locked", async || {
        assert!(poll!(&mut waiting).is_pending());
        knows(&bricks[0]).await
    })
    .await;
    drop(waiting);
    drop(stopped);
    until("all is given back", async || holder.try_lock().await == Ok(Lockable::Free)).await;
}

#[tokio::test]
async fn an_unlock_that_gets_lost_is_sent_again() {
    let bricks = three();
    let client = Client::new(1, &bricks);
    assert_eq!(client.try_lock().await, Ok(Lockable::Free));
    client.wires[2].lose.store(1, Ordering::SeqCst);
    client.unlock().await;
    assert!(!knows(&bricks[2]).await);
}

/// C113: bricks that forget one after the other, and all at once, are told again.
#[tokio::test]
async fn a_brick_that_forgot_is_told_again() {
    let bricks = three();
    let (holder, other) = (Client::new(1, &bricks), Client::new(2, &bricks));
    assert_eq!(holder.try_lock().await, Ok(Lockable::Free));
    for (copy, brick) in bricks.iter().enumerate() {
        holder.cut(copy);
        restart(brick);
        // When none is left that remembers, the answer is that nobody gets anything for a lease term.
        if copy < 2 {
            assert!(matches!(other.try_lock().await, Ok(Lockable::Held { .. })));
        }
        holder.mend(copy, 2);
        until("the brick knows", async || knows(brick).await).await;
    }
    (0..3).for_each(|copy| holder.cut(copy));
    bricks.iter().for_each(restart);
    (0..3).for_each(|copy| holder.mend(copy, 3));
    for brick in &bricks {
        until("every brick knows", async || knows(brick).await).await;
    }
    assert!(holder.lost.0.lock().is_empty());
}

/// C113: who was away for so long that bricks gave its lock to another has lost it, even if the other has let go of it.
#[tokio::test]
async fn a_lock_that_a_quorum_forgot_is_lost() {
    let bricks = three();
    let (holder, other) = (Client::new(1, &bricks), Client::new(2, &bricks));
    assert_eq!(holder.try_lock().await, Ok(Lockable::Free));
    for session_lost in [&bricks[..1], &bricks[1..]] {
        assert!(holder.lost.0.lock().is_empty());
        assert!(matches!(other.try_lock().await, Ok(Lockable::Held { .. })));
        session_lost.iter().for_each(|brick| brick.lock().client_gone(holder.id));
        if session_lost.len() == 1 {
            // The two others vouch for it.
            holder.cut(0);
            holder.mend(0, 2);
            until("it is told again", async || knows(&bricks[0]).await).await;
        }
    }
    bricks[0].lock().client_gone(holder.id);
    assert_eq!(other.try_lock().await, Ok(Lockable::Free));
    other.unlock().await;
    // The first that comes back hears of it, though the holder does not know yet that it is unknown to the others.
    holder.cut(0);
    holder.mend(0, 3);
    until("the lock is lost", async || holder.lost.0.lock().as_slice() == [THROUGH]).await;
    assert_eq!(other.try_lock().await, Ok(Lockable::Free));
}
