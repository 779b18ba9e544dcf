//! Chooses where a data block goes: the log it joins, how that log goes on, and in which segment.
//! Nothing else decides that; the engine carries it out.
//!
//! 1. *The log*, from facts about the block and the heat that the policy of `-o temperature=` gives
//!    it: [`data_log`].
//! 2. *The mode*. While sections are spare, logs append to free segments. When none is, the policy of
//!    `-o recycle=` decides for a burst of [`BURST_BLOCKS`] whether logs fill holes, or wait for
//!    cleaning and append: [`Bursts`]. Holes that only the last checkpoint holds become usable with
//!    the next one: [`release`] says whether to wait for it.
//! 3. *The segment*, when a log has used up its own: [`next_segment`]. Within a segment, a log takes
//!    the next block that may be written.
//!
//! Pure functions of a segment table and a view of the free segments. [`Bursts`] remembers what was
//! decided; its caller keeps it.

use crate::clean::table::{Class, Headroom, Table};
use crate::format::{Log, SEGMENT_BLOCKS, Segno};
use crate::place::budget::{Blocks, Budget};
use crate::place::free::FreeSegments;
use crate::place::heat::Heat;
use crate::place::recycling::{Action, Memory, Recycling, State, target};

/// Blocks after which a decision is made anew: the segment buffer of Oh et al. (2009, see
/// [`target`]), 4 MiB.
pub const BURST_BLOCKS: u64 = 1024;
/// Bursts that must fit into the present holes; with fewer, the writer waits for a checkpoint
/// instead of leaving it to the background.
const SCARCE_BURSTS: u64 = 4;

/// Facts about a data block that has to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockFacts {
    /// It holds entries of a directory.
    pub directory: bool,
    /// Its heat, if the policy knows it.
    pub heat: Option<Heat>,
}

/// Returns the log that a data block joins: directories are hot, and what nothing is known of is warm.
pub fn data_log(facts: BlockFacts) -> Log {
    match facts {
        BlockFacts { directory: true, .. } => Log::HotData,
        BlockFacts { heat: Some(Heat::Cold), .. } => Log::ColdData,
        BlockFacts { heat: Some(Heat::Hot), .. } => Log::HotData,
        BlockFacts { heat: None, .. } => Log::WarmData,
    }
}

impl Heat {
    /// Returns the log of data that a file's block of this heat joins.
    pub fn data_log(self) -> Log {
        data_log(BlockFacts { heat: Some(self), ..BlockFacts::default() })
    }
}

/// The kind of segment that a log takes when it needs a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMode {
    /// A free segment; holes only if there is no free one at all.
    Append,
    /// Holes of a used segment; a free one only if there are no holes.
    Recycle,
    /// A free segment, even one of the reserve: for blocks that cleaning moves.
    AppendReserved,
}

/// The decisions about bursts: the one at work, and what the policy remembers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bursts {
    memory: Memory,
    /// The decision at work, and the number of handed-out blocks at which it ends.
    at_work: Option<(u64, Action)>,
}

impl Bursts {
    /// Returns how a writer gets room without a new decision: sections are spare, or the burst that
    /// was decided last goes on. `handed_out`: blocks that logs have handed out so far.
    pub fn at_work(&self, room: &Headroom, handed_out: u64) -> Option<Action> {
        if room.spare_sections() > 0 {
            return Some(Action::Append);
        }
        self.at_work.filter(|(until, _)| handed_out < *until).map(|(_, action)| action)
    }

    /// Decides for the burst that begins now.
    pub fn begin(&mut self, recycling: Recycling, state: &State, handed_out: u64) -> Action {
        let action = recycling.decide(&mut self.memory, state).action;
        self.at_work = Some((handed_out + BURST_BLOCKS, action));
        action
    }
}

/// The way in which a burst that fills holes treats those that only the last checkpoint holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Nothing: few holes wait for a checkpoint.
    No,
    /// Has one written in the background.
    Soon,
    /// Waits for one.
    Wait,
}

/// Decides about a checkpoint when a burst begins to fill holes. One is written as soon as a third
/// of the holes waits for it: the emptiest segments then have the longest runs of holes. The writer
/// waits for it only if holes are scarce.
///
/// `now`: blocks in holes that may be filled; `later`: those that a checkpoint would add.
pub fn release(now: u64, later: u64) -> Release {
    if later > now && now < SCARCE_BURSTS * BURST_BLOCKS {
        Release::Wait
    } else if 2 * later > now {
        Release::Soon
    } else {
        Release::No
    }
}

/// Returns the logs that fill holes when data do: those of data, and those of nodes if a segment's
/// worth of holes is left beyond what the next checkpoint needs.
pub fn recycling_logs(budget: &Budget) -> impl Iterator<Item = Log> {
    let Blocks { nodes, .. } = budget.owed;
    let with_nodes = budget.holes.nodes >= nodes + SEGMENT_BLOCKS as u64;
    Log::ALL.into_iter().filter(move |log| with_nodes || !log.is_node())
}

/// A log that needs another segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullLog {
    /// The log.
    pub log: Log,
    /// The kind of segment that it takes.
    pub mode: LogMode,
    /// The segment that it has used up.
    pub segno: Segno,
    /// True if that segment has holes by now.
    pub has_holes: bool,
}

/// The free segments, as a log sees them.
#[derive(Debug, Clone, Copy)]
pub struct FreeView<'a> {
    /// All free segments.
    pub segments: &'a FreeSegments,
    /// The number of them that logs may take: swap areas keep the others.
    pub for_logs: u32,
    /// The number that the log leaves.
    pub left: u32,
    /// True if logs may begin a section of which every segment is free.
    pub may_open_sections: bool,
}

/// The segment in which a log goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextSegment {
    /// This free segment, from its first block on.
    Free(Segno),
    /// The holes of this used segment.
    Holes(Segno),
    /// The holes of its own segment, from its first block on.
    OwnHoles,
}

/// Returns the segment in which a full log goes on, or `None` if there is none: the log then keeps
/// its last block.
///
/// `table` has no segments that are being emptied. A free segment is taken only if the next
/// checkpoint still finds room for everything that it must write.
pub fn next_segment(full: &FullLog, table: &impl Table, free: &FreeView<'_>, budget: &Budget) -> Option<NextSegment> {
    let class = Class::of(full.log);
    let append = || {
        let segno = if budget.may_open(class) { free_segment(full.segno, free) } else { None };
        segno.map(NextSegment::Free)
    };
    let recycle = || target::target_of(table, full.log).map(NextSegment::Holes);
    let next = match full.mode {
        LogMode::Append | LogMode::AppendReserved => append().or_else(recycle),
        LogMode::Recycle => recycle().or_else(append),
    };
    next.or(full.has_holes.then_some(NextSegment::OwnHoles))
}

/// Returns a free segment: the next one of the same section, else the first of the next free
/// section, else any to the right, else any.
fn free_segment(near: Segno, free: &FreeView<'_>) -> Option<Segno> {
    if free.for_logs <= free.left {
        return None;
    }
    let all = free.segments;
    let section = all.section(all.section_of(near.0));
    let may_take = |segno: &u32| free.may_open_sections || !all.is_whole(all.section_of(*segno));
    let here = all.range(near.0 + 1..section.end.max(near.0 + 1)).next();
    if let Some(segno) = here.filter(may_take) {
        return Some(Segno(segno));
    }
    let begins_free_section = |segno: &u32| {
        let section = all.section_of(*segno);
        *segno == all.section(section).start && all.is_whole(section)
    };
    let to_the_right = all.range(near.0 + 1..).chain(all.range(..=near.0)).filter(may_take);
    to_the_right.clone().find(begins_free_section).or_else(|| to_the_right.clone().next()).map(Segno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::table::testing::VecTable;
    use crate::place::device::DeviceCost;
    use crate::place::recycling::{Targets, Victims};

    #[test]
    fn the_log_follows_the_kind_then_the_heat() {
        let facts = BlockFacts::default();
        assert_eq!(data_log(BlockFacts { directory: true, heat: Some(Heat::Cold) }), Log::HotData);
        assert_eq!(data_log(BlockFacts { heat: Some(Heat::Hot), ..facts }), Log::HotData);
        assert_eq!(data_log(BlockFacts { heat: Some(Heat::Cold), ..facts }), Log::ColdData);
        assert_eq!(data_log(facts), Log::WarmData);
    }

    fn room(free_sections: u32) -> Headroom {
        Headroom {
            free_sections,
            prefree_sections: 0,
            reserved_sections: 5,
            needed_sections: 1,
            section_blocks: 512,
            valid_blocks: 40_000,
            main_blocks: 51_200,
        }
    }

    fn state(free_sections: u32, holes: u32) -> State {
        State {
            written_blocks: 0,
            space: room(free_sections),
            targets: Targets { segments: 1, holes, runs: 8 },
            victims: Victims { sections: 1, blocks: 512, valid: 512 - holes },
            device: DeviceCost::SSD,
        }
    }

    #[test]
    fn a_decision_lasts_for_a_burst_and_ends_when_sections_are_spare() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.at_work(&room(7), 0), Some(Action::Append));
        assert_eq!(bursts.at_work(&room(6), 100), None);
        assert_eq!(bursts.begin(Recycling::Always, &state(6, 100), 100), Action::Recycle);
        assert_eq!(bursts.at_work(&room(6), 100 + BURST_BLOCKS - 1), Some(Action::Recycle));
        assert_eq!(bursts.at_work(&room(7), 101), Some(Action::Append));
        assert_eq!(bursts.at_work(&room(6), 100 + BURST_BLOCKS), None);
        assert_eq!(bursts.begin(Recycling::Always, &state(6, 0), 5000), Action::Clean);
    }

    #[test]
    fn a_writer_waits_for_a_checkpoint_only_where_holes_are_scarce() {
        assert_eq!(release(9000, 3000), Release::No);
        assert_eq!(release(9000, 5000), Release::Soon);
        assert_eq!(release(9000, 10_000), Release::Soon);
        assert_eq!(release(4095, 4096), Release::Wait);
        assert_eq!(release(4096, 4097), Release::Soon);
    }

    #[test]
    fn nodes_fill_holes_only_where_there_are_plenty() {
        let budget = |nodes| Budget { free_segments: 0, holes: Blocks::new(nodes, 0), owed: Blocks::new(10, 0) };
        assert_eq!(recycling_logs(&budget(521)).filter(|log| log.is_node()).count(), 0);
        assert_eq!(recycling_logs(&budget(522)).count(), 6);
    }

    /// Sections of two segments; the used ones are those of the table.
    fn next(full: FullLog, table: &VecTable, free: &[u32], left: u32) -> Option<NextSegment> {
        let segments = FreeSegments::new(2, free.iter().copied());
        let view = FreeView { segments: &segments, for_logs: free.len() as u32, left, may_open_sections: true };
        let budget = Budget { free_segments: free.len() as u64, ..Budget::default() };
        next_segment(&full, table, &view, &budget)
    }

    fn full(mode: LogMode, segno: u32) -> FullLog {
        FullLog { log: Log::WarmData, mode, segno: Segno(segno), has_holes: false }
    }

    #[test]
    fn a_log_that_appends_goes_on_in_its_section_then_in_a_free_one_to_the_right() {
        let used = VecTable::of(&[(512, 9); 4]);
        let append = |segno, free: &[u32]| next(full(LogMode::Append, segno), &used, free, 0);
        assert_eq!(append(2, &[1, 3, 4, 5]), Some(NextSegment::Free(Segno(3))));
        assert_eq!(append(3, &[1, 4, 6, 7]), Some(NextSegment::Free(Segno(6))));
        assert_eq!(append(3, &[1, 4]), Some(NextSegment::Free(Segno(4))));
        assert_eq!(append(3, &[1]), Some(NextSegment::Free(Segno(1))));
        assert_eq!(append(3, &[]), None);
    }

    #[test]
    fn appending_and_recycling_give_way_to_each_other() {
        let table = VecTable::of(&[(400, 9), (100, 9), (512, 9)]);
        assert_eq!(next(full(LogMode::Recycle, 2), &table, &[4], 0), Some(NextSegment::Holes(Segno(1))));
        assert_eq!(next(full(LogMode::Append, 2), &table, &[4], 0), Some(NextSegment::Free(Segno(4))));
        assert_eq!(
            next(full(LogMode::Append, 2), &table, &[4], 1),
            Some(NextSegment::Holes(Segno(1))),
            "it leaves one"
        );
        let used_up = VecTable::of(&[(512, 9); 3]);
        assert_eq!(next(full(LogMode::Recycle, 2), &used_up, &[4], 0), Some(NextSegment::Free(Segno(4))));
        let own = FullLog { has_holes: true, ..full(LogMode::Recycle, 2) };
        assert_eq!(next(own, &used_up, &[], 0), Some(NextSegment::OwnHoles));
    }

    #[test]
    fn a_log_takes_no_free_segment_that_the_next_checkpoint_needs_and_no_section_of_swap_areas() {
        let used = VecTable::of(&[(512, 9); 2]);
        let segments = FreeSegments::new(2, [1, 2, 3]);
        let view = FreeView { segments: &segments, for_logs: 1, left: 0, may_open_sections: false };
        let owed = |nodes| Budget { free_segments: 1, holes: Blocks::new(0, 0), owed: Blocks::new(nodes, 0) };
        let next = |budget| next_segment(&full(LogMode::Append, 3), &used, &view, &budget);
        assert_eq!(next(owed(0)), Some(NextSegment::Free(Segno(1))));
        assert_eq!(next(owed(1)), None);
    }
}
