//! A set of numbers below a bound.

use std::ops::Range;

/// One bit per number. Memory that was never touched costs nothing.
#[derive(Debug, Clone)]
pub(super) struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    /// Makes an empty set of numbers below `len`.
    pub(super) fn new(len: usize) -> Bitmap {
        Bitmap { words: vec![0; len.div_ceil(64)] }
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.words[number as usize / 64] >> (number % 64) & 1 == 1
    }

    /// Adds a number. Returns true if it was not in the set.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = (&mut self.words[number as usize / 64], 1 << (number % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a number. Returns true if it was in the set.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let (word, bit) = (&mut self.words[number as usize / 64], 1 << (number % 64));
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Returns how many numbers of the range are in the set.
    pub(super) fn count(&self, range: Range<u32>) -> u32 {
        if range.is_empty() {
            return 0;
        }
        let (first, last) = (range.start as usize / 64, (range.end - 1) as usize / 64);
        let head = u64::MAX << (range.start % 64);
        let tail = u64::MAX >> (63 - (range.end - 1) % 64);
        if first == last {
            return (self.words[first] & head & tail).count_ones();
        }
        let between: u32 = self.words[first + 1..last].iter().map(|word| word.count_ones()).sum();
        (self.words[first] & head).count_ones() + between + (self.words[last] & tail).count_ones()
    }

    /// Returns the lowest number in the set.
    pub(super) fn first(&self) -> Option<u32> {
        let word = self.words.iter().position(|word| *word != 0)?;
        Some(word as u32 * 64 + self.words[word].trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(ops in prop::collection::vec((any::<bool>(), 0_u32..300), 0..200), a in 0_u32..301, b in 0_u32..301) {
            let (mut bitmap, mut set) = (Bitmap::new(300), BTreeSet::new());
            for (insert, number) in ops {
                match insert {
                    true => prop_assert_eq!(bitmap.insert(number), set.insert(number)),
                    false => prop_assert_eq!(bitmap.remove(number), set.remove(&number)),
                }
                prop_assert_eq!(bitmap.contains(number), set.contains(&number));
            }
            prop_assert_eq!(bitmap.first(), set.first().copied());
            let range = a.min(b)..a.max(b);
            prop_assert_eq!(bitmap.count(range.clone()) as usize, set.range(range).count());
        }
    }
}
