//! What developers do all day: git, make, an editor that saves.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(300);

pub(super) const GIT: Judge = Judge {
    name: "git",
    about: "init, add, commit, clone, gc, fsck, worktree",
    packages: &[Package { name: "git", file: "/usr/bin/git" }],
    crates: &[],
    mounts: 2,
    limit: LIMIT,
    run: |place: &Place| {
        place.steps(
            LIMIT,
            &[
                ("configure", "git config --global user.name Judge; git config --global user.email judge@example.org;
                    git config --global init.defaultBranch main; git config --global --add safe.directory '*'"),
                ("init", "git init -q repo; cd repo; for d in $(seq 20); do mkdir -p d$d; for f in $(seq 20); do seq $((d * f * 7)) > d$d/f$f; done; done"),
                ("add and commit", "cd repo; git add -A; git commit -qm first; test -z \"$(git status --porcelain)\""),
                ("a second mount sees no change", "cd $N/repo; test -z \"$(git status --porcelain)\"; git fsck --strict --no-dangling"),
                ("links stay as they were committed", r#"git init -q links; cd links; for i in $(seq 50); do echo $i > a$i; ln -fs other b$i; ln -fs a$i b$i; done; git add -A; git commit -qm links
                    for at in $M $N $M; do cd $at/links; test -z "$(git status --porcelain)"; git diff-files --quiet; test $(stat -c %s b7) = 2; test "$(/bin/pwd -P)" = "$(realpath $at)/links"; done"#),
                ("twenty commits", "cd repo; for i in $(seq 20); do echo $i >> d$i/f1; git mv d$i/f2 d$i/moved; git commit -qam \"change $i\"; done"),
                ("branch, merge, rebase", "cd repo; git checkout -qb topic HEAD~5; echo t > topic; git add topic; git commit -qm topic;
                    git rebase -q main; git checkout -q main; git merge -q --no-ff -m merge topic; git tag -am tag v1"),
                ("stash and reset", "cd repo; echo dirty >> d1/f1; git stash -q; test -z \"$(git status --porcelain)\"; git stash pop -q; git reset -q --hard"),
                ("clone within the mount", "git clone -q repo clone; cd clone; git fsck --strict"),
                ("clone with hard links from another mount", "git clone -q --local $N/repo $N/clone2; cd clone2; test $(git rev-list --count HEAD) -ge 22"),
                ("gc", "cd $N/repo; git gc -q --prune=now --aggressive; git fsck --strict --no-dangling"),
                ("after gc at the first mount", "cd $M/repo; git fsck --strict --no-dangling; git log --stat | wc -l"),
                ("worktree", "cd repo; git worktree add -q ../tree topic; cd ../tree; echo w > w; git add w; git commit -qm w; cd ../repo; git worktree remove ../tree; git worktree prune"),
                ("push to a bare one", "git clone -q --bare repo bare.git; cd clone; git remote set-url origin $N/bare.git; echo p > p; git add p; git commit -qm p; git push -q; git -C $N/bare.git fsck --strict"),
                ("clone to local and compare", "git clone -q $N/bare.git $L/local; diff -r --exclude=.git $L/local clone"),
            ],
        )
    },
};

/// Makes a C project: headers, `COUNT` sources, a generator that writes more sources, a library, a program that checks itself.
const PROJECT: &str = r#"
    mkdir -p project/src project/gen && cd project
    for i in $(seq $COUNT); do
        printf '#ifndef H%d\n#define H%d\nint f%d(int);\n#endif\n' $i $i $i > src/f$i.h
        printf '#include "f%d.h"\nint f%d(int x) { return x + %d; }\n' $i $i $i > src/f$i.c
    done
    printf '#!/bin/sh\nprintf "int g%%s(int x) { return x * 2 + %%s; }\\n" $1 $1 > gen/g$1.c.tmp && mv gen/g$1.c.tmp gen/g$1.c\n' > generate
    chmod +x generate
    { echo '#include <stdio.h>'; for i in $(seq $COUNT); do echo "int f$i(int); int g$i(int);"; done
      echo 'int main(void) { long sum = 0;'; for i in $(seq $COUNT); do echo "sum += f$i(1) + g$i(1);"; done
      echo 'printf("%ld\n", sum); return 0; }'; } > src/main.c
    { printf 'N := $(shell seq %d)\nall: program\n' $COUNT
      printf 'program: src/main.o libf.a\n\tgcc -o $@ $^\n'
      printf 'libf.a: $(N:%%=src/f%%.o) $(N:%%=gen/g%%.o)\n\trm -f $@\n\tar rcs $@ $^\n'
      printf 'gen/g%%.c: generate\n\t./generate $*\n%%.o: %%.c\n\tgcc -O0 -MMD -c -o $@ $<\nclean:\n\trm -f program libf.a src/*.o src/*.d gen/*\n-include src/*.d\n.SECONDARY:\n'; } > Makefile
"#;

pub(super) const MAKE: Judge = Judge {
    name: "make",
    about: "make -j of a C project with generated files, and again with nothing to do",
    packages: &[Package { name: "make", file: "/usr/bin/make" }, Package { name: "gcc", file: "/usr/bin/gcc" }],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(900),
    run: |place: &Place| {
        let count: u64 = place.size(60, 300);
        // Each f adds its number to 1, each g its number to 2.
        let sum = count * 3 + count * (count + 1);
        let limit = Duration::from_secs(600);
        place.steps(
            limit,
            &[
                ("make the project", &format!("COUNT={count}; {PROJECT}")),
                ("make -j", "make -sj4 -C project"),
                (
                    "the program is right",
                    &format!("test $(project/program) = {sum}; test $($N/project/program) = {sum}"),
                ),
                ("nothing to do", "make -q -C project"),
                ("nothing to do at another mount", "make -q -C $N/project"),
                (
                    "one change at another mount",
                    "sleep 0.05; sed -i 's/x + 7;/x + 8;/' $N/project/src/f7.c; make -sj4 -C project",
                ),
                ("the change is seen", &format!("test $($N/project/program) = $(({sum} + 1))")),
                ("clean", "make -s -C $N/project clean; test -z \"$(ls project/gen)\"; test ! -e project/program"),
                (
                    "again at the other mount",
                    &format!("make -sj4 -C $N/project; test $(project/program) = $(({sum} + 1))"),
                ),
            ],
        )
    },
};

/// The way editors save: write a second file, fsync, rename. And vim itself.
const SAVE_LOOP: &str = r#"
    cat > $L/save.py <<'END'
import os, sys
mine, other, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for i in range(rounds):
    text = b"%d\n" % i * 2000
    temporary = mine + "/.file.swp"
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    os.write(fd, text); os.fsync(fd); os.close(fd)
    os.rename(temporary, mine + "/file")
    directory = os.open(mine, os.O_RDONLY); os.fsync(directory); os.close(directory)
    for place in (other, mine):
        got = open(place + "/file", "rb").read()
        assert got == text, (place, i, got[:20], len(got))
        assert os.listdir(place) == ["file"], os.listdir(place)
        assert os.stat(place + "/file").st_size == len(text)
END
"#;

pub(super) const SAVE: Judge = Judge {
    name: "save",
    about: "the way editors save: a second file, fsync, rename; vim itself",
    packages: &[
        Package { name: "vim-tiny", file: "/usr/bin/vim.tiny" },
        Package { name: "python3", file: "/usr/bin/python3" },
    ],
    crates: &[],
    mounts: 2,
    limit: LIMIT,
    run: |place: &Place| {
        let rounds = place.size(100, 1000);
        place.steps(
            LIMIT,
            &[
                ("a program that saves", SAVE_LOOP),
                ("seen at once at another mount", &format!("mkdir saved; python3 $L/save.py $M/saved $N/saved {rounds}")),
                ("a reader never sees half", r#"set +o pipefail; mkdir torn; yes one | head -c 100000 > torn/f
                    ( set +x; for i in $(seq 200); do yes $i | head -c 100000 > torn/.t; mv torn/.t torn/f; done ) & writer=$!
                    set +x; while kill -0 $writer 2>/dev/null; do test $(uniq $N/torn/f | wc -l) -le 2 -a $(stat -c %s $N/torn/f) = 100000; done; wait $writer"#),
                ("vim", r#"printf 'one\ntwo\n' > text; chmod 640 text; chown 12345:54321 text; setfattr -n user.note -v kept text || true
                    for i in $(seq 10); do vim.tiny -Nu NONE -es -c 'set backup backupcopy=auto' -c '%s/$/x/' -c 'wq' text < /dev/null; done
                    test "$(cat $N/text)" = "$(printf 'onexxxxxxxxxx\ntwoxxxxxxxxxx')"; test $(stat -c %a:%u:%g $N/text) = 640:12345:54321
                    test "$(ls -A . | grep -c swp)" = 0"#),
                ("sed -i at each mount in turn", "for i in $(seq 20); do sed -i 's/x$/xy/;s/y$/x/' $M/text; sed -i '1s/^/a/' $N/text; done; test $(head -c 20 $M/text) = aaaaaaaaaaaaaaaaaaaa"),
            ],
        )
    },
};
