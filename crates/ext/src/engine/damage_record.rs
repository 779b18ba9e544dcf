//! The record of damage in the superblock, as the kernel's driver keeps one: the state "errors", a count, times.
//!
//! The next mount and the checker see it, also if nothing else of this mount reaches the disk. It is written beside the
//! journal, as what says whether the journal has to be replayed.

use moafs_vfs::Result;

use super::volume::Ext;
use crate::format::Superblock;
use crate::format::superblock::State;
use crate::head::{read_superblock, write_superblock};

/// `s_first_error_errcode` of damaged structures.
const CODE_DAMAGED: u8 = 5;

impl Ext {
    /// Writes the record if damage was found and none is there. A volume that has one is not opened for writing.
    pub(super) fn write_damage_record(&self) {
        if !self.health.is_damaged() || self.shape.read_only.is_some() {
            return;
        }
        let now = self.now_secs();
        // A later write of the superblock must not take the record away.
        note_damage(&mut self.superblock.lock(), now);
        // The volume has failed already: there is nothing else to be done about a device that refuses this as well.
        let _ = self.write_record(now);
    }

    fn write_record(&self, now: u32) -> Result<()> {
        let on_disk = read_superblock(&self.disk)?;
        if on_disk.state().contains(State::ERROR) {
            return Ok(());
        }
        let mut noted = on_disk.clone();
        note_damage(&mut noted, now);
        write_superblock(&self.disk, &on_disk, &noted, &self.geo)
    }
}

fn note_damage(superblock: &mut Superblock, now: u32) {
    if superblock.state().contains(State::ERROR) {
        return;
    }
    superblock.set_state(superblock.state() | State::ERROR);
    if superblock.error_count() == 0 {
        superblock.set_first_error_time(now);
        superblock.set_first_error_code(CODE_DAMAGED);
    }
    superblock.set_error_count(superblock.error_count().saturating_add(1));
    superblock.set_last_error_time(now);
    superblock.set_last_error_code(CODE_DAMAGED);
}
