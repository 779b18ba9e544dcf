//! Packs blocks that will not change soon: their lines of zeros are left out.
//!
//! Most of a small file's inode is zeros; 10 % or less of the block has contents. Kept whole, the
//! inodes of small files would take half of the memory that there is for the files themselves.

use std::sync::Arc;

use moafs_disk::Buf;

use super::convert::copy_of;
use crate::format::BLOCK;

/// Bytes of a line; a block has as many lines as a mark has bits.
const LINE: usize = 64;
const _: () = assert!(BLOCK == LINE * u64::BITS as usize);
/// A block with more lines that are not zero stays whole: packing would save little, and a look at
/// the block would cost a copy.
const LINES_MAX: u32 = 32;

/// A block's lines that are not zero. A copy shares them.
#[derive(Clone)]
pub(super) struct Packed {
    /// A bit for each line: set if the line is kept.
    marks: u64,
    lines: Arc<[u8]>,
}

impl Packed {
    fn of(block: &[u8]) -> Option<Packed> {
        let (lines, _) = block.as_chunks::<LINE>();
        let marks = lines.iter().enumerate().fold(0, |marks, (at, line)| marks | u64::from(!is_zero(line)) << at);
        if marks.count_ones() > LINES_MAX {
            return None;
        }
        let mut kept = Vec::with_capacity(marks.count_ones() as usize * LINE);
        marked(marks).for_each(|at| kept.extend_from_slice(&lines[at]));
        Some(Packed { marks, lines: kept.into() })
    }

    fn unpack(&self) -> Buf {
        let mut block = Buf::zeroed(BLOCK);
        self.write_into(&mut block);
        block
    }

    /// Writes the lines into a block of zeros.
    fn write_into(&self, block: &mut [u8]) {
        for (at, line) in marked(self.marks).zip(self.lines.chunks_exact(LINE)) {
            block[at * LINE..][..LINE].copy_from_slice(line);
        }
    }
}

/// Returns the bits that are set, ascending.
fn marked(mut marks: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (marks != 0).then(|| marks.trailing_zeros() as usize)?;
        marks &= marks - 1;
        Some(at)
    })
}

fn is_zero(line: &[u8; LINE]) -> bool {
    line.iter().fold(0, |all, byte| all | byte) == 0
}

/// The bytes of a block in memory.
pub(super) enum Contents {
    Whole(Buf),
    Packed(Packed),
}

impl Contents {
    /// Returns the contents for a block that will not change soon.
    pub(super) fn at_rest(block: Buf) -> Contents {
        Packed::of(&block).map_or(Contents::Whole(block), Contents::Packed)
    }

    /// Returns the bytes of memory that the contents take.
    pub(super) fn memory(&self) -> usize {
        match self {
            Contents::Whole(_) => BLOCK,
            Contents::Packed(packed) => packed.lines.len(),
        }
    }

    pub(super) fn view<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Contents::Whole(block) => look(block),
            Contents::Packed(packed) => {
                let mut block = [0; BLOCK];
                packed.write_into(&mut block);
                look(&block)
            }
        }
    }

    /// Returns the first line: for a look at the most frequently used fields of an inode, without a
    /// copy.
    pub(super) fn head(&self) -> &[u8] {
        match self {
            Contents::Whole(block) => &block[..LINE],
            Contents::Packed(packed) if packed.marks & 1 == 1 => &packed.lines[..LINE],
            Contents::Packed(_) => &[0; LINE],
        }
    }

    pub(super) fn is_packed(&self) -> bool {
        matches!(self, Contents::Packed(_))
    }

    /// Returns the whole block, to be changed.
    pub(super) fn whole(&mut self) -> &mut Buf {
        if let Contents::Packed(packed) = self {
            *self = Contents::Whole(packed.unpack());
        }
        match self {
            Contents::Whole(block) => block,
            Contents::Packed(_) => unreachable!("it was made whole"),
        }
    }

    /// Packs the contents: the block will not change soon.
    pub(super) fn rest(&mut self) {
        if let Contents::Whole(block) = self
            && let Some(packed) = Packed::of(block)
        {
            *self = Contents::Packed(packed);
        }
    }

    /// Returns a copy of the contents; what stays is packed.
    pub(super) fn leave(&mut self) -> Contents {
        self.rest();
        match self {
            Contents::Whole(block) => Contents::Whole(copy_of(block)),
            Contents::Packed(packed) => Contents::Packed(packed.clone()),
        }
    }

    /// Returns a copy of the contents as a block.
    pub(super) fn to_block(&self) -> Buf {
        match self {
            Contents::Whole(block) => copy_of(block),
            Contents::Packed(packed) => packed.unpack(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_file_s_inode_takes_a_tenth_of_a_block() {
        let mut block = Buf::zeroed(BLOCK);
        block[..100].fill(1);
        block[360..404].fill(2);
        block[4072..].fill(3);
        assert_eq!(Contents::at_rest(block).memory(), 5 * LINE);
    }

    proptest! {
        #[test]
        fn blocks_come_back_as_they_were(
            pokes in prop::collection::vec((0..BLOCK, any::<u8>()), 0..200), change in (0..BLOCK, any::<u8>()),
        ) {
            let mut block = Buf::zeroed(BLOCK);
            pokes.iter().for_each(|(at, byte)| block[*at] = *byte);
            let mut expected = block.to_vec();
            let mut contents = Contents::at_rest(block);
            prop_assert!(contents.view(|bytes| bytes == &expected[..]));
            prop_assert_eq!(contents.head(), &expected[..LINE]);
            contents.whole()[change.0] = change.1;
            expected[change.0] = change.1;
            prop_assert!(contents.leave().to_block()[..] == expected[..]);
            prop_assert!(contents.view(|bytes| bytes == &expected[..]));
        }
    }
}
