//! The engine driven directly, as vfs drives it; e2fsck judges the volumes afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use moafs_disk::mem::MemDisk;
use moafs_disk::{Buf, Cause, Disk, DiskExt, Epoch, Kind, Lba, SharedDisk, Tag};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::Error;
use moafs_vfs::format::{
    Admission, CommitPoint, CommitReason, Format, FormatOp, OpKind, Progress, SpaceClass, SpaceRequest, SyncScope,
    Target,
};
use moafs_vfs::plan::{DirtyFile, DirtyView, WritebackReason};
use moafs_vfs::types::{
    Attr, BlockAddr, BlockRun, FileKind, Ino, Lbn, LbnRange, Mapping, Name, SetMode, XattrKey, XattrSpace,
};

mod cowrite;
mod dirindex;
mod exchanges;
mod orphans;
mod recovery;
mod renames;
mod swaparea;

use super::{Ext, Incore, OpenOptions};
use crate::alloc::Fit;
use crate::format::{GroupNo, Inode};
use crate::head::read_superblock;
use crate::judge;
use crate::meta::tests::Held;
use crate::meta::{Freed, Level};
use crate::mkfs::features::FeatureSet;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::place::ffs;

type Node = Arc<Incore>;

struct Volume {
    ext: Ext,
    mem: Arc<MemDisk>,
    root: Node,
}

/// One dirty file, whole.
struct OneDirty(DirtyFile<Node>);

impl DirtyView<Node> for OneDirty {
    fn file(&self, ino: Ino, _around: Option<(Lbn, u32)>) -> Option<DirtyFile<Node>> {
        (ino == self.0.ino).then(|| self.0.clone())
    }
    fn small_files(&self, _home: Ino, _blocks: u32) -> Vec<Ino> {
        Vec::new()
    }
    fn small_counts(&self, _home: Ino) -> Vec<u32> {
        Vec::new()
    }
}

fn attr(kind: FileKind) -> Attr {
    let now = Timestamp::new(1_700_000_000, 5);
    let nlink = if kind == FileKind::Directory { 2 } else { 1 };
    Attr {
        kind,
        perm: 0o644,
        uid: 1000,
        gid: 70000,
        nlink,
        size: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: None,
        rdev: 0,
        generation: 0,
        flags: 0,
    }
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

impl Volume {
    fn make(block_size: u32, mebibytes: u64) -> Volume {
        Volume::with(FeatureSet::EXT2, block_size, mebibytes)
    }

    fn with(features: FeatureSet, block_size: u32, mebibytes: u64) -> Volume {
        let mem = Arc::new(MemDisk::new(mebibytes << 11));
        let options = MkfsOptions {
            features,
            block_size: Some(block_size),
            ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
        };
        mkfs(&*mem, &options).expect("mkfs");
        Volume::open(mem)
    }

    fn open(mem: Arc<MemDisk>) -> Volume {
        let disk: SharedDisk = mem.clone();
        let ext = Ext::open(disk, Live::new(), OpenOptions::default()).expect("the volume opens");
        let root = ext.load(Ino(2)).expect("the root is there").1;
        Volume { ext, mem, root }
    }

    fn admit(&self, data: u64) -> Admission {
        let need = SpaceRequest { data_blocks: data, map_blocks: data.div_ceil(256) + 3, meta_blocks: 8, inodes: 1 };
        self.ext.admit(need, SpaceClass::Root).expect("there is space")
    }

    fn create(&self, dir: &Node, text: &str, kind: FileKind, target: Option<&[u8]>) -> Node {
        let mut admission = self.admit(0);
        let mut op = self.ext.begin(OpKind::Create, &mut admission).unwrap();
        let attr = attr(kind);
        let (ino, node) = op.inode_new(dir, &attr, target).unwrap();
        op.name_add(dir, name(text), Target { ino, kind, node: &node }).unwrap();
        let mut parent = self.ext.load(Ino(dir.ino.0.into())).unwrap().0;
        parent.mtime = attr.mtime;
        op.inode_put(dir, &parent, 0).unwrap();
        op.end();
        node
    }

    /// Writes `blocks` blocks of `fill` from block `at` on, the way vfs writes back.
    fn write(&self, node: &Node, at: u64, blocks: u32, fill: u8) -> CommitPoint {
        let mut admission = self.admit(blocks.into());
        let mut op = self.place(node, at, blocks, fill, &mut admission);
        let ino = Ino(node.ino.0.into());
        let mut put = self.ext.load(ino).map_or_else(|_| attr(FileKind::Regular), |(attr, _)| attr);
        put.size = put.size.max((at + u64::from(blocks)) * self.ext.geo.block_bytes() as u64);
        op.inode_put(node, &put, put.size).unwrap();
        op.end()
    }

    /// Writes blocks and maps them; the op goes on.
    fn place<'a>(
        &'a self,
        node: &Node,
        at: u64,
        blocks: u32,
        fill: u8,
        admission: &'a mut Admission,
    ) -> super::op::ExtOp<'a> {
        let size = self.ext.geo.block_bytes();
        let ino = Ino(node.ino.0.into());
        let range = LbnRange { start: Lbn(at), len: blocks };
        let home = Ino(2);
        let file = DirtyFile {
            ino,
            home,
            node: Arc::new(node.clone()),
            blocks: at + u64::from(blocks),
            whole: true,
            dirty: vec![range],
        };
        let plan = self.ext.plan(WritebackReason::Sync(ino), &OneDirty(file)).unwrap();
        let mut written = Vec::new();
        for travel in plan.writes {
            let data = Buf::copy_of(&vec![fill; size * travel.to.len as usize]).freeze();
            let lba = Lba(travel.to.start.0 * (size / 512) as u64);
            let epoch = self.mem.write(lba, data, Tag::new(Kind::Data, ino.0, Cause::Demand)).unwrap();
            written.push((travel, epoch));
        }
        let mut op = self.ext.begin(OpKind::Place, admission).unwrap();
        for (travel, epoch) in written {
            op.place(node, travel.from[0].range, travel.to, epoch).unwrap();
        }
        op
    }

    fn put_size(&self, node: &Node, blocks: u64) {
        let mut admission = Admission::none();
        let mut op = self.ext.begin(OpKind::Attr, &mut admission).unwrap();
        let mut put = self.ext.attr(node);
        put.size = blocks * self.ext.geo.block_bytes() as u64;
        op.inode_put(node, &put, put.size).unwrap();
        op.end();
    }

    fn remove_name(&self, dir: &Node, text: &str, node: &Node) {
        let mut admission = Admission::none();
        let mut op = self.ext.begin(OpKind::Unlink, &mut admission).unwrap();
        let mut gone = self.ext.attr(node);
        let parent = self.ext.attr(dir);
        op.name_remove(dir, name(text), node).unwrap();
        gone.nlink = 0;
        op.inode_orphan(node, &gone).unwrap();
        op.inode_put(dir, &parent, 0).unwrap();
        op.end();
    }

    fn unlink(&self, dir: &Node, text: &str, node: &Node) {
        self.remove_name(dir, text, node);
        let mut admission = Admission::none();
        loop {
            let mut op = self.ext.begin(OpKind::Unmap, &mut admission).unwrap();
            let progress = op.unmap(node, Lbn(0), None, 100, true).unwrap();
            op.end();
            if progress == Progress::Done {
                break;
            }
        }
        let mut op = self.ext.begin(OpKind::Unmap, &mut admission).unwrap();
        op.inode_free(node).unwrap();
        op.end();
    }

    fn close(self) -> Arc<MemDisk> {
        drop(self.root);
        self.ext.close().expect("the volume closes");
        judge::assert_clean(&self.mem, "after close");
        self.mem
    }
}

fn names(volume: &Volume, dir: &Node) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |name: &Name, _: moafs_vfs::types::Dentry, _: moafs_vfs::types::Cookie| {
        all.push(name.to_string());
        true
    };
    volume.ext.list(dir, moafs_vfs::types::Cookie::START, &mut add).unwrap();
    all.sort();
    all
}

#[test]
fn an_untouched_volume_opens_and_closes_clean() {
    for block_size in [1024, 4096, 65536] {
        Volume::make(block_size, 64).close();
    }
}

#[test]
fn every_kind_of_file_survives_a_remount() {
    for block_size in [1024, 2048, 4096, 16384] {
        let volume = Volume::make(block_size, 64);
        let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
        let file = volume.create(&dir, "file", FileKind::Regular, None);
        volume.write(&file, 0, 300, 7);
        volume.create(&dir, "fast", FileKind::Symlink, Some(b"target"));
        volume.create(&dir, "slow", FileKind::Symlink, Some(&[b'x'; 200]));
        volume.create(&dir, "pipe", FileKind::Fifo, None);
        drop((dir, file));
        let volume = Volume::open(volume.close());
        let dir = volume.ext.lookup(&volume.root, name("dir")).unwrap().unwrap();
        let dir = volume.ext.load(dir.ino).unwrap().1;
        assert_eq!(names(&volume, &dir), [".", "..", "fast", "file", "pipe", "slow"]);
        let slow = volume.ext.lookup(&dir, name("slow")).unwrap().unwrap();
        let slow = volume.ext.load(slow.ino).unwrap().1;
        assert_eq!(volume.ext.readlink(&slow).unwrap(), [b'x'; 200]);
        drop((dir, slow));
        volume.close();
    }
}

#[test]
fn a_file_of_one_write_lies_in_one_run() {
    let volume = Volume::make(1024, 64);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 1000, 1);
    let mut runs = 0;
    let mut at = 0;
    while at < 1000 {
        let Mapping::Run(run) = volume.ext.map(&file, Lbn(at), 1000).unwrap() else { panic!("a hole at {at}") };
        at += u64::from(run.len);
        runs += 1;
    }
    // Direct pointers, then one indirect block after another: runs end where pointer blocks do.
    assert!(runs <= 6, "{runs} runs");
    drop(file);
    volume.close();
}

#[test]
fn sparse_files_map_through_triple_indirect_blocks() {
    let volume = Volume::make(1024, 64);
    let file = volume.create(&volume.root, "sparse", FileKind::Regular, None);
    let places = [5, 100, 12 + 256 + 77, 12 + 256 + 65536 + 5, 12 + 256 + 65536 + 256 * 256 * 3];
    for (n, at) in places.iter().enumerate() {
        volume.write(&file, *at, 2, n as u8);
    }
    for at in places {
        assert!(matches!(volume.ext.map(&file, Lbn(at), 2).unwrap(), Mapping::Run(run) if run.len == 2), "at {at}");
        assert!(matches!(volume.ext.map(&file, Lbn(at + 2), 1).unwrap(), Mapping::Hole { .. }), "after {at}");
    }
    let free = volume.ext.space().free_blocks;
    volume.unlink(&volume.root, "sparse", &file);
    assert!(volume.ext.space().free_blocks > free + 10);
    drop(file);
    volume.close();
}

#[test]
fn ops_that_place_blocks_of_one_file_at_once_lose_none() {
    const WRITERS: u64 = 4;
    const PIECE: u64 = 32;
    const BLOCKS: u64 = 1536;
    let volume = Volume::make(1024, 64);
    for round in 0..12 {
        let file = volume.create(&volume.root, &format!("file{round}"), FileKind::Regular, None);
        let (left, together) = (AtomicU64::new(WRITERS), Barrier::new(WRITERS as usize));
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (volume, file, left, together) = (&volume, &file, &left, &together);
                scope.spawn(move || {
                    for at in (writer * PIECE..BLOCKS).step_by((WRITERS * PIECE) as usize) {
                        let mut admission = volume.admit(PIECE);
                        together.wait();
                        volume.place(file, at, PIECE as u32, writer as u8, &mut admission).end();
                    }
                    left.fetch_sub(1, Ordering::SeqCst);
                });
            }
            // Hardly any metadata stay in memory.
            while left.load(Ordering::SeqCst) > 0 {
                volume.ext.sweep(volume.ext.meta.highest()).unwrap();
                volume.ext.shrink(0);
            }
        });
        volume.put_size(&file, BLOCKS);
        let mapped = (0..BLOCKS).filter(|at| matches!(volume.ext.map(&file, Lbn(*at), 1).unwrap(), Mapping::Run(_)));
        assert_eq!(mapped.count() as u64, BLOCKS, "round {round}");
    }
    volume.close();
}

#[test]
fn truncation_in_bounded_steps_frees_blocks_and_maps() {
    let volume = Volume::make(1024, 64);
    let before = volume.ext.space().free_blocks;
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 2000, 1);
    volume.ext.commit(CommitReason::Sync).unwrap();
    for keep in [1500, 700, 100, 13, 12, 3, 0] {
        let mut admission = Admission::none();
        loop {
            let mut op = volume.ext.begin(OpKind::Unmap, &mut admission).unwrap();
            let mut put = volume.ext.attr(&file);
            put.size = keep * 1024;
            op.inode_put(&file, &put, put.size).unwrap();
            let progress = op.unmap(&file, Lbn(keep), None, 64, false).unwrap();
            op.inode_put(&file, &put, put.size).unwrap();
            op.end();
            if progress == Progress::Done {
                break;
            }
        }
        assert!(matches!(volume.ext.map(&file, Lbn(keep), 1).unwrap(), Mapping::Hole { .. }));
        if keep > 0 {
            assert!(matches!(volume.ext.map(&file, Lbn(keep - 1), 1).unwrap(), Mapping::Run(_)));
        }
    }
    volume.ext.settle().unwrap();
    assert_eq!(volume.ext.space().free_blocks, before);
    drop(file);
    volume.close();
}

/// The last block of a file, below an indirect block, moves, which changes nothing in the inode; then the file grows
/// within that block.
#[test]
fn a_grown_size_waits_for_the_pointer_to_a_block_that_has_moved() {
    let volume = Volume::make(1024, 16);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 13, 1);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let to = volume.ext.allocate(|draft| draft.choose(GroupNo(0), Fit::Longest, 1)).unwrap().0.expect("there is space");
    let mut admission = Admission::none();
    let mut op = volume.ext.begin(OpKind::Place, &mut admission).unwrap();
    op.place(&file, LbnRange { start: Lbn(12), len: 1 }, to, Epoch(0)).unwrap();
    let put = volume.ext.attr(&file);
    op.inode_put(&file, &put, put.size).unwrap();
    let pointer = Level(op.end().0);
    volume.put_size(&file, 14);
    let size = volume.ext.slot_pending(&file).unwrap();
    assert!(size > pointer, "the size reaches the disk at {size:?}, the pointer at {pointer:?}");
    volume.put_size(&file, 13);
    drop(file);
    volume.close();
}

/// vfs tells no attributes of an inode that is being freed.
#[test]
fn data_that_reach_a_removed_file_are_no_leak_after_a_crash() {
    for features in [FeatureSet::EXT3, FeatureSet::EXT4] {
        let volume = Volume::with(features, 1024, 64);
        let file = volume.create(&volume.root, "file", FileKind::Regular, None);
        volume.write(&file, 0, 1, 1);
        volume.ext.commit(CommitReason::Sync).unwrap();
        volume.remove_name(&volume.root, "file", &file);
        let mut admission = volume.admit(6);
        volume.place(&file, 3, 6, 2, &mut admission).end();
        volume.ext.commit(CommitReason::Sync).unwrap();
        let after_the_crash = Volume::open(Arc::new(volume.mem.snapshot()));
        after_the_crash.close();
    }
}

/// Opens what a power cut now would leave.
fn after_power_cut(volume: &Volume) -> Volume {
    Volume::open(Arc::new(volume.mem.snapshot()))
}

#[test]
fn a_file_that_was_cut_and_not_unmapped_loses_its_blocks_after_a_crash() {
    for features in [FeatureSet::EXT3, FeatureSet::EXT4] {
        let volume = Volume::with(features, 1024, 64);
        let file = volume.create(&volume.root, "file", FileKind::Regular, None);
        volume.write(&file, 0, 8, 1);
        volume.ext.commit(CommitReason::Sync).unwrap();
        let free = volume.ext.space().free_blocks;
        volume.write(&file, 8, 4, 2);
        volume.put_size(&file, 8);
        volume.ext.commit(CommitReason::Sync).unwrap();
        let after = after_power_cut(&volume);
        let kept = after.ext.load(Ino(file.ino.0.into())).unwrap().1;
        assert_eq!(after.ext.map(&kept, Lbn(8), 4).unwrap(), Mapping::Hole { len: 4 });
        assert_eq!(after.ext.space().free_blocks, free);
        drop(kept);
        after.close();
        // Without the crash another op goes on with it.
        let mut admission = Admission::none();
        let mut op = volume.ext.begin(OpKind::Unmap, &mut admission).unwrap();
        assert_eq!(op.unmap(&file, Lbn(8), None, 100, false).unwrap(), Progress::Done);
        op.end();
        assert_eq!(volume.ext.superblock.lock().last_orphan(), 0);
        drop(file);
        volume.close();
    }
}

#[test]
fn a_mount_tells_how_many_transactions_were_replayed_if_there_were_any() {
    let open = |mem: &Arc<MemDisk>, read_only| {
        let ext = Ext::open(mem.clone(), Live::new(), OpenOptions { read_only, ..OpenOptions::default() }).unwrap();
        ext.shape.notes.clone()
    };
    let volume = Volume::with(FeatureSet::EXT4, 1024, 64);
    let unchanged = Arc::new(volume.mem.snapshot());
    let shared: SharedDisk = unchanged.clone();
    assert!(crate::journal::needs_replay(&read_superblock(&shared).unwrap()));
    let none: [String; 0] = [];
    assert_eq!(open(&unchanged, true), none);
    assert_eq!(open(&unchanged, false), none);
    volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let changed = Arc::new(volume.mem.snapshot());
    assert_eq!(open(&changed, true), ["1 transactions are read from the journal, which has to be replayed"]);
    assert_eq!(open(&changed, false), ["1 transactions of the journal were replayed"]);
    volume.close();
}

/// Other drivers expect zeros there when the file grows again.
#[test]
fn the_last_block_of_a_file_that_a_mount_cuts_ends_with_zeros() {
    for features in [FeatureSet::EXT3, FeatureSet::EXT4] {
        let volume = Volume::with(features, 1024, 64);
        let file = volume.create(&volume.root, "file", FileKind::Regular, None);
        volume.write(&file, 0, 8, 1);
        let mut admission = Admission::none();
        let mut op = volume.ext.begin(OpKind::Attr, &mut admission).unwrap();
        let put = Attr { size: 5 * 1024 + 100, ..volume.ext.attr(&file) };
        op.inode_put(&file, &put, put.size).unwrap();
        op.end();
        volume.ext.commit(CommitReason::Sync).unwrap();
        let after = after_power_cut(&volume);
        let cut = after.ext.load(Ino(file.ino.0.into())).unwrap().1;
        let Mapping::Run(run) = after.ext.map(&cut, Lbn(5), 1).unwrap() else { panic!("it has a last block") };
        let mut last = [9; 1024];
        after.mem.peek(run.start.0 * 1024, &mut last);
        assert_eq!(last[..100], [1; 100]);
        assert_eq!(last[100..], [0; 924]);
        drop(cut);
        after.close();
    }
}

#[test]
fn a_file_in_more_groups_than_the_log_has_blocks_can_be_removed() {
    for features in [FeatureSet::EXT3, FeatureSet::EXT4] {
        let mem = Arc::new(MemDisk::new(2400 << 11));
        let options = MkfsOptions {
            features,
            block_size: Some(1024),
            blocks_per_group: Some(2048),
            inodes: Some(9600),
            journal_bytes: Some(1 << 20),
            ..MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))
        };
        mkfs(&*mem, &options).expect("mkfs");
        let volume = Volume::open(mem);
        let file = volume.create(&volume.root, "file", FileKind::Regular, None);
        let free = volume.ext.space().free_blocks;
        for group in volume.ext.geo.all_groups() {
            let goal = volume.ext.geo.group_start(group).0 + 200;
            let mut admission = volume.admit(1);
            let mut op = volume.ext.begin(OpKind::Place, &mut admission).unwrap();
            let (block, _) = volume.ext.allocate(|draft| ffs::map_block(draft, goal)).unwrap();
            let range = LbnRange { start: Lbn(2 * u64::from(group.0)), len: 1 };
            op.place(&file, range, BlockRun { start: BlockAddr(block), len: 1 }, Epoch(0)).unwrap();
            op.end();
        }
        volume.put_size(&file, 2 * u64::from(volume.ext.geo.groups));
        volume.ext.commit(CommitReason::Sync).unwrap();
        volume.remove_name(&volume.root, "file", &file);
        let mut progress = Progress::More;
        while progress == Progress::More {
            let mut admission = Admission::none();
            let mut op = volume.ext.begin(OpKind::Unmap, &mut admission).unwrap();
            progress = op.unmap(&file, Lbn(0), None, 2048, true).unwrap();
            if progress == Progress::Done {
                op.inode_free(&file).unwrap();
            }
            op.end();
        }
        volume.ext.commit(CommitReason::Sync).expect("the log has room for each op");
        assert_eq!((volume.ext.failed(), volume.ext.space().free_blocks), (None, free));
        drop(file);
        volume.close();
    }
}

#[test]
fn a_short_symbolic_link_keeps_its_target_while_its_attributes_go() {
    let volume = Volume::make(1024, 64);
    let link = volume.create(&volume.root, "link", FileKind::Symlink, Some(b"target"));
    let key = XattrKey { space: XattrSpace::Trusted, suffix: (*b"a").into() };
    let set = |value: Option<&[u8]>| {
        let mut admission = volume.admit(0);
        let mut op = volume.ext.begin(OpKind::Xattr, &mut admission).unwrap();
        op.xattr_set(&link, &key, value, SetMode::Any).unwrap();
        op.end();
    };
    set(Some(&[1; 600]));
    volume.ext.commit(CommitReason::Sync).unwrap();
    thread::scope(|scope| {
        // The block is given up behind this lock: the disk gets what is stored until then.
        let shared = volume.ext.shared_xattrs.lock();
        let remover = scope.spawn(|| set(None));
        while on_disk(&volume, &link).file_acl != 0 {
            volume.ext.sweep(volume.ext.meta.highest()).unwrap();
            thread::yield_now();
        }
        let after = after_power_cut(&volume);
        let link = after.ext.load(Ino(link.ino.0.into())).unwrap().1;
        assert_eq!(after.ext.readlink(&link).unwrap(), b"target");
        drop(shared);
        remover.join().unwrap();
    });
    drop(link);
    volume.close();
}

#[test]
fn what_was_never_written_costs_nothing() {
    let volume = Volume::make(4096, 64);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let free = (volume.ext.alloc.available_inodes(), volume.ext.space().free_blocks);
    let file = volume.create(&volume.root, "temporary", FileKind::Regular, None);
    volume.unlink(&volume.root, "temporary", &file);
    drop(file);
    assert_eq!((volume.ext.alloc.available_inodes(), volume.ext.space().free_blocks), free);
    assert!(!volume.ext.alloc.is_freeing(), "the inode is reusable at once");
    volume.close();
}

#[test]
fn creating_a_hundred_files_takes_one_round_per_kind_of_change() {
    let volume = Volume::make(4096, 64);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let before = volume.mem.epoch();
    for n in 0..100 {
        let file = volume.create(&volume.root, &format!("file{n}"), FileKind::Regular, None);
        volume.write(&file, 0, 1, n);
    }
    volume.ext.commit(CommitReason::Sync).unwrap();
    // Bitmaps and fresh blocks; inodes; names; and the flush for data before pointers.
    let flushes = volume.mem.epoch().0 - before.0;
    assert!(flushes <= 5, "{flushes} flushes");
    volume.close();
}

#[test]
fn a_large_directory_grows_shrinks_and_stays_sound() {
    let volume = Volume::make(1024, 64);
    let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
    let mut nodes = BTreeMap::new();
    for n in 0..2000 {
        let text = format!("a-rather-long-name-of-a-file-{n}");
        nodes.insert(text.clone(), volume.create(&dir, &text, FileKind::Regular, None));
    }
    volume.ext.commit(CommitReason::Sync).unwrap();
    for n in (0..2000).step_by(2) {
        let text = format!("a-rather-long-name-of-a-file-{n}");
        let node = nodes.remove(&text).unwrap();
        volume.unlink(&dir, &text, &node);
    }
    volume.ext.commit(CommitReason::Sync).unwrap();
    for n in 0..500 {
        let text = format!("again-{n}");
        nodes.insert(text.clone(), volume.create(&dir, &text, FileKind::Regular, None));
    }
    assert_eq!(names(&volume, &dir).len(), 1500 + 2);
    drop((nodes, dir));
    volume.close();
}

#[test]
fn attributes_live_in_the_inode_then_in_a_block() {
    let volume = Volume::make(4096, 64);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    let key = |n: u32| XattrKey { space: XattrSpace::User, suffix: format!("key{n}").into_bytes().into() };
    for n in 0..20 {
        let mut admission = volume.admit(0);
        let mut op = volume.ext.begin(OpKind::Xattr, &mut admission).unwrap();
        op.xattr_set(&file, &key(n), Some(&[n as u8; 50]), SetMode::Create).unwrap();
        op.end();
    }
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Xattr, &mut admission).unwrap();
    op.xattr_set(&file, &key(3), None, SetMode::Any).unwrap();
    op.end();
    drop(admission);
    assert_eq!(volume.ext.xattr_list(&file).unwrap().len(), 19);
    assert_eq!(volume.ext.xattr(&file, &key(7)).unwrap(), Some(vec![7; 50]));
    drop(file);
    volume.close();
}

#[test]
fn renames_and_exchanges_leave_exact_link_counts() {
    let volume = Volume::make(1024, 64);
    let from = volume.create(&volume.root, "from", FileKind::Directory, None);
    let to = volume.create(&volume.root, "to", FileKind::Directory, None);
    let a = volume.create(&from, "a", FileKind::Regular, None);
    let b = volume.create(&to, "b", FileKind::Regular, None);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let target = |node: &Node| Ino(node.ino.0.into());
    let mut admission = volume.admit(0);

    let mut op = volume.ext.begin(OpKind::Rename, &mut admission).unwrap();
    op.name_add(&to, name("moved"), Target { ino: target(&a), kind: a.kind, node: &a }).unwrap();
    op.name_remove(&from, name("a"), &a).unwrap();
    for node in [&a, &from, &to] {
        let put = volume.ext.attr(node);
        op.inode_put(node, &put, 0).unwrap();
    }
    let seal = op.end();
    volume.ext.sync_inode(&a, seal, Epoch(0), SyncScope::Full).unwrap();

    let mut op = volume.ext.begin(OpKind::Exchange, &mut admission).unwrap();
    op.name_moves(&b, (&to, name("b")), (&to, name("moved"))).unwrap();
    op.name_point(&to, name("moved"), Target { ino: target(&b), kind: b.kind, node: &b }).unwrap();
    op.name_point(&to, name("b"), Target { ino: target(&a), kind: a.kind, node: &a }).unwrap();
    for node in [&a, &b, &to] {
        let put = volume.ext.attr(node);
        op.inode_put(node, &put, 0).unwrap();
    }
    op.end();
    assert_eq!(volume.ext.lookup(&to, name("b")).unwrap().unwrap().ino, target(&a));
    drop((from, to, a, b, admission));
    volume.close();
}

/// Returns the inode as a power cut would leave it now.
fn on_disk(volume: &Volume, node: &Node) -> Inode {
    let mut slot = vec![0; volume.ext.geo.inode_size as usize];
    volume.mem.peek(volume.ext.geo.byte_of(node.at.block) + node.at.offset as u64, &mut slot);
    Inode::parse(&slot, &volume.ext.geo)
}

#[test]
fn write_back_beside_a_rename_keeps_the_link_of_the_second_name() {
    let volume = Volume::make(1024, 64);
    let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Rename, &mut admission).unwrap();
    let target = Target { ino: Ino(file.ino.0.into()), kind: file.kind, node: &file };
    op.name_add(&dir, name("moved"), target).unwrap();
    // The kernel's write-back takes no inode lock, and a sweep may come at any time.
    volume.write(&file, 0, 3, 1);
    volume.ext.commit(CommitReason::Age).unwrap();
    assert_eq!(on_disk(&volume, &file).links, 2, "both names are on the disk");
    op.name_remove(&volume.root, name("file"), &file).unwrap();
    for node in [&file, &volume.root, &dir] {
        let put = volume.ext.attr(node);
        op.inode_put(node, &put, put.size).unwrap();
    }
    op.end();
    volume.ext.commit(CommitReason::Sync).unwrap();
    assert_eq!(on_disk(&volume, &file).links, 1);
    drop((dir, file, admission));
    volume.close();
}

#[test]
fn a_rename_that_fails_leaves_the_link_count_as_it_was() {
    let volume = Volume::make(1024, 64);
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Rename, &mut admission).unwrap();
    let target = || Target { ino: Ino(file.ino.0.into()), kind: file.kind, node: &file };
    assert!(op.name_point(&dir, name("absent"), target()).is_err());
    assert!(op.name_add(&file, name("moved"), target()).is_err(), "it is no directory");
    drop(op);
    drop((dir, file, admission));
    volume.close();
}

/// Returns a volume of revision 0, as `mke2fs -r 0` makes them: no features, so every group has a
/// copy of the superblock.
/// A name is moved away and made anew in another sector of its directory.
#[test]
fn a_name_that_is_made_anew_waits_for_its_removal() {
    const NAME: &str = "again-and-again";
    let volume = Volume::make(1024, 16);
    let filler = "f".repeat(240);
    let first = volume.create(&volume.root, &filler, FileKind::Regular, None);
    let second = volume.create(&volume.root, &"s".repeat(200), FileKind::Regular, None);
    let file = volume.create(&volume.root, NAME, FileKind::Regular, None);
    volume.unlink(&volume.root, &filler, &first);
    volume.ext.commit(CommitReason::Sync).unwrap();
    let block = volume.root.inode().block[0];
    let on_disk = || {
        let mut bytes = [0; 1024];
        volume.mem.peek(u64::from(block) * 1024, &mut bytes);
        let at: Vec<usize> = (0..1024 - NAME.len()).filter(|at| bytes[*at..].starts_with(NAME.as_bytes())).collect();
        at
    };
    let before = on_disk();
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Rename, &mut admission).unwrap();
    let target = Target { ino: Ino(file.ino.0.into()), kind: file.kind, node: &file };
    op.name_add(&volume.root, name("moved"), target).unwrap();
    op.name_remove(&volume.root, name(NAME), &file).unwrap();
    let put = volume.ext.attr(&file);
    op.inode_put(&file, &put, put.size).unwrap();
    op.end();
    let removal = volume.ext.entries_level.load(Ordering::Relaxed);
    let anew = volume.create(&volume.root, NAME, FileKind::Regular, None);
    let added = volume.ext.names_level.load(Ordering::Relaxed);
    assert!(added > removal, "added at level {added}, removed at {removal}: a cut may tear the block between them");
    volume.ext.commit(CommitReason::Sync).unwrap();
    assert!(on_disk()[0] / 512 != before[0] / 512, "not in another sector");
    drop((first, second, file, anew, admission));
    volume.close();
}

fn revision_0() -> Option<Volume> {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(64 << 20).unwrap();
    let made = judge::have("mke2fs").then(|| judge::run("mke2fs", &["-qF", "-r", "0", "-b", "1024"], image.path()))?;
    assert_eq!(made.code, Some(0), "{}", made.text);
    Some(Volume::open(Arc::new(MemDisk::read_from(image.path()).unwrap())))
}

#[test]
fn a_large_file_raises_revision_0() {
    let Some(volume) = revision_0() else { return };
    let file = volume.create(&volume.root, "large", FileKind::Regular, None);
    volume.write(&file, (2 << 30) / 1024, 1, 1);
    drop(file);
    let volume = Volume::open(volume.close());
    let found = volume.ext.lookup(&volume.root, name("large")).unwrap().unwrap();
    assert_eq!(volume.ext.load(found.ino).unwrap().0.size, (2 << 30) + 1024);
    volume.close();
}

#[test]
fn an_attribute_block_raises_revision_0() {
    let Some(volume) = revision_0() else { return };
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    let key = XattrKey { space: XattrSpace::User, suffix: b"key".as_slice().into() };
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Xattr, &mut admission).unwrap();
    op.xattr_set(&file, &key, Some(b"value"), SetMode::Create).unwrap();
    op.end();
    drop((file, admission));
    let volume = Volume::open(volume.close());
    let found = volume.ext.lookup(&volume.root, name("file")).unwrap().unwrap();
    let file = volume.ext.load(found.ino).unwrap().1;
    assert_eq!(volume.ext.xattr(&file, &key).unwrap(), Some(b"value".to_vec()));
    drop(file);
    volume.close();
}

#[test]
fn an_inode_that_uses_a_feature_waits_for_it_also_if_another_op_added_it() {
    let Some(volume) = revision_0() else { return };
    let first = volume.ext.note_large_file().unwrap();
    assert!(volume.ext.meta.is_pending(first));
    assert_eq!(volume.ext.note_large_file().unwrap(), first);
    volume.ext.commit(CommitReason::Sync).unwrap();
    assert!(!volume.ext.meta.is_pending(volume.ext.note_large_file().unwrap()));
    volume.close();
}

/// Marks a volume at the old offset, which was used until Linux gave the bytes at 0x284 a meaning.
fn mark_the_old_way(mem: &MemDisk) {
    let mut mark = [0; 16];
    mem.peek(1024 + 0x3EC, &mut mark);
    assert_eq!(&mark[..4], b"1aom", "it is marked the new way");
    mem.poke(1024 + 0x284, &mark);
    mem.poke(1024 + 0x3EC, &[0; 16]);
}

fn reserved_bytes(mem: &MemDisk) -> [u8; 16] {
    let mut bytes = [0; 16];
    mem.peek(1024 + 0x284, &mut bytes);
    bytes
}

#[test]
fn the_mark_lies_in_bytes_without_a_meaning_and_old_ones_go() {
    let mem = Volume::make(1024, 64).close();
    assert_eq!(reserved_bytes(&mem), [0; 16]);
    mark_the_old_way(&mem);
    let volume = Volume::open(mem);
    assert_eq!(reserved_bytes(&volume.mem), [0; 16]);
    // A crash under the old version is one of our own.
    let crashed = Arc::new(volume.mem.snapshot());
    mark_the_old_way(&crashed);
    let volume = Volume::open(crashed);
    assert_eq!(reserved_bytes(&volume.mem), [0; 16]);
    assert!(Ext::open(Arc::new(volume.mem.snapshot()), Live::new(), OpenOptions::default()).is_ok());
    volume.close();
}

#[test]
fn bytes_of_others_at_the_old_place_of_the_mark_stay() {
    let mem = Volume::make(1024, 64).close();
    let halves = [0x31, 0x61, 0x6F, 0x6D];
    mem.poke(1024 + 0x284, &halves);
    mem.poke(1024 + 0x284 + 10, &[1]);
    let volume = Volume::open(mem);
    assert_eq!(reserved_bytes(&volume.mem)[..4], halves);
    volume.close();
}

#[test]
fn shares_in_an_attribute_block_are_given_up_one_by_one() {
    let volume = Volume::make(1024, 64);
    let key = XattrKey { space: XattrSpace::User, suffix: b"key".as_slice().into() };
    let files: Vec<Node> = ["a", "b"].map(|text| volume.create(&volume.root, text, FileKind::Regular, None)).into();
    let mut admission = volume.admit(0);
    let mut op = volume.ext.begin(OpKind::Xattr, &mut admission).unwrap();
    op.xattr_set(&files[0], &key, Some(&[7; 600]), SetMode::Create).unwrap();
    op.end();
    // Another driver has let the second file share the block.
    let no = files[0].inode().file_acl;
    let block = volume.ext.meta.get(no, Kind::Xattr).unwrap();
    volume.ext.meta.change_loose(&block, |bytes| crate::format::xattr::set_refcount(bytes, 2));
    {
        let mut state = files[1].state.lock();
        state.inode.file_acl = no;
        volume.ext.count_blocks(&mut state, 1);
    }
    volume.ext.store(&files[1]).unwrap();
    volume.ext.commit(CommitReason::Sync).unwrap();
    let removal = volume.ext.store_with(&files[0], Level(volume.ext.meta.highest().0 + 9), |_, _| {}).unwrap();
    volume.ext.release_xattr_block(&files[0], no, removal).unwrap();
    volume.ext.release_xattr_block(&files[1], no, Level::NONE).unwrap();
    assert!(volume.ext.meta.is_pending(removal));
    assert!(volume.ext.alloc.is_freeing(), "the first file may still point to it");
}

#[test]
fn what_is_being_freed_counts_until_it_is_free() {
    let disk = Held::new(2048);
    disk.state().holding = false;
    mkfs(&disk.disk, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
    let ext = Ext::open(disk.clone(), Live::new(), OpenOptions::default()).unwrap();
    let all = ext.alloc.spare_blocks();
    let run = ext.allocate(|draft| draft.choose(GroupNo(0), Fit::Longest, 100)).unwrap().0.expect("there is space");
    ext.commit(CommitReason::Sync).unwrap();
    ext.shrink(0);
    disk.state().holding = true;
    let while_freeing = thread::scope(|scope| {
        scope.spawn(|| ext.alloc.free(Level::NONE, Freed::Data { start: run.start.0, len: run.len }).unwrap());
        disk.await_request();
        let seen = (ext.alloc.freeing(), ext.alloc.spare_blocks());
        disk.go_on();
        seen
    });
    let len = u64::from(run.len);
    assert_eq!(while_freeing, (len, all - len), "or else an admission would be refused for good");
    assert_eq!((ext.alloc.freeing(), ext.alloc.spare_blocks()), (0, all));
}

#[test]
fn no_freed_block_is_missing_from_the_free_space_while_it_becomes_reusable() {
    let volume = Volume::make(8192, 64);
    let ext = &volume.ext;
    for _ in 0..20 {
        let run =
            ext.allocate(|draft| draft.choose(GroupNo(0), Fit::Longest, 2000)).unwrap().0.expect("there is space");
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let blocks = run.start.0..run.end().0;
                blocks.for_each(|start| ext.alloc.free(Level::NONE, Freed::Data { start, len: 1 }).unwrap());
                is_done.store(true, Ordering::SeqCst);
            });
            let mut before = 0;
            while !is_done.load(Ordering::SeqCst) {
                let now = ext.space().free_blocks;
                assert!(now >= before, "{before} blocks were free, and then {now}");
                before = now;
            }
        });
    }
    volume.close();
}

#[test]
fn no_admission_is_refused_while_space_is_being_freed() {
    const CLIENTS: usize = 3;
    let volume = Volume::make(1024, 8);
    let share = volume.ext.space().free_blocks as u32 / (CLIENTS as u32 + 1) * 2 / 3;
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..40 {
                    let text = format!("{client}-{round}");
                    let file = volume.create(&volume.root, &text, FileKind::Regular, None);
                    volume.write(&file, 0, share, 1);
                    volume.unlink(&volume.root, &text, &file);
                    if client == 0 {
                        volume.ext.commit(CommitReason::Age).unwrap();
                    }
                }
            });
        }
    });
    volume.close();
}

#[test]
fn an_unclean_volume_of_our_own_mounts_and_another_drivers_does_not() {
    let volume = Volume::make(4096, 64);
    let crashed = Arc::new(volume.mem.snapshot());
    assert!(Ext::open(crashed.clone(), Live::new(), OpenOptions::default()).is_ok());
    // Another driver counts one mount more.
    let mut count = [0; 2];
    crashed.peek(1024 + 0x34, &mut count);
    count[0] = count[0].wrapping_add(1);
    crashed.poke(1024 + 0x34, &count);
    let Err(refused) = Ext::open(crashed, Live::new(), OpenOptions::default()) else { panic!("it was accepted") };
    assert!(refused.to_string().contains("e2fsck -p"), "{refused}");
}

/// The maker of an inode has its number and is held up; meanwhile another file of the same table block is
/// made, stored, and the cache is emptied.
#[test]
fn a_new_inode_keeps_what_is_stored_beside_it_before_its_own_slot_is_written() {
    let v = Volume::make(1024, 16);
    let new = loop {
        let new = v.ext.alloc.inode(GroupNo(0), false).unwrap().expect("inodes are free");
        if new.table.is_some() {
            break new;
        }
    };
    let other = v.create(&v.root, "other", FileKind::Regular, None).ino;
    assert_eq!(other.0, new.ino.0 + 1, "the next one, in the same block");
    v.ext.commit(CommitReason::Sync).unwrap();
    (0..4).for_each(|_| v.ext.shrink(0));
    let at = v.ext.slot_at(other).unwrap();
    let slot = at.offset..at.offset + v.ext.geo.inode_size as usize;
    let links = |bytes: &[u8]| Inode::parse(&bytes[slot.clone()], &v.ext.geo).links;
    let table = new.table.expect("looked at above");
    assert_eq!(table.view(links), 1, "in the block that the maker has");
    assert_eq!(v.ext.table_block(&at).unwrap().view(links), 1, "in the cache");
    assert!(Arc::ptr_eq(&table, &v.ext.table_block(&at).unwrap()), "they are one");
}

#[test]
fn a_directory_that_cannot_grow_gives_its_new_block_back() {
    for features in [FeatureSet::EXT2, FeatureSet::EXT3] {
        let volume = Volume::with(features, 1024, 64);
        let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
        let block = u64::from(volume.ext.geo.block_size);
        let mut files = 0;
        // The next block needs an indirect one.
        while dir.inode().size < 12 * block {
            files += 1;
            volume.create(&dir, &format!("{files:0>200}"), FileKind::Regular, None);
        }
        let free = volume.ext.space().free_blocks;
        {
            let (mut op_room, mut room, mut calls) = (volume.admit(0), volume.admit(0), 0);
            let op = volume.ext.begin(OpKind::Create, &mut op_room).unwrap();
            let mut second_fails = || {
                calls += 1;
                if calls == 2 { Err(Error::Posix(libc::EIO)) } else { volume.ext.meta_block(GroupNo(0), &mut room) }
            };
            let mut index = dir.index.write();
            let refused = volume.ext.grow(&dir, index.as_mut().expect("a name was added"), &mut second_fails);
            assert_eq!(refused.unwrap_err().errno(), libc::EIO);
            op.end();
        }
        volume.ext.commit(CommitReason::Sync).unwrap();
        assert_eq!(volume.ext.space().free_blocks, free);
        drop(dir);
        volume.close();
    }
}
