//! The system calls that a brick makes for each fop, counted by `strace` and held to a budget.
//!
//! The test runs itself again under `strace`, as a script of fops on a brick in a temporary directory. Between them the
//! script looks for files that cannot exist, whose names tell in the trace where a fop begins and ends.
//!
//! A budget that is not met is a change for the worse of every fop of that kind: make it cheaper, or say in the commit
//! why it must cost more. GlusterFS 10 needs 22 to 24 calls for a create, 13 for a cold and 5 for a warm lookup, 6 for
//! a write, 7 for an unlink and 22 for a mkdir.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::fop::{
    Birth, Create, Getattr, Link, Lookup, Mkdir, Mknod, Only, Open, Operation, Place, Read, Readdir, Readlink, Release,
    Rename, Replace, Rmdir, Setattr, Symlink, Unlink, Write,
};
use mortar_xlators::index::Index;
use mortar_xlators::leases::DirtyJournal;
use mortar_xlators::posix::{Posix, PosixOptions, create_brick, prepare_process};
use mortar_xlators::types::{AttrMask, ClientId, Fd, Gfid, Kind, Name, OpenFlags, Time, Xattr, XattrName};
use mortar_xlators::xlator::Xlator;
use uuid::Uuid;

/// The script runs only where this names a directory for its brick.
const SCRIPT_VARIABLE: &str = "MORTAR_STRACE_SCRIPT";

/// How the names of the files begin that cannot exist.
const MARKER: &str = "/@mortar/";

const VOLUME: Uuid = Uuid::from_u128(42);

/// Calls that manage the memory and threads of the process, whatever it does; and `fcntl`, by which a debug build of the
/// standard library makes sure that what it closes is open.
const NOT_COUNTED: [&str; 9] =
    ["brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex", "sched_yield", "fcntl"];

/// The most system calls that each step of the script may make.
const BUDGET: [(&str, usize); 37] = [
    ("append", 3),
    ("append without open", 4),
    ("clear dirty", 1),
    ("create", 14),
    ("create owned", 12),
    ("create plain", 11),
    ("getattr", 2),
    ("getattr directory", 3),
    ("link", 6),
    ("lookup absent", 1),
    ("lookup cold", 4),
    ("lookup cold, directory", 5),
    ("lookup cold, in a cold directory", 7),
    ("lookup warm", 2),
    ("lookup warm, directory", 3),
    ("mark dirty", 1),
    ("mkdir", 11),
    ("mknod", 9),
    ("open", 1),
    ("read part", 1),
    ("read part without open", 3),
    ("read whole", 2),
    ("read whole without open", 4),
    ("readdir 8 entries", 22),
    ("readlink", 1),
    ("release", 1),
    ("rename", 9),
    ("rename of a directory", 9),
    ("rename over a file", 11),
    ("rmdir", 7),
    ("setattr mode", 3),
    ("setattr times", 3),
    ("symlink", 9),
    ("unlink", 6),
    ("unlink of two", 7),
    ("write", 3),
    ("write without open", 4),
];

#[test]
fn every_fop_keeps_its_budget() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let trace = folder.path().join("trace");
    let name = format!("{}::the_script", module_path!().split_once("::").map_or("", |(_, rest)| rest));
    let status = Command::new("strace")
        .args(["-f", "-qq", "-s", "256", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().expect("the path of this test"))
        .args(["--exact", name.trim_start_matches(':'), "--nocapture", "--test-threads=1"])
        .env(SCRIPT_VARIABLE, folder.path().join("brick"))
        .args(["--include-ignored"])
        .status()
        .expect("strace is installed");
    assert!(status.success());
    let trace = std::fs::read_to_string(trace).expect("strace wrote a trace");
    let steps = steps(&trace);
    for (step, calls) in &steps {
        println!("{step}: {} {calls:?}", calls.len());
    }
    let counts: BTreeMap<&str, usize> = steps.iter().map(|(step, calls)| (step.as_str(), calls.len())).collect();
    for (step, most) in BUDGET {
        assert!(counts[step] <= most, "{step}: {} instead of at most {most}", counts[step]);
    }
}

/// The names of the calls between the beginning and the end of each step.
fn steps(trace: &str) -> BTreeMap<String, Vec<String>> {
    let mut steps = BTreeMap::new();
    let mut open: Option<(String, Vec<String>)> = None;
    // A call that another thread's came between has a second line.
    for line in trace.lines().filter(|line| !line.contains(" resumed>")) {
        let call = line.split('(').next().unwrap_or(line).rsplit(' ').next().unwrap_or(line);
        if let Some((_, rest)) = line.split_once(MARKER) {
            let step = rest.split('"').next().unwrap_or(rest);
            match open.take() {
                Some((name, calls)) if step == "end" => drop(steps.insert(name, calls)),
                _ => open = Some((step.to_owned(), Vec::new())),
            }
        } else if let Some((_, calls)) = &mut open
            && !NOT_COUNTED.contains(&call)
        {
            calls.push(call.to_owned());
        }
    }
    steps
}

/// Not a test of its own: what is traced.
#[test]
#[ignore = "run by the test above, under strace"]
fn the_script() {
    if let Ok(folder) = std::env::var(SCRIPT_VARIABLE) {
        let mut script = Script::new(folder.into());
        script.births();
        script.lookups();
        script.content();
        script.attributes();
        script.ends();
    }
}

struct Script {
    folder: PathBuf,
    /// Served by nobody for a moment when it restarts.
    index: Option<std::sync::Arc<Index>>,
    runtime: tokio::runtime::Runtime,
    ctx: Ctx,
    gfids: u64,
    /// A directory with files, and below it another.
    dir: Gfid,
}

impl Script {
    fn new(folder: PathBuf) -> Self {
        prepare_process();
        create_brick(&folder, VOLUME).expect("a new brick");
        let index = serve(&folder);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ctx = Ctx::new(1, ClientId(1), Caller::root(), deadline);
        let mut script = Self { folder, index: Some(index), runtime, ctx, gfids: 0, dir: Gfid::ROOT };
        script.dir = script.mkdir("", Gfid::ROOT, "dir");
        // What is made once in the life of a brick, or of a process, shall not be counted.
        script.create("", "first", |birth| birth);
        let gfid = script.birth().gfid;
        script.index().mark_dirty(gfid).expect("the journal takes it");
        script.index().clear(&[gfid]).expect("the journal loses it");
        script
    }

    fn restart(&mut self) {
        self.index = None;
        self.index = Some(serve(&self.folder));
    }

    fn index(&self) -> &Index {
        self.index.as_ref().expect("the brick is served")
    }

    /// Run one fop, as a step of this name unless it has none.
    fn step<O: Operation>(&self, step: &str, operation: O) -> O::Reply {
        let subvol: &dyn Xlator = self.index();
        let sent = subvol.send(&self.ctx, operation);
        if step.is_empty() {
            return self.runtime.block_on(sent).expect("the fop succeeds");
        }
        // Without a runtime, whose own calls would be counted: none of these fops may wait.
        let answer = self.marked(step, || sent.now_or_never()).expect("the fop does not wait");
        answer.expect("the fop succeeds")
    }

    fn marked<T>(&self, step: &str, work: impl FnOnce() -> T) -> T {
        let mark = |text: &str| assert!(std::fs::symlink_metadata(format!("{MARKER}{text}")).is_err());
        mark(step);
        let done = work();
        mark("end");
        done
    }

    /// A gfid whose second-level directory exists already, as it does on a brick of some age.
    fn birth(&mut self) -> Birth {
        self.gfids += 1;
        let gfid = Gfid::from_bytes((0x4242_4242 << 96 | u128::from(self.gfids)).to_be_bytes());
        let when = time(100 + i64::try_from(self.gfids).expect("a small number"));
        Birth { gfid, mode: 0o644, umask: 0, uid: 0, gid: 0, when, times: None, xattrs: vec![], pending: vec![] }
    }

    fn create(&mut self, step: &str, file: &str, change: impl FnOnce(Birth) -> Birth) -> Gfid {
        let birth = Box::new(change(self.birth()));
        let content = Bytes::from_static(&[7; 4096]);
        let create = Create { parent: self.dir, name: name(file), birth, content, open: None, lease: false };
        self.step(step, create).iatt.gfid
    }

    fn mkdir(&mut self, step: &str, parent: Gfid, dir: &str) -> Gfid {
        let birth = Box::new(Birth { mode: 0o755, uid: 1000, gid: 1000, ..self.birth() });
        let layout = Some(mortar_xlators::types::RawLayout([1; 16]));
        self.step(step, Mkdir { parent, name: name(dir), birth, layout, mds: false, lease: false }).iatt.gfid
    }

    fn lookup(&self, step: &str, parent: Gfid, file: &str) {
        self.step(step, Lookup { parent, name: name(file) });
    }

    fn births(&mut self) {
        let parent = self.dir;
        self.create("create", "full", |birth| {
            let xattrs = vec![Xattr { name: XattrName::new("user.a").expect("a name"), value: Bytes::from("1") }];
            Birth { mode: 0o640, uid: 1000, gid: 1000, times: Some((time(1), time(2))), xattrs, ..birth }
        });
        self.create("create plain", "plain", |birth| birth);
        self.create("create owned", "owned", |birth| Birth { uid: 1000, gid: 1000, ..birth });
        self.mkdir("mkdir", parent, "sub");
        let (birth, target) = (Box::new(self.birth()), Bytes::from("target"));
        self.step("symlink", Symlink { parent, name: name("link"), birth, target });
        let birth = Box::new(self.birth());
        self.step("mknod", Mknod { parent, name: name("fifo"), birth, kind: Kind::Fifo, rdev: 0, linkto: None });
        let birth = self.birth();
        self.marked("mark dirty", || self.index().mark_dirty(birth.gfid)).expect("the journal takes it");
        self.marked("clear dirty", || self.index().clear(&[birth.gfid])).expect("the journal loses it");
    }

    fn lookups(&mut self) {
        self.restart();
        self.lookup("lookup cold, in a cold directory", self.dir, "plain");
        self.lookup("lookup cold", self.dir, "owned");
        self.lookup("lookup warm", self.dir, "plain");
        self.lookup("lookup cold, directory", self.dir, "sub");
        self.lookup("lookup warm, directory", self.dir, "sub");
        self.lookup("lookup absent", self.dir, "absent");
    }

    fn content(&mut self) {
        let gfid = self.create("", "file", |birth| birth);
        let fd = Fd { id: 1, gfid };
        self.step("open", Open { fd, flags: OpenFlags::READ | OpenFlags::WRITE, when: time(1) });
        for (step, fd) in [("", Some(fd)), (" without open", None)] {
            let data = Bytes::from_static(&[8; 4096]);
            let place = Place::At(0);
            let write = Write { gfid, fd, place, data, sync: false, kill_priv: true, when: time(9_101), then: None };
            self.step(&format!("write{step}"), Write { when: time(9_102), ..write.clone() });
            self.step(&format!("append{step}"), Write { place: Place::End, when: time(9_103), ..write });
            self.step(&format!("read whole{step}"), Read { gfid, fd, offset: 0, size: 1 << 17 });
            self.step(&format!("read part{step}"), Read { gfid, fd, offset: 0, size: 4096 });
        }
        self.step("release", Release { fd });
        let page = Readdir { gfid: self.dir, fd: None, after: 0, bytes_max: 4096, attrs: true };
        let entries = self.step("", page.clone()).entries.len();
        self.step(&format!("readdir {entries} entries"), page);
    }

    fn attributes(&mut self) {
        let gfid = self.create("", "attributes", |birth| birth);
        let blank = Setattr {
            gfid,
            fd: None,
            mode: None,
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_priv: false,
            when: time(1000),
        };
        self.step("getattr", Getattr { gfid, fd: None, exact: AttrMask::all() });
        self.step("getattr directory", Getattr { gfid: self.dir, fd: None, exact: AttrMask::all() });
        self.step("setattr mode", Setattr { mode: Some(0o600), ..blank.clone() });
        self.step("setattr times", Setattr { mtime: Some(time(5)), ..blank });
    }

    fn ends(&mut self) {
        let (parent, when) = (self.dir, time(10_300));
        let gfid = self.create("", "linked", |birth| birth);
        self.step("link", Link { gfid, parent, name: name("other"), when });
        let only = Only::Any;
        self.step("unlink of two", Unlink { parent, name: name("linked"), only, when: time(10_301) });
        let rename = |from, to, when| Rename {
            from_parent: parent,
            from_name: name(from),
            to_parent: parent,
            to_name: name(to),
            replace: Replace::Yes,
            when,
        };
        self.step("rename", rename("other", "moved", time(10_302)));
        self.step("rename over a file", rename("moved", "owned", time(10_303)));
        self.step("rename of a directory", rename("sub", "sub2", time(10_304)));
        self.step("unlink", Unlink { parent, name: name("plain"), only, when: time(10_305) });
        self.step("rmdir", Rmdir { parent, name: name("sub2"), when: time(10_306) });
        let birth = Box::new(self.birth());
        let link = self.step("", Symlink { parent, name: name("soft"), birth, target: Bytes::from("t") }).iatt.gfid;
        self.step("readlink", Readlink { gfid: link });
    }
}

fn serve(folder: &Path) -> std::sync::Arc<Index> {
    let posix = Posix::open(folder, VOLUME, PosixOptions::default()).expect("the brick is served");
    Index::open(posix).expect("the indices are read")
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

fn time(sec: i64) -> Time {
    Time { sec, nsec: 0 }
}
