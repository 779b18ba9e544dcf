//! The segment information table (section 4): the valid blocks of each segment, and the log that
//! wrote it.
//!
//! Like the NAT, each block of the table has two places, and entries in the checkpoint's journal are newer.

use super::{Damage, Log, SEGMENT_BLOCKS, Segno, Structure, put_u16, put_u64, u16_at, u64_at};

/// Entries in a block of the table.
pub const SIT_PER_BLOCK: usize = 55;
/// Bytes of an entry.
pub(crate) const SIT_ENTRY_BYTES: usize = 74;
/// The low bits of an entry's first word count valid blocks; the segment's type is above them.
const COUNT_BITS: u32 = 10;
const COUNT_MASK: u16 = (1 << COUNT_BITS) - 1;

const WORDS: usize = SEGMENT_BLOCKS / 64;

/// One bit for each block of a segment: set if the block is valid.
///
/// Words are kept so that block 0 is the highest bit of the first, as on the volume (bytes in order, highest bit
/// first): then scanning for a block is counting leading zeros.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct ValidMap([u64; WORDS]);

impl ValidMap {
    /// No block is valid.
    pub const EMPTY: ValidMap = ValidMap([0; WORDS]);

    /// True if block `offset` of the segment is valid; false beyond the segment.
    pub fn get(&self, offset: usize) -> bool {
        self.0.get(offset / 64).is_some_and(|word| word & bit(offset) != 0)
    }

    /// Makes block `offset` (below 512) valid.
    pub fn set(&mut self, offset: usize) {
        self.0[offset / 64] |= bit(offset);
    }

    /// Makes block `offset` (below 512) invalid.
    pub fn clear(&mut self, offset: usize) {
        self.0[offset / 64] &= !bit(offset);
    }

    /// Returns the number of valid blocks.
    pub fn count(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones()).sum::<u32>() as u16
    }

    /// True if no block is valid.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Returns the valid blocks, ascending.
    pub fn iter_set(&self) -> impl Iterator<Item = usize> + use<> {
        let map = *self;
        std::iter::successors(map.next_set(0), move |last| map.next_set(last + 1))
    }

    /// Returns the first valid block at `from` or after it.
    pub fn next_set(&self, from: usize) -> Option<usize> {
        self.next(from, 0)
    }

    /// Returns the first invalid block at `from` or after it.
    pub fn next_clear(&self, from: usize) -> Option<usize> {
        self.next(from, u64::MAX)
    }

    /// Returns the blocks that are valid in either map.
    pub fn union(&self, other: &ValidMap) -> ValidMap {
        ValidMap(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns the first bit from `from` that is set after every word was combined with `flip`.
    fn next(&self, from: usize, flip: u64) -> Option<usize> {
        let first = from / 64;
        let beyond = u64::MAX >> (from % 64);
        let masks = std::iter::once(beyond).chain(std::iter::repeat(u64::MAX));
        let words = self.0.iter().enumerate().skip(first).zip(masks);
        let mut found = words.map(|((at, word), mask)| (at, (word ^ flip) & mask)).filter(|(_, word)| *word != 0);
        found.next().map(|(at, word)| at * 64 + word.leading_zeros() as usize)
    }

    fn decode(bytes: &[u8]) -> ValidMap {
        ValidMap(std::array::from_fn(|word| u64_at(bytes, word * 8).swap_bytes()))
    }

    fn encode(&self, bytes: &mut [u8]) {
        for (word, value) in self.0.iter().enumerate() {
            put_u64(bytes, word * 8, value.swap_bytes());
        }
    }
}

impl FromIterator<usize> for ValidMap {
    fn from_iter<I: IntoIterator<Item = usize>>(offsets: I) -> ValidMap {
        let mut map = ValidMap::EMPTY;
        offsets.into_iter().for_each(|offset| map.set(offset));
        map
    }
}

impl std::fmt::Debug for ValidMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter_set()).finish()
    }
}

fn bit(offset: usize) -> u64 {
    1 << (63 - offset % 64)
}

/// The entry of a segment in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SitEntry {
    /// The log that wrote it (the segment's type).
    pub log: Log,
    /// The valid blocks of the segment.
    pub map: ValidMap,
    /// The time of the last write, in seconds on the checkpoint's clock of elapsed time.
    pub mtime: u64,
}

impl SitEntry {
    pub(crate) fn decode(bytes: &[u8], segno: Segno) -> Result<SitEntry, Damage> {
        let damage = |problem: String| Structure::Sit(segno).damage(None, problem);
        let word = u16_at(bytes, 0);
        let (kind, count) = (word >> COUNT_BITS, word & COUNT_MASK);
        let log = Log::from_type(kind).ok_or_else(|| damage(format!("{kind} is no segment type")))?;
        let map = ValidMap::decode(&bytes[2..]);
        if map.count() != count {
            return Err(damage(format!("it counts {count} valid blocks, but its map has {}", map.count())));
        }
        Ok(SitEntry { log, map, mtime: u64_at(bytes, 66) })
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        put_u16(bytes, 0, (self.log as u16) << COUNT_BITS | self.map.count());
        self.map.encode(&mut bytes[2..]);
        put_u64(bytes, 66, self.mtime);
    }
}

/// Decodes entry `index` (below [`SIT_PER_BLOCK`]) of a block of the table, which is that of
/// segment `segno`.
///
/// # Errors
/// If the type is not valid, or the count is not that of the map.
pub fn entry(block: &[u8], index: usize, segno: Segno) -> Result<SitEntry, Damage> {
    SitEntry::decode(&block[span(index)], segno)
}

/// Returns the map of entry `index` (below [`SIT_PER_BLOCK`]) of a block of the table; the rest of
/// the entry may be wrong.
pub fn entry_map(block: &[u8], index: usize) -> ValidMap {
    ValidMap::decode(&block[span(index)][2..])
}

/// Stores entry `index` (below [`SIT_PER_BLOCK`]) of a block of the table.
pub fn set_entry(block: &mut [u8], index: usize, entry: &SitEntry) {
    entry.encode(&mut block[span(index)]);
}

fn span(index: usize) -> std::ops::Range<usize> {
    assert!(index < SIT_PER_BLOCK, "a SIT block has no entry {index}");
    index * SIT_ENTRY_BYTES..(index + 1) * SIT_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BLOCK;
    use super::*;

    fn map_of(bits: &[bool]) -> ValidMap {
        bits.iter().enumerate().filter(|(_, set)| **set).map(|(offset, _)| offset).collect()
    }

    proptest! {
        #[test]
        fn a_map_answers_like_a_list_of_bits(
            bits in prop::collection::vec(prop::bool::weighted(0.1), SEGMENT_BLOCKS),
            other in prop::collection::vec(any::<bool>(), SEGMENT_BLOCKS),
            invert: bool,
            from in 0..SEGMENT_BLOCKS + 70,
        ) {
            let bits: Vec<bool> = bits.into_iter().map(|bit| bit != invert).collect();
            let map = map_of(&bits);
            let after = |wanted: bool| (from..SEGMENT_BLOCKS).find(|at| bits[*at] == wanted);
            prop_assert_eq!(map.next_set(from), after(true));
            prop_assert_eq!(map.next_clear(from), after(false));
            prop_assert_eq!(usize::from(map.count()), bits.iter().filter(|bit| **bit).count());
            prop_assert_eq!(map.is_empty(), !bits.contains(&true));
            prop_assert_eq!(map.get(from), bits.get(from).copied().unwrap_or(false));
            prop_assert!(map.iter_set().eq((0..SEGMENT_BLOCKS).filter(|at| bits[*at])));
            let either: Vec<bool> = bits.iter().zip(&other).map(|(a, b)| *a || *b).collect();
            prop_assert_eq!(map.union(&map_of(&other)), map_of(&either));
        }

        #[test]
        fn an_entry_comes_back(bits in prop::collection::vec(any::<bool>(), SEGMENT_BLOCKS), kind in 0u16..6,
                               mtime: u64, index in 0..SIT_PER_BLOCK) {
            let log = Log::from_type(kind).expect("one of six");
            let some = SitEntry { log, map: map_of(&bits), mtime };
            let mut block = vec![0; BLOCK];
            set_entry(&mut block, index, &some);
            prop_assert_eq!(entry(&block, index, Segno(0)), Ok(some));
        }

        #[test]
        fn any_bytes_are_an_entry_or_damage(bytes in prop::collection::vec(any::<u8>(), SIT_ENTRY_BYTES)) {
            if let Ok(entry) = SitEntry::decode(&bytes, Segno(1)) {
                let mut again = vec![0; SIT_ENTRY_BYTES];
                entry.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn the_highest_bit_of_a_byte_is_the_first_block() {
        let mut bytes = [0; SIT_ENTRY_BYTES];
        let map: ValidMap = [0, 9, 511].into_iter().collect();
        SitEntry { log: Log::HotNode, map, mtime: 0 }.encode(&mut bytes);
        assert_eq!(u16_at(&bytes, 0), 0xC03);
        assert_eq!((bytes[2], bytes[3], bytes[65]), (0x80, 0x40, 0x01));
    }

    #[test]
    fn wrong_counts_and_types_are_named() {
        let mut bytes = [0; SIT_ENTRY_BYTES];
        put_u16(&mut bytes, 0, 1);
        let error = SitEntry::decode(&bytes, Segno(9)).unwrap_err().to_string();
        assert!(error.contains("segment 9") && error.contains("counts 1"), "{error}");
        put_u16(&mut bytes, 0, 6 << COUNT_BITS);
        assert!(SitEntry::decode(&bytes, Segno(9)).unwrap_err().to_string().contains("6 is no segment type"));
    }
}
