//! Reports the layout of the whole volume: every file's runs, free runs, fixed metadata.

use std::sync::Arc;

use moafs_vfs::format::Survey;
use moafs_vfs::types::{BlockAddr, BlockRun, FileKind, Ino, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::incore::Incore;
use super::volume::F2fs;
use crate::format::inode::{Advise, Inode};
use crate::format::{Nid, SEGMENT_BLOCKS, Segno, node};

/// Bytes of tables and nodes that a survey leaves in memory at most.
const MEMORY_MAX: usize = 32 << 20;

impl F2fs {
    /// Reports files by number, metadata at fixed places, free runs. Nodes are neither.
    pub(super) fn survey_volume(&self, to: &mut dyn Survey) -> Result<()> {
        for block in 0..self.geo.nat_blocks() {
            for ino in self.nat.inodes_of_block(block)? {
                self.survey_inode(ino, to)?;
            }
            if self.nodes.memory() + self.nat.memory() > MEMORY_MAX {
                self.nodes.shrink(0);
                self.nat.shrink();
            }
        }
        self.survey_unowned(to);
        Ok(())
    }

    /// Reports what belongs to no file: metadata at fixed places, swap areas, free runs.
    pub(super) fn survey_unowned(&self, to: &mut dyn Survey) {
        self.survey_metadata(to);
        for (section, run) in self.space.swap_runs() {
            to.metadata("swap area", section.into(), run);
        }
        self.survey_free(to);
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
        let file = match self.usable(ino) {
            // The inode was freed meanwhile, or needs features that are not supported.
            Err(Error::Stale(_) | Error::Refused(_)) => return Ok(()),
            file => file?,
        };
        let inode = self.inode(&file)?;
        if inode.links == 0 || !matches!(file.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return Ok(());
        }
        let runs = self.runs_of(&file)?;
        if file.kind != FileKind::Symlink || !runs.is_empty() {
            to.file(Ino(ino.0.into()), file.kind, parent_of(ino, &inode), &runs);
        }
        Ok(())
    }

    /// Returns a file's runs in file order.
    pub(super) fn runs_of(&self, file: &Arc<Incore>) -> Result<Vec<(Lbn, BlockRun)>> {
        let mut runs: Vec<(Lbn, BlockRun)> = Vec::new();
        let end = node::lbn_limit(self.layout(file).addresses());
        let (mut lbn, mut blocks) = (0, 0);
        while lbn < end {
            let mapping = self.map_run(file, Lbn(lbn), u32::MAX)?;
            if let Mapping::Run(run) = mapping {
                blocks += u64::from(run.len);
                // Node blocks that are used several times make a file without an end that memory could hold.
                if blocks > u64::from(self.geo.segments) * SEGMENT_BLOCKS as u64 {
                    let problem = "more blocks are mapped than the volume has: some several times".to_owned();
                    return Err(Error::Damaged { structure: format!("inode {}", file.ino.0), block: None, problem });
                }
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
        let mut last: Option<BlockRun> = None;
        for segno in (0..self.geo.segments).map(Segno) {
            let used = self.space.used_blocks(segno);
            let mut start = 0;
            for end in used.into_iter().chain([SEGMENT_BLOCKS]) {
                if start < end {
                    let run = run_of(self.geo.block_of(segno, start).0, (end - start) as u32);
                    last = match last {
                        Some(before) if before.end() == run.start => {
                            Some(BlockRun { len: before.len + run.len, ..before })
                        }
                        before => {
                            before.into_iter().for_each(|before| to.free(before));
                            Some(run)
                        }
                    };
                }
                start = end + 1;
            }
        }
        last.into_iter().for_each(|run| to.free(run));
    }
}

fn run_of(start: u32, len: u32) -> BlockRun {
    BlockRun { start: BlockAddr(start.into()), len }
}

/// Returns the directory that a file is in, if its inode knows it.
fn parent_of(ino: Nid, inode: &Inode) -> Option<Ino> {
    let known = ino != Nid::ROOT && inode.pino >= Nid::ROOT && !inode.advise.contains(Advise::LOST_PINO);
    known.then(|| Ino(inode.pino.0.into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use moafs_vfs::format::Format;

    use super::*;
    use crate::format::BLOCK;
    use crate::judge::{features, mount, name, new, root, volume};

    const ROOT: Ino = Ino(3);

    #[derive(Debug, PartialEq)]
    struct File {
        kind: FileKind,
        parent: Option<Ino>,
        runs: Vec<(Lbn, BlockRun)>,
    }

    #[derive(Debug, Default, PartialEq)]
    struct Layout {
        files: BTreeMap<Ino, File>,
        free: Vec<BlockRun>,
        metadata: Vec<(&'static str, BlockRun)>,
    }

    impl Survey for Layout {
        fn file(&mut self, ino: Ino, kind: FileKind, parent: Option<Ino>, runs: &[(Lbn, BlockRun)]) {
            assert!(self.files.insert(ino, File { kind, parent, runs: runs.to_vec() }).is_none());
        }
        fn free(&mut self, run: BlockRun) {
            self.free.push(run);
        }
        fn metadata(&mut self, what: &'static str, _group: u64, run: BlockRun) {
            self.metadata.push((what, run));
        }
    }

    #[test]
    fn a_survey_accounts_for_every_block() {
        let mem = volume(64, features()[0]);
        let vfs = mount(&mem);
        let create =
            |dir: Ino, text: &str, kind| vfs.create(&root(), dir, name(text.as_bytes()), &new(kind)).unwrap().ino;
        let dir = create(ROOT, "directory", FileKind::Directory);
        let large = create(dir, "large", FileKind::Regular);
        let small = create(ROOT, "small", FileKind::Regular);
        let fifo = create(ROOT, "fifo", FileKind::Fifo);
        (0..300).for_each(|i| assert!(create(dir, &format!("{i}"), FileKind::Regular).0 > 3));
        vfs.write(&root(), large, 0, &vec![1; 1200 * BLOCK], false).unwrap();
        vfs.write(&root(), large, 3000 * BLOCK as u64, &vec![2; 3 * BLOCK], false).unwrap();
        vfs.write(&root(), small, 0, &vec![3; 2 * BLOCK], false).unwrap();
        vfs.sync().unwrap();

        let mut seen = Layout::default();
        let fs = vfs.format();
        fs.survey(&mut seen).unwrap();
        assert_eq!(seen.files[&ROOT].kind, FileKind::Directory);
        assert_eq!(
            (seen.files[&ROOT].parent, seen.files[&dir].parent, seen.files[&large].parent),
            (None, Some(ROOT), Some(dir))
        );
        assert!(!seen.files.contains_key(&fifo));
        let runs = &seen.files[&large].runs;
        assert_eq!(runs.iter().map(|(_, run)| u64::from(run.len)).sum::<u64>(), 1203);
        assert!(runs.windows(2).all(|w| w[0].0.0 + u64::from(w[0].1.len) < w[1].0.0 || w[0].1.end() != w[1].1.start));
        assert_eq!(runs.last().map(|(lbn, run)| lbn.0 + u64::from(run.len)), Some(3003));

        // A look through the directories of the volume in use finds the same.
        let mut live = Layout::default();
        vfs.survey(&mut live, &mut || true).unwrap();
        assert_eq!(live, seen);

        // Every block of the main area is free, a node's, or of one file.
        let data = seen.files.values().flat_map(|file| file.runs.iter().map(|(_, run)| *run));
        let mut all: Vec<BlockRun> = data.chain(seen.free.iter().copied()).collect();
        let counted: u64 = all.iter().map(|run| u64::from(run.len)).sum();
        let main = u64::from(fs.geo.segments) * SEGMENT_BLOCKS as u64;
        assert_eq!(counted + u64::from(fs.space.usage().nodes), main);
        all.sort();
        assert!(all.windows(2).all(|w| w[0].end() <= w[1].start));
        assert!(seen.free.windows(2).all(|w| w[0].end() < w[1].start));
        let fixed: u64 = seen.metadata.iter().map(|(_, run)| u64::from(run.len)).sum();
        assert_eq!(fixed, 2 + u64::from(fs.geo.main - fs.geo.cp));
    }
}
