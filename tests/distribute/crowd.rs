//! Several clients change names in the same few directories of three sets with three copies each: everything that they
//! ask is answered, no copy is blamed, and all see the same afterwards.

use futures::future::join_all;
use mortar_tests::stacks::{Shape, Stack};
use mortar_tests::tree::{Tree, birth, name, new_gfid, now};
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Backlog, Create, Link, Lookup, Mkdir, Only, Rename, Replace, Rmdir, Unlink};
use mortar_xlators::types::{Gfid, Name};

use crate::set::Dice;

const CLIENTS: u64 = 4;
const DIRECTORIES: u64 = 3;
const NAMES: u64 = 6;

/// One client with its dice.
struct Actor {
    tree: Tree,
    dice: Dice,
    directories: Vec<Gfid>,
    seen: Option<Gfid>,
}

impl Actor {
    fn place(&mut self) -> Gfid {
        self.directories[self.dice.roll(DIRECTORIES) as usize]
    }

    fn file(&mut self) -> Name {
        name(&format!("file-{}", self.dice.roll(NAMES)))
    }

    fn directory(&mut self) -> Name {
        name(&format!("dir-{}", self.dice.roll(NAMES)))
    }

    /// Do one thing, whatever comes of it.
    async fn act(&mut self) -> (&'static str, Result<()>) {
        let (from, to) = (self.place(), self.place());
        let (one, other) = (self.file(), self.file());
        let sub = self.directory();
        match self.dice.roll(10) {
            0..=2 => {
                let mut birth = birth(0o644);
                birth.gfid = new_gfid();
                let create =
                    Create { parent: from, name: one, birth, content: "content".into(), open: None, lease: false };
                ("create", self.tree.send(create).await.map(drop))
            }
            3..=4 => {
                let rename = Rename {
                    from_parent: from,
                    from_name: one,
                    to_parent: to,
                    to_name: other,
                    replace: Replace::Yes,
                    when: now(),
                };
                ("rename", self.tree.send(rename).await.map(drop))
            }
            5 => (
                "unlink",
                self.tree.send(Unlink { parent: from, name: one, only: Only::Any, when: now() }).await.map(drop),
            ),
            6 => {
                let mkdir =
                    Mkdir { parent: from, name: sub, birth: birth(0o755), layout: None, mds: false, lease: false };
                ("mkdir", self.tree.send(mkdir).await.map(drop))
            }
            7 => ("rmdir", self.tree.send(Rmdir { parent: from, name: sub, when: now() }).await.map(drop)),
            8 if self.seen.is_some() => {
                let gfid = self.seen.unwrap();
                ("link", self.tree.send(Link { gfid, parent: to, name: other, when: now() }).await.map(drop))
            }
            _ => {
                let looked = self.tree.send(Lookup { parent: from, name: one }).await;
                ("lookup", looked.map(|looked| self.seen = looked.found.map(|found| found.iatt.gfid).or(self.seen)))
            }
        }
    }
}

async fn crowd(shape: Shape, steps: u64) {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(2003);
    println!("SEED={seed}");
    let stack = Stack::start(shape).await;
    let first = stack.tree().await;
    let mut directories = Vec::new();
    for number in 0..DIRECTORIES {
        directories.push(first.mkdir(&format!("d-{number}")).await.unwrap().iatt.gfid);
    }
    let mut actors = Vec::new();
    for client in 0..CLIENTS {
        let (tree, directories) = (stack.tree().await, directories.clone());
        actors.push(Actor { tree, directories, dice: Dice(seed ^ client << 32), seen: None });
    }
    let acts = actors.into_iter().map(|mut actor| {
        tokio::spawn(async move {
            for _ in 0..steps {
                let (what, answer) = actor.act().await;
                let usual = [Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::STALE].map(FopError::Refused);
                assert!(answer.is_ok() || answer.is_err_and(|error| usual.contains(&error)), "{what}: {answer:?}");
            }
            actor
        })
    });
    // Who is done stays until all are: a client that only vanishes keeps its leases until its session ends.
    let actors: Vec<_> = join_all(acts).await.into_iter().map(|done| done.unwrap()).collect();
    let waiting = first.send(Backlog).await.unwrap();
    assert_eq!(waiting.pending, 0, "a copy was blamed though all were there");
    let seen = async |tree: &Tree| {
        let mut seen = Vec::new();
        for number in 0..DIRECTORIES {
            seen.push(tree.ls(&format!("d-{number}")).await.unwrap());
        }
        seen
    };
    let expected = seen(&first).await;
    for actor in &actors {
        assert_eq!(seen(&actor.tree).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_in_a_few_directories_is_served() {
    crowd(Shape::Replicated { sets: 3, copies: 3 }, 200).await;
}

/// Make, fill, empty and remove the same directory, whatever comes of it.
async fn fill(tree: &Tree, parent: Gfid, dice: &mut Dice) -> Result<()> {
    let at = name(&format!("dir-{}", dice.roll(2)));
    let file = name(&format!("file-{}", dice.roll(2)));
    match dice.roll(6) {
        0 => {
            let mkdir = Mkdir { parent, name: at, birth: birth(0o755), layout: None, mds: false, lease: false };
            return tree.send(mkdir).await.map(drop);
        }
        1..=2 => return tree.send(Rmdir { parent, name: at, when: now() }).await.map(drop),
        _ => {}
    }
    let Some(found) = tree.send(Lookup { parent, name: at }).await?.found else { return Ok(()) };
    let parent = found.iatt.gfid;
    if dice.roll(2) == 0 {
        return tree.send(Unlink { parent, name: file, only: Only::Any, when: now() }).await.map(drop);
    }
    let create =
        Create { parent, name: file, birth: birth(0o644), content: "content".into(), open: None, lease: false };
    tree.send(create).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_some_fill_and_others_remove_is_there_or_not() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(2004);
    println!("SEED={seed}");
    let stack = Stack::start(Shape::Replicated { sets: 3, copies: 3 }).await;
    let first = stack.tree().await;
    let parent = first.mkdir("d").await.unwrap().iatt.gfid;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let (tree, mut dice) = (stack.tree().await, Dice(seed ^ client << 32));
        clients.push(tokio::spawn(async move {
            for _ in 0..100 {
                let answer = fill(&tree, parent, &mut dice).await;
                let usual = [Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::STALE].map(FopError::Refused);
                assert!(answer.is_ok() || answer.is_err_and(|error| usual.contains(&error)), "{answer:?}");
            }
            tree
        }));
    }
    let _clients: Vec<_> = join_all(clients).await.into_iter().map(|done| done.unwrap()).collect();
    assert_eq!(first.send(Backlog).await.unwrap().pending, 0, "a copy was blamed though all were there");
}
