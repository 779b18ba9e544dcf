//! The groups of new inodes: a directory's, by a rule of its own beside the policy for data, and the order of the
//! search for a file's.

use moafs_vfs::named_enum;

use super::free_space::FreeSpace;
use crate::format::{Geometry, GroupNo, InodeNo};

/// The least size that a directory is expected to have with all its files, in bytes; a smaller
/// share of a group, if that is less.
const DIRECTORY_BYTES_MIN: u32 = 4 << 20;
const DIRECTORIES_PER_GROUP: u32 = 16;

/// The directory in which a new one is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentDirectory {
    /// The group of its inode.
    pub group: GroupNo,
    /// True if it is the root.
    pub is_root: bool,
    /// True if it is marked as a top directory, whose directories have little to do with one another.
    pub is_top: bool,
}

named_enum! {
    /// The rule for the groups of new directories: the values of `-o dirs=`.
    pub enum Directories ("rule for directories") {
        Spread = "spread", "Those of the root over all groups, as FFS does; deeper ones near their parents";
        Near = "near", "All near their parents: neighbouring directories share bitmaps and inode tables";
    }
}

impl Directories {
    /// Returns the group for a new directory. Directories of a top directory are spread under either rule.
    pub fn group(self, parent: ParentDirectory, free: &dyn FreeSpace) -> GroupNo {
        let spread = parent.is_top || (parent.is_root && self == Directories::Spread);
        directory_group(free, parent.group, spread)
    }
}

/// Returns the group for a new directory, where its files are to find space. Spread: the one
/// with the fewest directories. Near: the first, from the parent's on, that will still have a
/// third of the average of free blocks once all its new directories have their files: in an
/// overfull group files lie in pieces.
fn directory_group(free: &dyn FreeSpace, parent: GroupNo, spread: bool) -> GroupNo {
    let geo = free.geometry();
    let count = geo.groups;
    let average_inodes = (free.available_inodes() / u64::from(count)) as u32;
    let average_blocks = (free.available_blocks() / u64::from(count)) as u32;
    if spread {
        // A little less than the average will do: else the few groups with a little more would
        // take all directories.
        let (least_inodes, least_blocks) = (average_inodes / 8 * 7, average_blocks / 8 * 7);
        let roomy = geo.all_groups().filter(|group| {
            let counts = free.counts(*group);
            counts.free_inodes >= least_inodes.max(1) && counts.free_blocks >= least_blocks
        });
        return roomy.min_by_key(|group| free.counts(*group).directories).unwrap_or(parent);
    }
    let expected = directory_blocks(free);
    let room = |group: &GroupNo| {
        let counts = free.counts(*group);
        i64::from(counts.free_blocks) - (i64::from(counts.empty_new_directories) + 1) * i64::from(expected)
    };
    let least_inodes = average_inodes.saturating_sub(geo.inodes_per_group / 4).max(1);
    let near = || {
        let groups = (0..count).map(|at| GroupNo((u64::from(parent.0) + u64::from(at)) as u32 % count));
        groups.filter(|group| free.counts(*group).free_inodes >= least_inodes)
    };
    let roomiest = || near().min_by_key(|group| std::cmp::Reverse(room(group)));
    near().find(|group| room(group) >= i64::from(average_blocks / 3)).or_else(roomiest).unwrap_or(parent)
}

/// Returns the number of blocks that a new directory is expected to take with all its files.
fn directory_blocks(free: &dyn FreeSpace) -> u32 {
    let geo = free.geometry();
    let share = geo.blocks_per_group / DIRECTORIES_PER_GROUP;
    let least = (DIRECTORY_BYTES_MIN / geo.block_size).min(share).max(1);
    let average = free.blocks_per_directory().unwrap_or_default();
    average.min(geo.blocks_per_group.into()).max(least.into()) as u32
}

/// Returns the groups in the order in which a new file's inode looks for one: the directory's,
/// then by doubling steps, then all.
pub fn file_groups(geo: &Geometry, parent: GroupNo, parent_ino: InodeNo) -> impl Iterator<Item = GroupNo> + use<> {
    let count = geo.groups;
    let start = (parent.0.wrapping_add(parent_ino.0)) % count;
    let doubling = std::iter::successors(Some(1u32), |step| step.checked_mul(2))
        .take_while(move |step| *step < count)
        .map(move |step| (u64::from(start) + u64::from(step)) as u32 % count);
    let all = (0..count).map(move |at| (u64::from(parent.0) + u64::from(at)) as u32 % count);
    std::iter::once(parent.0).chain(doubling).chain(all).map(GroupNo)
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestVolume;
    use super::*;

    #[test]
    fn directories_of_the_root_are_spread_or_stay_and_those_of_a_top_directory_are_spread() {
        let mut volume = TestVolume::with_free(&[(100, 1500), (8300, 1500)]);
        volume.add_directories(GroupNo(0), 5);
        let group = |rule: Directories, is_root, is_top| {
            rule.group(ParentDirectory { group: GroupNo(0), is_root, is_top }, &volume).0
        };
        assert_eq!([Directories::Spread, Directories::Near].map(|rule| group(rule, true, false)), [1, 0]);
        assert_eq!([Directories::Spread, Directories::Near].map(|rule| group(rule, false, true)), [1, 1]);
        assert_eq!([Directories::Spread, Directories::Near].map(|rule| group(rule, false, false)), [0, 0]);
    }
}
