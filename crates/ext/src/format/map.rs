//! The block map: the way from a file's block number to the pointer that maps it.
//!
//! An inode has 12 direct pointers, then one to a single, one to a double and one to a triple
//! indirect block. Indirect blocks are arrays of [`Geometry::apb`] pointers; 0 is a hole, at any
//! level.

use super::Geometry;

/// Number of pointers in an inode.
pub const POINTERS: usize = 15;
/// Direct pointers in an inode.
pub const DIRECT: u64 = 12;

/// The way to a pointer: `i_block[indices[0]]`, then an entry of each indirect block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    indices: [u32; 4],
    depth: u8,
}

impl Path {
    /// Returns the way to file block `lbn`; `None` beyond triple indirect.
    pub fn of(lbn: u64, apb: u32) -> Option<Path> {
        if lbn < DIRECT {
            return Some(Path { indices: [lbn as u32, 0, 0, 0], depth: 0 });
        }
        let mut rest = lbn - DIRECT;
        for depth in 1..=3u8 {
            let reach = span(depth, apb);
            if rest < reach {
                let digit = |level: u8| match depth.checked_sub(level) {
                    Some(below) => (rest / span(below, apb) % u64::from(apb)) as u32,
                    None => 0,
                };
                let indices = [11 + u32::from(depth), digit(1), digit(2), digit(3)];
                return Some(Path { indices, depth });
            }
            rest -= reach;
        }
        None
    }

    /// Returns the number of indirect blocks on the way: 0 to 3.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns the index in `i_block`, then one in each indirect block.
    pub fn indices(&self) -> &[u32] {
        &self.indices[..=usize::from(self.depth)]
    }
}

/// Returns the number of file blocks that a pointer maps, if it stands `level` levels above the
/// data (0: itself data).
pub fn span(level: u8, apb: u32) -> u64 {
    u64::from(apb).pow(level.into())
}

/// Returns the level of indirection that `i_block[slot]` begins: 0 for the direct ones.
pub fn level_of_slot(slot: usize) -> u8 {
    slot.saturating_sub(11) as u8
}

/// Returns the first file block that `i_block[slot]` maps.
pub fn first_lbn_of_slot(slot: usize, apb: u32) -> u64 {
    match slot {
        0..=12 => slot as u64,
        13 => DIRECT + span(1, apb),
        _ => DIRECT + span(1, apb) + span(2, apb),
    }
}

/// Returns the number of file blocks that the map reaches.
pub fn lbn_end(apb: u32) -> u64 {
    DIRECT + span(1, apb) + span(2, apb) + span(3, apb)
}

/// Returns the number of indirect blocks of a file that maps each of its first `blocks` blocks.
pub fn indirect_blocks(blocks: u64, apb: u32) -> u64 {
    let (one, two) = (span(1, apb), span(2, apb));
    let mut rest = blocks.saturating_sub(DIRECT);
    let single = rest.min(one);
    rest -= single;
    let double = rest.min(two);
    rest -= double;
    let mut count = u64::from(single > 0);
    if double > 0 {
        count += 1 + double.div_ceil(one);
    }
    if rest > 0 {
        count += 1 + rest.div_ceil(two) + rest.div_ceil(one);
    }
    count
}

/// Returns the size of the longest file in bytes: limited by the map, and by the 32 bits of
/// `i_blocks` (48 with huge_file).
pub fn size_max(geo: &Geometry) -> u64 {
    lbn_end(geo.apb).min(countable_blocks(geo)).saturating_mul(geo.block_size.into())
}

/// Returns the size in bytes up to which files are written: `i_blocks` has room for their attribute block as well.
pub fn written_bytes_max(geo: &Geometry) -> u64 {
    lbn_end(geo.apb).min(countable_blocks(geo) - 1).saturating_mul(geo.block_size.into())
}

/// Returns the largest value of `i_blocks`.
pub fn count_max(geo: &Geometry) -> u64 {
    let count_bits = if geo.huge_file { 48 } else { 32 };
    (1 << count_bits) - 1
}

/// Returns the largest number of data blocks that `i_blocks` can count together with their indirect blocks.
fn countable_blocks(geo: &Geometry) -> u64 {
    let countable = count_max(geo) / u64::from(geo.sectors_per_block());
    countable - indirect_blocks(countable.min(lbn_end(geo.apb)), geo.apb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_at_the_borders_of_levels() {
        let path = |lbn| Path::of(lbn, 256).map(|p| p.indices().to_vec());
        assert_eq!(path(11), Some(vec![11]));
        assert_eq!(path(12), Some(vec![12, 0]));
        assert_eq!(path(12 + 255), Some(vec![12, 255]));
        assert_eq!(path(12 + 256), Some(vec![13, 0, 0]));
        assert_eq!(path(12 + 256 + 65535), Some(vec![13, 255, 255]));
        assert_eq!(path(12 + 256 + 65536), Some(vec![14, 0, 0, 0]));
        assert_eq!(path(lbn_end(256) - 1), Some(vec![14, 255, 255, 255]));
        assert_eq!(path(lbn_end(256)), None);
        assert_eq!(path(u64::MAX), None);
    }

    #[test]
    fn indirect_blocks_are_counted_exactly() {
        assert_eq!(indirect_blocks(12, 256), 0);
        assert_eq!(indirect_blocks(13, 256), 1);
        assert_eq!(indirect_blocks(12 + 256 + 1, 256), 3);
        assert_eq!(indirect_blocks(12 + 256 + 65536 + 1, 256), 1 + 257 + 3);
    }

    proptest! {
        #[test]
        fn a_path_leads_back_to_its_block(lbn in 0..lbn_end(16384), apb in prop::sample::select(vec![256u32, 1024, 16384])) {
            let Some(path) = Path::of(lbn, apb) else {
                prop_assert!(lbn >= lbn_end(apb));
                return Ok(());
            };
            let slot = path.indices()[0] as usize;
            let inside = path.indices()[1..].iter().fold(0, |n, &i| n * u64::from(apb) + u64::from(i));
            prop_assert_eq!(level_of_slot(slot), path.depth());
            prop_assert_eq!(first_lbn_of_slot(slot, apb) + inside, lbn);
        }
    }
}
