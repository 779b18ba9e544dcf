//! Counters and state of a swap, for users and tables.

use std::fmt::Write as _;

use moafs_vfs::swap_space::Group;
use moafs_vfs::types::BlockRun;

use crate::options::Placement;

moafs_runtime::counters! {
    /// Counts since the swap was opened.
    pub struct Counters {
        /// Pages written because they left memory.
        pages_out: u64,
        /// Of those, pages that went to the traditional swap space.
        pages_out_traditional: u64,
        /// Of those, pages that overwrote their slot: none was free.
        pages_out_in_place: u64,
        /// Write requests that carried these pages.
        out_requests: u64,
        /// Pages read because they were asked for.
        pages_in: u64,
        /// Pages that were read along with them.
        neighbours_in: u64,
        /// Read requests that brought these pages.
        in_requests: u64,
        /// Pages freed by their owner.
        pages_freed: u64,
        /// Swap areas created, in total.
        areas_made: u64,
        /// Of those, areas outside the group of the last file access.
        areas_made_elsewhere: u64,
        /// Swap areas given back to the volume.
        areas_given_back: u64,
        /// Pages moved because their area was being vacated.
        pages_migrated: u64,
        /// Pages that were to be moved but changed before they could be.
        migrations_lost: u64,
        /// Groups vacated because a writer found no space there.
        groups_left: u64,
        /// Attempts to create an area for which the volume had no space.
        areas_refused: u64,
        /// Waits of a page-out for a slot in use by another request.
        waits: u64,
        /// Pages whose write failed.
        write_errors: u64,
        /// Pages whose read failed.
        read_errors: u64,
    }
}

/// The state of one swap area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaStatus {
    /// The group the area lies in.
    pub group: Group,
    /// The area's blocks when it was created.
    pub run: BlockRun,
    /// Slots the area has now: fewer than at first while it is being vacated.
    pub slots: u32,
    /// Of those, slots in use.
    pub used: u32,
    /// True while the area is being vacated for a writer.
    pub leaving: bool,
}

/// The state of a swap at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The destination of pages.
    pub placement: Placement,
    /// The number of pages the swap can hold.
    pub pages: u32,
    /// The number of pages that are out.
    pub used: u32,
    /// Blocks of the volume that are reserved for it.
    pub reserved_blocks: u64,
    /// Of those, blocks that areas and the traditional swap space occupy.
    pub taken_blocks: u64,
    /// The number of slots in an area.
    pub area_slots: u32,
    /// The areas in the order of their creation.
    pub areas: Vec<AreaStatus>,
    /// The number of slots in the traditional swap space.
    pub traditional_slots: u32,
    /// Of those, slots in use.
    pub traditional_used: u32,
    /// Counts since the swap was opened.
    pub counters: Counters,
}

impl Status {
    /// Returns the status as one JSON object.
    pub fn json(&self) -> String {
        let mut text = format!(
            "{{\"placement\":\"{}\",\"pages\":{},\"used\":{},\"reserved_blocks\":{},\"taken_blocks\":{},\"area_slots\":{},\
             \"traditional_slots\":{},\"traditional_used\":{},\"areas\":[",
            self.placement.name(),
            self.pages,
            self.used,
            self.reserved_blocks,
            self.taken_blocks,
            self.area_slots,
            self.traditional_slots,
            self.traditional_used,
        );
        for (i, area) in self.areas.iter().enumerate() {
            let AreaStatus { group, run, slots, used, leaving } = area;
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}{{\"group\":{},\"start\":{},\"blocks\":{},\"slots\":{slots},\"used\":{used},\"leaving\":{leaving}}}",
                group.0, run.start.0, run.len,
            );
        }
        text.push_str("],\"counters\":{");
        for (i, (name, total)) in self.counters.named().into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\"{name}\":{total}");
        }
        text.push_str("}}");
        text
    }
}
