//! Stories of a real mount. They need root and `/dev/fuse`; without, they say so and pass.

mod memory;

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, listxattr, setxattr};
use rustix::mount::MountFlags;

use self::memory::Memory;
use super::abi::InitFlags;
use super::mount::{Access, MountOptions};
use super::notify::Stale;
use super::session::{Session, SessionOptions};

fn mount_options() -> MountOptions {
    MountOptions {
        source: "memory".into(),
        subtype: "mortar-test".into(),
        flags: MountFlags::NOSUID | MountFlags::NODEV,
        access: Access::Everybody,
        max_read: 1 << 20,
    }
}

fn session_options() -> SessionOptions {
    SessionOptions {
        more: InitFlags::FLOCK_LOCKS,
        readers: 2,
        background_max: 64,
        readahead_kib: 1024,
        write_bytes_max: 1 << 20,
    }
}

/// Runs a story on a thread of its own, as its calls block on the mount.
fn with_mount(story: impl FnOnce(&Path, &Memory) + Send + 'static) {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: a mount needs root and /dev/fuse");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new();
        let mut session = Session::start(dir.path(), &mount_options(), &session_options(), &memory).await.unwrap();
        let at: PathBuf = session.path().into();
        let told = Arc::clone(&memory);
        let story = tokio::task::spawn_blocking(move || story(&at, &told)).await;
        if let Err(failed) = story {
            session.detach().unwrap();
            std::panic::resume_unwind(failed.into_panic());
        }
        // Something that looks at every mount of the machine may be looking at this one.
        if session.unmount().is_err() {
            session.detach().unwrap();
        }
        tokio::time::timeout(Duration::from_secs(10), session.ended()).await.unwrap().unwrap();
    });
}

fn wait_for_end(child: &mut Child) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(10), "the process cannot be killed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_blocked_in_fuse(child: &Child) -> bool {
    fs::read_to_string(format!("/proc/{}/wchan", child.id()))
        .is_ok_and(|at| at.contains("fuse") || at.contains("request_wait"))
}

#[test]
fn what_is_written_is_read_back() {
    with_mount(|at, memory| {
        let (kernel, _) = memory.started.get().unwrap();
        assert_eq!(kernel.write_bytes_max, 1 << 20);
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        fs::create_dir(at.join("d")).unwrap();
        fs::write(at.join("d/f"), &content).unwrap();
        assert_eq!(fs::read(at.join("d/f")).unwrap(), content);
        let mut file = fs::OpenOptions::new().read(true).write(true).open(at.join("d/f")).unwrap();
        file.seek(std::io::SeekFrom::Start(1000)).unwrap();
        file.write_all(b"small").unwrap();
        file.seek(std::io::SeekFrom::Start(1000)).unwrap();
        let mut small = [0; 5];
        file.read_exact(&mut small).unwrap();
        assert_eq!(&small, b"small");
        file.set_len(7).unwrap();
        assert_eq!(fs::metadata(at.join("d/f")).unwrap().len(), 7);
    });
}

/// Far longer than it takes, so that a test without forgetting ends.
const FORGET_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn names_come_and_go() {
    with_mount(|at, memory| {
        for n in 0..500 {
            fs::write(at.join(format!("name-{n:03}")), b"x").unwrap();
        }
        std::os::unix::fs::symlink("name-001", at.join("link")).unwrap();
        assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new("name-001"));
        let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), 501);
        assert_eq!(names[0], "link");
        fs::rename(at.join("name-000"), at.join("other")).unwrap();
        fs::remove_file(at.join("name-001")).unwrap();
        assert!(!at.join("name-000").exists() && !at.join("name-001").exists() && at.join("other").exists());
        drop(fs::remove_file(at.join("other")));
        let statfs = rustix::fs::statfs(at).unwrap();
        assert_eq!((statfs.f_blocks, statfs.f_bfree, statfs.f_namelen), (1000, 400, 255));
        // The kernel tells of these by the way, in a message that another reader may still have in its hands.
        let start = Instant::now();
        while memory.forgotten.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < FORGET_WITHIN, "nothing was forgotten");
            std::thread::yield_now();
        }
    });
}

#[test]
fn xattrs_are_kept() {
    with_mount(|at, _| {
        let file = at.join("f");
        fs::write(&file, b"").unwrap();
        setxattr(&file, "user.a", b"value", XattrFlags::empty()).unwrap();
        setxattr(&file, "user.b", &[9; 4000], XattrFlags::empty()).unwrap();
        let mut value = [0; 8000];
        assert_eq!(getxattr(&file, "user.a", &mut value).unwrap(), 5);
        assert_eq!(getxattr(&file, "user.b", &mut value).unwrap(), 4000);
        let mut list = [0u8; 100];
        let len = listxattr(&file, &mut list).unwrap();
        assert_eq!(&list[..len], b"user.a\0user.b\0");
        rustix::fs::removexattr(&file, "user.a").unwrap();
        assert_eq!(getxattr(&file, "user.a", &mut value), Err(rustix::io::Errno::NODATA));
    });
}

#[test]
fn a_process_that_waits_for_a_lock_gets_it_or_can_be_killed() {
    with_mount(|at, _| {
        let path = at.join("f");
        let file = fs::File::create(&path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let wait = || Command::new("flock").arg(&path).arg("true").spawn().unwrap();
        let (mut killed, mut terminated, mut patient) = (wait(), wait(), wait());
        for child in [&killed, &terminated, &patient] {
            let start = Instant::now();
            while !is_blocked_in_fuse(child) {
                assert!(start.elapsed() < Duration::from_secs(10), "the process does not wait for the lock");
                std::thread::yield_now();
            }
        }
        killed.kill().unwrap();
        wait_for_end(&mut killed);
        rustix::process::kill_process(rustix::process::Pid::from_child(&terminated), rustix::process::Signal::TERM)
            .unwrap();
        wait_for_end(&mut terminated);
        assert!(patient.try_wait().unwrap().is_none());
        flock(&file, FlockOperation::Unlock).unwrap();
        assert!(patient.wait().unwrap().success());
    });
}

#[test]
fn a_process_whose_answer_never_comes_can_be_killed_but_not_disturbed() {
    with_mount(|at, _| {
        let mut child = Command::new("stat").arg(at.join("never")).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while !is_blocked_in_fuse(&child) {
            assert!(start.elapsed() < Duration::from_secs(10), "the process does not wait");
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::WINCH).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none());
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_for_end(&mut child);
    });
}

#[test]
fn a_panic_in_the_handler_is_an_io_error_and_no_end() {
    with_mount(|at, _| {
        let error = fs::metadata(at.join("panics")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::metadata(at.join("absent")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn the_kernel_believes_its_cache_until_it_is_told() {
    with_mount(|at, memory| {
        let (_, notifier) = memory.started.get().unwrap();
        let path = at.join("f");
        fs::write(&path, b"old").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().size(), 3);
        let id = memory.append(b"f", b" and new");
        assert_eq!(fs::metadata(&path).unwrap().size(), 3);
        notifier.inval_inode(id, Stale::Attributes).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().size(), 11);
        assert_eq!(notifier.inval_inode(4711, Stale::Attributes), Err(rustix::io::Errno::NOENT));

        let lookups = || memory.lookups.load(Ordering::Relaxed);
        let before = lookups();
        fs::metadata(&path).unwrap();
        assert_eq!(lookups(), before);
        if notifier.inc_epoch().is_ok() {
            fs::metadata(&path).unwrap();
            assert_eq!(lookups(), before + 1);
        }
        notifier.inval_entry(super::abi::ROOT_ID, b"f").unwrap();
        let before = lookups();
        fs::metadata(&path).unwrap();
        assert_eq!(lookups(), before + 1);
    });
}
