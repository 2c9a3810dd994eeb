//! Content: what was written is read, at any place and size.

use bytes::Bytes;
use mortar_tests::refused;
use mortar_tests::tree::{Tree, now};
use mortar_xlators::error::Errno;
use mortar_xlators::fop::{Allocate, CopyRange, Fallocate, Fsync, Place, Read, Seek, SeekTo, Truncate, Write};
use mortar_xlators::types::{Gfid, MAX_IO_BYTES, OpenFlags};

use super::stories;

stories![
    what_is_written_is_read,
    a_hole_reads_as_zeros,
    a_read_ends_with_the_file,
    a_write_beyond_4_gib_is_found,
    the_largest_write_fits,
    appends_follow_each_other,
    truncate_cuts_and_grows,
    space_is_reserved_punched_and_zeroed,
    data_and_holes_are_told_apart,
    a_range_is_copied,
    a_file_can_be_made_durable,
    directories_have_no_content,
    a_write_clears_set_user_id,
    times_follow_writes,
];

async fn what_is_written_is_read(tree: Tree) {
    tree.create("file", "0123456789").await.unwrap();
    let written = tree.write("file", 3, "abc").await.unwrap();
    assert_eq!((written.offset, written.bytes, written.iatt.size), (3, 3, 10));
    assert_eq!(tree.read("file").await.unwrap(), "012abc6789");
    let written = tree.write("file", 8, "long tail").await.unwrap();
    assert_eq!(written.iatt.size, 17);
    assert_eq!(tree.read("file").await.unwrap(), "012abc67long tail");
    let gfid = tree.gfid("file").await.unwrap();
    let part = tree.send(Read { gfid, fd: None, offset: 3, size: 4 }).await.unwrap();
    assert_eq!(&part.data[..], b"abc6");
}

async fn a_hole_reads_as_zeros(tree: Tree) {
    tree.create("file", "a").await.unwrap();
    tree.write("file", 10, "b").await.unwrap();
    assert_eq!(tree.read("file").await.unwrap(), "a\0\0\0\0\0\0\0\0\0b");
}

async fn a_read_ends_with_the_file(tree: Tree) {
    tree.create("file", "abc").await.unwrap();
    let gfid = tree.gfid("file").await.unwrap();
    for (offset, expected) in [(0, "abc"), (2, "c"), (3, ""), (1 << 40, "")] {
        let data = tree.send(Read { gfid, fd: None, offset, size: 4096 }).await.unwrap().data;
        assert_eq!(&data[..], expected.as_bytes(), "{offset}");
    }
}

async fn a_write_beyond_4_gib_is_found(tree: Tree) {
    tree.create("file", "").await.unwrap();
    let gfid = tree.gfid("file").await.unwrap();
    let offset = (4 << 30) + 12_345;
    tree.write("file", offset, "far").await.unwrap();
    assert_eq!(tree.stat("file").await.unwrap().size, offset + 3);
    let data = tree.send(Read { gfid, fd: None, offset: offset - 1, size: 10 }).await.unwrap().data;
    assert_eq!(&data[..], b"\0far");
}

async fn the_largest_write_fits(tree: Tree) {
    let fd = tree.create_open("large").await.unwrap();
    let pattern: Vec<u8> = (0..MAX_IO_BYTES).map(|at| (at % 251) as u8).collect();
    let written = tree.write_fd(fd, Place::At(0), pattern.clone()).await.unwrap();
    assert_eq!(written.bytes as usize, MAX_IO_BYTES);
    assert!(tree.read_fd(fd, 0, u32::try_from(MAX_IO_BYTES).unwrap()).await.unwrap() == pattern);
    tree.close(fd).await.unwrap();
}

async fn appends_follow_each_other(tree: Tree) {
    let fd = tree.create_open("log").await.unwrap();
    let mut end = 0;
    for number in 0..20 {
        let line = format!("line {number}\n");
        let written = tree.write_fd(fd, Place::End, line.clone()).await.unwrap();
        assert_eq!(written.offset, end);
        end += line.len() as u64;
        assert_eq!(written.iatt.size, end);
    }
    tree.close(fd).await.unwrap();
    assert_eq!(tree.read("log").await.unwrap().lines().count(), 20);
}

async fn truncate_cuts_and_grows(tree: Tree) {
    tree.create("file", "0123456789").await.unwrap();
    assert_eq!(tree.truncate("file", 4).await.unwrap().iatt.size, 4);
    assert_eq!(tree.truncate("file", 6).await.unwrap().iatt.size, 6);
    assert_eq!(tree.read("file").await.unwrap(), "0123\0\0");
    tree.truncate("file", 0).await.unwrap();
    assert_eq!(tree.read("file").await.unwrap(), "");
    let gfid = tree.gfid("file").await.unwrap();
    let answer = tree.send(Truncate { gfid, fd: None, size: u64::MAX, kill_priv: false, when: now() }).await;
    assert!(matches!(refused(answer), Errno::INVAL | Errno::FBIG));
}

async fn space_is_reserved_punched_and_zeroed(tree: Tree) {
    let content = "x".repeat(16 << 10);
    tree.create("file", &content).await.unwrap();
    let gfid = tree.gfid("file").await.unwrap();
    let fallocate = async |how, offset, length| {
        tree.send(Fallocate { gfid, fd: None, how, offset, length, when: now() }).await.unwrap().iatt.size
    };
    assert_eq!(fallocate(Allocate::ReserveKeepSize, 0, 64 << 10).await, 16 << 10);
    assert_eq!(fallocate(Allocate::Reserve, 0, 32 << 10).await, 32 << 10);
    assert_eq!(fallocate(Allocate::Punch, 4096, 4096).await, 32 << 10);
    let data = tree.read("file").await.unwrap();
    let bytes = data.as_bytes();
    assert!(bytes[..4096].iter().all(|&byte| byte == b'x') && bytes[4096..8192].iter().all(|&byte| byte == 0));
    assert!(bytes[8192..16 << 10].iter().all(|&byte| byte == b'x'));
    let answer =
        tree.send(Fallocate { gfid, fd: None, how: Allocate::Zero, offset: 0, length: 4096, when: now() }).await;
    match answer {
        Ok(_) => assert!(tree.read("file").await.unwrap().as_bytes()[..4096].iter().all(|&byte| byte == 0)),
        // Not every file system can.
        Err(error) => assert_eq!(error.errno(), Errno::OPNOTSUPP),
    }
}

async fn data_and_holes_are_told_apart(tree: Tree) {
    let block = "x".repeat(64 << 10);
    tree.create("file", "").await.unwrap();
    tree.write("file", 1 << 20, &block).await.unwrap();
    let gfid = tree.gfid("file").await.unwrap();
    let seek = async |offset, to| tree.send(Seek { gfid, fd: None, offset, to }).await;
    assert_eq!(seek(0, SeekTo::Data).await.unwrap().offset, 1 << 20);
    assert_eq!(seek(0, SeekTo::Hole).await.unwrap().offset, 0);
    assert_eq!(seek(1 << 20, SeekTo::Hole).await.unwrap().offset, (1 << 20) + (64 << 10));
    assert_eq!(refused(seek(2 << 20, SeekTo::Data).await), Errno::NXIO);
}

async fn a_range_is_copied(tree: Tree) {
    tree.create("from", "0123456789").await.unwrap();
    for number in 0..4 {
        let path = format!("to-{number}");
        tree.create(&path, "abcdefghij").await.unwrap();
        let copy = CopyRange {
            from: tree.gfid("from").await.unwrap(),
            from_fd: None,
            from_offset: 2,
            to: tree.gfid(&path).await.unwrap(),
            to_fd: None,
            to_offset: 5,
            length: 3,
            when: now(),
        };
        match tree.send(copy).await {
            Ok(written) => {
                assert_eq!((written.offset, written.bytes), (5, 3));
                assert_eq!(tree.read(&path).await.unwrap(), "abcde234ij");
            }
            // The two are on different sets: the program copies by itself.
            Err(error) => {
                assert_eq!(error.errno(), Errno::XDEV);
                assert_eq!(tree.read(&path).await.unwrap(), "abcdefghij");
            }
        }
    }
}

async fn a_file_can_be_made_durable(tree: Tree) {
    let fd = tree.create_open("file").await.unwrap();
    tree.write_fd(fd, Place::At(0), "x").await.unwrap();
    for data_only in [false, true] {
        tree.send(Fsync { gfid: fd.gfid, fd: Some(fd), data_only }).await.unwrap();
        tree.send(Fsync { gfid: fd.gfid, fd: None, data_only }).await.unwrap();
    }
    let (data, place) = (Bytes::from_static(b"sync"), Place::At(1));
    let sync =
        Write { gfid: fd.gfid, fd: Some(fd), place, data, sync: true, kill_priv: false, when: now(), then: None };
    tree.send(sync).await.unwrap();
    tree.close(fd).await.unwrap();
    assert_eq!(tree.read("file").await.unwrap(), "xsync");
}

async fn directories_have_no_content(tree: Tree) {
    tree.mkdir("directory").await.unwrap();
    assert_eq!(refused(tree.read("directory").await), Errno::ISDIR);
    assert_eq!(refused(tree.write("directory", 0, "x").await), Errno::ISDIR);
    assert_eq!(refused(tree.truncate("directory", 0).await), Errno::ISDIR);
    assert_eq!(refused(tree.truncate("", 0).await), Errno::ISDIR);
    let gfid = Gfid::ROOT;
    assert_eq!(refused(tree.send(Read { gfid, fd: None, offset: 0, size: 1 }).await), Errno::ISDIR);
}

async fn a_write_clears_set_user_id(tree: Tree) {
    tree.create("program", "x").await.unwrap();
    tree.chmod("program", 0o6755).await.unwrap();
    let gfid = tree.gfid("program").await.unwrap();
    let (data, place) = (Bytes::from_static(b"y"), Place::At(0));
    let write = Write { gfid, fd: None, place, data, sync: false, kill_priv: true, when: now(), then: None };
    let written = tree.send(write).await.unwrap();
    assert_eq!(written.iatt.mode, 0o755);
    assert_eq!(tree.stat("program").await.unwrap().mode, 0o755);
    tree.chmod("program", 0o6755).await.unwrap();
    tree.send(Truncate { gfid, fd: None, size: 0, kill_priv: true, when: now() }).await.unwrap();
    assert_eq!(tree.stat("program").await.unwrap().mode, 0o755);
}

async fn times_follow_writes(tree: Tree) {
    let fd = tree.create_open("file").await.unwrap();
    let before = tree.stat("file").await.unwrap();
    let written = tree.write_fd(fd, Place::At(0), "x").await.unwrap().iatt;
    assert!(written.mtime > before.mtime && written.ctime > before.ctime);
    tree.close(fd).await.unwrap();
    let again = tree.open("file", OpenFlags::READ).await.unwrap();
    tree.read_fd(again, 0, 1).await.unwrap();
    tree.close(again).await.unwrap();
    let after = tree.stat("file").await.unwrap();
    assert_eq!((after.mtime, after.ctime), (written.mtime, written.ctime));
}
