//! Whether a caller may open a file, where the kernel does not ask that itself.
//!
//! After a CREATE it does not: who makes a file may open it. Where we open, for a CREATE, what another mount has made
//! meanwhile, we must know. We are as strict as the kernel, and give no answer where it would look at more than we do:
//! an access control list, a sticky directory, a caller in another user namespace.

use mortar_xlators::ctx::Caller;
use mortar_xlators::types::{Iatt, Kind, Lacks, OpenFlags};

use super::Acl;

/// Read and write permission, as one of the three groups of mode bits.
const READ: u32 = 4;
const WRITE: u32 = 2;
/// Whose group bits may be the mask of an access control list.
const GROUP_BITS: u32 = 0o070;
const STICKY: u32 = 0o1000;
/// `CAP_DAC_OVERRIDE`.
const DAC_OVERRIDE: u64 = 1 << 1;

/// Whether somebody may do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    Yes,
    No,
    /// The kernel would look at more.
    Unsure,
}

/// What a thread may, besides what its user and group may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Powers {
    groups: Vec<u32>,
    /// Permission bits of files do not bind it.
    overrides: bool,
}

impl Powers {
    /// Those of a thread, which waits for our answer meanwhile. `None` if it cannot be known.
    pub(crate) fn of(thread: i32) -> Option<Self> {
        let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
        if namespace(&thread.to_string())? != namespace("self")? {
            return None;
        }
        Self::read(&std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
    }

    fn read(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let groups = field("Groups:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
        Some(Self { groups, overrides: capabilities & DAC_OVERRIDE != 0 })
    }
}

/// Whether the caller may open this regular file, that it found in this directory where it wanted to make one.
pub(crate) fn may_open(
    caller: &Caller,
    powers: &Powers,
    (file, directory): (&Iatt, &Iatt),
    flags: OpenFlags,
    acl: Acl,
) -> May {
    let protected = directory.mode & STICKY != 0 && file.uid != directory.uid && file.uid != caller.uid;
    if file.kind != Kind::File || protected {
        return May::Unsure;
    }
    if powers.overrides {
        return May::Yes;
    }
    let mut wanted = if flags.contains(OpenFlags::READ) { READ } else { 0 };
    if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
        wanted |= WRITE;
    }
    let bits = if caller.uid == file.uid {
        file.mode >> 6
    } else if acl == Acl::Kernel && file.mode & GROUP_BITS != 0 && !file.lacks.contains(Lacks::ACL) {
        return May::Unsure;
    } else if caller.gid == file.gid || powers.groups.contains(&file.gid) {
        file.mode >> 3
    } else {
        file.mode
    };
    if bits & wanted == wanted { May::Yes } else { May::No }
}

#[cfg(test)]
mod tests {
    use super::super::convert::tests::sample;
    use super::*;

    fn iatt(kind: Kind, mode: u32, uid: u32, gid: u32) -> Iatt {
        Iatt { kind, mode, uid, gid, lacks: Lacks::ACL, ..sample() }
    }

    const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    fn asks(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, ..Caller::root() }
    }

    #[test]
    fn the_bits_that_are_for_the_caller_decide() {
        let powers = Powers { groups: vec![30], overrides: false };
        let directory = iatt(Kind::Dir, 0o777, 0, 0);
        let rows = [
            (0o600, (10, 10), BOTH, May::Yes),
            (0o400, (10, 10), BOTH, May::No),
            (0o400, (10, 10), OpenFlags::READ, May::Yes),
            (0o400, (10, 10), OpenFlags::READ | OpenFlags::TRUNCATE, May::No),
            (0o066, (10, 10), OpenFlags::READ, May::No),
            (0o606, (11, 20), OpenFlags::READ, May::No),
            (0o040, (11, 20), OpenFlags::READ, May::Yes),
            (0o004, (11, 21), OpenFlags::READ, May::Yes),
            (0o002, (11, 21), OpenFlags::WRITE, May::Yes),
            (0o640, (0, 0), OpenFlags::READ, May::No),
        ];
        for (mode, (uid, gid), flags, may) in rows {
            let file = iatt(Kind::File, mode, 10, 20);
            assert_eq!(may_open(&asks(uid, gid), &powers, (&file, &directory), flags, Acl::Kernel), may, "{mode:o}");
        }
        let file = iatt(Kind::File, 0o060, 10, 30);
        assert_eq!(may_open(&asks(11, 21), &powers, (&file, &directory), BOTH, Acl::Kernel), May::Yes);
    }

    #[test]
    fn where_the_kernel_would_look_at_more_there_is_no_answer() {
        let all = Powers { groups: vec![], overrides: true };
        let none = Powers::default();
        let open = iatt(Kind::Dir, 0o777, 0, 0);
        let sticky = iatt(Kind::Dir, 0o1777, 0, 0);
        let file = iatt(Kind::File, 0o666, 10, 20);
        let link = iatt(Kind::Symlink, 0o777, 0, 0);
        let listed = Iatt { lacks: Lacks::empty(), ..file };
        let may = |caller: Caller, powers, on, acl| may_open(&caller, powers, on, BOTH, acl);
        assert_eq!(may(asks(0, 0), &all, (&link, &open), Acl::Kernel), May::Unsure);
        assert_eq!(may(asks(0, 0), &all, (&file, &sticky), Acl::Kernel), May::Unsure);
        assert_eq!(may(asks(10, 20), &none, (&file, &sticky), Acl::Kernel), May::Yes);
        assert_eq!(may(asks(11, 20), &none, (&listed, &open), Acl::Kernel), May::Unsure);
        assert_eq!(may(asks(11, 20), &none, (&listed, &open), Acl::Off), May::Yes);
        assert_eq!(may(asks(0, 0), &all, (&listed, &open), Acl::Kernel), May::Yes);
    }

    #[test]
    fn powers_are_read_from_what_the_kernel_says_of_a_thread() {
        let text = "Name:\tx\nUid:\t0\t0\t0\t0\nGroups:\t4 27 \nCapEff:\t0000000000000002\n";
        assert_eq!(Powers::read(text), Some(Powers { groups: vec![4, 27], overrides: true }));
        let text = "Groups:\t\nCapEff:\t0000000000000001\n";
        assert_eq!(Powers::read(text), Some(Powers::default()));
        assert_eq!(Powers::read("Groups:\t\n"), None);
    }
}
