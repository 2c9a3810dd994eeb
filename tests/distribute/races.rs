//! Several clients change the same few names of two sets at the same time: what each was answered, and what is there
//! afterwards, must be explained by some order of the changes.
//!
//! The names belong to both sets, and so do their contents after the first renames, so that most changes take several
//! steps on several subvolumes.

use std::collections::BTreeMap;

use mortar_tests::stacks::{Shape, Stack};
use mortar_tests::tree::{Tree, birth, name, now};
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Create, Link, Lookup, Only, Rename, Replace, Unlink};
use mortar_xlators::types::Gfid;

use crate::set::Dice;

const CLIENTS: usize = 3;
/// What each client does in one round: few enough that all orders can be tried.
const STEPS: usize = 3;
const NAMES: u64 = 4;

/// Names, and the files that have them.
type Names = BTreeMap<String, Gfid>;

/// Something a client does.
#[derive(Clone, Debug)]
enum Step {
    Look(String),
    Make(String, Gfid),
    Remove(String),
    Move(String, String, Replace),
    /// The inode, found before by looking.
    Link(Gfid, String),
}

/// What it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Found(Option<Gfid>),
    Refused(Errno),
}

impl Answer {
    fn of<T>(answer: Result<T>) -> Self {
        match answer {
            Ok(_) => Self::Done,
            Err(FopError::Refused(errno)) => Self::Refused(errno),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Step {
    /// As one file system on one machine does it.
    fn model(&self, names: &mut Names) -> Answer {
        let none = Answer::Refused(Errno::NOENT);
        let exists = Answer::Refused(Errno::EXIST);
        match self {
            Self::Look(at) => Answer::Found(names.get(at).copied()),
            Self::Make(at, _) if names.contains_key(at) => exists,
            Self::Make(at, gfid) => {
                names.insert(at.clone(), *gfid);
                Answer::Done
            }
            // No name is left to be looked up again: the kernel makes that of a stale inode.
            Self::Link(gfid, _) if !names.values().any(|named| named == gfid) => Answer::Refused(Errno::STALE),
            Self::Link(_, at) if names.contains_key(at) => exists,
            Self::Link(gfid, at) => {
                names.insert(at.clone(), *gfid);
                Answer::Done
            }
            Self::Remove(at) => names.remove(at).map_or(none, |_| Answer::Done),
            Self::Move(from, to, how) => {
                let Some(&gfid) = names.get(from) else { return none };
                let taken = names.get(to).copied();
                match how {
                    Replace::No if taken.is_some() => return exists,
                    Replace::Exchange if taken.is_none() => return none,
                    Replace::Yes if taken == Some(gfid) => return Answer::Done,
                    Replace::No | Replace::Yes => names.remove(from),
                    Replace::Exchange => taken.and_then(|taken| names.insert(from.clone(), taken)),
                };
                names.insert(to.clone(), gfid);
                Answer::Done
            }
        }
    }

    /// Both may be wrong with a link; then either may be said.
    fn may_say(&self, names: &Names, answer: &Answer) -> bool {
        let taken = matches!(self, Self::Link(_, at) if names.contains_key(at));
        taken && *answer == Answer::Refused(Errno::EXIST)
    }

    async fn ask(&self, tree: &Tree, parent: Gfid) -> Answer {
        let of = |at: &String| name(at);
        match self {
            Self::Look(at) => {
                let looked = tree.send(Lookup { parent, name: of(at) }).await.unwrap();
                Answer::Found(looked.found.map(|found| found.iatt.gfid))
            }
            Self::Make(at, gfid) => {
                let mut birth = birth(0o644);
                birth.gfid = *gfid;
                let content = gfid.to_string().into();
                Answer::of(tree.send(Create { parent, name: of(at), birth, content, open: None, lease: false }).await)
            }
            Self::Remove(at) => {
                Answer::of(tree.send(Unlink { parent, name: of(at), only: Only::Any, when: now() }).await)
            }
            Self::Move(from, to, replace) => {
                let (from_name, to_name, replace) = (of(from), of(to), *replace);
                let (from_parent, to_parent) = (parent, parent);
                let when = now();
                Answer::of(tree.send(Rename { from_parent, from_name, to_parent, to_name, replace, when }).await)
            }
            Self::Link(gfid, at) => {
                match Answer::of(tree.send(Link { gfid: *gfid, parent, name: of(at), when: now() }).await) {
                    Answer::Refused(Errno::NOENT) => Answer::Refused(Errno::STALE),
                    answer => answer,
                }
            }
        }
    }
}

fn choose(dice: &mut Dice, seen: Option<Gfid>) -> Step {
    let mut any = || format!("name-{}", dice.roll(NAMES));
    let (one, other) = (any(), any());
    match (dice.roll(10), seen) {
        (0, _) => Step::Look(one),
        (1..3, _) => Step::Make(one, mortar_tests::tree::new_gfid()),
        (3..5, _) => Step::Remove(one),
        (5, Some(gfid)) => Step::Link(gfid, one),
        (6, _) if one != other => Step::Move(one, other, Replace::No),
        _ if one != other => Step::Move(one, other, Replace::Yes),
        _ => Step::Look(one),
    }
}

/// Whether these steps, each client's in its order, can have led from `names` to `after`.
fn explained(names: &Names, clients: &[&[(Step, Answer)]], after: &Names) -> bool {
    if clients.iter().all(|steps| steps.is_empty()) {
        return names == after;
    }
    (0..clients.len()).any(|client| {
        let Some(((step, answer), rest)) = clients[client].split_first() else { return false };
        let mut then = names.clone();
        let mut left = clients.to_vec();
        left[client] = rest;
        (step.model(&mut then) == *answer || step.may_say(names, answer)) && explained(&then, &left, after)
    })
}

/// A directory with names, and clients.
struct Scene {
    _stack: Stack,
    clients: Vec<Tree>,
    /// Another client, which only looks.
    witness: Tree,
    parent: Gfid,
}

impl Scene {
    async fn new(shape: Shape) -> Self {
        let stack = Stack::start(shape).await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(stack.tree().await);
        }
        clients[0].mkdir("d").await.unwrap();
        let parent = clients[0].gfid("d").await.unwrap();
        let witness = stack.tree().await;
        Self { _stack: stack, clients, witness, parent }
    }

    /// What another client sees. Every file is listed once, and has its own content.
    async fn seen(&self) -> Names {
        let witness = &self.witness;
        let mut names = Names::new();
        for at in witness.ls("d").await.unwrap() {
            let path = format!("d/{at}");
            let gfid = witness.gfid(&path).await.unwrap();
            assert_eq!(witness.read(&path).await.unwrap(), gfid.to_string());
            assert!(names.insert(at, gfid).is_none(), "listed twice");
        }
        for (at, gfid) in &names {
            let links = names.values().filter(|other| *other == gfid).count();
            assert_eq!(witness.stat(&format!("d/{at}")).await.unwrap().nlink as usize, links, "{at}");
        }
        names
    }

    async fn round(&self, before: &Names, seed: u64) -> Names {
        let works = self.clients.iter().enumerate().map(|(who, tree)| {
            let (tree, parent) = (tree.clone(), self.parent);
            let mut dice = Dice(seed ^ (who as u64) << 32);
            tokio::spawn(async move {
                let (mut done, mut seen) = (Vec::new(), None);
                for _ in 0..STEPS {
                    let step = choose(&mut dice, seen);
                    let answer = step.ask(&tree, parent).await;
                    if let Answer::Found(Some(gfid)) = answer {
                        seen = Some(gfid);
                    }
                    done.push((step, answer));
                }
                done
            })
        });
        let done: Vec<_> = futures::future::join_all(works).await.into_iter().map(|done| done.unwrap()).collect();
        let after = self.seen().await;
        let steps: Vec<_> = done.iter().map(Vec::as_slice).collect();
        let told: Vec<_> =
            done.iter().flat_map(|steps| steps.iter().map(|step| format!("{step:?}")).chain(["--".into()])).collect();
        assert!(explained(before, &steps, &after), "from {before:?}\nto {after:?}\nby {}", told.join("\n"));
        after
    }

    /// All of it can be removed: nothing is left that nobody sees.
    async fn clear(self) {
        for at in self.clients[0].ls("d").await.unwrap() {
            self.clients[0].unlink(&format!("d/{at}")).await.unwrap();
        }
        self.clients[1].rmdir("d").await.unwrap();
    }
}

async fn races(shape: Shape, rounds: u64) {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(2002);
    println!("SEED={seed}");
    let scene = Scene::new(shape).await;
    let mut names = Names::new();
    for round in 0..rounds {
        names = scene.round(&names, seed + round * 1_000).await;
    }
    scene.clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_clients_do_to_the_same_names_can_have_happened_in_one_order() {
    races(Shape::Replicated { sets: 2, copies: 1 }, 150).await;
}

/// Who renames one file finds it, or finds that another was faster; who renames onto one name wins for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_several_clients_rename_is_renamed_by_one() {
    let scene = Scene::new(Shape::Replicated { sets: 2, copies: 1 }).await;
    for round in 0..60 {
        let from = format!("d/from-{round}");
        let made = scene.clients[0].create(&from, "").await.unwrap().iatt.gfid;
        let to = |client| if round % 2 == 0 { format!("d/to-{round}") } else { format!("d/to-{round}-{client}") };
        let renames = scene.clients.iter().enumerate().map(|(client, tree)| {
            let (tree, from, to) = (tree.clone(), from.clone(), to(client));
            tokio::spawn(async move { Answer::of(tree.rename(&from, &to).await) })
        });
        let answers: Vec<_> = futures::future::join_all(renames).await.into_iter().map(|done| done.unwrap()).collect();
        let winners: Vec<_> = (0..CLIENTS).filter(|&client| answers[client] == Answer::Done).collect();
        assert!(
            answers.iter().all(|answer| matches!(answer, Answer::Done | Answer::Refused(Errno::NOENT))),
            "{answers:?}"
        );
        assert_eq!(winners.len(), 1, "{answers:?}");
        assert_eq!(scene.witness.gfid(&to(winners[0])).await.unwrap(), made);
        assert_eq!(scene.clients[1].ls("d").await.unwrap().len(), round + 1);
    }
    scene.clear().await;
}
