//! Several clients, three copies, and wires that lose and refuse things at random: whatever differs between copies in
//! the end is known to, and no acknowledged change is lost.

use std::sync::Arc;
use std::time::Duration;

use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{FopKind, Only, Place, Rename, Replace, Unlink};
use mortar_xlators::graph::Quorum;
use mortar_xlators::types::{Class, Gfid};
use parking_lot::Mutex;

use crate::memory::Inode;
use crate::replicate::key;
use crate::set::{Client, Dice, Fault, Set, gfid, name, when};

const FILES: u64 = 4;

/// What one client knows to have been done.
#[derive(Default)]
struct Diary {
    /// Appends that were acknowledged, by file.
    appended: Vec<(Gfid, String)>,
}

async fn one_step(client: &Client, who: usize, step: u64, dice: &mut Dice, diary: &Mutex<Diary>) {
    let file = gfid(100 + dice.roll(FILES));
    let text = format!("n{}", dice.roll(4));
    let other = format!("n{}", dice.roll(4));
    let answer = match dice.roll(10) {
        0..4 => {
            let token = format!("<{who}.{step}>");
            let written = client.write(file, Place::End, &token).await;
            if written.is_ok() {
                diary.lock().appended.push((file, token));
            }
            written.map(|_| ())
        }
        4 => client.create(gfid(10), &text, gfid(1000 + who as u64 * 1000 + step), "new").await.map(|_| ()),
        5 => {
            let unlink = Unlink { parent: gfid(10), name: name(&text), only: Only::Any, when: when(3) };
            client.send(unlink).await.map(|_| ())
        }
        6 => {
            let rename = Rename {
                from_parent: gfid(10),
                from_name: name(&text),
                to_parent: gfid(11),
                to_name: name(&other),
                replace: Replace::Yes,
                when: when(4),
            };
            client.send(rename).await.map(|_| ())
        }
        7 => client.lookup(gfid(10), &text).await.map(|_| ()),
        8 => client.getattr(file).await.map(|_| ()),
        _ => client.read(file).await.map(|_| ()),
    };
    match answer {
        Ok(()) | Err(FopError::Unreachable) => {}
        Err(FopError::Refused(
            Errno::NOENT | Errno::EXIST | Errno::NOSPC | Errno::NOTCONN | Errno::IO | Errno::AGAIN,
        )) => {}
        Err(error) => panic!("client {who} step {step}: {error}"),
    }
}

async fn break_something(clients: &[Arc<Client>], dice: &mut Dice) {
    let client = &clients[dice.roll(clients.len() as u64) as usize];
    let wire = &client.wires[dice.roll(3) as usize];
    let kinds = [FopKind::Write, FopKind::Create, FopKind::Unlink, FopKind::Rename, FopKind::Lease, FopKind::Mark];
    let faults = [Fault::LoseRequest, Fault::LoseAnswer, Fault::Refuse(Errno::NOSPC)];
    match dice.roll(8) {
        0 => {
            wire.cut();
            tokio::time::sleep(Duration::from_millis(5)).await;
            wire.mend(1);
        }
        _ => {
            let fault = (kinds[dice.roll(6) as usize], faults[dice.roll(3) as usize]);
            wire.faults.lock().push_back(fault);
        }
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// The class in which two copies of an object differ.
fn difference(a: &Inode, b: &Inode) -> Option<Class> {
    if a.names != b.names {
        return Some(Class::Entry);
    }
    (a.content != b.content || a.iatt.size != b.iatt.size).then_some(Class::Data)
}

fn check_blames(set: &Set) {
    let copies: Vec<_> = set.bricks.iter().map(|brick| brick.disk.everything()).collect();
    for gfid in copies.iter().flat_map(|copy| copy.keys().copied()) {
        let accused = |copy: usize, class: Class| {
            let marks = set.bricks.iter().filter_map(|brick| brick.disk.marks(gfid)?.get(&key(copy)).copied());
            marks.into_iter().any(|counters| counters[class as usize] != 0)
        };
        let dirty = |copy: usize| set.bricks[copy].disk.dirty().contains(&gfid);
        for (i, j) in [(0, 1), (0, 2), (1, 2)] {
            let (Some(a), Some(b)) = (copies[i].get(&gfid), copies[j].get(&gfid)) else { continue };
            let Some(class) = difference(a, b) else { continue };
            let known = accused(i, class) || accused(j, class) || dirty(i) || dirty(j);
            assert!(known, "{gfid}: copies {i} and {j} differ in {class:?}, and nobody knows\n{a:?}\n{b:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_differs_between_copies_is_known() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SEED={seed}");
    let set = Set::impatient(3, Quorum::Auto);
    let clients: Vec<_> = (0..3).map(|_| Arc::new(set.client())).collect();
    for (at, directory) in [10, 11].into_iter().enumerate() {
        clients[0].mkdir(Gfid::ROOT, &format!("d{at}"), gfid(directory)).await.expect("made");
    }
    for file in 0..FILES {
        clients[0].create(Gfid::ROOT, &format!("f{file}"), gfid(100 + file), "").await.expect("created");
    }
    let diary = Arc::new(Mutex::new(Diary::default()));
    let work = clients.iter().enumerate().map(|(who, client)| {
        let (client, diary, mut dice) = (client.clone(), diary.clone(), Dice(seed * 31 + who as u64));
        tokio::spawn(async move {
            for step in 0..80 {
                one_step(&client, who, step, &mut dice, &diary).await;
            }
        })
    });
    let mut work = std::pin::pin!(futures::future::join_all(work));
    let mut dice = Dice(seed * 17);
    let ended = loop {
        tokio::select! {
            ended = &mut work => break ended,
            () = break_something(&clients, &mut dice) => {}
        }
    };
    ended.into_iter().for_each(|ended| ended.expect("no client fell over"));
    for wire in clients.iter().flat_map(|client| &client.wires) {
        wire.faults.lock().clear();
        wire.mend(1);
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    check_blames(&set);
    let judge = set.client();
    for file in 0..FILES {
        // A file that copies blame each other for cannot be read, and says so.
        let Ok(content) = judge.read(gfid(100 + file)).await else { continue };
        for (_, token) in diary.lock().appended.iter().filter(|(of, _)| *of == gfid(100 + file)) {
            assert_eq!(content.matches(token.as_str()).count(), 1, "{token} in {content}");
        }
    }
}
