//! Readdir.

use std::collections::BTreeSet;

use super::*;
use crate::fop::{Readdir, Release};
use crate::reply::{DirEntry, Entries};
use crate::types::Kind;

fn readdir(gfid: Gfid, fd: Option<Fd>, after: u64, bytes_max: u32) -> Readdir {
    Readdir { gfid, fd, after, bytes_max, attrs: true }
}

fn list(brick: &Brick, gfid: Gfid, fd: Option<Fd>, bytes_max: u32) -> Vec<DirEntry> {
    let mut entries: Vec<DirEntry> = vec![];
    loop {
        let after = entries.last().map_or(0, |entry| entry.cookie);
        let page: Entries = brick.ask(readdir(gfid, fd, after, bytes_max)).unwrap();
        entries.extend(page.entries);
        if page.end {
            return entries;
        }
    }
}

fn fill(brick: &Brick) {
    for n in 0..20 {
        brick.create(ROOT, &format!("{n}"), "");
    }
}

#[test]
fn pages_of_every_size_give_every_name_once_in_one_order() {
    let brick = Brick::new();
    let dir = brick.mkdir(ROOT, "d");
    let names: BTreeSet<String> = (0..100).map(|n| format!("file-{n}")).collect();
    for name in &names {
        brick.create(dir, name, "x");
    }
    let fd = Fd { id: 1, gfid: dir };
    let all = list(&brick, dir, Some(fd), 1 << 20);
    assert!(all.windows(2).all(|pair| pair[0].cookie <= pair[1].cookie));
    let found: BTreeSet<String> =
        all.iter().map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap()).collect();
    assert_eq!(found, names);
    for bytes_max in [0, 1, 64, 500, 3000] {
        assert_eq!(list(&brick, dir, Some(fd), bytes_max), all);
        assert_eq!(list(&brick, dir, None, bytes_max), all);
    }
    for entry in &all {
        let found = brick.ask(Lookup { parent: dir, name: entry.name.clone() }).unwrap().found;
        assert_eq!(entry.found, found);
        assert_eq!((entry.kind, entry.gfid), (Kind::File, found.unwrap().iatt.gfid));
    }
    brick.ask(Release { fd }).unwrap();
}

#[test]
fn a_listing_goes_on_where_it_was_after_the_brick_forgot_it() {
    let mut brick = Brick::new();
    fill(&brick);
    // Of what it has just made it knows more than of what it finds.
    brick.restart();
    let all = list(&brick, ROOT, None, 1 << 20);
    let first = brick.ask(readdir(ROOT, None, 0, 200)).unwrap();
    brick.restart();
    let after = first.entries.last().unwrap().cookie;
    let rest = brick.ask(readdir(ROOT, None, after, 1 << 20)).unwrap();
    assert_eq!([first.entries, rest.entries].concat(), all);
}

#[test]
fn a_name_that_went_meanwhile_is_left_out() {
    let brick = Brick::new();
    fill(&brick);
    let first = brick.ask(readdir(ROOT, None, 0, 26)).unwrap();
    (0..20).for_each(|n| assert!(brick.unlink(ROOT, &format!("{n}")).is_ok()));
    let rest = brick.ask(readdir(ROOT, None, first.entries[0].cookie, 1 << 20)).unwrap();
    assert_eq!((rest.entries, rest.end), (vec![], true));
}

#[test]
fn names_alone_cost_no_look_and_the_bricks_own_are_not_shown() {
    let brick = Brick::new();
    brick.mkdir(ROOT, "d");
    brick.symlink(ROOT, "l", "t");
    let page = brick.ask(Readdir { attrs: false, ..readdir(ROOT, None, 0, 4096) }).unwrap();
    let mut kinds: Vec<_> = page.entries.iter().map(|entry| (entry.name.clone(), entry.kind)).collect();
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(kinds, [(name("d"), Kind::Dir), (name("l"), Kind::Symlink)]);
    assert!(page.entries.iter().all(|entry| entry.gfid.is_null() && entry.found.is_none()));
    let file = brick.create(ROOT, "x", "").iatt.gfid;
    assert_eq!(refused(brick.ask(readdir(file, None, 0, 4096))), Errno::NOTDIR);
}

#[test]
fn a_stranger_without_a_gfid_is_left_out() {
    let brick = Brick::new();
    std::fs::write(brick.path("stranger"), "").unwrap();
    brick.create(ROOT, "x", "");
    let entries = list(&brick, ROOT, None, 4096);
    assert_eq!(entries.iter().map(|entry| &entry.name).collect::<Vec<_>>(), [&name("x")]);
}
