//! What users have reported about renames, as scripts like those in [`super::cases`].

use super::cases::play;
use super::everywhere;

/// C006: a name that another mount removed is not the same file any more.
#[test]
fn a_hard_link_that_another_removed_may_be_made_by_a_rename() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            for i in $(seq 20); do
                : > file; ln file file.link; all ls -li > /dev/null
                rm $N/file.link
                mv file file.link
                for at in $M $N $O; do is "$(stat -c %h $at/file.link)" 1; no test -e $at/file; done
                rm file.link
            done
            "#,
        );
    });
}

/// C011
#[test]
fn directories_may_be_nested_and_renamed_under_those_who_read_them() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir top; for i in $(seq 20); do mkdir top/old$i; for f in 1 2 3 4 5; do echo $i-$f > top/old$i/$f; done; done
            ( cd $N/top
              while test ! -e $N/stop; do
                  # What has moved meanwhile is not found; anything else is a fault.
                  find . -type f -exec cat {} + 2>&1 > /dev/null | grep -v 'No such file or directory' || true
              done ) > $M/../said-$$ & reader=$!
            trap "rm -f $M/../said-$$" EXIT
            cd top; for i in $(seq 20 -1 2); do mv old$i old$((i - 1))/; done
            for i in $(seq 20); do mv old$i new$i; cd new$i; done
            : > $M/stop; wait $reader
            is "$(cat $M/../said-$$)" ""
            for at in $M $N $O; do is "$(find $at/top -type f -exec cat {} + | sort -u | wc -l)" 100; done
            "#,
        );
    });
}

/// C012
#[test]
fn a_new_name_is_there_at_once_also_for_who_is_inside() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir d; echo inside > d/f; echo alone > a
            python3 - <<'END'
import os
M, N = os.environ["M"], os.environ["N"]
os.chdir(M + "/d")
names = ("a", "b"), ("d", "e")
for round in range(300):
    for old, new in [(pair if round % 2 == 0 else pair[::-1]) for pair in names]:
        os.rename(M + "/" + old, M + "/" + new)
        os.stat(M + "/" + new)
        os.stat(N + "/" + new)
        assert not os.path.lexists(M + "/" + old) and not os.path.lexists(N + "/" + old), (round, old)
        if new in ("d", "e"):
            assert os.listdir(M + "/" + new) == ["f"] and os.listdir(".") == ["f"]
            assert os.getcwd() == os.path.realpath(M + "/" + new), (os.getcwd(), new)
END
            "#,
        );
    });
}

/// C048
#[test]
fn a_message_is_in_a_maildir_once() {
    everywhere(|mounts| {
        play(
            mounts,
            r#"
            mkdir tmp new cur
            cat > $M/../maildir-$$.py <<'END'
import os, sys
role, at, messages = sys.argv[1], sys.argv[2], 200
os.chdir(at)
if role == "deliver":
    for i in range(messages):
        with open("tmp/%d" % i, "w") as f: f.write("message %d" % i)
        if i % 2: os.rename("tmp/%d" % i, "new/%d" % i)
        else:
            os.link("tmp/%d" % i, "new/%d" % i)
            os.unlink("tmp/%d" % i)
elif role == "read":
    read = 0
    while read < messages:
        for name in os.listdir("new"):
            last = "cur/" + name + ":2,"
            os.rename("new/" + name, last)
            for flags in ["S", "RS", "FRS"]:
                now = "cur/" + name + ":2," + flags
                os.rename(last, now)
                last = now
            read += 1
    open("stop", "w").close()
else:
    while not os.path.exists("stop"):
        for directory in ["tmp", "new", "cur"]:
            names = os.listdir(directory)
            assert len(names) == len(set(names)), names
END
            trap "rm -f $M/../maildir-$$.py" EXIT
            python3 $M/../maildir-$$.py deliver $M & one=$!
            python3 $M/../maildir-$$.py read $N & two=$!
            python3 $M/../maildir-$$.py list $O & three=$!
            wait $one; wait $two; wait $three
            for at in $M $N $O; do
                is "$(find $at -type f -name '*:2,FRS' -exec cat {} + -exec printf '\n' \; | tr -d '\n' | sed 's/message/\nmessage/g' | sort -u | grep -c message)" 200
                is "$(find $at/tmp $at/new -type f | wc -l)" 0
                is "$(ls $at/cur | wc -l)" 200
            done
            "#,
        );
    });
}
