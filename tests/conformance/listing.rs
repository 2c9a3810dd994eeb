//! Listings: every name once, in pages, and from any place that was remembered.

use std::collections::HashSet;

use mortar_tests::tree::Tree;
use mortar_xlators::fop::Readdir;
use mortar_xlators::types::{Fd, Gfid, Kind};

use super::stories;

stories![
    a_listing_has_every_name_once,
    small_pages_make_the_same_listing,
    a_remembered_place_is_found_again,
    entries_tell_kind_and_inode,
    attributes_come_along,
    linked_files_come_with_their_own_attributes,
    a_listing_goes_on_while_names_come_and_go,
    an_empty_directory_has_an_empty_listing,
    the_root_hides_what_is_ours,
];

async fn fill(tree: &Tree, count: usize) -> HashSet<String> {
    let mut names = HashSet::new();
    for number in 0..count {
        let name = format!("entry-{number}");
        match number % 7 {
            0 => tree.mkdir(&name).await.map(drop).unwrap(),
            1 => tree.symlink("x", &name).await.map(drop).unwrap(),
            _ => tree.create(&name, &"x".repeat(number)).await.map(drop).unwrap(),
        }
        names.insert(name);
    }
    // Some whose content is not where their name belongs.
    for number in (2..count).step_by(9) {
        let (from, to) = (format!("entry-{number}"), format!("renamed-{number}"));
        if number % 7 > 0 {
            tree.rename(&from, &to).await.unwrap();
            names.remove(&from);
            names.insert(to);
        }
    }
    names
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn a_listing_has_every_name_once(tree: Tree) {
    let names = fill(&tree, 150).await;
    for attrs in [false, true] {
        let entries = tree.entries("", 64 << 10, attrs).await.unwrap();
        let listed: HashSet<_> = entries.iter().map(|entry| text(entry.name.as_bytes())).collect();
        assert_eq!(entries.len(), names.len(), "attrs {attrs}");
        assert_eq!(listed, names);
    }
}

async fn small_pages_make_the_same_listing(tree: Tree) {
    let names = fill(&tree, 150).await;
    for (bytes_max, attrs) in [(200, false), (200, true), (1000, false), (1000, true), (1, false)] {
        let entries = tree.entries("", bytes_max, attrs).await.unwrap();
        let listed: HashSet<_> = entries.iter().map(|entry| text(entry.name.as_bytes())).collect();
        assert_eq!((entries.len(), listed.len()), (names.len(), names.len()), "{bytes_max} {attrs}");
        assert_eq!(listed, names, "{bytes_max} {attrs}");
    }
}

async fn a_remembered_place_is_found_again(tree: Tree) {
    fill(&tree, 60).await;
    let whole = tree.entries("", 64 << 10, false).await.unwrap();
    let gfid = tree.gfid("").await.unwrap();
    let mut last = 0;
    for (at, entry) in whole.iter().enumerate() {
        assert!(entry.cookie > last && entry.cookie < 1 << 63, "cookies ascend");
        last = entry.cookie;
        let readdir = Readdir { gfid, fd: None, after: entry.cookie, bytes_max: 100, attrs: false };
        let (page, end) = tree.page(readdir).await.unwrap();
        match whole.get(at + 1) {
            Some(next) => assert_eq!(page[0].name, next.name),
            None => assert!(page.is_empty() && end),
        }
    }
}

async fn entries_tell_kind_and_inode(tree: Tree) {
    fill(&tree, 40).await;
    for entry in tree.entries("", 64 << 10, true).await.unwrap() {
        let iatt = tree.find(&text(entry.name.as_bytes())).await.unwrap();
        assert_eq!((entry.kind, entry.gfid), (iatt.kind, iatt.gfid), "{:?}", entry.name);
    }
    for entry in tree.entries("", 64 << 10, false).await.unwrap() {
        let iatt = tree.find(&text(entry.name.as_bytes())).await.unwrap();
        assert_eq!(entry.kind, iatt.kind, "{:?}", entry.name);
    }
}

async fn attributes_come_along(tree: Tree) {
    fill(&tree, 40).await;
    for (bytes_max, sparing) in [(64 << 10, false), (300, true)] {
        for entry in tree.entries("", bytes_max, true).await.unwrap() {
            let stat = tree.stat(&text(entry.name.as_bytes())).await.unwrap();
            match entry.found {
                Some(found) => assert_eq!(found.iatt, stat, "{:?} in pages of {bytes_max}", entry.name),
                None => assert!(sparing && entry.kind == Kind::Dir, "{:?} in pages of {bytes_max}", entry.name),
            }
        }
    }
}

async fn linked_files_come_with_their_own_attributes(tree: Tree) {
    tree.create("first", "some content").await.unwrap();
    for number in 0..12 {
        tree.link("first", &format!("link-{number}")).await.unwrap();
    }
    for bytes_max in [64 << 10, 150] {
        let entries = tree.entries("", bytes_max, true).await.unwrap();
        assert_eq!(entries.len(), 13);
        for entry in entries {
            let iatt = entry.found.expect("a file comes with its attributes").iatt;
            assert_eq!((iatt.size, iatt.nlink, iatt.mode), (12, 13, 0o644), "{:?}", entry.name);
        }
    }
}

async fn a_listing_goes_on_while_names_come_and_go(tree: Tree) {
    let names = fill(&tree, 80).await;
    let gfid = tree.gfid("").await.unwrap();
    let fd = Fd { id: u64::MAX - 77, gfid };
    let (mut listed, mut after, mut round) = (Vec::new(), 0, 0);
    loop {
        let readdir = Readdir { gfid, fd: Some(fd), after, bytes_max: 400, attrs: false };
        let (page, end) = tree.page(readdir).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.cookie;
        listed.extend(page.into_iter().map(|entry| text(entry.name.as_bytes())));
        tree.create(&format!("new-{round}"), "").await.unwrap();
        if round > 0 {
            tree.unlink(&format!("new-{}", round - 1)).await.unwrap();
        }
        round += 1;
        if end {
            break;
        }
    }
    tree.close(fd).await.unwrap();
    let old: Vec<_> = listed.iter().filter(|name| !name.starts_with("new-")).collect();
    assert_eq!(old.len(), names.len(), "a name that was there all the time is listed once");
    assert_eq!(old.into_iter().cloned().collect::<HashSet<_>>(), names);
}

async fn an_empty_directory_has_an_empty_listing(tree: Tree) {
    tree.mkdir("empty").await.unwrap();
    for attrs in [false, true] {
        assert!(tree.entries("empty", 4096, attrs).await.unwrap().is_empty());
    }
    let gfid = tree.gfid("empty").await.unwrap();
    for after in [1, 1 << 40, (1 << 63) - 1] {
        let (page, end) = tree.page(Readdir { gfid, fd: None, after, bytes_max: 4096, attrs: false }).await.unwrap();
        assert!(page.is_empty() && end, "{after}");
    }
}

async fn the_root_hides_what_is_ours(tree: Tree) {
    let mut after = 0;
    loop {
        let readdir = Readdir { gfid: Gfid::ROOT, fd: None, after, bytes_max: 4096, attrs: true };
        let (page, end) = tree.page(readdir).await.unwrap();
        assert!(page.iter().all(|entry| !entry.name.as_bytes().starts_with(b".glusterfs")));
        match page.last() {
            Some(last) if !end => after = last.cookie,
            _ => break,
        }
    }
}
