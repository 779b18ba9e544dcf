//! The journal of a volume: where its log lies, what a replay would write, and reading the volume as if it had been
//! written.
//!
//! [`Journal::open`] finds the log. [`Journal::scan`] decides, without writing anything, which blocks a replay writes
//! home and where their contents lie in the log ([`Replay`]). [`Replayed`] is a disk that shows them in their places:
//! what reads a volume with a journal to replay goes through it, and sees what a replay would make. A writing mount and
//! the checker write the same [`Replay`] out instead ([`Journal::write_home`]), and [`Log`] appends transactions.
//!
//! Not here: which changes make up a transaction (`crate::meta`); fast commits, which are refused by name; journals on
//! another device.
//!
//! | module | content |
//! |---|---|
//! | `replay` | the scan of the log: which transactions count, and what they leave |
//! | `overlay` | [`Replayed`], the disk that shows it |
//! | `home` | writing it out |
//! | `log` | [`Log`], which appends transactions |

mod home;
mod log;
mod overlay;
mod replay;

use std::collections::BTreeSet;
use std::sync::Arc;

use moafs_disk::{Buf, DiskExt, Kind, Lba, Op, Request, SECTOR, SharedDisk, Tag};
use moafs_vfs::types::FileKind;
use moafs_vfs::{Error, Result};

use crate::engine::read_superblock;
use crate::format::extent::Tree;
use crate::format::journal::{JournalSuperblock, SUPERBLOCK_BYTES};
use crate::format::map::POINTERS;
use crate::format::superblock::{Compat, Incompat, SUPERBLOCK_OFFSET, State};
use crate::format::{
    BlockNo, Descriptor, Geometry, Inode, InodeNo, Owner, Place, Sealed, Structure, Superblock, checksum, map, u32_at,
};
use crate::health::damaged;

pub use log::Log;
pub use overlay::Replayed;
pub use replay::{Logged, Replay};

/// Bytes that one read of the log brings at most.
const READ_BYTES: usize = 1 << 20;

/// A run of the journal's blocks on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRun {
    /// The first of them in the journal, counted from its superblock.
    pub at: u32,
    /// The same block on the volume.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

impl LogRun {
    /// Returns the block of the volume behind the run.
    fn end(&self) -> BlockNo {
        BlockNo(self.start.0 + u64::from(self.len))
    }
}

/// A journal inside its volume.
pub struct Journal {
    disk: SharedDisk,
    geo: Geometry,
    runs: Vec<LogRun>,
    /// The same runs, ascending by their place on the volume.
    sorted: Vec<LogRun>,
    superblock: JournalSuperblock,
    /// The bytes of the superblock as they are on the disk.
    superblock_bytes: Vec<u8>,
}

impl Journal {
    /// Finds the journal of a volume; `None` if it has none. Reads the volume as it lies on the disk.
    ///
    /// # Errors
    /// [`Error::Refused`] for a journal on another device; damage and device errors as they are.
    pub fn open(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<Option<Journal>> {
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        if sb.journal_inum() == 0 {
            return Err(Error::Refused(
                "the journal is on another device, which is not supported: mount the volume with the kernel".to_owned(),
            ));
        }
        let ino = InodeNo(sb.journal_inum());
        let volume = Volume { disk, geo };
        let (inode, table) = volume.inode(ino)?;
        let place = Place::new(Structure::Inode(ino), table);
        if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            return Err(damaged(place.damage("this is not the inode of a journal")));
        }
        let blocks = inode.size / u64::from(geo.block_size);
        let blocks = u32::try_from(blocks.min(geo.blocks)).unwrap_or(u32::MAX);
        let runs = volume.runs(&inode, inode.owner(ino), table, blocks)?;
        let mapped = runs.last().map_or(0, |run| u64::from(run.at) + u64::from(run.len));
        let Some(first) = runs.first() else {
            return Err(damaged(place.damage("the journal has no blocks")));
        };
        let bytes = volume.block(first.start, Kind::Journal)?;
        let superblock =
            JournalSuperblock::decode(&bytes[..SUPERBLOCK_BYTES], geo.block_size, mapped).map_err(damaged)?;
        let mut sorted = runs.clone();
        sorted.sort_by_key(|run| run.start);
        if sorted.windows(2).any(|pair| pair[0].end() > pair[1].start) {
            return Err(damaged(place.damage("the journal has a block twice")));
        }
        let superblock_bytes = bytes[..SUPERBLOCK_BYTES].to_vec();
        Ok(Some(Journal { disk: Arc::clone(disk), geo: geo.clone(), runs, sorted, superblock, superblock_bytes }))
    }

    /// Returns the journal's superblock.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns the runs of the journal's blocks, ascending by their place in the journal.
    pub fn runs(&self) -> &[LogRun] {
        &self.runs
    }

    /// Returns the block of the volume that holds a block of the journal; `None` beyond its end.
    fn locate(&self, at: u32) -> Option<(BlockNo, u32)> {
        let index = self.runs.partition_point(|run| run.at <= at).checked_sub(1)?;
        let run = self.runs[index];
        let skipped = at - run.at;
        (skipped < run.len).then(|| (BlockNo(run.start.0 + u64::from(skipped)), run.len - skipped))
    }

    /// Returns the same as [`Self::locate`].
    ///
    /// # Errors
    /// Damage if the journal has no such block.
    fn locate_checked(&self, at: u32) -> Result<(BlockNo, u32)> {
        self.locate(at)
            .ok_or_else(|| damaged(Place::of(Structure::LogBlock(at)).damage("it lies beyond the end of the journal")))
    }

    /// Returns true if a block of the volume belongs to the journal itself.
    fn owns(&self, block: BlockNo) -> bool {
        let before = self.sorted.partition_point(|run| run.start <= block);
        before > 0 && block < self.sorted[before - 1].end()
    }
}

/// Returns the disk through which a volume is read whose journal has to be replayed, and the replay that it shows.
///
/// # Errors
/// [`Error::Refused`] for journals that are not supported; damage of the journal, and device errors.
pub fn read_through(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<(SharedDisk, Replay)> {
    let Some(journal) = Journal::open(disk, sb, geo)? else {
        let place = Place::of(Structure::Superblock);
        return Err(damaged(place.damage("the volume claims to have a journal to replay, but no journal")));
    };
    let replay = journal.scan()?;
    Ok((shown(disk, geo, &journal, &replay), replay))
}

/// Returns the disk that shows what a replay would write.
pub(crate) fn shown(disk: &SharedDisk, geo: &Geometry, journal: &Journal, replay: &Replay) -> SharedDisk {
    Arc::new(Replayed::new(Arc::clone(disk), geo, journal, replay))
}

/// Opens the journal of a volume for writing, and replays it first if it `needs_replay`.
///
/// # Errors
/// [`Error::Refused`] for journals that are not supported; damage of the journal, and device errors.
pub fn recover(disk: &SharedDisk, sb: &Superblock, geo: &Geometry, needs_replay: bool) -> Result<(Log, Replay)> {
    let Some(mut journal) = Journal::open(disk, sb, geo)? else {
        let place = Place::of(Structure::Superblock);
        return Err(damaged(place.damage("the volume claims to have a journal to replay, but no journal")));
    };
    if journal.superblock.end - journal.superblock.first < LOG_BLOCKS_MIN {
        return Err(Error::Refused(format!(
            "the journal has {} blocks, too few to write to: make it larger with `tune2fs -J`, or mount the volume with \
             `-o ro`",
            journal.superblock.blocks
        )));
    }
    if journal.superblock.errno != 0 {
        return Err(Error::Refused(format!(
            "the journal records that its last user gave up with error {}: run `e2fsck -fp` on the volume, or mount it with \
             `-o ro`",
            journal.superblock.errno
        )));
    }
    if !needs_replay && !journal.superblock.is_empty() {
        return Err(Error::Refused(
            "the journal holds changes, but the superblock says that it need not be replayed: run `e2fsck -f` on the \
             volume, or mount it with `-o ro`"
                .to_owned(),
        ));
    }
    let replay = journal.scan()?;
    if needs_replay {
        journal.write_home(&replay)?;
    }
    let wide = geo.incompat.contains(Incompat::BIT64);
    Ok((Log::begin(journal, geo.checksums.cover_all(), wide), replay))
}

/// Says in the superblock of a volume that is not mounted that its journal need not be replayed any more; and that the
/// volume has errors, if it does.
pub(crate) fn say_replayed(disk: &SharedDisk, before: &Superblock, geo: &Geometry, has_errors: bool) -> Result<()> {
    // The superblock itself may have been in the journal.
    let mut sb = read_superblock(disk).unwrap_or_else(|_| before.clone());
    sb.set_incompat(sb.incompat() - Incompat::NEEDS_RECOVERY);
    if has_errors {
        sb.set_state(sb.state() | State::ERROR);
    }
    write_superblock(disk, &sb, geo)
}

/// Writes the superblock to its place, durably, beside journal and cache.
pub(crate) fn write_superblock(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<()> {
    let mut bytes = Buf::copy_of(sb.as_bytes());
    if geo.checksums.cover_all() {
        checksum::keep_superblock_sum(&mut bytes);
    }
    let write = Request {
        op: Op::Write { data: vec![bytes.freeze()], fua: false },
        at: Lba::from_byte(SUPERBLOCK_OFFSET),
        tag: Tag::volume(Kind::Superblock),
    };
    let done = disk.run(vec![write]).remove(0);
    done.result.map_err(|source| Error::disk("writing the superblock", source))?;
    disk.make_durable(disk.epoch()).map_err(|source| Error::disk("flushing the superblock", source))
}

/// The smallest log, in blocks, that every op fits into.
const LOG_BLOCKS_MIN: u32 = 512;

/// Returns true if the volume has to be read through its journal.
pub fn needs_replay(sb: &Superblock) -> bool {
    sb.incompat().contains(Incompat::NEEDS_RECOVERY)
}

/// A volume that is read as it lies on the disk, block by block.
struct Volume<'a> {
    disk: &'a SharedDisk,
    geo: &'a Geometry,
}

impl Volume<'_> {
    fn block(&self, block: BlockNo, kind: Kind) -> Result<Buf> {
        let at = Lba::from_byte(self.geo.byte_of(block));
        let read = self.disk.read(at, self.geo.block_bytes(), Tag::volume(kind));
        read.map_err(|source| Error::disk(format!("reading block {block}"), source))
    }

    /// Reads an inode, and returns it with the block that holds it.
    fn inode(&self, ino: InodeNo) -> Result<(Inode, BlockNo)> {
        let Some(at) = self.geo.locate_inode(ino) else {
            let problem = format!("the journal is inode {ino}, but there are only {}", self.geo.inodes);
            return Err(damaged(Place::of(Structure::Superblock).damage(problem)));
        };
        let (block, offset) = self.geo.locate_descriptor(at.group);
        let bytes = self.block(block, Kind::Descriptors)?;
        let slot = &bytes[offset..offset + self.geo.desc_size as usize];
        let descriptor = Descriptor::decode(slot, at.group, self.geo).map_err(damaged)?;
        let table = BlockNo(descriptor.inode_table.0 + u64::from(at.table_block));
        let bytes = self.block(table, Kind::Inodes)?;
        let slot = &bytes[at.offset..at.offset + self.geo.inode_size as usize];
        let place = Place::new(Structure::Inode(ino), table);
        self.geo.checksums.verify(Sealed::Inode(ino), slot).map_err(|problem| damaged(place.damage(problem)))?;
        Ok((Inode::parse(slot, self.geo), table))
    }

    /// Returns the runs of an inode's first `blocks` blocks, which must have no hole.
    fn runs(&self, inode: &Inode, owner: Owner, table: BlockNo, blocks: u32) -> Result<Vec<LogRun>> {
        let place = Place::new(Structure::Inode(owner.ino), table);
        let mut runs = Runs { runs: Vec::new(), next: 0, end: blocks, place };
        if inode.has_extents() {
            let root = inode.block_bytes();
            let tree = Tree { owner, root: &root, block: table };
            let mut read = |block| self.block(block, Kind::Map);
            tree.walk(self.geo, &mut read, &mut |extent| {
                if extent.unwritten {
                    return Err(damaged(place.damage("the journal has blocks that were never written")));
                }
                runs.add(extent.lbn.into(), extent.start, extent.len.into())
            })?;
        } else {
            let mut seen = BTreeSet::new();
            for (slot, pointer) in inode.block.into_iter().enumerate().take(POINTERS) {
                self.pointers(map::level_of_slot(slot), pointer, &mut runs, &mut seen)?;
            }
        }
        Ok(runs.runs)
    }

    /// Takes what a pointer leads to. `seen` holds the indirect blocks so far: a loop ends there.
    fn pointers(&self, level: u8, pointer: u32, runs: &mut Runs, seen: &mut BTreeSet<u32>) -> Result<()> {
        if runs.is_full() {
            return Ok(());
        }
        let block = BlockNo(pointer.into());
        if !self.geo.may_point_to(block) {
            return Err(damaged(runs.place.damage(format!("a pointer leads to block {block}, outside the volume"))));
        }
        if level == 0 {
            return runs.add(runs.next.into(), block, 1);
        }
        if !seen.insert(pointer) {
            return Err(damaged(runs.place.damage(format!("indirect block {block} is used twice"))));
        }
        let bytes = self.block(block, Kind::Map)?;
        (0..self.geo.apb as usize).try_for_each(|index| self.pointers(level - 1, u32_at(&bytes, 4 * index), runs, seen))
    }
}

/// Runs that are being collected.
struct Runs {
    runs: Vec<LogRun>,
    next: u32,
    end: u32,
    place: Place,
}

impl Runs {
    fn is_full(&self) -> bool {
        self.next >= self.end
    }

    fn add(&mut self, lbn: u64, start: BlockNo, len: u64) -> Result<()> {
        if self.is_full() {
            return Ok(());
        }
        if lbn != u64::from(self.next) {
            let problem = format!("the journal has a hole at its block {}", self.next);
            return Err(damaged(self.place.damage(problem)));
        }
        let len = len.min(u64::from(self.end - self.next)) as u32;
        match self.runs.last_mut() {
            Some(last) if last.end() == start => last.len += len,
            _ => self.runs.push(LogRun { at: self.next, start, len }),
        }
        self.next += len;
        Ok(())
    }
}

/// Reads blocks of the log, and those behind them with the same request.
struct LogReader<'a> {
    journal: &'a Journal,
    /// The blocks in memory, and the first of them.
    window: (u32, Buf),
}

impl<'a> LogReader<'a> {
    fn new(journal: &'a Journal) -> LogReader<'a> {
        LogReader { journal, window: (0, Buf::zeroed(0)) }
    }

    /// Returns a block of the log.
    fn block(&mut self, at: u32) -> Result<&[u8]> {
        let size = self.journal.geo.block_bytes();
        let held = |window: &(u32, Buf)| at >= window.0 && ((at - window.0) as usize) < window.1.len() / size;
        if !held(&self.window) {
            let (block, together) = self.journal.locate_checked(at)?;
            let blocks = (together as usize).min((READ_BYTES / size).max(1));
            let lba = Lba(block.0 * (size / SECTOR) as u64);
            let read = self.journal.disk.read(lba, blocks * size, Tag::volume(Kind::Journal));
            let bytes = read.map_err(|source| Error::disk(format!("reading block {at} of the journal"), source))?;
            self.window = (at, bytes);
        }
        let start = (at - self.window.0) as usize * size;
        Ok(&self.window.1[start..start + size])
    }
}
