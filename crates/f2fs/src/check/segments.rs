//! Claims: what the blocks of segments are used for.

use super::checker::Checker;
use super::issue::BlockOwner;
use super::segment::Segment;
use super::{CheckError, Issue};
use crate::format::sit::ValidMap;
use crate::format::summary::{ENTRY_BYTES, FOOTER_AT, SummaryEntry};
use crate::format::{BlkAddr, Log, Nid, Segno};

/// The owner of a block, and the kind of the block.
pub(super) struct Claim {
    pub(super) inode: Nid,
    pub(super) owner: BlockOwner,
    pub(super) is_node: bool,
    /// The log it belongs to, where that can be told.
    pub(super) log: Option<Log>,
}

impl Checker<'_> {
    /// Notes that a block of the main area is used. False if it has an owner already, or lies elsewhere.
    pub(super) fn claim(&mut self, block: BlkAddr, claim: &Claim) -> Result<bool, CheckError> {
        let Some((segno, offset)) = self.geo.segment_of(block) else { return Ok(false) };
        let segment = self.segments.entry(segno).or_insert_with(|| Segment::damaged(ValidMap::EMPTY));
        let Claim { inode, owner, is_node, log } = *claim;
        if segment.reached.get(offset) {
            self.found(Issue::MultiplyClaimed { inode, nid: owner.nid, block });
            return Ok(false);
        }
        segment.reached.set(offset);
        self.reached_blocks += 1;
        if !segment.valid.get(offset) {
            self.found(Issue::UsedButFree { inode, block });
        } else if let Some(stored) = segment.log {
            if stored.is_node() != is_node {
                if !std::mem::replace(&mut segment.told_class, true) {
                    self.found(Issue::SegmentClass { segment: segno, stored, block });
                }
            } else if log.is_some_and(|log| log != stored) {
                segment.misfits += 1;
            }
        }
        self.check_summary(segno, offset, block, claim)?;
        Ok(true)
    }

    /// Checks that a block's summary names its owner. The summary of a node need only name the
    /// node.
    fn check_summary(&mut self, segno: Segno, offset: usize, block: BlkAddr, claim: &Claim) -> Result<(), CheckError> {
        let Some(entry) = self.summary_entry(segno, offset, claim.is_node)? else { return Ok(()) };
        let stored = BlockOwner { nid: entry.nid, version: entry.version, offset: entry.offset };
        let same = if claim.is_node { stored.nid == claim.owner.nid } else { stored == claim.owner };
        if !same {
            self.found(Issue::Summary { segment: segno, block, stored, should: claim.owner });
        }
        Ok(())
    }

    /// Returns the newest summary entry of a block; `None` if there is no summary but the nodes'
    /// own footers.
    fn summary_entry(
        &mut self,
        segno: Segno,
        offset: usize,
        is_node: bool,
    ) -> Result<Option<SummaryEntry>, CheckError> {
        let current = &self.pack.checkpoint.current;
        if let Some(log) = Log::ALL.into_iter().find(|log| current[*log as usize].segno == segno) {
            let summary = self.pack.summaries[log as usize].as_ref();
            return Ok(summary.map(|summary| summary.entries[offset]));
        }
        let page = self.summaries.read(self.geo.summary_at(segno))?;
        let nodes = page[FOOTER_AT] == 1;
        let checked = self.segments.get_mut(&segno).map(|segment| std::mem::replace(&mut segment.kind_checked, true));
        if checked == Some(false) && nodes != is_node {
            self.found(Issue::SummaryKind { segment: segno, nodes });
        }
        Ok(Some(SummaryEntry::decode(&page[offset * ENTRY_BYTES..])))
    }
}
