//! Copying trees between any two [`Tree`]s: holes stay holes, names of one file stay names of one file.

use std::collections::{HashMap, HashSet};

use indicatif::ProgressBar;
use moafs_vfs::types::FileKind;

use super::tree::{Meta, New, Tree, Xattr};
use crate::error::{CliError, Result};

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;
/// The deepest tree that is copied: the host's stack and descriptors are finite, a damaged volume's cycles are not.
const DEPTH_MAX: usize = 1000;

/// What is kept of a file besides its contents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    /// `-r`: directories are copied with what is in them.
    pub(crate) recursive: bool,
    /// `-a`: modes, owners, times, hard links, extended attributes, special files.
    pub(crate) all: bool,
    /// Owner of new files when owners are not kept.
    pub(crate) owner: (u32, u32),
    /// Bits of the mode that are not set when modes are not kept.
    pub(crate) umask: u32,
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: u64,
}

/// A copy under way.
pub(crate) struct Copy<'t, S: Tree, D: Tree> {
    from: &'t S,
    to: &'t D,
    keep: Keep,
    /// Files with several names that were copied: source id to the copy.
    linked: HashMap<(u64, u64), D::Node>,
    /// Directories this copy has filled: copying one of them again would never end.
    filled: HashSet<(u64, u64)>,
    chunk: Vec<u8>,
    progress: ProgressBar,
    tally: Tally,
}

impl<'t, S: Tree, D: Tree> Copy<'t, S, D> {
    pub(crate) fn new(from: &'t S, to: &'t D, keep: Keep, progress: ProgressBar) -> Self {
        Copy {
            from,
            to,
            keep,
            linked: HashMap::new(),
            filled: HashSet::new(),
            chunk: vec![0; CHUNK_BYTES],
            progress,
            tally: Tally::default(),
        }
    }

    /// What was copied so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Copies `node` to the name `name` in `dir`. What cannot be copied inside a tree is told and counted.
    ///
    /// # Errors
    /// Only what makes going on pointless: a volume that has failed.
    pub(crate) fn copy(&mut self, node: &S::Node, dir: &D::Node, name: &[u8], depth: usize) -> Result<()> {
        match self.copy_one(node, dir, name, depth) {
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.tally.failed += 1;
                self.progress.suspend(|| eprintln!("moafs: {error}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn copy_one(&mut self, node: &S::Node, dir: &D::Node, name: &[u8], depth: usize) -> Result<()> {
        let meta = self.from.meta(node)?;
        self.progress.inc(1);
        match meta.kind {
            FileKind::Directory => return self.copy_directory(node, &meta, dir, name, depth),
            FileKind::Regular | FileKind::Symlink => {}
            _ if self.keep.all => {}
            _ => {
                let what = self.from.describe(node);
                return Err(CliError::Usage(format!("{what} is a special file; -a copies those, too")));
            }
        }
        if self.link_to_copy(&meta, dir, name)? {
            return Ok(());
        }
        let copy = self.copy_file(node, &meta, dir, name)?;
        self.keep_meta(node, &meta, &copy)?;
        self.tally.files += 1;
        if self.keep.all && meta.nlink > 1 {
            // A fresh node: the one that was written through may hold an open file.
            self.linked.extend(self.to.child(dir, name)?.map(|copy| (meta.id, copy)));
        }
        Ok(())
    }

    /// True if another name of this file was copied before: then this one is linked to the copy.
    fn link_to_copy(&mut self, meta: &Meta, dir: &D::Node, name: &[u8]) -> Result<bool> {
        let Some(copy) = self.linked.get(&meta.id) else { return Ok(false) };
        if self.to.child(dir, name)?.is_some() {
            self.to.unlink(dir, name)?;
        }
        self.to.link(copy, dir, name)?;
        self.tally.files += 1;
        Ok(true)
    }

    fn copy_file(&mut self, node: &S::Node, meta: &Meta, dir: &D::Node, name: &[u8]) -> Result<D::Node> {
        let target = if meta.kind == FileKind::Symlink { Some(self.from.target(node)?) } else { None };
        let existing = self.to.child(dir, name)?;
        let overwrite = match &existing {
            Some(old) => self.replaceable(old, meta)?,
            None => false,
        };
        if existing.is_some() && !overwrite {
            self.to.unlink(dir, name)?;
        }
        let copy = match existing {
            Some(old) if overwrite => {
                self.to.resize(&old, 0)?;
                old
            }
            _ => {
                // Nobody else reads it before it has its contents.
                let perm = if target.is_some() { 0o777 } else { 0o600 };
                self.to.make(dir, name, New { kind: meta.kind, perm, rdev: meta.rdev, target: target.as_deref() })?
            }
        };
        if meta.kind == FileKind::Regular {
            self.copy_data(node, meta.size, &copy)?;
        }
        Ok(copy)
    }

    /// True if `old` is a file whose contents can be replaced; false if it must go first.
    fn replaceable(&self, old: &D::Node, meta: &Meta) -> Result<bool> {
        let old_meta = self.to.meta(old)?;
        if old_meta.kind == FileKind::Directory {
            let what = self.to.describe(old);
            return Err(CliError::Usage(format!("{what} is a directory; a file cannot take its place")));
        }
        Ok(old_meta.kind == FileKind::Regular && meta.kind == FileKind::Regular && old_meta.nlink == 1)
    }

    fn copy_data(&mut self, node: &S::Node, size: u64, copy: &D::Node) -> Result<()> {
        let mut at = 0;
        while let Some(extent) = self.from.data(node, at)? {
            at = extent.from;
            while at < extent.to {
                let want = usize::try_from(extent.to - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
                let len = self.from.read(node, at, &mut self.chunk[..want])?;
                if len == 0 {
                    break;
                }
                self.to.write(copy, at, &self.chunk[..len])?;
                at += len as u64;
                self.tally.bytes += len as u64;
            }
            if at < extent.to {
                // Shorter than it was when we asked.
                break;
            }
        }
        // A hole at the end, or an empty file.
        if at < size { self.to.resize(copy, size) } else { Ok(()) }
    }

    fn copy_directory(&mut self, node: &S::Node, meta: &Meta, dir: &D::Node, name: &[u8], depth: usize) -> Result<()> {
        let what = || self.from.describe(node);
        if !self.keep.recursive {
            return Err(CliError::Usage(format!("{} is a directory; -r copies it with what is in it", what())));
        }
        if self.filled.contains(&meta.id) {
            return Err(CliError::Usage(format!("{} is the copy itself and is left out", what())));
        }
        if depth >= DEPTH_MAX {
            return Err(CliError::Usage(format!("{} lies deeper than {DEPTH_MAX} directories", what())));
        }
        let copy = match self.to.child(dir, name)? {
            Some(old) if self.to.meta(&old)?.kind == FileKind::Directory => old,
            Some(old) => {
                let what = self.to.describe(&old);
                return Err(CliError::Usage(format!("{what} is no directory; a directory cannot take its place")));
            }
            None => self.to.make(dir, name, New { kind: FileKind::Directory, perm: 0o700, rdev: 0, target: None })?,
        };
        self.filled.insert(self.to.meta(&copy)?.id);
        self.copy_contents(node, &copy, depth)?;
        self.keep_meta(node, meta, &copy)?;
        self.tally.files += 1;
        Ok(())
    }

    /// Copies everything in the directory `node` into the directory `into`.
    pub(crate) fn copy_contents(&mut self, node: &S::Node, into: &D::Node, depth: usize) -> Result<()> {
        for name in self.from.names(node)? {
            match self.from.child(node, &name) {
                Ok(Some(child)) => self.copy(&child, into, &name, depth + 1)?,
                // Removed meanwhile.
                Ok(None) => {}
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    self.tally.failed += 1;
                    self.progress.suspend(|| eprintln!("moafs: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Owner first (it clears set-id bits), times last (everything else changes them).
    fn keep_meta(&self, node: &S::Node, meta: &Meta, copy: &D::Node) -> Result<()> {
        if !self.keep.all {
            let (uid, gid) = self.keep.owner;
            self.to.set_owner(copy, uid, gid)?;
            return self.set_perm(meta, copy, meta.perm & 0o777 & !self.keep.umask);
        }
        self.to.set_owner(copy, meta.uid, meta.gid)?;
        for xattr in self.from.xattrs(node)?.iter().filter(is_portable) {
            self.to.set_xattr(copy, xattr)?;
        }
        self.set_perm(meta, copy, meta.perm)?;
        self.to.set_times(copy, meta.atime, meta.mtime)
    }

    fn set_perm(&self, meta: &Meta, copy: &D::Node, perm: u32) -> Result<()> {
        // Symbolic links have no mode of their own.
        if meta.kind == FileKind::Symlink { Ok(()) } else { self.to.set_perm(copy, perm) }
    }
}

/// Labels of the host's security modules belong to the host.
fn is_portable((name, _): &&Xattr) -> bool {
    name.as_slice() != b"security.selinux" && !name.starts_with(b"system.nfs4")
}

/// Errors after which no other file can be copied either.
fn is_fatal(error: &CliError) -> bool {
    let fatal = |errno| matches!(errno, libc::ENOSPC | libc::EROFS | libc::EIO | libc::EDQUOT);
    match error {
        CliError::Volume { error, .. } => fatal(error.errno()),
        CliError::Host { error, .. } => error.raw_os_error().is_some_and(fatal),
        _ => false,
    }
}
