//! Large directories, and programs that watch one.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(900);

pub(super) const LISTING: Judge = Judge {
    name: "listing",
    about: "find, du and ls on a directory of 200,000 entries",
    packages: &[Package { name: "python3", file: "/usr/bin/python3" }],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(1800),
    run: |place: &Place| {
        let count = place.size(20_000, 200_000);
        place.steps(
            LIMIT,
            &[
                ("create", &format!("mkdir many; python3 -c '
import os
for i in range({count}):
    os.close(os.open(\"many/entry-%d\" % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY))'")),
                ("ls", &format!("ls -U many | sort -u | wc -l | grep -qx {count}")),
                ("ls at another mount", &format!("ls -U $N/many | sort -u | wc -l | grep -qx {count}; ls -U $N/many | wc -l | grep -qx {count}")),
                ("ls -l", &format!("ls -l $N/many | wc -l | grep -qx $(({count} + 1))")),
                ("find with types", &format!("find many -type f -empty | wc -l | grep -qx {count}")),
                ("find without stat is the same as with", "test \"$(find $N/many -printf '%y %f\\n' | sort | md5sum)\" = \"$(find many -size -1 -printf '%y %f\\n' -o -printf '%y %f\\n' | sort | md5sum)\""),
                ("du", "du -s --inodes many | cut -f1 | grep -qx $(($(ls -U many | wc -l) + 1))"),
                ("inode numbers are those of stat, and unique", &format!("set +o pipefail; ls -iU many | sort -u | head -500 | {{ set +x; }} 2>/dev/null; while read ino name; do test $ino = $(stat -c %i $N/many/$name); done;
                    ls -iU many | awk '{{print $1}}' | sort -u | wc -l | grep -qx {count}")),
                ("remove while listing", &format!("python3 -c '
import os
gone = 0
with os.scandir(\"many\") as entries:
    for entry in entries:
        if int(entry.name.split(\"-\")[1]) % 2 == 0:
            os.unlink(entry.path); gone += 1
assert gone == {count} // 2, gone
left = set(os.listdir(os.environ[\"N\"] + \"/many\"))
assert left == {{\"entry-%d\" % i for i in range(1, {count}, 2)}}, len(left)'")),
                ("rm -r", "rm -r many; test ! -e $N/many"),
            ],
        )
    },
};

pub(super) const INOTIFY: Judge = Judge {
    name: "inotify",
    about: "inotifywait sees what happens at its own mount",
    packages: &[Package { name: "inotify-tools", file: "/usr/bin/inotifywait" }],
    crates: &[],
    mounts: 1,
    limit: Duration::from_secs(120),
    run: |place: &Place| {
        place.steps(
            Duration::from_secs(60),
            &[
                ("watch", r#"mkdir watched
                    inotifywait -m -e create,modify,moved_to,moved_from,delete,close_write,attrib --format '%e %f' watched > $L/events 2> $L/ready & watcher=$!
                    trap 'kill $watcher' EXIT
                    until grep -q established $L/ready; do sleep 0.05; done
                    echo text > watched/a; mv watched/a watched/b; chmod 600 watched/b; mkdir watched/d; rm watched/b; rmdir watched/d
                    until grep -q 'DELETE,ISDIR d' $L/events; do sleep 0.05; done"#),
                ("every event is there", r#"for event in 'CREATE a' 'MODIFY a' 'CLOSE_WRITE,CLOSE a' 'MOVED_FROM a' 'MOVED_TO b' 'ATTRIB b' 'CREATE,ISDIR d' 'DELETE b' 'DELETE,ISDIR d'; do
                    grep -qx "$event" $L/events; done"#),
                ("tail -F follows", r#"echo one > log; timeout 30 tail -F log > $L/tailed 2>/dev/null & follower=$!
                    until grep -q one $L/tailed; do sleep 0.05; done; echo two >> log; until grep -q two $L/tailed; do sleep 0.05; done; kill $follower"#),
            ],
        )
    },
};
