//! The sectors of files (`st_blocks`) as the front knows them.
//!
//! A front may keep attributes for as long as it likes: a kernel asks anew only after requests of its own that change
//! them. But the sectors of a file change once more without a request, when write-back places its data: in how many
//! pieces these lie, and so how many map blocks lead to them, is known only then. An extended attribute may take a
//! block as well, for which a kernel does not ask. So an inode keeps the number that was told last
//! ([`KnownSectors`]). The task that places data or sets an attribute gives notice if it has become wrong. A call after
//! which the front asks anew clears it: there is no notice of files that are being written.
//!
//! The count is noted under the locks of pages and attributes, and only if no data were given a place while it was
//! made: either that placement sees what was told, or what is told includes it.

use crate::calls::Unseen;
use crate::error::Result;
use crate::format::Format;
use crate::inode::{KnownSectors, Shared, State};
use crate::inode_table::InodeTable;
use crate::types::{FileKind, Ino};

impl<F: Format> InodeTable<F> {
    /// Returns the sectors of an inode for the front, which may keep them.
    pub(crate) fn tell_sectors(&self, inode: &Shared<F>) -> u64 {
        // The kernel drops what it knows of a directory with each change of its names; other kinds do not change.
        if inode.kind != FileKind::Regular {
            return self.format.stat_sectors(&inode.node);
        }
        let (sectors, is_outdated) = self.note_sectors(inode, |state, sectors| {
            let is_outdated = state.known_sectors.note(sectors);
            state.known_sectors = KnownSectors::Told(sectors);
            (sectors, is_outdated)
        });
        // The front asks for purposes of its own as well: what it keeps may still be the answer before this one.
        if is_outdated {
            self.give_notice(inode.ino);
        }
        sectors
    }

    /// Gives notice if the front keeps a number of sectors that is wrong.
    pub(crate) fn check_sectors(&self, inode: &Shared<F>) {
        let keeps_any = matches!(inode.state.lock().known_sectors, KnownSectors::Told(_));
        if keeps_any && self.note_sectors(inode, |state, sectors| state.known_sectors.note(sectors)) {
            self.give_notice(inode.ino);
        }
    }

    /// Ends a call that changed the blocks of a file: the front asks for its attributes anew, unless the call failed.
    pub(crate) fn end_change<T>(&self, inode: &Shared<F>, done: &Result<T>) {
        match done {
            Ok(_) => inode.state.lock().known_sectors = KnownSectors::None,
            Err(_) => self.check_sectors(inode),
        }
    }

    pub(crate) fn has_outdated_sectors(&self, ino: Ino) -> bool {
        self.table.peek(ino).is_some_and(|inode| {
            self.note_sectors(&inode, |state, sectors| {
                state.known_sectors.note(sectors);
                state.known_sectors == KnownSectors::Outdated
            })
        })
    }

    /// Counts the sectors of a file, and calls `note` with the count.
    fn note_sectors<R>(&self, inode: &Shared<F>, note: impl FnOnce(&mut State, u64) -> R) -> R {
        loop {
            let (placements, expected) = {
                let pages = inode.pages.lock();
                (pages.placements(), pages.unplaced.expected())
            };
            // With the map blocks that are known to be missing: a kernel may ask only once.
            let expected = expected.saturating_mul(self.block_bytes() / 512);
            let sectors = self.format.stat_sectors(&inode.node).saturating_add(expected);
            let pages = inode.pages.lock();
            if pages.placements() == placements {
                return note(&mut inode.state.lock(), sectors);
            }
        }
    }

    /// Gives notice of attributes that the front may keep and that are wrong.
    pub(crate) fn give_notice(&self, ino: Ino) {
        if let Some(watcher) = self.watcher.get()
            && self.table.is_held(ino)
        {
            watcher(Unseen::Attributes(ino));
        }
    }
}
