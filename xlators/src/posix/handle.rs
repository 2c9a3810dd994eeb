//! Names of handles: where a gfid is found below `.glusterfs`, and what the symbolic link of a directory says.
//!
//! Everything that is not a directory has a hard link there; a directory has a symbolic link whose text leads over the
//! parent's handle to the name: `../../<p0>/<p1>/<parent gfid>/<name>`.

use std::ffi::CStr;
use std::fmt;

use crate::types::{Gfid, NAME_BYTES_MAX, Name};

/// Bytes of a gfid's canonical text.
pub(super) const GFID_TEXT_BYTES: usize = 36;

/// Bytes of `<b1>/<gfid>` and its NUL.
const HANDLE_BYTES: usize = 2 + 1 + GFID_TEXT_BYTES + 1;

/// Bytes of `../../<p0>/<p1>/<parent gfid>/`.
const TARGET_PREFIX_BYTES: usize = 6 + 3 + 3 + GFID_TEXT_BYTES + 1;

/// The longest text of a directory's handle, with room for its NUL.
pub(super) const TARGET_BYTES_MAX: usize = TARGET_PREFIX_BYTES + NAME_BYTES_MAX + 1;

/// What the handle of the root says.
pub(super) const ROOT_TARGET: &CStr = c"../../..";

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The name of a handle relative to the first-level directory of its gfid, on the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HandleName([u8; HANDLE_BYTES]);

impl HandleName {
    pub(super) fn new(gfid: Gfid) -> Self {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..2].copy_from_slice(&hex_byte(gfid.as_bytes()[1]));
        bytes[2] = b'/';
        bytes[3..HANDLE_BYTES - 1].copy_from_slice(&gfid_text(gfid));
        Self(bytes)
    }

    /// `<b1>/<gfid>`.
    pub(super) fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).expect("hex digits, dashes, a slash and one NUL")
    }

    /// The gfid's text alone.
    pub(super) fn text(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0[3..]).expect("hex digits, dashes and one NUL")
    }

    /// `<b1>` alone: the second-level directory.
    pub(super) fn second_level(&self) -> &[u8] {
        &self.0[..2]
    }
}

impl fmt::Debug for HandleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0[..HANDLE_BYTES - 1].escape_ascii())
    }
}

/// Two lower-case hex digits.
pub(super) fn hex_byte(byte: u8) -> [u8; 2] {
    [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
}

/// The canonical text of a gfid.
pub(super) fn gfid_text(gfid: Gfid) -> [u8; GFID_TEXT_BYTES] {
    let mut text = [b'-'; GFID_TEXT_BYTES];
    let mut at = 0;
    for (index, byte) in gfid.as_bytes().iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at..at + 2].copy_from_slice(&hex_byte(*byte));
        at += 2;
    }
    text
}

/// Read a canonical gfid text; `None` for anything else.
pub(super) fn gfid_from_text(text: &[u8]) -> Option<Gfid> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The text of the handle of a directory that has this name in this parent, on the stack.
pub(super) struct Target {
    bytes: [u8; TARGET_BYTES_MAX],
    length: usize,
}

impl Target {
    pub(super) fn new(parent: Gfid, name: &[u8]) -> Self {
        let mut bytes = [0; TARGET_BYTES_MAX];
        bytes[..6].copy_from_slice(b"../../");
        bytes[6..8].copy_from_slice(&hex_byte(parent.as_bytes()[0]));
        bytes[8] = b'/';
        bytes[9..11].copy_from_slice(&hex_byte(parent.as_bytes()[1]));
        bytes[11] = b'/';
        bytes[12..48].copy_from_slice(&gfid_text(parent));
        bytes[48] = b'/';
        let name = &name[..name.len().min(NAME_BYTES_MAX)];
        bytes[TARGET_PREFIX_BYTES..TARGET_PREFIX_BYTES + name.len()].copy_from_slice(name);
        Self { bytes, length: TARGET_PREFIX_BYTES + name.len() }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Which parent and name the text of a directory's handle gives. `None` for anything but the exact form: it comes from
/// the disk and is not to be believed.
pub(super) fn parse_target(text: &[u8]) -> Option<(Gfid, Name)> {
    let prefix = text.get(..TARGET_PREFIX_BYTES)?;
    let parent = gfid_from_text(prefix.get(12..48)?)?;
    let name = Name::new(text[TARGET_PREFIX_BYTES..].to_vec()).ok()?;
    (Target::new(parent, name.as_bytes()).as_bytes() == text).then_some((parent, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gfid(text: &str) -> Gfid {
        text.parse().unwrap()
    }

    #[test]
    fn a_handle_is_named_by_the_second_byte_and_the_text() {
        let handle = HandleName::new(gfid("e0c423c1-52d9-4f2a-ad24-5b502fa78ef6"));
        assert_eq!(handle.as_cstr(), c"c4/e0c423c1-52d9-4f2a-ad24-5b502fa78ef6");
        assert_eq!(handle.text(), c"e0c423c1-52d9-4f2a-ad24-5b502fa78ef6");
        assert_eq!(handle.second_level(), b"c4");
    }

    #[test]
    fn the_text_of_a_directory_goes_both_ways() {
        let rows: [(&str, &[u8]); 3] = [
            (
                "00000000-0000-0000-0000-000000000001",
                b".glusterfs-anonymous-inode-e1c423c1-52d9-4f2a-ad24-5b502fa78ef6",
            ),
            ("328459a8-ba70-4be5-a6c8-d622685c81af", b"na\xc3\xafve \n\xff"),
            ("f4f6bfd3-88a3-4f0c-a998-d850b9766800", &[b'N'; 255]),
        ];
        for (parent, name) in rows {
            let target = Target::new(gfid(parent), name);
            let expected = [format!("../../{}/{}/{parent}/", &parent[..2], &parent[2..4]).as_bytes(), name].concat();
            assert_eq!(target.as_bytes(), expected);
            let (found, found_name) = parse_target(&expected).unwrap();
            assert_eq!((found, found_name.as_bytes()), (gfid(parent), name));
        }
    }

    #[test]
    fn a_text_of_another_form_is_refused() {
        let rows: [&[u8]; 8] = [
            b"",
            b"../../..",
            b"/etc/passwd",
            b"../../00/00/00000000-0000-0000-0000-000000000001/",
            b"../../00/00/00000000-0000-0000-0000-000000000001/..",
            b"../../00/00/00000000-0000-0000-0000-000000000001/a/b",
            b"../../00/01/00000000-0000-0000-0000-000000000001/a",
            b"../../0A/00/0A000000-0000-0000-0000-000000000001/a",
        ];
        for row in rows {
            assert!(parse_target(row).is_none(), "{}", row.escape_ascii());
        }
    }
}
