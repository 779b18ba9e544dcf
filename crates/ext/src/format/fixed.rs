//! The blocks of the volume's own metadata, which never belong to a file.

use std::ops::Range;

use super::{Descriptor, Geometry, GroupNo, bitmap};

/// Makes the bitmap of a group whose bitmap was never written: nothing is in use but the volume's own metadata, which
/// is in the `fixed` ranges.
pub(crate) fn make_block_bitmap(geo: &Geometry, fixed: &[Range<u64>], group: GroupNo, map: &mut [u8]) {
    let own = geo.group_range(group);
    let cluster = |block: u64| ((block - own.start) / u64::from(geo.cluster_blocks)) as u32;
    map.fill(0);
    let first = fixed.partition_point(|range| range.end <= own.start);
    for range in fixed[first..].iter().take_while(|range| range.start < own.end) {
        let (start, end) = (range.start.max(own.start), range.end.min(own.end));
        bitmap::set_range(map, cluster(start)..cluster(end - 1) + 1);
    }
    bitmap::pad(map, geo.group_clusters(group));
}

/// Returns the blocks of the volume's own metadata, ascending: copies of the superblock and descriptors with their
/// reserve, bitmaps, inode tables.
pub(crate) fn fixed_ranges(geo: &Geometry, descriptors: &[Descriptor]) -> Vec<Range<u64>> {
    let mut ranges = Vec::with_capacity(descriptors.len() * 4);
    for (at, descriptor) in descriptors.iter().enumerate() {
        let group = GroupNo(at as u32);
        let start = geo.group_start(group).0;
        ranges.push(start..start + u64::from(geo.head_blocks(group)));
        ranges.push(descriptor.block_bitmap.0..descriptor.block_bitmap.0 + 1);
        ranges.push(descriptor.inode_bitmap.0..descriptor.inode_bitmap.0 + 1);
        ranges.push(descriptor.inode_table.0..descriptor.inode_table.0 + u64::from(geo.inode_table_blocks));
    }
    ranges.retain(|range| !range.is_empty());
    joined(ranges)
}

/// Returns the same blocks as ranges that are ascending and apart from one another.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let joins = next.start <= kept.end;
        if joins {
            kept.end = kept.end.max(next.end);
        }
        joins
    });
    ranges
}
