//! Reporting the layout of the whole volume: every file's runs, free runs, fixed metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_vfs::format::Survey;
use moafs_vfs::types::{BlockAddr, BlockRun, Cookie, FileKind, Ino, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::incore::Incore;
use super::volume::Ext;
use crate::format::inode::InodeFlags;
use crate::format::{GroupNo, Inode, InodeNo, bitmap};

/// The most blocks looked up at once.
const RUN_MAX: u32 = 1 << 16;

impl Ext {
    pub(super) fn survey_volume(&self, to: &mut dyn Survey) -> Result<()> {
        let mut parents = BTreeMap::new();
        for group in self.geo.all_groups() {
            self.each_inode(group, &mut |node| {
                if node.kind == FileKind::Directory { self.note_children(&node, &mut parents) } else { Ok(()) }
            })?;
        }
        for group in self.geo.all_groups() {
            self.each_inode(group, &mut |node| {
                let runs = self.runs_of(&node)?;
                let parent = parents.get(&node.ino.0).map(|ino: &u32| Ino(u64::from(*ino)));
                to.file(Ino(node.ino.0.into()), node.kind, parent, &runs);
                Ok(())
            })?;
        }
        self.survey_unowned(to)
    }

    /// Reports what belongs to no file: metadata at fixed places, swap areas, free runs.
    pub(super) fn survey_unowned(&self, to: &mut dyn Survey) -> Result<()> {
        for group in self.geo.all_groups() {
            self.survey_metadata(group, to);
        }
        for group in self.geo.all_groups() {
            self.alloc.taken_runs(group).into_iter().for_each(|run| to.metadata("swap area", group.0.into(), run));
            self.alloc.free_runs(group)?.into_iter().for_each(|run| to.free(run));
        }
        Ok(())
    }

    fn survey_metadata(&self, group: GroupNo, to: &mut dyn Survey) {
        let descriptor = self.alloc.descriptor(group);
        let number = u64::from(group.0);
        let head = self.geo.head_blocks(group);
        let table = self.geo.inode_table_blocks;
        let parts = [
            ("superblock and descriptors", self.geo.group_start(group).0, head),
            ("block bitmap", descriptor.block_bitmap.0, 1),
            ("inode bitmap", descriptor.inode_bitmap.0, 1),
            ("inode table", descriptor.inode_table.0, table),
        ];
        for (what, start, len) in parts {
            if len > 0 {
                to.metadata(what, number, BlockRun { start: BlockAddr(start), len });
            }
        }
    }

    /// Calls `each` with every inode of a group that is in use and has names.
    pub(super) fn each_inode(&self, group: GroupNo, each: &mut dyn FnMut(Arc<Incore>) -> Result<()>) -> Result<()> {
        let in_use = self.alloc.inodes_in_use(group)?;
        let ever_used = self.alloc.inodes_ever_used(group);
        for index in (0..ever_used).filter(|index| bitmap::test(&in_use, *index)) {
            let ino = self.geo.inode_at(group, index);
            if (ino != InodeNo::ROOT && ino.0 < self.geo.first_ino)
                || self.slot(ino)?.is_none_or(|inode| inode.links == 0)
            {
                continue;
            }
            match self.value_node(ino)? {
                Some(node) => each(Arc::new(node))?,
                None => each(self.incore(ino)?)?,
            }
        }
        Ok(())
    }

    /// Returns an inode's slot as it is now, without checks.
    pub(super) fn slot(&self, ino: InodeNo) -> Result<Option<Inode>> {
        let Some(at) = self.slot_at(ino) else { return Ok(None) };
        let block = self.table_block(&at)?;
        let slot = at.offset..at.offset + self.geo.inode_size as usize;
        Ok(Some(block.view(|bytes| Inode::parse(&bytes[slot], &self.geo))))
    }

    fn note_children(&self, dir: &Incore, parents: &mut BTreeMap<u32, u32>) -> Result<()> {
        if dir.inode().flags.contains(InodeFlags::ENCRYPT) {
            return Ok(());
        }
        self.list_names(dir, Cookie::START, &mut |name, dentry, _| {
            if !matches!(name.as_bytes(), b"." | b"..") {
                parents.insert(dentry.ino.0 as u32, dir.ino.0);
            }
            true
        })?;
        self.drop_index(dir);
        Ok(())
    }

    /// Returns a file's runs in file order.
    pub(super) fn runs_of(&self, node: &Incore) -> Result<Vec<(Lbn, BlockRun)>> {
        let mut runs: Vec<(Lbn, BlockRun)> = Vec::new();
        if !self.has_pointers(node.kind, &node.inode()) {
            return Ok(runs);
        }
        let end = node.inode().size.div_ceil(self.geo.block_size.into());
        let (mut lbn, mut blocks) = (0, 0);
        while lbn < end {
            let mapping = self.map_run(node, Lbn(lbn), (end - lbn).min(RUN_MAX.into()) as u32)?;
            // Blocks that are not written yet belong to the file as well.
            if let Mapping::Run(run) | Mapping::Unwritten(run) = mapping {
                blocks += u64::from(run.len);
                // A map whose blocks point to themselves has no end that memory could hold.
                if blocks > self.geo.blocks {
                    let problem = "more blocks are mapped than the volume has: some several times".to_owned();
                    return Err(Error::Damaged { structure: format!("inode {}", node.ino.0), block: None, problem });
                }
                match runs.last_mut() {
                    Some((at, last)) if last.end() == run.start && at.0 + u64::from(last.len) == lbn => {
                        last.len += run.len
                    }
                    _ => runs.push((Lbn(lbn), run)),
                }
            }
            lbn += u64::from(mapping.len());
        }
        Ok(runs)
    }
}
