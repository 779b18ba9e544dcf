//! Decides when to clean, and how many sections.
//!
//! 1. *Foreground*, a writer waits: free sections are no more than what is needed and reserved
//!    (`docs/formats/f2fs.md`, section 11). Clean until one section more is free, or, if `prefree` ones will do,
//!    checkpoint first: they cost no copying.
//! 2. *Background*, idle time: begins when spare sections fall below [`Trigger::begin_below`] and goes on, over
//!    interruptions, until they reach [`Trigger::stop_at`]: the distance between the two is the hysteresis. At most
//!    [`Trigger::step_sections`] per idle step, so that a writer who comes back waits for one step only.
//! 3. Background cleaning also stops where it would only wear the device: a victim fuller than
//!    [`Trigger::utilization_max`] is left for when it has to be.

use serde::Serialize;

use crate::clean::table::{Headroom, SectionView};

/// The urgency with which sections have to become free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// Enough sections are free.
    None,
    /// Idle time may be used for this many sections.
    Background {
        /// Sections to free in this step, at least 1.
        sections: u32,
    },
    /// A checkpoint alone makes enough sections free.
    Checkpoint,
    /// A writer waits for this many sections.
    Foreground {
        /// Sections to free, at least 1.
        sections: u32,
    },
}

/// The thresholds of cleaning.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Trigger {
    /// Spare sections (free, beyond needed and reserved) below which idle cleaning begins.
    pub begin_below: u32,
    /// Spare sections at which it stops; above `begin_below`.
    pub stop_at: u32,
    /// Sections that one idle step frees at most.
    pub step_sections: u32,
    /// Victims fuller than this (0 to 1) are not cleaned in idle time.
    pub utilization_max: f64,
}

impl Trigger {
    /// Thresholds for a volume of so many sections: begin below 5 %, stop at 10 %, one section a step.
    pub fn for_volume(sections: u32) -> Trigger {
        let begin_below = (sections / 20).max(2);
        Trigger { begin_below, stop_at: begin_below.saturating_mul(2), step_sections: 1, utilization_max: 0.9 }
    }

    /// Returns the urgency of cleaning. `idle`: no request waits for the device. `cleaning`: the
    /// last idle step cleaned.
    pub fn urgency(&self, space: &Headroom, idle: bool, cleaning: bool) -> Urgency {
        let spare = space.spare_sections();
        let spare_soon =
            Headroom { free_sections: space.free_sections.saturating_add(space.prefree_sections), ..*space }
                .spare_sections();
        if spare == 0 {
            return if spare_soon > 0 { Urgency::Checkpoint } else { Urgency::Foreground { sections: 1 } };
        }
        let goal = if cleaning { self.stop_at } else { self.begin_below };
        if !idle || spare_soon >= goal {
            return Urgency::None;
        }
        Urgency::Background { sections: (self.stop_at.saturating_sub(spare_soon)).clamp(1, self.step_sections.max(1)) }
    }

    /// True if a victim is worth idle time.
    pub fn is_worth(&self, victim: &SectionView) -> bool {
        victim.utilization() <= self.utilization_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIGGER: Trigger = Trigger { begin_below: 4, stop_at: 8, step_sections: 2, utilization_max: 0.9 };

    fn space(free_sections: u32, prefree_sections: u32) -> Headroom {
        Headroom {
            free_sections,
            prefree_sections,
            reserved_sections: 5,
            needed_sections: 1,
            section_blocks: 512,
            valid_blocks: 0,
            main_blocks: 0,
        }
    }

    #[test]
    fn a_writer_waits_when_only_the_reserve_is_left() {
        assert_eq!(TRIGGER.urgency(&space(6, 0), false, false), Urgency::Foreground { sections: 1 });
        assert_eq!(TRIGGER.urgency(&space(6, 1), false, false), Urgency::Checkpoint);
        assert_eq!(TRIGGER.urgency(&space(7, 0), false, false), Urgency::None);
    }

    #[test]
    fn idle_cleaning_goes_on_beyond_the_point_where_it_began() {
        assert_eq!(TRIGGER.urgency(&space(10, 0), true, false), Urgency::None);
        assert_eq!(TRIGGER.urgency(&space(9, 0), true, false), Urgency::Background { sections: 2 });
        assert_eq!(TRIGGER.urgency(&space(13, 0), true, true), Urgency::Background { sections: 1 });
        assert_eq!(TRIGGER.urgency(&space(14, 0), true, true), Urgency::None);
        assert_eq!(TRIGGER.urgency(&space(9, 5), true, true), Urgency::None);
    }
}
