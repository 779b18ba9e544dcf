//! Opening a volume (`docs/formats/f2fs.md`, section 14).

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, DiskExt, Kind, SECTOR, SharedDisk, Tag};
use moafs_runtime::Rt;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::lock::{Mutex as WaitMutex, RwLock};
use moafs_vfs::format::{Progress, Shape};
use moafs_vfs::health::Health;
use moafs_vfs::types::Ino;
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use super::options::OpenOptions;
use super::space::{MainArea, Recorded};
use super::superblocks::{self, lba_of, read_superblock};
use super::volume::{F2fs, Tally};
use super::writer::Writer;
use super::{map, nat};
use crate::format::checkpoint::{Checkpoint, CpFlags, Pack, is_newer};
use crate::format::node::{self, Footer};
use crate::format::sit::{self, SIT_PER_BLOCK, SitEntry};
use crate::format::superblock::{Features, Geometry, Superblock, Support};
use crate::format::{BLOCK, Log, Nid, SEGMENT_BLOCKS, Segno, summary::SummaryEntry};
use crate::place::foreseen::ByDeath;
use crate::place::kind::Extensions;
use crate::place::temperature::{Bounds, Separator};

/// Blocks of the tables that one read brings.
const READ_BLOCKS: u32 = 256;

/// Advice for a checkpoint that cannot be read.
const UNREAD_CHECKPOINT: &str = "it may be the newer one, and changes from here on would destroy what it holds: copy the volume to \
     a sound device, or mount it with -o ro to save what the other checkpoint shows";

/// Advice for a newest checkpoint that is damaged.
const DAMAGED_CHECKPOINT: &str = "it is the newest one, and the older one is no longer true: check the volume with \
     `fsck.f2fs`, or mount it with -o ro to save what the older checkpoint shows";

/// Advice for a log that has nowhere to go on.
pub(super) const NO_PLACE: &str =
    "no block is left that may be written; mount it with -o ro to save what is on it, or check it with `fsck.f2fs`";

/// The volume's tables as they were read when it was opened.
struct Tables {
    pack: Pack,
    which: u32,
    sit: Vec<(Segno, SitEntry)>,
    current: [Recorded; 6],
}

impl F2fs {
    /// Opens a volume: reads superblock, checkpoint and the segment information table. If it is
    /// opened for writing, work that a power cut interrupted is finished first.
    ///
    /// # Errors
    /// [`Error::Refused`] for features that are not supported, with their names; damage and device errors as they are.
    pub fn open(disk: SharedDisk, rt: Rt, options: OpenOptions) -> Result<F2fs> {
        let superblock = read_superblock(&disk)?;
        let geo = superblock.geometry();
        let writable = !options.read_only && !disk.limits().read_only;
        let mut read_only = (!writable).then(|| "it was opened for reading only".to_owned());
        match superblock.support(writable) {
            Support::ReadWrite => {}
            Support::ReadOnly(reasons) if !reasons.is_empty() => read_only = Some(reasons.join("; ")),
            Support::ReadOnly(_) => {}
            Support::Refuse(reasons) => return Err(Error::Refused(reasons.join("; "))),
        }
        let end = (u64::from(geo.main) + u64::from(geo.segments) * SEGMENT_BLOCKS as u64) * (BLOCK / SECTOR) as u64;
        if end > disk.limits().sectors {
            let text = format!("the volume has {end} sectors, the device only {}", disk.limits().sectors);
            return Err(Error::Refused(text));
        }
        let Found { pack, which, other, other_is_newer } = read_pack(&disk, &geo)?;
        let mut notes = Vec::new();
        match (&read_only, other) {
            // This pack may be whole, and newer.
            (None, Some(error @ Error::Disk { .. })) => {
                return Err(Error::Refused(format!("{error}; {UNREAD_CHECKPOINT}")));
            }
            (None, Some(error)) if other_is_newer => {
                return Err(Error::Refused(format!("{error}; {DAMAGED_CHECKPOINT}")));
            }
            (_, Some(error)) => notes.push(format!("it goes on from checkpoint {}, because {error}", which + 1)),
            (_, None) => {}
        }
        if let (None, Some(reason)) = (&read_only, unwritable(pack.checkpoint.flags)) {
            read_only = Some(reason.to_owned());
        }
        let sit = read_sit(&disk, &geo, &pack)?;
        let current = current_summaries(&disk, &geo, &pack, &sit)?;
        let mut fs =
            F2fs::assemble(disk, rt, options, &superblock, Tables { pack, which, sit, current }, read_only, notes);
        fs.check_root()?;
        if fs.shape.read_only.is_none() {
            let restored = superblocks::restore_copies(&fs.disk, &superblock)?;
            fs.shape.notes.extend(restored);
            if !fs.space.settle_heads() {
                return Err(Error::Refused(NO_PLACE.to_owned()));
            }
            fs.reap_orphans()?;
        }
        fs.follow_chain()?;
        if fs.options.foresight.is_some() {
            fs.learn_owners()?;
        }
        fs.nodes.read_ahead.start();
        Ok(fs)
    }

    fn assemble(
        disk: SharedDisk,
        rt: Rt,
        options: OpenOptions,
        superblock: &Superblock,
        tables: Tables,
        read_only: Option<String>,
        notes: Vec<String>,
    ) -> F2fs {
        let Tables { pack, which, sit, current } = tables;
        let geo = superblock.geometry();
        let features = superblock.features;
        let checkpoint = pack.checkpoint;
        let separator = separator_for(&options, &geo, &checkpoint);
        let space = Arc::new(MainArea::new(&geo, &checkpoint, sit, current));
        let nat = nat::Nat::new(
            Arc::clone(&disk),
            &geo,
            checkpoint.nat_bitmap.clone(),
            pack.nat_journal,
            Nid(checkpoint.next_free_nid),
            superblock.qf_ino.into_iter().filter(|ino| *ino != 0).map(Nid),
        );
        let version = checkpoint.version;
        let bytes = |list: &[String]| list.iter().map(|extension| extension.clone().into_bytes()).collect();
        let fs = F2fs {
            health: Health::default(),
            shape: Shape { notes, ..shape_of(superblock, &geo, &checkpoint, read_only) },
            uuid: superblock.uuid,
            features,
            extensions: Extensions { cold: bytes(&superblock.cold_extensions), hot: bytes(&superblock.hot_extensions) },
            reserved_segments: checkpoint.reserved_segments,
            space,
            nat,
            nodes: Default::default(),
            owned: Default::default(),
            live: Mutex::new(BTreeMap::new()),
            orphans: Mutex::new(pack.orphans.into_iter().collect()),
            orphans_max: Pack::orphans_max(&geo),
            roll_forward_limits: Mutex::default(),
            separator: Mutex::new(separator),
            bursts: Default::default(),
            gate: RwLock::new(Arc::clone(&rt), ()),
            cleaning: WaitMutex::new(Arc::clone(&rt), ()),
            wants_checkpoint: AtomicBool::new(false),
            version: AtomicU64::new(version + 1),
            committed: AtomicU64::new(version),
            moved: AtomicU64::new(0),
            unsaved: AtomicBool::new(false),
            elapsed_before: checkpoint.elapsed,
            opened: rt.now(),
            tally: Tally::default(),
            writer: WaitMutex::new(
                Arc::clone(&rt),
                Writer {
                    sit_journal: pack.sit_journal.into_iter().collect(),
                    sit_versions: checkpoint.sit_bitmap.clone(),
                    kib_written: pack.kib_written,
                    pack: which,
                    last: checkpoint,
                    own: false,
                    unfinished: None,
                },
            ),
            disk,
            rt,
            options,
            geo,
        };
        fs.tick();
        fs
    }

    /// Brings back what was fsynced after the last checkpoint, or notes that it is missing.
    fn follow_chain(&mut self) -> Result<()> {
        let (files, verb) = match (&self.shape.read_only, self.options.roll_forward) {
            (None, true) => return self.roll_forward(),
            (None, false) => (self.drop_chain()?, "given up"),
            // Whatever is readable is to be shown.
            (Some(_), _) => (self.files_in_chain().unwrap_or(0), "not shown"),
        };
        if files > 0 {
            let note = format!("what was fsynced after the last checkpoint is {verb}; files concerned: {files}");
            self.shape.notes.push(note);
        }
        Ok(())
    }

    /// Refuses a volume that shows nothing because its root directory cannot be read.
    fn check_root(&self) -> Result<()> {
        let problem = match self.usable(Nid::ROOT) {
            Ok(root) if root.is_dir() => return Ok(()),
            Ok(root) => format!("it is a {:?}", root.kind),
            Err(Error::Stale(_)) => "it is not in use".to_owned(),
            Err(Error::Damaged { problem, .. }) => problem,
            Err(error) => return Err(error),
        };
        let root = Nid::ROOT;
        Err(Error::Refused(format!(
            "the root directory (inode {root}) cannot be read: {problem}; check the volume with `fsck.f2fs`"
        )))
    }

    /// Frees the inodes that had no name and were in use when the last checkpoint was written.
    pub(super) fn reap_orphans(&self) -> Result<()> {
        let orphans: Vec<Nid> = self.orphans.lock().iter().copied().collect();
        for ino in orphans {
            match self.incore(ino) {
                Ok(file) => {
                    self.drop_attributes(&file)?;
                    while self.unmap_range(&file, 0, None, u32::MAX)? == Progress::More {}
                    self.free_node(&file.node)?;
                    self.live.lock().remove(&ino);
                }
                Err(Error::Stale(_)) => {}
                Err(error) => return Err(error),
            }
            self.orphans.lock().remove(&ino);
            self.changed();
        }
        Ok(())
    }
}

/// The share of memory that a policy of temperatures may take: one in so many bytes.
const SEPARATOR_SHARE: usize = 16;

/// Makes the policy that tells hot from cold.
fn separator_for(options: &OpenOptions, geo: &Geometry, checkpoint: &Checkpoint) -> Box<dyn Separator> {
    let blocks = u64::from(geo.segments) * SEGMENT_BLOCKS as u64;
    match &options.foresight {
        Some(foresight) if options.places_by_foresight => {
            let dead = blocks.saturating_sub(checkpoint.valid_blocks);
            Box::new(ByDeath::new(Arc::clone(foresight), dead))
        }
        _ => {
            let bytes_max = options.cache_bytes / SEPARATOR_SHARE;
            options.temperature.separator(options.seed, Bounds { blocks, bytes_max })
        }
    }
}

fn read_blocks(disk: &SharedDisk, first: u32, blocks: u32, what: &str) -> Result<Buf> {
    let tag = Tag::volume(Kind::Segments);
    disk.read(lba_of(first), blocks as usize * BLOCK, tag)
        .map_err(|source| Error::disk(format!("reading {what} (block {first})"), source))
}

/// The checkpoint to go on from.
pub(super) struct Found {
    pub(super) pack: Pack,
    /// The number (0 or 1) of its pack.
    pub(super) which: u32,
    /// The reason why the other pack was not taken, if it could not be read: it is not whole, as a
    /// power cut leaves it, or the device failed.
    pub(super) other: Option<Error>,
    /// The other pack was finished, and is newer: its contents are damaged.
    pub(super) other_is_newer: bool,
}

/// A pack that cannot be used.
struct Unusable {
    error: Error,
    /// Its version, if it was finished.
    finished: Option<u64>,
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Unusable {
        Unusable { error, finished: None }
    }
}

/// Reads the newer one of the checkpoint packs that are whole.
pub(super) fn read_pack(disk: &SharedDisk, geo: &Geometry) -> Result<Found> {
    let [first, second] = [0, 1].map(|which| read_one_pack(disk, geo, which));
    let (pack, which, other) = match (first, second) {
        (Ok(first), Ok(second)) if is_newer(second.checkpoint.version, first.checkpoint.version) => (second, 1, None),
        (Ok(first), Ok(_)) => (first, 0, None),
        (Ok(first), Err(unusable)) => (first, 0, Some(unusable)),
        (Err(unusable), Ok(second)) => (second, 1, Some(unusable)),
        (Err(unusable), Err(_)) => return Err(unusable.error),
    };
    let version = pack.checkpoint.version;
    let finished = other.as_ref().and_then(|unusable| unusable.finished);
    let other_is_newer = finished.is_some_and(|finished| is_newer(finished, version));
    // The second pack of a volume that was never used is not a valid one.
    match other.map(|unusable| unusable.error) {
        Some(error) if version == 0 => Err(error),
        other => Ok(Found { pack, which, other, other_is_newer }),
    }
}

fn read_one_pack(disk: &SharedDisk, geo: &Geometry, which: u32) -> std::result::Result<Pack, Unusable> {
    let start = geo.pack_at(which).0;
    let head = read_blocks(disk, start, 1, "a checkpoint")?;
    let blocks = Checkpoint::claimed_blocks(&head).clamp(1, SEGMENT_BLOCKS as u32);
    let all = read_blocks(disk, start, blocks, "a checkpoint")?;
    let unusable = |damage| Unusable { error: damaged(damage), finished: Pack::finished_version(&all) };
    Pack::decode(&all, geo, which as u8).map_err(unusable)
}

/// Returns the reason why a volume in this state must not be changed.
fn unwritable(flags: CpFlags) -> Option<&'static str> {
    const REASONS: [(CpFlags, &str); 4] = [
        (CpFlags::ERROR, "an error was found on it; check it with `fsck.f2fs`"),
        (CpFlags::FSCK, "it is marked to be checked; run `fsck.f2fs` on it"),
        (CpFlags::DISABLED, "its checkpoints are disabled; enable them where it was mounted last"),
        (CpFlags::RESIZEFS, "it is being resized; finish that with `resize.f2fs`"),
    ];
    REASONS.iter().find(|(flag, _)| flags.contains(*flag)).map(|(_, reason)| *reason)
}

/// Reads the entries of all segments that hold something, those of the journal included.
fn read_sit(disk: &SharedDisk, geo: &Geometry, pack: &Pack) -> Result<Vec<(Segno, SitEntry)>> {
    let journal: BTreeMap<Segno, &SitEntry> = pack.sit_journal.iter().map(|(segno, entry)| (*segno, entry)).collect();
    let mut entries = Vec::new();
    let place = |block: u32| geo.sit_at(block, pack.checkpoint.sit_bitmap.get(block as usize)).0;
    let blocks: Vec<u32> = (0..geo.sit_blocks()).collect();
    for run in blocks.chunk_by(|a, b| place(*a) + 1 == place(*b)) {
        for part in run.chunks(READ_BLOCKS as usize) {
            let bytes = read_blocks(disk, place(part[0]), part.len() as u32, "the segment information table")?;
            for (block, bytes) in part.iter().zip(bytes.chunks_exact(BLOCK)) {
                collect_entries(geo, *block, bytes, &journal, &mut entries)?;
            }
        }
    }
    Ok(entries)
}

fn collect_entries(
    geo: &Geometry,
    block: u32,
    bytes: &[u8],
    journal: &BTreeMap<Segno, &SitEntry>,
    entries: &mut Vec<(Segno, SitEntry)>,
) -> Result<()> {
    let first = block * SIT_PER_BLOCK as u32;
    let segments: Range<u32> = first..geo.segments.min(first + SIT_PER_BLOCK as u32);
    let blank = bytes.iter().all(|byte| *byte == 0);
    for segno in segments.map(Segno) {
        let entry = match journal.get(&segno) {
            Some(entry) => **entry,
            None if blank => continue,
            None => sit::entry(bytes, (segno.0 - first) as usize, segno).map_err(damaged)?,
        };
        if !entry.map.is_empty() {
            entries.push((segno, entry));
        }
    }
    Ok(())
}

/// Reads the summaries of the current segments. Those of nodes that the checkpoint does not have
/// are read from the nodes themselves.
fn current_summaries(
    disk: &SharedDisk,
    geo: &Geometry,
    pack: &Pack,
    sit: &[(Segno, SitEntry)],
) -> Result<[Recorded; 6]> {
    let mut current = Vec::with_capacity(6);
    for log in Log::ALL {
        current.push(match &pack.summaries[log as usize] {
            Some(summary) => Recorded { summary: summary.clone(), known: Default::default(), complete: true },
            None => summary_of_nodes(disk, geo, pack.checkpoint.current[log as usize].segno, sit)?,
        });
    }
    Ok(current.try_into().unwrap_or_else(|_| unreachable!("six logs")))
}

fn summary_of_nodes(disk: &SharedDisk, geo: &Geometry, segno: Segno, sit: &[(Segno, SitEntry)]) -> Result<Recorded> {
    let mut recorded = Recorded::fresh();
    let Ok(index) = sit.binary_search_by_key(&segno, |(segno, _)| *segno) else { return Ok(recorded) };
    let first = geo.block_of(segno, 0).0;
    let bytes = read_blocks(disk, first, SEGMENT_BLOCKS as u32, "a segment of nodes")?;
    for offset in sit[index].1.map.iter_set() {
        let nid = Footer::decode(&bytes[offset * BLOCK..(offset + 1) * BLOCK]).nid;
        recorded.summary.entries[offset] = SummaryEntry { nid, version: 0, offset: 0 };
    }
    Ok(recorded)
}

fn shape_of(superblock: &Superblock, geo: &Geometry, checkpoint: &Checkpoint, read_only: Option<String>) -> Shape {
    let word =
        |at: usize| superblock.uuid[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    // Inodes differ in what lies inside them: this is the least room for addresses that any has.
    let addresses = 923 - 9 - 50;
    Shape {
        format: "f2fs",
        block_size: BLOCK as u32,
        root: Ino(Nid::ROOT.0.into()),
        blocks: checkpoint.user_blocks,
        inodes: u64::from(geo.nid_max()).min(checkpoint.user_blocks),
        file_bytes_max: node::lbn_limit(addresses) * BLOCK as u64,
        links_max: u32::MAX,
        uncounted_subdirectories: false,
        inodes_take_blocks: true,
        name_meta_blocks: 4,
        symlink_bytes_max: BLOCK - 1,
        // A word in front is reserved, and a byte at the end stays free.
        symlink_inode_bytes_max: 4 * (addresses as usize - 1) - 1,
        time_range: (i64::MIN, i64::MAX),
        time_nanos: true,
        birth_times: superblock.features.contains(Features::INODE_CRTIME),
        user_flags: super::incore::USER_FLAGS,
        beyond_eof: false,
        frees_overhang: false,
        size_follows_map: false,
        unmap_step: map::UNMAP_STEP,
        allocate_on_write: false,
        id: word(0) ^ word(8),
        label: superblock.label.clone(),
        read_only,
        notes: Vec::new(),
    }
}
