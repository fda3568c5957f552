//! The canary's hash: 64 bits over words of 32, each mixed with its place in the page, and added up.
//!
//! Addition makes it the same in any order of the words, so a kernel needs no order of its threads to give these bits, and
//! makes a page's hash the sum of its rows' hashes. A change of one word is always seen: [`mix`] is a bijection of word and
//! place. Changes of several words cancel with probability 2^-64 each time.

/// Bytes of one hashed word.
pub const WORD: usize = 4;

/// The share of one word at word index `at` of its page (the finaliser of SplitMix64).
#[must_use]
pub const fn mix(word: u32, at: u32) -> u64 {
    let z = (at as u64) << 32 | word as u64;
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The hash of `bytes`, whose first word is word `first` of its page. Bytes beyond the last whole word do not count:
/// [`Pools::of`](super::Pools::of) refuses pages that have some.
#[must_use]
pub fn hash(bytes: &[u8], first: u32) -> u64 {
    let words = bytes.chunks_exact(WORD).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    (first..).zip(words).fold(0, |sum: u64, (at, word)| sum.wrapping_add(mix(word, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (head, tail) = bytes.split_at(100);
        assert_eq!(hash(head, 0).wrapping_add(hash(tail, 25)), hash(&bytes, 0));
    }

    /// A swap of equal-sized rows, one flipped bit anywhere, and zeros at another place.
    #[test]
    fn what_a_page_suffers_is_seen() {
        let page: Vec<u8> = (0..512u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let clean = hash(&page, 0);
        for bit in 0..page.len() * 8 {
            let mut broken = page.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(hash(&broken, 0), clean, "bit {bit}");
        }
        let mut swapped = page.clone();
        swapped.rotate_left(64);
        assert_ne!(hash(&swapped, 0), clean);
        assert_ne!(hash(&[0; 8], 0), hash(&[0; 8], 1));
    }

    #[test]
    fn the_bits_are_fixed() {
        assert_eq!(mix(0, 0), 0);
        // The first output of SplitMix64 seeded with 0 mixes its increment.
        assert_eq!(mix(0x7f4a_7c15, 0x9e37_79b9), 0xe220_a839_7b1d_cdaf);
    }
}
