//! Inodes by number: read from the volume if need be, and held.

use crate::error::{Error, Result};
use crate::format::Format;
use crate::inode::{Found, Shared};
use crate::page_cache::PageCache;
use crate::types::{FileKind, Ino};

impl<F: Format> PageCache<F> {
    /// Returns an inode, read from the volume if need be.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Shared<F>> {
        loop {
            let ticket = self.table.load_ended.ticket();
            match self.table.find(ino) {
                Found::Ready(inode) => return inode.check_alive().map(|()| inode),
                Found::Loading => {
                    self.rt.wait(&self.table.load_ended, ticket, None);
                }
                Found::LoadIt => return self.load(ino),
            }
        }
    }

    fn load(&self, ino: Ino) -> Result<Shared<F>> {
        let loaded = self.format.load(ino);
        let outcome = match loaded {
            Ok((attr, node)) => {
                let inode = self.insert_loaded(ino, attr, node);
                self.reclaim_inodes();
                Ok(inode)
            }
            Err(error) => {
                self.table.load_failed(ino);
                Err(error)
            }
        };
        self.rt.signal(&self.table.load_ended);
        outcome
    }

    /// Returns a directory's inode; ENOTDIR for anything else.
    pub(crate) fn directory(&self, ino: Ino) -> Result<Shared<F>> {
        let inode = self.inode(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Error::Posix(libc::ENOTDIR)) }
    }

    /// Returns a regular file's inode.
    pub(crate) fn file_inode(&self, ino: Ino) -> Result<Shared<F>> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Error::Posix(libc::EISDIR)),
            _ => Err(Error::Posix(libc::EINVAL)),
        }
    }

    /// Takes one more hold on an inode that exists, and returns the inode that is held.
    pub(crate) fn hold(&self, ino: Ino) -> Result<Shared<F>> {
        let inode = self.inode(ino)?;
        self.table.hold(ino);
        // Reaping marks the inode where holds are counted: either it sees this hold, or this call sees its mark.
        match inode.check_alive() {
            Ok(()) => Ok(inode),
            Err(error) => {
                self.table.release(ino, 1);
                Err(error)
            }
        }
    }

    /// Keeps the number of decoded inodes in bounds, now and then.
    pub(crate) fn reclaim_inodes(&self) {
        if self.table.decoded().is_multiple_of(64) {
            self.reclaim();
        }
    }
}
