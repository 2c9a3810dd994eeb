//! Mappings: shared, private, executable, of growing and shrinking files, at one mount and at two.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(120);

/// Each case is a function; the first word on the command line says which.
const PROGRAM: &str = r#"
cat > $L/map.py <<'END'
import hashlib, mmap, os, random, signal, sys
M, N = os.environ["M"], os.environ.get("N", os.environ["M"])
PAGE = mmap.PAGESIZE

def make(name, size):
    fd = os.open(M + "/" + name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(fd, size)
    return fd

def shared_and_read():
    fd = make("a", 10 * PAGE); m = mmap.mmap(fd, 10 * PAGE)
    m[5000:5005] = b"hello"
    assert os.pread(fd, 5, 5000) == b"hello", "read() does not see the mapping"
    os.pwrite(fd, b"world", 9000)
    assert m[9000:9005] == b"world", "the mapping does not see write()"
    m.flush(); m.close(); os.close(fd)
    assert open(N + "/a", "rb").read()[5000:5005] == b"hello"

def synced_is_seen_at_another_mount():
    fd = make("b", 4 * PAGE); m = mmap.mmap(fd, 4 * PAGE)
    other = open(N + "/b", "rb")
    for i in range(100):
        text = b"%08d" % i
        m[PAGE + 10:PAGE + 18] = text; m.flush()
        assert os.pread(other.fileno(), 8, PAGE + 10) == text, i

def old_mapping_at_another_mount():
    fd = make("c", PAGE); os.pwrite(fd, b"one", 0); os.fsync(fd)
    other = open(N + "/c", "rb"); m = mmap.mmap(other.fileno(), PAGE, prot=mmap.PROT_READ)
    assert m[:3] == b"one"
    os.pwrite(fd, b"two", 0); os.fsync(fd)
    assert m[:3] == b"two", m[:3]

def private():
    fd = make("d", PAGE); m = mmap.mmap(fd, PAGE, flags=mmap.MAP_PRIVATE)
    m[:3] = b"mine"[:3]
    assert os.pread(fd, 3, 0) == b"\0\0\0"

def beyond_the_end_is_a_bus_error():
    fd = make("e", 2 * PAGE); m = mmap.mmap(fd, 2 * PAGE); m[PAGE] = 1
    os.truncate((sys.argv[2:] or [M])[0] + "/e", 100)
    assert os.fstat(fd).st_size == 100
    child = os.fork()
    if child == 0:
        m[PAGE]; os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGBUS
    assert m[100:PAGE] == bytes(PAGE - 100), "rest of the last page is not zero"

def two_processes():
    fd = make("f", 16 * PAGE); m = mmap.mmap(fd, 16 * PAGE)
    children = []
    for who in range(4):
        child = os.fork()
        if child == 0:
            for i in range(who, 16 * PAGE, 4): m[i] = who + 1
            os._exit(0)
        children.append(child)
    for child in children: assert os.waitpid(child, 0)[1] == 0
    m.flush()
    assert open(N + "/f", "rb").read() == bytes([1, 2, 3, 4]) * (4 * PAGE)

def large_random():
    size = 64 << 20; fd = make("g", size); m = mmap.mmap(fd, size); rng = random.Random(int(sys.argv[2]))
    model = bytearray(size)
    for _ in range(5000):
        at = rng.randrange(size - 300); text = rng.randbytes(rng.randrange(1, 300))
        m[at:at + len(text)] = text; model[at:at + len(text)] = text
    m.close(); os.close(fd)
    assert hashlib.md5(open(N + "/g", "rb").read()).digest() == hashlib.md5(model).digest()
    assert hashlib.md5(open(M + "/g", "rb").read()).digest() == hashlib.md5(model).digest()

def time_moves():
    fd = make("h", PAGE); os.utime(fd, (1, 1)); m = mmap.mmap(fd, PAGE)
    m[0] = 1; m.flush(); m.close(); os.close(fd)
    assert os.stat(N + "/h").st_mtime > 1e9, "mtime did not move"

def unlinked():
    fd = make("i", PAGE); m = mmap.mmap(fd, PAGE); os.unlink(N + "/i"); os.close(fd)
    m[:5] = b"alive"; m.flush(); assert m[:5] == b"alive"

globals()[sys.argv[1]]()
END
"#;

pub(super) const MMAP: Judge = Judge {
    name: "mmap",
    about: "mapped writers and readers, programs that run from the mount",
    packages: &[Package { name: "python3", file: "/usr/bin/python3" }],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(600),
    run: |place: &Place| {
        let mut report = place.steps(LIMIT, &[("the program", PROGRAM)])?;
        let large = format!("python3 $L/map.py large_random {}", place.seed);
        let cases = [
            ("read() and write() agree with a mapping", "python3 $L/map.py shared_and_read"),
            ("msync is seen at another mount", "python3 $L/map.py synced_is_seen_at_another_mount"),
            ("an old mapping sees another mount's write", "python3 $L/map.py old_mapping_at_another_mount"),
            ("private", "python3 $L/map.py private"),
            ("SIGBUS beyond the end", "python3 $L/map.py beyond_the_end_is_a_bus_error"),
            ("SIGBUS beyond another mount's end", "python3 $L/map.py beyond_the_end_is_a_bus_error $N"),
            ("four processes", "python3 $L/map.py two_processes"),
            ("64 MiB at random", large.as_str()),
            ("mtime moves", "python3 $L/map.py time_moves"),
            ("an unlinked file", "python3 $L/map.py unlinked"),
            (
                "a program runs",
                "cp /bin/cat prog; ./prog /etc/passwd | cmp - /etc/passwd; $N/prog /etc/passwd | cmp - /etc/passwd",
            ),
            (
                "a running program is busy",
                "cp /bin/sleep busy; ./busy 5 & pid=$!; sleep 0.2; if (echo > busy) 2>/dev/null; then kill $pid; false; fi; kill $pid",
            ),
        ];
        for (name, script) in cases {
            report.case(name, place.shell(script, LIMIT));
        }
        Ok(report)
    },
};
