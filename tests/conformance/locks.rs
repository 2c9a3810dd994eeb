//! Advisory locks: ranges of owners that exclude each other.
//!
//! One client only: what several see, and how one waits, is told in `tests/mount/locks.rs`.

use mortar_tests::tree::Tree;
use mortar_xlators::fop::{Claim, Lk, LkWhat};
use mortar_xlators::ranges::{LockMode, Locked, Span};
use mortar_xlators::reply::Lockable;
use mortar_xlators::types::{Gfid, LockFamily, LockOwner};

use super::stories;

stories![
    ranges_exclude_others_and_split_and_merge,
    the_families_do_not_see_each_other,
    a_directory_can_be_locked,
    a_file_without_a_name_can_be_locked,
];

/// Owners of one file's locks.
struct Owners<'a> {
    tree: &'a Tree,
    gfid: Gfid,
    family: LockFamily,
}

impl Owners<'_> {
    async fn ask(&self, id: u64, what: LkWhat, start: u64, end: u64) -> Lockable {
        let owner = LockOwner { family: self.family, id };
        let span = Span::new(start, end).unwrap();
        self.tree.send(Lk { gfid: self.gfid, fd: None, owner, pid: id as i32, what, span }).await.unwrap()
    }

    async fn set(&self, id: u64, mode: LockMode, start: u64, end: u64) -> Lockable {
        self.ask(id, LkWhat::Set(mode, Claim::New), start, end).await
    }
}

fn held(pid: i32, mode: LockMode, start: u64, end: u64) -> Lockable {
    Lockable::Held { by: Locked { span: Span::new(start, end).unwrap(), mode }, pid }
}

const FREE: Lockable = Lockable::Free;

async fn ranges_exclude_others_and_split_and_merge(tree: Tree) {
    use LockMode::{Read, Write};
    let gfid = tree.create("file", "").await.unwrap().iatt.gfid;
    let owners = Owners { tree: &tree, gfid, family: LockFamily::Posix };
    assert_eq!(owners.set(1, Write, 10, 19).await, FREE);
    assert_eq!(owners.set(1, Write, 10, 19).await, FREE, "a lock that is held already");
    assert_eq!(owners.set(2, Read, 15, 30).await, held(1, Write, 10, 19));
    assert_eq!(owners.set(1, Read, 15, 19).await, FREE);
    assert_eq!(owners.set(2, Read, 15, 30).await, FREE);
    assert_eq!(owners.set(1, Write, 15, 15).await, held(2, Read, 15, 30));
    assert_eq!(owners.ask(3, LkWhat::Get(Read), 0, 100).await, held(1, Write, 10, 14));
    assert_eq!(owners.ask(1, LkWhat::Unlock, 12, 12).await, FREE);
    assert_eq!(owners.ask(3, LkWhat::Get(Read), 12, 100).await, held(1, Write, 13, 14));
    assert_eq!(owners.set(1, Write, 12, 12).await, FREE);
    assert_eq!(owners.ask(3, LkWhat::Get(Read), 14, 100).await, held(1, Write, 10, 14));
    assert_eq!(owners.ask(1, LkWhat::Unlock, 0, Span::END).await, FREE);
    assert_eq!(owners.ask(2, LkWhat::Unlock, 0, Span::END).await, FREE);
    assert_eq!(owners.ask(3, LkWhat::Get(Write), 0, Span::END).await, FREE);
}

async fn the_families_do_not_see_each_other(tree: Tree) {
    let gfid = tree.create("file", "").await.unwrap().iatt.gfid;
    let posix = Owners { tree: &tree, gfid, family: LockFamily::Posix };
    let flock = Owners { tree: &tree, gfid, family: LockFamily::Flock };
    assert_eq!(posix.set(1, LockMode::Write, 0, Span::END).await, FREE);
    assert_eq!(flock.set(2, LockMode::Write, 0, Span::END).await, FREE);
    assert_eq!(flock.set(1, LockMode::Read, 0, Span::END).await, held(2, LockMode::Write, 0, Span::END));
    assert_eq!(posix.ask(1, LkWhat::Unlock, 0, Span::END).await, FREE);
    assert_eq!(flock.set(1, LockMode::Read, 0, Span::END).await, held(2, LockMode::Write, 0, Span::END));
    assert_eq!(flock.ask(2, LkWhat::Unlock, 0, Span::END).await, FREE);
}

async fn a_directory_can_be_locked(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    let gfid = tree.gfid("directory").await.unwrap();
    let owners = Owners { tree: &tree, gfid, family: LockFamily::Flock };
    assert_eq!(owners.set(1, LockMode::Write, 0, Span::END).await, FREE);
    assert_eq!(owners.set(2, LockMode::Write, 0, Span::END).await, held(1, LockMode::Write, 0, Span::END));
    assert_eq!(owners.ask(1, LkWhat::Unlock, 0, Span::END).await, FREE);
    assert_eq!(owners.set(2, LockMode::Write, 0, Span::END).await, FREE);
    assert_eq!(owners.ask(2, LkWhat::Unlock, 0, Span::END).await, FREE);
}

async fn a_file_without_a_name_can_be_locked(tree: Tree) {
    let fd = tree.create_open("file").await.unwrap();
    let owners = Owners { tree: &tree, gfid: fd.gfid, family: LockFamily::Posix };
    assert_eq!(owners.set(1, LockMode::Write, 0, 9).await, FREE);
    tree.unlink("file").await.unwrap();
    assert_eq!(owners.set(2, LockMode::Read, 9, 9).await, held(1, LockMode::Write, 0, 9));
    assert_eq!(owners.ask(1, LkWhat::Unlock, 0, Span::END).await, FREE);
    tree.close(fd).await.unwrap();
}
