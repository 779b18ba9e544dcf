//! Bitmaps: bit `i` is bit `i % 8` of byte `i / 8`; 1 means used.
//!
//! Free space is searched one 64-bit word at a time. Every function takes the number of valid bits;
//! the rest of the block is padding and must be 1.

use std::ops::Range;

/// Returns true if `bit` is set.
pub fn test(map: &[u8], bit: u32) -> bool {
    map[bit as usize / 8] & 1 << (bit % 8) != 0
}

/// Sets `bit`; returns whether it was clear.
pub fn set(map: &mut [u8], bit: u32) -> bool {
    let byte = &mut map[bit as usize / 8];
    let was = *byte;
    *byte |= 1 << (bit % 8);
    was != *byte
}

/// Clears `bit`; returns whether it was set.
pub fn clear(map: &mut [u8], bit: u32) -> bool {
    let byte = &mut map[bit as usize / 8];
    let was = *byte;
    *byte &= !(1 << (bit % 8));
    was != *byte
}

/// Applies `mask` byte by byte over a range of bits.
fn for_each_mask(range: Range<u32>, mut apply: impl FnMut(usize, u8)) {
    let mut bit = range.start;
    while bit < range.end {
        let end = range.end.min((bit / 8 + 1) * 8);
        let width = end - bit;
        let mask = ((1u16 << width) - 1) << (bit % 8);
        apply(bit as usize / 8, mask as u8);
        bit = end;
    }
}

/// Sets every bit of a range.
pub fn set_range(map: &mut [u8], range: Range<u32>) {
    for_each_mask(range, |byte, mask| map[byte] |= mask);
}

/// Clears every bit of a range.
pub fn clear_range(map: &mut [u8], range: Range<u32>) {
    for_each_mask(range, |byte, mask| map[byte] &= !mask);
}

/// Returns true if every bit of a range is clear.
pub fn is_clear(map: &[u8], range: Range<u32>) -> bool {
    let mut clear = true;
    for_each_mask(range, |byte, mask| clear &= map[byte] & mask == 0);
    clear
}

/// Returns true if every bit of a range is set.
pub fn is_set(map: &[u8], range: Range<u32>) -> bool {
    let mut set = true;
    for_each_mask(range, |byte, mask| set &= map[byte] & mask == mask);
    set
}

/// Returns 64 bits from bit `64 * index` on; bits beyond the map are 1.
fn word(map: &[u8], index: usize) -> u64 {
    let start = index * 8;
    if let Some(chunk) = map.get(start..start + 8) {
        return u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    }
    let mut bytes = [0xFF; 8];
    if let Some(rest) = map.get(start..) {
        bytes[..rest.len()].copy_from_slice(rest);
    }
    u64::from_le_bytes(bytes)
}

/// Returns the first bit in `from..bits` whose word, mapped by `flip`, has a 1.
fn first_one(map: &[u8], from: u32, bits: u32, flip: u64) -> Option<u32> {
    if from >= bits {
        return None;
    }
    let mut index = from as usize / 64;
    let mut current = (word(map, index) ^ flip) & (!0 << (from % 64));
    loop {
        if current != 0 {
            let bit = index as u64 * 64 + u64::from(current.trailing_zeros());
            return (bit < u64::from(bits)).then_some(bit as u32);
        }
        index += 1;
        if index as u64 * 64 >= u64::from(bits) {
            return None;
        }
        current = word(map, index) ^ flip;
    }
}

/// Returns the first clear bit in `from..bits`.
pub fn first_zero(map: &[u8], from: u32, bits: u32) -> Option<u32> {
    first_one(map, from, bits, !0)
}

/// Returns the first set bit in `from..bits`.
pub fn first_set(map: &[u8], from: u32, bits: u32) -> Option<u32> {
    first_one(map, from, bits, 0)
}

/// Returns the runs of clear bits, ascending, in `from..bits`.
pub fn zero_runs(map: &[u8], from: u32, bits: u32) -> impl Iterator<Item = Range<u32>> + '_ {
    let mut next = from;
    std::iter::from_fn(move || {
        let start = first_zero(map, next, bits)?;
        let end = first_set(map, start, bits).unwrap_or(bits);
        next = end;
        Some(start..end)
    })
}

/// Returns the first run of at least `n` clear bits in `from..bits`.
pub fn first_zero_run(map: &[u8], from: u32, bits: u32, n: u32) -> Option<Range<u32>> {
    zero_runs(map, from, bits).find(|run| run.len() >= n as usize)
}

/// Returns the longest run of clear bits in `from..bits`; among equals the first.
pub fn longest_zero_run(map: &[u8], from: u32, bits: u32) -> Option<Range<u32>> {
    zero_runs(map, from, bits).reduce(|best, run| if run.len() > best.len() { run } else { best })
}

/// Returns the number of clear bits among the first `bits`.
pub fn count_zeros(map: &[u8], bits: u32) -> u32 {
    let whole = bits as usize / 64;
    let zeros: u32 = (0..whole).map(|i| word(map, i).count_zeros()).sum();
    let rest = bits % 64;
    if rest == 0 {
        return zeros;
    }
    zeros + (word(map, whole) | !0 << rest).count_zeros()
}

/// Sets every bit from `bits` to the end of the block.
pub fn pad(map: &mut [u8], bits: u32) {
    let end = map.len() as u32 * 8;
    set_range(map, bits..end);
}

/// Returns true if every bit from `bits` to the end of the block is set.
pub fn is_padded(map: &[u8], bits: u32) -> bool {
    is_set(map, bits..map.len() as u32 * 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_are_least_significant_first() {
        let mut map = [0u8; 2];
        assert!(set(&mut map, 9));
        assert!(!set(&mut map, 9));
        assert_eq!(map, [0, 2]);
        assert!(test(&map, 9));
        assert!(clear(&mut map, 9));
        assert!(!clear(&mut map, 9));
    }

    #[test]
    fn runs_of_a_full_and_of_an_empty_map() {
        assert_eq!(longest_zero_run(&[0xFF; 16], 0, 128), None);
        assert_eq!(longest_zero_run(&[0; 16], 0, 128), Some(0..128));
        assert_eq!(longest_zero_run(&[0; 16], 5, 99), Some(5..99));
        assert_eq!(first_zero_run(&[0; 16], 5, 99, 94), Some(5..99));
        assert_eq!(first_zero_run(&[0; 16], 5, 99, 95), None);
    }

    fn naive_runs(map: &[u8], from: u32, bits: u32) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for bit in (from..bits).filter(|&bit| !test(map, bit)) {
            match runs.last_mut() {
                Some(run) if run.end == bit => run.end += 1,
                _ => runs.push(bit..bit + 1),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn word_search_agrees_with_bit_search(
            // Bytes of all ones and all zeros make long runs likely.
            map in prop::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 1..40),
            from in 0u32..320, bits in 0u32..320,
        ) {
            let bits = bits.min(map.len() as u32 * 8);
            let runs = naive_runs(&map, from, bits);
            prop_assert_eq!(zero_runs(&map, from, bits).collect::<Vec<_>>(), runs.clone());
            prop_assert_eq!(first_zero(&map, from, bits), runs.first().map(|r| r.start));
            let whole = naive_runs(&map, 0, bits);
            prop_assert_eq!(count_zeros(&map, bits), whole.iter().map(|r| r.len() as u32).sum::<u32>());
        }

        #[test]
        fn ranges_agree_with_single_bits(start in 0u32..200, len in 0u32..120, fill in any::<u8>()) {
            let end = (start + len).min(256);
            let range = start.min(end)..end;
            let mut by_range = [fill; 32];
            let mut by_bit = by_range;
            set_range(&mut by_range, range.clone());
            range.clone().for_each(|bit| { set(&mut by_bit, bit); });
            prop_assert_eq!(by_range, by_bit);
            prop_assert!(is_set(&by_range, range.clone()));
            clear_range(&mut by_range, range.clone());
            range.clone().for_each(|bit| { clear(&mut by_bit, bit); });
            prop_assert_eq!(by_range, by_bit);
            prop_assert!(is_clear(&by_range, range));
            pad(&mut by_range, start);
            prop_assert!(is_padded(&by_range, start));
        }
    }
}
