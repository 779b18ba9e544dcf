//! Swap areas over the bitmaps: the taken blocks, the bytes on the disk, and the waits of files and
//! swap areas for each other.

use moafs_vfs::swap_space::{Group, SwapSpace, Where};
use moafs_vfs::types::{BlockAddr, BlockRun};

use super::*;
use crate::format::GroupNo;

fn room(volume: &Volume) -> Arc<dyn SwapSpace> {
    volume.ext.swap_space().expect("a volume that can be written")
}

fn overlap(a: &BlockRun, b: &BlockRun) -> bool {
    a.start < b.end() && b.start < a.end()
}

fn runs_of(volume: &Volume, node: &Node) -> Vec<BlockRun> {
    volume.ext.runs(node).expect("its map").into_iter().map(|(_, run)| run).collect()
}

#[test]
fn areas_lie_one_before_the_other_at_the_end_of_their_group() {
    for block_size in [1024, 2048, 4096] {
        let volume = Volume::make(block_size, 64);
        let room = room(&volume);
        room.reserve(1200).expect("there is space");
        let ends: Vec<u64> = (0..3)
            .map(|_| room.take(Where::EndOf(Group(0)), 400, 4).expect("the bitmap").expect("a run"))
            .map(|run| (run.start.0, run.end().0))
            .map(|(start, end)| {
                assert_eq!(end - start, 400);
                end
            })
            .collect();
        let end = volume.ext.geo.group_range(GroupNo(0)).end;
        assert_eq!(ends, [end, end - 400, end - 800], "blocks of {block_size}");
        assert_eq!(room.take(Where::EndOf(Group(0)), 1, 1).unwrap(), None, "no more than was reserved");
    }
}

#[test]
fn a_run_as_long_as_asked_for_or_none_at_the_end_of_a_short_last_group() {
    // 1 KiB blocks: groups of 8192, the last one has 3000 blocks and its tables.
    let mem = Arc::new(MemDisk::new((2 * 8192 + 1 + 3000) * 2));
    let options =
        MkfsOptions { block_size: Some(1024), ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0)) };
    mkfs(&*mem, &options).expect("mkfs");
    let volume = Volume::open(mem);
    let room = room(&volume);
    let last = Group(room.groups() - 1);
    let free = volume.ext.alloc.counts(GroupNo(last.0)).free_blocks;
    assert!(room.group_blocks(last) >= free && room.group_blocks(last) < 3000);
    room.reserve(6000).expect("there is space");
    assert_eq!(room.take(Where::EndOf(last), free + 1, 1).unwrap(), None);
    let run = room.take(Where::EndOf(last), free, 1).unwrap().expect("the whole of it");
    assert_eq!(run.end().0, volume.ext.geo.blocks);
    assert_eq!(room.take(Where::EndOf(Group(last.0 + 1)), 8, 1).unwrap(), None, "there is no such group");
    assert_eq!(room.group_of(run.start), Some(last));
    assert_eq!((room.group_of(run.end()), room.group_of(BlockAddr(0))), (None, None));
    volume.close();
}

#[test]
fn the_lowest_runs_fill_the_volume_from_its_start() {
    let volume = Volume::make(1024, 64);
    let room = room(&volume);
    let all = volume.ext.space().free_blocks - volume.ext.space().root_blocks;
    room.reserve(all).expect("all of it");
    let mut last = 0;
    let mut taken = 0;
    while let Some(run) = room.take(Where::LOWEST, 3000, 4).expect("the bitmaps") {
        assert!(run.start.0 > last && run.len % 4 == 0 && run.len <= 3000, "{run:?} after {last}");
        last = run.end().0 - 1;
        taken += u64::from(run.len);
    }
    assert!(taken > all * 9 / 10, "{taken} of {all}");
    volume.close();
}

#[test]
fn the_disk_and_the_counts_never_tell_of_an_area() {
    let volume = Volume::make(1024, 64);
    let free = volume.ext.space().free_blocks;
    let room = room(&volume);
    room.reserve(5000).expect("there is space");
    assert_eq!(volume.ext.space().free_blocks, free - 5000);
    let runs = [Where::EndOf(Group(1)), Where::LOWEST].map(|at| room.take(at, 2000, 4).unwrap().expect("a run"));
    assert_eq!(volume.ext.space().free_blocks, free - 5000, "promised or taken is the same");
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 100, 1);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let stored = volume.ext.superblock.lock().free_blocks();
    assert_eq!(stored, volume.ext.space().free_blocks + 5000, "the superblock counts areas as free");
    // A crash now: e2fsck reports the same as for any volume in use.
    let verdict = judge::e2fsck(&volume.mem.snapshot());
    assert!(verdict.is_none_or(|verdict| verdict.code == Some(0)), "areas on the disk");

    runs.into_iter().for_each(|run| room.give(run));
    room.release(5000);
    volume.unlink(&volume.root, "file", &file);
    drop(file);
    assert_eq!(volume.ext.space().free_blocks, free);
    volume.close();
}

#[test]
fn files_fill_everything_but_what_is_reserved_and_lie_outside_of_areas() {
    let volume = Volume::make(4096, 32);
    let room = room(&volume);
    room.reserve(2048).expect("there is space");
    let area = room.take(Where::EndOf(Group(0)), 1000, 1).unwrap().expect("a run");
    let lowest = room.take(Where::LOWEST, 1000, 1).unwrap().expect("a run");
    let mut nodes = Vec::new();
    let need = SpaceRequest { data_blocks: 100, map_blocks: 4, meta_blocks: 8, inodes: 1 };
    while volume.ext.admit(need, SpaceClass::Root).is_ok() {
        let file = volume.create(&volume.root, &format!("file{}", nodes.len()), FileKind::Regular, None);
        volume.write(&file, 0, 100, 1);
        nodes.push(file);
    }
    assert!(volume.ext.space().free_blocks < 115, "{} blocks free", volume.ext.space().free_blocks);
    for node in &nodes {
        assert!(runs_of(&volume, node).iter().all(|run| !overlap(run, &area) && !overlap(run, &lowest)));
    }
    // Promised blocks are there, whatever the files have used meanwhile.
    let mut left = 48;
    while let Some(run) = room.take(Where::LOWEST, left, 1).unwrap() {
        left -= run.len;
    }
    assert_eq!(left, 0);
    assert!(room.reserve(200).is_err(), "the volume is full");
    drop(nodes);
    volume.close();
}

#[test]
fn what_was_just_deleted_can_be_reserved() {
    let volume = Volume::make(4096, 32);
    let room = room(&volume);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 5000, 1);
    volume.ext.commit(CommitReason::Sync).unwrap();
    assert!(room.reserve(5000).is_err());
    volume.unlink(&volume.root, "file", &file);
    drop(file);
    assert!(volume.ext.alloc.is_freeing(), "its blocks wait for the disk");
    room.reserve(5000).expect("the inode is written first");
    volume.close();
}

#[test]
fn a_writer_who_finds_no_room_because_of_an_area_presses_its_group() {
    let volume = Volume::make(1024, 64);
    let room = room(&volume);
    let free = volume.ext.alloc.counts(GroupNo(0)).free_blocks;
    room.reserve(u64::from(free)).expect("there is space");
    let area = room.take(Where::EndOf(Group(0)), free - 300, 1).unwrap().expect("nearly all");
    let file = volume.create(&volume.root, "small", FileKind::Regular, None);
    volume.write(&file, 0, 100, 1);
    assert_eq!(room.next_contended_group(), None, "there was room before the area");
    let other = volume.create(&volume.root, "large", FileKind::Regular, None);
    volume.write(&other, 0, 400, 1);
    assert!(runs_of(&volume, &other).iter().all(|run| !overlap(run, &area)));
    assert_eq!((room.next_contended_group(), room.next_contended_group()), (Some(Group(0)), None));
    // An area that has left makes no group a contended one.
    let third = volume.create(&volume.root, "third", FileKind::Regular, None);
    volume.write(&third, 0, 400, 1);
    room.give(area);
    assert_eq!(room.next_contended_group(), None);
    drop((file, other, third));
    volume.close();
}

#[test]
fn surveys_show_areas_as_what_they_are() {
    #[derive(Default)]
    struct Shown {
        areas: Vec<BlockRun>,
        free: u64,
    }
    impl moafs_vfs::format::Survey for Shown {
        fn file(&mut self, _: Ino, _: FileKind, _: Option<Ino>, _: &[(Lbn, BlockRun)]) {}
        fn metadata(&mut self, what: &'static str, _: u64, run: BlockRun) {
            if what == "swap area" {
                self.areas.push(run);
            }
        }
        fn free(&mut self, run: BlockRun) {
            self.free += u64::from(run.len);
        }
    }
    let volume = Volume::make(1024, 64);
    let free = volume.ext.space().free_blocks;
    let room = room(&volume);
    room.reserve(64).expect("there is space");
    let area = room.take(Where::EndOf(Group(3)), 64, 4).unwrap().expect("a run");
    room.give(BlockRun { start: area.start, len: 8 });
    let mut shown = Shown::default();
    volume.ext.survey(&mut shown).expect("the survey");
    assert_eq!(shown.areas, [BlockRun { start: BlockAddr(area.start.0 + 8), len: 56 }]);
    assert_eq!(shown.free, free - 56);
}

#[test]
fn what_cannot_be_written_has_no_room_for_swap() {
    let disk: SharedDisk = Volume::make(4096, 32).close();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let ext = Ext::open(disk, Live::new(), options).expect("the volume opens");
    assert!(ext.swap_space().is_none());
}
