//! Programs that copy trees and tell whether the copy is one: tar, cp, rsync.

use std::time::Duration;

use super::Judge;
use super::place::Place;
use super::tools::Package;

const LIMIT: Duration = Duration::from_secs(300);

const ACL: Package = Package { name: "acl", file: "/usr/bin/setfacl" };
const ATTR: Package = Package { name: "attr", file: "/usr/bin/setfattr" };
const CAP: Package = Package { name: "libcap2-bin", file: "/usr/sbin/setcap" };
const RSYNC_PACKAGE: Package = Package { name: "rsync", file: "/usr/bin/rsync" };

/// A tree with one of everything, made in `$L/tree`: links of both kinds, special files, holes, odd names, times, modes and xattrs.
const TREE: &str = r#"
    mkdir -p $L/tree/sub/deep && cd $L/tree
    for i in $(seq 40); do head -c $((i * 997)) /dev/urandom > sub/file-$i; done
    : > empty; printf x > one; head -c 3000000 /dev/urandom > big
    truncate -s 50M hole; printf middle | dd of=hole bs=1 seek=20000000 conv=notrunc status=none
    ln big big-link; ln -s big soft; ln -s nowhere dangling; ln -s "$(printf 'x%.0s' $(seq 1000))" long-link
    mkfifo pipe; mknod null c 1 3; mknod disk b 7 200
    printf a > "$(printf 'new\nline')"; printf b > "$(printf '\377\376bytes')"; printf c > "$(printf 'n%.0s' $(seq 255))"
    chmod 4755 one; chmod 2775 sub; chmod 1777 sub/deep; chmod 000 empty; chown 12345:54321 sub/file-1; chown -h 7:8 soft
    setfattr -n user.colour -v red one; setfattr -n user.binary -v 0x000102ff sub; setfattr -n trusted.root -v yes sub/file-2
    touch -d '1960-02-03 04:05:06.123456789' sub/file-3; touch -d '2100-01-01 00:00:00.987654321' sub/file-4
    touch -h -d '2001-01-01 01:01:01.5' soft; touch -d '2010-10-10 10:10:10.101010101' sub/deep sub
"#;

/// Trees are the same when this prints the same: kind, mode, owner, links, size, time and target of everything, and all content.
const SAME: &str = r#"
    describe() { ( cd "$1"
        find . -type d -printf '%p %y %m %U %G %T@\n' -o -printf '%p %y %m %U %G %n %s %T@ %l\n' | LC_ALL=C sort
        find . -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum
        getfattr -Rdhm '^(user|trusted\.root|security\.capability)' . 2>/dev/null | sort ) ; }
    same() { diff <(describe "$1") <(describe "$2") | head -20 | tee /dev/stderr | wc -l | grep -qx 0; }
"#;

/// ACLs and capabilities, where the mount has them.
const ACLS: &str = r#"
    cd $L/tree; setfacl -m u:12345:rwx,g:54321:r sub/file-5; setfacl -d -m u:12345:rwx,o::- sub/deep
    setcap cap_net_raw+ep sub/file-6
"#;

pub(super) const TAR: Judge = Judge {
    name: "tar",
    about: "tar with xattrs, ACLs and holes, there and back",
    packages: &[ACL, ATTR, CAP],
    crates: &[],
    mounts: 2,
    limit: LIMIT,
    run: |place: &Place| {
        let archive = r#"tar -C $L/tree --xattrs --xattrs-include='*' --acls --sparse -cpf $L/one.tar ."#;
        let into = "mkdir $M/copy && tar -C $M/copy --xattrs --xattrs-include='*' --acls --sparse -xpf $L/one.tar";
        let back = r#"mkdir $L/back && tar -C $N/copy --xattrs --xattrs-include='*' --acls --sparse -cpf - . |
            tar -C $L/back --xattrs --xattrs-include='*' --acls --sparse -xpf -"#;
        place.steps(
            LIMIT,
            &[
                ("a tree to pack", TREE),
                ("pack", archive),
                ("unpack on the mount", into),
                ("same on the mount", &format!("{SAME} same $L/tree $M/copy")),
                ("same on another mount", &format!("{SAME} same $L/tree $N/copy")),
                ("back from another mount", back),
                ("same again", &format!("{SAME} same $L/tree $L/back")),
                ("tar finds no difference", r#"tar -C $N/copy --xattrs --sparse -df $L/one.tar"#),
                ("the hole is a hole", "test $(stat -c %b $M/copy/hole) -lt 4096"),
                ("ACLs to pack", ACLS),
                ("with ACLs", &format!("{archive} && rm -rf $M/copy && {into}")),
                ("ACLs are the same", "acls() { (cd $1; find sub -print0 | sort -z | xargs -0 getfacl -n); }; diff <(acls $L/tree) <(acls $N/copy)"),
                ("capabilities are the same", "getcap $N/copy/sub/file-6 | grep -q cap_net_raw"),
            ],
        )
    },
};

pub(super) const CP: Judge = Judge {
    name: "cp",
    about: "cp -a and diff -r of a tree, and a copy within the mount",
    packages: &[ATTR, ACL],
    crates: &[],
    mounts: 2,
    limit: LIMIT,
    run: |place: &Place| {
        place.steps(
            LIMIT,
            &[
                ("a tree to copy", TREE),
                ("cp -a to the mount", "cp -a $L/tree $M/copy"),
                (
                    "diff -r",
                    "rm -f $L/tree/{pipe,null,disk} $M/copy/{pipe,null,disk}; diff -r --no-dereference $L/tree $N/copy",
                ),
                // cp keeps user xattrs only where told to, and the time of the tree's top was touched by the rm above.
                ("same", &format!("{SAME} touch -d @1 $L/tree $M/copy; same $L/tree $N/copy")),
                ("cp within the mount", "cp -a $M/copy $M/second && diff -r --no-dereference $M/copy $N/second"),
                ("reflink or not", "cp --reflink=auto $M/copy/big $M/clone && cmp $N/copy/big $N/clone"),
                (
                    "mv of a tree",
                    "mkdir $M/to && mv $N/second $N/to/third && diff -r --no-dereference $M/copy $M/to/third",
                ),
                ("rm -r", "rm -r $N/to $M/copy && test ! -e $M/to && test ! -e $N/copy"),
            ],
        )
    },
};

pub(super) const RSYNC: Judge = Judge {
    name: "rsync",
    about: "rsync -aHAX both ways, with nothing left to send the second time",
    packages: &[ATTR, ACL, RSYNC_PACKAGE],
    crates: &[],
    mounts: 2,
    limit: LIMIT,
    run: |place: &Place| {
        // What is listed would be sent again; the second look is at another mount. XFS shows its own ACLs as xattrs as well.
        let nothing = |from: &str, to: &str| {
            format!(
                "rsync -aHAX --filter='-x trusted.SGI_ACL_*' --checksum --itemize-changes --dry-run --delete {from}/ {to}/ | tee /dev/stderr | wc -l | grep -qx 0"
            )
        };
        place.steps(
            LIMIT,
            &[
                ("a tree to send", TREE),
                ("send without ACLs and xattrs", "rsync -aH $L/tree/ $M/plain/"),
                ("nothing left without them", "test -z \"$(rsync -aH --checksum -i -n --delete $L/tree/ $N/plain/)\""),
                ("send with xattrs", "rsync -aHX --checksum $L/tree/ $M/xattrs/"),
                ("nothing left with xattrs", "test -z \"$(rsync -aHX --checksum -i -n --delete $L/tree/ $N/xattrs/)\""),
                (
                    "ACLs to send",
                    "cd $L/tree; setfacl -m u:12345:rwx,g:54321:r sub/file-5; setfacl -d -m u:12345:rwx sub/deep",
                ),
                ("send", "rsync -aHAX --checksum $L/tree/ $M/copy/"),
                ("nothing left to send", &nothing("$L/tree", "$N/copy")),
                ("send back", "rsync -aHAX --checksum $N/copy/ $L/back/"),
                ("nothing left to send back", &nothing("$M/copy", "$L/back")),
                (
                    "send changes",
                    "cd $L/tree; rm sub/file-7; echo more >> sub/file-8; chmod 600 sub/file-9; mv sub/file-10 sub/ten;
                    rsync -aHAX --filter='-x trusted.SGI_ACL_*' --checksum --delete --inplace $L/tree/ $N/copy/",
                ),
                ("nothing left after changes", &nothing("$L/tree", "$M/copy")),
            ],
        )
    },
};
