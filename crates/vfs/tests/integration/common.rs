//! A small format for tests: metadata in memory, data in place on a disk.
//!
//! Durability is modelled by copies: `commit` and `sync_inode` remember all metadata as they are, so a
//! "power cut" is a new volume from the last copy and the disk's bytes.

#![allow(dead_code, unreachable_pub, reason = "tests and benchmarks each use their part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::fault::Fault;
use moafs_disk::{Buf, Cause, DiskExt, Epoch, Kind, Lba, SharedDisk, Tag};
use moafs_runtime::{Rt, Time};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::format::*;
use moafs_vfs::plan::{DirtyView, Plan, PlannedWrite, WritebackReason};
use moafs_vfs::types::*;
use moafs_vfs::{Credentials, Error, Format, FormatOp, Result, Vfs};
use parking_lot::Mutex;

pub const BLOCK: usize = 1024;
pub const ROOT: Ino = Ino(2);

#[derive(Clone)]
struct File {
    attr: Attr,
    disk_size: u64,
    blocks: BTreeMap<u64, u64>,
    /// Map blocks, by tree, level and index.
    maps: BTreeSet<(usize, u8, u64)>,
    names: BTreeMap<u64, (Vec<u8>, Dentry)>,
    index: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<XattrKey, Vec<u8>>,
    target: Vec<u8>,
    parent: Ino,
    orphan: bool,
}

#[derive(Clone)]
pub struct Meta {
    files: BTreeMap<u64, File>,
    used: BTreeSet<u64>,
    next_entry: u64,
}

/// Blocks that one op unmaps: few, so that tests see several ops.
const STEP_BLOCKS: u32 = 8;

struct Promised(AtomicU64);

impl Reservations for Promised {
    fn release(&self, blocks: u64, _inodes: u64) {
        self.0.fetch_sub(blocks, Ordering::SeqCst);
    }
}

/// The format for tests.
pub struct Toy {
    shape: Shape,
    meta: Mutex<Meta>,
    durable: Mutex<Option<Meta>>,
    promised: Arc<Promised>,
    disk: SharedDisk,
    seal: AtomicU64,
    /// True if small files of one directory are written together.
    pub co_write: AtomicBool,
    /// Blocks that no file has any more, and that do not count as free yet.
    unmapping: AtomicU64,
    /// Blocks that were handed out to data which no file maps yet: they count as free, since what was promised to the
    /// data is not spent.
    flying: Mutex<BTreeSet<u64>>,
    /// If set, answers take time, and other tasks run in between.
    pub dawdles: Mutex<Option<Rt>>,
    /// True if files have map blocks: these take space, though none of the disk.
    pub mapped: AtomicBool,
    /// True if every four blocks of a file cost one more that vfs cannot foresee, and counting them takes time.
    pub unforeseen: AtomicBool,
    /// True if neighbours are told under each other's numbers.
    pub lies: AtomicBool,
    /// If set, the next look for neighbours moves this file, which has one block.
    pub moves: Mutex<Option<Ino>>,
    relocations: AtomicU64,
    pub fails: Mutex<Option<String>>,
    /// The reason of the first call that wanted the volume to fail: it goes on.
    pub blamed: Mutex<Option<String>>,
    pub ops: AtomicU64,
    pub hardened: AtomicU64,
    pub committed: AtomicU64,
    /// Number of background steps that were run.
    pub tended: AtomicU64,
    pub abandoned: AtomicU64,
    /// If set, no op of this kind begins: the next commit has no room for what it may change.
    pub refuses: Mutex<Option<OpKind>>,
    /// True if dirty blocks get a new place each time they leave.
    pub reallocates: AtomicBool,
    /// If set, no block of this file can be mapped.
    pub unmappable: Mutex<Option<Ino>>,
    /// If set, the inode whose attributes and map cannot be read to be changed.
    pub unreadable: Mutex<Option<Ino>>,
    /// Number of attempts to read it.
    pub unread: AtomicU64,
    /// If true, no directory has room for a name, and no inode for an attribute.
    pub cramped: AtomicBool,
    /// True if a commit and the adding of a name panic.
    pub panics: AtomicBool,
    /// True if no inode can be synced.
    pub unsyncable: AtomicBool,
    /// If set, `sync_inode` makes durable the changes up to the commit point asked for, and no others.
    pub history: Mutex<Option<Vec<(CommitPoint, Meta)>>>,
    /// If set, the point at which the next call waits.
    pub stall: Mutex<Option<Stall>>,
}

/// A point inside an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// Before an op begins that unmaps blocks.
    Unmap,
    /// In such an op, before the map changes.
    Unmapping,
    /// Before the format records an inode's attributes.
    Put,
    /// After the op has its commit point, before the caller knows it.
    End,
    /// Before a file's map is looked up.
    Map,
    /// After it was looked up.
    Mapped,
    /// After blocks were written, before an op begins that maps them.
    Flight,
    /// Before written blocks are mapped into a file.
    Place,
    /// After they were mapped, before they stop to count as free.
    Placed,
}

/// The next op that passes `point` waits there for `pause`.
pub struct Stall {
    pub rt: Rt,
    pub point: Point,
    pub pause: Duration,
}

pub struct ToyNode(pub Ino);

pub struct ToyOp<'a> {
    toy: &'a Toy,
    admission: &'a mut Admission,
}

impl Toy {
    pub fn new(disk: SharedDisk) -> Toy {
        let blocks = disk.limits().sectors * 512 / BLOCK as u64;
        let attr = Attr {
            kind: FileKind::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            size: BLOCK as u64,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            crtime: None,
            rdev: 0,
            generation: 0,
            flags: 0,
        };
        let mut files = BTreeMap::new();
        files.insert(ROOT.0, File::new(attr, ROOT));
        // Block 0 stays unused.
        let meta = Meta { files, used: BTreeSet::from([0]), next_entry: 1 };
        let shape = Shape {
            format: "toy",
            block_size: BLOCK as u32,
            root: ROOT,
            blocks,
            inodes: 1 << 20,
            file_bytes_max: 1 << 40,
            links_max: 50,
            uncounted_subdirectories: false,
            inodes_take_blocks: false,
            name_meta_blocks: 4,
            symlink_bytes_max: 4096,
            symlink_inode_bytes_max: 0,
            time_range: (-1 << 31, (1 << 34) - 1),
            time_nanos: true,
            birth_times: true,
            user_flags: 0x1_00ff,
            beyond_eof: false,
            frees_overhang: false,
            size_follows_map: false,
            unmap_step: UnmapStep { blocks: STEP_BLOCKS, runs: STEP_BLOCKS },
            allocate_on_write: false,
            id: 1,
            label: String::new(),
            read_only: None,
            notes: Vec::new(),
        };
        Toy {
            shape,
            durable: Mutex::new(Some(meta.clone())),
            meta: Mutex::new(meta),
            promised: Arc::new(Promised(AtomicU64::new(0))),
            disk,
            seal: AtomicU64::new(0),
            co_write: AtomicBool::new(false),
            unmapping: AtomicU64::new(0),
            flying: Mutex::new(BTreeSet::new()),
            dawdles: Mutex::new(None),
            mapped: AtomicBool::new(false),
            unforeseen: AtomicBool::new(false),
            lies: AtomicBool::new(false),
            moves: Mutex::new(None),
            relocations: AtomicU64::new(0),
            fails: Mutex::new(None),
            panics: AtomicBool::new(false),
            unsyncable: AtomicBool::new(false),
            blamed: Mutex::new(None),
            ops: AtomicU64::new(0),
            hardened: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            tended: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            refuses: Mutex::new(None),
            reallocates: AtomicBool::new(false),
            unmappable: Mutex::new(None),
            unreadable: Mutex::new(None),
            unread: AtomicU64::new(0),
            cramped: AtomicBool::new(false),
            history: Mutex::new(None),
            stall: Mutex::new(None),
        }
    }

    /// Returns the volume as a power cut now would leave it.
    pub fn after_power_cut(&self) -> Toy {
        let toy = Toy::new(Arc::clone(&self.disk));
        let meta = self.durable.lock().clone().expect("there is always a copy");
        for file in meta.files.values() {
            assert!(!file.orphan || file.attr.nlink == 0);
        }
        *toy.meta.lock() = meta.clone();
        for file in toy.meta.lock().files.values_mut() {
            if file.attr.kind == FileKind::Regular {
                file.attr.size = file.disk_size;
            }
        }
        toy
    }

    /// Lowers the size on disk of a file and leaves its blocks where they are, as a power cut can.
    pub fn cut_size(&self, ino: Ino, size: u64) {
        let durable = &mut *self.durable.lock();
        let meta = durable.as_mut().expect("there is always a copy");
        meta.files.get_mut(&ino.0).expect("the file was made durable").disk_size = size;
    }

    /// Returns the number of blocks promised and not spent.
    pub fn promised(&self) -> u64 {
        self.promised.0.load(Ordering::SeqCst)
    }

    /// Returns the number of blocks in use by files; checks that each is mapped once, and that no others are allocated.
    pub fn used(&self) -> u64 {
        let meta = self.meta.lock();
        let mut seen = BTreeSet::from([0]);
        for file in meta.files.values() {
            for block in file.blocks.values() {
                assert!(seen.insert(*block), "block {block} is used twice");
            }
        }
        assert_eq!(seen, meta.used, "allocated and mapped blocks differ");
        seen.len() as u64 - 1
    }

    /// Returns the number of inodes in use.
    pub fn inodes(&self) -> usize {
        self.meta.lock().files.len()
    }

    /// Returns the file's size on disk, in bytes.
    pub fn disk_size(&self, ino: Ino) -> u64 {
        self.meta.lock().files[&ino.0].disk_size
    }

    pub fn put_attr(&self, ino: Ino) -> Attr {
        self.meta.lock().files[&ino.0].attr.clone()
    }

    fn with<R>(&self, node: &ToyNode, f: impl FnOnce(&File) -> R) -> Result<R> {
        self.meta.lock().files.get(&node.0.0).map(f).ok_or(Error::Stale(node.0))
    }

    fn loaded(&self, ino: Ino) -> Result<(Attr, ToyNode)> {
        let meta = self.meta.lock();
        let file = meta.files.get(&ino.0).ok_or(Error::Stale(ino))?;
        Ok((file.attr.clone(), ToyNode(ino)))
    }

    /// Lets other tasks run for up to two milliseconds of virtual time.
    fn dawdle(&self) {
        let Some(rt) = self.dawdles.lock().clone() else { return };
        let turn = self.ops.fetch_add(1, Ordering::Relaxed);
        let pause = std::time::Duration::from_micros(turn.wrapping_mul(0x9E37_79B9) >> 7 & 0x7FF);
        moafs_runtime::sleep_until(&*rt, rt.now() + pause);
    }

    fn stall_at(&self, point: Point) {
        let stall = {
            let mut stall = self.stall.lock();
            if stall.as_ref().is_some_and(|stall| stall.point == point) { stall.take() } else { None }
        };
        if let Some(stall) = stall {
            moafs_runtime::sleep_until(&*stall.rt, stall.rt.now() + stall.pause);
        }
    }

    /// Makes changes up to the commit point `upto` durable; all of them, unless a history is kept.
    fn remember(&self, upto: CommitPoint) {
        let copy = match &*self.history.lock() {
            Some(history) => history.iter().rfind(|(seal, _)| *seal <= upto).map(|(_, meta)| meta.clone()),
            None => Some(self.meta.lock().clone()),
        };
        if let Some(copy) = copy {
            *self.durable.lock() = Some(copy);
        }
    }

    /// Moves a file's only block, as a cleaner does; other bytes take its old place.
    fn relocate(&self, ino: Ino) {
        let to = self.allocate(1, 0).expect("there is room");
        let from = self.meta.lock().files[&ino.0].blocks[&0];
        let tag = Tag::new(Kind::Data, ino.0, Cause::Move);
        let at = |block: u64| Lba::from_byte(block * BLOCK as u64);
        let bytes = self.disk.read(at(from), BLOCK, tag).expect("the disk works");
        self.disk.write(at(to.start.0), bytes.freeze(), tag).expect("the disk works");
        self.disk.write(at(from), Buf::zeroed(BLOCK).freeze(), tag).expect("the disk works");
        let mut meta = self.meta.lock();
        meta.files.get_mut(&ino.0).expect("it is there").blocks.insert(0, to.start.0);
        meta.used.remove(&from);
        drop(meta);
        self.land(to);
        self.relocations.fetch_add(1, Ordering::SeqCst);
    }

    fn land(&self, run: BlockRun) {
        self.flying.lock().retain(|block| !(run.start.0..run.end().0).contains(block));
    }

    fn free_blocks(&self) -> u64 {
        let flying = self.flying.lock().len() as u64;
        let meta = self.meta.lock();
        (self.shape.blocks + flying - meta.used.len() as u64).saturating_sub(meta.maps() + self.promised())
    }

    fn allocate(&self, want: u32, goal: u64) -> Result<BlockRun> {
        let mut meta = self.meta.lock();
        let all = self.shape.blocks;
        let left = all - meta.used.len() as u64 - meta.maps();
        let want = want.min(u32::try_from(left).unwrap_or(u32::MAX));
        if want == 0 {
            return Err(Error::Posix(libc::ENOSPC));
        }
        let start =
            (0..all).map(|i| (goal + i) % all).find(|b| !meta.used.contains(b)).ok_or(Error::Posix(libc::ENOSPC))?;
        let len = (start..(start + u64::from(want)).min(all)).take_while(|b| !meta.used.contains(b)).count() as u32;
        meta.used.extend(start..start + u64::from(len));
        drop(meta);
        self.flying.lock().extend(start..start + u64::from(len));
        Ok(BlockRun { start: BlockAddr(start), len })
    }
}

/// The shape of the files' maps.
const MAP: MapShape = MapShape { direct: 2, fan: 4, trees: &[1, 2, 3, 5, 5, 5, 5] };

/// Returns the map blocks above a file block, the lowest first.
fn map_path(at: u64) -> Vec<(usize, u8, u64)> {
    let mut first = MAP.direct;
    for (tree, &height) in MAP.trees.iter().enumerate() {
        let span = MAP.fan.pow(height.into());
        if at >= first && at < first + span {
            return (1..=height).map(|level| (tree, level, (at - first) / MAP.fan.pow(level.into()))).collect();
        }
        first += span;
    }
    Vec::new()
}

impl Meta {
    fn maps(&self) -> u64 {
        self.files.values().map(|file| file.maps.len() as u64).sum()
    }
}

impl File {
    fn new(attr: Attr, parent: Ino) -> File {
        File {
            disk_size: attr.size,
            attr,
            blocks: BTreeMap::new(),
            maps: BTreeSet::new(),
            names: BTreeMap::new(),
            index: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            target: Vec::new(),
            parent,
            orphan: false,
        }
    }
}

impl Format for Toy {
    type Node = ToyNode;
    type Op<'a> = ToyOp<'a>;

    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn space(&self) -> VolumeSpace {
        let free_blocks = self.free_blocks().saturating_sub(self.unmapping.load(Ordering::SeqCst));
        let free_inodes = self.shape.inodes - self.meta.lock().files.len() as u64;
        VolumeSpace { free_blocks, free_inodes, ..VolumeSpace::default() }
    }
    fn failed(&self) -> Option<String> {
        self.fails.lock().clone()
    }
    /// Does nothing: the toy goes on, so that tests see what vfs does when a write succeeds later.
    fn fail(&self, reason: &str) {
        self.blamed.lock().get_or_insert_with(|| reason.into());
    }
    fn load(&self, ino: Ino) -> Result<(Attr, ToyNode)> {
        self.dawdle();
        let loaded = self.loaded(ino);
        self.dawdle();
        loaded
    }
    fn lookup(&self, dir: &ToyNode, name: &Name) -> Result<Option<Dentry>> {
        self.with(dir, |d| match name.as_bytes() {
            b".." => Some(Dentry { ino: d.parent, kind: Some(FileKind::Directory) }),
            name => d.index.get(name).map(|seq| d.names[seq].1),
        })
    }
    fn list(&self, dir: &ToyNode, from: Cookie, to: &mut DirSink<'_>) -> Result<()> {
        let (names, parent) = self.with(dir, |d| (d.names.clone(), d.parent))?;
        let kind = Some(FileKind::Directory);
        for (cookie, name, ino) in [(1, &b"."[..], dir.0), (2, b"..", parent)] {
            if from.0 < cookie && !to(Name::new(name).unwrap(), Dentry { ino, kind }, Cookie(cookie)) {
                return Ok(());
            }
        }
        for (seq, (name, dentry)) in names {
            let cookie = seq + 2;
            if from.0 < cookie && !to(Name::new(&name).unwrap(), dentry, Cookie(cookie)) {
                return Ok(());
            }
        }
        Ok(())
    }
    fn is_empty(&self, dir: &ToyNode) -> Result<bool> {
        self.with(dir, |d| d.names.is_empty())
    }
    fn readlink(&self, link: &ToyNode) -> Result<Vec<u8>> {
        self.with(link, |l| l.target.clone())
    }
    fn map(&self, file: &ToyNode, at: Lbn, max: u32) -> Result<Mapping> {
        assert!(max > 0);
        self.stall_at(Point::Map);
        let mapping = self.with(file, |f| {
            let Some(&start) = f.blocks.get(&at.0) else {
                let next = f.blocks.range(at.0..).next().map_or(u64::MAX, |(b, _)| *b);
                return Mapping::Hole { len: (next - at.0).min(u64::from(max)) as u32 };
            };
            let len = (0..u64::from(max)).take_while(|i| f.blocks.get(&(at.0 + i)) == Some(&(start + i))).count();
            Mapping::Run(BlockRun { start: BlockAddr(start), len: len as u32 })
        });
        self.stall_at(Point::Mapped);
        mapping
    }
    fn relocation_generation(&self) -> u64 {
        self.relocations.load(Ordering::SeqCst)
    }
    /// Returns the neighbours that lie in one piece, also unlinked files: it is only a hint.
    fn neighbours(&self, file: &ToyNode, around: BlockRun, reach: u32) -> Vec<Neighbour> {
        let moving = self.moves.lock().take();
        moving.into_iter().for_each(|ino| self.relocate(ino));
        let meta = self.meta.lock();
        let others = meta.files.iter().filter(|(ino, _)| **ino != file.0.0);
        let mut near: Vec<Neighbour> = others
            .filter_map(|(ino, f)| {
                let start = *f.blocks.get(&0)?;
                let run = BlockRun { start: BlockAddr(start), len: f.blocks.len() as u32 };
                let in_one_piece = (0..).zip(start..).zip(&f.blocks).all(|((lbn, at), there)| there == (&lbn, &at));
                let reach = u64::from(reach);
                let within = around.start.0.saturating_sub(reach) <= start && run.end().0 <= around.end().0 + reach;
                (in_one_piece && within).then_some(Neighbour { ino: Ino(*ino), run })
            })
            .collect();
        drop(meta);
        near.sort_by_key(|near| near.run.start);
        self.dawdle();
        if self.lies.load(Ordering::Relaxed) && !near.is_empty() {
            let mut inos: Vec<Ino> = near.iter().map(|near| near.ino).collect();
            inos.rotate_left(1);
            near.iter_mut().zip(inos).for_each(|(near, ino)| near.ino = ino);
        }
        near
    }
    fn map_shape(&self, _file: &ToyNode) -> MapShape {
        if self.mapped.load(Ordering::Relaxed) { MAP } else { MapShape::FLAT }
    }
    fn missing_maps(&self, file: &ToyNode, at: Lbn) -> Result<u8> {
        self.with(file, |f| map_path(at.0).iter().filter(|key| !f.maps.contains(key)).count() as u8)
    }
    fn used_sectors(&self, node: &ToyNode) -> u64 {
        let unforeseen = self.unforeseen.load(Ordering::Relaxed);
        let more = |f: &File| if unforeseen { f.blocks.len() / 4 } else { 0 };
        let blocks = self.with(node, |f| f.blocks.len() + f.maps.len() + more(f)).unwrap_or(0);
        if unforeseen {
            self.dawdle();
        }
        blocks as u64 * (BLOCK as u64 / 512)
    }
    fn generation(&self, _: &ToyNode) -> u32 {
        7
    }
    fn size(&self, node: &ToyNode) -> u64 {
        self.with(node, |f| (f.names.len() as u64 / 16 + 1) * BLOCK as u64).unwrap_or(0)
    }
    fn xattr(&self, node: &ToyNode, key: &XattrKey) -> Result<Option<Vec<u8>>> {
        self.with(node, |f| f.xattrs.get(key).cloned())
    }
    fn xattr_list(&self, node: &ToyNode) -> Result<Vec<XattrKey>> {
        self.with(node, |f| f.xattrs.keys().cloned().collect())
    }

    fn admit(&self, need: SpaceRequest, _who: SpaceClass) -> Result<Admission> {
        let blocks = need.data_blocks + need.map_blocks;
        // As in the ext family, a block in flight counts twice: it is taken, and what was promised for it is not spent.
        let flying = self.flying.lock().len() as u64;
        if blocks + flying > self.free_blocks() {
            return Err(Error::Posix(libc::ENOSPC));
        }
        self.promised.0.fetch_add(blocks, Ordering::SeqCst);
        Ok(Admission::new(blocks, 0, Arc::clone(&self.promised) as _))
    }
    fn begin<'a>(&'a self, kind: OpKind, admission: &'a mut Admission) -> Result<ToyOp<'a>> {
        if let Some(reason) = self.failed() {
            return Err(Error::ReadOnly { reason });
        }
        if *self.refuses.lock() == Some(kind) {
            return Err(Error::Posix(libc::ENOSPC));
        }
        match kind {
            OpKind::Place => self.stall_at(Point::Flight),
            OpKind::Unmap => self.stall_at(Point::Unmap),
            _ => {}
        }
        self.ops.fetch_add(1, Ordering::Relaxed);
        Ok(ToyOp { toy: self, admission })
    }

    fn plan(&self, due: WritebackReason, dirty: &dyn DirtyView<ToyNode>) -> Result<Plan> {
        let mut plan = Plan::default();
        let around = match due {
            WritebackReason::Evict(_, at) => Some((at, 64)),
            _ => None,
        };
        let Some(file) = dirty.file(due.ino(), around) else { return Ok(plan) };
        let mut files = vec![file];
        if self.co_write.load(Ordering::Relaxed) && files[0].blocks <= 4 {
            let home = files[0].home;
            for count in dirty.small_counts(home).into_iter().filter(|c| *c <= 4) {
                let others = dirty.small_files(home, count);
                files.extend(
                    others.into_iter().filter(|i| *i != due.ino()).take(16).filter_map(|i| dirty.file(i, None)),
                );
            }
        }
        let mut loose: Vec<FileRange> = Vec::new();
        for file in &files {
            for range in &file.dirty {
                let mut at = range.start;
                while at < range.end() {
                    let left = (range.end().0 - at.0) as u32;
                    let mapping = self.map(&file.node, at, left)?;
                    let part = LbnRange { start: at, len: mapping.len() };
                    let tag = Tag::new(Kind::Data, file.ino.0, Cause::Demand);
                    match mapping {
                        Mapping::Run(to) if !self.reallocates.load(Ordering::Relaxed) => {
                            plan.writes.push(PlannedWrite {
                                to,
                                from: [FileRange { ino: file.ino, range: part }].into_iter().collect(),
                                fresh: false,
                                tag,
                            })
                        }
                        _ => loose.push(FileRange { ino: file.ino, range: part }),
                    }
                    at = part.end();
                }
            }
        }
        self.travel_fresh(loose, &mut plan)?;
        Ok(plan)
    }

    fn abandon(&self, run: BlockRun) {
        self.land(run);
        let mut meta = self.meta.lock();
        for block in run.start.0..run.end().0 {
            assert!(meta.used.remove(&block), "abandoning a block that is free");
            self.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sync_inode(&self, _node: &ToyNode, upto: CommitPoint, _data: Epoch, _how: SyncScope) -> Result<()> {
        assert!(upto.0 <= self.seal.load(Ordering::SeqCst));
        self.hardened.fetch_add(1, Ordering::Relaxed);
        if self.unsyncable.load(Ordering::Relaxed) {
            return Err(Error::Posix(libc::EIO));
        }
        self.remember(upto);
        Ok(())
    }
    fn commit(&self, _why: CommitReason) -> Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "a panic that is wanted");
        self.committed.fetch_add(1, Ordering::Relaxed);
        *self.durable.lock() = Some(self.meta.lock().clone());
        Ok(())
    }
    fn run_background_step(&self, _idle: Idle) -> Option<Time> {
        self.tended.fetch_add(1, Ordering::Relaxed);
        None
    }
    fn shrink(&self, _bytes: usize) {}
    fn memory(&self) -> usize {
        0
    }
    fn survey(&self, _to: &mut dyn Survey) -> Result<()> {
        Ok(())
    }
    fn survey_space(&self, _to: &mut dyn Survey) -> Result<()> {
        Ok(())
    }
    fn runs(&self, _node: &ToyNode) -> Result<Vec<(Lbn, BlockRun)>> {
        Ok(Vec::new())
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl Toy {
    /// Plans runs for blocks without an address: one planned write per run, filled in order.
    fn travel_fresh(&self, loose: Vec<FileRange>, plan: &mut Plan) -> Result<()> {
        let mut left: std::collections::VecDeque<FileRange> = loose.into();
        let mut goal = 1;
        while let Some(first) = left.front().copied() {
            let together = self.co_write.load(Ordering::Relaxed);
            let want: u32 = match together {
                true => left.iter().map(|r| r.range.len).sum::<u32>().min(64),
                false => first.range.len.min(64),
            };
            let to = match self.allocate(want, goal) {
                Ok(run) => run,
                Err(error) => {
                    let planned: Vec<BlockRun> = plan.writes.drain(..).filter(|t| t.fresh).map(|t| t.to).collect();
                    planned.into_iter().for_each(|run| self.abandon(run));
                    return Err(error);
                }
            };
            goal = to.end().0;
            let mut from = smallvec::SmallVec::new();
            let mut room = to.len;
            while room > 0 {
                let range = left.front_mut().expect("a run is no longer than what is left");
                let len = range.range.len.min(room);
                from.push(FileRange { ino: range.ino, range: LbnRange { start: range.range.start, len } });
                range.range = LbnRange { start: Lbn(range.range.start.0 + u64::from(len)), len: range.range.len - len };
                if range.range.len == 0 {
                    left.pop_front();
                }
                room -= len;
            }
            plan.writes.push(PlannedWrite {
                to,
                from,
                fresh: true,
                tag: Tag::new(Kind::Data, first.ino.0, Cause::Demand),
            });
        }
        Ok(())
    }
}

impl ToyOp<'_> {
    fn check_readable(&self, node: &ToyNode) -> Result<()> {
        if *self.toy.unreadable.lock() != Some(node.0) {
            return Ok(());
        }
        self.toy.unread.fetch_add(1, Ordering::Relaxed);
        Err(Error::Posix(libc::EIO))
    }

    fn check_room(&self) -> Result<()> {
        if self.toy.cramped.load(Ordering::Relaxed) { Err(Error::Posix(libc::ENOSPC)) } else { Ok(()) }
    }

    fn change<R>(&mut self, node: &ToyNode, f: impl FnOnce(&mut File) -> R) -> Result<R> {
        self.check_readable(node)?;
        self.toy.meta.lock().files.get_mut(&node.0.0).map(f).ok_or(Error::Stale(node.0))
    }
}

impl FormatOp for ToyOp<'_> {
    type Node = ToyNode;

    fn inode_new(&mut self, parent: &ToyNode, attr: &Attr, target: Option<&[u8]>) -> Result<(Ino, ToyNode)> {
        let mut meta = self.toy.meta.lock();
        // The smallest free number: numbers are reused at once, as in the ext family.
        let ino = (10..).find(|i| !meta.files.contains_key(i)).expect("numbers do not end");
        let mut file = File::new(attr.clone(), parent.0);
        file.target = target.map(<[u8]>::to_vec).unwrap_or_default();
        meta.files.insert(ino, file);
        drop(meta);
        self.toy.dawdle();
        Ok((Ino(ino), ToyNode(Ino(ino))))
    }
    fn inode_put(&mut self, node: &ToyNode, attr: &Attr, disk_size: u64) -> Result<()> {
        assert!(disk_size <= attr.size || attr.kind != FileKind::Regular);
        self.toy.stall_at(Point::Put);
        self.change(node, |f| {
            f.attr = attr.clone();
            f.disk_size = disk_size;
            f.orphan = attr.nlink == 0;
        })
    }
    fn inode_orphan(&mut self, node: &ToyNode, attr: &Attr) -> Result<()> {
        assert_eq!(attr.nlink, 0);
        self.change(node, |f| {
            f.attr = attr.clone();
            f.orphan = true;
        })
    }
    fn inode_free(&mut self, node: &ToyNode) -> Result<()> {
        self.toy.dawdle();
        let file = self.toy.meta.lock().files.remove(&node.0.0).ok_or(Error::Stale(node.0))?;
        assert!(file.orphan && file.blocks.is_empty(), "freeing an inode in use");
        Ok(())
    }
    fn name_add(&mut self, dir: &ToyNode, name: &Name, to: Target<'_, ToyNode>) -> Result<()> {
        self.check_room()?;
        assert!(!self.toy.panics.load(Ordering::Relaxed), "a panic that is wanted");
        let mut meta = self.toy.meta.lock();
        meta.next_entry += 1;
        let seq = meta.next_entry;
        let d = meta.files.get_mut(&dir.0.0).ok_or(Error::Stale(dir.0))?;
        assert!(d.index.insert(name.as_bytes().to_vec(), seq).is_none(), "the name exists");
        d.names.insert(seq, (name.as_bytes().to_vec(), Dentry { ino: to.ino, kind: Some(to.kind) }));
        Ok(())
    }
    fn name_point(&mut self, dir: &ToyNode, name: &Name, to: Target<'_, ToyNode>) -> Result<()> {
        self.change(dir, |d| {
            if name.as_bytes() == b".." {
                d.parent = to.ino;
                return;
            }
            let seq = d.index[name.as_bytes()];
            d.names.get_mut(&seq).unwrap().1 = Dentry { ino: to.ino, kind: Some(to.kind) };
        })
    }
    fn name_remove(&mut self, dir: &ToyNode, name: &Name, was: &ToyNode) -> Result<()> {
        self.change(dir, |d| {
            let seq = d.index.remove(name.as_bytes()).expect("the name exists");
            assert_eq!(d.names.remove(&seq).unwrap().1.ino, was.0);
        })
    }
    fn xattr_set(&mut self, node: &ToyNode, key: &XattrKey, value: Option<&[u8]>, _mode: SetMode) -> Result<()> {
        self.check_room()?;
        self.change(node, |f| match value {
            Some(value) => drop(f.xattrs.insert(key.clone(), value.to_vec())),
            None => drop(f.xattrs.remove(key)),
        })
    }
    fn place(&mut self, file: &ToyNode, at: LbnRange, to: BlockRun, _written: Epoch) -> Result<()> {
        assert_eq!(at.len, to.len);
        self.toy.stall_at(Point::Place);
        if *self.toy.unmappable.lock() == Some(file.0) {
            return Err(Error::Posix(libc::EIO));
        }
        let mut meta = self.toy.meta.lock();
        let mut freed = Vec::new();
        let mut fresh = 0;
        let f = meta.files.get_mut(&file.0.0).ok_or(Error::Stale(file.0))?;
        for i in 0..u64::from(at.len) {
            match f.blocks.insert(at.start.0 + i, to.start.0 + i) {
                Some(old) if old != to.start.0 + i => freed.push(old),
                Some(_) => {}
                None => fresh += 1,
            }
            if self.toy.mapped.load(Ordering::Relaxed) {
                fresh += map_path(at.start.0 + i).into_iter().filter(|key| f.maps.insert(*key)).count() as u64;
            }
        }
        meta.used.retain(|block| !freed.contains(block));
        assert!(meta.used.len() as u64 + meta.maps() <= self.toy.shape.blocks, "no block is left for a map");
        drop(meta);
        self.toy.stall_at(Point::Placed);
        self.toy.land(to);
        assert!(self.toy.promised() >= fresh, "placing without admission");
        Ok(())
    }
    fn unmap(&mut self, file: &ToyNode, from: Lbn, to: Option<Lbn>, at_most: u32, _orphan: bool) -> Result<Progress> {
        self.check_readable(file)?;
        self.toy.stall_at(Point::Unmapping);
        self.toy.dawdle();
        let mut meta = self.toy.meta.lock();
        let f = meta.files.get_mut(&file.0.0).ok_or(Error::Stale(file.0))?;
        let end = to.map_or(u64::MAX, |to| to.0);
        let doomed: Vec<u64> =
            f.blocks.range(from.0..end).rev().take(at_most.min(STEP_BLOCKS) as usize).map(|(b, _)| *b).collect();
        let freed: Vec<u64> = doomed.iter().map(|b| f.blocks.remove(b).unwrap()).collect();
        let more = f.blocks.range(from.0..end).next().is_some();
        let kept: BTreeSet<_> = f.blocks.keys().flat_map(|at| map_path(*at)).collect();
        f.maps.retain(|key| kept.contains(key));
        freed.iter().for_each(|block| assert!(meta.used.remove(block)));
        // As in other formats, blocks do not count as free in the moment in which the file has them no more.
        self.toy.unmapping.fetch_add(freed.len() as u64, Ordering::SeqCst);
        drop(meta);
        self.toy.dawdle();
        self.toy.unmapping.fetch_sub(freed.len() as u64, Ordering::SeqCst);
        Ok(if more { Progress::More } else { Progress::Done })
    }
    fn end(self) -> CommitPoint {
        let seal = CommitPoint(self.toy.seal.fetch_add(1, Ordering::SeqCst) + 1);
        if let Some(history) = &mut *self.toy.history.lock() {
            history.push((seal, self.toy.meta.lock().clone()));
        }
        self.toy.stall_at(Point::End);
        seal
    }
}

/// Options of tests: no syncer, a small cache.
pub fn options() -> Options {
    Options { syncer: false, cache_bytes: 4 << 20, ..Options::default() }
}

/// A volume on a disk that tests can make fail.
pub struct Volume {
    pub vfs: Vfs<Toy>,
    pub fault: Arc<Fault>,
    pub rt: Rt,
}

impl Volume {
    pub fn new(blocks: u64, options: Options, rt: Rt) -> Volume {
        Volume::shaped(blocks, options, rt, |_| ())
    }

    /// Makes a volume of a format with other properties.
    pub fn shaped(blocks: u64, options: Options, rt: Rt, change: impl FnOnce(&mut Shape)) -> Volume {
        let disk = Arc::new(MemDisk::new(blocks * BLOCK as u64 / 512));
        let fault = Arc::new(Fault::new(disk, Arc::clone(&rt), Vec::new()));
        let shared: SharedDisk = Arc::clone(&fault) as _;
        let mut toy = Toy::new(Arc::clone(&shared));
        change(&mut toy.shape);
        let vfs = Vfs::new(toy, shared, Arc::clone(&rt), options);
        Volume { vfs, fault, rt }
    }

    pub fn live(blocks: u64) -> Volume {
        Volume::new(blocks, options(), moafs_runtime::Live::new())
    }

    pub fn after_power_cut(&self) -> Vfs<Toy> {
        let toy = self.vfs.format().after_power_cut();
        let disk: SharedDisk = Arc::clone(&self.fault) as _;
        Vfs::new(toy, disk, Arc::clone(&self.rt), options())
    }

    pub fn create(&self, dir: Ino, n: &str) -> Ino {
        self.vfs.create(&Credentials::root(), dir, name(n), &regular(0o644)).unwrap().ino
    }

    pub fn mkdir(&self, dir: Ino, n: &str) -> Ino {
        self.vfs.create(&Credentials::root(), dir, name(n), &directory(0o755)).unwrap().ino
    }

    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        self.vfs.write(&Credentials::root(), ino, offset, data, false).unwrap();
    }

    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        read(&self.vfs, ino, offset, len)
    }
}

pub fn read(vfs: &Vfs<Toy>, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    let got = vfs.read(ino, offset, &mut bytes).unwrap();
    bytes.truncate(got);
    bytes
}

pub fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

pub fn regular(perm: u32) -> NewFile<'static> {
    NewFile { kind: FileKind::Regular, perm, umask: 0, rdev: 0, target: None }
}

pub fn directory(perm: u32) -> NewFile<'static> {
    NewFile { kind: FileKind::Directory, ..regular(perm) }
}

pub fn errno<T>(result: Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.errno(),
    }
}

/// Returns bytes that tell their position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed.wrapping_mul(97)) >> 2) as u8).collect()
}
