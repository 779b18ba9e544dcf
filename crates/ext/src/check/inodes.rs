//! Pass 1: every inode by itself, its map and its attributes; the blocks that each inode uses.

use moafs_disk::Buf;
use moafs_vfs::types::FileKind;

use super::checker::{Checker, DirInfo, Shared};
use super::error::CheckError;
use super::issue::Issue;
use super::mapped::Mapped;
use super::scan::{Blocks, slots};
use super::superblock::FIRST_INO;
use super::tree::is_root;
use crate::format::extent::LBN_END;
use crate::format::inode::{FAST_SYMLINK_MAX, InodeFlags, LINKS_MAX, entry_type, extra_isize_is_legal};
use crate::format::reserve::Reserved;
use crate::format::superblock::{Compat, Incompat, RoCompat};
use crate::format::{
    BlockNo, Geometry, GroupNo, Inode, InodeNo, Place, Sealed, Structure, map, put_u16, put_u32, xattr,
};

/// Flags of inodes that ext2 without any of the later features cannot have.
const FLAGS_IMPOSSIBLE: InodeFlags = InodeFlags::FOREIGN.union(InodeFlags::from_bits_retain(0x2000));
/// Files from this size on need the feature large_file.
const LARGE_FILE: u64 = 1 << 31;

impl Checker<'_> {
    pub(super) fn pass1(&mut self, tell: &mut dyn FnMut(u8, u64, u64)) -> Result<(), CheckError> {
        self.claim_metadata();
        self.check_first_inode();
        self.check_reserve();
        self.check_journal()?;
        self.check_orphans()?;
        let total = u64::from(self.geo.groups);
        for group in self.geo.all_groups() {
            tell(1, group.0.into(), total);
            self.check_group(group)?;
        }
        tell(1, total, total);
        self.find_claims()?;
        self.zero_tails()?;
        self.check_refcounts()?;
        if self.is_dir(InodeNo::ROOT) {
            return Ok(());
        }
        // The names that led to them may be lost, and a new root takes a free block.
        self.find_hidden()?;
        if self.uncovered.is_empty() && self.log.found(Issue::RootNotDirectory) {
            self.make_directory(InodeNo::ROOT, InodeNo::ROOT, 0o755)?;
        }
        Ok(())
    }

    /// Claims the blocks before the first group, group heads, bitmaps and inode tables.
    fn claim_metadata(&mut self) {
        let mut fixed = Vec::new();
        fixed.push(0..self.geo.first_data_block + 1);
        for group in self.geo.all_groups() {
            let start = self.geo.group_start(group).0;
            let descriptor = self.descriptors[group.0 as usize];
            let table = descriptor.inode_table.0;
            let head = start..start + u64::from(self.geo.head_blocks(group));
            let bitmaps = [descriptor.block_bitmap.0, descriptor.inode_bitmap.0];
            fixed.extend([head, table..table + u64::from(self.geo.inode_table_blocks)]);
            fixed.extend(bitmaps.map(|block| block..block + 1));
        }
        // The last group may be shorter than its head.
        fixed.iter_mut().for_each(|range| range.end = range.end.min(self.geo.blocks));
        fixed.sort_by_key(|range| range.start);
        for block in fixed.iter().flat_map(Clone::clone) {
            self.claim(BlockNo(block));
        }
        self.fixed = fixed;
    }

    /// Checks the number of the first inode that is not reserved: no volume reserves more than the
    /// first ten inodes, and a larger number would take files away.
    fn check_first_inode(&mut self) {
        let stored = self.geo.first_ino;
        if stored != FIRST_INO && self.log.found(Issue::FirstInode { stored }) {
            self.superblock.set_first_ino(FIRST_INO);
        }
        self.geo.first_ino = FIRST_INO;
    }

    /// Checks the reserve behind the descriptor table: only the feature resize_inode keeps blocks there.
    fn check_reserve(&mut self) {
        let stored = self.superblock.reserved_gdt_blocks_raw();
        if stored != 0 && !self.superblock.compat().contains(Compat::RESIZE_INODE) {
            let problem = format!("{stored} blocks are reserved without the feature resize_inode");
            if self.log.found(Issue::ResizeInode { problem }) {
                self.superblock.set_reserved_gdt_blocks(0);
            }
        }
    }

    fn check_group(&mut self, group: GroupNo) -> Result<(), CheckError> {
        // Inodes that need a look are collected block by block, so that repairs see the volume.
        let mut in_use = Vec::new();
        let descriptor = self.descriptors[group.0 as usize];
        slots(&self.volume, &self.geo, group, &descriptor, |ino, slot| {
            if slot.iter().any(|&byte| byte != 0) {
                in_use.push(ino);
            }
            Ok(())
        })?;
        for ino in in_use {
            self.check_inode(ino)?;
        }
        Ok(())
    }

    fn check_inode(&mut self, ino: InodeNo) -> Result<(), CheckError> {
        let (mut slot, mut inode) = self.read_inode(ino)?;
        if let Err(problem) = self.geo.checksums.verify(Sealed::Inode(ino), &slot)
            && self.log.found(Issue::Checksum { structure: Structure::Inode(ino), problem })
        {
            self.volume.set_slot(self.table_of(ino), ino, &slot)?;
            slot = self.volume.slot(self.table_of(ino), ino)?;
        }
        // A deletion time that could be an inode's number is left over from a list of orphans.
        let numbers_are_no_times = self.geo.inodes < self.superblock.mkfs_time();
        let left_over = inode.dtime != 0 && inode.dtime < self.geo.inodes && numbers_are_no_times;
        if ino.0 < self.geo.first_ino && ino != InodeNo::ROOT {
            if left_over && self.log.found(Issue::OrphanLeft { inode: ino }) {
                self.change_inode(ino, |inode| inode.dtime = 0)?;
                (slot, inode) = self.read_inode(ino)?;
            }
            return self.check_reserved(ino, slot, inode);
        }
        if inode.links == 0 {
            let listed = self.orphans.contains(&ino.0);
            let undated = inode.dtime == 0 && inode.mode != 0 && !listed;
            let fix = (undated && self.log.found(Issue::InodeZeroDtime { inode: ino }))
                || (left_over && !listed && self.log.found(Issue::OrphanLeft { inode: ino }));
            if fix {
                let now = self.now_secs();
                self.change_inode(ino, |inode| inode.dtime = now)?;
            }
            return Ok(());
        }
        self.check_used(ino, slot, inode)
    }

    /// Checks a reserved inode: the resize inode, the journal, or one that is not used for anything.
    fn check_reserved(&mut self, ino: InodeNo, slot: Vec<u8>, inode: Inode) -> Result<(), CheckError> {
        let has_resize = self.superblock.compat().contains(Compat::RESIZE_INODE);
        if ino == InodeNo::RESIZE && has_resize {
            return self.check_resize_inode(slot, inode);
        }
        let regular = inode.kind() == Some(FileKind::Regular);
        if ino == InodeNo::RESIZE && !is_blank(&inode) {
            let problem = "it is in use without the feature resize_inode".to_owned();
            if self.log.found(Issue::ResizeInode { problem }) {
                self.clear_inode(ino)?;
            }
            return Ok(());
        }
        if ino == InodeNo::BAD_BLOCKS {
            return self.check_bad_blocks(slot, inode);
        }
        let known = match ino {
            InodeNo::JOURNAL => self.has_hidden_journal(),
            InodeNo::BOOT_LOADER => true,
            _ => false,
        };
        let in_use = known && regular && (inode.links > 0 || ino == InodeNo::JOURNAL);
        if !in_use && !is_blank(&inode) {
            if self.log.found(Issue::ReservedInode { inode: ino, mode: inode.mode }) {
                self.clear_inode(ino)?;
            }
            return Ok(());
        }
        if regular { self.check_contents(ino, slot, inode, FileKind::Regular) } else { Ok(()) }
    }

    /// Returns true if the volume has a journal without a name.
    fn has_hidden_journal(&self) -> bool {
        let has_journal = self.superblock.compat().contains(Compat::HAS_JOURNAL);
        has_journal && self.superblock.journal_inum() == InodeNo::JOURNAL.0
    }

    /// Checks the inode whose blocks are the device's bad ones: they are used, whatever they
    /// contain. It has no other fields.
    fn check_bad_blocks(&mut self, slot: Vec<u8>, inode: Inode) -> Result<(), CheckError> {
        let ino = InodeNo::BAD_BLOCKS;
        let Inode { block, blocks, atime, mtime, ctime, crtime, extra_isize, generation, .. } = inode;
        let bare = Inode { block, blocks, atime, mtime, ctime, crtime, extra_isize, generation, ..Inode::default() };
        if bare != inode && self.log.found(Issue::ReservedInode { inode: ino, mode: inode.mode }) {
            return self.clear_inode(ino);
        }
        self.check_contents(ino, slot, bare, FileKind::Regular)
    }

    pub(super) fn clear_inode(&mut self, ino: InodeNo) -> Result<(), CheckError> {
        let slot = vec![0; self.geo.inode_size as usize];
        self.volume.set_slot(self.table_of(ino), ino, &slot)
    }

    fn check_used(&mut self, ino: InodeNo, slot: Vec<u8>, mut inode: Inode) -> Result<(), CheckError> {
        let Some(kind) = inode.kind() else {
            if self.log.found(Issue::InodeBadMode { inode: ino, mode: inode.mode }) {
                self.clear_inode(ino)?;
            }
            return Ok(());
        };
        if inode.dtime != 0 && self.log.found(Issue::InodeDtimeSet { inode: ino }) {
            inode.dtime = 0;
        }
        let (links, renaming) = (inode.links, inode.renaming);
        self.check_contents(ino, slot, inode, kind)?;
        self.note_rename(ino, renaming, links);
        if self.read_inode(ino)?.1.links > 0 {
            let state = self.state_mut(ino);
            state.type_byte = entry_type(kind);
            state.links = links;
        }
        Ok(())
    }

    /// Checks fields, attributes and map; writes the inode back if it was repaired.
    fn check_contents(
        &mut self,
        ino: InodeNo,
        mut slot: Vec<u8>,
        mut inode: Inode,
        kind: FileKind,
    ) -> Result<(), CheckError> {
        let before = slot.clone();
        self.check_fields(ino, &mut slot, &mut inode, kind);
        self.check_inside_xattrs(ino, &mut slot, &inode);
        let xattr_blocks = self.check_xattr_block(ino, &mut inode)?;
        let cut = self.truncated.contains(&ino.0).then(|| inode.size.div_ceil(self.geo.block_size.into()));
        let mut mapped = if has_map(&inode, kind) { self.check_map(ino, &mut inode, cut)? } else { Mapped::default() };
        let keep = match kind {
            FileKind::Directory => self.check_directory(ino, &mut inode, &mut mapped)?,
            FileKind::Symlink => self.check_symlink(ino, &mut inode, &mapped)?,
            FileKind::Regular => {
                self.check_size(ino, &mut inode, &mapped);
                if cut.is_some() {
                    self.note_tail(&inode, &mapped);
                }
                true
            }
            _ => true,
        };
        if !keep {
            let blocks = mapped.blocks().map(|(_, block)| block).chain(mapped.nodes.iter().copied());
            // Blocks that another inode also claims stay in use.
            for block in blocks.filter(|block| !self.sharing.has(*block)).collect::<Vec<_>>() {
                self.release(block);
            }
            return self.clear_inode(ino);
        }
        let counted = (mapped.blocks_used() + xattr_blocks) * self.block_unit(&inode);
        if inode.blocks != counted && self.log.found(Issue::BlocksCount { inode: ino, stored: inode.blocks, counted }) {
            inode.blocks = counted;
        }
        inode.encode_into(&mut slot, &self.geo);
        if slot != before {
            self.volume.set_slot(self.table_of(ino), ino, &slot)?;
        }
        Ok(())
    }

    /// Returns what a block counts for in `i_blocks`.
    pub(super) fn block_unit(&self, inode: &Inode) -> u64 {
        if inode.flags.contains(InodeFlags::HUGE_FILE) && self.geo.huge_file {
            return 1;
        }
        self.geo.sectors_per_block().into()
    }

    /// Checks that the flag of extents, the feature, and what the pointers hold agree.
    fn check_extents_flag(&mut self, ino: InodeNo, inode: &mut Inode, kind: FileKind) {
        if !has_map(inode, kind) || !is_root(inode, &self.geo) {
            return;
        }
        let has_feature = self.geo.incompat.contains(Incompat::EXTENT);
        if has_feature && !inode.has_extents() && self.log.found(Issue::ExtentsFlag { inode: ino }) {
            inode.flags |= InodeFlags::EXTENTS;
        }
        if !has_feature && inode.has_extents() && self.log.found(Issue::ExtentsFeature { inode: ino }) {
            self.superblock.set_incompat(self.superblock.incompat() | Incompat::EXTENT);
            self.geo.incompat |= Incompat::EXTENT;
        }
    }

    fn check_fields(&mut self, ino: InodeNo, slot: &mut [u8], inode: &mut Inode, kind: FileKind) {
        self.check_extents_flag(ino, inode, kind);
        let mut impossible = inode.flags & (FLAGS_IMPOSSIBLE - InodeFlags::allowed(&self.geo));
        if !matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            impossible |= inode.flags & InodeFlags::EXTENTS;
        }
        if !impossible.is_empty() && self.log.found(Issue::InodeFlags { inode: ino, flags: impossible.bits() }) {
            inode.flags.remove(impossible);
        }
        let index_possible = kind == FileKind::Directory && self.superblock.compat().contains(Compat::DIR_INDEX);
        let claims_index = inode.flags.contains(InodeFlags::INDEX);
        if claims_index && !index_possible && self.log.found(Issue::IndexUnsupported { inode: ino }) {
            inode.flags.remove(InodeFlags::INDEX);
        }
        let special = !matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        if special && inode.size != 0 && self.log.found(Issue::SpecialFileSize { inode: ino, size: inode.size }) {
            inode.size = 0;
        }
        let locked = inode.flags.intersection(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if special && !locked.is_empty() && self.log.found(Issue::InodeFlags { inode: ino, flags: locked.bits() }) {
            inode.flags.remove(locked);
        }
        let extra_isize = inode.extra_isize;
        let extra_legal = extra_isize_is_legal(extra_isize, self.geo.inode_size);
        if !extra_legal && self.log.found(Issue::InodeExtraSize { inode: ino, extra_isize }) {
            inode.extra_isize = crate::format::inode::EXTRA_BYTES;
            // The bytes there were not written with the meaning they would now get.
            slot[0x84..].fill(0);
            put_u16(slot, 0x80, inode.extra_isize);
        }
        let reserved = ino.0 < self.geo.first_ino && ino != InodeNo::ROOT;
        if !reserved
            && self.obsolete_fields_set(slot, kind)
            && self.log.found(Issue::InodeObsoleteFields { inode: ino })
        {
            clear_obsolete_fields(slot, kind, &self.geo);
        }
    }

    fn obsolete_fields_set(&self, slot: &[u8], kind: FileKind) -> bool {
        let mut cleared = slot.to_vec();
        clear_obsolete_fields(&mut cleared, kind, &self.geo);
        cleared != slot
    }

    fn check_inside_xattrs(&mut self, ino: InodeNo, slot: &mut [u8], inode: &Inode) {
        let extra = inode.extra_isize;
        let area = xattr::Area::Inode(xattr::inode_area(slot, extra));
        let place = Place::of(Structure::InodeXattrs(ino));
        let entries = match xattr::entries(area, place) {
            Ok(entries) => entries,
            Err(damage) => {
                if self.log.found(Issue::InodeXattrs { inode: ino, problem: damage.problem }) {
                    xattr::inode_area_mut(slot, extra).fill(0);
                }
                return;
            }
        };
        let wrong: Vec<usize> = entries.iter().filter(|e| !e.hash_is_right(area)).map(|e| e.offset).collect();
        if !wrong.is_empty() && self.log.found(Issue::XattrHash { inode: ino, block: None }) {
            let bytes = xattr::inode_area_mut(slot, extra);
            wrong.into_iter().for_each(|offset| put_u32(bytes, offset + 12, 0));
        }
    }

    /// Returns how many blocks the attributes count for.
    fn check_xattr_block(&mut self, ino: InodeNo, inode: &mut Inode) -> Result<u64, CheckError> {
        if inode.file_acl == 0 {
            return Ok(0);
        }
        let block = BlockNo(inode.file_acl);
        if let Some(shared) = self.xattrs.get_mut(&inode.file_acl) {
            shared.counted += 1;
            return Ok(1);
        }
        let problem = if !self.geo.may_point_to(block) {
            Some("it is not on the volume".to_owned())
        } else if self.is_fixed(block) {
            Some("it is metadata of its group".to_owned())
        } else {
            self.xattr_block_problem(ino, block)?
        };
        if let Some(problem) = problem {
            if self.log.found(Issue::XattrBlock { inode: ino, block, problem }) {
                inode.file_acl = 0;
            }
            return Ok(0);
        }
        let has_feature = self.superblock.compat().contains(Compat::EXT_ATTR);
        if !has_feature && self.log.found(Issue::XattrFeature { inode: ino }) {
            let with = self.superblock.compat() | Compat::EXT_ATTR;
            self.superblock.set_compat(with);
        }
        if !self.claim(block) {
            self.sharing.note(block, &self.geo);
        }
        let stored = xattr::refcount(&self.volume.read(block)?);
        self.xattrs.insert(inode.file_acl, Shared { stored, counted: 1 });
        Ok(1)
    }

    /// Checks a block's contents; repairs wrong hashes here.
    fn xattr_block_problem(&mut self, ino: InodeNo, block: BlockNo) -> Result<Option<String>, CheckError> {
        let page = self.volume.read(block)?;
        let area = xattr::Area::Block(&page);
        let entries = match xattr::entries(area, Place::new(Structure::XattrBlock(ino), block)) {
            Ok(entries) => entries,
            Err(damage) => return Ok(Some(damage.problem)),
        };
        if let Some(entry) = entries.iter().find(|entry| entry.index == 0) {
            return Ok(Some(format!("the entry at byte {}: e_name_index is 0", entry.offset)));
        }
        let wrong = entries.iter().any(|entry| !entry.hash_is_right(area));
        if wrong && self.log.found(Issue::XattrHash { inode: ino, block: Some(block) }) {
            let right: Vec<_> = entries.iter().map(|e| (e.offset, e.right_hash(area))).collect();
            self.change_xattrs(block, |bytes| {
                for (offset, hash) in right {
                    put_u32(bytes, offset + 12, hash);
                }
            })?;
        } else if let Err(problem) = self.geo.checksums.verify(Sealed::Xattrs(block), &page)
            && self.log.found(Issue::Checksum { structure: Structure::XattrBlock(ino), problem })
        {
            self.change_xattrs(block, |_| ())?;
        }
        Ok(None)
    }

    fn change_xattrs(&self, block: BlockNo, change: impl FnOnce(&mut [u8])) -> Result<(), CheckError> {
        let mut contents = Buf::copy_of(&self.volume.read(block)?);
        change(&mut contents);
        self.volume.write_sealed(block, Sealed::Xattrs(block), contents);
        Ok(())
    }

    fn check_refcounts(&mut self) -> Result<(), CheckError> {
        for (block, Shared { stored, counted }) in std::mem::take(&mut self.xattrs) {
            let block = BlockNo(block);
            if stored != counted && self.log.found(Issue::XattrRefcount { block, stored, counted }) {
                self.change_xattrs(block, |bytes| xattr::set_refcount(bytes, counted))?;
            }
        }
        Ok(())
    }

    /// Returns the largest size that a file with this kind of map can have.
    pub(super) fn size_max(&self, inode: &Inode) -> u64 {
        if inode.has_extents() { LBN_END * u64::from(self.geo.block_size) } else { map::size_max(&self.geo) }
    }

    fn check_size(&mut self, ino: InodeNo, inode: &mut Inode, mapped: &Mapped) {
        let block_size = u64::from(self.geo.block_size);
        let mapped_end = mapped.written_end() * block_size;
        let too_small = inode.size.div_ceil(block_size) * block_size < mapped_end;
        let too_large = inode.size > self.size_max(inode);
        // The reserved inodes have sizes of their own.
        let ordinary = ino.0 >= self.geo.first_ino;
        if ordinary && (too_small || too_large) {
            let issue = Issue::Size { inode: ino, stored: inode.size, should: mapped_end };
            if self.log.found(issue) {
                inode.size = mapped_end;
            }
        }
        if ordinary {
            self.check_large_file(ino, inode.size);
        }
    }

    /// Checks that a volume with a file of this size says that it has large files.
    fn check_large_file(&mut self, inode: InodeNo, size: u64) {
        let has_feature = self.superblock.ro_compat().contains(RoCompat::LARGE_FILE);
        if size >= LARGE_FILE && !has_feature && self.log.found(Issue::LargeFileFeature { inode }) {
            let with = self.superblock.ro_compat() | RoCompat::LARGE_FILE;
            self.superblock.set_ro_compat(with);
        }
    }

    /// Returns true if the link has a target; otherwise the caller clears it. The target ends at
    /// its first NUL, and the link's size is its length.
    fn check_symlink(&mut self, ino: InodeNo, inode: &mut Inode, mapped: &Mapped) -> Result<bool, CheckError> {
        let fast = is_fast(inode);
        let one_block = mapped.blocks_used() == 1 && mapped.end() == 1;
        let length = match (fast, one_block) {
            (true, _) => text_length(&inode.block.map(u32::to_le_bytes).concat()),
            (false, true) => text_length(&self.volume.read(mapped.runs[0].start)?),
            (false, false) => None,
        };
        let length = length.filter(|length| *length > 0 && (*length <= FAST_SYMLINK_MAX as u64) == fast);
        let Some(should) = length else { return Ok(!self.log.found(Issue::SymlinkInvalid { inode: ino })) };
        if should != inode.size && self.log.found(Issue::Size { inode: ino, stored: inode.size, should }) {
            inode.size = should;
        }
        Ok(true)
    }

    /// Checks a directory's blocks, size and index. Returns false if the directory is to be cleared.
    fn check_directory(&mut self, ino: InodeNo, inode: &mut Inode, mapped: &mut Mapped) -> Result<bool, CheckError> {
        if mapped.count == 0 {
            return Ok(!self.log.found(Issue::DirectoryEmpty { inode: ino }));
        }
        if mapped.runs.iter().any(|run| run.unwritten) {
            let problem = "a directory has blocks that were never written".to_owned();
            if self.log.found(Issue::ExtentTree { inode: ino, block: None, problem }) {
                mapped.runs.iter_mut().for_each(|run| run.unwritten = false);
                self.rebuild_tree(ino, inode, mapped)?;
            }
        }
        let blocks = mapped.count;
        if mapped.end() != blocks && self.log.found(Issue::DirectoryHole { inode: ino, blocks }) {
            self.squeeze(ino, inode, mapped)?;
            self.give_up_index(ino, inode, mapped)?;
        }
        let should = mapped.end() * u64::from(self.geo.block_size);
        if inode.size != should && self.log.found(Issue::Size { inode: ino, stored: inode.size, should }) {
            inode.size = should;
        }
        if inode.flags.contains(InodeFlags::INDEX) {
            self.check_index(ino, inode, mapped)?;
        }
        self.dirs.insert(ino.0, DirInfo { blocks: mapped.blocks().collect(), ..DirInfo::default() });
        Ok(true)
    }

    fn check_resize_inode(&mut self, mut slot: Vec<u8>, mut inode: Inode) -> Result<(), CheckError> {
        let double = BlockNo(inode.block[13].into());
        let usable = self.geo.may_point_to(double) && !self.is_fixed(double);
        let expected = self.geo.descriptor_reserve();
        let sectors = u64::from(self.geo.sectors_per_block());
        let owned = expected.iter().map(|reserved| 1 + reserved.copies.len() as u64).sum::<u64>() + 1;
        let apb = u64::from(self.geo.apb);
        let block_size = u64::from(self.geo.block_size);
        let size = (map::DIRECT + apb + apb * apb) * block_size;
        let end = |reserved: &Reserved| match reserved.copies.len() as u64 {
            0 => 0,
            copies => map::DIRECT + apb + u64::from(reserved.index) * apb + copies.min(apb),
        };
        let mapped = expected.iter().map(end).max().unwrap_or(0) * block_size;
        let sizes = mapped..=map::size_max(&self.geo);
        // Permissions, further links and a size that covers what is mapped do no harm here.
        let good = Inode {
            mode: if inode.kind() == Some(FileKind::Regular) { inode.mode } else { 0o100_600 },
            links: inode.links.max(1),
            size: if sizes.contains(&inode.size) { inode.size } else { size },
            blocks: owned * sectors,
            block: std::array::from_fn(|slot| if slot == 13 { inode.block[13] } else { 0 }),
            flags: inode.flags.difference(FLAGS_IMPOSSIBLE | InodeFlags::INDEX),
            file_acl: 0,
            ..inode.clone()
        };
        self.check_large_file(InodeNo::RESIZE, good.size);
        let problem = if !usable {
            Some(format!("its double indirect block is {double}"))
        } else if good != inode {
            Some("its fields are not those of a resize inode".to_owned())
        } else {
            self.resize_map_problem(double, &expected)?
        };
        if usable {
            self.state_mut(InodeNo::RESIZE).has_map = true;
            if !self.claim(double) {
                self.sharing.note(double, &self.geo);
            }
        }
        let Some(problem) = problem else { return Ok(()) };
        if !usable {
            // A new double indirect block can be taken only when all used blocks are known: the
            // inode is cleared, and the feature with it.
            if self.log.found(Issue::ResizeInode { problem }) {
                self.clear_inode(InodeNo::RESIZE)?;
                self.drop_resize_feature();
            }
            return Ok(());
        }
        if self.log.found(Issue::ResizeInode { problem }) {
            inode = good;
            self.write_inode(InodeNo::RESIZE, &mut slot, &inode)?;
            self.write_resize_map(double, &expected);
        }
        Ok(())
    }

    /// Gives the reserve back: its blocks become ordinary ones with the next sweep.
    fn drop_resize_feature(&mut self) {
        let without = self.superblock.compat().difference(Compat::RESIZE_INODE);
        self.superblock.set_compat(without);
        self.superblock.set_reserved_gdt_blocks(0);
    }

    /// Returns true if a block is the double indirect block of this reserve.
    pub(super) fn names_the_reserve(&self, double: BlockNo, reserve: &[Reserved]) -> Result<bool, CheckError> {
        Ok(*self.volume.read(double)? == *self.list_of(reserve))
    }

    fn resize_map_problem(&self, double: BlockNo, expected: &[Reserved]) -> Result<Option<String>, CheckError> {
        if !self.names_the_reserve(double, expected)? {
            return Ok(Some("its double indirect block does not name the reserved blocks".to_owned()));
        }
        for Reserved { block, copies, .. } in expected {
            let want = array_of(&self.geo, copies.iter().copied().enumerate());
            if *self.volume.read(BlockNo((*block).into()))? != *want {
                return Ok(Some(format!("reserved block {block} does not name its copies")));
            }
        }
        Ok(None)
    }

    fn write_resize_map(&self, double: BlockNo, expected: &[Reserved]) {
        self.volume.write(double, self.list_of(expected));
        for Reserved { block, copies, .. } in expected {
            let contents = array_of(&self.geo, copies.iter().copied().enumerate());
            self.volume.write(BlockNo((*block).into()), contents);
        }
    }

    /// Returns the double indirect block that lists the reserve.
    fn list_of(&self, reserve: &[Reserved]) -> Buf {
        array_of(&self.geo, reserve.iter().map(|reserved| (reserved.index as usize, reserved.block)))
    }
}

/// Returns true if an inode that is not in use holds nothing; owners, times and the like have no effect.
fn is_blank(inode: &Inode) -> bool {
    let Inode { mode, links, size, blocks, block, flags, file_acl, .. } = inode.clone();
    Inode { mode, links, size, blocks, block, flags, file_acl, ..Inode::default() } == Inode::default()
}

/// Returns a block of pointers with these at their indexes, and holes elsewhere.
fn array_of(geo: &Geometry, pointers: impl Iterator<Item = (usize, u32)>) -> Buf {
    let mut block = Buf::zeroed(geo.block_bytes());
    for (index, pointer) in pointers.filter(|(index, _)| *index < geo.apb as usize) {
        put_u32(&mut block, 4 * index, pointer);
    }
    block
}

/// Clears `i_faddr`, the high halves of the attribute block's number (without 64bit) and of `i_blocks` (without
/// huge_file), and the high half of the size of files that are not regular (with large_dir: nor directories).
fn clear_obsolete_fields(slot: &mut [u8], kind: FileKind, geo: &Geometry) {
    put_u32(slot, 0x70, 0);
    if !geo.incompat.contains(Incompat::BIT64) {
        put_u16(slot, 0x76, 0);
    }
    if !geo.huge_file {
        put_u16(slot, 0x74, 0);
    }
    let may_be_large = kind == FileKind::Directory && geo.incompat.contains(Incompat::LARGE_DIR);
    if kind != FileKind::Regular && !may_be_large {
        put_u32(slot, 0x6C, 0);
    }
}

/// Returns true if `i_block` holds a map, pointers or the root of an extent tree, and no target or device number.
fn has_map(inode: &Inode, kind: FileKind) -> bool {
    match kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => !is_fast(inode),
        _ => false,
    }
}

fn is_fast(link: &Inode) -> bool {
    link.size <= FAST_SYMLINK_MAX as u64 && !link.has_extents()
}

/// Returns the number of bytes before the first NUL; `None` if there is none.
fn text_length(bytes: &[u8]) -> Option<u64> {
    bytes.iter().position(|&byte| byte == 0).map(|at| at as u64)
}

/// Returns the number of links as a count can hold it; more subdirectories than that are not counted.
pub(super) fn storable_links(counted: u32) -> u16 {
    if counted > u32::from(LINKS_MAX) { 1 } else { counted as u16 }
}
