//! Access control lists, capabilities and other extended attributes, as the kernel enforces them and as programs see them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use mortar_tests::cluster::Cluster;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::{Mounts, as_user, everywhere, shared_cluster, shell};

const USER: u32 = 12_345;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

const OWNER_OBJ: u16 = 1;
const NAMED_USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// An ACL as the kernel takes it: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// The one named user may do this, the group and others nothing.
fn for_user(permissions: u16) -> Vec<u8> {
    acl(&[
        (OWNER_OBJ, 6, NOBODY),
        (NAMED_USER, permissions, USER),
        (GROUP_OBJ, 0, NOBODY),
        (MASK, permissions, NOBODY),
        (OTHERS, 0, NOBODY),
    ])
}

fn set(path: impl AsRef<Path>, name: &str, value: &[u8]) {
    setxattr(path.as_ref(), name, value, XattrFlags::empty()).unwrap();
}

fn get(path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let length = getxattr(path.as_ref(), name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A file that only root may use, in a directory that everybody may search.
fn secret(mounts: &Mounts) {
    fs::set_permissions(&mounts.0[0], fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(mounts.here("f"), "secret").unwrap();
    fs::set_permissions(mounts.here("f"), fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn an_acl_holds_at_every_mount_as_soon_as_it_is_set() {
    everywhere(|mounts| {
        secret(mounts);
        let may = |what: &str| mounts.0.iter().map(|mount| as_user(USER, "", mount, what)).collect::<Vec<_>>();
        assert_eq!(may("cat f"), [false; 3]);
        set(mounts.here("f"), ACCESS, &for_user(4));
        assert_eq!(may("cat f"), [true; 3]);
        assert_eq!(may("echo >> f"), [false; 3]);
        set(mounts.there("f"), ACCESS, &for_user(6));
        assert_eq!(may("cat f && echo >> f"), [true; 3]);
        removexattr(mounts.here("f"), ACCESS).unwrap();
        assert_eq!(may("cat f"), [false; 3]);
        assert_eq!(get(mounts.there("f"), ACCESS), Err(Errno::NODATA));
    });
}

#[test]
fn the_group_bits_of_the_mode_are_the_mask() {
    everywhere(|mounts| {
        secret(mounts);
        set(mounts.here("f"), ACCESS, &for_user(6));
        assert_eq!(mode(mounts.there("f")), 0o660);
        fs::set_permissions(mounts.there("f"), fs::Permissions::from_mode(0o640)).unwrap();
        let narrowed = acl(&[
            (OWNER_OBJ, 6, NOBODY),
            (NAMED_USER, 6, USER),
            (GROUP_OBJ, 0, NOBODY),
            (MASK, 4, NOBODY),
            (OTHERS, 0, NOBODY),
        ]);
        for mount in mounts.everywhere("f") {
            assert_eq!(get(&mount, ACCESS).unwrap(), narrowed);
        }
        assert!(as_user(USER, "", &mounts.0[0], "cat f") && !as_user(USER, "", &mounts.0[0], "echo >> f"));
        // An ACL of three entries is a mode, and kept as one.
        set(mounts.here("f"), ACCESS, &acl(&[(OWNER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHERS, 1, NOBODY)]));
        assert_eq!((mode(mounts.there("f")), get(mounts.there("f"), ACCESS)), (0o751, Err(Errno::NODATA)));
    });
}

/// C085
#[test]
fn what_is_made_below_a_default_acl_inherits_it() {
    everywhere(|mounts| {
        fs::create_dir(mounts.here("d")).unwrap();
        let default = acl(&[
            (OWNER_OBJ, 7, NOBODY),
            (NAMED_USER, 6, USER),
            (GROUP_OBJ, 7, NOBODY),
            (MASK, 7, NOBODY),
            (OTHERS, 0, NOBODY),
        ]);
        set(mounts.here("d"), DEFAULT, &default);
        shell(
            &mounts.there("d"),
            "umask 077; touch f; mkdir new; mkfifo p; ln -s f l; umask 0; touch g; mkdir -m 700 own",
        );
        assert_eq!(get(mounts.here("d/new"), DEFAULT).unwrap(), default);
        assert_eq!(get(mounts.here("d/new"), ACCESS).unwrap(), default);
        let modes: Vec<u32> = ["f", "g", "p", "new", "own"].map(|name| mode(mounts.here("d").join(name))).to_vec();
        assert_eq!(modes, [0o660, 0o660, 0o660, 0o770, 0o700]);
        let of_a_file = acl(&[
            (OWNER_OBJ, 6, NOBODY),
            (NAMED_USER, 6, USER),
            (GROUP_OBJ, 7, NOBODY),
            (MASK, 6, NOBODY),
            (OTHERS, 0, NOBODY),
        ]);
        for name in ["f", "g", "p"] {
            assert_eq!(get(mounts.here("d").join(name), ACCESS).unwrap(), of_a_file, "{name}");
        }
        // At the mount that makes them, too, and in a directory that inherited.
        shell(&mounts.here("d/new"), "umask 077; touch f");
        assert_eq!(get(mounts.here("d/new/f"), ACCESS).unwrap(), of_a_file);
        removexattr(mounts.there("d"), DEFAULT).unwrap();
        shell(&mounts.here("d"), "umask 077; touch plain");
        assert_eq!((mode(mounts.here("d/plain")), get(mounts.here("d/plain"), ACCESS)), (0o600, Err(Errno::NODATA)));
    });
}

/// C087
#[test]
fn an_acl_that_is_none_is_refused_and_changes_nothing() {
    everywhere(|mounts| {
        secret(mounts);
        let good = for_user(4);
        set(mounts.here("f"), ACCESS, &good);
        let mut other_version = good.clone();
        other_version[0] = 7;
        let wrong = [
            acl(&[(OWNER_OBJ, 6, NOBODY), (OWNER_OBJ, 6, NOBODY), (GROUP_OBJ, 0, NOBODY), (OTHERS, 0, NOBODY)]),
            acl(&[(OWNER_OBJ, 6, NOBODY), (NAMED_USER, 6, USER), (GROUP_OBJ, 0, NOBODY), (OTHERS, 0, NOBODY)]),
            acl(&[(OWNER_OBJ, 6, NOBODY), (GROUP_OBJ, 0, NOBODY)]),
            acl(&[(OWNER_OBJ, 0x66, NOBODY), (GROUP_OBJ, 0, NOBODY), (OTHERS, 0, NOBODY)]),
            good[..good.len() - 3].to_vec(),
            b"x".to_vec(),
        ];
        for bytes in wrong {
            let refused = setxattr(mounts.here("f"), ACCESS, &bytes, XattrFlags::empty());
            assert_eq!(refused, Err(Errno::INVAL), "{bytes:?}");
        }
        assert_eq!(setxattr(mounts.here("f"), ACCESS, &other_version, XattrFlags::empty()), Err(Errno::OPNOTSUPP));
        assert_eq!(setxattr(mounts.here("f"), DEFAULT, &good, XattrFlags::empty()), Err(Errno::ACCESS));
        assert_eq!(get(mounts.there("f"), ACCESS).unwrap(), good);
    });
}

/// What lets a program be more than its user, `cap_net_raw+ep` in version 2.
fn net_raw() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_capability_goes_when_the_file_is_written_or_given_away() {
    everywhere(|mounts| {
        let changes: [(&str, &str); 5] = [
            ("written", "echo >> f"),
            ("overwritten", "echo x | dd of=f conv=notrunc status=none"),
            ("cut", "truncate -s 1 f"),
            ("given away", "chown 12345 f"),
            ("removed", "setfattr -x security.capability f"),
        ];
        for (what, script) in changes {
            fs::write(mounts.here("f"), "program").unwrap();
            set(mounts.here("f"), CAPABILITY, &net_raw());
            assert_eq!(get(mounts.there("f"), CAPABILITY).unwrap(), net_raw());
            shell(&mounts.0[1], script);
            for path in mounts.everywhere("f") {
                assert_eq!(get(path, CAPABILITY), Err(Errno::NODATA), "{what}");
            }
        }
        // A change of mode or of times leaves it.
        set(mounts.there("f"), CAPABILITY, &net_raw());
        shell(&mounts.0[0], "chmod 755 f; touch f; test \"$(getfattr -m - f | grep -c security.capability)\" = 1");
        assert_eq!(get(mounts.here("f"), CAPABILITY).unwrap(), net_raw());
        chown(mounts.here("f"), Some(0), Some(0)).unwrap();
        assert_eq!(get(mounts.there("f"), CAPABILITY), Err(Errno::NODATA), "also if it was the owner already");
    });
}

/// C091. The largest are for the judge `acl`: the local file system may not take them.
#[test]
fn values_of_every_size_come_back_and_others_are_refused() {
    everywhere(|mounts| {
        fs::write(mounts.here("f"), "").unwrap();
        for (name, length) in [("user.empty", 0), ("user.some", 10), ("user.large", 3_000)] {
            let value: Vec<u8> = (0..length).map(|at| (at % 7) as u8).collect();
            set(mounts.here("f"), name, &value);
            assert_eq!(get(mounts.there("f"), name).unwrap(), value, "{name}");
            removexattr(mounts.there("f"), name).unwrap();
        }
        assert_eq!(setxattr(mounts.here("f"), "user.a", &[0; 65_537], XattrFlags::empty()), Err(Errno::TOOBIG));
        set(mounts.here("f"), "user.a", b"1");
        assert_eq!(setxattr(mounts.there("f"), "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(setxattr(mounts.there("f"), "user.b", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
        assert_eq!(removexattr(mounts.there("f"), "user.b"), Err(Errno::NODATA));
        set(mounts.here("f"), "user.a", b"longer");
        assert_eq!(getxattr(mounts.there("f"), "user.a", &mut [0; 3]), Err(Errno::RANGE));
        assert_eq!(get(mounts.there("f"), "nobody.knows"), Err(Errno::OPNOTSUPP));
        for number in 0..50 {
            set(mounts.here("f"), &format!("user.number-{number}"), number.to_string().as_bytes());
        }
        assert_eq!(shell(&mounts.0[1], "getfattr -dm - f | grep -c ="), "51\n");
        shell(&mounts.0[0], "ln -s f l; ! setfattr -h -n user.a -v 1 l 2> /dev/null; setfattr -h -n trusted.a -v 1 l");
        assert_eq!(shell(&mounts.0[1], "getfattr -hdm - l | grep -v '#'"), "trusted.a=\"1\"\n\n");
    });
}

#[test]
fn what_belongs_to_the_bricks_can_be_neither_seen_nor_set() {
    let cluster = shared_cluster();
    let file = cluster.mount(0).join("of-the-bricks");
    fs::write(&file, "").unwrap();
    let names =
        ["trusted.gfid", "trusted.glusterfs.mdata", "trusted.afr.gv0-client-0", "trusted.gfid2path.0123456789abcdef"];
    for name in names {
        assert_eq!(get(&file, name), Err(Errno::NODATA), "{name}");
        assert_eq!(setxattr(&file, name, b"x", XattrFlags::empty()), Err(Errno::PERM), "{name}");
        assert!(removexattr(&file, name).is_err(), "{name}");
    }
    // The form in which XFS stores ACLs is shown by XFS, too.
    set(&file, ACCESS, &for_user(4));
    let other = cluster.mount(1).join("of-the-bricks");
    let mut list = vec![0; 4096];
    let length = rustix::fs::listxattr(&other, &mut list).unwrap();
    assert_eq!(&list[..length], b"system.posix_acl_access\0");
}

/// What `ls -l` shows of a directory: for each name the inode, mode, links, size and time of change, and the ACL.
fn long_listing(directory: &Path) -> Vec<(String, [u64; 5], Option<Vec<u8>>)> {
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let seen = entry.metadata().unwrap();
        let time = seen.mtime_nsec().cast_unsigned();
        (name, [seen.ino(), seen.mode().into(), seen.nlink(), seen.len(), time], get(entry.path(), ACCESS).ok())
    };
    let mut listing: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| of(entry.unwrap())).collect();
    listing.sort();
    listing
}

/// What somebody changes at a mount between two listings.
const CHANGES: [&str; 15] = [
    "an acl",
    "a mode",
    "a rename",
    "a new file of an old name",
    "an acl of a file with two names",
    "a third name",
    "an acl of a directory",
    "a longer file",
    "no acl",
    "another mode",
    "a rename back",
    "a file without an acl in its place",
    "no acl of a file with two names",
    "no third name",
    "no acl of a directory",
];

fn change(directory: &Path, what: &str) {
    let path = |name: &str| directory.join(name);
    let set_acl = |path: &Path| set(path, ACCESS, &for_user(6));
    match what {
        "an acl" => set_acl(&path("a")),
        "no acl" => removexattr(path("a"), ACCESS).unwrap(),
        "a mode" => fs::set_permissions(path("b"), fs::Permissions::from_mode(0o600)).unwrap(),
        "another mode" => fs::set_permissions(path("b"), fs::Permissions::from_mode(0o644)).unwrap(),
        "a rename" => fs::rename(path("c"), path("h")).unwrap(),
        "a rename back" => fs::rename(path("h"), path("c")).unwrap(),
        "a new file of an old name" => {
            fs::remove_file(path("d")).unwrap();
            fs::write(path("d"), "new").unwrap();
            set_acl(&path("d"));
        }
        "a file without an acl in its place" => {
            fs::write(path("new"), "newer").unwrap();
            fs::rename(path("new"), path("d")).unwrap();
        }
        "a longer file" => drop(shell(directory, "echo more >> e")),
        "an acl of a file with two names" => set_acl(&path("g")),
        "no acl of a file with two names" => removexattr(path("f"), ACCESS).unwrap(),
        "a third name" => fs::hard_link(path("f"), path("i")).unwrap(),
        "no third name" => fs::remove_file(path("i")).unwrap(),
        "an acl of a directory" => set_acl(&path("dir")),
        "no acl of a directory" => removexattr(path("dir"), ACCESS).unwrap(),
        _ => unreachable!("{what}"),
    }
}

/// A listing tells the kernel little of what it was told before: what has changed since must not be in that.
#[test]
fn what_changes_between_two_listings_is_in_the_second_at_every_mount() {
    everywhere(|mounts| {
        shell(&mounts.0[0], "for name in a b c d e f; do echo $name > $name; done; mkdir dir; ln f g");
        let listed = |what: &str| {
            let listings: Vec<_> = mounts.0.iter().map(|mount| long_listing(mount)).collect();
            assert_eq!(listings[0], listings[1], "{what}");
            assert_eq!(listings[0], listings[2], "{what}");
            for mount in &mounts.0 {
                assert_eq!(long_listing(mount), listings[0], "{what}, again");
            }
            listings[0].clone()
        };
        let mut before = listed("at first");
        for round in 0..6 {
            for what in CHANGES {
                change(&mounts.0[round % 3], what);
                let after = listed(what);
                assert_ne!(before, after, "{what}");
                before = after;
            }
        }
    });
}

/// `ls -l` asks for the ACL of every file, and a write for its capability.
#[test]
fn a_listing_and_a_write_ask_no_brick_whether_there_is_an_acl() {
    // By itself: others would be counted.
    let cluster = Cluster::up(3, 3, 2).unwrap();
    let program = mortar_tests::bench::mortar::program().unwrap();
    let asked = |mount: &Path| {
        let dump = shell(mount, &format!("{} statedump {}", program.display(), mount.display()));
        let lines = dump.lines().filter(|line| line.starts_with("Getxattr ") || line.starts_with("Listxattr "));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    };
    let directory = cluster.mount(0).join("listed");
    shell(cluster.mount(0), "mkdir listed; for i in $(seq 50); do echo $i > listed/$i; done");
    let before = asked(cluster.mount(0));
    shell(&directory, "ls -l > /dev/null; getfattr -dm - * > /dev/null; for i in $(seq 50); do echo more >> $i; done");
    assert_eq!(asked(cluster.mount(0)), before, "the mount that made the files");
    let other = cluster.mount(1).join("listed");
    let before = asked(cluster.mount(1));
    shell(&other, "ls -l > /dev/null; for i in $(seq 50); do echo more >> $i; done; ls -l > /dev/null");
    assert_eq!(asked(cluster.mount(1)), before, "another mount");
}
