//! What a swap tells about itself.

use std::fmt::Write as _;

use moafs_vfs::types::BlockRun;
use moafs_vfs::volatile::Group;

use crate::options::Placement;

/// Declares the counters once: fields, and their names for whoever prints them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Totals since the swap was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them, by name.
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
    /// Requests that carried them.
    out_requests,
    /// Pages read because somebody wanted them.
    pages_in,
    /// Pages that came along with them.
    neighbours_in,
    /// Requests that brought them.
    in_requests,
    /// Pages freed.
    pages_freed,
    /// Swap areas created.
    areas_made,
    /// Of those, areas outside the group of the last file access.
    areas_made_elsewhere,
    /// Swap areas given back.
    areas_given_back,
    /// Pages moved because their area gave way.
    pages_migrated,
    /// Of those that were to move, pages that had changed before they could.
    migrations_lost,
    /// Groups left because a writer found no room there.
    groups_left,
    /// Times an area was wanted where the volume had none to give.
    areas_refused,
    /// Times somebody waited for another's slot.
    waits,
    /// Pages that could not be written.
    write_errors,
    /// Pages that could not be read.
    read_errors,
}

/// A swap area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaStatus {
    /// Where it lies.
    pub group: Group,
    /// Its blocks, as they were taken.
    pub run: BlockRun,
    /// Slots it has now: fewer than at first while it gives way.
    pub slots: u32,
    /// Of those, slots in use.
    pub used: u32,
    /// It gives way to a writer.
    pub leaving: bool,
}

/// A swap as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Where pages go.
    pub placement: Placement,
    /// Pages it can hold.
    pub pages: u32,
    /// Pages out.
    pub used: u32,
    /// Blocks of the volume that are reserved for it.
    pub reserved_blocks: u64,
    /// Of those, blocks that areas and the traditional swap space occupy.
    pub taken_blocks: u64,
    /// Slots of an area.
    pub area_slots: u32,
    /// The areas in the order of their creation.
    pub areas: Vec<AreaStatus>,
    /// Slots of the traditional swap space.
    pub traditional_slots: u32,
    /// Of those, slots in use.
    pub traditional_used: u32,
    /// Totals.
    pub counters: Counters,
}

impl Status {
    /// The same as one JSON object.
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
