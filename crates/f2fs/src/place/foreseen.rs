//! Placement with the future known (FK), over the logs that there are: a bound for experiments, no volume can be
//! mounted with it.
//!
//! New data and data that cleaning moves join the log of those that die at about the same time, counted in blocks
//! that users write until then. The unit is the dead space of the volume: what dies before so much has been written
//! need never be moved, if nothing that lives longer lies between.
//!
//! Reference: Wang, Li, Li, Lee, Zhou, Xu: Separating Data via Block Invalidation Time Inference for Write
//! Amplification Reduction in Log-Structured Storage (FAST 2022), section 2.3. Its FK has an open segment for each
//! segment's worth of time; F2FS has three logs for data.

use std::sync::Arc;

use crate::clean::oracle::Foresight;
use crate::clean::order::Owner;
use crate::format::Nid;
use crate::format::summary::SummaryEntry;
use crate::place::heat::{FileBlocks, Heat, Separator};

/// The dead space is written so many times until the first death that makes data cold, and warm.
const COLD: f64 = 2.0;
const WARM: f64 = 0.5;

/// The policy: by the time of death.
pub(crate) struct ByDeath {
    foresight: Arc<dyn Foresight>,
    dead_blocks: u64,
}

impl ByDeath {
    pub(crate) fn new(foresight: Arc<dyn Foresight>, dead_blocks: u64) -> ByDeath {
        ByDeath { foresight, dead_blocks }
    }

    fn of(&self, ino: Nid) -> Option<Heat> {
        let owner = SummaryEntry { nid: ino, ..SummaryEntry::default() };
        let left = self.foresight.blocks_before_death(owner) as f64 / self.dead_blocks.max(1) as f64;
        match () {
            () if left < WARM => Some(Heat::Hot),
            () if left < COLD => None,
            () => Some(Heat::Cold),
        }
    }
}

impl Separator for ByDeath {
    fn heat(&mut self, blocks: &FileBlocks, _now_ns: u64) -> Option<Heat> {
        self.of(blocks.ino)
    }

    fn moved(&mut self, block: Owner) -> Option<Heat> {
        self.of(block.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file dies after as many blocks as its number says.
    #[derive(Debug)]
    struct ByNumber;

    impl Foresight for ByNumber {
        fn blocks_before_death(&self, owner: SummaryEntry) -> u64 {
            owner.nid.0.into()
        }
    }

    #[test]
    fn data_that_die_together_lie_together_written_or_moved() {
        let mut fk = ByDeath::new(Arc::new(ByNumber), 100);
        let heats = [10, 49, 50, 199, 200, 4000].map(|ino| fk.moved(Owner { ino: Nid(ino), lbn: 0 }));
        assert_eq!(heats, [Some(Heat::Hot), Some(Heat::Hot), None, None, Some(Heat::Cold), Some(Heat::Cold)]);
    }
}
