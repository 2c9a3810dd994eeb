//! Names over several subvolumes: where they are, what happens when one is away, and what is mended.
//!
//! Over three bare stores, each behind a gate that counts fops and can be shut.

use bytes::Bytes;
use mortar_tests::refused;
use mortar_tests::stacks::{Shape, Stack, new_client};
use mortar_tests::tree::{Tree, birth, name, now};
use mortar_xlators::ctx::Caller;
use mortar_xlators::distribute::Options;
use mortar_xlators::distribute::hash;
use mortar_xlators::distribute::layout::{Cover, Layout, Share};
use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{FopKind, Getattr, Lookup, Mkdir, Mknod, Only, Release, Rmdir, Unlink};
use mortar_xlators::types::{AttrMask, Fd, Gfid, Kind};

mod crowd;
mod races;

const SETS: usize = 3;

/// Three bare stores, and a client over them.
struct Scene {
    stack: Stack,
    tree: Tree,
}

impl Scene {
    async fn new() -> Self {
        let stack = Stack::start(Shape::Spread { sets: SETS }).await;
        let tree = stack.tree().await;
        let scene = Self { stack, tree };
        scene.tree.mkdir("d").await.unwrap();
        scene.quiet();
        scene
    }

    /// Another client, that remembers nothing.
    async fn other(&self) -> Tree {
        self.stack.tree().await
    }

    /// What each store was asked since the last call.
    fn passed(&self) -> Vec<Vec<FopKind>> {
        (0..SETS).map(|set| self.stack.gate(set).passed()).collect()
    }

    fn quiet(&self) {
        self.passed();
    }

    /// Which fops passed since the last call. Creates also ask for the space, now and then and in the background.
    fn asked(&self) -> Vec<FopKind> {
        self.passed().concat().into_iter().filter(|kind| *kind != FopKind::Statfs).collect()
    }

    /// How many.
    fn count(&self) -> usize {
        self.asked().len()
    }

    /// The layout of a directory, from what the stores have.
    async fn layout(&self, path: &str) -> Layout {
        let mut shares = Vec::new();
        for set in 0..SETS {
            let found = self.stack.store(set).look(path).await.unwrap();
            shares.push(found.map_or(Share::Missing, |found| Share::of_directory(found.layout)));
        }
        Layout::new(shares)
    }

    /// A name in `d` that belongs to this subvolume.
    async fn name_on(&self, set: usize, stem: &str) -> String {
        let layout = self.layout("d").await;
        let names = (0..1000).map(|number| format!("{stem}-{number}"));
        names.into_iter().find(|name| layout.set_of(name.as_bytes()) == Some(set)).expect("one of many names")
    }

    /// Which stores have something under this path: `f`ile, `l`ink file, `d`irectory, or `-`.
    async fn places(&self, path: &str) -> String {
        let mut text = String::new();
        for set in 0..SETS {
            let found = self.stack.store(set).look(path).await.ok().flatten();
            text.push(match found {
                None => '-',
                Some(found) if found.linkto.is_some() => 'l',
                Some(found) if found.iatt.kind == Kind::Dir => 'd',
                Some(_) => 'f',
            });
        }
        text
    }
}

/// Who may see and make what is ours.
fn ourselves() -> Caller {
    Caller { pid: -1, ..Caller::root() }
}

/// `-` everywhere but for these.
fn only(places: &[(usize, char)]) -> String {
    (0..SETS).map(|set| places.iter().find(|place| place.0 == set).map_or('-', |place| place.1)).collect()
}

#[tokio::test]
async fn the_root_is_laid_out_once_as_glusterfs_would() {
    let scene = Scene::new().await;
    let root = scene.layout("").await;
    assert!(root.is_sound() && !root.is_committed(0));
    let order: Vec<_> = (0..SETS).collect();
    assert_eq!(root, mortar_xlators::distribute::layout::assign(Gfid::ROOT, &order, 1));
    let other = scene.other().await;
    other.find("d").await.unwrap();
    assert!(!scene.passed().concat().contains(&FopKind::Setxattr), "the second client finds it done");
}

#[tokio::test]
async fn a_directory_is_on_all_with_one_gfid_and_a_whole_layout() {
    let scene = Scene::new().await;
    assert_eq!(scene.places("d").await, "ddd");
    let layout = scene.layout("d").await;
    assert!(layout.is_sound() && layout.is_committed(0));
    let gfid = scene.tree.gfid("d").await.unwrap();
    for set in 0..SETS {
        assert_eq!(scene.stack.store(set).gfid("d").await.unwrap(), gfid);
    }
}

#[tokio::test]
async fn a_file_is_where_its_name_belongs_and_nowhere_else() {
    let scene = Scene::new().await;
    let layout = scene.layout("d").await;
    for number in 0..50 {
        let name = format!("file-{number}");
        scene.tree.create(&format!("d/{name}"), "x").await.unwrap();
        let set = layout.set_of(name.as_bytes()).unwrap();
        assert_eq!(scene.places(&format!("d/{name}")).await, only(&[(set, 'f')]));
    }
}

#[tokio::test]
async fn rsyncs_temporary_name_belongs_where_the_final_one_does() {
    let scene = Scene::new().await;
    assert_eq!(hash::place(b".final.c.Xy12Ab"), hash::place(b"final.c"));
    scene.tree.create("d/.final.c.Xy12Ab", "x").await.unwrap();
    scene.tree.rename("d/.final.c.Xy12Ab", "d/final.c").await.unwrap();
    assert!(!scene.places("d/final.c").await.contains('l'));
}

#[tokio::test]
async fn common_fops_cost_one_message() {
    let scene = Scene::new().await;
    let parent = scene.tree.gfid("d").await.unwrap();
    scene.quiet();
    let (lookup, create) = (
        Lookup { parent, name: name("new") },
        mortar_xlators::fop::Create {
            parent,
            name: name("new"),
            birth: birth(0o644),
            content: Bytes::from_static(b"x"),
            open: None,
            lease: false,
        },
    );
    let gfid = create.birth.gfid;
    assert!(scene.tree.send(lookup.clone()).await.unwrap().found.is_none());
    assert_eq!(scene.count(), 1, "a lookup of what is not there");
    scene.tree.send(create).await.unwrap();
    assert_eq!(scene.asked(), [FopKind::Create]);
    scene.tree.send(lookup).await.unwrap();
    assert_eq!(scene.count(), 1, "a lookup");
    scene.tree.send(Getattr { gfid, fd: None, exact: AttrMask::all() }).await.unwrap();
    assert_eq!(scene.count(), 1, "attributes of a file");
    scene.tree.send(Unlink { parent, name: name("new"), only: Only::Any, when: now() }).await.unwrap();
    assert_eq!(scene.asked(), [FopKind::Unlink]);
    let made = scene.tree.send(Mkdir {
        parent,
        name: name("sub"),
        birth: birth(0o755),
        layout: None,
        mds: false,
        lease: false,
    });
    made.await.unwrap();
    // A lease that the client has needs no message.
    let without_leases = || {
        let asked = scene.asked();
        asked.into_iter().filter(|kind| !matches!(kind, FopKind::Lease | FopKind::Unlease)).count()
    };
    assert_eq!(without_leases(), SETS, "a directory is made in one message to each");
    scene.tree.send(Rmdir { parent, name: name("sub"), when: now() }).await.unwrap();
    assert_eq!(without_leases(), 2 * SETS + 1, "and removed with two, and one that looks whether it is still the same");
    scene.tree.send(Release { fd: Fd { id: 1, gfid } }).await.unwrap();
    assert_eq!(scene.count(), 1);
}

#[tokio::test]
async fn a_renamed_file_stays_and_leaves_a_link_file() {
    let scene = Scene::new().await;
    for (from_set, to_set) in [(0, 0), (0, 1), (1, 2), (2, 0)] {
        let (from, to) = (scene.name_on(from_set, "from").await, scene.name_on(to_set, "to").await);
        let (from, to) = (format!("d/{from}"), format!("d/{to}"));
        scene.tree.create(&from, "x").await.unwrap();
        scene.tree.rename(&from, &to).await.unwrap();
        let link = if from_set == to_set { vec![(from_set, 'f')] } else { vec![(from_set, 'f'), (to_set, 'l')] };
        assert_eq!(scene.places(&to).await, only(&link));
        assert_eq!(scene.places(&from).await, "---");
        let other = scene.other().await;
        assert_eq!(other.read(&to).await.unwrap(), "x");
        other.unlink(&to).await.unwrap();
        assert_eq!(scene.places(&to).await, "---", "neither content nor link file remains");
    }
    assert_eq!(scene.tree.ls("d").await.unwrap(), [""; 0]);
    scene.tree.rmdir("d").await.unwrap();
}

/// Every way in which old and new name, and their contents, can be spread over three subvolumes.
#[tokio::test]
async fn a_rename_is_right_for_every_spread_of_both_ends() {
    let scene = Scene::new().await;
    let mut round = 0;
    for bits in 0..SETS.pow(4) {
        let at = |place: u32| bits / SETS.pow(place) % SETS;
        let (from_hashed, from_cached, to_hashed, to_cached) = (at(0), at(1), at(2), at(3));
        round += 1;
        let from = put(&scene, from_hashed, from_cached, &format!("from{round}"), "moved").await;
        let to = put(&scene, to_hashed, to_cached, &format!("to{round}"), "victim").await;
        let tree = scene.other().await;
        let (moved, victim) = (tree.gfid(&from).await.unwrap(), tree.gfid(&to).await.unwrap());
        let renamed = tree.rename(&from, &to).await.unwrap();
        let what = format!("from {from_hashed}/{from_cached} to {to_hashed}/{to_cached}");
        assert_eq!((renamed.iatt.gfid, renamed.iatt.nlink, renamed.iatt.mode), (moved, 1, 0o644), "{what}");
        assert_eq!(renamed.replaced.map(|replaced| (replaced.gfid, replaced.nlink)), Some((victim, 0)), "{what}");
        assert_eq!(scene.places(&from).await, "---", "{what}");
        let link = if from_cached == to_hashed {
            vec![(from_cached, 'f')]
        } else {
            vec![(from_cached, 'f'), (to_hashed, 'l')]
        };
        assert_eq!(scene.places(&to).await, only(&link), "{what}");
        assert_eq!(scene.other().await.read(&to).await.unwrap(), "moved", "{what}");
        for set in 0..SETS {
            let gone = Getattr { gfid: victim, fd: None, exact: AttrMask::empty() };
            refused(scene.stack.store(set).send(gone).await);
        }
        tree.unlink(&to).await.unwrap();
    }
    scene.tree.rmdir("d").await.unwrap();
}

/// Make a file whose name belongs to `hashed` and whose content is on `cached`.
async fn put(scene: &Scene, hashed: usize, cached: usize, stem: &str, content: &str) -> String {
    let first = format!("d/{}", scene.name_on(cached, &format!("{stem}-first")).await);
    scene.tree.create(&first, content).await.unwrap();
    let path = format!("d/{}", scene.name_on(hashed, stem).await);
    scene.tree.rename(&first, &path).await.unwrap();
    path
}

#[tokio::test]
async fn a_subvolume_that_is_away_makes_nothing_absent() {
    let scene = Scene::new().await;
    let (here, away) = (scene.name_on(0, "here").await, scene.name_on(1, "away").await);
    scene.tree.create(&format!("d/{here}"), "here").await.unwrap();
    scene.tree.create(&format!("d/{away}"), "away").await.unwrap();
    let other = scene.other().await;
    scene.stack.gate(1).shut();
    for tree in [scene.tree.clone(), other] {
        assert_eq!(tree.read(&format!("d/{here}")).await.unwrap(), "here");
        assert_eq!(tree.look(&format!("d/{away}")).await.unwrap_err(), FopError::Unreachable);
        assert_eq!(tree.ls("d").await.unwrap_err(), FopError::Unreachable, "no listing passes for whole");
        assert_eq!(tree.mkdir("d/new").await.unwrap_err(), FopError::Unreachable);
        assert_eq!(tree.rmdir("d").await.unwrap_err(), FopError::Unreachable);
    }
    scene.stack.gate(1).open();
    assert_eq!(scene.tree.read(&format!("d/{away}")).await.unwrap(), "away");
    assert_eq!(scene.places("d/new").await, "---");
    assert_eq!(scene.tree.ls("d").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_directory_that_could_not_be_made_everywhere_is_taken_back() {
    let scene = Scene::new().await;
    for set in 0..SETS {
        scene.stack.gate(set).shut_before(FopKind::Mkdir, 0);
        assert_eq!(scene.tree.mkdir("d/new").await.unwrap_err(), FopError::Unreachable, "{set}");
        scene.stack.gate(set).open();
        assert_eq!(scene.places("d/new").await, "---", "{set}");
    }
    scene.tree.mkdir("d/new").await.unwrap();
    assert_eq!(scene.places("d/new").await, "ddd");
}

#[tokio::test]
async fn a_missing_part_of_a_directory_is_made_again() {
    let scene = Scene::new().await;
    scene.tree.chmod("d", 0o2750).await.unwrap();
    scene.tree.chown("d", 7, 8).await.unwrap();
    scene.tree.setxattr("d", "user.kept", "value", mortar_xlators::fop::SetHow::Any).await.unwrap();
    let gfid = scene.tree.gfid("d").await.unwrap();
    let before = scene.layout("d").await;
    for set in 0..SETS {
        scene.stack.store(set).rmdir("d").await.unwrap();
        let other = scene.other().await;
        let found = other.find("d").await;
        if Some(set) == scene.layout("").await.set_of(b"d") {
            // The root is not committed: names in it may be anywhere, and are sought.
            assert_eq!(found.unwrap().gfid, gfid);
        } else {
            found.unwrap();
        }
        assert_eq!(scene.places("d").await, "ddd", "{set}");
        let part = scene.stack.store(set).stat("d").await.unwrap();
        assert_eq!((part.gfid, part.mode, part.uid, part.gid), (gfid, 0o2750, 7, 8), "{set}");
        assert_eq!(scene.stack.store(set).getxattr("d", "user.kept").await.unwrap(), "value");
        assert_eq!(scene.layout("d").await, before, "the range is where it was");
    }
}

#[tokio::test]
async fn a_rmdir_that_meets_a_new_name_loses_nothing() {
    let scene = Scene::new().await;
    scene.tree.mkdir("d/sub").await.unwrap();
    scene.tree.chmod("d/sub", 0o700).await.unwrap();
    let gfid = scene.tree.gfid("d/sub").await.unwrap();
    let layout = scene.layout("d/sub").await;
    for set in 0..SETS {
        let name = (0..).map(|n| format!("n{n}")).find(|n| layout.set_of(n.as_bytes()) == Some(set)).unwrap();
        let path = format!("d/sub/{name}");
        // The name is made when the directory was already seen to be empty.
        scene.stack.store(set).create(&path, "late").await.unwrap();
        scene.stack.gate(set).pretend_empty();
        let error = scene.tree.rmdir("d/sub").await.unwrap_err();
        scene.stack.gate(set).pretend_nothing();
        assert_eq!(error, FopError::Refused(Errno::NOTEMPTY), "{set}");
        assert_eq!(scene.places("d/sub").await, "ddd", "{set}");
        let other = scene.other().await;
        assert_eq!(other.read(&path).await.unwrap(), "late");
        let stat = other.stat("d/sub").await.unwrap();
        assert_eq!((stat.gfid, stat.mode), (gfid, 0o700));
        assert_eq!(scene.layout("d/sub").await.cover(), Cover::Whole);
        other.unlink(&path).await.unwrap();
    }
    scene.tree.rmdir("d/sub").await.unwrap();
    assert_eq!(scene.places("d/sub").await, "---");
}

#[tokio::test]
async fn leftovers_do_not_keep_a_directory() {
    let scene = Scene::new().await;
    scene.tree.mkdir("d/sub").await.unwrap();
    let parent = scene.tree.gfid("d/sub").await.unwrap();
    for set in 0..SETS {
        let store = scene.stack.store(set).acting_as(ourselves());
        let linkto = Some(Bytes::from_static(b"test-client-0"));
        let link = Mknod { parent, name: name("stale"), birth: birth(0), kind: Kind::File, rdev: 0, linkto };
        store.send(link).await.unwrap();
    }
    assert_eq!(scene.tree.ls("d/sub").await.unwrap().len(), 1, "a listing of names only cannot know");
    assert!(scene.tree.entries("d/sub", 4096, true).await.unwrap().is_empty());
    scene.tree.rmdir("d/sub").await.unwrap();
    assert_eq!(scene.places("d/sub").await, "---");
}

/// C041: page after page of names that belong elsewhere, and of link files.
#[tokio::test]
async fn a_listing_in_small_pages_is_whole_where_most_have_only_link_files() {
    const FILES: usize = 600;
    let stack = Stack::start(Shape::Spread { sets: 8 }).await;
    let tree = stack.tree().await;
    tree.mkdir("d").await.unwrap();
    let mut shares = Vec::new();
    for set in 0..8 {
        let found = stack.store(set).look("d").await.unwrap();
        shares.push(Share::of_directory(found.and_then(|found| found.layout)));
    }
    let layout = Layout::new(shares);
    let first = (0..).map(|number| format!("first-{number}")).filter(|name| layout.set_of(name.as_bytes()) == Some(0));
    let mut want = Vec::new();
    for (number, first) in first.take(FILES).enumerate() {
        tree.create(&format!("d/{first}"), "x").await.unwrap();
        tree.rename(&format!("d/{first}"), &format!("d/name-{number:03}")).await.unwrap();
        want.push(format!("name-{number:03}"));
    }
    for (bytes_max, attrs) in [(64, false), (256, true), (4096, false), (32 << 10, true)] {
        let entries = stack.tree().await.entries("d", bytes_max, attrs).await.unwrap();
        let mut names: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(entry.name.as_bytes())).collect();
        names.sort_unstable();
        assert_eq!(names, want, "pages of {bytes_max}");
    }
}

#[tokio::test]
async fn a_link_file_that_leads_nowhere_does_not_block_its_name() {
    let scene = Scene::new().await;
    let file = scene.name_on(1, "file").await;
    let path = format!("d/{file}");
    let parent = scene.tree.gfid("d").await.unwrap();
    let store = scene.stack.store(1).acting_as(ourselves());
    let linkto = Some(Bytes::from_static(b"test-client-2"));
    let link = Mknod { parent, name: name(&file), birth: birth(0), kind: Kind::File, rdev: 0, linkto };
    store.send(link).await.unwrap();
    scene.tree.create(&path, "new").await.unwrap();
    assert_eq!(scene.places(&path).await, only(&[(1, 'f')]));
}

#[tokio::test]
async fn content_where_its_name_does_not_belong_is_found_while_nothing_is_committed() {
    let scene = Scene::new().await;
    // The root's names may be anywhere.
    let root = scene.layout("").await;
    let file = (0..).map(|n| format!("f{n}")).find(|n| root.set_of(n.as_bytes()) == Some(0)).unwrap();
    scene.stack.store(2).create(&file, "strayed").await.unwrap();
    assert_eq!(scene.tree.read(&file).await.unwrap(), "strayed");
    assert_eq!(scene.places(&file).await, only(&[(0, 'l'), (2, 'f')]), "it got its link file");
    assert_eq!(scene.tree.ls("").await.unwrap(), ["d", &file]);
    scene.tree.unlink(&file).await.unwrap();
    assert_eq!(scene.places(&file).await, "---");
}

#[tokio::test]
async fn a_nearly_full_subvolume_gets_link_files_only() {
    let scene = Scene::new().await;
    // Everything is nearly full by this measure, so all stay where they belong.
    let tight = Tree::new(scene.stack.spread(Options { free_percent_min: 100 }), new_client());
    let file = scene.name_on(1, "file").await;
    tight.create(&format!("d/{file}"), "x").await.unwrap();
    assert_eq!(scene.places(&format!("d/{file}")).await, only(&[(1, 'f')]));

    scene.stack.gate(1).pretend_full();
    let file = scene.name_on(1, "other").await;
    scene.tree.create(&format!("d/{file}"), "elsewhere").await.unwrap();
    let places = scene.places(&format!("d/{file}")).await;
    assert!(places.as_bytes()[1] == b'l' && places.contains('f'), "{places}");
    assert_eq!(scene.other().await.read(&format!("d/{file}")).await.unwrap(), "elsewhere");
    scene.tree.unlink(&format!("d/{file}")).await.unwrap();
    assert_eq!(scene.places(&format!("d/{file}")).await, "---");
}

#[tokio::test]
async fn a_rename_of_a_directory_that_fails_goes_back() {
    let scene = Scene::new().await;
    scene.tree.mkdir("d/old").await.unwrap();
    scene.tree.mkdir("d/empty").await.unwrap();
    scene.tree.create("d/old/file", "x").await.unwrap();
    for to in ["d/new", "d/empty"] {
        let hashed = scene.layout("d").await.set_of(&to.as_bytes()[2..]).unwrap();
        for set in (0..SETS).filter(|&set| set != hashed) {
            scene.stack.gate(set).shut_before(FopKind::Rename, 0);
            assert_eq!(scene.tree.rename("d/old", to).await.unwrap_err(), FopError::Unreachable);
            scene.stack.gate(set).open();
            let other = scene.other().await;
            assert_eq!(other.read("d/old/file").await.unwrap(), "x", "{to} {set}");
            other.find("d/empty").await.unwrap();
            assert_eq!((scene.places("d/old").await, scene.places("d/empty").await), ("ddd".into(), "ddd".into()));
            assert_eq!(scene.places("d/new").await, "---");
        }
    }
    scene.tree.rename("d/old", "d/empty").await.unwrap();
    assert_eq!(scene.tree.read("d/empty/file").await.unwrap(), "x");
}

#[tokio::test]
async fn attributes_that_differ_are_made_equal() {
    let scene = Scene::new().await;
    let hashed = scene.layout("").await.set_of(b"d").unwrap();
    let other_set = (hashed + 1) % SETS;
    // Somebody died after he had reached one subvolume.
    scene.stack.store(other_set).chmod("d", 0o700).await.unwrap();
    let stat = scene.other().await.find("d").await.unwrap();
    assert_eq!(stat.mode, 0o755);
    assert_eq!(scene.stack.store(other_set).stat("d").await.unwrap().mode, 0o755);
}

#[tokio::test]
async fn space_is_the_sum() {
    let scene = Scene::new().await;
    let one = scene.stack.store(0).send(mortar_xlators::fop::Statfs).await.unwrap();
    let all = scene.tree.send(mortar_xlators::fop::Statfs).await.unwrap();
    assert_eq!(all.blocks, one.blocks * SETS as u64);
    scene.stack.gate(2).shut();
    let some = scene.tree.send(mortar_xlators::fop::Statfs).await.unwrap();
    assert_eq!(some.blocks, one.blocks * (SETS as u64 - 1));
}
