//! Pass 1: inodes that a crash left to be deleted or truncated: the list in the superblock, and the orphan file.

use moafs_disk::Buf;
use moafs_vfs::types::FileKind;

use super::checker::Checker;
use super::error::CheckError;
use super::issue::Issue;
use super::mapped::Mapped;
use super::scan::Blocks;
use crate::format::checksum::{ORPHAN_MAGIC, ORPHAN_TAIL_BYTES};
use crate::format::inode::InodeFlags;
use crate::format::superblock::{Compat, RoCompat};
use crate::format::{BlockNo, Inode, InodeNo, Owner, Sealed, Structure, u32_at};

impl Checker<'_> {
    pub(super) fn check_orphans(&mut self) -> Result<(), CheckError> {
        self.check_orphan_list()?;
        self.check_orphan_file()
    }

    /// Follows the list. One that makes no sense ends at its first impossible number, a circle where it closes.
    fn check_orphan_list(&mut self) -> Result<(), CheckError> {
        let head = self.superblock.last_orphan();
        let mut members = Vec::new();
        let mut next = InodeNo(head);
        while self.may_be_orphan(next) && self.orphans.insert(next.0) {
            members.push(next);
            next = InodeNo(self.read_inode(next)?.1.dtime);
        }
        if head != 0 && self.log.found(Issue::OrphanList { head }) {
            self.superblock.set_last_orphan(0);
            members.into_iter().try_for_each(|ino| self.finish_orphan(ino))?;
        }
        Ok(())
    }

    fn may_be_orphan(&self, ino: InodeNo) -> bool {
        self.is_of_a_file(ino) && !self.superblock.own_files().contains(&ino)
    }

    fn is_of_a_file(&self, ino: InodeNo) -> bool {
        (self.geo.first_ino..=self.geo.inodes).contains(&ino.0)
    }

    /// Deletes an inode without links; one with links loses the blocks beyond its end when its map is looked at.
    fn finish_orphan(&mut self, ino: InodeNo) -> Result<(), CheckError> {
        let now = self.now_secs();
        let mut has_links = false;
        self.change_inode(ino, |inode| {
            has_links = inode.links > 0;
            inode.dtime = if has_links { 0 } else { now };
        })?;
        if has_links {
            self.truncated.insert(ino.0);
        }
        Ok(())
    }

    /// Notes the last block of a truncated file: the truncation may not have come to the bytes behind the end.
    pub(super) fn note_tail(&mut self, inode: &Inode, mapped: &Mapped) {
        let (block_size, is_elsewhere) =
            (u64::from(self.geo.block_size), InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT);
        let (last, within) = (inode.size / block_size, (inode.size % block_size) as usize);
        if within == 0 || inode.flags.intersects(is_elsewhere) {
            return;
        }
        let run = mapped.runs.iter().find(|run| (run.lbn..run.end()).contains(&last) && !run.unwritten);
        self.tails.extend(run.map(|run| (BlockNo(run.start.0 + (last - run.lbn)), within)));
    }

    /// Zeroes what lies behind the ends of truncated files: most drivers show it when such a file grows again.
    pub(super) fn zero_tails(&mut self) -> Result<(), CheckError> {
        for (block, within) in std::mem::take(&mut self.tails) {
            // A block that another inode claims as well is not changed.
            if !self.sharing.has(block) {
                self.volume.change(block, |bytes| bytes[within..].fill(0))?;
            }
        }
        Ok(())
    }

    fn check_orphan_file(&mut self) -> Result<(), CheckError> {
        let ino = InodeNo(self.superblock.orphan_file_inum());
        if !self.superblock.compat().contains(Compat::ORPHAN_FILE) {
            return self.check_no_orphan_file(ino);
        }
        let (owner, blocks) = match self.orphan_blocks(ino)? {
            Ok(found) => found,
            Err(problem) => {
                if self.log.found(Issue::OrphanFile { problem }) {
                    self.drop_orphan_file();
                }
                return Ok(());
            }
        };
        if !self.superblock.compat().contains(Compat::HAS_JOURNAL) {
            let problem = "the volume has no journal".to_owned();
            if self.log.found(Issue::OrphanFile { problem }) {
                self.drop_orphan_file();
                self.clear_inode(ino)?;
            }
            return Ok(());
        }
        self.orphan_file = Some(ino);
        let (mut members, mut count) = (Vec::new(), 0u32);
        for (lbn, block) in (0..).zip(&blocks) {
            let page = self.volume.read(*block)?;
            let end = page.len() - ORPHAN_TAIL_BYTES;
            for ino in page[..end].chunks_exact(4).map(|slot| InodeNo(u32_at(slot, 0))) {
                let may_be_member = self.may_be_orphan(ino);
                count = count.saturating_add(may_be_member.into());
                // A damaged file may name one in each of its slots.
                if may_be_member && self.orphans.insert(ino.0) {
                    members.push(ino);
                }
            }
            let what = Sealed::OrphanFile(owner, *block);
            if let Err(problem) = self.geo.checksums.verify(what, &page) {
                let issue = Issue::Checksum { structure: Structure::OrphanFile { lbn }, problem };
                if self.log.found(issue) {
                    self.volume.write_sealed(*block, what, Buf::copy_of(&page));
                }
            }
        }
        self.empty_orphan_file(owner, &blocks, members, count)
    }

    /// Checks that a volume without the feature names no inode in use as its orphan file: e2fsck would clear it.
    fn check_no_orphan_file(&mut self, ino: InodeNo) -> Result<(), CheckError> {
        if !self.is_of_a_file(ino) || self.read_inode(ino)?.1.mode == 0 {
            return Ok(());
        }
        let issue = Issue::SuperblockField { field: "s_orphan_file_inum", stored: ino.0.into(), should: 0 };
        if self.log.found(issue) {
            self.superblock.set_orphan_file_inum(0);
        }
        Ok(())
    }

    /// Returns the owner and the blocks of the orphan file, or the reason why it cannot be used.
    fn orphan_blocks(&self, ino: InodeNo) -> Result<Result<(Owner, Vec<BlockNo>), String>, CheckError> {
        if !self.is_of_a_file(ino) {
            return Ok(Err(format!("s_orphan_file_inum is {ino}, which is no inode of a file")));
        }
        let (_, inode) = self.read_inode(ino)?;
        if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            return Ok(Err(format!("inode {ino}: i_mode is {:#o}, should be that of a file in use", inode.mode)));
        }
        let blocks = self.dense_blocks(&inode)?.filter(|blocks| !blocks.is_empty());
        let size = blocks.as_ref().map(|blocks| blocks.len() as u64 * u64::from(self.geo.block_size));
        let Some(blocks) = blocks.filter(|_| size == Some(inode.size)) else {
            return Ok(Err(format!("inode {ino}: its map does not have every block of its {} bytes", inode.size)));
        };
        for (lbn, block) in blocks.iter().enumerate() {
            let page = self.volume.read(*block)?;
            let magic = u32_at(&page, page.len() - ORPHAN_TAIL_BYTES);
            if magic != ORPHAN_MAGIC {
                return Ok(Err(format!("block {lbn}: the magic is {magic:#010x}, should be {ORPHAN_MAGIC:#010x}")));
            }
        }
        Ok(Ok((inode.owner(ino), blocks)))
    }

    /// Finishes the members of the orphan file, `count` of its slots, and says that it is empty.
    fn empty_orphan_file(
        &mut self,
        owner: Owner,
        blocks: &[BlockNo],
        members: Vec<InodeNo>,
        count: u32,
    ) -> Result<(), CheckError> {
        let is_flagged = self.superblock.ro_compat().contains(RoCompat::ORPHAN_PRESENT);
        if (count == 0 && !is_flagged) || !self.log.found(Issue::OrphanFileInUse { count }) {
            return Ok(());
        }
        for block in blocks {
            let mut contents = Buf::copy_of(&self.volume.read(*block)?);
            let end = contents.len() - ORPHAN_TAIL_BYTES;
            contents[..end].fill(0);
            self.volume.write_sealed(*block, Sealed::OrphanFile(owner, *block), contents);
        }
        let without = self.superblock.ro_compat() - RoCompat::ORPHAN_PRESENT;
        self.superblock.set_ro_compat(without);
        members.into_iter().try_for_each(|ino| self.finish_orphan(ino))
    }

    /// Goes back to the list, which every driver knows. The inode, if it is one, gets a name in lost+found.
    fn drop_orphan_file(&mut self) {
        let (compat, ro_compat) = (self.superblock.compat(), self.superblock.ro_compat());
        self.superblock.set_compat(compat - Compat::ORPHAN_FILE);
        self.superblock.set_ro_compat(ro_compat - RoCompat::ORPHAN_PRESENT);
        self.superblock.set_orphan_file_inum(0);
    }
}
