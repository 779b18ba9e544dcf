//! The examples of Lee, Ahn, Oh (2008) request for request, and the rules that co-writing keeps for
//! any directory.

use std::cell::{Cell, RefCell};

use moafs_vfs::plan::{Plan, PlannedWrite, SMALL_BLOCKS_MAX};
use moafs_vfs::types::{BlockAddr, BlockRun, FileRange};
use proptest::prelude::*;

use super::*;
use crate::alloc::Fit;
use crate::format::inode::InodeFlags;
use crate::format::{BlockNo, GroupNo};
use crate::place::{Draft, Policy};

const BLOCK: u32 = 16 << 10;
/// The paper's maximum transfer: eight blocks.
const TRANSFER_BLOCKS: u32 = 8;
const GROUP_BLOCKS: u32 = 1024;

/// Dirty files, in the order in which they became dirty.
#[derive(Default)]
struct Dirty(RefCell<Vec<DirtyFile<Node>>>);

impl Dirty {
    fn add(&self, home: &Node, node: &Node, dirty: LbnRange, blocks: u64) -> Ino {
        let ino = Ino(node.ino.0.into());
        let home = Ino(home.ino.0.into());
        let file = DirtyFile { ino, home, node: Arc::new(node.clone()), blocks, whole: true, dirty: vec![dirty] };
        self.0.borrow_mut().push(file);
        ino
    }

    /// Marks the files that a plan names as being written.
    fn leave(&self, plan: &Plan) {
        let gone: Vec<Ino> = plan.writes.iter().flat_map(|write| write.from.iter().map(|range| range.ino)).collect();
        self.0.borrow_mut().retain(|file| !gone.contains(&file.ino));
    }
}

impl DirtyView<Node> for Dirty {
    fn file(&self, ino: Ino, _around: Option<(Lbn, u32)>) -> Option<DirtyFile<Node>> {
        self.0.borrow().iter().find(|file| file.ino == ino).cloned()
    }

    fn small_files(&self, home: Ino, blocks: u32) -> Vec<Ino> {
        let here = |file: &&DirtyFile<Node>| file.home == home && file.blocks == u64::from(blocks);
        self.0.borrow().iter().filter(here).map(|file| file.ino).collect()
    }

    fn small_counts(&self, home: Ino) -> Vec<u32> {
        let files = self.0.borrow();
        let here = files.iter().filter(|file| file.home == home && file.blocks <= SMALL_BLOCKS_MAX);
        here.map(|file| file.blocks as u32).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

impl Volume {
    fn with_policy(place: Policy) -> Volume {
        let mem = Arc::new(MemDisk::new(u64::from(4 * GROUP_BLOCKS * (BLOCK / 512))));
        let options = MkfsOptions {
            block_size: Some(BLOCK),
            blocks_per_group: Some(GROUP_BLOCKS),
            ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
        };
        mkfs(&*mem, &options).expect("mkfs");
        let disk: SharedDisk = mem.clone();
        let transfer_bytes_max = (TRANSFER_BLOCKS * BLOCK) as usize;
        let options = OpenOptions { place, transfer_bytes_max, ..OpenOptions::default() };
        let ext = Ext::open(disk, Live::new(), options).expect("the volume opens");
        let root = ext.load(Ino(2)).expect("the root is there").1;
        Volume { ext, mem, root }
    }

    /// Writes one dirty file after another as the cache would replace them; returns the planned
    /// writes, in order.
    fn replace(&self, dirty: &Dirty, order: &[Ino]) -> Vec<PlannedWrite> {
        let mut requests = Vec::new();
        for ino in order {
            let plan = self.ext.plan(WritebackReason::Evict(*ino, Lbn(0)), dirty).expect("a plan");
            dirty.leave(&plan);
            requests.extend(plan.writes);
        }
        requests
    }

    fn group_of(&self, write: &PlannedWrite) -> GroupNo {
        self.ext.geo.group_of_block(BlockNo(write.to.start.0)).expect("inside the volume")
    }

    /// Returns how often the head moves to another group.
    fn seeks(&self, requests: &[PlannedWrite]) -> usize {
        requests.windows(2).filter(|pair| self.group_of(&pair[0]) != self.group_of(&pair[1])).count()
    }

    /// Uses every free block of a group except those of the runs, each given as its distance from
    /// the group's end and its length.
    fn leave_free(&self, group: GroupNo, runs: &[(u64, u32)]) {
        let range = self.ext.geo.group_range(group);
        let longest = |draft: &mut Draft<'_>| draft.choose(group, Fit::Longest, GROUP_BLOCKS);
        while self.ext.allocate(longest).expect("the bitmap").0.is_some() {}
        for (from_end, len) in runs {
            let start = range.end - from_end;
            self.ext.abandon(BlockRun { start: BlockAddr(start), len: *len });
        }
    }
}

fn requests_of_figure_4(place: Policy) -> (Volume, Vec<PlannedWrite>) {
    let volume = Volume::with_policy(place);
    volume.root.state.lock().inode.flags |= InodeFlags::TOPDIR;
    let one = volume.create(&volume.root, "one", FileKind::Directory, None);
    let two = volume.create(&volume.root, "two", FileKind::Directory, None);
    assert_ne!(one.at.group, two.at.group, "directories of a top directory are spread");
    let dirty = Dirty::default();
    let whole = LbnRange { start: Lbn(0), len: 1 };
    let order: Vec<Ino> = [("F1", &one), ("Fa", &two), ("F3", &one), ("F4", &one), ("Fc", &two), ("F5", &one)]
        .into_iter()
        .map(|(name, home)| dirty.add(home, &volume.create(home, name, FileKind::Regular, None), whole, 1))
        .collect();
    let requests = volume.replace(&dirty, &order);
    (volume, requests)
}

#[test]
fn figure_4_file_by_file_takes_six_writes_and_four_seeks() {
    let (volume, requests) = requests_of_figure_4(Policy::Ffs);
    assert_eq!(
        requests.len(),
        6,
        "the paper says five: F3 and F4 follow one another, and a queue that merges joins them"
    );
    let joined = requests.windows(2).filter(|pair| pair[0].to.end() == pair[1].to.start).count();
    assert_eq!(requests.len() - joined, 5);
    assert_eq!(volume.seeks(&requests), 4);
}

#[test]
fn figure_4_co_writing_takes_two_writes_and_one_seek() {
    let (volume, requests) = requests_of_figure_4(Policy::Cowrite);
    assert_eq!(requests.iter().map(|request| request.to.len).collect::<Vec<_>>(), [4, 2]);
    assert_eq!(volume.seeks(&requests), 1);
}

fn requests_of_figure_8(place: Policy) -> Vec<u32> {
    let volume = Volume::with_policy(place);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let files: Vec<Node> =
        ["F1", "F3", "F4", "F5"].iter().map(|name| volume.create(&home, name, FileKind::Regular, None)).collect();
    volume.leave_free(home.at.group, &[(40, 1), (30, 3), (20, 1), (10, 1)]);
    let dirty = Dirty::default();
    let whole = LbnRange { start: Lbn(0), len: 1 };
    let order: Vec<Ino> = files.iter().map(|node| dirty.add(&home, node, whole, 1)).collect();
    let requests = volume.replace(&dirty, &order);
    assert!(requests.iter().all(|request| volume.group_of(request) == home.at.group));
    requests.iter().map(|request| request.to.len).collect()
}

#[test]
fn figure_8_file_by_file_takes_four_writes() {
    assert_eq!(requests_of_figure_8(Policy::Ffs), [1, 1, 1, 1]);
}

#[test]
fn figure_8_co_writing_takes_two_writes() {
    assert_eq!(requests_of_figure_8(Policy::Cowrite), [3, 1]);
}

#[test]
fn a_long_free_run_is_not_cut_while_a_fitting_one_is_there() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let file = volume.create(&home, "file", FileKind::Regular, None);
    volume.leave_free(home.at.group, &[(100, 40), (50, 2)]);
    let dirty = Dirty::default();
    let ino = dirty.add(&home, &file, LbnRange { start: Lbn(0), len: 2 }, 2);
    let requests = volume.replace(&dirty, &[ino]);
    let end = volume.ext.geo.group_range(home.at.group).end;
    assert!([end - 100, end - 50].contains(&requests[0].to.start.0), "{requests:?}");
    assert_eq!(requests[0].to.len, 2);
}

#[test]
fn a_file_larger_than_every_run_goes_as_ffs_would_and_the_others_together() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let large = volume.create(&home, "large", FileKind::Regular, None);
    let small: Vec<Node> = (0..3).map(|n| volume.create(&home, &format!("{n}"), FileKind::Regular, None)).collect();
    volume.leave_free(home.at.group, &[(30, 4)]);
    let dirty = Dirty::default();
    let first = dirty.add(&home, &large, LbnRange { start: Lbn(0), len: 6 }, 6);
    for node in &small {
        dirty.add(&home, node, LbnRange { start: Lbn(0), len: 1 }, 1);
    }
    let requests = volume.replace(&dirty, &[first]);
    let lens: Vec<(usize, u32)> = requests.iter().map(|request| (request.from.len(), request.to.len)).collect();
    assert_eq!(lens[0], (3, 3), "the three small ones share a request");
    assert_eq!(lens[1..].iter().map(|(_, len)| len).sum::<u32>(), 6);
}

#[test]
fn fsync_takes_along_one_transfer_at_most() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let dirty = Dirty::default();
    let inos: Vec<Ino> = (0..20)
        .map(|n| {
            let node = volume.create(&home, &format!("{n}"), FileKind::Regular, None);
            dirty.add(&home, &node, LbnRange { start: Lbn(0), len: 1 }, 1)
        })
        .collect();
    let plan = volume.ext.plan(WritebackReason::Sync(inos[13]), &dirty).expect("a plan");
    assert_eq!(plan.writes.len(), 1);
    assert_eq!(plan.writes[0].to.len, TRANSFER_BLOCKS);
    assert!(plan.writes[0].from.iter().any(|range| range.ino == inos[13]));
}

#[test]
fn overwritten_neighbours_stay_where_they_are_and_share_requests() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let nodes: Vec<Node> = (0..8).map(|n| volume.create(&home, &format!("{n}"), FileKind::Regular, None)).collect();
    for node in &nodes {
        volume.write(node, 0, 1, 1);
    }
    let dirty = Dirty::default();
    let whole = LbnRange { start: Lbn(0), len: 1 };
    let order: Vec<Ino> = nodes.iter().map(|node| dirty.add(&home, node, whole, 1)).collect();
    let requests = volume.replace(&dirty, &order);
    assert_eq!(requests.len(), 1);
    assert!(!requests[0].fresh);
    assert_eq!(requests[0].to.len, 8);
}

#[test]
fn overwritten_files_that_lie_scattered_move_together() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let nodes: Vec<Node> = (0..16).map(|n| volume.create(&home, &format!("{n}"), FileKind::Regular, None)).collect();
    for node in &nodes {
        volume.write(node, 0, 1, 1);
    }
    let dirty = Dirty::default();
    let whole = LbnRange { start: Lbn(0), len: 1 };
    let order: Vec<Ino> = nodes.iter().step_by(2).map(|node| dirty.add(&home, node, whole, 1)).collect();
    let requests = volume.replace(&dirty, &order);
    assert_eq!(requests.len(), 1);
    assert!(requests[0].fresh);
    assert_eq!(requests[0].to.len, 8);
}

#[test]
fn a_file_that_grew_goes_on_behind_its_end_or_moves_as_one_piece() {
    let volume = Volume::with_policy(Policy::Ffs);
    let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
    let [hemmed_in, last] = ["1", "2"].map(|text| volume.create(&home, text, FileKind::Regular, None));
    volume.write(&hemmed_in, 0, 1, 1);
    volume.write(&last, 0, 1, 2);
    let grown = |node: &Node| {
        let dirty = Dirty::default();
        let ino = dirty.add(&home, node, LbnRange { start: Lbn(0), len: 2 }, 2);
        let requests = volume.replace(&dirty, &[ino]);
        let joined = requests.windows(2).all(|pair| pair[0].to.end() == pair[1].to.start);
        (joined, requests.iter().map(|request| (request.fresh, request.to.len)).collect::<Vec<_>>())
    };
    assert_eq!(grown(&last), (true, vec![(false, 1), (true, 1)]));
    assert_eq!(grown(&hemmed_in), (true, vec![(true, 2)]));
}

#[test]
fn large_files_are_placed_as_ffs_places_them() {
    let layout = |place: Policy| {
        let volume = Volume::with_policy(place);
        volume.root.state.lock().inode.flags |= InodeFlags::TOPDIR;
        let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
        let large = volume.create(&home, "large", FileKind::Regular, None);
        let dirty = Dirty::default();
        let ino = dirty.add(&home, &large, LbnRange { start: Lbn(0), len: 40 }, 40);
        let requests = volume.replace(&dirty, &[ino]);
        requests.iter().map(|request| (request.to, request.from.to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(layout(Policy::Cowrite), layout(Policy::Ffs));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn co_writing_splits_no_file_leaves_no_group_and_loses_no_block(
        sizes in prop::collection::vec(1u32..=12, 1..40),
        holes in prop::collection::vec((1u32..20, 1u32..20), 1..30),
        first in 0usize..40,
    ) {
        let volume = Volume::with_policy(Policy::Cowrite);
        let home = volume.create(&volume.root, "directory", FileKind::Directory, None);
        let nodes: Vec<Node> = (0..sizes.len())
            .map(|n| volume.create(&home, &format!("{n}"), FileKind::Regular, None))
            .collect();
        let mut runs = Vec::new();
        let mut from_end = 4;
        for (gap, len) in holes {
            from_end += u64::from(gap + len);
            runs.push((from_end, len));
        }
        volume.leave_free(home.at.group, &runs);
        let free_before = volume.ext.alloc.counts(home.at.group).free_blocks;
        let dirty = Dirty::default();
        let inos: Vec<Ino> = nodes
            .iter()
            .zip(&sizes)
            .map(|(node, blocks)| dirty.add(&home, node, LbnRange { start: Lbn(0), len: *blocks }, (*blocks).into()))
            .collect();
        let mut order = inos.clone();
        order.rotate_left(first % inos.len());
        let requests = volume.replace(&dirty, &order);
        prop_assert!(dirty.0.borrow().is_empty());
        prop_assert!(requests.iter().all(|request| request.to.len <= TRANSFER_BLOCKS));
        let mut used = std::collections::BTreeSet::new();
        for request in &requests {
            prop_assert_eq!(request.from.iter().map(|range| range.range.len).sum::<u32>(), request.to.len);
            for block in request.to.start.0..request.to.end().0 {
                prop_assert!(used.insert(block), "block {} is written twice", block);
            }
        }
        // Requests of several files are co-writes: whole files, in the directory's group.
        for request in requests.iter().filter(|request| request.from.len() > 1) {
            prop_assert_eq!(volume.group_of(request), home.at.group);
            for FileRange { ino, range } in &request.from {
                let file = inos.iter().position(|there| there == ino).expect("one of ours");
                let cut_by_transfer = sizes[file] > TRANSFER_BLOCKS;
                prop_assert!(cut_by_transfer || range.len == sizes[file]);
            }
        }
        for (ino, blocks) in inos.iter().zip(&sizes) {
            let mut lbns: Vec<u64> = requests
                .iter()
                .flat_map(|request| &request.from)
                .filter(|range| range.ino == *ino)
                .flat_map(|range| range.range.start.0..range.range.end().0)
                .collect();
            lbns.sort_unstable();
            prop_assert_eq!(lbns, (0..u64::from(*blocks)).collect::<Vec<_>>());
        }
        // Blocks that were searched and not filled are free again.
        let here = used.iter().filter(|block| volume.ext.geo.group_of_block(BlockNo(**block)) == Some(home.at.group));
        let free_after = volume.ext.alloc.counts(home.at.group).free_blocks;
        prop_assert_eq!(free_before - free_after, here.count() as u32);
    }
}

/// Writes four directories by turns, `files` files of one block in each turn; returns the number of
/// pieces that each lies in.
fn pieces_after_turns(turns: u64, files: u64, due: fn(Ino) -> WritebackReason) -> Vec<usize> {
    let volume = Volume::with_policy(Policy::Cowrite);
    let homes: Vec<Node> =
        (0..4).map(|n| volume.create(&volume.root, &format!("{n}"), FileKind::Directory, None)).collect();
    let mut blocks = vec![std::collections::BTreeSet::new(); homes.len()];
    for turn in 0..turns {
        for (home, blocks) in homes.iter().zip(&mut blocks) {
            let dirty = Dirty::default();
            let add = |n| {
                let node = volume.create(home, &format!("{turn}-{n}"), FileKind::Regular, None);
                dirty.add(home, &node, LbnRange { start: Lbn(0), len: 1 }, 1)
            };
            let order: Vec<Ino> = (0..files).map(add).collect();
            let plan = volume.ext.plan(due(order[0]), &dirty).expect("a plan");
            blocks.extend(plan.writes.iter().flat_map(|request| request.to.start.0..request.to.end().0));
        }
    }
    let pieces = |blocks: std::collections::BTreeSet<u64>| {
        let blocks: Vec<u64> = blocks.into_iter().collect();
        assert_eq!(blocks.len() as u64, turns * files);
        blocks.chunk_by(|one, next| one + 1 == *next).count()
    };
    blocks.into_iter().map(pieces).collect()
}

#[test]
fn directories_written_by_turns_lie_in_few_pieces() {
    let half_a_transfer = pieces_after_turns(16, 4, |ino| WritebackReason::Evict(ino, Lbn(0)));
    assert!(half_a_transfer.iter().all(|pieces| *pieces <= 7), "{half_a_transfer:?} pieces of 16 turns");
    let fsynced = pieces_after_turns(32, 2, WritebackReason::Sync);
    assert!(fsynced.iter().all(|pieces| *pieces <= 7), "{fsynced:?} pieces of 32 turns");
}

#[test]
fn little_of_several_directories_of_a_group_lies_side_by_side() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let dirty = Dirty::default();
    let file_of_its_own = |n: u64| {
        let home = volume.create(&volume.root, &format!("{n}"), FileKind::Directory, None);
        assert_eq!(home.at.group, volume.root.at.group, "the directories are near each other");
        let node = volume.create(&home, "file", FileKind::Regular, None);
        dirty.add(&home, &node, LbnRange { start: Lbn(0), len: 1 }, 1)
    };
    let order: Vec<Ino> = (0..3).map(file_of_its_own).collect();
    let requests = volume.replace(&dirty, &order);
    assert_eq!(requests.len(), 3);
    assert!(requests.windows(2).all(|pair| pair[0].to.end() == pair[1].to.start), "the queue merges them");
}

#[test]
fn directories_without_files_keep_later_ones_out_of_their_group() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let make = |name: String| volume.create(&volume.root, &name, FileKind::Directory, None);
    // A sixteenth of a group each, a third of which stays free.
    let empty: Vec<Node> = (0..12).map(|n| make(format!("empty{n}"))).collect();
    assert!(empty[..8].iter().all(|dir| dir.at.group == volume.root.at.group));
    assert_ne!(empty[11].at.group, volume.root.at.group, "twelve would be too many");
    let volume = Volume::with_policy(Policy::Cowrite);
    for n in 0..12 {
        let dir = volume.create(&volume.root, &format!("dir{n}"), FileKind::Directory, None);
        assert_eq!(dir.at.group, volume.root.at.group, "each of them got its file before the next was made");
        volume.create(&dir, "file", FileKind::Regular, None);
    }
}

/// Another task takes the second of two runs that were chosen: the first one goes back, and both are chosen again.
#[test]
fn space_that_another_task_takes_is_chosen_again() {
    let volume = Volume::with_policy(Policy::Cowrite);
    let take =
        |draft: &mut Draft<'_>, group| Ok(draft.choose(GroupNo(group), Fit::Longest, 4)?.expect("there is space"));
    let (spare, tries, lost) = (volume.ext.alloc.spare_blocks(), Cell::new(0), Cell::new(None));
    let (runs, _) = volume
        .ext
        .allocate(|draft| {
            let runs = [take(draft, 1)?, take(draft, 0)?];
            if tries.replace(tries.get() + 1) == 0 {
                lost.set(Some((runs, volume.ext.allocate(|draft| take(draft, 0))?.0)));
            }
            Ok(runs)
        })
        .unwrap();
    let (first, taken) = lost.get().expect("the first try");
    assert_eq!((tries.get(), taken), (2, first[1]));
    assert_eq!((runs[0], runs[1].start.0), (first[0], taken.end().0));
    assert_eq!(volume.ext.alloc.spare_blocks(), spare - 12, "nothing stays with the plan that was given up");
}
