//! Recycling: whether logs fill the holes of used segments when no clean segment is left, and which.
//!
//! Clean segments are filled first under every policy; the policy decides when none is left (at low
//! utilization segments die by themselves, and it never has to). A policy is one file with an
//! implementation of [`Decide`], and one line in [`Recycling`].
//!
//! | module | what it decides |
//! |---|---|
//! | [`mod@never`], [`mod@always`] | wait for cleaning; fill holes |
//! | [`auto`] | the cheaper of the two, by a model of the device |
//! | `decide` | the trait that these implement |
//! | `cost` | the model of the device |
//! | `memory` | what each way was seen to cost |
//! | `state` | what a decision rests on, and what it may be |
//! | [`target`] | which used segment takes new data, and into which of its holes |

pub mod always;
pub mod auto;
mod cost;
mod decide;
mod memory;
pub mod never;
mod state;
pub mod target;

use serde::Serialize;

pub use decide::Decide;
pub use memory::Memory;
pub use state::{Action, Costs, SECTIONS_PER_CHECKPOINT, State, Targets, Victims};

moafs_vfs::named_enum! {
    /// The policy that decides when logs recycle: the values of `-o recycle=`.
    #[derive(Hash, Default, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Recycling ("recycling policy") {
        #[default]
        Auto = "auto", "Fill holes if that costs less than cleaning" => auto::Auto;
        Always = "always", "Fill holes whenever no clean segment is left" => always::Always;
        Never = "never", "Fill clean segments only; when none is left, cleaning makes some" => never::Never;
    }

    fn choose(self, memory: &mut Memory, state: &State, costs: Costs) -> Action;
}

/// The action to take, and the costs per new block that led to it: infinite for an action that is
/// impossible.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// The action to take.
    pub action: Action,
    /// Appending to a clean segment that is there.
    pub append_ns: f64,
    /// Filling holes: as seen lately, or as predicted if that is not what is done.
    pub recycle_ns: f64,
    /// Cleaning for a clean segment and appending to it: in the same way.
    pub clean_ns: f64,
}

impl Recycling {
    /// Decides how to get room for a write burst, or for a log whose segment is full. `memory`:
    /// that of the log's class.
    pub fn decide(self, memory: &mut Memory, state: &State) -> Verdict {
        let append_ns = cost::append_ns(state);
        if state.space.spare_sections() > 0 {
            let Costs { recycle_ns, clean_ns } = cost::costs_of_the_moment(state);
            return Verdict { action: Action::Append, append_ns, recycle_ns, clean_ns };
        }
        let costs = memory.costs(state);
        let action = if state.targets.holes == 0 { Action::Clean } else { self.choose(memory, state, costs) };
        Verdict { action, append_ns, recycle_ns: costs.recycle_ns, clean_ns: costs.clean_ns }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::clean::table::Headroom;
    use crate::place::device::DeviceCost;

    /// Returns a volume of 1000 sections without a clean one; `valid` blocks in the best victim, which is the
    /// best target too, and files of 8 blocks.
    pub(crate) fn full(device: DeviceCost, utilization: f64, valid: u32) -> State {
        full_of(8, device, utilization, valid)
    }

    /// Returns the same state with files of so many blocks.
    pub(crate) fn full_of(file_blocks: u32, device: DeviceCost, utilization: f64, valid: u32) -> State {
        let main_blocks = 512_000;
        let space = Headroom {
            free_sections: 5,
            prefree_sections: 0,
            reserved_sections: 5,
            needed_sections: 0,
            section_blocks: 512,
            valid_blocks: (main_blocks as f64 * utilization) as u64,
            main_blocks,
        };
        let holes = 512 - valid;
        State {
            written_blocks: 0,
            space,
            targets: Targets { segments: 1, holes, runs: (holes * valid / 512 / file_blocks).max(1) },
            victims: Victims { sections: 1, blocks: 512, valid },
            device,
        }
    }

    #[test]
    fn clean_segments_are_filled_first() {
        let mut state = full(DeviceCost::HDD, 0.9, 450);
        state.space.free_sections += 1;
        for recycling in Recycling::ALL {
            assert_eq!(recycling.decide(&mut Memory::default(), &state).action, Action::Append, "{recycling}");
        }
    }

    #[test]
    fn each_does_what_it_can_when_the_other_way_is_closed() {
        let mut state = full(DeviceCost::SSD, 0.9, 450);
        assert_eq!(Recycling::Never.decide(&mut Memory::default(), &state).action, Action::Clean);
        assert_eq!(Recycling::Always.decide(&mut Memory::default(), &state).action, Action::Recycle);
        state.victims = Victims::default();
        assert_eq!(Recycling::Auto.decide(&mut Memory::default(), &state).action, Action::Recycle);
        let verdict = Recycling::Always
            .decide(&mut Memory::default(), &State { targets: Targets::default(), ..full(DeviceCost::SSD, 0.9, 450) });
        assert_eq!((verdict.action, verdict.recycle_ns), (Action::Clean, f64::INFINITY));
    }
}
