//! The brick's part alone: who is in the way of whom, who is told when the way is free, what is bounded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::table::{Ask, Asked, Limits, Table};
use super::{Locks, Memory};
use crate::ctx::{Caller, Ctx};
use crate::error::{Errno, FopError, Result};
use crate::fop::{Claim, Fop, Lk, LkWhat};
use crate::ranges::{LockMode, Locked, Span};
use crate::reply::{Lockable, Reply};
use crate::types::{ClientId, Gfid, LockFamily, LockOwner};
use crate::xlator::{Health, Subvol, Xlator};
use LockMode::{Read, Write};

/// Nothing is below.
#[derive(Debug)]
struct Floor;

impl Xlator for Floor {
    fn name(&self) -> &str {
        "floor"
    }

    fn call<'a>(&'a self, _: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        panic!("{} is not for the layer below", fop.kind().name());
    }

    fn health(&self) -> watch::Receiver<Health> {
        watch::channel(Health::Up { session: 1 }).1
    }
}

/// A file, and programs 0 to 9 of client 1, 10 to 19 of client 2 and so on.
struct Brick(Arc<Locks>);

/// Long enough for what a test asks before its end.
const GRACE: Duration = Duration::from_secs(2);

const FILE: Gfid = Gfid::from_bytes([7; 16]);
const OTHER: Gfid = Gfid::from_bytes([8; 16]);

impl Brick {
    fn new() -> Self {
        Self(Locks::new(Arc::new(Floor), Memory::Empty))
    }

    fn forgetful(grace: Duration) -> Self {
        Self(Locks::new(Arc::new(Floor), Memory::Lost(grace)))
    }

    fn lk(&self, gfid: Gfid, program: u64, what: LkWhat, span: Span) -> BoxFuture<'static, Result<Lockable>> {
        let owner = LockOwner { family: LockFamily::Posix, id: program };
        self.send(Lk { gfid, fd: None, owner, pid: program as i32, what, span })
    }

    fn send(&self, lk: Lk) -> BoxFuture<'static, Result<Lockable>> {
        let locks: Subvol = Arc::<Locks>::clone(&self.0);
        let client = ClientId(u128::from(lk.owner.id / 10 + 1));
        let deadline = Instant::now() + Duration::from_secs(3600);
        Box::pin(async move { locks.send(&Ctx::new(1, client, Caller::root(), deadline), lk).await })
    }

    fn now(&self, program: u64, what: LkWhat, span: Span) -> Result<Lockable> {
        self.lk(FILE, program, what, span).now_or_never().expect("a question is answered at once")
    }

    fn lock(&self, program: u64, mode: LockMode, start: u64, end: u64) -> Result<Lockable> {
        self.now(program, LkWhat::Set(mode, Claim::New), span(start, end))
    }
}

fn span(start: u64, end: u64) -> Span {
    Span::new(start, end).unwrap()
}

fn held(pid: i32, mode: LockMode, start: u64, end: u64) -> Result<Lockable> {
    Ok(Lockable::Held { by: Locked { span: span(start, end), mode }, pid })
}

const FREE: Result<Lockable> = Ok(Lockable::Free);

/// C115, the part of it that one brick answers.
#[test]
fn the_first_lock_in_the_way_is_named() {
    let brick = Brick::new();
    assert_eq!(brick.lock(1, Read, 10, 20), FREE);
    assert_eq!(brick.lock(2, Write, 30, 40), FREE);
    assert_eq!(brick.lock(11, Read, 15, 25), FREE);
    assert_eq!(brick.lock(12, Write, 20, 20), held(1, Read, 10, 20));
    assert_eq!(brick.now(12, LkWhat::Get(Read), span(0, 100)), held(2, Write, 30, 40));
    assert_eq!(brick.now(12, LkWhat::Get(Write), span(0, 100)), held(1, Read, 10, 20));
    assert_eq!(brick.now(12, LkWhat::Get(Write), span(21, 100)), held(11, Read, 15, 25));
    assert_eq!(brick.now(1, LkWhat::Get(Write), span(10, 14)), FREE);
    assert_eq!(brick.lock(1, Write, 10, 12), FREE);
    assert_eq!(brick.now(12, LkWhat::Get(Read), span(0, 29)), held(1, Write, 10, 12));
    assert_eq!(brick.now(1, LkWhat::Unlock, Span::ALL), FREE);
    assert_eq!(brick.now(12, LkWhat::Get(Write), span(0, 14)), FREE);
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    let brick = Brick::new();
    assert_eq!(brick.lock(1, Write, 0, Span::END), FREE);
    let owner = |id| LockOwner { family: LockFamily::Flock, id };
    let flock = |id| Lk {
        gfid: FILE,
        fd: None,
        owner: owner(id),
        pid: 0,
        what: LkWhat::Set(Write, Claim::New),
        span: Span::ALL,
    };
    assert_eq!(brick.send(flock(11)).now_or_never().unwrap(), FREE);
    assert_eq!(brick.send(flock(12)).now_or_never().unwrap(), held(0, Write, 0, Span::END));
}

#[tokio::test]
async fn who_waits_is_told_when_the_way_is_free_and_not_before() {
    let brick = Brick::new();
    assert_eq!(brick.lock(1, Write, 0, 9), FREE);
    let mut reader = brick.lk(FILE, 11, LkWhat::Await(Read), span(5, 5));
    let mut writer = brick.lk(FILE, 12, LkWhat::Await(Write), span(9, 12));
    assert_eq!(reader.as_mut().now_or_never(), None);
    assert_eq!(writer.as_mut().now_or_never(), None);
    assert_eq!(brick.now(1, LkWhat::Unlock, span(0, 4)), FREE);
    assert_eq!(reader.as_mut().now_or_never(), None);
    // Lowered to a reader's lock: the way is free for readers.
    assert_eq!(brick.lock(1, Read, 5, 9), FREE);
    assert_eq!(reader.await, FREE);
    assert_eq!(writer.as_mut().now_or_never(), None);
    brick.0.client_gone(ClientId(1));
    assert_eq!(writer.await, FREE);
    assert_eq!(brick.now(13, LkWhat::Get(Write), Span::ALL), FREE, "who waited has locked nothing");
}

#[tokio::test]
async fn a_wait_that_is_given_up_leaves_nothing() {
    let brick = Brick::new();
    assert_eq!(brick.lock(1, Write, 0, 9), FREE);
    let mut waiting = brick.lk(FILE, 11, LkWhat::Await(Write), span(0, 0));
    assert_eq!(waiting.as_mut().now_or_never(), None);
    drop(waiting);
    assert_eq!(brick.now(1, LkWhat::Unlock, Span::ALL), FREE);
    assert!(!format!("{:?}", brick.0.table).contains("Waiting"));
    let mut of_the_dead = brick.lk(FILE, 21, LkWhat::Await(Write), Span::ALL);
    assert_eq!(brick.lock(1, Write, 0, 9), FREE);
    assert_eq!(of_the_dead.as_mut().now_or_never(), None);
    brick.0.client_gone(ClientId(3));
    assert_eq!(of_the_dead.await, Err(FopError::Refused(Errno::NOTCONN)));
}

#[tokio::test]
async fn a_circle_of_waits_is_refused() {
    let brick = Brick::new();
    assert_eq!(brick.lock(1, Write, 0, 0), FREE);
    assert_eq!(brick.lock(11, Write, 1, 1), FREE);
    let locked = brick.lk(OTHER, 21, LkWhat::Set(Write, Claim::New), Span::ALL).await;
    assert_eq!(locked, FREE);
    let mut first = brick.lk(FILE, 1, LkWhat::Await(Write), span(1, 1));
    let mut second = brick.lk(OTHER, 11, LkWhat::Await(Read), span(5, 6));
    assert_eq!(first.as_mut().now_or_never(), None);
    assert_eq!(second.as_mut().now_or_never(), None);
    let third = brick.lk(FILE, 21, LkWhat::Await(Write), span(0, 0));
    assert_eq!(third.now_or_never().unwrap(), Err(FopError::Refused(Errno::DEADLK)));
    // Somebody who waits in the same place and is waited for by nobody does so.
    let mut fourth = brick.lk(FILE, 22, LkWhat::Await(Write), span(0, 0));
    assert_eq!(fourth.as_mut().now_or_never(), None);
}

/// C113, the part of it that one brick answers.
#[tokio::test]
async fn a_brick_that_forgot_lets_former_holders_come_first() {
    let brick = Brick::forgetful(GRACE);
    let all = Span::ALL;
    assert_eq!(brick.lock(1, Write, 0, 9), Ok(Lockable::Grace));
    assert_eq!(brick.now(1, LkWhat::Get(Write), all), Ok(Lockable::Grace));
    assert_eq!(brick.now(11, LkWhat::Set(Write, Claim::Again), span(5, 9)), FREE);
    assert_eq!(brick.now(21, LkWhat::Set(Read, Claim::Again), span(9, 9)), held(11, Write, 5, 9));
    assert_eq!(brick.now(21, LkWhat::Set(Read, Claim::Vouched), span(0, 4)), FREE);
    let waiting = brick.lk(FILE, 1, LkWhat::Await(Write), span(100, 101));
    assert_eq!(waiting.await, FREE, "who waits, waits for that, too");
    assert_eq!(brick.lock(1, Write, 100, 100), FREE);
    assert_eq!(brick.now(12, LkWhat::Set(Write, Claim::Again), span(50, 50)), Ok(Lockable::Late));
    assert_eq!(brick.now(12, LkWhat::Set(Write, Claim::Vouched), span(50, 50)), FREE);
    assert_eq!(brick.now(12, LkWhat::Set(Write, Claim::Again), span(50, 50)), FREE, "it is known to have it");
    assert_eq!(brick.now(12, LkWhat::Set(Read, Claim::Again), span(50, 50)), Ok(Lockable::Late));
    assert_eq!(brick.now(12, LkWhat::Set(Write, Claim::Again), span(50, 51)), Ok(Lockable::Late));
}

#[tokio::test]
async fn a_wait_ends_with_its_deadline() {
    let brick = Brick::new();
    assert_eq!(brick.lock(1, Write, 0, 9), FREE);
    let owner = LockOwner { family: LockFamily::Posix, id: 11 };
    let lk = Lk { gfid: FILE, fd: None, owner, pid: 11, what: LkWhat::Await(Read), span: Span::ALL };
    let soon = Ctx::new(1, ClientId(2), Caller::root(), Instant::now() + Duration::from_millis(20));
    let locks: Subvol = Arc::<Locks>::clone(&brick.0);
    assert_eq!(locks.send(&soon, lk).await, held(1, Write, 0, 9));
}

#[test]
fn locks_and_waits_are_bounded() {
    let table = Table::new(Limits { ranges_per_file: 4, ranges_per_client: 6, waiters_per_file: 1 });
    let ask = |gfid: Gfid, program: u64, start: u64| Ask {
        gfid,
        owner: (ClientId(u128::from(program / 10)), LockOwner { family: LockFamily::Posix, id: program }),
        pid: 0,
        span: span(start, start + 2),
    };
    for number in 0..4 {
        assert_eq!(table.lock(&ask(FILE, number, number * 10), Write), Ok(None));
    }
    assert_eq!(table.lock(&ask(FILE, 11, 90), Write), Err(Errno::NOLCK));
    assert_eq!(table.lock(&ask(FILE, 0, 0), Read), Ok(None), "what needs no more room is not refused");
    let inside = Ask { span: span(1, 1), ..ask(FILE, 0, 0) };
    assert_eq!(table.unlock(&inside), Err(Errno::NOLCK), "half of a lock would be two");
    let waiter = table.wait(&ask(FILE, 11, 0), Write).unwrap();
    assert!(matches!(waiter, Asked::Parked(_)));
    assert_eq!(table.wait(&ask(FILE, 12, 0), Write).unwrap_err(), Errno::NOLCK);
    assert_eq!(table.lock(&ask(OTHER, 5, 0), Write), Ok(None));
    assert_eq!(table.lock(&ask(OTHER, 5, 10), Write), Ok(None));
    assert_eq!(table.lock(&ask(OTHER, 5, 20), Write), Err(Errno::NOLCK), "that client has enough");
    assert_eq!(table.lock(&ask(OTHER, 15, 20), Write), Ok(None), "another has not");
    table.forget_client(ClientId(0));
    assert_eq!(table.lock(&ask(OTHER, 5, 30), Write), Ok(None));
}
