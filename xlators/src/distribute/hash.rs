//! Where a name falls: the 32-bit hash of GlusterFS, and the rule that lets rsync's temporary names fall like the final ones.
//!
//! A Davies-Meyer construction over a cipher like TEA. Bytes on disk depend on it: `tests/vectors/dht-vectors.tsv` pins it down.

const START: (u32, u32) = (0x9464_a485, 0x542e_1a94);
const TEA_DELTA: u32 = 0x9e37_79b9;
const ROUNDS_FULL_BLOCK: u32 = 6;
const ROUNDS_LAST_BLOCK: u32 = 10;

/// The hash that decides which subvolume a name belongs to.
pub fn place(name: &[u8]) -> u32 {
    raw(munged(name).unwrap_or(name))
}

/// What is hashed in place of a name like `.final.Xy12ab`, which rsync renames to `final` when it is complete.
///
/// The same as the first group of `^\.(.+)\.[^.]+$` over bytes.
pub fn munged(name: &[u8]) -> Option<&[u8]> {
    let last_dot = name.iter().rposition(|&byte| byte == b'.')?;
    let matches = name[0] == b'.' && last_dot >= 2 && last_dot + 1 < name.len();
    matches.then(|| &name[1..last_dot])
}

/// The hash of the bytes as they are.
pub fn raw(bytes: &[u8]) -> u32 {
    let blocks = bytes.chunks_exact(16);
    let rest = blocks.remainder();
    let state = blocks.fold(START, |state, block| mix(ROUNDS_FULL_BLOCK, full_block(block), state));
    let (high, low) = mix(ROUNDS_LAST_BLOCK, last_block(rest, bytes.len()), state);
    high ^ low
}

fn full_block(block: &[u8]) -> [u32; 4] {
    let mut key = [0; 4];
    for (word, bytes) in key.iter_mut().zip(block.chunks_exact(4)) {
        *word = little_endian(bytes);
    }
    key
}

/// The last block is never full. What it lacks is padding made of the length.
fn last_block(rest: &[u8], length: usize) -> [u32; 4] {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let half = length | length << 8;
    let mut key = [half | half << 16; 4];
    let words = rest.chunks_exact(4);
    let left_over = words.remainder();
    let full = words.len();
    for (word, bytes) in key.iter_mut().zip(words) {
        *word = little_endian(bytes);
    }
    for &byte in left_over {
        // GlusterFS reads a C `char`, which has a sign on x86: a byte from 0x80 on sets all the bits above it.
        key[full] = key[full] << 8 | i32::from(byte.cast_signed()).cast_unsigned();
    }
    key
}

fn little_endian(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn mix(rounds: u32, key: [u32; 4], (high, low): (u32, u32)) -> (u32, u32) {
    let half_round = |x: u32, sum: u32, k0: u32, k1: u32| {
        (x << 4).wrapping_add(k0) ^ x.wrapping_add(sum) ^ (x >> 5).wrapping_add(k1)
    };
    let (mut a, mut b, mut sum) = (high, low, 0_u32);
    for _ in 0..rounds {
        sum = sum.wrapping_add(TEA_DELTA);
        a = a.wrapping_add(half_round(b, sum, key[0], key[1]));
        b = b.wrapping_add(half_round(a, sum, key[2], key[3]));
    }
    (high.wrapping_add(a), low.wrapping_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescape(text: &str) -> Vec<u8> {
        let (mut bytes, mut chars) = (Vec::new(), text.bytes());
        while let Some(byte) = chars.next() {
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            assert_eq!(chars.next(), Some(b'x'));
            let digits = [chars.next().unwrap(), chars.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        }
        bytes
    }

    #[test]
    fn every_vector_of_glusterfs_is_met() {
        let table = include_str!("../../../tests/vectors/dht-vectors.tsv");
        let rows: Vec<_> = table.lines().filter(|line| !line.starts_with('#')).skip(1).collect();
        assert!(rows.len() > 40, "{}", rows.len());
        for row in rows {
            let cells: Vec<_> = row.split('\t').collect();
            let name = unescape(cells[0]);
            assert_eq!(name.len(), cells[1].parse::<usize>().unwrap(), "{row}");
            assert_eq!(raw(&name), u32::from_str_radix(cells[2], 16).unwrap(), "raw hash: {row}");
            assert_eq!(munged(&name).unwrap_or_default(), unescape(cells[3]), "munged: {row}");
            assert_eq!(place(&name), u32::from_str_radix(cells[4], 16).unwrap(), "placed hash: {row}");
        }
    }

    #[test]
    fn a_name_of_any_bytes_has_a_hash() {
        for length in 0..300 {
            place(&vec![b'.'; length]);
            place(&vec![0xff; length]);
        }
    }
}
