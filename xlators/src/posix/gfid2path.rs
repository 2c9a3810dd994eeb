//! `trusted.gfid2path.*`: the way back from an inode to its names, one xattr for each name of each non-directory.

use std::ffi::CStr;

use xxhash_rust::xxh64::xxh64;

use super::handle::{GFID_TEXT_BYTES, gfid_text};
use crate::types::{Gfid, NAME_BYTES_MAX};

/// How every such xattr begins.
pub(super) const PREFIX: &[u8] = b"trusted.gfid2path.";

/// GlusterFS records no more names than this of one inode.
pub(super) const LINKS_MAX: u32 = 500;

const KEY_BYTES: usize = 18 + 16 + 1;
const VALUE_BYTES_MAX: usize = GFID_TEXT_BYTES + 1 + NAME_BYTES_MAX;

/// One such xattr, on the stack.
pub(super) struct Gfid2Path {
    key: [u8; KEY_BYTES],
    value: [u8; VALUE_BYTES_MAX],
    length: usize,
}

impl Gfid2Path {
    /// The xattr of the name `name` in `parent`.
    pub(super) fn new(parent: Gfid, name: &[u8]) -> Self {
        let name = &name[..name.len().min(NAME_BYTES_MAX)];
        let length = GFID_TEXT_BYTES + 1 + name.len();
        let mut value = [0; VALUE_BYTES_MAX];
        value[..GFID_TEXT_BYTES].copy_from_slice(&gfid_text(parent));
        value[GFID_TEXT_BYTES] = b'/';
        value[GFID_TEXT_BYTES + 1..length].copy_from_slice(name);
        let hash = xxh64(&value[..length], 0).to_be_bytes();
        let mut key = [0; KEY_BYTES];
        key[..PREFIX.len()].copy_from_slice(PREFIX);
        for (index, byte) in hash.into_iter().enumerate() {
            let at = PREFIX.len() + 2 * index;
            key[at..at + 2].copy_from_slice(&super::handle::hex_byte(byte));
        }
        Self { key, value, length }
    }

    /// Its name.
    pub(super) fn key(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.key).expect("a fixed prefix, hex digits and one NUL")
    }

    /// `<parent gfid>/<name>`, without a NUL.
    pub(super) fn value(&self) -> &[u8] {
        &self.value[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `\xHH` in a cell of the table is one byte.
    fn unescape(cell: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = cell;
        while let Some((before, after)) = rest.split_once("\\x") {
            bytes.extend_from_slice(before.as_bytes());
            bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
            rest = &after[2..];
        }
        bytes.extend_from_slice(rest.as_bytes());
        bytes
    }

    #[test]
    fn every_row_of_the_vector_table_is_reproduced() {
        let table = include_str!("../../../tests/vectors/gfid2path-vectors.tsv");
        let mut rows = 0;
        for line in table.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let cells: Vec<&str> = line.split('\t').collect();
            let [parent, name, _, key, value] = cells[..] else { panic!("a row has five cells: {line}") };
            let made = Gfid2Path::new(parent.parse().unwrap(), &unescape(name));
            let hex: String = made.value().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((made.key().to_str().unwrap(), hex.as_str()), (key, value));
            rows += 1;
        }
        assert_eq!(rows, 10);
    }
}
