//! What users of such systems have reported, as scripts: `$M`, `$N` and `$O` show the same directory (see `tests/README.md`).
//!
//! A script says what is right; on the local directory, which comes first, it says what a file system of this kernel does.

use std::process::Command;

use mortar_tests::cluster::Cluster;

use super::{Mounts, everywhere};

/// How users that own nothing do things, and what must fail.
const HELPERS: &str = r#"
    as() { setpriv --reuid "$1" --regid "$1" --clear-groups -- "${@:2}"; }
    no() { if "$@" 2> /dev/null; then echo "this worked: $*" >&2; return 1; fi; }
    is() { test "$1" = "$2" || { echo "is '$1', not '$2'" >&2; return 1; }; }
    all() { for at in $M $N $O; do ( cd $at; "$@" ); done; }
    chmod 755 $M; cd $M
"#;

pub(super) fn play(mounts: &Mounts, script: &str) {
    let mut command = Command::new("timeout");
    command.args(["120", "bash", "-euo", "pipefail", "-c", &format!("{HELPERS}{script}")]);
    command.current_dir(&mounts.0[0]).env("LC_ALL", "C");
    for (name, mount) in ["M", "N", "O"].into_iter().zip(&mounts.0) {
        command.env(name, mount);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}\n{}", output.status, String::from_utf8_lossy(&output.stdout));
}

/// C031
#[test]
fn a_listing_tells_the_kind_of_everything() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir dir; : > file; ln -s file link; mkfifo fifo; mknod char c 1 3; mknod block b 7 200
            python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
            mv file renamed; mv renamed file
            cat > $M/../kinds-$$.py <<'END'
import os, sys
# What readdir says by itself; 0 is "look yourself".
want = {"dir": "d", "file": "-", "link": "l", "fifo": "p", "char": "c", "block": "b", "sock": "s"}
seen = {}
with os.scandir(".") as entries:
    for e in entries:
        seen[e.name] = "d" if e.is_dir(follow_symlinks=False) else "-" if e.is_file(follow_symlinks=False) else "l" if e.is_symlink() else "?"
assert set(seen) == set(want), seen
for name, kind in seen.items():
    assert kind == want[name] or (kind == "?" and want[name] not in "d-l"), (name, kind)
END
            trap "rm -f $M/../kinds-$$.py" EXIT
            all python3 $M/../kinds-$$.py
            for at in $M $N $O; do
                is "$(find $at -mindepth 1 -printf '%f%y ' | tr ' ' '\n' | sort | tr -d '\n')" blockbcharcdirdfifopfileflinklsocks
            done
            "#,
        );
    });
}

/// C032
#[test]
fn a_listing_that_goes_on_never_brings_an_old_size_back() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir d; for i in $(seq 300); do : > d/$i; done
            python3 - <<'END'
import os
M, N = os.environ["M"] + "/d/", os.environ["N"] + "/d/"
for round in range(20):
    for turn, writer in enumerate([M, N]):
        listing = os.scandir(M)
        next(listing)
        with open(writer + "7", "ab") as f: f.write(b"twelve bytes")
        for _ in listing: pass
        want = 12 * (2 * round + turn + 1)
        assert os.stat(M + "7").st_size == want, (round, os.stat(M + "7").st_size, want)
        assert os.stat(N + "7").st_size == want
END
            "#,
        );
    });
}

/// C047: names that were looked for in vain are found once somebody has made them, and appending adds to them.
#[test]
fn what_was_not_there_is_found_as_soon_as_it_is_made() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            for i in $(seq 300); do no test -e $N/$i; done
            for i in $(seq 300); do echo made > $M/$i; done
            for i in $(seq 300 -1 1); do is "$(cat $N/$i)" made; echo more >> $N/$i; done
            for i in $(seq 300); do is "$(cat $M/$i)" $'made\nmore'; done
            is "$(ls $O | wc -l)" 300
            "#,
        );
    });
}

/// C050
#[test]
fn a_file_that_is_written_while_others_list_comes_out_whole() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            head -c 4000000 /dev/urandom > big
            ( while test ! -e $N/stop; do ls -l $M > /dev/null; ls -l $N > /dev/null; done ) & lister=$!
            for i in 1 2; do cp big copy; cmp big copy; done
            python3 -c '
for i in range(400):
    with open("log", "ab") as f: f.write(b"ab")'
            : > stop; wait $lister
            is "$(stat -c %s $O/log)" 800; cmp big $O/copy
            "#,
        );
    });
}

/// C052
#[test]
fn a_mapping_of_a_fresh_file_has_what_was_written() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            python3 - <<'END'
import mmap, os
for round in range(100):
    fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.pwrite(fd, b"x", (1 << 20) - 1)
    with mmap.mmap(fd, 1 << 20, mmap.MAP_PRIVATE) as m:
        assert m[-1:] == b"x" and not any(m[at] for at in range(0, (1 << 20) - 1, 4096))
    assert os.pread(fd, 10, 1 << 20) == b"" and os.pread(fd, 10, (1 << 20) + 1) == b""
    os.close(fd)
END
            "#,
        );
    });
}

/// C054: what one process appended, another knows of at once.
#[test]
fn the_end_of_a_file_is_where_the_last_append_left_it() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            python3 - <<'END'
import os
fds = [os.open("f", os.O_RDWR | os.O_CREAT) for _ in range(3)]
for i in range(300):
    end = os.lseek(fds[i % 3], 0, os.SEEK_END)
    assert end == 8192 * i, (i, end)
    os.pwrite(fds[i % 3], bytes([i % 256]) * 8192, end)
    for fd in fds:
        assert os.lseek(fd, 0, os.SEEK_END) == 8192 * (i + 1)
    assert os.pread(fds[(i + 1) % 3], 8192, 8192 * i) == bytes([i % 256]) * 8192
END
            "#,
        );
    });
}

/// C056: what git remembers of a symbolic link is the same at every look, from every mount; and where it is asked.
#[test]
fn a_symbolic_link_looks_the_same_at_every_look() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir t; cd t; : > a; ln -s other b; ln -fs a b; is "$(stat -c %s b)" 1
            python3 - <<'END'
import os
M = os.environ["M"]
def look(at):
    s = os.lstat(at + "/t/b")
    return s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_mode, s.st_uid, s.st_gid
first = look(M)
for round in range(20):
    for at in M, os.environ["N"], os.environ["O"]:
        assert os.readlink(at + "/t/b") == "a"
        now = look(at)
        assert now == first, (round, at, now, first)
        with os.scandir(at + "/t") as names: sizes = [e.stat(follow_symlinks=False).st_size for e in names if e.name == "b"]
        assert sizes == [1], sizes
END
            # In a directory that was just made.
            cd ..; mkdir t2; cd t2; is "$(/bin/pwd -P)" "$(realpath $M)/t2"; ( cd $N/t2; is "$(/bin/pwd -P)" "$(realpath $N)/t2" )
            "#,
        );
    });
}

/// C059
#[test]
fn a_replaced_file_is_never_seen_as_it_was() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            printf 'text 000' > f; exec 3< $N/f
            for i in $(seq 100 115); do
                cat $N/f > /dev/null; touch -r f stamp
                printf "text $i" > f; touch -r stamp f; is "$(cat $N/f)" "text $i"
                printf "TEXT $i" > g; mv g f; is "$(cat $N/f)" "TEXT $i"
                : > f; printf "more $i" >> f; is "$(cat $N/f)" "more $i"
            done
            exec 3<&-
            "#,
        );
    });
}

/// C060
#[test]
fn a_program_that_was_just_made_runs_everywhere() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            for i in $(seq 15); do
                cp /bin/echo prog; is "$(./prog $i)" $i; is "$($N/prog $i)" $i
            done
            cp /bin/sleep prog.new; mv prog.new prog; ./prog 30 & running=$!
            while test "$(readlink /proc/$running/exe)" != "$PWD/prog"; do :; done
            cp /bin/echo prog.new; mv prog.new prog; is "$($N/prog new)" new
            kill -0 $running; kill $running
            "#,
        );
    });
}

/// C062
#[test]
fn what_fallocate_does_not_serve_it_refuses_and_leaves_alone() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            python3 -c 'open("f", "wb").write(bytes(range(256)) * 8192)'; before=$(md5sum < f)
            # Some file systems can; then the size says that they did.
            if fallocate -c -o 4096 -l 4096 f 2> /dev/null; then is $(stat -c %s $N/f) 2093056; else is "$(md5sum < $N/f)" "$before"; fi
            : > g; fallocate -z -l 1000000 g; is $(stat -c %s $N/g) 1000000; fallocate -z -n -o 1000000 -l 5000 g
            is $(stat -c %s $N/g) 1000000; fallocate -n -l 3000000 g; is $(stat -c %s $N/g) 1000000
            python3 -c 'import os; fd = os.open("g", os.O_RDWR); os.posix_fallocate(fd, 0, 2000000)'; is $(stat -c %s $N/g) 2000000
            cmp -n 2000000 g /dev/zero
            "#,
        );
    });
}

/// C067
#[test]
fn direct_and_buffered_data_are_the_same() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            head -c 1048576 /dev/urandom > source; cat source > f; cat $N/f > /dev/null
            head -c 1048576 /dev/urandom > other
            dd if=other of=f bs=4k oflag=direct conv=notrunc status=none; cmp other $N/f
            dd if=source of=f bs=64k conv=notrunc status=none
            dd if=$N/f bs=4k iflag=direct status=none | cmp - source
            printf tail >> f; dd if=$N/f bs=4k iflag=direct status=none | cmp - <(cat source; printf tail)
            "#,
        );
    });
}

/// C071
#[test]
fn two_mounts_write_their_own_blocks_of_one_file() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            for size in 65536 1000; do
                truncate -s 0 f; truncate -s $((size * 64)) f
                cat > w.py <<'END'
import os, sys
path, size, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_WRONLY)
for block in range(first, 64, 2): os.pwrite(fd, bytes([block + 1]) * size, block * size)
os.fsync(fd)
END
                python3 w.py $M/f $size 0 & one=$!; python3 w.py $N/f $size 1 & two=$!; wait $one; wait $two
                for at in $M $N $O; do
                    python3 -c 'import sys; size = int(sys.argv[2]); data = open(sys.argv[1], "rb").read()
assert data == b"".join(bytes([block + 1]) * size for block in range(64))' $at/f $size
                done
            done
            "#,
        );
    });
}

/// C079
#[test]
fn who_is_in_the_group_may_set_its_bit() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir d; touch f; chown 1001:1050 d f
            setpriv --reuid 1001 --regid 1001 --groups 1050 -- chmod 2755 d; is $(stat -c %a $N/d) 2755
            setpriv --reuid 1001 --regid 1001 --groups 1050 -- chmod 2755 f; is $(stat -c %a $N/f) 2755
            as 1001 chmod 2750 f; is $(stat -c %a $N/f) 750
            as 1001 chmod 2750 d; is $(stat -c %a $N/d) 750
            "#,
        );
    });
}

/// C080, the part about root.
#[test]
fn a_bit_that_root_sets_after_writing_stays() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            python3 - <<'END'
import os
fd = os.open("f", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"x" * 100000); os.fchown(fd, 0, 0); os.fchmod(fd, 0o4755); os.close(fd)
END
            for at in $M $N $O; do is $(stat -c %a $at/f) 4755; done
            python3 - <<'END'
import mmap, os
os.chown("f", 1001, 1001); os.chmod("f", 0o6777)
os.setgroups([]); os.setegid(1002); os.seteuid(1002)
fd = os.open("f", os.O_RDWR)
with mmap.mmap(fd, 4096) as m: m[0] = 7; m.flush()
END
            is $(stat -c %a $N/f) $(stat -c %a f)
            "#,
        );
    });
}

/// C089
#[test]
fn an_open_that_cuts_needs_the_right_to_write() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            printf content > f; chmod 644 f; printf secret > g; chmod 200 g; chown 1001 g
            cat > open.py <<'END'
import errno, os
os.setgroups([]); os.setgid(1001); os.setuid(1001)
def refused(path, flags):
    try: os.open(path, flags)
    except OSError as e: assert e.errno == errno.EACCES, e
    else: raise SystemExit("not refused: %s %o" % (path, flags))
N = os.environ["N"] + "/"
for at in "", N:
    refused(at + "f", os.O_RDONLY | os.O_TRUNC); refused(at + "f", os.O_WRONLY | os.O_APPEND); refused(at + "g", os.O_RDONLY)
    os.close(os.open(at + "f", os.O_RDONLY | os.O_APPEND))
os.write(os.open("g", os.O_WRONLY | os.O_APPEND), b"!")
END
            python3 open.py; is "$(cat f)" content; is "$(cat $N/g)" 'secret!'
            "#,
        );
    });
}

/// C100
#[test]
fn reading_changes_neither_ctime_nor_mtime() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir d; echo text > d/f; touch -d '2001-02-03 04:05:06.123456789' d/f d; times="$(stat -c '%y %z' d d/f)"
            cat d/f $N/d/f > /dev/null; ls -l d $N/d > /dev/null
            python3 -c 'import mmap; f = open("d/f", "rb"); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); m[:]'
            for at in $M $N $O; do is "$(cd $at; stat -c '%y %z' d d/f)" "$times"; done
            "#,
        );
    });
}

/// C101: what another client's clock says decides nothing.
#[test]
fn a_time_far_ahead_hides_no_change() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            echo 0 > f; touch -d '+60 days' f; cat $N/f > /dev/null
            for i in 1 2 3 4 5; do
                echo $i >> $M/f; touch -d "+$((70 - i)) days" $M/f; is "$(tail -1 $N/f)" $i
                echo $i >> $N/f; is "$(cat $M/f | wc -l)" $((2 * i + 1))
            done
            is "$(md5sum < $M/f)" "$(md5sum < $N/f)"
            "#,
        );
    });
}

/// C102
#[test]
fn names_of_full_length_work_everywhere() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            a=$(printf 'a%.0s' $(seq 255)); b=$(printf '\xe2\x82\xac%.0s' $(seq 85)); c=$(printf 'c%.0s' $(seq 255))
            echo text > $a; mv $a $b; ln $b $c; setfattr -n user.a -v 1 $N/$c; is "$(cat $N/$b)" text; is $(stat -c %h $N/$b) 2; rm $a* $b $N/$c 2> /dev/null || rm -f $b $N/$c
            mkdir $a; mkfifo $a/$b; ln -s $c $a/$c; mv $a $c; is "$(find $N/$c -mindepth 1 | wc -l)" 2; rm -r $N/$c
            long=${a}x; for what in touch mkdir mkfifo 'ln -s x' 'mv d' 'rmdir' 'cat' 'setfattr -n user.a -v 1'; do
                said=$($what $long 2>&1) && exit 1; case "$said" in *'File name too long'*) ;; *) test "$what" = 'mv d' || exit 1;; esac; done
            is "$(ls -A $O)" ""
            "#,
        );
    });
}

/// C104, C106
#[test]
fn links_keep_their_text_and_loops_are_noticed() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            for length in 1 254 255 256 300 1023; do
                text=$(printf 'x%.0s' $(seq $length)); ln -s $text l$length
                for at in $M $N $O; do is "$(readlink $at/l$length)" $text; is $(stat -c %s $at/l$length) $length; done
            done
            no ln -s $(printf 'x%.0s' $(seq 4096)) too-long
            ln -s a b; ln -s b a; said=$(cat $N/a 2>&1) && exit 1; case "$said" in *'Too many levels'*) ;; *) exit 1;; esac
            echo end > 0; for i in $(seq 45); do ln -s $((i - 1)) $i; done; is "$(cat $N/39)" end; no cat $N/45
            ln -s missing d; no stat -L $N/d; stat $N/d > /dev/null
            chown -h 5:6 d; touch -h -d '2001-01-01 01:01:01.5' $N/d; is "$(stat -c '%u %g %y' $O/d | cut -c1-24)" '5 6 2001-01-01 01:01:01.'
            setfattr -h -n trusted.a -v 1 d; is "$(getfattr -h --only-values -n trusted.a $N/d)" 1
            "#,
        );
    });
}

/// C109
#[test]
fn files_without_a_name_are_refused_or_work() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            python3 - <<'END'
import errno, os
try:
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
except OSError as e:
    assert e.errno == errno.EOPNOTSUPP, e
else:
    os.write(fd, b"text")
    assert os.pread(fd, 9, 0) == b"text" and os.fstat(fd).st_nlink == 0
assert os.listdir(os.environ["N"]) == []
END
            "#,
        );
    });
}

/// C107. Not on a local directory, which keeps nothing.
#[test]
fn what_the_bricks_keep_in_the_root_is_nobodys() {
    let cluster = Cluster::up(1, 1, 1).unwrap();
    let mounts = Mounts(vec![cluster.mount(0).to_path_buf(); 3]);
    play(
        &mounts,
        r#"
        mkdir d; echo text > d/f; is "$(ls -A)" d; is "$(find . -maxdepth 1 | wc -l)" 2; is $(stat -c %h .) 3
        no mkdir .glusterfs; no cd .glusterfs; no mv d/f .glusterfs/; no mv d .glusterfs; no touch .glusterfs-x; no rm -r .glusterfs
        find . -mindepth 1 -delete; mkdir e; rm -rf ./* ./.[!.]*; is "$(ls -A)" ""; echo more > f; is "$(cat f)" more
        "#,
    );
}
