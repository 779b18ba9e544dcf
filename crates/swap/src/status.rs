//! Counters and state of a swap, for users and tables.

use std::fmt::Write as _;

use moafs_vfs::swap_space::Group;
use moafs_vfs::types::BlockRun;

use crate::options::Placement;

/// Declares the counters once: the fields, and their names for printing.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the swap was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns every counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Pages written because they left memory.
    pages_out,
    /// Of those, pages that went to the traditional swap space.
    pages_out_traditional,
    /// Of those, pages that overwrote their slot: none was free.
    pages_out_in_place,
    /// Write requests that carried these pages.
    out_requests,
    /// Pages read because they were asked for.
    pages_in,
    /// Pages that were read along with them.
    neighbours_in,
    /// Read requests that brought these pages.
    in_requests,
    /// Pages freed by their owner.
    pages_freed,
    /// Swap areas created, in total.
    areas_made,
    /// Of those, areas outside the group of the last file access.
    areas_made_elsewhere,
    /// Swap areas given back to the volume.
    areas_given_back,
    /// Pages moved because their area was being vacated.
    pages_migrated,
    /// Pages that were to be moved but changed before they could be.
    migrations_lost,
    /// Groups vacated because a writer found no space there.
    groups_left,
    /// Attempts to create an area for which the volume had no space.
    areas_refused,
    /// Waits of a page-out for a slot in use by another request.
    waits,
    /// Pages whose write failed.
    write_errors,
    /// Pages whose read failed.
    read_errors,
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
        for (i, (name, total)) in self.counters.named().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\"{name}\":{total}");
        }
        text.push_str("}}");
        text
    }
}
