//! Pending counters: the 12 bytes of a `trusted.afr.*` xattr, which copies they accuse, and what a blame adds.
//!
//! A counter on copy *i* under the key of copy *j* says "*j* missed something". Only zero or not zero decides.

use bytes::Bytes;

use super::copies::CopySet;
use crate::error::Errno;
use crate::types::{Class, Counters, Pending, XattrName};

/// The xattr by which others blame a brick.
pub fn key(brick_id: &str) -> Result<XattrName, Errno> {
    XattrName::new(Bytes::from(format!("trusted.afr.{brick_id}")))
}

/// Counters as they are on disk: data, metadata, entry, each big-endian.
pub fn encode(counters: Counters) -> [u8; 12] {
    let mut bytes = [0; 12];
    for (chunk, counter) in bytes.chunks_exact_mut(4).zip(counters.0) {
        chunk.copy_from_slice(&counter.to_be_bytes());
    }
    bytes
}

/// Counters from a disk; `None` when they are not 12 bytes.
pub fn decode(bytes: &[u8]) -> Option<Counters> {
    let bytes: &[u8; 12] = bytes.try_into().ok()?;
    let mut counters = Counters::default();
    for (counter, chunk) in counters.0.iter_mut().zip(bytes.chunks_exact(4)) {
        let mut four = [0; 4];
        four.copy_from_slice(chunk);
        *counter = i32::from_be_bytes(four);
    }
    Some(counters)
}

/// What a copy that missed one change of an object gets added. On a directory the data counter asks for a full crawl.
pub(super) fn missed(class: Class) -> Counters {
    match class {
        Class::Data => Counters([1, 0, 0]),
        Class::Metadata => Counters([0, 1, 0]),
        Class::Entry => Counters([1, 0, 1]),
    }
}

/// What a copy that missed the birth of an object gets added, on the object itself.
pub(super) fn missed_birth(directory: Directory) -> Counters {
    match directory {
        Directory::Yes => Counters([1, 1, 1]),
        Directory::No => Counters([1, 1, 0]),
    }
}

/// Whether an object is a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Directory {
    Yes,
    No,
}

/// One delta for each key of the set: `counters` for the blamed, zeros for the others.
pub(super) fn deltas<'a>(
    keys: impl Iterator<Item = &'a XattrName>,
    blamed: CopySet,
    counters: Counters,
) -> Vec<Pending> {
    let delta = |(copy, key): (usize, &XattrName)| Pending {
        key: key.clone(),
        counters: if blamed.has(copy) { counters } else { Counters::default() },
    };
    keys.enumerate().map(delta).collect()
}

/// Whom marks accuse, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Accused([CopySet; 3]);

impl Accused {
    /// What one copy's marks say. Keys of no copy of the set (`trusted.afr.dirty`, a removed brick) accuse nobody.
    pub(super) fn read<'a>(keys: impl Iterator<Item = &'a XattrName> + Clone, marks: &[Pending]) -> Self {
        let mut accused = Self::default();
        for mark in marks {
            let Some(copy) = keys.clone().position(|key| *key == mark.key) else { continue };
            for (set, counter) in accused.0.iter_mut().zip(mark.counters.0) {
                if counter != 0 {
                    set.add(copy);
                }
            }
        }
        accused
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (set, more) in self.0.iter_mut().zip(other.0) {
            *set = set.or(more);
        }
    }

    pub(super) fn add(&mut self, class: Class, copies: CopySet) {
        let set = &mut self.0[class as usize];
        *set = set.or(copies);
    }

    pub(super) fn of(&self, class: Class) -> CopySet {
        self.0[class as usize]
    }

    pub(super) fn any(&self) -> CopySet {
        self.0[0].or(self.0[1]).or(self.0[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_three_big_endian_words() {
        let vectors: [(Counters, [u8; 12]); 4] = [
            (Counters([3, 1, 0]), [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0]),
            (Counters([1, 0, 0]), [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            (Counters([0, 0x0100_0000, 0]), [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            (Counters([-1, 0, i32::MIN]), [255, 255, 255, 255, 0, 0, 0, 0, 128, 0, 0, 0]),
        ];
        for (counters, bytes) in vectors {
            assert_eq!(encode(counters), bytes);
            assert_eq!(decode(&bytes), Some(counters));
        }
        assert_eq!(decode(&[0; 11]), None);
        assert_eq!(decode(&[0; 13]), None);
    }

    #[test]
    fn marks_accuse_by_class_and_foreign_keys_nobody() {
        let keys: Vec<_> = (0..3).map(|n| key(&format!("gv0-client-{n}")).expect("a key")).collect();
        let dirty = XattrName::new(&b"trusted.afr.dirty"[..]).expect("a key");
        let marks = [
            Pending { key: keys[2].clone(), counters: Counters([1, 0, -1]) },
            Pending { key: dirty, counters: Counters([1, 1, 1]) },
        ];
        let accused = Accused::read(keys.iter(), &marks);
        assert_eq!(accused.of(Class::Data), CopySet::only(2));
        assert_eq!(accused.of(Class::Metadata), CopySet::NONE);
        assert_eq!(accused.of(Class::Entry), CopySet::only(2));
    }

    #[test]
    fn a_blame_names_every_key_of_the_set() {
        let keys: Vec<_> = (0..3).map(|n| key(&format!("gv0-client-{n}")).expect("a key")).collect();
        let deltas = deltas(keys.iter(), CopySet::only(1), missed(Class::Entry));
        let counters: Vec<_> = deltas.iter().map(|d| d.counters.0).collect();
        assert_eq!(counters, [[0, 0, 0], [1, 0, 1], [0, 0, 0]]);
    }
}
