//! Pass 0: the superblock, or a copy of it; the mark of a clean volume.

use moafs_disk::{Disk, DiskExt, Kind, Lba, Tag};
use moafs_vfs::types::FileKind;

use super::error::CheckError;
use super::issue::Issue;
use super::report::Log;
use super::scan::Blocks;
use super::tree::has_tree;
use super::volume::{Volume, device_bytes, read_superblock};
use crate::format::error::Reason;
use crate::format::extent::salvage;
use crate::format::journal::MAGIC as JOURNAL_MAGIC;
use crate::format::superblock::{BLOCKS_PER_GROUP_MAX, Compat, Incompat, MAGIC, RoCompat, SUPERBLOCK_OFFSET, State};
use crate::format::{
    BlockNo, Descriptor, Geometry, Inode, InodeNo, Sealed, Structure, Superblock, Support, Unsupported, features,
    u16_at, u32_at,
};

/// Features that are checked, or leave nothing to check.
const KNOWN: [&str; 26] = [
    "dir_prealloc",
    "imagic_inodes",
    "has_journal",
    "ext_attr",
    "resize_inode",
    "dir_index",
    "sparse_super2",
    "fast_commit",
    "stable_inodes",
    "orphan_file",
    "filetype",
    "needs_recovery",
    "meta_bg",
    "extent",
    "64bit",
    "flex_bg",
    "metadata_csum_seed",
    "large_dir",
    "sparse_super",
    "large_file",
    "huge_file",
    "uninit_bg",
    "dir_nlink",
    "extra_isize",
    "metadata_csum",
    "orphan_present",
];
/// The most blocks of a volume that is checked.
const BLOCKS_MAX: u64 = u32::MAX as u64;
/// The number of the first inode that is not reserved.
pub(super) const FIRST_INO: u32 = 11;
/// The largest legal `s_desc_size`, in bytes.
const DESC_SIZE_MAX: u16 = 1024;
/// Bytes of the volume's start in which a copy is searched for if none is at the usual places.
const SEARCH_BYTES: u64 = 512 << 20;
/// Bytes of one read of that search.
const SEARCH_READ_BYTES: u64 = 1 << 20;
/// The distance of the searched places, in bytes.
const SEARCH_STEP: u64 = 1024;

/// A superblock whose fields make sense.
struct Sound {
    sb: Superblock,
    geo: Geometry,
    /// The change that was needed to make sense of it.
    issue: Option<Issue>,
}

/// A superblock to check a volume by.
pub(super) struct Chosen {
    pub(super) sb: Superblock,
    pub(super) geo: Geometry,
    /// The change that was needed to make sense of it.
    issue: Option<Issue>,
    /// The block of the copy that takes the primary one's place; and why.
    pub(super) copy: Option<(BlockNo, String)>,
    /// The wrong checksum of a primary one that makes sense.
    checksum: Option<String>,
}

/// Finds a superblock that makes sense: the one asked for, the primary one, or else a copy.
pub(super) fn choose(disk: &dyn Disk, wanted: Option<u64>) -> Result<Chosen, CheckError> {
    if let Some(block) = wanted {
        let (sound, copy) = copy_in_block(disk, block).ok_or(CheckError::NoCopy { block })?;
        return Ok(Chosen::copy(sound, copy, "another one was asked for".to_owned()));
    }
    match superblock_at(disk, SUPERBLOCK_OFFSET) {
        Ok(primary) => Ok(choose_by_checksum(disk, primary)),
        Err(CheckError::Damaged(mut damage)) => match search_copy(disk) {
            Some((sound, copy)) => Ok(Chosen::copy(sound, copy, damage.problem)),
            None => {
                damage.problem += "; no copy of it was found (`moafs fsck --superblock BLOCK` uses one)";
                Err(damage.into())
            }
        },
        Err(other) => Err(other),
    }
}

/// Keeps a primary superblock with a wrong checksum if a copy says the same about the shape of the volume, or if there
/// is no copy.
fn choose_by_checksum(disk: &dyn Disk, primary: Sound) -> Chosen {
    let Sound { sb, geo, issue } = primary;
    let checksum = sb.verify().err().map(|damage| damage.problem);
    if let Some(problem) = &checksum
        && let Some((copy, at)) = usual_copy(disk)
        && !has_same_shape(&copy.geo, &geo, &copy.sb, &sb)
    {
        return Chosen::copy(copy, at, problem.clone());
    }
    Chosen { sb, geo, issue, copy: None, checksum }
}

fn has_same_shape(a: &Geometry, b: &Geometry, of_a: &Superblock, of_b: &Superblock) -> bool {
    let stable = |geo: &Geometry| Geometry {
        incompat: geo.incompat - Incompat::NEEDS_RECOVERY,
        ro_compat: geo.ro_compat - RoCompat::ORPHAN_PRESENT,
        ..geo.clone()
    };
    stable(a) == stable(b) && of_a.hash_seed() == of_b.hash_seed() && of_a.uuid() == of_b.uuid()
}

impl Chosen {
    fn copy(sound: Sound, at: BlockNo, problem: String) -> Chosen {
        let Sound { sb, geo, issue } = sound;
        Chosen { sb, geo, issue, copy: Some((at, problem)), checksum: None }
    }
}

/// Returns the superblock that the check goes by, and reports what is wrong with it.
pub(super) fn open(disk: &dyn Disk, wanted: Option<u64>, log: &mut Log) -> Result<(Superblock, Geometry), CheckError> {
    let Chosen { mut sb, geo, issue, copy, checksum } = choose(disk, wanted)?;
    if let Some((copy, problem)) = copy
        && log.found(Issue::SuperblockDamaged { problem, copy })
    {
        sb.set_block_group_nr(0);
    }
    if let Some(problem) = checksum {
        log.found(Issue::Checksum { structure: Structure::Superblock, problem });
    }
    if let Some(issue) = issue {
        log.found(issue);
    }
    check_fields(&mut sb, &geo, log);
    supported(sb, geo)
}

/// Checks fields that no calculation uses, but that reference tools refuse.
fn check_fields(sb: &mut Superblock, geo: &Geometry, log: &mut Log) {
    let mut check = |field, stored: u64, should: u64| {
        stored != should && log.found(Issue::SuperblockField { field, stored, should })
    };
    if check("s_clusters_per_group", sb.clusters_per_group().into(), geo.blocks_per_group.into()) {
        sb.set_clusters_per_group(geo.blocks_per_group);
    }
    let stored = sb.reserved_blocks();
    let should = if stored > geo.blocks / 2 { geo.blocks / 20 } else { stored };
    if check("s_r_blocks_count", stored, should) {
        sb.set_reserved_blocks_lo(should as u32);
    }
    if sb.rev_level() == 0 {
        return;
    }
    // Without 64-bit block numbers the size of descriptors has no effect, but must still be valid.
    let stored = sb.desc_size_raw();
    let is_size = stored == 0 || (stored.is_power_of_two() && stored <= DESC_SIZE_MAX);
    if check("s_desc_size", stored.into(), if is_size { stored.into() } else { 0 }) {
        sb.set_desc_size(0);
    }
    // Volumes with quota are refused, so none of these has an inode.
    if check("s_usr_quota_inum", sb.usr_quota_inum().into(), 0) {
        sb.set_usr_quota_inum(0);
    }
    if check("s_grp_quota_inum", sb.grp_quota_inum().into(), 0) {
        sb.set_grp_quota_inum(0);
    }
    if check("s_prj_quota_inum", sb.prj_quota_inum().into(), 0) {
        sb.set_prj_quota_inum(0);
    }
    let has_journal = sb.compat().contains(Compat::HAS_JOURNAL);
    let inum = if has_journal { sb.journal_inum() } else { 0 };
    if check("s_journal_inum", sb.journal_inum().into(), inum.into()) {
        sb.set_journal_inum(0);
    }
    let external = sb.journal_uuid().iter().filter(|byte| **byte != 0).count() as u64;
    if (!has_journal || inum == InodeNo::JOURNAL.0) && check("s_journal_uuid (bytes that are not 0)", external, 0) {
        sb.clear_external_journal();
    }
}

/// Returns the block of a copy of the superblock, for a volume whose primary one is lost.
///
/// Reads the usual places only.
pub fn find_copy(disk: &dyn Disk) -> Option<BlockNo> {
    usual_copy(disk).map(|(_, block)| block)
}

/// Returns true if the last user left the volume clean and saw no error.
pub(super) fn says_clean(disk: &dyn Disk) -> bool {
    let Ok(Sound { sb, geo, issue: None }) = superblock_at(disk, SUPERBLOCK_OFFSET) else { return false };
    let unmounted = sb.state() == State::VALID
        && sb.last_orphan() == 0
        && sb.verify().is_ok()
        && !sb.incompat().contains(Incompat::NEEDS_RECOVERY)
        && !sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT);
    let volume = Volume::new(disk, geo.clone());
    unmounted
        && matches!(journal_start(&volume, &sb, &geo), Ok(None | Some(0)))
        && matches!(has_what_mounts_need(&volume, &sb, &geo), Ok(true))
        && supported(sb, geo).is_ok()
}

/// Returns true if the volume has a root, and the orphan file that its features demand.
fn has_what_mounts_need(volume: &Volume<'_>, sb: &Superblock, geo: &Geometry) -> Result<bool, CheckError> {
    let is_usable = |ino, kind| {
        let inode = sealed_inode(volume, geo, ino)?;
        Ok::<_, CheckError>(inode.is_some_and(|inode| inode.kind() == Some(kind) && inode.links > 0))
    };
    let needs_orphan_file = sb.compat().contains(Compat::ORPHAN_FILE | Compat::HAS_JOURNAL);
    Ok(is_usable(InodeNo::ROOT, FileKind::Directory)?
        && (!needs_orphan_file || is_usable(InodeNo(sb.orphan_file_inum()), FileKind::Regular)?))
}

/// Returns an inode with a right checksum; `None` for all others.
fn sealed_inode(volume: &Volume<'_>, geo: &Geometry, ino: InodeNo) -> Result<Option<Inode>, CheckError> {
    let Some(slot) = raw_slot(volume, geo, ino)? else { return Ok(None) };
    let is_sealed = geo.checksums.verify(Sealed::Inode(ino), &slot).is_ok();
    Ok(is_sealed.then(|| Inode::parse(&slot, geo)))
}

/// Returns the slot of an inode; `None` if the volume has none, or its descriptor makes no sense.
fn raw_slot(volume: &Volume<'_>, geo: &Geometry, ino: InodeNo) -> Result<Option<Vec<u8>>, CheckError> {
    let Some(at) = geo.locate_inode(ino) else { return Ok(None) };
    let (block, offset) = geo.locate_descriptor(at.group);
    let descriptor = Descriptor::parse(&volume.read(block)?[offset..], geo);
    match descriptor.check(at.group, geo) {
        Ok(()) => volume.slot(descriptor.inode_table, ino).map(Some),
        Err(_) => Ok(None),
    }
}

/// Returns true if the superblock says that the volume was unmounted.
pub(super) fn says_valid(disk: &dyn Disk) -> bool {
    superblock_at(disk, SUPERBLOCK_OFFSET).is_ok_and(|found| found.sb.state() == State::VALID)
}

/// Fails if the journal holds changes that are not on the volume yet.
pub(super) fn check_journal_is_empty(volume: &Volume<'_>, sb: &Superblock, geo: &Geometry) -> Result<(), CheckError> {
    match journal_start(volume, sb, geo)? {
        start @ (None | Some(0)) if sb.incompat().contains(Incompat::NEEDS_RECOVERY) => {
            Err(CheckError::Journal { start: start.unwrap_or_default() })
        }
        None | Some(0) => Ok(()),
        Some(start) => Err(CheckError::Journal { start }),
    }
}

/// Returns `s_start` of the journal; `None` if there is no journal that could be read.
fn journal_start(volume: &Volume<'_>, sb: &Superblock, geo: &Geometry) -> Result<Option<u32>, CheckError> {
    let ino = InodeNo(sb.journal_inum());
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let Some(slot) = raw_slot(volume, geo, ino)? else { return Ok(None) };
    let inode = Inode::parse(&slot, geo);
    let first = if has_tree(&inode, geo) { first_extent(volume, geo, &inode)? } else { BlockNo(inode.block[0].into()) };
    if !geo.may_point_to(first) {
        return Ok(None);
    }
    let page = volume.read(first)?;
    let be = |at: usize| u32_at(&page, at).swap_bytes();
    Ok((be(0) == JOURNAL_MAGIC).then(|| be(0x1C)))
}

/// Returns the first block of a tree; 0 if there is none.
fn first_extent(volume: &Volume<'_>, geo: &Geometry, inode: &Inode) -> Result<BlockNo, CheckError> {
    let mut node = salvage(&inode.block_bytes(), None, geo);
    while let Some(child) = node.children.first() {
        node = salvage(&volume.read(child.block)?, Some(child.bounds), geo);
    }
    Ok(node.extents.first().map_or(BlockNo(0), |extent| extent.start))
}

/// Reads a copy of the superblock at `block`. It must lie where its own geometry has one, or it is
/// a file's content.
fn copy_at(disk: &dyn Disk, block: u64, block_size: u64) -> Option<(Sound, BlockNo)> {
    let sound = superblock_at(disk, block.checked_mul(block_size)?).ok()?;
    let (sb, geo) = (&sound.sb, &sound.geo);
    let group = geo.group_of_block(BlockNo(block))?;
    let is_copy = sb.verify().is_ok()
        && u64::from(geo.block_size) == block_size
        && geo.group_start(group).0 == block
        && geo.has_superblock(group)
        && u32::from(sb.block_group_nr()) == group.0;
    is_copy.then_some((sound, BlockNo(block)))
}

fn block_sizes() -> impl Iterator<Item = u64> {
    (0..=6).map(|log| 1024u64 << log)
}

fn copy_in_block(disk: &dyn Disk, block: u64) -> Option<(Sound, BlockNo)> {
    block_sizes().find_map(|block_size| copy_at(disk, block, block_size))
}

fn search_copy(disk: &dyn Disk) -> Option<(Sound, BlockNo)> {
    usual_copy(disk).or_else(|| scan_for_copy(disk))
}

/// Finds a copy at the usual places: the first copy lies at the start of group 1 or 3, for every
/// block size and common sizes of groups.
fn usual_copy(disk: &dyn Disk) -> Option<(Sound, BlockNo)> {
    let raw = read_superblock(disk, SUPERBLOCK_OFFSET);
    let claimed = raw.map_or(0, |raw| u64::from(u32_at(&raw, 0x20)));
    let candidates = block_sizes().flat_map(|block_size| {
        let default = (8 * block_size).min(BLOCKS_PER_GROUP_MAX.into());
        let common = (8..16).map(|log| 1u64 << log);
        let sizes = [default, claimed].into_iter().chain(common);
        let first = u64::from(block_size == 1024);
        sizes.flat_map(move |size| [1, 3].map(|group| (first + group * size, block_size)))
    });
    candidates.into_iter().find_map(|(block, block_size)| copy_at(disk, block, block_size))
}

/// Looks for a copy at every possible place of the volume's start.
fn scan_for_copy(disk: &dyn Disk) -> Option<(Sound, BlockNo)> {
    let end = device_bytes(disk).min(SEARCH_BYTES);
    (SEARCH_READ_BYTES..end).step_by(SEARCH_READ_BYTES as usize).chain([0]).find_map(|start| {
        let bytes = SEARCH_READ_BYTES.min(end - start) as usize;
        let page = disk.read(Lba::from_byte(start), bytes, Tag::volume(Kind::Superblock)).ok()?;
        let magics = (0..bytes).step_by(SEARCH_STEP as usize).filter(|at| at + 1024 <= bytes);
        let magics = magics.filter(|at| u16_at(&page, at + 0x38) == MAGIC && u16_at(&page, at + 0x5A) != 0);
        let places: Vec<u64> = magics.map(|at| start + at as u64).collect();
        places.into_iter().find_map(|byte| {
            let mut sizes = block_sizes().filter(|block_size| byte % block_size == 0);
            sizes.find_map(|block_size| copy_at(disk, byte / block_size, block_size))
        })
    })
}

fn superblock_at(disk: &dyn Disk, byte: u64) -> Result<Sound, CheckError> {
    let bytes = device_bytes(disk);
    if byte.checked_add(SUPERBLOCK_OFFSET).is_none_or(|end| end > bytes) {
        Superblock::parse(&[])?;
    }
    let raw =
        read_superblock(disk, byte).map_err(|source| CheckError::Disk { doing: "read the superblock", source })?;
    let (sb, issue) = with_its_revision(Superblock::parse(&raw)?, bytes);
    // An unknown feature explains a shape that makes no sense: it is named first.
    if let Support::Refuse(unsupported) = sb.support(true) {
        return Err(unsupported.into());
    }
    let geo = Geometry::of(&sb, bytes)?;
    Ok(Sound { sb, geo, issue })
}

/// Corrects the revision or the features: revision 0 has no features. If the fields of revision 1
/// make a volume, the revision is wrong; else the features are.
fn with_its_revision(sb: Superblock, device_bytes: u64) -> (Superblock, Option<Issue>) {
    let (compat, incompat, ro_compat) = (sb.compat_raw(), sb.incompat_raw(), sb.ro_compat_raw());
    if sb.rev_level() != 0 || (compat, incompat, ro_compat) == (0, 0, 0) {
        return (sb, None);
    }
    let issue = Some(Issue::RevisionFeatures { compat, incompat, ro_compat });
    let mut raised = sb.clone();
    raised.set_rev_level(1);
    let makes_sense = raised.first_ino() == FIRST_INO && Geometry::of(&raised, device_bytes).is_ok();
    if makes_sense && unknown(&raised).is_empty() && raised.support(true) == Support::ReadWrite {
        return (raised, issue);
    }
    let mut bare = sb;
    bare.set_compat_raw(0);
    bare.set_incompat_raw(0);
    bare.set_ro_compat_raw(0);
    (bare, issue)
}

/// Returns the features of a volume that no pass judges.
fn unknown(sb: &Superblock) -> Vec<String> {
    let features = features::present(sb.features()).into_iter().map(|present| present.name);
    features.filter(|name| !KNOWN.contains(&&**name)).collect()
}

/// Refuses volumes that could not be repaired: half a check would say too little.
pub(super) fn supported(sb: Superblock, geo: Geometry) -> Result<(Superblock, Geometry), CheckError> {
    if let Support::Refuse(unsupported) = sb.support(true) {
        return Err(unsupported.into());
    }
    let reason = |feature| Reason { feature, advice: "not known to this checker: run `e2fsck`".to_owned() };
    let mut reasons: Vec<Reason> = unknown(&sb).into_iter().map(reason).collect();
    if geo.blocks > BLOCKS_MAX {
        reasons.push(reason(format!("more than {BLOCKS_MAX} blocks")));
    }
    if reasons.is_empty() { Ok((sb, geo)) } else { Err(Unsupported { reasons }.into()) }
}
