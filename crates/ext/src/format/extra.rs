//! The part of an inode's slot after its first 128 bytes.

use super::u16_at;

/// Bytes of an inode that every revision has.
pub const GOOD_OLD_BYTES: usize = 128;

/// The extra fields that a slot has.
#[derive(Clone, Copy)]
pub(super) struct Extra {
    /// `i_extra_isize`: bytes in use after the first 128.
    pub(super) isize: u16,
    slot_bytes: usize,
}

impl Extra {
    pub(super) fn of(slot: &[u8]) -> Extra {
        let isize = if slot.len() > GOOD_OLD_BYTES { u16_at(slot, 0x80) } else { 0 };
        Extra { isize, slot_bytes: slot.len() }
    }

    /// Returns true if the 32-bit field at `at` exists.
    pub(super) fn covers(self, at: usize) -> bool {
        let end = at + 4;
        end <= self.slot_bytes && end <= GOOD_OLD_BYTES + usize::from(self.isize)
    }
}
