//! What replicate sends to its copies, and what it makes of their answers.

use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{FopKind, Only, Open, Place, Readdir, Rename, Replace, Rmdir, Unlink};
use mortar_xlators::graph::Quorum;
use mortar_xlators::types::{Cover, Fd, Gfid, OpenFlags, XattrName};

use crate::set::{Client, Fault, Set, gfid, name, when};

pub(crate) fn key(copy: usize) -> XattrName {
    XattrName::new(format!("trusted.afr.v-client-{copy}").into_bytes()).expect("a key")
}

fn blame(set: &Set, on: usize, path: &str, against: usize) -> [i32; 3] {
    let inode = set.bricks[on].disk.path(path).expect("it is there");
    inode.marks.get(&key(against)).copied().unwrap_or_default()
}

/// The specification of a transaction: what travels for a create and a write on three copies.
#[tokio::test]
async fn a_replicated_create_and_write() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "").await.expect("created");
    client.write(gfid(42), Place::At(0), "hello").await.expect("written");
    client.write(gfid(42), Place::End, " world").await.expect("written");
    assert_eq!(client.read(gfid(42)).await.as_deref(), Ok("hello world"));
    assert_eq!(
        set.take_log(),
        "\
0 Lease Exclusive 1
1 Lease Exclusive 1
2 Lease Exclusive 1
0 Create 1/\"f\" 42 content 0 under 1
1 Create 1/\"f\" 42 content 0 under 1
2 Create 1/\"f\" 42 content 0 under 1
0 Write 42 At(0) 5 bytes under 42
1 Write 42 At(0) 5 bytes under 42
2 Write 42 At(0) 5 bytes under 42
0 Write 42 End 6 bytes under 42
1 Write 42 End 6 bytes under 42
2 Write 42 End 6 bytes under 42
1 Read  under 42
"
    );
    set.agree(&[0, 1, 2]);
}

#[tokio::test]
async fn what_every_copy_has_leaves_the_dirty_journal() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "x").await.expect("created");
    for _ in 0..3 {
        client.write(gfid(42), Place::End, "y").await.expect("written");
    }
    assert!(set.bricks.iter().all(|b| *b.disk.marked_dirty.lock() == [Gfid::ROOT, gfid(42)]), "once per lease");
    Client::until("nothing is dirty", || set.bricks.iter().all(|b| b.disk.dirty().is_empty())).await;
    assert!(set.take_log().contains("0 Settle 1:Some(1) 42:Some(3)\n"));
    client.write(gfid(42), Place::End, "z").await.expect("written");
    assert!(set.bricks.iter().all(|b| b.disk.dirty().contains(&gfid(42))), "dirty again");
}

#[tokio::test]
async fn one_copy_and_two_copies_work_alike() {
    for copies in [1, 2] {
        let set = Set::new(copies, Quorum::Auto);
        let client = set.client();
        client.mkdir(Gfid::ROOT, "d", gfid(10)).await.expect("made");
        let made = client.create(gfid(10), "f", gfid(11), "hello").await.expect("created");
        assert_eq!(made.cover, Cover::NAME | Cover::ATTRS | Cover::OWNED);
        assert_eq!(made.lease, None);
        assert_eq!(client.read(gfid(11)).await.as_deref(), Ok("hello"));
        let looked = client.lookup(gfid(10), "f").await.expect("looked");
        assert_eq!(looked.found.expect("found").cover, Cover::NAME | Cover::ATTRS);
        let absent = client.lookup(gfid(10), "g").await.expect("looked");
        assert_eq!((absent.found, absent.cover), (None, Cover::NAME));
        set.agree(&(0..copies).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn an_errno_that_all_copies_give_blames_nobody() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "").await.expect("created");
    let again = client.create(Gfid::ROOT, "f", gfid(43), "").await;
    assert_eq!(again, Err(FopError::Refused(Errno::EXIST)));
    assert!(!set.take_log().contains("Mark"));
}

#[tokio::test]
async fn a_copy_that_was_cut_off_is_blamed_before_success_is_reported() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::Refuse(Errno::NOSPC)] {
        let set = Set::new(3, Quorum::Auto);
        let client = set.client();
        client.create(Gfid::ROOT, "f", gfid(42), "old").await.expect("created");
        client.wires[1].faults.lock().push_back((FopKind::Write, fault));
        client.write(gfid(42), Place::At(0), "new").await.expect("a quorum has it");
        assert_eq!(blame(&set, 0, "f", 1), [1, 0, 0], "{fault:?}");
        assert_eq!(blame(&set, 2, "f", 1), [1, 0, 0], "{fault:?}");
        assert_eq!(blame(&set, 1, "f", 1), [0, 0, 0], "{fault:?}");
        // The second time under the same lease costs nothing.
        set.take_log();
        client.wires[1].faults.lock().push_back((FopKind::Write, fault));
        client.write(gfid(42), Place::At(0), "newer").await.expect("a quorum has it");
        assert!(!set.take_log().contains("Mark"), "{fault:?}");
        assert_eq!(client.read(gfid(42)).await.as_deref(), Ok("newer"), "{fault:?}");
    }
}

#[tokio::test]
async fn a_copy_that_misses_a_birth_is_blamed_on_the_directory_and_on_the_child() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.wires[2].faults.lock().push_back((FopKind::Create, Fault::LoseRequest));
    client.create(Gfid::ROOT, "f", gfid(42), "").await.expect("a quorum has it");
    assert_eq!((blame(&set, 0, "", 2), blame(&set, 0, "f", 2)), ([1, 0, 1], [1, 1, 0]));
    client.wires[2].cut();
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    client.mkdir(Gfid::ROOT, "d", gfid(43)).await.expect("a quorum has it");
    assert_eq!((blame(&set, 1, "", 2), blame(&set, 1, "d", 2)), ([1, 0, 1], [1, 1, 1]));
    client.create(gfid(43), "g", gfid(44), "").await.expect("a quorum has it");
    assert_eq!((blame(&set, 1, "d", 2), blame(&set, 1, "d/g", 2)), ([1, 1, 1], [1, 1, 0]));
}

#[tokio::test]
async fn a_copy_that_did_what_a_quorum_refused_is_blamed() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "old").await.expect("created");
    for copy in [0, 1] {
        client.wires[copy].faults.lock().push_back((FopKind::Write, Fault::Refuse(Errno::NOSPC)));
    }
    let written = client.write(gfid(42), Place::At(0), "new").await;
    assert_eq!(written, Err(FopError::Refused(Errno::NOSPC)));
    assert_eq!(blame(&set, 0, "f", 2), [1, 0, 0]);
    assert_eq!(client.read(gfid(42)).await.as_deref(), Ok("old"), "the odd copy does not answer");
}

#[tokio::test]
async fn copies_that_fail_in_turn_never_leave_none_that_has_everything() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.mkdir(Gfid::ROOT, "d", gfid(42)).await.expect("made");
    let mut made = Vec::new();
    for (copy, text) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate().map(|(at, text)| (at % 3, text)) {
        client.wires[copy].faults.lock().push_back((FopKind::Create, Fault::Refuse(Errno::NOSPC)));
        match client.create(gfid(42), text, gfid(50 + made.len() as u64), "").await {
            Ok(_) => made.push(name(text)),
            error => assert_eq!(error.map(drop), Err(FopError::Refused(Errno::NOSPC))),
        }
    }
    assert_eq!(made.len(), 4, "two copies may fail, the third decides");
    let listing = Readdir { gfid: gfid(42), fd: None, after: 0, bytes_max: 4096, attrs: false };
    let other = set.client();
    let entries = other.send(listing).await.expect("listed").entries;
    let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, made);
    for made in names {
        let unlink = Unlink { parent: gfid(42), name: made, only: Only::Any, when: when(9) };
        client.send(unlink).await.expect("what is listed can be removed");
    }
    client.send(Rmdir { parent: Gfid::ROOT, name: name("d"), when: when(9) }).await.expect("nothing is left");
}

#[tokio::test]
async fn a_refusal_stands_where_there_is_nothing_left_to_blame_on() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.mkdir(Gfid::ROOT, "d", gfid(42)).await.expect("made");
    for copy in [0, 1] {
        // As when the directory is being removed, and the third copy has not done so yet.
        for fop in [FopKind::Create, FopKind::Mark] {
            client.wires[copy].faults.lock().push_back((fop, Fault::Refuse(Errno::STALE)));
        }
    }
    client.wires[2].faults.lock().push_back((FopKind::Unlink, Fault::Refuse(Errno::IO)));
    let made = client.create(gfid(42), "f", gfid(43), "").await;
    assert_eq!(made.map(drop), Err(FopError::Refused(Errno::STALE)));
}

#[tokio::test]
async fn below_quorum_a_change_fails_and_a_late_loss_stays_dirty() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "old").await.expect("created");
    for copy in [0, 1] {
        client.wires[copy].faults.lock().push_back((FopKind::Write, Fault::LoseRequest));
    }
    assert_eq!(client.write(gfid(42), Place::At(0), "new").await, Err(FopError::Unreachable));
    client.wires[0].cut();
    client.wires[1].cut();
    Client::until("it is noticed", || !mortar_is_up(&client)).await;
    assert_eq!(client.write(gfid(42), Place::At(0), "new").await, Err(FopError::Refused(Errno::NOTCONN)));
    assert_eq!(client.read(gfid(42)).await, Err(FopError::Refused(Errno::NOTCONN)));
    assert!(set.bricks[2].disk.dirty().contains(&gfid(42)), "what copies may differ in stays in the journal");
}

fn mortar_is_up(client: &Client) -> bool {
    client.top.health().borrow().is_up()
}

#[tokio::test]
async fn reads_go_on_with_the_next_copy() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "hello").await.expect("created");
    for wire in &client.wires {
        wire.faults.lock().push_back((FopKind::Read, Fault::LoseRequest));
    }
    client.wires[2].faults.lock().push_back((FopKind::Read, Fault::Refuse(Errno::IO)));
    client.wires[0].faults.lock().clear();
    assert_eq!(client.read(gfid(42)).await.as_deref(), Ok("hello"));
}

/// A program opened a file while another client removed it, and could neither read it nor hear that it was gone.
#[tokio::test]
async fn a_file_that_is_open_on_some_copies_and_gone_from_others_is_not_open() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "hello").await.expect("created");
    let open = Open { fd: Fd { id: 1, gfid: gfid(42) }, flags: OpenFlags::READ, when: when(1) };
    client.wires[1].faults.lock().push_back((FopKind::Open, Fault::Refuse(Errno::STALE)));
    set.take_log();
    assert_eq!(client.send(open.clone()).await, Err(FopError::Refused(Errno::STALE)));
    let log = set.take_log();
    assert_eq!(log.matches(" Release ").count(), 3, "{log}");
    client.wires[1].faults.lock().push_back((FopKind::Open, Fault::Refuse(Errno::IO)));
    assert!(client.send(open).await.is_ok(), "a disk that fails says nothing about the file");
}

/// A program truncated a file that was just closed by the last who had it open, and heard that the volume was not there.
#[tokio::test]
async fn what_is_gone_from_a_quorum_of_copies_is_gone_and_blames_nobody() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "hello").await.expect("created");
    for copy in [0, 1] {
        let gone = Fault::Refuse(Errno::STALE);
        client.wires[copy].faults.lock().extend([(FopKind::Write, gone), (FopKind::Mark, gone)]);
    }
    assert_eq!(client.write(gfid(42), Place::At(0), "new").await, Err(FopError::Refused(Errno::STALE)));
}

#[tokio::test]
async fn a_copy_that_lacks_a_file_and_is_blamed_for_that_keeps_nobody_from_opening_it() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    client.wires[2].faults.lock().push_back((FopKind::Create, Fault::LoseRequest));
    client.create(Gfid::ROOT, "f", gfid(42), "hello").await.expect("created");
    client.wires[2].faults.lock().push_back((FopKind::Open, Fault::Refuse(Errno::STALE)));
    let open = Open { fd: Fd { id: 1, gfid: gfid(42) }, flags: OpenFlags::READ, when: when(1) };
    assert!(client.send(open).await.is_ok());
}

#[tokio::test]
async fn a_file_that_every_copy_blames_is_not_read() {
    let set = Set::new(2, Quorum::Fixed(1));
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "").await.expect("created");
    for copy in [0, 1] {
        client.wires[copy].faults.lock().push_back((FopKind::Write, Fault::LoseRequest));
        client.write(gfid(42), Place::At(0), &format!("only on {}", 1 - copy)).await.expect("one is enough");
    }
    assert_eq!(client.read(gfid(42)).await, Err(FopError::Refused(Errno::IO)));
    assert_eq!(client.getattr(gfid(42)).await.map(|found| found.iatt.size), Err(FopError::Refused(Errno::IO)));
    let fresh = set.client();
    assert_eq!(fresh.read(gfid(42)).await, Err(FopError::Refused(Errno::IO)), "another client sees it, too");
    assert!(fresh.lookup(Gfid::ROOT, "f").await.is_err());
}

#[tokio::test]
async fn an_arbiter_gets_no_content_and_answers_none() {
    let set = Set::with_arbiter(3, Quorum::Auto, 2);
    let client = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "hello").await.expect("created");
    let written = client.write(gfid(42), Place::End, " world").await.expect("written");
    assert_eq!((written.offset, written.bytes, written.iatt.size), (5, 6, 11));
    assert_eq!(client.read(gfid(42)).await.as_deref(), Ok("hello world"));
    assert_eq!(client.getattr(gfid(42)).await.expect("there").iatt.size, 11);
    assert_eq!(set.bricks[2].disk.path("f").expect("there").content, b"");
    let log = set.take_log();
    assert!(log.contains("2 Create 1/\"f\" 42 content 0") && log.contains("2 Write 42 End 1 bytes"));
    // One data copy is blamed, then the other goes: what is left could not give the content back.
    client.wires[0].faults.lock().push_back((FopKind::Write, Fault::LoseRequest));
    client.write(gfid(42), Place::At(0), "J").await.expect("written");
    client.wires[1].cut();
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(client.write(gfid(42), Place::At(0), "K").await, Err(FopError::Refused(Errno::NOTCONN)));
    assert!(client.read(gfid(42)).await.is_err());
}

#[tokio::test]
async fn a_copy_that_slept_answers_nothing_it_missed() {
    let set = Set::new(3, Quorum::Auto);
    let client = set.client();
    let other = set.client();
    client.create(Gfid::ROOT, "f", gfid(42), "old").await.expect("created");
    let asleep = 1;
    client.wires[asleep].cut();
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    client.write(gfid(42), Place::At(0), "newer").await.expect("written");
    client.wires[asleep].mend(1);
    for client in [&client, &other] {
        let looked = client.lookup(Gfid::ROOT, "f").await.expect("looked");
        assert_eq!(looked.found.expect("found").iatt.size, 5);
        assert_eq!(client.getattr(gfid(42)).await.expect("there").iatt.size, 5);
        assert_eq!(client.read(gfid(42)).await.as_deref(), Ok("newer"));
    }
    client.write(gfid(42), Place::At(0), "NEWER").await.expect("written");
    assert!(set.take_log().contains("1 Write 42 At(0) 5 bytes under 42"), "it takes part in changes again");
}

/// How many requests for leases go with a rename that three others get in the way of: several times what is usual.
const ASKED_MAX: usize = 100;

/// Clients that want two directories each take them from each other, and all get on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_needs_two_directories_gets_them_though_others_do_too() {
    let set = Set::new(3, Quorum::Auto);
    let maker = set.client();
    let directories = [10, 11, 12].map(gfid);
    for (number, directory) in directories.into_iter().enumerate() {
        maker.mkdir(Gfid::ROOT, &format!("d-{number}"), directory).await.expect("made");
    }
    let movers = (0..4).map(|who| {
        let client = set.client();
        tokio::spawn(async move {
            let at = |number: usize| directories[(who + number) % directories.len()];
            let (file, own) = (gfid(100 + who as u64), name(&format!("file-{who}")));
            client.create(at(0), &format!("file-{who}"), file, "").await.expect("created");
            for number in 0..100 {
                let rename = Rename {
                    from_parent: at(number),
                    from_name: own.clone(),
                    to_parent: at(number + 1),
                    to_name: own.clone(),
                    replace: Replace::Yes,
                    when: when(3),
                };
                client.send(rename).await.expect("renamed");
            }
            client
        })
    });
    let movers: Vec<_> = futures::future::join_all(movers).await;
    assert!(movers.iter().all(Result::is_ok));
    let asked = set.take_log().lines().filter(|line| line.contains(" Lease ")).count();
    assert!(asked <= 400 * ASKED_MAX, "asked for leases {asked} times");
    set.agree(&[0, 1, 2]);
}
