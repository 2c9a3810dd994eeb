//! What a new inode inherits from its directory: the group of a set-group-id one, and its default ACL.
//!
//! Only needed for what is not made in the directory itself but moved there when complete; for a regular file made
//! with `O_TMPFILE` the kernel does the same, and tests hold the two against each other.

use crate::types::Kind;

/// The kernel's xattr of the ACL that decides access.
pub(super) const ACCESS: &std::ffi::CStr = c"system.posix_acl_access";

/// The kernel's xattr of the ACL that new entries of a directory inherit.
pub(super) const DEFAULT: &std::ffi::CStr = c"system.posix_acl_default";

const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The access ACL and mode of an inode of `kind` made with `mode` under the default ACL `default`: the mode cuts the
/// ACL's entries for owner, mask (or group) and others, and these then are the mode. No ACL where the mode says it all.
pub(super) fn inherit(default: &[u8], mode: u32, kind: Kind) -> (u32, Option<Vec<u8>>) {
    if kind == Kind::Symlink || default.len() < HEADER_BYTES {
        return (mode, None);
    }
    let mut acl = default.to_vec();
    let has_mask = entries(default).any(|(tag, _)| tag == MASK);
    let named = entries(default).any(|(tag, _)| matches!(tag, USER | GROUP));
    let mut result = mode;
    for entry in acl[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES) {
        let shift = match u16::from_le_bytes([entry[0], entry[1]]) {
            USER_OBJ => 6,
            MASK => 3,
            GROUP_OBJ if !has_mask => 3,
            OTHER => 0,
            _ => continue,
        };
        let perm = u32::from(entry[2]) & (mode >> shift) & 7;
        entry[2] = u8::try_from(perm).expect("three bits");
        result = (result & !(7 << shift)) | (perm << shift);
    }
    (result, (has_mask || named).then_some(acl))
}

fn entries(acl: &[u8]) -> impl Iterator<Item = (u16, u8)> {
    acl[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), entry[2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u8, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::from(*perm).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn an_acl_of_three_entries_is_a_mode() {
        let default = acl(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        assert_eq!(inherit(&default, 0o666, Kind::File), (0o640, None));
        assert_eq!(inherit(&default, 0o2777, Kind::Dir), (0o2750, None));
        assert_eq!(inherit(&default, 0o777, Kind::Symlink), (0o777, None));
    }

    #[test]
    fn the_mask_stands_for_the_group() {
        let default =
            acl(&[(USER_OBJ, 7, NONE), (USER, 7, 1000), (GROUP_OBJ, 7, NONE), (MASK, 7, NONE), (OTHER, 5, NONE)]);
        let expected =
            acl(&[(USER_OBJ, 6, NONE), (USER, 7, 1000), (GROUP_OBJ, 7, NONE), (MASK, 4, NONE), (OTHER, 4, NONE)]);
        assert_eq!(inherit(&default, 0o644, Kind::File), (0o644, Some(expected)));
    }

    #[test]
    fn a_damaged_acl_does_no_harm() {
        for length in 0..40 {
            inherit(&vec![0xff; length], 0o644, Kind::File);
        }
    }
}
