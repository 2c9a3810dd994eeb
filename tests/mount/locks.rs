//! Locks of programs: fcntl(2), flock(2) and the locks of open files, seen from every mount, and gone with who held them.
//!
//! A program is a process of its own (`lock.py`), since fcntl locks belong to processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mortar_tests::cluster::Cluster;
use rustix::process::{Pid, Signal, kill_process};

use super::{Mounts, everywhere, shell, within};

/// A program that locks as it is told.
struct Program {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn new() -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("lock.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, orders, answers }
    }

    /// A program with a file open for reading and writing, which it calls `f`.
    fn with(path: &Path) -> Self {
        let mut program = Self::new();
        program.open("f", path, "rw");
        program
    }

    fn open(&mut self, name: &str, path: &Path, mode: &str) {
        assert_eq!(self.ask(&format!("open {name} {} {mode}", path.display())), "ok");
    }

    fn begin(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.begin(order);
        self.answer()
    }

    /// What it answers to each order.
    #[track_caller]
    fn says(&mut self, order: &str, answer: &str) {
        assert_eq!(self.ask(order), answer, "{order}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The program sleeps in the kernel: its wait has begun.
    fn wait_until_it_waits(&self) {
        let stack = format!("/proc/{}/syscall", self.pid().as_raw_nonzero());
        // fcntl(2) and flock(2); while it runs, there is no number.
        until("a program waits for a lock", || {
            fs::read_to_string(&stack).is_ok_and(|line| line.starts_with("72 ") || line.starts_with("73 "))
        });
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Look until it is so; what a minute does not bring never comes.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// C115: the first lock in the way is shown across mounts; locks split, merge and change their mode; closing any
/// descriptor of a file drops what the process has locked of it.
#[test]
fn ranges_exclude_each_other_across_mounts() {
    everywhere(|mounts| {
        let file = mounts.here("f");
        let mut one = Program::with(&file);
        let mut two = Program::with(&mounts.there("f"));
        let mut three = Program::with(&mounts.0[2].join("f"));
        one.says("set f read 10 11", "ok");
        two.says("set f write 30 11", "ok");
        three.says("set f read 15 11", "ok");
        two.says("get f write 0 101", "read 10 11");
        three.says("get f read 0 101", "write 30 11");
        one.says("get f write 10 5", "free");
        one.says("set f write 10 11", "EAGAIN");
        one.says("set f write 10 5", "ok");
        two.says("get f read 0 101", "write 10 5");
        one.says("set f none 12 1", "ok");
        two.says("get f read 12 1", "free");
        two.says("get f read 13 1", "write 13 2");
        one.says("set f write 12 1", "ok");
        two.says("get f read 14 10", "write 10 5");
        two.says("set f read 35 1", "ok");
        one.says("get f read 30 100", "write 30 5");
        one.says("get f read 35 1", "free");
        one.says("get f read 36 100", "write 36 5");
        one.says("set f write 100 0", "ok");
        two.says("get f read 5000 1", "write 100 0");
        one.open("g", &file, "r");
        one.says("close g", "ok");
        two.says("get f read 0 25", "free");
        two.says("get f read 5000 1", "free");
        three.says("set f write 100 0", "ok");
    });
}

/// The close rule also holds for files of which the kernel is asked to tell less, and where a child still has them open.
#[test]
fn a_process_loses_its_locks_when_it_closes_any_descriptor() {
    everywhere(|mounts| {
        let mut other = Program::with(&mounts.there("f"));
        for (mode, kind) in [("r", "read"), ("w", "write"), ("rw", "write")] {
            let mut program = Program::new();
            for name in ["first", "second"] {
                program.open(name, &mounts.here("f"), mode);
            }
            for closed in ["second", "first"] {
                assert_eq!(program.ask(&format!("set first {kind} 0 10")), "ok", "{mode}");
                other.says("set f write 5 1", "EAGAIN");
                assert_eq!(program.ask(&format!("close {closed}")), "ok");
                // The end of an open file reaches a mount a moment after close(2).
                until("the lock is gone", || other.ask("set f write 5 1") == "ok");
                other.says("set f none 5 1", "ok");
            }
        }
        let mut parent = Program::with(&mounts.here("f"));
        parent.says("set f write 0 10", "ok");
        let child: i32 = parent.ask("fork").parse().unwrap();
        other.says("set f write 5 1", "EAGAIN");
        parent.says("close f", "ok");
        other.says("set f write 5 1", "ok");
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    });
}

#[test]
fn locks_of_open_files_and_flock_exclude_each_other_across_mounts() {
    everywhere(|mounts| {
        let mut one = Program::with(&mounts.here("f"));
        let mut two = Program::with(&mounts.there("f"));
        two.open("g", &mounts.there("f"), "rw");
        one.says("open-file-set f write 0 10", "ok");
        two.says("open-file-set f write 9 1", "EAGAIN");
        two.says("set f read 9 1", "EAGAIN");
        two.says("open-file-set f write 10 5", "ok");
        two.says("open-file-set g write 12 1", "EAGAIN");
        two.says("close f", "ok");
        until("the lock of a closed file is gone", || two.ask("open-file-set g write 12 1") == "ok");
        one.says("close f", "ok");
        until("the lock of a closed file is gone", || two.ask("open-file-set g write 0 10") == "ok");
        // The two families do not see each other.
        one.open("f", &mounts.here("f"), "r");
        one.says("flock f exclusive", "ok");
        two.says("flock g shared", "EAGAIN");
        one.says("flock f shared", "ok");
        two.says("flock g shared", "ok");
        two.says("flock g exclusive", "EAGAIN");
        // An upgrade that fails costs the lock.
        one.says("flock f exclusive", "ok");
        one.says("flock f none", "ok");
        two.says("flock g exclusive", "ok");
        two.says("close g", "ok");
        until("the lock of a closed file is gone", || one.ask("flock f exclusive") == "ok");
    });
}

#[test]
fn who_waits_gets_the_lock_when_it_is_free() {
    everywhere(|mounts| {
        let mut holder = Program::with(&mounts.here("f"));
        for (lock, wait, unlock) in [
            ("set f write 0 10", "wait f write 5 10", "set f none 0 10"),
            ("open-file-set f write 0 10", "open-file-wait f write 5 10", "open-file-set f none 0 10"),
            ("flock f exclusive", "flock-wait f exclusive", "flock f none"),
            ("flock f exclusive", "flock-wait f shared", "flock f shared"),
        ] {
            holder.says(lock, "ok");
            let mut waiter = Program::with(&mounts.there("f"));
            waiter.begin(wait);
            waiter.wait_until_it_waits();
            holder.says(unlock, "ok");
            assert_eq!(waiter.answer(), "ok", "{wait}");
            assert_eq!(holder.ask(lock), "EAGAIN", "{wait}");
            drop(waiter);
            until("a killed process has no lock", || holder.ask(lock) == "ok");
            holder.says(unlock, "ok");
            holder.ask("flock f none");
        }
    });
}

/// C111, C114: a wait ends with a signal, and nothing is left of it; a killed process holds nothing.
#[test]
fn a_wait_can_be_interrupted_and_killed() {
    everywhere(|mounts| {
        let mut holder = Program::with(&mounts.here("f"));
        for (lock, wait, unlock) in [
            ("set f write 0 10", "wait f write 5 10", "set f none 0 0"),
            ("flock f exclusive", "flock-wait f exclusive", "flock f none"),
        ] {
            holder.says(lock, "ok");
            let mut waiter = Program::with(&mounts.there("f"));
            waiter.begin(wait);
            waiter.wait_until_it_waits();
            waiter.signal(Signal::USR1);
            assert_eq!(waiter.answer(), "EINTR", "{wait}");
            waiter.begin(wait);
            waiter.wait_until_it_waits();
            waiter.signal(Signal::KILL);
            waiter.child.wait().unwrap();
            holder.says(unlock, "ok");
            let mut third = Program::with(&mounts.0[2].join("f"));
            third.says(lock, "ok");
            drop(third);
            until("a killed process has no lock", || holder.ask(lock) == "ok");
            holder.says(unlock, "ok");
        }
    });
}

#[test]
fn of_two_that_would_wait_for_each_other_one_is_told() {
    everywhere(|mounts| {
        let (heard, answers) = mpsc::channel();
        let programs: Vec<_> = (0..2)
            .map(|number: usize| {
                let mut program = Program::with(&mounts.0[number].join("f"));
                program.says(&format!("set f write {number} 1"), "ok");
                (number, program)
            })
            .collect();
        for (number, mut program) in programs {
            let heard = heard.clone();
            std::thread::spawn(move || {
                let answer = program.ask(&format!("wait f write {} 1", 1 - number));
                // Told before the lock is given up, since the other gets its answer then.
                heard.send(answer).unwrap();
                program.says("set f none 0 0", "ok");
            });
        }
        let answers = [answers.recv().unwrap(), answers.recv().unwrap()];
        assert_eq!(answers, ["EDEADLK", "ok"]);
    });
}

/// C111: lock a file that others lock, check that it still has its name, remove it, unlock. Never two at once.
#[test]
fn a_lock_file_that_is_removed_never_has_two_holders() {
    const WORKER: &str = r#"
import fcntl, os, random, signal, sys
path, mark, rounds, rng = sys.argv[1], sys.argv[2], int(sys.argv[3]), random.Random(int(sys.argv[4]))
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
for number in range(rounds):
    while True:
        f = os.open(path, os.O_CREAT | os.O_RDWR)
        if number % 10 == 5: signal.setitimer(signal.ITIMER_REAL, 0.001 + rng.random() / 50)
        try:
            fcntl.flock(f, fcntl.LOCK_EX)
            signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                if os.stat(path).st_ino == os.fstat(f).st_ino: break
            except FileNotFoundError: pass
        except Alarm: pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.close(f)
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(mark)
    os.unlink(path)
    os.close(f)
"#;
    everywhere(|mounts| {
        let workers: Vec<Child> = (0..2)
            .map(|number: usize| {
                let (path, mark) = (mounts.0[number].join("lock"), mounts.0[number].join("inside"));
                let mut command = Command::new("python3");
                command.args(["-c", WORKER]).arg(path).arg(mark).args(["40", &number.to_string()]);
                command.spawn().unwrap()
            })
            .collect();
        for mut worker in workers {
            assert!(worker.wait().unwrap().success());
        }
        assert_eq!(fs::read_dir(mounts.here("")).unwrap().count(), 0);
    });
}

#[test]
fn sqlite_of_two_mounts_keeps_its_books() {
    const WORKER: &str = r#"
import sqlite3, sys
path, who, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect(path, timeout=120, isolation_level=None)
for i in range(rows):
    db.execute("begin immediate")
    db.execute("update account set money = money - 7 where id = ?", (i % 10,))
    db.execute("update account set money = money + 7 where id = ?", ((i + who) % 10,))
    db.execute("insert into log values (?, ?, ?)", (who, i, "x" * (i * 37 % 3000)))
    db.execute("commit")
    assert db.execute("select sum(money) from account").fetchone()[0] == 10000
"#;
    everywhere(|mounts| {
        let database = mounts.here("db");
        let sql = |text: &str| shell(mounts.here("").as_path(), &format!("sqlite3 {} '{text}'", database.display()));
        sql("pragma journal_mode = delete; create table account (id integer primary key, money integer);
             create table log (who, i, text); create index log_i on log (i, who);");
        for id in 0..10 {
            sql(&format!("insert into account values ({id}, 1000)"));
        }
        let workers: Vec<Child> = (0..2)
            .map(|who: usize| {
                let mut command = Command::new("python3");
                command.args(["-c", WORKER]).arg(mounts.0[who].join("db")).args([&(who + 1).to_string(), "25"]);
                command.spawn().unwrap()
            })
            .collect();
        for mut worker in workers {
            assert!(worker.wait().unwrap().success());
        }
        for mount in mounts.everywhere("db") {
            let ask = |text: &str| {
                shell(Path::new("/"), &format!("sqlite3 {} '{text}'", mount.display())).trim_end().to_owned()
            };
            assert_eq!(ask("pragma integrity_check"), "ok");
            assert_eq!(ask("select count(*), count(distinct who) from log"), "50|2");
        }
    });
}

/// A volume of its own, for stories that break it.
fn alone(bricks: usize, story: fn(&mut Cluster, &Mounts)) {
    let mut cluster = Cluster::up(bricks, 3, 2).unwrap();
    let mounts = Mounts(cluster.mounts().to_vec());
    within(super::LIMIT, "on a volume of its own", move || {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(&mut cluster, &mounts)));
        if let Err(panic) = told {
            eprintln!("its logs end with\n{}", cluster.log_tails());
            std::panic::resume_unwind(panic);
        }
    });
}

/// C114: a lock that was taken while a brick was down is not left behind on that brick.
#[test]
fn a_brick_that_was_down_keeps_no_lock() {
    alone(3, |cluster, mounts| {
        let mut other = Program::with(&mounts.there("f"));
        for _ in 0..4 {
            let dead = cluster.kill_brick(1).unwrap();
            let mut holder = Program::with(&mounts.here("f"));
            holder.says("flock f exclusive", "ok");
            holder.says("set f write 0 10", "ok");
            cluster.start_brick(&dead).unwrap();
            other.says("flock f exclusive", "EAGAIN");
            holder.says("flock f none", "ok");
            holder.says("set f none 0 10", "ok");
            holder.says("close f", "ok");
            other.says("flock f exclusive", "ok");
            other.says("set f write 0 0", "ok");
            other.says("flock f none", "ok");
            other.says("set f none 0 0", "ok");
        }
    });
}

/// C114, C129: the locks of a mount that dies are free after a lease term, and those of one that ends at once.
#[test]
fn a_mount_that_dies_holds_no_lock() {
    alone(3, |cluster, mounts| {
        let mut other = Program::with(&mounts.there("f"));
        let mut holder = Program::with(&mounts.here("f"));
        holder.says("flock f exclusive", "ok");
        holder.says("set f write 0 0", "ok");
        other.says("flock f shared", "EAGAIN");
        cluster.kill_mount(0).unwrap();
        other.says("flock-wait f exclusive", "ok");
        other.says("wait f write 0 0", "ok");
    });
}

/// A mount that was cut off, or slept, for longer than a lease term: another may have had its locks, so what locked through it
/// fails, and what did not goes on.
#[test]
fn a_mount_that_slept_has_lost_its_locks_and_says_so() {
    alone(3, |cluster, mounts| {
        let mut other = Program::with(&mounts.there("f"));
        let mut holder = Program::with(&mounts.here("f"));
        holder.open("other", &mounts.here("f"), "rw");
        holder.open("free", &mounts.here("free"), "rw");
        for order in ["flock f exclusive", "set f write 0 0", "write f first"] {
            holder.says(order, "ok");
        }
        cluster.signal_mount(0, Signal::STOP).unwrap();
        for order in ["flock-wait f exclusive", "wait f write 0 0", "write f second", "flock f none", "set f none 0 0"]
        {
            other.says(order, "ok");
        }
        cluster.signal_mount(0, Signal::CONT).unwrap();
        until("it notices", || holder.ask("write free text") == "ok");
        // As long as it is not connected to all bricks again, it may not know yet what it has lost.
        let mut answer = String::new();
        until("it knows", || {
            answer = holder.ask("write f third");
            answer != "ENOTCONN"
        });
        assert_eq!(answer, "EIO");
        holder.says("read f", "EIO");
        holder.says("read other", "ok");
        assert_eq!(fs::read_to_string(mounts.there("f")).unwrap(), "second");
        holder.says("close f", "ok");
        holder.open("f", &mounts.here("f"), "rw");
        holder.says("flock f exclusive", "ok");
        holder.says("set f write 0 0", "ok");
        other.says("flock f shared", "EAGAIN");
    });
}

/// C113: bricks that are restarted one after the other, and all at once, never give a lock to two.
#[test]
fn bricks_that_restart_give_no_lock_to_two() {
    alone(3, |cluster, mounts| {
        let mut holder = Program::with(&mounts.here("f"));
        let mut other = Program::with(&mounts.there("f"));
        holder.says("flock f exclusive", "ok");
        holder.says("set f write 3 4", "ok");
        let mut try_for = |time: Duration| {
            let start = Instant::now();
            while start.elapsed() < time {
                for order in ["flock f exclusive", "set f write 0 0"] {
                    let answer = other.ask(order);
                    // Without a quorum nobody hears yes or no.
                    assert!(["EAGAIN", "ENOTCONN"].contains(&answer.as_str()), "{order}: {answer}");
                }
            }
        };
        for brick in 0..3 {
            let dead = cluster.kill_brick(brick).unwrap();
            try_for(Duration::from_millis(500));
            cluster.start_brick(&dead).unwrap();
            try_for(Duration::from_millis(2500));
        }
        let dead: Vec<_> = (0..3).map(|brick| cluster.kill_brick(brick).unwrap()).collect();
        try_for(Duration::from_millis(300));
        dead.iter().for_each(|dead| cluster.start_brick(dead).unwrap());
        until("the volume is back", || holder.ask("write f text") == "ok");
        try_for(Duration::from_secs(12));
        holder.says("write f again", "ok");
        holder.says("flock f none", "ok");
        holder.says("set f none 0 0", "ok");
        other.says("flock f exclusive", "ok");
        other.says("set f write 0 0", "ok");
    });
}
