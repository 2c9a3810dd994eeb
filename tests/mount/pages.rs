//! What the kernel keeps of a file in memory: mappings, and programs that run from the mount.

use super::cases::play;
use super::everywhere;

#[test]
fn an_old_mapping_shows_what_another_mount_wrote() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            cat > $M/../pages-$$.py <<'END'
import mmap, os
M, N = os.environ["M"], os.environ["N"]
fd = os.open(M + "/f", os.O_RDWR | os.O_CREAT); os.pwrite(fd, b"0" * 3 * mmap.PAGESIZE, 0)
other = os.open(N + "/f", os.O_RDONLY)
m = mmap.mmap(other, 3 * mmap.PAGESIZE, prot=mmap.PROT_READ)
for at in (0, mmap.PAGESIZE, 2 * mmap.PAGESIZE + 5):
    os.stat(N + "/f")
    assert m[at] == ord("0"), at
    os.pwrite(fd, b"1", at)
    assert m[at] == ord("1"), at
END
            trap "rm -f $M/../pages-$$.py" EXIT
            python3 $M/../pages-$$.py
            "#,
        );
    });
}

#[test]
fn what_was_synced_from_a_mapping_is_there_for_who_writes_after_it() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            cat > $M/../pages-$$.py <<'END'
import mmap, os
M, N = os.environ["M"], os.environ["N"]
fd = os.open(M + "/f", os.O_RDWR | os.O_CREAT); os.pwrite(fd, b"0" * mmap.PAGESIZE, 0)
m = mmap.mmap(fd, mmap.PAGESIZE)
m[10:14] = b"mine"; m.flush()
other = os.open(N + "/f", os.O_RDWR); os.fstat(fd)
os.pwrite(other, b"theirs", 20)
assert os.pread(other, 16, 10) == b"mine000000theirs", os.pread(other, 16, 10)
assert m[10:26] == b"mine000000theirs", m[10:26]
END
            trap "rm -f $M/../pages-$$.py" EXIT
            python3 $M/../pages-$$.py
            "#,
        );
    });
}

#[test]
fn a_program_that_runs_is_not_cut() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            cp /bin/sleep run; chmod 755 run; ./run 100 & pid=$!
            trap "kill $pid" EXIT
            until test "$(readlink /proc/$pid/exe)" -ef run; do :; done
            python3 - <<'END'
import errno, os
for how in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC | os.O_CREAT):
    try: os.open("run", how)
    except OSError as e: assert e.errno == errno.ETXTBSY, (how, e)
    else: raise SystemExit("opened with %o" % how)
END
            cmp run /bin/sleep; cmp $N/run /bin/sleep
            "#,
        );
    });
}
