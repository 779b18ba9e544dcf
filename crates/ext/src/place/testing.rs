//! A hand-made volume for the tests of policies: free blocks, files and dirty lists are what a test says.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyFile, DirtyView, PlannedWrite, SMALL_BLOCKS_MAX, WritebackReason};
use moafs_vfs::types::{BlockAddr, BlockRun, Ino, Lbn, LbnRange, Mapping};

use super::windows::Window;
use super::{Files, FreeSpace, PlacementPolicy};
use crate::alloc::{Counts, FreeMap};
use crate::format::superblock::tests::sample;
use crate::format::{BlockNo, Geometry, GroupNo, bitmap};

/// The maximum transfer of Lee, Ahn, Oh (2008), in blocks.
pub(super) const TRANSFER_BLOCKS: u32 = 8;
/// A directory of group 0 and one of group 1.
pub(super) const HOMES: [Ino; 2] = [Ino(20), Ino(600)];

/// Two groups in which only some blocks are free.
pub(super) struct TestVolume {
    geo: Geometry,
    maps: Vec<FreeMap>,
    windows: BTreeMap<Ino, Window>,
    directories: BTreeMap<GroupNo, u32>,
}

impl TestVolume {
    /// Makes a volume on which only `runs` are free, each given as its first block and its length.
    pub(super) fn with_free(runs: &[(u64, u32)]) -> TestVolume {
        let geo = Geometry::of(&sample(), u64::MAX).unwrap();
        let map = |group| {
            let range: Range<u64> = geo.group_range(group);
            let mut used = vec![0xFF; geo.block_bytes()];
            let here = runs.iter().filter(|(start, _)| range.contains(start));
            for (start, len) in here {
                let bit = (start - range.start) as u32;
                bitmap::clear_range(&mut used, bit..bit + len);
            }
            let free = bitmap::count_zeros(&used, geo.group_blocks(group));
            FreeMap::new(range, used, free, 0, 0)
        };
        let maps = geo.all_groups().map(map).collect();
        TestVolume { geo, maps, windows: BTreeMap::new(), directories: BTreeMap::new() }
    }

    /// Adds directories without files to a group.
    pub(super) fn add_directories(&mut self, group: GroupNo, count: u32) {
        *self.directories.entry(group).or_default() += count;
    }

    pub(super) fn group_of(&self, write: &PlannedWrite) -> GroupNo {
        self.geo.group_of_block(BlockNo(write.to.start.0)).expect("inside the volume")
    }

    /// Returns how often the head moves to another group.
    pub(super) fn seeks(&self, writes: &[PlannedWrite]) -> usize {
        writes.windows(2).filter(|pair| self.group_of(&pair[0]) != self.group_of(&pair[1])).count()
    }

    /// Writes one dirty file after another as the cache would replace them: claims the space of each plan, as the
    /// engine does. Returns the planned writes, in order.
    pub(super) fn replace(&mut self, policy: &impl PlacementPolicy, mut dirty: Dirty) -> Vec<PlannedWrite> {
        let mut writes = Vec::new();
        while let Some(first) = dirty.0.first().map(|file| file.ino) {
            let plan = policy.plan(WritebackReason::Evict(first, Lbn(0)), &dirty, &Maps, self).expect("a plan");
            let again = policy.plan(WritebackReason::Evict(first, Lbn(0)), &dirty, &Maps, self).expect("a plan");
            assert_eq!(format!("{plan:?}"), format!("{again:?}"), "planning has changed something");
            let gone: Vec<Ino> = plan.writes.iter().flat_map(|write| write.from.iter().map(|from| from.ino)).collect();
            assert!(gone.contains(&first), "{plan:?}");
            dirty.0.retain(|file| !gone.contains(&file.ino));
            for claim in &plan.space.claims {
                let map = &mut self.maps[claim.group.0 as usize];
                assert!(map.is_free(claim.run));
                map.take(claim.run, crate::alloc::Fit::At(0));
            }
            assert!(plan.space.is_of(&plan.writes), "what is not filled is not claimed: {plan:?}");
            for (group, block) in plan.space.rotors {
                self.maps[group.0 as usize].set_rotor(block);
            }
            for change in plan.space.windows {
                self.windows.entry(change.directory).or_default().change(change.placed, change.rest);
            }
            writes.extend(plan.writes);
        }
        writes
    }
}

impl FreeSpace for TestVolume {
    fn geometry(&self) -> &Geometry {
        &self.geo
    }

    fn transfer_blocks(&self) -> u32 {
        TRANSFER_BLOCKS
    }

    fn counts(&self, group: GroupNo) -> Counts {
        let free_blocks = self.maps[group.0 as usize].free_blocks();
        Counts {
            free_blocks,
            free_inodes: 100,
            directories: self.directories.get(&group).copied().unwrap_or(0),
            ..Counts::default()
        }
    }

    fn free_map(&self, group: GroupNo) -> Result<Option<FreeMap>> {
        Ok(Some(self.maps[group.0 as usize].clone()))
    }

    fn is_free(&self, run: BlockRun) -> Result<bool> {
        let group = self.geo.group_of_block(BlockNo(run.start.0));
        Ok(group.is_some_and(|group| self.maps[group.0 as usize].is_free(run)))
    }

    fn rotor(&self, group: GroupNo) -> u64 {
        self.maps[group.0 as usize].rotor()
    }

    fn zone(&self, group: GroupNo) -> Range<u64> {
        let start = self.geo.group_start(group).0;
        start..start
    }

    fn available_blocks(&self) -> u64 {
        self.maps.iter().map(|map| u64::from(map.free_blocks())).sum()
    }

    fn spare_blocks(&self) -> u64 {
        self.available_blocks()
    }

    fn available_inodes(&self) -> u64 {
        200
    }

    fn blocks_per_directory(&self) -> Option<u64> {
        None
    }

    fn window(&self, directory: Ino) -> Window {
        self.windows.get(&directory).copied().unwrap_or_default()
    }
}

/// A file: the address of each block that has one.
pub(super) struct TestFile {
    group: GroupNo,
    places: Vec<Option<u64>>,
}

/// The maps of the test files.
struct Maps;

impl Files<TestFile> for Maps {
    fn group(&self, file: &TestFile) -> GroupNo {
        file.group
    }

    fn map(&self, file: &TestFile, at: Lbn, max: u32) -> Result<Mapping> {
        let place = |lbn: u64| file.places.get(lbn as usize).copied().flatten();
        let Some(start) = place(at.0) else {
            let len = (0..u64::from(max)).take_while(|more| place(at.0 + more).is_none()).count() as u32;
            return Ok(Mapping::Hole { len });
        };
        let len = (0..u64::from(max)).take_while(|more| place(at.0 + more) == Some(start + more)).count() as u32;
        Ok(Mapping::Run(BlockRun { start: BlockAddr(start), len }))
    }
}

/// Dirty files, in the order in which they became dirty.
#[derive(Default)]
pub(super) struct Dirty(Vec<DirtyFile<TestFile>>);

impl Dirty {
    /// Adds a new file of a directory of [`HOMES`], of `blocks` blocks without addresses.
    #[must_use]
    pub(super) fn new_file(self, home: usize, blocks: u32) -> Dirty {
        self.file(home, vec![None; blocks as usize])
    }

    /// Adds a file of which all blocks are dirty and lie at `places`.
    #[must_use]
    pub(super) fn file(mut self, home: usize, places: Vec<Option<u64>>) -> Dirty {
        let ino = Ino(HOMES[home].0 + 1 + self.0.len() as u64);
        let blocks = places.len() as u64;
        let dirty = vec![LbnRange { start: Lbn(0), len: blocks as u32 }];
        let node = Arc::new(TestFile { group: GroupNo(home as u32), places });
        self.0.push(DirtyFile { ino, home: HOMES[home], node, blocks, whole: true, dirty });
        self
    }
}

impl DirtyView<TestFile> for Dirty {
    fn file(&self, ino: Ino, _around: Option<(Lbn, u32)>) -> Option<DirtyFile<TestFile>> {
        let file = self.0.iter().find(|file| file.ino == ino)?;
        Some(DirtyFile { node: Arc::clone(&file.node), dirty: file.dirty.clone(), ..*file })
    }

    fn small_files(&self, home: Ino, blocks: u32) -> Vec<Ino> {
        let here = self.0.iter().filter(|file| file.home == home && file.blocks == u64::from(blocks));
        here.map(|file| file.ino).collect()
    }

    fn small_counts(&self, home: Ino) -> Vec<u32> {
        let here = self.0.iter().filter(|file| file.home == home && file.blocks <= SMALL_BLOCKS_MAX);
        here.map(|file| file.blocks as u32).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

/// Returns the lengths of planned writes, in order.
pub(super) fn lengths(writes: &[PlannedWrite]) -> Vec<u32> {
    writes.iter().map(|write| write.to.len).collect()
}
