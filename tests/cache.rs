//! The cache on top of a client's graph: what needs no message, what is kept back and for how long, and that nobody can
//! tell.

use std::collections::BTreeMap;

use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{Flush, FopKind, Fsync, Only, Place, Readdir, Setattr, Unlink};
use mortar_xlators::graph::Quorum;
use mortar_xlators::types::{Cover, Gfid};

use crate::set::{Client, Dice, Fault, Set, gfid, name, when};

const DIRECTORY: u64 = 10;
const FILE: u64 = 42;

/// Mode and modification time, as tar sets them.
fn attributes(number: u64, mode: Option<u32>) -> Setattr {
    let mtime = mode.is_none().then(|| when(7));
    let (uid, gid, atime, kill_priv) = (None, None, None, false);
    Setattr { gfid: gfid(number), fd: None, mode, uid, gid, atime, mtime, kill_priv, when: when(8) }
}

fn listing() -> Readdir {
    Readdir { gfid: gfid(DIRECTORY), fd: None, after: 0, bytes_max: 4096, attrs: true }
}

/// A set, a client that has made a file in a directory of its own and has written to it, and another client.
async fn with_something_kept_back() -> (Set, Client, Client) {
    let set = Set::new(3, Quorum::Auto);
    let (maker, other) = (set.caching_client(), set.caching_client());
    maker.mkdir(Gfid::ROOT, "d", gfid(DIRECTORY)).await.expect("made");
    maker.create(gfid(DIRECTORY), "f", gfid(FILE), "").await.expect("made");
    set.take_log();
    maker.write(gfid(FILE), Place::At(0), "some").await.expect("written");
    maker.write(gfid(FILE), Place::At(4), "thing").await.expect("written");
    assert_eq!(set.take_log(), "", "it is kept back");
    (set, maker, other)
}

fn count(log: &str, fop: &str) -> usize {
    log.lines().filter(|line| line.split(' ').nth(1) == Some(fop)).count()
}

#[tokio::test]
async fn a_file_of_an_untar_is_two_messages_for_each_copy() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.caching_client();
    client.mkdir(Gfid::ROOT, "d", gfid(DIRECTORY)).await.expect("made");
    set.take_log();
    assert_eq!(client.lookup(gfid(DIRECTORY), "f").await.expect("looked").cover, Cover::NAME);
    client.create(gfid(DIRECTORY), "f", gfid(FILE), "").await.expect("made");
    client.write(gfid(FILE), Place::At(0), "some").await.expect("written");
    client.write(gfid(FILE), Place::At(4), "thing").await.expect("written");
    client.send(attributes(FILE, None)).await.expect("times set");
    let changed = client.send(attributes(FILE, Some(0o600))).await.expect("mode set");
    assert_eq!((changed.iatt.size, changed.iatt.mode, changed.iatt.mtime), (9, 0o600, when(7)));
    client.send(Flush { gfid: gfid(FILE) }).await.expect("closed");
    let log = set.take_log();
    assert_eq!((count(&log, "Create"), count(&log, "Write")), (3, 3), "{log}");
    assert_eq!(log.lines().count(), 6, "{log}");
    let found = client.getattr(gfid(FILE)).await.expect("there");
    assert_eq!((found.iatt.size, found.iatt.mode, found.iatt.mtime), (9, 0o600, when(7)));
    set.agree(&[0, 1, 2]);
}

#[tokio::test]
async fn whoever_looks_sees_what_was_kept_back() {
    let (_set, _maker, other) = with_something_kept_back().await;
    assert_eq!(other.read(gfid(FILE)).await.as_deref(), Ok("something"));
    let (_set, _maker, other) = with_something_kept_back().await;
    assert_eq!(other.getattr(gfid(FILE)).await.expect("there").iatt.size, 9);
    let (_set, maker, _other) = with_something_kept_back().await;
    assert_eq!(maker.read(gfid(FILE)).await.as_deref(), Ok("something"));
    let (_set, maker, _other) = with_something_kept_back().await;
    assert_eq!(maker.getattr(gfid(FILE)).await.expect("there").iatt.size, 9);
    let (_set, maker, _other) = with_something_kept_back().await;
    assert_eq!(maker.lookup(gfid(DIRECTORY), "f").await.expect("looked").found.expect("found").iatt.size, 9);
    let (_set, maker, _other) = with_something_kept_back().await;
    let page = maker.send(listing()).await.expect("listed");
    assert_eq!(page.entries[0].found.as_ref().expect("with attributes").iatt.size, 9);
}

#[tokio::test]
async fn nothing_is_kept_back_of_a_file_that_others_have_seen() {
    let (set, maker, other) = with_something_kept_back().await;
    other.getattr(gfid(FILE)).await.expect("there");
    set.take_log();
    maker.write(gfid(FILE), Place::At(9), "!").await.expect("written");
    assert_eq!(count(&set.take_log(), "Write"), 3);
    assert_eq!(other.read(gfid(FILE)).await.as_deref(), Ok("something!"));
}

#[tokio::test]
async fn what_is_made_durable_is_handed_over_first() {
    let (set, maker, _) = with_something_kept_back().await;
    maker.send(Fsync { gfid: gfid(FILE), fd: None, data_only: false }).await.expect("synced");
    let log = set.take_log();
    let (write, fsync) = (log.rfind("Write").expect("written"), log.find("Fsync").expect("synced"));
    assert!(write < fsync, "{log}");
}

#[tokio::test]
async fn what_nobody_asks_for_is_handed_over_after_a_moment() {
    let (set, _maker, _) = with_something_kept_back().await;
    Client::until("it is there", || count(&set.log.lock(), "Write") == 3).await;
}

#[tokio::test]
async fn a_write_that_does_not_go_on_where_the_last_one_ended_comes_after_it() {
    let (set, maker, other) = with_something_kept_back().await;
    maker.write(gfid(FILE), Place::At(0), "S").await.expect("written");
    maker.write(gfid(FILE), Place::End, "?").await.expect("written");
    assert_eq!(other.read(gfid(FILE)).await.as_deref(), Ok("Something?"));
    set.agree(&[0, 1, 2]);
}

#[tokio::test]
async fn who_closes_hears_that_the_disks_were_full_and_only_then() {
    let (set, maker, _) = with_something_kept_back().await;
    for wire in &maker.wires {
        wire.faults.lock().push_back((FopKind::Write, Fault::Refuse(Errno::NOSPC)));
    }
    let close = Flush { gfid: gfid(FILE) };
    assert_eq!(maker.send(close.clone()).await, Err(FopError::Refused(Errno::NOSPC)));
    assert_eq!(maker.send(close).await.map(|_| ()), Ok(()));
    assert_eq!(maker.getattr(gfid(FILE)).await.expect("there").iatt.size, 0);
    set.agree(&[0, 1, 2]);
}

/// Two programs have the new file open: what one writes while the other closes is not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn who_closes_takes_nothing_away_from_who_goes_on_writing() {
    for _ in 0..100 {
        let (set, maker, other) = with_something_kept_back().await;
        let maker = std::sync::Arc::new(maker);
        let closer = std::sync::Arc::clone(&maker);
        let closing = tokio::spawn(async move {
            for _ in 0..20 {
                closer.send(Flush { gfid: gfid(FILE) }).await?;
            }
            Ok::<_, FopError>(())
        });
        for at in 0..20 {
            maker.write(gfid(FILE), Place::At(9 + at), "x").await.expect("written");
        }
        maker.send(Flush { gfid: gfid(FILE) }).await.expect("closed");
        assert_eq!(closing.await.expect("ended"), Ok(()));
        assert_eq!(other.read(gfid(FILE)).await.expect("there"), format!("something{}", "x".repeat(20)));
        set.agree(&[0, 1, 2]);
    }
}

#[tokio::test]
async fn what_the_bricks_cannot_be_told_now_is_told_later() {
    let (set, maker, other) = with_something_kept_back().await;
    maker.wires[0].cut();
    maker.wires[1].cut();
    Client::until("the set is down", || !maker.top.health().borrow().is_up()).await;
    let synced = maker.send(Fsync { gfid: gfid(FILE), fd: None, data_only: false }).await;
    assert_eq!(synced, Err(FopError::Unreachable));
    maker.wires[0].mend(1);
    maker.wires[1].mend(1);
    Client::until("it is there", || count(&set.log.lock(), "Write") >= 3).await;
    assert_eq!(other.read(gfid(FILE)).await.as_deref(), Ok("something"));
}

#[tokio::test]
async fn nothing_is_kept_back_from_a_brick_that_has_forgotten_who_may() {
    let (set, maker, _) = with_something_kept_back().await;
    maker.wires[2].mend(2);
    Client::until("it is there", || count(&set.log.lock(), "Write") >= 3).await;
    set.take_log();
    maker.write(gfid(FILE), Place::At(9), "!").await.expect("written");
    assert!(count(&set.take_log(), "Write") >= 3);
}

#[tokio::test]
async fn a_name_that_somebody_else_makes_in_a_new_directory_is_found() {
    let set = Set::new(3, Quorum::Auto);
    let (maker, other) = (set.caching_client(), set.caching_client());
    maker.mkdir(Gfid::ROOT, "d", gfid(DIRECTORY)).await.expect("made");
    set.take_log();
    assert!(maker.lookup(gfid(DIRECTORY), "f").await.expect("looked").found.is_none());
    assert_eq!(set.take_log(), "");
    other.create(gfid(DIRECTORY), "f", gfid(FILE), "").await.expect("made");
    assert!(maker.lookup(gfid(DIRECTORY), "f").await.expect("looked").found.is_some());
}

#[tokio::test]
async fn attributes_under_a_lease_are_asked_for_once() {
    let set = Set::new(3, Quorum::Auto);
    let (one, other) = (set.caching_client(), set.caching_client());
    other.create(Gfid::ROOT, "f", gfid(FILE), "x").await.expect("made");
    assert_eq!(one.getattr(gfid(FILE)).await.expect("there").iatt.size, 1);
    set.take_log();
    assert_eq!(one.getattr(gfid(FILE)).await.expect("there").cover, Cover::ATTRS);
    assert_eq!(set.take_log(), "");
    other.write(gfid(FILE), Place::End, "y").await.expect("written");
    assert_eq!(one.getattr(gfid(FILE)).await.expect("there").iatt.size, 2);
}

#[tokio::test]
async fn making_names_does_not_ask_for_the_directory_again_and_again() {
    let set = Set::new(3, Quorum::Auto);
    let (maker, other) = (set.caching_client(), set.caching_client());
    maker.mkdir(Gfid::ROOT, "d", gfid(DIRECTORY)).await.expect("made");
    maker.getattr(gfid(DIRECTORY)).await.expect("there");
    set.take_log();
    for number in 0..20 {
        let text = number.to_string();
        maker.create(gfid(DIRECTORY), &text, gfid(100 + number), "").await.expect("made");
        maker.getattr(gfid(DIRECTORY)).await.expect("there");
        let unlink =
            Unlink { parent: gfid(DIRECTORY), name: name(&text), only: Only::Any, when: when(3 + number as i64) };
        maker.send(unlink).await.expect("removed");
        assert_eq!(maker.getattr(gfid(DIRECTORY)).await.expect("there").iatt.mtime, when(3 + number as i64));
    }
    let log = set.take_log();
    assert_eq!((count(&log, "Getattr"), count(&log, "Lease")), (0, 0), "{log}");
    let made = maker.send(attributes(DIRECTORY, Some(0o700))).await.expect("changed");
    assert_eq!(other.getattr(gfid(DIRECTORY)).await.expect("there").iatt.mode, made.iatt.mode);
    other.send(attributes(DIRECTORY, Some(0o711))).await.expect("changed");
    assert_eq!(maker.getattr(gfid(DIRECTORY)).await.expect("there").iatt.mode, 0o711);
}

/// What a file should be like.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Model {
    content: String,
    mode: u32,
}

/// Two clients take turns at random; each must see all that the other has done, as if nothing were kept anywhere.
#[tokio::test]
async fn two_clients_that_take_turns_see_one_file_system() {
    for seed in 0..40 {
        let set = Set::new(3, Quorum::Auto);
        let clients = [set.caching_client(), set.caching_client()];
        clients[0].mkdir(Gfid::ROOT, "d", gfid(DIRECTORY)).await.expect("made");
        let (mut dice, mut files) = (Dice(seed), BTreeMap::<u64, Model>::new());
        for step in 0..60 {
            let (client, number) = (&clients[dice.roll(2) as usize], 100 + dice.roll(4));
            turn(client, number, &mut files, &mut dice).await.unwrap_or_else(|why| panic!("{seed}/{step}: {why}"));
        }
        for client in &clients {
            for number in files.keys() {
                client.send(Flush { gfid: gfid(*number) }).await.expect("closed");
            }
        }
        set.agree(&[0, 1, 2]);
    }
}

async fn turn(client: &Client, number: u64, files: &mut BTreeMap<u64, Model>, dice: &mut Dice) -> Result<(), String> {
    let text = number.to_string();
    let Some(file) = files.get_mut(&number) else {
        let looked = client.lookup(gfid(DIRECTORY), &text).await.map_err(|error| format!("lookup: {error}"))?;
        if looked.found.is_some() {
            return Err(format!("{text} is there"));
        }
        client.create(gfid(DIRECTORY), &text, gfid(number), "").await.map_err(|error| format!("create: {error}"))?;
        files.insert(number, Model { content: String::new(), mode: 0o644 });
        return Ok(());
    };
    let failed = |what: &str, error: FopError| format!("{what} {text}: {error}");
    match dice.roll(8) {
        6 => {
            let page = client.send(listing()).await.map_err(|error| failed("list beside", error))?;
            let mut names: Vec<_> = page.entries.iter().map(|entry| entry.name.clone()).collect();
            names.sort();
            let wanted: Vec<_> = files.keys().map(|number| name(&number.to_string())).collect();
            if names != wanted {
                return Err(format!("listed are {names:?} instead of {wanted:?}"));
            }
        }
        0 | 1 => {
            let offset =
                if dice.roll(3) == 0 { dice.roll(file.content.len() as u64 + 1) } else { file.content.len() as u64 };
            client.write(gfid(number), Place::At(offset), "abc").await.map_err(|error| failed("write", error))?;
            let end = (offset as usize + 3).min(file.content.len());
            file.content.replace_range(offset as usize..end.max(offset as usize), "abc");
        }
        2 => {
            file.mode = 0o600 + dice.roll(64) as u32;
            let set = attributes(number, Some(file.mode));
            client.send(set).await.map_err(|error| failed("setattr", error))?;
        }
        3 => {
            let read = client.read(gfid(number)).await.map_err(|error| failed("read", error))?;
            if read != file.content {
                return Err(format!("{text} reads {read:?} instead of {:?}", file.content));
            }
        }
        4 => {
            let iatt = client.getattr(gfid(number)).await.map_err(|error| failed("getattr", error))?.iatt;
            if (iatt.size, iatt.mode) != (file.content.len() as u64, file.mode) {
                return Err(format!("{text} is {iatt:?} instead of {file:?}"));
            }
        }
        5 => drop(client.send(Flush { gfid: gfid(number) }).await.map_err(|error| failed("close", error))?),
        _ => {
            let unlink = Unlink { parent: gfid(DIRECTORY), name: name(&text), only: Only::Any, when: when(3) };
            client.send(unlink).await.map_err(|error| failed("unlink", error))?;
            files.remove(&number);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_keeps_nothing_back() {
    let (set, maker, other) = with_something_kept_back().await;
    let leave = mortar_xlators::fop::Unlease { objects: vec![], keep_shared: false };
    maker.send(leave).await.expect("left");
    assert_eq!(count(&set.take_log(), "Write"), 3);
    drop(maker);
    assert_eq!(other.read(gfid(FILE)).await.as_deref(), Ok("something"));
}
