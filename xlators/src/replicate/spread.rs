//! Which copy of an object answers reads: Paul Hsieh's SuperFastHash of its gfid, so that clients spread over copies
//! and yet all ask the same one.

use crate::types::Gfid;

/// The copy that `read-hash-mode` 1 of GlusterFS picks among `copies`.
pub(super) fn read_child(gfid: Gfid, copies: usize) -> usize {
    super_fast_hash(gfid.as_bytes()) as usize % copies
}

/// The hash for inputs whose length is a multiple of four: 16-bit little-endian halves, the length as initial value.
fn super_fast_hash(bytes: &[u8; 16]) -> u32 {
    let mut hash = bytes.len() as u32;
    for quad in bytes.chunks_exact(4) {
        let low = u32::from(u16::from_le_bytes([quad[0], quad[1]]));
        let high = u32::from(u16::from_le_bytes([quad[2], quad[3]]));
        hash = hash.wrapping_add(low);
        hash = hash << 16 ^ high << 11 ^ hash;
        hash = hash.wrapping_add(hash >> 11);
    }
    hash ^= hash << 3;
    hash = hash.wrapping_add(hash >> 5);
    hash ^= hash << 4;
    hash = hash.wrapping_add(hash >> 17);
    hash ^= hash << 25;
    hash.wrapping_add(hash >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_agree() {
        let vectors = [
            ("00000000-0000-0000-0000-000000000001", 0xfe51_3317, 1, 1),
            ("8f172274-628e-4993-b01e-402e13156ff7", 0x2660_9036, 0, 2),
            ("328459a8-ba70-4be5-a6c8-d622685c81af", 0xaed4_0b55, 1, 2),
            ("e93a691e-041e-44e6-b6fc-2d010096b3d1", 0x53a4_1e50, 0, 0),
            ("b192e00b-ca59-4d02-ab76-4f2b5ca7cdcb", 0x9b46_9353, 1, 2),
            ("59ffc4d1-2b66-44d5-8003-0ec5c59c2eb4", 0xa759_3913, 1, 2),
            ("f4f6bfd3-88a3-4f0c-a998-d850b9766800", 0x9a4f_3aba, 0, 0),
            ("ffffffff-ffff-ffff-ffff-ffffffffffff", 0x1919_323f, 1, 1),
        ];
        for (text, hash, of_two, of_three) in vectors {
            let gfid: Gfid = text.parse().expect("a gfid");
            assert_eq!(super_fast_hash(gfid.as_bytes()), hash, "{text}");
            assert_eq!((read_child(gfid, 2), read_child(gfid, 3)), (of_two, of_three), "{text}");
        }
    }
}
