//! The engine driven directly, as vfs drives it; e2fsck judges what is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_disk::{Buf, Cause, Disk, DiskExt, Epoch, Kind, Lba, SharedDisk, Tag};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::format::{Admission, Format, FormatOp, Harden, Need, OpKind, Progress, Seal, SpaceClass, Target, Why};
use moafs_vfs::plan::{DirtyFile, DirtyView, Due};
use moafs_vfs::types::{Attr, FileKind, Ino, Lbn, LbnRange, Mapping, Name, SetMode, XattrKey, XattrSpace};

mod cowrite;
mod recovery;
mod swaparea;

use super::{Ext, Incore, OpenOptions};
use crate::judge;
use crate::mkfs::{MkfsOptions, mkfs};

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
        let mem = Arc::new(MemDisk::new(mebibytes << 11));
        let options = MkfsOptions {
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
        let need = Need { data_blocks: data, map_blocks: data.div_ceil(256) + 3, meta_blocks: 8, inodes: 1 };
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
    fn write(&self, node: &Node, at: u64, blocks: u32, fill: u8) -> Seal {
        let size = self.ext.geo.block_bytes();
        let ino = Ino(node.ino.0.into());
        let mut admission = self.admit(blocks.into());
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
        let plan = self.ext.plan(Due::Sync(ino), &OneDirty(file)).unwrap();
        let mut written = Vec::new();
        for travel in plan.travels {
            let data = Buf::copy_of(&vec![fill; size * travel.to.len as usize]).freeze();
            let lba = Lba(travel.to.start.0 * (size / 512) as u64);
            let epoch = self.mem.write(lba, data, Tag::new(Kind::Data, ino.0, Cause::Demand)).unwrap();
            written.push((travel, epoch));
        }
        let mut op = self.ext.begin(OpKind::Place, &mut admission).unwrap();
        for (travel, epoch) in written {
            op.place(node, travel.from[0].range, travel.to, epoch).unwrap();
        }
        let mut put = self.ext.load(ino).map_or_else(|_| attr(FileKind::Regular), |(attr, _)| attr);
        put.size = put.size.max((at + u64::from(blocks)) * size as u64);
        op.inode_put(node, &put, put.size).unwrap();
        op.end()
    }

    fn unlink(&self, dir: &Node, text: &str, node: &Node) {
        let mut admission = Admission::none();
        let mut op = self.ext.begin(OpKind::Unlink, &mut admission).unwrap();
        let mut gone = self.ext.attr(node);
        let parent = self.ext.attr(dir);
        op.name_remove(dir, name(text), node).unwrap();
        gone.nlink = 0;
        op.inode_orphan(node, &gone).unwrap();
        op.inode_put(dir, &parent, 0).unwrap();
        op.end();
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
fn truncation_in_bounded_steps_frees_blocks_and_maps() {
    let volume = Volume::make(1024, 64);
    let before = volume.ext.space().free_blocks;
    let file = volume.create(&volume.root, "file", FileKind::Regular, None);
    volume.write(&file, 0, 2000, 1);
    volume.ext.commit(Why::Sync).unwrap();
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

#[test]
fn what_was_never_written_costs_nothing() {
    let volume = Volume::make(4096, 64);
    volume.ext.commit(Why::Sync).unwrap();
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
    volume.ext.commit(Why::Sync).unwrap();
    let before = volume.mem.epoch();
    for n in 0..100 {
        let file = volume.create(&volume.root, &format!("file{n}"), FileKind::Regular, None);
        volume.write(&file, 0, 1, n);
    }
    volume.ext.commit(Why::Sync).unwrap();
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
    volume.ext.commit(Why::Sync).unwrap();
    for n in (0..2000).step_by(2) {
        let text = format!("a-rather-long-name-of-a-file-{n}");
        let node = nodes.remove(&text).unwrap();
        volume.unlink(&dir, &text, &node);
    }
    volume.ext.commit(Why::Sync).unwrap();
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
    volume.ext.commit(Why::Sync).unwrap();
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
    volume.ext.harden(&a, seal, Epoch(0), Harden::All).unwrap();

    let mut op = volume.ext.begin(OpKind::Exchange, &mut admission).unwrap();
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
