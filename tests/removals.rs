//! Removals that are answered when they have begun: the program goes on, and nobody can tell that they have not ended.

use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{FopKind, Fsync, Getattr, Link, Only, Readdir, Rmdir, Unlink};
use mortar_xlators::graph::Quorum;
use mortar_xlators::types::{AttrMask, Cover, Gfid};

use crate::set::{Client, Fault, Set, gfid, name, when};

const DIRECTORY: u64 = 10;

fn listing() -> Readdir {
    Readdir { gfid: gfid(DIRECTORY), fd: None, after: 0, bytes_max: 4096, attrs: true }
}

fn unlink(text: &str) -> Unlink {
    Unlink { parent: gfid(DIRECTORY), name: name(text), only: Only::Any, when: when(9) }
}

fn rmdir() -> Rmdir {
    Rmdir { parent: Gfid::ROOT, name: name("d"), when: when(9) }
}

/// A set, and two clients; the first has listed the directory `d` with the files `a`, `b` and `c`, and removed `c`.
async fn with_a_listing() -> (Set, Client, Client) {
    let set = Set::new(3, Quorum::Auto);
    let (client, other) = (set.caching_client(), set.caching_client());
    client.mkdir(Gfid::ROOT, "d", gfid(DIRECTORY)).await.expect("made");
    for (number, text) in (20..).zip(["a", "b", "c"]) {
        client.create(gfid(DIRECTORY), text, gfid(number), "").await.expect("made");
        client.send(mortar_xlators::fop::Flush { gfid: gfid(number) }).await.expect("closed");
    }
    client.send(listing()).await.expect("listed");
    client.getattr(gfid(DIRECTORY)).await.expect("there");
    client.send(unlink("c")).await.expect("removed");
    client.getattr(gfid(DIRECTORY)).await.expect("there");
    (set, client, other)
}

/// Every removal of the client is on its way until the gates are opened.
fn delay(client: &Client, removals: usize) {
    for wire in &client.wires {
        wire.faults.lock().extend(vec![(FopKind::Unlink, Fault::Delay); removals]);
    }
}

fn open(client: &Client, removals: usize) {
    client.wires.iter().for_each(|wire| wire.gate.add_permits(removals));
}

#[tokio::test]
async fn the_program_goes_on_and_the_next_that_could_tell_waits() {
    let (set, client, other) = with_a_listing().await;
    delay(&client, 2);
    assert_eq!(client.send(unlink("a")).await.expect("begun").iatt.nlink, 0);
    client.send(unlink("b")).await.expect("begun");
    let directory = client.getattr(gfid(DIRECTORY)).await.expect("known").iatt;
    assert_eq!(directory.mtime, when(9));
    let by_name = client.lookup(Gfid::ROOT, "d").await.expect("looked").found.expect("there");
    assert_eq!((by_name.iatt.mtime, by_name.cover.contains(Cover::ATTRS)), (when(9), false), "its size is not known");
    let waits = async {
        let gone = client.send(Getattr { gfid: gfid(20), fd: None, exact: AttrMask::all() }).await;
        let again = client.send(unlink("a")).await.map(drop);
        (gone.map(drop).map_err(FopError::errno), again, client.send(rmdir()).await.map(drop))
    };
    let elsewhere = other.lookup(gfid(DIRECTORY), "b");
    tokio::pin!(waits, elsewhere);
    assert!(futures::poll!(&mut waits).is_pending(), "it has not ended");
    assert!(futures::poll!(&mut elsewhere).is_pending(), "the lease has not gone back");
    let ((gone, again, removed), looked, ()) = tokio::join!(waits, elsewhere, async { open(&client, 2) });
    assert!(matches!(gone, Err(Errno::STALE | Errno::NOENT)), "{gone:?}");
    assert_eq!((again, removed), (Err(FopError::Refused(Errno::NOENT)), Ok(())));
    // Whether the directory was still there is for the order to say; the name was not.
    assert!(looked.is_err() || looked.is_ok_and(|looked| looked.found.is_none()));
    set.agree(&[0, 1, 2]);
}

#[tokio::test]
async fn who_waits_is_not_overtaken_by_further_removals() {
    let (set, client, _) = with_a_listing().await;
    delay(&client, 1);
    client.send(unlink("a")).await.expect("begun");
    let looks = client.lookup(gfid(DIRECTORY), "b");
    tokio::pin!(looks);
    assert!(futures::poll!(&mut looks).is_pending(), "it has not ended");
    set.take_log();
    let next = client.send(unlink("b"));
    tokio::pin!(next);
    assert!(futures::poll!(&mut next).is_pending() && set.take_log().is_empty(), "it has not begun");
    let (looked, removed, ()) = tokio::join!(looks, next, async { open(&client, 1) });
    looked.expect("looked");
    removed.expect("removed");
    set.agree(&[0, 1, 2]);
}

#[tokio::test]
async fn removals_cost_one_message_for_each_copy() {
    let (set, client, _) = with_a_listing().await;
    set.take_log();
    for text in ["a", "b"] {
        client.send(unlink(text)).await.expect("begun");
        client.getattr(gfid(DIRECTORY)).await.expect("known");
    }
    client.send(listing()).await.expect("listed");
    client.getattr(gfid(DIRECTORY)).await.expect("known");
    let log = set.take_log();
    assert_eq!(log.lines().filter(|line| line.contains(" Unlink ")).count(), 6, "{log}");
    assert_eq!(log.lines().count(), 6 + 1, "{log}");
}

#[tokio::test]
async fn what_is_not_certain_is_waited_for() {
    let (_set, client, other) = with_a_listing().await;
    client
        .send(Link { gfid: gfid(20), parent: gfid(DIRECTORY), name: name("more"), when: when(8) })
        .await
        .expect("linked");
    other.lookup(gfid(DIRECTORY), "b").await.expect("looked");
    for text in ["a", "b"] {
        delay(&client, 1);
        let removal = client.send(unlink(text));
        tokio::pin!(removal);
        for _ in 0..100 {
            assert!(
                futures::poll!(&mut removal).is_pending(),
                "{text} has another name, or was seen by another client"
            );
            tokio::task::yield_now().await;
        }
        open(&client, 1);
        removal.await.expect("removed");
    }
}

#[tokio::test]
async fn a_removal_that_lost_its_quorum_is_tried_until_it_is_done() {
    let (set, client, other) = with_a_listing().await;
    delay(&client, 1);
    for wire in &client.wires[..2] {
        wire.faults.lock().push_back((FopKind::Unlink, Fault::LoseAnswer));
    }
    client.send(unlink("a")).await.expect("begun");
    open(&client, 1);
    client.send(Fsync { gfid: gfid(DIRECTORY), fd: None, data_only: false }).await.expect("durable");
    assert!(other.lookup(gfid(DIRECTORY), "a").await.expect("looked").found.is_none());
    set.agree(&[0, 1]);
}

/// The client slept, another client has removed the file and made one with its name: that one stays.
#[tokio::test]
async fn a_removal_that_is_tried_again_removes_no_other_file() {
    let (set, client, other) = with_a_listing().await;
    delay(&client, 1);
    for wire in &client.wires {
        wire.faults.lock().push_back((FopKind::Unlink, Fault::LoseRequest));
    }
    client.send(unlink("a")).await.expect("begun");
    client.wires.iter().for_each(|wire| wire.cut());
    open(&client, 1);
    Client::until("it is noticed", || !client.top.health().borrow().is_up()).await;
    set.bricks.iter().for_each(|brick| brick.leases.lock().client_gone(client.id));
    other.send(unlink("a")).await.expect("removed");
    other.create(gfid(DIRECTORY), "a", gfid(77), "precious").await.expect("made");
    client.wires.iter().for_each(|wire| wire.mend(2));
    client.send(Fsync { gfid: gfid(DIRECTORY), fd: None, data_only: false }).await.expect("settled");
    assert_eq!(other.read(gfid(77)).await.as_deref(), Ok("precious"));
    assert!(client.lookup(gfid(DIRECTORY), "a").await.expect("looked").found.is_some());
}

#[tokio::test]
async fn a_removal_that_is_refused_is_told_to_who_looks_next() {
    let (_set, client, _) = with_a_listing().await;
    delay(&client, 1);
    for wire in &client.wires {
        wire.faults.lock().push_back((FopKind::Unlink, Fault::Refuse(Errno::IO)));
    }
    client.send(unlink("a")).await.expect("begun");
    open(&client, 1);
    assert_eq!(client.send(listing()).await.map(drop), Err(FopError::Refused(Errno::IO)));
    let names: Vec<_> = client.send(listing()).await.expect("told once").entries.into_iter().map(|e| e.name).collect();
    assert_eq!(names, [name("a"), name("b")]);
}

#[tokio::test]
async fn a_client_that_leaves_waits_for_what_it_removes() {
    let (set, client, other) = with_a_listing().await;
    delay(&client, 1);
    client.send(unlink("a")).await.expect("begun");
    let leave = client.send(mortar_xlators::fop::Unlease { objects: vec![], keep_shared: false });
    tokio::pin!(leave);
    assert!(futures::poll!(&mut leave).is_pending());
    open(&client, 1);
    leave.await.expect("left");
    assert!(other.lookup(gfid(DIRECTORY), "a").await.expect("looked").found.is_none());
    set.agree(&[0, 1, 2]);
}
