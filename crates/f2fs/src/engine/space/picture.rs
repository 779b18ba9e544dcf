//! The main area as a checkpoint records it, and the release of what only the checkpoint before holds.

use moafs_runtime::leaf::atomic::Ordering;

use super::area::MainArea;
use super::recorded::Recorded;
use super::state::{Remade, Usage};
use crate::format::checkpoint::CurrentSegment;
use crate::format::sit::SitEntry;
use crate::format::summary::Summary;
use crate::format::{BlkAddr, Log, Segno};

/// The main area's state for the next checkpoint.
pub(in crate::engine) struct Picture {
    pub(in crate::engine) sit: Vec<(Segno, SitEntry)>,
    pub(in crate::engine) current: [CurrentSegment; 6],
    /// Summaries of the current segments, by log.
    pub(in crate::engine) current_summaries: Vec<Recorded>,
    /// Summaries of other segments that have changed.
    pub(in crate::engine) summaries: Vec<(Segno, Log, Recorded)>,
    pub(in crate::engine) free_segments: u32,
    pub(in crate::engine) usage: Usage,
}

impl MainArea {
    /// Returns the entries recorded of a segment's summary since it was last written; `None`: the
    /// copy on disk is right.
    pub(in crate::engine) fn recorded(&self, segno: Segno) -> Option<Recorded> {
        self.state().summaries.get(&segno).cloned()
    }

    /// Fills in the entries of a summary that were not known here from its copy on disk.
    pub(in crate::engine) fn complete(&self, segno: Segno, disk: &Summary) {
        if let Some(recorded) = self.state().summaries.get_mut(&segno).filter(|recorded| !recorded.complete) {
            recorded.complete_from(disk);
        }
    }

    /// Returns the segments whose summaries must be completed before a snapshot.
    pub(in crate::engine) fn incomplete(&self) -> Vec<Segno> {
        self.state().summaries.iter().filter(|(_, recorded)| !recorded.complete).map(|(segno, _)| *segno).collect()
    }

    /// Takes the state that the next checkpoint describes. Blocks that are freed from now on stay
    /// held until that checkpoint and the one after it are durable. `None`, and nothing has
    /// changed, if a log has begun to fill the holes of a segment whose summary is not complete:
    /// data logs move while a checkpoint is being prepared.
    pub(in crate::engine) fn snapshot(&self) -> Option<Picture> {
        let mut guard = self.state();
        let state = &mut *guard;
        for head in &state.heads {
            state.summaries.entry(head.segno).or_insert_with(Recorded::partial);
        }
        if state.summaries.values().any(|recorded| !recorded.complete) {
            return None;
        }
        let leaving = std::mem::take(&mut state.touched);
        state.chained = 0;
        state.remade = Remade::default();
        for segno in &leaving {
            if let Some(maps) = &mut state.segments[*segno as usize].maps {
                maps.next = maps.valid;
            }
        }
        for (&start, &len) in &state.flights {
            for at in start..start + len {
                if let Some((segno, offset)) = self.locate(BlkAddr(at))
                    && let Some(maps) = &mut state.segments[segno].maps
                {
                    maps.next.set(offset);
                }
            }
        }
        let sit = leaving.iter().map(|segno| (Segno(*segno), state.sit_entry(*segno))).collect();
        let current = state.heads.map(|head| CurrentSegment {
            segno: head.segno,
            offset: head.offset,
            recycling: head.recycling,
        });
        let is_current = |segno: Segno| current.iter().any(|c| c.segno == segno);
        let current_summaries = current.iter().map(|c| state.summaries[&c.segno].clone()).collect();
        let gone: Vec<Segno> = state.summaries.keys().copied().filter(|segno| !is_current(*segno)).collect();
        let summaries = gone
            .into_iter()
            .filter_map(|segno| {
                let log = state.segments[segno.0 as usize].log;
                Some((segno, log, state.summaries.remove(&segno)?))
            })
            .collect();
        let empty = state.segments.iter().enumerate().filter(|(_, segment)| segment.valid == 0).count() as u32;
        debug_assert!(state.heads_stand(), "a log stands nowhere: {:?}", state.heads);
        let empty_heads = current.iter().filter(|c| state.segments[c.segno.0 as usize].valid == 0).count() as u32;
        let picture = Picture {
            sit,
            current,
            current_summaries,
            summaries,
            free_segments: empty - empty_heads,
            usage: state.usage,
        };
        state.leaving = leaving;
        Some(picture)
    }

    /// Releases the blocks that only the previous checkpoint held: the one whose snapshot was taken
    /// last is durable now. Returns the segments that nothing holds any more, ascending; they are
    /// handed out after [`MainArea::open_to_logs`].
    pub(in crate::engine) fn committed(&self) -> Vec<Segno> {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut freed = Vec::new();
        // The counter moves before anything can be written to the released blocks: a reader that
        // asked for a block before, and finds the counter changed after it has read the block, does
        // not accept the bytes.
        self.relocation_generation.fetch_add(1, Ordering::AcqRel);
        for segno in std::mem::take(&mut state.leaving) {
            let current = state.is_current(segno);
            let is_kept = state.areas.has(self.geo.section_of(Segno(segno))) || state.victims.contains(&segno);
            let segment = &mut state.segments[segno as usize];
            if let Some(maps) = &mut segment.maps {
                maps.held = maps.next;
                if maps.held.is_empty() && maps.valid.is_empty() {
                    segment.maps = None;
                }
            }
            if segment.maps.is_none() && !current && !is_kept && !state.free.contains(segno) {
                freed.push(Segno(segno));
            }
            state.recount(segno);
        }
        state.closed.extend(freed.iter().map(|segno| segno.0));
        freed
    }

    /// Returns how often freed blocks have become usable.
    pub(in crate::engine) fn relocation_generation(&self) -> u64 {
        self.relocation_generation.load(Ordering::Acquire)
    }

    /// Lets logs take these segments from now on.
    pub(in crate::engine) fn open_to_logs(&self, freed: &[Segno]) {
        let mut state = self.state();
        for segno in freed.iter().map(|segno| segno.0) {
            state.closed.remove(&segno);
            state.free.extend([segno]);
        }
    }
}
