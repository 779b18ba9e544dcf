//! Changes that are durable before their call returns: of files and directories that are marked so, and on a mount that
//! wants it of all.

use smallvec::SmallVec;

use crate::calls::Unseen;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::inner::Inner;
use crate::options::Synchronous;
use crate::perm::{DIR_SYNC, SYNC};
use crate::types::{Ino, Name};
use crate::write_error::Process;

impl<F: Format> Inner<F> {
    /// Makes changes of names, each in its directory, durable where that is asked for; `inodes` are those behind the
    /// names. Called after the change, with no lock held. If it fails, gives notice of what changed nevertheless.
    pub(crate) fn settle_names(&self, names: &[(Ino, &Name)], inodes: &[Ino]) -> Result<()> {
        let mut dirs: SmallVec<[Ino; 2]> = names.iter().map(|(dir, _)| *dir).collect();
        dirs.dedup();
        let settled = dirs.iter().try_for_each(|dir| self.settle(*dir, Synchronous::Names, SYNC | DIR_SYNC));
        if settled.is_err() {
            self.give_notice_of_names(names);
            inodes.iter().for_each(|ino| self.give_notice(*ino));
        }
        settled
    }

    fn give_notice_of_names(&self, names: &[(Ino, &Name)]) {
        if let Some(watcher) = self.watcher.get() {
            names.iter().for_each(|(dir, name)| watcher(Unseen::Name(*dir, name)));
        }
    }

    /// Makes contents and attributes of an inode durable if that is asked for. Called after the change, with no lock
    /// held.
    pub(crate) fn settle_inode(&self, ino: Ino) -> Result<()> {
        self.settle(ino, Synchronous::All, SYNC)
    }

    /// Syncs an inode if the mount wants it of `changes`, or the inode has one of `flags`.
    fn settle(&self, ino: Ino, changes: Synchronous, flags: u32) -> Result<()> {
        let settled = if self.synchronous.get() >= changes || self.has_flag(ino, flags)? {
            self.fsync(ino, false, &|| Process::SELF)
        } else {
            Ok(())
        };
        match settled {
            // It was removed meanwhile.
            Err(Error::Stale(_)) => Ok(()),
            settled => settled,
        }
    }

    fn has_flag(&self, ino: Ino, flags: u32) -> Result<bool> {
        let _gate = self.enter()?;
        match self.inode(ino) {
            Err(Error::Stale(_)) => Ok(false),
            inode => Ok(inode?.state.lock().attr.flags & flags != 0),
        }
    }
}
