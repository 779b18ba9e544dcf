//! A survey of a volume that is in use: where its files lie now.
//!
//! [`Format::survey`] goes through a volume inode by inode, beside no change. This one goes through its directories,
//! and looks at each file with that file's lock held. Changes made elsewhere meanwhile are seen or not; a file that
//! moves may be told beside another that took its old blocks. Data that wait in the cache have no place yet, and files
//! without a name are left out.
//!
//! No gate is held while the caller is asked whether to go on, so the volume can be closed between two parts.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::format::{Format, Survey};
use crate::page_cache::PageCache;
use crate::types::{Cookie, FileKind, Ino};

/// Directory entries that are listed at a time.
const LIST_BATCH: usize = 256;

/// An entry: its inode, its kind if the directory records it, and the cookie from which the listing goes on.
pub(crate) type Listed = (Ino, Option<FileKind>, Cookie);

impl<F: Format> PageCache<F> {
    /// Tells `to` the layout of the volume. Ends early once `goes_on` returns false.
    pub(crate) fn survey(&self, to: &mut dyn Survey, goes_on: &mut dyn FnMut() -> bool) -> Result<()> {
        {
            let _gate = self.enter()?;
            self.format.survey_space(to)?;
        }
        let root = self.shape.root;
        // Directories, and files of several names, which are told once.
        let mut met = BTreeSet::from([root]);
        let mut pending = vec![(root, None)];
        while let Some((dir, parent)) = pending.pop() {
            let mut from = Cookie::START;
            {
                let _gate = self.enter()?;
                self.survey_file(dir, parent, to, &mut met)?;
            }
            loop {
                if !goes_on() {
                    return Ok(());
                }
                let _gate = self.enter()?;
                let batch = self.list_from(dir, from)?;
                let Some((_, _, next)) = batch.last() else { break };
                from = *next;
                for (ino, kind, _) in batch {
                    if self.is_directory(ino, kind)? {
                        if met.insert(ino) {
                            pending.push((ino, Some(dir)));
                        }
                    } else {
                        self.survey_file(ino, Some(dir), to, &mut met)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_directory(&self, ino: Ino, kind: Option<FileKind>) -> Result<bool> {
        match kind {
            Some(kind) => Ok(kind == FileKind::Directory),
            None => self.inode(ino).map(|inode| inode.is_dir()).or_else(|error| error.unless_gone().map(|()| false)),
        }
    }

    /// Tells `to` of one file, if it is there and was not met before.
    fn survey_file(&self, ino: Ino, parent: Option<Ino>, to: &mut dyn Survey, met: &mut BTreeSet<Ino>) -> Result<()> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(error) => return error.unless_gone(),
        };
        let _shared = inode.lock.read();
        if inode.check_alive().is_err() || inode.nlink() == 0 {
            return Ok(());
        }
        if !inode.is_dir() && inode.nlink() > 1 && !met.insert(ino) {
            return Ok(());
        }
        let runs = self.format.runs(&inode.node)?;
        if !runs.is_empty() || matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            to.file(ino, inode.kind, parent, &runs);
        }
        Ok(())
    }

    /// Lists some entries of a directory from a cookie on, the dots left out. This does not change the access time.
    pub(crate) fn list_from(&self, dir: Ino, from: Cookie) -> Result<Vec<Listed>> {
        let mut batch = Vec::new();
        let inode = match self.directory(dir) {
            Ok(inode) => inode,
            Err(error) => return error.unless_gone().map(|()| batch),
        };
        let _shared = inode.lock.read();
        if inode.nlink() == 0 || inode.check_alive().is_err() {
            return Ok(batch);
        }
        self.format.list(&inode.node, from, &mut |name, dentry, next| {
            if !matches!(name.as_bytes(), b"." | b"..") {
                batch.push((dentry.ino, dentry.kind, next));
            }
            batch.len() < LIST_BATCH
        })?;
        Ok(batch)
    }
}
