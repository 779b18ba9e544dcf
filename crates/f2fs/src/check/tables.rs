//! Pass 1: superblock, checkpoint, the tables, and where the logs stand.

use std::collections::BTreeMap;

use moafs_disk::Disk;

use super::checker::{Checker, Tell};
use super::nat::Nat;
use super::segment::Segment;
use super::volume::{REQUEST_BLOCKS, Volume};
use super::{CheckError, Issue, Outcome};
use crate::format::chain::{self, Facts};
use crate::format::checkpoint::{Checkpoint, CpFlags, Pack, VersionBitmap, is_newer};
use crate::format::nat::NatEntry;
use crate::format::node::Footer;
use crate::format::sit::{self, SIT_PER_BLOCK, SitEntry};
use crate::format::superblock::{Features, Geometry, SUPERBLOCK_START, Superblock};
use crate::format::{BLOCK, BlkAddr, Damage, Log, Nid, SEGMENT_BLOCKS, Segno, Structure};

/// Features whose volumes cannot be checked: they change what the structures mean.
const UNKNOWN: [(Features, &str); 6] = [
    (Features::BLKZONED, "blkzoned"),
    (Features::CASEFOLD, "casefold"),
    (Features::COMPRESSION, "compression"),
    (Features::RO, "ro"),
    (Features::DEVICE_ALIAS, "device_alias"),
    (Features::PACKED_SSA, "packed_ssa"),
];

/// Finds a superblock that makes sense: the first copy, or else the second.
fn read_superblock(volume: &Volume<'_>, outcome: &mut Outcome) -> Result<Superblock, CheckError> {
    let blocks = [
        volume.read_run(BlkAddr(0), 1, "read the superblock")?,
        volume.read_run(BlkAddr(1), 1, "read the superblock")?,
    ];
    let decode = |copy: u8| {
        let superblock = Superblock::decode(&blocks[usize::from(copy)], copy)?;
        check_size(&superblock.geometry(), volume.blocks(), copy)?;
        Ok(superblock)
    };
    let damaged = |damage: Damage, copy| Issue::SuperblockDamaged { copy, problem: damage.problem };
    let superblock = match (decode(0), decode(1)) {
        (Ok(first), Ok(_)) => {
            let [first_copy, second_copy] = [&blocks[0], &blocks[1]].map(|block| &block[SUPERBLOCK_START..]);
            if let Some(byte) = first_copy.iter().zip(second_copy).position(|(a, b)| a != b) {
                outcome.found(Issue::SuperblocksDiffer { byte });
            }
            first
        }
        (Ok(first), Err(damage)) => {
            outcome.found(damaged(damage, 1));
            first
        }
        (Err(damage), Ok(second)) => {
            outcome.found(damaged(damage, 0));
            second
        }
        (Err(damage), Err(_)) => return Err(damage.into()),
    };
    match unsupported(&superblock) {
        Some(reason) => Err(CheckError::Unsupported(reason)),
        None => Ok(superblock),
    }
}

/// Checks that a volume fits its device.
fn check_size(geo: &Geometry, blocks: u64, copy: u8) -> Result<(), Damage> {
    let end = u64::from(geo.main) + u64::from(geo.segments) * SEGMENT_BLOCKS as u64;
    if end <= blocks {
        return Ok(());
    }
    let problem = format!("the volume ends at block {end}, but the device has only {blocks}");
    Err(Structure::Superblock(copy).damage(Some(BlkAddr(copy.into())), problem))
}

fn unsupported(superblock: &Superblock) -> Option<String> {
    if superblock.multi_device() {
        return Some("it spans several devices".to_owned());
    }
    let named = Features::all().iter_names().fold(Features::empty(), |all, (_, feature)| all | feature);
    let unknown = superblock.features.difference(named).names();
    let known = UNKNOWN.iter().filter(|(feature, _)| superblock.features.contains(*feature));
    let names: Vec<String> = known.map(|(_, name)| (*name).to_owned()).chain(unknown).collect();
    (!names.is_empty()).then(|| format!("feature {} is not supported", names.join(", ")))
}

/// Reads the newer one of the packs that are whole; `None`: the check ends here.
fn read_pack(volume: &Volume<'_>, geo: &Geometry, outcome: &mut Outcome) -> Result<Option<Pack>, CheckError> {
    let (first, second) = (read_one_pack(volume, geo, 0)?, read_one_pack(volume, geo, 1)?);
    let pack = match (first, second) {
        (Ok(first), Ok(second)) if is_newer(second.checkpoint.version, first.checkpoint.version) => second,
        (Ok(first), Ok(_)) => first,
        (Ok(pack), Err(bad)) | (Err(bad), Ok(pack)) => {
            outcome.found(bad.issue(pack.checkpoint.version));
            pack
        }
        (Err(first), Err(second)) => {
            outcome.found(first.unusable());
            outcome.found(second.unusable());
            outcome.found(Issue::NoCheckpoint);
            return Ok(None);
        }
    };
    Ok(Some(pack))
}

/// A pack that cannot be used.
struct BadPack {
    pack: u8,
    /// The version in its first block, if that one is whole.
    version: Option<u64>,
    /// Its last block is whole as well: no power cut is to blame.
    finished: bool,
    problem: String,
}

impl BadPack {
    fn unusable(self) -> Issue {
        Issue::PackUnusable { pack: self.pack, problem: self.problem }
    }

    /// Returns the issue for the pack. `used`: the version of the other pack.
    fn issue(self, used: u64) -> Issue {
        match self.version {
            Some(version) if is_newer(version, used) && self.finished => {
                Issue::PackDamaged { pack: self.pack, version, used, problem: self.problem }
            }
            Some(version) if is_newer(version, used) => Issue::PackTorn { pack: self.pack, version, used },
            _ => self.unusable(),
        }
    }
}

fn read_one_pack(volume: &Volume<'_>, geo: &Geometry, index: u8) -> Result<Result<Pack, BadPack>, CheckError> {
    let blocks = volume.read_run(geo.pack_at(index.into()), SEGMENT_BLOCKS, "read a checkpoint")?;
    let version = Checkpoint::written_version(&blocks);
    let finished = Pack::finished_version(&blocks).is_some();
    let pack = index + 1;
    Ok(Pack::decode(&blocks, geo, index).map_err(|damage| BadPack { pack, version, finished, problem: damage.problem }))
}

/// Calls `each` with every block of a table and its number; the current copies, neighbours read together.
fn read_table(
    volume: &Volume<'_>,
    blocks: u32,
    place: impl Fn(u32) -> BlkAddr,
    doing: &'static str,
    mut each: impl FnMut(u32, &[u8]),
) -> Result<(), CheckError> {
    let mut next = 0;
    while next < blocks {
        let first = next;
        let start = place(first).0;
        let together = |block: &u32| *block < blocks && place(*block).0 == start + (block - first);
        next = (first..first + REQUEST_BLOCKS as u32).take_while(together).count() as u32 + first;
        let bytes = volume.read_run(BlkAddr(start), (next - first) as usize, doing)?;
        (first..next).zip(bytes.chunks_exact(BLOCK)).for_each(|(block, bytes)| each(block, bytes));
    }
    Ok(())
}

impl<'a> Checker<'a> {
    /// Reads superblock and checkpoint. Without a checkpoint there is only an outcome.
    pub(super) fn open(disk: &'a dyn Disk) -> Result<Result<Checker<'a>, Outcome>, CheckError> {
        let mut outcome = Outcome::default();
        let volume = Volume::new(disk);
        let superblock = read_superblock(&volume, &mut outcome)?;
        let geo = superblock.geometry();
        let Some(pack) = read_pack(&volume, &geo, &mut outcome)? else {
            return Ok(Err(outcome));
        };
        Ok(Ok(Checker {
            nat: Nat::new(&geo),
            segments: BTreeMap::new(),
            inodes: Vec::new(),
            dirs: BTreeMap::new(),
            reached_blocks: 0,
            promised_blocks: 0,
            nodes_used: 0,
            volume,
            summaries: Volume::new(disk),
            superblock,
            pack,
            geo,
            outcome,
        }))
    }
}

impl Checker<'_> {
    pub(super) fn read_tables(&mut self, tell: Tell<'_>) -> Result<(), CheckError> {
        let segments = u64::from(self.geo.segments);
        let total = segments + u64::from(self.geo.nat_blocks());
        self.read_sit(&mut |done| tell(1, done, total))?;
        self.read_nat(&mut |done| tell(1, segments + done, total))?;
        self.check_marks();
        Log::ALL.into_iter().for_each(|log| self.check_log(log));
        self.check_chain()?;
        tell(1, total, total);
        Ok(())
    }

    fn read_sit(&mut self, tell: &mut dyn FnMut(u64)) -> Result<(), CheckError> {
        let Checker { volume, geo, pack, segments, outcome, .. } = self;
        let versions = &pack.checkpoint.sit_bitmap;
        let place = |block: u32| geo.sit_at(block, versions.get(block as usize));
        read_table(volume, geo.sit_blocks(), place, "read the segment information table", |block, bytes| {
            let first = block * SIT_PER_BLOCK as u32;
            tell(first.into());
            if bytes.iter().all(|byte| *byte == 0) {
                return;
            }
            for segno in (first..geo.segments.min(first + SIT_PER_BLOCK as u32)).map(Segno) {
                let index = (segno.0 - first) as usize;
                let is_superseded = pack.sit_journal.iter().any(|(newer, _)| *newer == segno);
                match sit::entry(bytes, index, segno) {
                    Err(Damage { problem, .. }) if is_superseded => {
                        outcome.found(Issue::SitSuperseded { segment: segno, problem });
                    }
                    Ok(entry) if entry == EMPTY => {}
                    Ok(entry) => drop(segments.insert(segno, Segment::of(&entry))),
                    Err(damage) => {
                        outcome.found(Issue::SitEntry { segment: segno, problem: damage.problem });
                        // Its map may still be right.
                        segments.insert(segno, Segment::damaged(sit::entry_map(bytes, index)));
                    }
                }
            }
        })?;
        for (segno, entry) in &pack.sit_journal {
            segments.insert(*segno, Segment::of(entry));
        }
        Ok(())
    }

    fn read_nat(&mut self, tell: &mut dyn FnMut(u64)) -> Result<(), CheckError> {
        let Checker { volume, geo, pack, nat, outcome, .. } = self;
        let versions: &VersionBitmap = &pack.checkpoint.nat_bitmap;
        let place = |block: u32| geo.nat_at(block, versions.get(block as usize));
        read_table(volume, geo.nat_blocks(), place, "read the node address table", |block, bytes| {
            tell(block.into());
            nat.insert(block, bytes);
        })?;
        for (nid, entry) in &pack.nat_journal {
            let superseded = nat.get(*nid);
            if superseded.addr != BlkAddr::NULL && superseded.ino == Nid::NONE {
                outcome.found(Issue::NatSuperseded { nid: *nid, block: superseded.addr });
            }
            nat.set(*nid, *entry);
        }
        Ok(())
    }

    fn check_marks(&mut self) {
        let checkpoint = &self.pack.checkpoint;
        let marks = CpFlags::ERROR | CpFlags::FSCK | CpFlags::DISABLED | CpFlags::DISABLED_QUICK | CpFlags::RESIZEFS;
        let set = checkpoint.flags & (marks | CpFlags::QUOTA_NEED_FSCK);
        let (next_free, limit) = (checkpoint.next_free_nid, self.geo.nid_max());
        if !set.is_empty() {
            let names: Vec<String> = set.iter_names().map(|(name, _)| name.to_lowercase()).collect();
            self.found(Issue::Marked { marks: names.join(", ") });
        }
        if next_free > limit {
            self.found(Issue::NextFreeNid { stored: next_free, limit });
        }
        self.check_reserve();
        let zero = self.nat.get(Nid::NONE).addr;
        if zero != BlkAddr::NULL {
            self.found(Issue::NatZero { stored: zero });
        }
        for nid in [Nid(1), Nid(2)] {
            if self.nat.get(nid) != (NatEntry { version: 0, ino: nid, addr: BlkAddr(1) }) {
                self.found(Issue::NatReserved { nid });
            }
        }
    }

    /// Checks that the metadata and the reserve for cleaning leave some of the volume, and are no fewer segments than
    /// the smallest volume has.
    fn check_reserve(&mut self) {
        let (geo, stored) = (&self.geo, self.pack.checkpoint.reserved_segments);
        let metadata = (geo.main - geo.cp) / SEGMENT_BLOCKS as u32;
        let (least, most) = (SEGMENTS_MIN.saturating_sub(metadata).max(1), geo.segment_count - metadata - 1);
        if !(least..=most).contains(&stored) {
            self.found(Issue::ReservedSegments { stored, least, most });
        }
    }

    /// Checks that a log stands at a free block of a segment of its own type; if the log appends,
    /// all blocks behind it must be free as well.
    fn check_log(&mut self, log: Log) {
        let current = self.pack.checkpoint.current[log as usize];
        let segment = current.segno;
        let (stored, valid) = match self.segments.get(&segment) {
            Some(segment) => (segment.log, segment.valid),
            None => (Some(EMPTY.log), EMPTY.map),
        };
        if let Some(stored) = stored.filter(|stored| *stored != log) {
            self.found(Issue::CurrentType { log, segment, stored });
        }
        let next = usize::from(current.offset);
        let limit = if current.recycling { next + 1 } else { SEGMENT_BLOCKS };
        if let Some(used) = valid.next_set(next).filter(|used| *used < limit) {
            self.found(Issue::CurrentUsed { log, segment, next: current.offset, used: used as u16 });
        }
    }

    /// Follows the nodes that were written since the checkpoint (`docs/formats/f2fs.md`, section 13).
    fn check_chain(&mut self) -> Result<(), CheckError> {
        let current = self.pack.checkpoint.current[Log::WarmNode as usize];
        let expected = self.pack.checkpoint.node_version();
        let only_low = self.pack.checkpoint.flags.contains(CpFlags::NOCRC_RECOVERY);
        let matches = |version: u64| version == expected || only_low && version as u32 == expected as u32;
        let mut links = BTreeMap::new();
        // The last node of each inode that an fsync marked: a mount replays those up to it.
        let mut marked = BTreeMap::new();
        let mut block = self.geo.block_of(current.segno, current.offset.into());
        while self.geo.is_main(block) {
            let page = self.volume.read(block)?;
            let footer = Footer::decode(&page);
            if !matches(footer.cp_version) {
                break;
            }
            let (segno, offset) = self.geo.segment_of(block).unwrap_or_default();
            let in_use = self.segments.get(&segno).is_some_and(|segment| segment.valid.get(offset));
            let place = links.len();
            let facts = Facts { geo: &self.geo, features: self.superblock.features, uuid: &self.superblock.uuid };
            let link = (place, footer, chain::problem(&page, self.nat.get(footer.nid), facts));
            if in_use || links.insert(block, link).is_some() {
                let problem = if in_use { "the checkpoint has that block in use" } else { "it runs in a circle" };
                self.found(Issue::Chain { block, problem: problem.to_owned() });
                break;
            }
            if footer.fsync {
                marked.insert(footer.ino, place);
            }
            block = footer.next;
        }
        for (block, (place, footer, problem)) in links {
            let Some(problem) = problem else { continue };
            let is_replayed = marked.get(&footer.ino).is_some_and(|last| place <= *last);
            self.found(if is_replayed { Issue::ChainNode { block, problem } } else { Issue::Chain { block, problem } });
        }
        Ok(())
    }
}

/// Segments of the smallest volume.
const SEGMENTS_MIN: u32 = 9;

/// The entry of a segment that was never used.
const EMPTY: SitEntry = SitEntry { log: Log::HotData, map: sit::ValidMap::EMPTY, mtime: 0 };
