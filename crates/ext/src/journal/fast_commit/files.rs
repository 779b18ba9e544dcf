//! Inodes that fast commits change: their slots, their blocks, and the list of those that are deleted.

use std::collections::BTreeSet;

use moafs_disk::Kind;
use moafs_vfs::types::FileKind;
use moafs_vfs::{Error, Result};

use super::map;
use super::scratch::Scratch;
use crate::format::dir::{self, Form};
use crate::format::extent::edit::{self, Edit};
use crate::format::extent::{Extent, LBN_END};
use crate::format::inode::{GOOD_OLD_BYTES, InodeFlags};
use crate::format::{BlockNo, Geometry, Inode, InodeNo, Place, Sealed, Structure, Superblock, checksum, u32_at, xattr};
use crate::health::damaged;

/// The longest list of deleted files that is followed: as long as that which a mount finishes.
const ORPHANS_MAX: usize = 65_536;

/// The files of a volume.
pub(super) struct Files<'a> {
    pub(super) scratch: Scratch<'a>,
    pub(super) form: Form,
    sb: &'a Superblock,
    /// Inodes that have changed.
    touched: BTreeSet<InodeNo>,
    /// The members of the orphan list: their `i_dtime` names the next.
    listed: BTreeSet<InodeNo>,
}

/// Returns the error for what is not replayed.
pub(super) fn unsupported(what: &str) -> Error {
    Error::Refused(format!(
        "the journal holds fast commits {what}, which are not replayed: mount the volume once with the kernel, or run \
         e2fsck -fp on it"
    ))
}

fn wrong(ino: InodeNo, problem: impl Into<String>) -> Error {
    damaged(Place::of(Structure::Inode(ino)).damage(format!("a fast commit {}", problem.into())))
}

impl<'a> Files<'a> {
    pub(super) fn new(scratch: Scratch<'a>, sb: &'a Superblock) -> Result<Files<'a>> {
        let form = Form { is_whole: true, ..Form::of(scratch.geo) };
        let mut files = Files { scratch, form, sb, touched: BTreeSet::new(), listed: BTreeSet::new() };
        let mut next = sb.last_orphan();
        while next != 0 && files.listed.len() < ORPHANS_MAX && files.listed.insert(InodeNo(next)) {
            next = u32_at(&files.scratch.slot(InodeNo(next))?, 0x14);
        }
        Ok(files)
    }

    fn geo(&self) -> &'a Geometry {
        self.scratch.geo
    }

    /// Refuses inodes that no fast commit may change.
    pub(super) fn check(&self, ino: InodeNo) -> Result<()> {
        let geo = self.geo();
        let is_own = ino.0 < geo.first_ino || ino.0 == self.sb.orphan_file_inum();
        if is_own || ino.0 > geo.inodes {
            return Err(wrong(ino, "names this inode, which is no user's"));
        }
        Ok(())
    }

    /// Returns an inode that is in use.
    pub(super) fn inode(&mut self, ino: InodeNo) -> Result<Option<Inode>> {
        self.scratch.inode(ino)
    }

    /// Stores an inode that has changed.
    pub(super) fn store(&mut self, ino: InodeNo, inode: &Inode) -> Result<()> {
        self.touched.insert(ino);
        self.scratch.store(ino, inode)
    }

    /// Gives an inode the contents of a record. Its map stays as it is, or begins empty if the inode is new.
    pub(super) fn set_inode(&mut self, ino: InodeNo, record: &[u8]) -> Result<()> {
        self.check(ino)?;
        let geo = self.geo();
        let mut slot = self.scratch.slot(ino)?;
        if record.len() > slot.len() {
            return Err(wrong(ino, format!("has {} bytes for a slot of {}", record.len(), slot.len())));
        }
        let listed_dtime = if self.listed.contains(&ino) { u32_at(&slot, 0x14) } else { 0 };
        let old = self.scratch.inode(ino)?;
        let attributes_at = old.as_ref().map(|old| GOOD_OLD_BYTES + usize::from(old.extra_isize));
        slot[..record.len()].copy_from_slice(record);
        let mut inode = Inode::parse(&slot, geo);
        let Some(kind) = inode.kind() else {
            return Err(wrong(ino, format!("has the mode {:#o}, which is no file type", inode.mode)));
        };
        inode.dtime = listed_dtime;
        let same = |old: &Inode| old.generation == inode.generation && old.kind() == Some(kind);
        match old {
            Some(old) if same(&old) => {
                let moved = attributes_at
                    .is_some_and(|at| at != record.len() && slot[at.min(record.len())..].iter().any(|byte| *byte != 0));
                if moved && old.extra_isize != inode.extra_isize {
                    return Err(unsupported("that move attributes inside an inode"));
                }
                keep(&mut inode, &old, kind)?;
            }
            old => {
                slot[record.len()..].fill(0);
                match old {
                    Some(old) if old.links > 0 => {
                        return Err(wrong(ino, "makes a new file of this inode, which another file has"));
                    }
                    Some(old) => self.release(ino, &old)?,
                    None => self.scratch.claim_inode(ino)?,
                }
                self.begin(ino, &mut inode, kind)?;
            }
        }
        self.touched.insert(ino);
        inode.encode_into(&mut slot, geo);
        self.scratch.set_slot(ino, &slot)?;
        // Judges size, flags and extra fields.
        self.scratch.inode(ino).map(drop)
    }

    /// Gives a new inode an empty map; a directory gets its first block, with the root as its parent until it has a
    /// name.
    fn begin(&mut self, ino: InodeNo, inode: &mut Inode, kind: FileKind) -> Result<()> {
        if inode.file_acl != 0 {
            return Err(unsupported("with an attribute block for a new file"));
        }
        inode.blocks = 0;
        if !inode.has_extents() {
            return if needs_map(inode, kind) { Err(unsupported("of files without extents")) } else { Ok(()) };
        }
        inode.set_block_bytes(&edit::new_root(None));
        if kind == FileKind::Directory {
            let block = self.scratch.allocate(ino)?;
            let mut bytes = vec![0; self.geo().block_bytes()];
            dir::format_first(&mut bytes, self.form, ino, InodeNo::ROOT);
            self.scratch.write_sealed(block, Sealed::Leaf(inode.owner(ino)), bytes)?;
            let first = Extent { lbn: 0, len: 1, start: block, unwritten: false };
            map::change(&mut self.scratch, ino, inode, Edit::put(first))?;
            inode.flags.remove(InodeFlags::INDEX);
            (inode.size, inode.links) = (self.geo().block_size.into(), 2);
            self.scratch.count_directory(ino, 1)?;
        }
        Ok(())
    }

    /// Frees the blocks of a deleted file whose inode has become another one.
    fn release(&mut self, ino: InodeNo, old: &Inode) -> Result<()> {
        let kind = old.kind().unwrap_or(FileKind::Regular);
        if !old.has_extents() && needs_map(old, kind) {
            return Err(unsupported("of files without extents"));
        }
        for (start, len) in map::read(&self.scratch, ino, old)?.runs() {
            self.scratch.mark(start, len, false)?;
        }
        if kind == FileKind::Directory {
            self.scratch.count_directory(ino, -1)?;
        }
        if old.file_acl == 0 {
            return Ok(());
        }
        let block = BlockNo(old.file_acl);
        if !self.scratch.may_own(block, 1) {
            return Err(wrong(ino, format!("deletes a file with the attribute block {block}, which no file may own")));
        }
        let mut bytes = self.scratch.read(block, Kind::Xattr)?;
        match xattr::refcount(&bytes) {
            0 | 1 => self.scratch.mark(block, 1, false),
            count => {
                xattr::set_refcount(&mut bytes, count - 1);
                self.scratch.write_sealed(block, Sealed::Xattrs(block), bytes)
            }
        }
    }

    /// Maps file blocks.
    pub(super) fn add_range(&mut self, ino: InodeNo, extent: Extent) -> Result<()> {
        if !self.scratch.may_own(extent.start, extent.len.into()) || extent.end() > LBN_END {
            let problem = format!("maps file block {} to block {}, which no file may own", extent.lbn, extent.start);
            return Err(wrong(ino, problem));
        }
        self.change_map(ino, Edit::put(extent))
    }

    /// Unmaps file blocks.
    pub(super) fn del_range(&mut self, ino: InodeNo, lbn: u32, len: u32) -> Result<()> {
        let end = (u64::from(lbn) + u64::from(len)).min(LBN_END);
        self.change_map(ino, Edit::cut(lbn.into()..end, u64::MAX, usize::MAX))
    }

    fn change_map(&mut self, ino: InodeNo, edit: Edit) -> Result<()> {
        self.check(ino)?;
        // The file was deleted before the commit.
        let Some(mut inode) = self.scratch.inode(ino)? else { return Ok(()) };
        if !inode.has_extents() {
            return Err(unsupported("of files without extents"));
        }
        if inode.is_dir() {
            return Err(wrong(ino, "maps blocks of this directory"));
        }
        map::change(&mut self.scratch, ino, &mut inode, edit)?;
        self.store(ino, &inode)
    }

    /// Marks the blocks of all files that have changed as used, counts them, and puts deleted files on the orphan
    /// list. Returns the head of the list.
    pub(super) fn finish(&mut self) -> Result<u32> {
        let mut head = self.sb.last_orphan();
        let mut owned = Vec::new();
        for ino in std::mem::take(&mut self.touched) {
            let Some(mut inode) = self.scratch.inode(ino)? else { continue };
            if inode.has_extents() {
                let mapped = map::read(&self.scratch, ino, &inode)?;
                for (start, len) in mapped.runs() {
                    self.scratch.mark(start, len, true)?;
                    owned.push((start.0..start.0 + len, ino));
                }
                let blocks = mapped.blocks() + u64::from(inode.file_acl != 0);
                let in_blocks = self.geo().huge_file && inode.flags.contains(InodeFlags::HUGE_FILE);
                inode.blocks = if in_blocks { blocks } else { blocks * u64::from(self.geo().sectors_per_block()) };
            }
            if inode.links == 0 && self.listed.insert(ino) {
                inode.dtime = std::mem::replace(&mut head, ino.0);
            }
            self.scratch.store(ino, &inode)?;
        }
        owned.sort_by_key(|(range, _)| range.start);
        match owned.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
            Some(pair) => {
                Err(wrong(pair[0].1, format!("gives block {} to inode {} as well", pair[1].0.start, pair[1].1)))
            }
            None => Ok(head),
        }
    }

    /// Stores the head of the orphan list.
    pub(super) fn set_orphans(&mut self, head: u32) -> Result<()> {
        if head == self.sb.last_orphan() {
            return Ok(());
        }
        let mut sb = self.sb.clone();
        sb.set_last_orphan(head);
        let mut bytes = sb.as_bytes().to_vec();
        if self.geo().checksums.cover_all() {
            checksum::keep_superblock_sum(&mut bytes);
        }
        let block = BlockNo(self.geo().superblock_block());
        let at = (crate::format::superblock::SUPERBLOCK_OFFSET - self.geo().byte_of(block)) as usize;
        let mut contents = self.scratch.read(block, Kind::Superblock)?;
        contents[at..at + bytes.len()].copy_from_slice(&bytes);
        self.scratch.write(block, contents)
    }
}

/// Returns true if a file of this kind has blocks, for which it needs a map.
fn needs_map(inode: &Inode, kind: FileKind) -> bool {
    match kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => inode.size > crate::format::inode::FAST_SYMLINK_MAX as u64,
        _ => false,
    }
}

/// Has an inode keep what its record does not say.
fn keep(inode: &mut Inode, old: &Inode, kind: FileKind) -> Result<()> {
    if old.has_extents() != inode.has_extents() || (!inode.has_extents() && needs_map(inode, kind)) {
        return Err(unsupported("of files without extents"));
    }
    if old.file_acl != inode.file_acl {
        return Err(unsupported("that change attributes"));
    }
    inode.blocks = old.blocks;
    if inode.has_extents() {
        inode.block = old.block;
    }
    if kind == FileKind::Directory {
        // Records of names change these.
        (inode.size, inode.links) = (old.size, old.links);
        inode.flags.set(InodeFlags::INDEX, old.flags.contains(InodeFlags::INDEX));
    }
    Ok(())
}
