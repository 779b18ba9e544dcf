//! Reporting the layout of the whole volume: every file's runs, free runs, fixed metadata.

use std::sync::Arc;

use moafs_vfs::format::Survey;
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Ino, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::{F2fs, Incore};
use crate::format::inode::{Advise, Inode};
use crate::format::{BlkAddr, Nid, SEGMENT_BLOCKS, Segno, node};

/// Bytes of tables and nodes that a survey leaves in memory at most.
const MEMORY_MAX: usize = 32 << 20;

impl F2fs {
    /// Reports metadata at fixed places, files by number, free runs. Nodes are neither.
    pub(super) fn survey_volume(&self, to: &mut dyn Survey) -> Result<()> {
        self.survey_metadata(to);
        for block in 0..self.geo.nat_blocks() {
            for ino in self.nat.inodes_of_block(block)? {
                self.survey_inode(ino, to)?;
            }
            if self.nodes.memory() + self.nat.memory() > MEMORY_MAX {
                self.nodes.shrink(0);
                self.nat.shrink();
            }
        }
        self.survey_free(to);
        Ok(())
    }

    fn survey_metadata(&self, to: &mut dyn Survey) {
        let geo = &self.geo;
        let areas = [
            ("superblock", 0..2),
            ("checkpoint", geo.cp..geo.sit),
            ("SIT", geo.sit..geo.nat),
            ("NAT", geo.nat..geo.ssa),
            ("SSA", geo.ssa..geo.main),
        ];
        for (what, area) in areas {
            to.metadata(what, 0, run_of(area.start, area.len() as u32));
        }
    }

    fn survey_inode(&self, ino: Nid, to: &mut dyn Survey) -> Result<()> {
        let file = match self.incore(ino) {
            // Freed meanwhile, or of no use without features that are not supported.
            Err(Error::Stale(_) | Error::Refused(_)) => return Ok(()),
            file => file?,
        };
        let inode = self.inode(&file)?;
        if inode.links == 0 || !matches!(file.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return Ok(());
        }
        let runs = self.runs(&file)?;
        if file.kind != FileKind::Symlink || !runs.is_empty() {
            to.file(Ino(ino.0.into()), file.kind, parent_of(ino, &inode), &runs);
        }
        Ok(())
    }

    /// A file's runs in file order.
    fn runs(&self, file: &Arc<Incore>) -> Result<Vec<(Lbn, BlockRun)>> {
        let mut runs: Vec<(Lbn, BlockRun)> = Vec::new();
        let end = node::lbn_limit(self.layout(file).addresses());
        let mut lbn = 0;
        while lbn < end {
            let mapping = self.map_run(file, Lbn(lbn), u32::MAX)?;
            if let Mapping::Run(run) = mapping {
                match runs.last_mut() {
                    Some((at, last)) if last.end() == run.start && at.0 + u64::from(last.len) == lbn => {
                        last.len += run.len;
                    }
                    _ => runs.push((Lbn(lbn), run)),
                }
            }
            lbn += u64::from(mapping.len());
        }
        Ok(runs)
    }

    fn survey_free(&self, to: &mut dyn Survey) {
        let mut free: Option<BlockRun> = None;
        for segno in (0..self.geo.segments).map(Segno) {
            let (_, valid) = self.space.valid_blocks(segno);
            let mut start = 0;
            for end in valid.into_iter().chain([SEGMENT_BLOCKS]) {
                let BlkAddr(first) = self.geo.block_of(segno, start);
                let run = run_of(first, (end - start) as u32);
                start = end + 1;
                free = match free {
                    Some(before) if before.end() == run.start => Some(BlockRun { len: before.len + run.len, ..before }),
                    Some(before) => {
                        if before.len > 0 {
                            to.free(before);
                        }
                        Some(run)
                    }
                    None => Some(run),
                };
            }
        }
        free.into_iter().filter(|run| run.len > 0).for_each(|run| to.free(run));
    }
}

fn run_of(start: u32, len: u32) -> BlockRun {
    BlockRun { start: BlockAddr(start.into()), len }
}

/// The directory a file is in, where its inode knows.
fn parent_of(ino: Nid, inode: &Inode) -> Option<Ino> {
    let known = ino != Nid::ROOT && inode.pino >= Nid::ROOT && !inode.advise.contains(Advise::LOST_PINO);
    known.then(|| Ino(inode.pino.0.into()))
}
