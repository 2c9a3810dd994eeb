//! Leases: who may hold what, how they are recalled, fenced, and forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{FopKind, Lease, Only, Place, Readdir, Rmdir, Setattr, Settled, Unlease, Unlink};
use mortar_xlators::graph::Quorum;
use mortar_xlators::leases::{Config, Leases, Start};
use mortar_xlators::types::LeaseMode::{Exclusive, Shared};
use mortar_xlators::types::{ClientId, Cover, Epoch, Gfid, LeaseMode};
use mortar_xlators::xlator::{Notice, Subvol};
use smallvec::smallvec;

use crate::memory::Memory;
use crate::set::{Client, Dice, Fault, Set, config, gfid, name, session, when};

type Heard = tokio::sync::mpsc::UnboundedReceiver<Notice>;

/// The leases of one brick, and sessions that a test speaks for.
struct Brick {
    disk: Arc<Memory>,
    leases: Arc<Leases>,
    heard: HashMap<u128, Heard>,
}

impl Brick {
    fn new(sessions: u128) -> Self {
        Self::with(sessions, Memory::new(false), config(Start::Fresh, 1))
    }

    fn with(sessions: u128, disk: Arc<Memory>, config: Config) -> Self {
        let leases = Leases::new(disk.clone(), disk.clone(), config);
        let heard = (1..=sessions).map(|client| (client, session(&leases, ClientId(client)))).collect();
        Self { disk, leases, heard }
    }

    fn ctx(client: u128, wait: Duration) -> Ctx {
        Ctx::new(0, ClientId(client), Caller::root(), Instant::now() + wait)
    }

    async fn ask(&self, client: u128, object: u64, mode: LeaseMode) -> Result<Epoch, Errno> {
        let lease = Lease { gfids: smallvec![gfid(object)], mode, wait: false, reclaim: false, attrs: false };
        self.send(client, lease).await
    }

    async fn wait(&self, client: u128, object: u64, mode: LeaseMode, time: Duration) -> Result<Epoch, Errno> {
        let lease = Lease { gfids: smallvec![gfid(object)], mode, wait: true, reclaim: false, attrs: false };
        let brick: Subvol = self.leases.clone();
        brick.send(&Self::ctx(client, time), lease).await.map_err(FopError::errno)?.grants[0].epoch
    }

    async fn send(&self, client: u128, lease: Lease) -> Result<Epoch, Errno> {
        let brick: Subvol = self.leases.clone();
        let granted = brick.send(&Self::ctx(client, Duration::from_secs(30)), lease).await;
        granted.map_err(FopError::errno)?.grants[0].epoch
    }

    async fn give_back(&self, client: u128, object: u64, epoch: Epoch, changes: Option<u64>) {
        let brick: Subvol = self.leases.clone();
        let objects = vec![Settled { gfid: gfid(object), epoch, changes }];
        let ctx = Self::ctx(client, Duration::from_secs(1));
        brick.send(&ctx, Unlease { objects, keep_shared: false }).await.expect("given back");
    }

    async fn change(&self, client: u128, object: u64, epoch: Epoch) -> Result<(), FopError> {
        let brick: Subvol = self.leases.clone();
        let ctx = Self::ctx(client, Duration::from_secs(1)).under(smallvec![(gfid(object), epoch)]);
        let setattr = Setattr {
            gfid: gfid(object),
            fd: None,
            mode: Some(0o600),
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_priv: false,
            when: when(3),
        };
        brick.send(&ctx, setattr).await.map(|_| ())
    }

    fn recalls(&mut self, client: u128) -> Vec<(u64, LeaseMode)> {
        let heard = self.heard.get_mut(&client).expect("a session");
        let mut recalls = Vec::new();
        while let Ok(notice) = heard.try_recv() {
            if let Notice::Recall { gfid, wanted, .. } = notice {
                recalls.push((gfid.ino(), wanted));
            }
        }
        recalls
    }
}

#[tokio::test]
async fn shared_goes_with_shared_and_nothing_else_with_anything() {
    for (held, asked, granted) in
        [(Shared, Shared, true), (Shared, Exclusive, false), (Exclusive, Shared, false), (Exclusive, Exclusive, false)]
    {
        let mut brick = Brick::new(2);
        brick.ask(1, 5, held).await.expect("the first is granted");
        assert_eq!(brick.ask(2, 5, asked).await.is_ok(), granted, "{held:?} {asked:?}");
        assert_eq!(brick.recalls(1), [], "who does not wait recalls nobody");
        assert!(brick.ask(2, 6, asked).await.is_ok(), "another object is free");
        assert!(brick.ask(1, 5, held).await.is_ok(), "one's own is no obstacle");
    }
}

#[tokio::test]
async fn a_change_runs_only_under_the_current_exclusive_epoch() {
    let brick = Brick::new(2);
    let fenced = Err(FopError::Fenced);
    assert_eq!(brick.change(1, 5, Epoch(1)).await, fenced, "no lease");
    let shared = brick.ask(1, 5, Shared).await.expect("granted");
    assert_eq!(brick.change(1, 5, shared).await, fenced, "a shared lease");
    let exclusive = brick.ask(1, 5, Exclusive).await.expect("raised");
    assert!(exclusive > shared);
    assert_eq!(brick.change(1, 5, shared).await, fenced, "an old epoch");
    assert_eq!(brick.change(2, 5, exclusive).await, fenced, "another session's epoch");
    assert_eq!(brick.change(1, 5, exclusive).await, Err(FopError::Refused(Errno::NOENT)), "admitted");
    brick.give_back(1, 5, exclusive, Some(1)).await;
    assert_eq!(brick.change(1, 5, exclusive).await, fenced, "given back");
}

#[tokio::test]
async fn waiters_are_served_in_their_order() {
    let mut brick = Brick::new(4);
    let epoch = brick.ask(1, 5, Exclusive).await.expect("granted");
    let long = Duration::from_secs(20);
    let order = Arc::new(AtomicUsize::new(0));
    let waiter = |client: u128, mode| {
        let (leases, order) = (brick.leases.clone(), order.clone());
        tokio::spawn(async move {
            let brick: Subvol = leases;
            let lease = Lease { gfids: smallvec![gfid(5)], mode, wait: true, reclaim: false, attrs: false };
            let granted = brick.send(&Brick::ctx(client, long), lease).await.expect("answered");
            (order.fetch_add(1, Ordering::SeqCst), granted.grants[0].epoch.expect("granted"))
        })
    };
    let second = waiter(2, Exclusive);
    tokio::task::yield_now().await;
    let third = waiter(3, Shared);
    tokio::task::yield_now().await;
    let fourth = waiter(4, Shared);
    tokio::task::yield_now().await;
    assert_eq!(brick.recalls(1), [(5, Exclusive)], "told once");
    brick.give_back(1, 5, epoch, Some(0)).await;
    let (place, epoch) = second.await.expect("ended");
    assert_eq!(place, 0);
    assert_eq!(brick.recalls(2), [(5, Shared)], "the next one wants it");
    brick.give_back(2, 5, epoch, Some(0)).await;
    assert!(third.await.expect("ended").0 > 0 && fourth.await.expect("ended").0 > 0);
}

#[tokio::test]
async fn who_waits_too_long_is_told_to_try_again_and_leaves_no_trace() {
    let brick = Brick::new(2);
    let epoch = brick.ask(1, 5, Exclusive).await.expect("granted");
    assert_eq!(brick.wait(2, 5, Exclusive, Duration::from_millis(30)).await, Err(Errno::AGAIN));
    brick.give_back(1, 5, epoch, Some(0)).await;
    assert!(brick.ask(1, 5, Exclusive).await.is_ok(), "nobody stands in the queue");
}

#[tokio::test]
async fn a_holder_that_does_nothing_is_fenced() {
    let mut config = config(Start::Fresh, 1);
    config.recall_patience = Duration::from_millis(50);
    let brick = Brick::with(2, Memory::new(false), config);
    let old = brick.ask(1, 5, Exclusive).await.expect("granted");
    let new = brick.wait(2, 5, Exclusive, Duration::from_secs(20)).await.expect("taken over");
    assert!(new > old);
    assert_eq!(brick.change(1, 5, old).await, Err(FopError::Fenced));
    assert_ne!(brick.change(2, 5, new).await, Err(FopError::Fenced));
}

#[tokio::test]
async fn a_session_that_ends_leaves_its_leases_and_its_dirt() {
    let brick = Brick::new(2);
    let epoch = brick.ask(1, 5, Exclusive).await.expect("granted");
    let _ = brick.change(1, 5, epoch).await;
    brick.leases.client_gone(ClientId(1));
    assert_eq!(brick.change(1, 5, epoch).await, Err(FopError::Fenced));
    let lease = Lease { gfids: smallvec![gfid(5)], mode: Exclusive, wait: true, reclaim: false, attrs: false };
    let subvol: Subvol = brick.leases.clone();
    let granted = subvol.send(&Brick::ctx(2, Duration::from_secs(1)), lease).await.expect("answered");
    assert!(granted.grants[0].epoch.is_ok() && granted.grants[0].unsettled);
    brick.leases.clear_settled().await;
    assert!(brick.disk.dirty().contains(&gfid(5)));
    // The next holder's own word is not enough to clear what another left.
    let epoch = granted.grants[0].epoch.expect("granted");
    let _ = brick.change(2, 5, epoch).await;
    brick.give_back(2, 5, epoch, Some(1)).await;
    brick.leases.clear_settled().await;
    assert!(brick.disk.dirty().contains(&gfid(5)));
}

#[tokio::test]
async fn an_object_leaves_the_journal_only_when_the_counts_agree() {
    for (reported, clean) in [(Some(2), true), (Some(1), false), (Some(3), false), (None, false)] {
        let brick = Brick::new(1);
        let epoch = brick.ask(1, 5, Exclusive).await.expect("granted");
        for _ in 0..2 {
            let _ = brick.change(1, 5, epoch).await;
        }
        assert!(brick.disk.dirty().contains(&gfid(5)));
        brick.give_back(1, 5, epoch, reported).await;
        brick.leases.clear_settled().await;
        assert_eq!(brick.disk.dirty().is_empty(), clean, "{reported:?}");
    }
}

#[tokio::test]
async fn a_brick_that_forgot_its_leases_takes_only_reclaims_for_a_term() {
    let disk = Memory::new(false);
    let mut config = config(Start::Forgot, 1);
    config.term = Duration::from_millis(200);
    let brick = Brick::with(2, disk, config);
    assert_eq!(brick.ask(1, 5, Exclusive).await, Err(Errno::AGAIN));
    let reclaim = Lease { gfids: smallvec![gfid(6)], mode: Exclusive, wait: false, reclaim: true, attrs: false };
    assert!(brick.send(2, reclaim).await.is_ok());
    assert!(brick.ask(1, 7, Shared).await.is_ok());
    let before = Instant::now();
    assert!(brick.wait(1, 5, Exclusive, Duration::from_secs(20)).await.is_ok());
    assert!(before.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn another_clients_change_is_seen_at_once_and_its_cover_is_withdrawn() {
    for copies in [1, 2, 3] {
        let set = Set::new(copies, Quorum::Auto);
        let (a, b) = (set.client(), set.client());
        assert_eq!(b.lookup(Gfid::ROOT, "f").await.expect("looked").cover, Cover::NAME);
        a.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
        assert!(b.upcall.0.lock().contains(&Gfid::ROOT), "b was told that its cover ends");
        let found = b.lookup(Gfid::ROOT, "f").await.expect("looked").found.expect("found");
        assert_eq!(found.iatt.size, 3);
        assert_eq!(b.read(gfid(42)).await.as_deref(), Ok("one"));
        a.write(gfid(42), Place::At(0), "three").await.expect("written");
        assert_eq!(b.getattr(gfid(42)).await.expect("there").iatt.size, 5);
        b.write(gfid(42), Place::End, "!").await.expect("written");
        assert_eq!(a.read(gfid(42)).await.as_deref(), Ok("three!"));
        set.agree(&(0..copies).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn removing_a_name_recalls_what_others_hold_on_the_inode() {
    let set = Set::new(3, Quorum::Auto);
    let (a, b) = (set.client(), set.client());
    a.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
    assert_eq!(b.read(gfid(42)).await.as_deref(), Ok("one"));
    assert_eq!(b.getattr(gfid(42)).await.expect("there").cover, Cover::ATTRS);
    let only = mortar_xlators::fop::Only::Any;
    a.send(Unlink { parent: Gfid::ROOT, name: name("f"), only, when: when(2) }).await.expect("removed");
    assert!(b.upcall.0.lock().contains(&gfid(42)));
    assert!(b.getattr(gfid(42)).await.is_err());
}

/// Who holds an inode does not wait behind others who want it when it takes its name away.
#[tokio::test]
async fn who_holds_a_directory_removes_it_though_others_wait_for_it() {
    let set = Set::patient(3, Quorum::Auto);
    let (a, b) = (set.client(), set.client());
    a.mkdir(Gfid::ROOT, "d", gfid(10)).await.expect("made");
    let lease = |gfids| Lease { gfids, mode: Exclusive, wait: true, reclaim: false, attrs: false };
    a.send(lease(smallvec![Gfid::ROOT, gfid(10)])).await.expect("held");
    let other = tokio::spawn(async move { b.send(lease(smallvec![gfid(10)])).await.map(|_| b) });
    Client::until("it is wanted", || a.upcall.0.lock().contains(&gfid(10))).await;
    let rmdir = Rmdir { parent: Gfid::ROOT, name: name("d"), when: when(2) };
    a.top.send(&a.ctx().held(), rmdir).await.expect("removed");
    let back = |gfid| Settled { gfid, epoch: Epoch(0), changes: None };
    let objects = vec![back(Gfid::ROOT), back(gfid(10))];
    a.send(Unlease { objects, keep_shared: false }).await.expect("given back");
    other.await.expect("not aborted").expect("held by the other");
}

#[tokio::test]
async fn a_look_at_a_file_does_not_disturb_who_writes_it() {
    let set = Set::new(3, Quorum::Auto);
    let (a, b) = (set.client(), set.client());
    a.mkdir(Gfid::ROOT, "d", gfid(10)).await.expect("made");
    a.create(gfid(10), "f", gfid(42), "x").await.expect("created");
    a.write(gfid(42), Place::End, "x").await.expect("written");
    Client::until("its maker keeps nothing back", || set.bricks.iter().all(|b| b.disk.dirty().is_empty())).await;
    for size in 3..6 {
        a.write(gfid(42), Place::End, "x").await.expect("written");
        let found = b.getattr(gfid(42)).await.expect("there");
        assert_eq!((found.iatt.size, found.cover), (size, Cover::empty()));
    }
    assert_eq!(*a.upcall.0.lock(), []);
}

#[tokio::test]
async fn a_look_at_a_file_whose_maker_may_keep_something_back_recalls_it() {
    let set = Set::new(3, Quorum::Auto);
    let (a, b) = (set.client(), set.client());
    a.mkdir(Gfid::ROOT, "d", gfid(10)).await.expect("made");
    a.create(gfid(10), "f", gfid(42), "x").await.expect("created");
    let found = b.getattr(gfid(42)).await.expect("there");
    assert_eq!((found.iatt.size, found.cover), (1, Cover::ATTRS));
    assert_eq!(*a.upcall.0.lock(), [gfid(42)]);
}

/// A program that had opened a file under a lease of that kind could neither read nor write what it had open.
#[tokio::test]
async fn nothing_of_an_inode_that_one_copy_has_lost_is_covered() {
    for lost in 0..3 {
        let set = Set::new(3, Quorum::Auto);
        let (a, b) = (Arc::new(set.client()), set.client());
        a.create(Gfid::ROOT, "f", gfid(42), "x").await.expect("created");
        a.send(Unlease { objects: vec![], keep_shared: false }).await.expect("all is given back");
        let late = a.wires.iter().enumerate().filter(|&(copy, _)| copy != lost).map(|(_, wire)| wire);
        late.clone().for_each(|wire| wire.faults.lock().push_back((FopKind::Unlink, Fault::Delay)));
        let unlink = Unlink { parent: Gfid::ROOT, name: name("f"), only: Only::Any, when: when(2) };
        let removing = tokio::spawn({
            let a = Arc::clone(&a);
            async move { a.send(unlink).await }
        });
        Client::until("one copy has lost it", || set.bricks[lost].disk.path("f").is_none()).await;
        if let Ok(found) = b.getattr(gfid(42)).await {
            assert_eq!(found.cover, Cover::empty(), "copy {lost}");
        }
        late.for_each(|wire| wire.gate.add_permits(1));
        removing.await.expect("ended").expect("removed");
    }
}

#[tokio::test]
async fn what_a_listing_showed_is_covered_until_somebody_changes_it() {
    for copies in [1, 3] {
        let set = Set::new(copies, Quorum::Auto);
        let (a, b) = (set.client(), set.client());
        a.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
        a.create(Gfid::ROOT, "g", gfid(43), "two").await.expect("created");
        a.send(Unlease { objects: vec![], keep_shared: false }).await.expect("all is given back");
        let list = Readdir { gfid: Gfid::ROOT, fd: None, after: 0, bytes_max: 4096, attrs: true };
        let page = b.send(list).await.expect("listed");
        assert!(page.entries.iter().all(|e| e.found.as_ref().is_some_and(|f| f.cover == Cover::NAME | Cover::ATTRS)));
        set.take_log();
        assert_eq!(b.getattr(gfid(42)).await.expect("there").cover, Cover::ATTRS);
        let looked = b.lookup(Gfid::ROOT, "g").await.expect("looked").found.expect("found");
        assert_eq!(looked.cover, Cover::NAME | Cover::ATTRS);
        assert!(!set.take_log().contains("Lease"), "leases are there already");
        a.write(gfid(43), Place::At(0), "three").await.expect("written");
        assert_eq!(*b.upcall.0.lock(), [gfid(43)]);
        assert_eq!(b.getattr(gfid(43)).await.expect("there").iatt.size, 5);
    }
}

#[tokio::test]
async fn a_restarted_brick_gets_its_leases_back_from_who_held_them() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
    let brick = &set.bricks[1];
    brick.disk.restart();
    *brick.leases.lock() = Leases::new(brick.disk.clone(), brick.disk.clone(), config(Start::Forgot, 1_000_000));
    client.wires[1].mend(1);
    // The client has not noticed yet that the brick forgot it.
    client.write(gfid(42), Place::End, "two").await.expect("written");
    client.wires[1].mend(2);
    client.write(gfid(42), Place::End, "three").await.expect("written");
    client.create(Gfid::ROOT, "g", gfid(43), "new").await.expect("created, in the middle of the grace of one copy");
    set.agree(&[0, 1, 2]);
    assert!(!set.take_log().contains("Mark"), "nobody is to blame");
}

#[tokio::test]
async fn a_restarted_brick_makes_nobody_wait_for_its_grace() {
    for restarted in [0, 1, 2] {
        let set = Set::new(3, Quorum::Auto);
        let (a, b) = (set.client(), set.client());
        a.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
        let brick = &set.bricks[restarted];
        *brick.leases.lock() = Leases::new(brick.disk.clone(), brick.disk.clone(), config(Start::Forgot, 9_000_000));
        for client in [&a, &b] {
            client.wires[restarted].mend(2);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = Instant::now();
        for round in 0..3 {
            a.write(gfid(42), Place::End, "a").await.expect("written");
            b.write(gfid(42), Place::End, "b").await.expect("written");
            b.create(Gfid::ROOT, &format!("g{round}"), gfid(50 + round), "").await.expect("created");
            a.create(Gfid::ROOT, &format!("h{round}"), gfid(60 + round), "").await.expect("created");
        }
        assert!(before.elapsed() < Duration::from_secs(4), "copy {restarted}: {:?}", before.elapsed());
        set.agree(&[0, 1, 2]);
        assert!(!set.take_log().contains("Mark"), "nobody is to blame");
    }
}

#[tokio::test]
async fn the_oldest_leases_are_given_back_when_there_are_too_many() {
    let set = Set::new(1, Quorum::Auto);
    let client = set.client_with(|options| options.leases_max = 100);
    for number in 0..300 {
        client.create(Gfid::ROOT, &format!("f{number}"), gfid(1000 + number), "x").await.expect("created");
    }
    Client::until("some were given back", || set.log.lock().contains("Unlease")).await;
    assert_eq!(client.read(gfid(1000)).await.as_deref(), Ok("x"));
}

#[tokio::test]
async fn a_client_that_leaves_in_order_leaves_nothing_dirty() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client_with(|options| options.settle_every = Duration::from_secs(3600));
    client.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
    client.write(gfid(42), Place::End, "two").await.expect("written");
    client.send(Unlease { objects: vec![], keep_shared: false }).await.expect("all is given back");
    for brick in &set.bricks {
        brick.leases.lock().client_gone(client.id);
    }
    Client::until("nothing is dirty", || set.bricks.iter().all(|b| b.disk.dirty().is_empty())).await;
}

#[tokio::test]
async fn a_client_that_lost_its_quorum_forgets_what_it_was_told() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "one").await.expect("created");
    client.wires[0].cut();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(*client.upcall.0.lock(), [], "two of three stand for its leases");
    client.wires[1].cut();
    Client::until("all is forgotten", || client.upcall.0.lock().len() == 2).await;
    client.wires[0].mend(1);
    client.wires[1].mend(1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.write(gfid(42), Place::End, "two").await.expect("written");
    set.agree(&[0, 1, 2]);
}

/// Clients append to the same files at random; every byte must be there once, in the same order on every copy, and
/// nobody may see a size go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_never_change_one_object_at_the_same_time() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_101);
    println!("SEED={seed}");
    for copies in [1, 3] {
        let set = Set::new(copies, Quorum::Auto);
        let clients: Vec<_> = (0..3).map(|_| Arc::new(set.client())).collect();
        let files: Vec<_> = (0..2).map(|file| gfid(100 + file)).collect();
        for (at, &file) in files.iter().enumerate() {
            clients[0].create(Gfid::ROOT, &format!("f{at}"), file, "").await.expect("created");
        }
        let sizes: Arc<Vec<AtomicI64>> = Arc::new(files.iter().map(|_| AtomicI64::new(0)).collect());
        let work = clients.iter().enumerate().map(|(who, client)| {
            let (client, files, sizes) = (client.clone(), files.clone(), sizes.clone());
            let mut dice = Dice(seed + who as u64);
            tokio::spawn(async move {
                let mut written = vec![0; files.len()];
                for _ in 0..60 {
                    let at = dice.roll(files.len() as u64) as usize;
                    let seen = sizes[at].load(Ordering::SeqCst);
                    let size = if dice.roll(3) == 0 {
                        client.getattr(files[at]).await.expect("there").iatt.size
                    } else {
                        written[at] += 1;
                        let wrote = client.write(files[at], Place::End, &who.to_string()).await.expect("written");
                        wrote.iatt.size
                    };
                    assert!(size as i64 >= seen, "a size went back from {seen} to {size}");
                    sizes[at].fetch_max(size as i64, Ordering::SeqCst);
                }
                written
            })
        });
        let written = futures::future::join_all(work).await;
        for (at, &file) in files.iter().enumerate() {
            let content = clients[0].read(file).await.expect("read");
            for (who, written) in written.iter().enumerate() {
                let wanted = written.as_ref().expect("ended")[at];
                assert_eq!(content.matches(&who.to_string()).count(), wanted, "client {who} in file {at}");
            }
        }
        set.agree(&(0..copies).collect::<Vec<_>>());
    }
}
