//! A volume's files as a [`Tree`].

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use moafs_runtime::Timestamp;
use moafs_vfs::api::{NewFile, RenameMode, Seek, SetAttr, SetTime, Stat};
use moafs_vfs::types::{Cookie, FileKind, Ino, Mapping, Name, SetMode};
use moafs_vfs::{Credentials, Error, Format, Vfs};

use super::trail::Trail;
use super::tree::{Details, Extent, FileId, FileRun, LastLink, Meta, New, OwnerSet, Tree, Xattr};
use crate::error::{CliError, Result};
use crate::owner;

/// Symbolic links followed on the way to a file, as Linux limits them.
const LINKS_MAX: usize = 40;
/// Bytes of a file that are mapped at once.
const MAP_BYTES: u64 = 1 << 30;

/// The files of an open volume.
pub(crate) struct VolumeTree<'v, F: Format> {
    vfs: &'v Vfs<F>,
    who: Credentials,
    /// Owner and group of new files.
    owner: (u32, u32),
    /// Beginning of every trail: `IMAGE:/`.
    top: Trail,
}

/// A file of a volume, held until it is dropped.
pub(crate) struct Held<'v, F: Format> {
    vfs: &'v Vfs<F>,
    pub(crate) ino: Ino,
    /// Inode number of the directory it was found in; of the root, its own.
    dir: Ino,
    trail: Trail,
}

impl<F: Format> Drop for Held<'_, F> {
    fn drop(&mut self) {
        self.vfs.forget(self.ino, 1);
    }
}

impl<'v, F: Format> VolumeTree<'v, F> {
    /// Makes the tree of the files of `vfs`, which messages call `image`.
    pub(crate) fn new(vfs: &'v Vfs<F>, image: &Path) -> VolumeTree<'v, F> {
        let top = Trail::new(&[image.as_os_str().as_bytes(), b":/"].concat());
        VolumeTree { vfs, who: Credentials::root(), owner: owner::of_caller(), top }
    }

    fn id(&self, ino: Ino) -> FileId {
        FileId::Volume { volume: std::ptr::from_ref(self.vfs).addr(), ino: ino.0 }
    }

    fn failed(&self, what: &'static str, at: &Trail) -> impl FnOnce(Error) -> CliError + use<F> {
        let at = at.clone();
        move |error| CliError::Volume { what, at: at.to_string(), error }
    }

    /// Holds the root directory.
    pub(crate) fn root(&self) -> Result<Held<'v, F>> {
        self.hold(self.vfs.shape().root, self.top.clone())
    }

    /// Holds a directory by its number.
    fn hold(&self, ino: Ino, trail: Trail) -> Result<Held<'v, F>> {
        self.vfs.hold(ino).map_err(self.failed("opening", &trail))?;
        Ok(Held { vfs: self.vfs, ino, dir: ino, trail })
    }

    /// Returns all attributes of a file.
    fn stat(&self, node: &Held<'v, F>) -> Result<Stat> {
        self.vfs.stat(node.ino).map_err(self.failed("looking at", &node.trail))
    }

    /// Returns the file at `path`; symbolic links on the way are followed within the volume.
    fn walk_from(&self, mut at: Held<'v, F>, path: &[u8], last: LastLink) -> Result<Option<Held<'v, F>>> {
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let Some(next) = self.child(&at, &name)? else { return Ok(None) };
            let is_followed = last == LastLink::Followed || !todo.is_empty();
            if !is_followed || self.stat(&next)?.attr.kind != FileKind::Symlink {
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(self.failed("looking up", &next.trail)(Error::Posix(libc::ELOOP)));
            }
            let target = self.target(&next)?;
            if target.first() == Some(&b'/') {
                at = self.root()?;
            }
            todo.append(&mut components(&target));
        }
        Ok(Some(at))
    }

    /// Returns the runs of a file's blocks.
    fn runs(&self, file: &Held<'v, F>, stat: &Stat) -> Result<Vec<FileRun>> {
        let size = stat.attr.size;
        if stat.attr.kind != FileKind::Regular || size == 0 {
            return Ok(Vec::new());
        }
        let shape = self.vfs.shape();
        let block_size = u64::from(shape.block_size);
        let mut runs: Vec<FileRun> = Vec::new();
        let mut blocks = 0;
        for at in (0..size).step_by(MAP_BYTES as usize) {
            let len = MAP_BYTES.min(size - at);
            let mapped = self.vfs.map(file.ino, at, len).map_err(self.failed("mapping", &file.trail))?;
            for (offset, mapping) in mapped {
                let (Mapping::Run(run) | Mapping::Unwritten(run)) = mapping else { continue };
                blocks += u64::from(run.len);
                if blocks > shape.blocks {
                    return Err(CliError::TooManyBlocks { at: self.describe(file) });
                }
                let (volume_block, blocks) = (run.start.0, run.len.into());
                push_run(&mut runs, FileRun { file_block: offset / block_size, volume_block, blocks });
            }
        }
        Ok(runs)
    }

    /// Gives a file another name, in any directory, in place of a file that has it.
    pub(crate) fn relocate(&self, from: (&Held<'v, F>, &[u8]), to: (&Held<'v, F>, &[u8])) -> Result<()> {
        let (old, new) = ((from.0.ino, self.name(from.0, from.1)?), (to.0.ino, self.name(to.0, to.1)?));
        let renamed = self.vfs.rename(&self.who, old, new, RenameMode::Replace);
        renamed.map_err(self.failed("moving", &from.0.trail.join(from.1)))
    }

    /// Sets the times of the last access and the last change, if they are given.
    pub(crate) fn touch(&self, node: &Held<'v, F>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        self.set(node, "setting the times of", &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    fn name<'n>(&self, dir: &Held<'v, F>, name: &'n [u8]) -> Result<&'n Name> {
        let wrong = if name.len() > Name::BYTES_MAX { libc::ENAMETOOLONG } else { libc::EINVAL };
        Name::new(name).ok_or_else(|| self.failed("using the name", &dir.trail.join(name))(Error::Posix(wrong)))
    }

    fn set(&self, node: &Held<'v, F>, what: &'static str, set: &SetAttr) -> Result<()> {
        let set = self.vfs.set_attr(&self.who, node.ino, set);
        set.map(drop).map_err(self.failed(what, &node.trail))
    }

    fn seek(&self, file: &Held<'v, F>, offset: u64, what: Seek) -> Result<Option<u64>> {
        match self.vfs.seek(file.ino, offset, what) {
            Ok(offset) => Ok(Some(offset)),
            Err(Error::Posix(libc::ENXIO)) => Ok(None),
            Err(error) => Err(self.failed("seeking in", &file.trail)(error)),
        }
    }
}

/// Adds a run, joined to the last one if it continues that.
fn push_run(runs: &mut Vec<FileRun>, run: FileRun) {
    let continues = |last: &FileRun| {
        last.file_block + last.blocks == run.file_block && last.volume_block + last.blocks == run.volume_block
    };
    match runs.last_mut() {
        Some(last) if continues(last) => last.blocks += run.blocks,
        _ => runs.push(run),
    }
}

/// Returns the components of a path, the first one last; empty ones and `.` are left out.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}

impl<'v, F: Format> Tree for VolumeTree<'v, F> {
    type Node = Held<'v, F>;
    const BATCH_FILES: usize = 1024;

    fn resolve(&self, path: &[u8], last: LastLink) -> Result<Option<Held<'v, F>>> {
        self.walk_from(self.root()?, path, last)
    }

    fn child(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<Option<Held<'v, F>>> {
        let trail = dir.trail.join(name);
        match self.vfs.lookup(&self.who, dir.ino, self.name(dir, name)?) {
            Ok(stat) => Ok(Some(Held { vfs: self.vfs, ino: stat.ino, dir: dir.ino, trail })),
            Err(Error::Posix(libc::ENOENT)) => Ok(None),
            Err(error) => Err(self.failed("looking up", &trail)(error)),
        }
    }

    fn child_followed(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<Option<Held<'v, F>>> {
        let mut found = self.walk_from(self.hold(dir.ino, dir.trail.clone())?, name, LastLink::Followed)?;
        if let Some(found) = &mut found {
            found.trail = dir.trail.join(name);
        }
        Ok(found)
    }

    fn entered_from(&self, dir: &Held<'v, F>, id: FileId) -> Result<Held<'v, F>> {
        // The volume is open for this command only, so the directory is where it was.
        match id {
            FileId::Volume { ino, .. } => self.hold(Ino(ino), dir.trail.before().unwrap_or_else(|| self.top.clone())),
            FileId::Host { .. } => Err(self.failed("going back from", &dir.trail)(Error::Posix(libc::EXDEV))),
        }
    }

    fn above(&self, dir: &Held<'v, F>) -> Result<Held<'v, F>> {
        if dir.ino == self.vfs.shape().root {
            return self.root();
        }
        let missing = || self.failed("going back from", &dir.trail)(Error::Posix(libc::ENOENT));
        let mut above = self.child(dir, b"..")?.ok_or_else(missing)?;
        if let Some(before) = dir.trail.before() {
            above.trail = before;
        }
        Ok(above)
    }

    fn meta(&self, node: &Held<'v, F>) -> Result<Meta> {
        let Stat { attr, sectors, .. } = self.stat(node)?;
        Ok(Meta {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            rdev: attr.rdev,
            nlink: u64::from(attr.nlink),
            sectors,
            atime: attr.atime,
            mtime: attr.mtime,
            id: self.id(node.ino),
        })
    }

    fn details(&self, node: &Held<'v, F>) -> Result<Details> {
        let stat = self.stat(node)?;
        Ok(Details {
            ctime: stat.attr.ctime,
            birth: stat.attr.crtime,
            generation: Some(stat.attr.generation),
            flags: Some(stat.attr.flags),
            runs: Some(self.runs(node, &stat)?),
        })
    }

    fn leads_to(&self, node: &Held<'v, F>) -> Result<Option<(FileId, FileKind)>> {
        let found = |node: &Held<'v, F>| Ok(Some((self.id(node.ino), self.stat(node)?.attr.kind)));
        if self.stat(node)?.attr.kind != FileKind::Symlink {
            return found(node);
        }
        let target = self.target(node)?;
        let from = if target.starts_with(b"/") { self.root()? } else { self.hold(node.dir, node.trail.clone())? };
        match self.walk_from(from, &target, LastLink::Followed) {
            Ok(Some(reached)) => found(&reached),
            // A loop, a file where a directory should be, damage: it leads nowhere.
            Ok(None) | Err(_) => Ok(None),
        }
    }

    fn names(&self, dir: &Held<'v, F>) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let listed = self.vfs.list(&self.who, dir.ino, Cookie::START, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            true
        });
        listed.map_err(self.failed("listing", &dir.trail))?;
        names.retain(|name| !matches!(name.as_slice(), b"." | b".."));
        names.sort_unstable();
        Ok(names)
    }

    fn target(&self, link: &Held<'v, F>) -> Result<Vec<u8>> {
        self.vfs.readlink(link.ino).map_err(self.failed("reading the link", &link.trail))
    }

    fn xattrs(&self, node: &Held<'v, F>) -> Result<Vec<Xattr>> {
        let fail = || self.failed("reading attributes of", &node.trail);
        let keys = self.vfs.list_xattr(&self.who, node.ino).map_err(fail())?;
        let names = keys.iter().map(|key| key.full());
        names
            .map(|name| Ok((self.vfs.get_xattr(&self.who, node.ino, &name).map_err(fail())?, name)))
            .map(|pair| pair.map(|(value, name)| (name, value)))
            .collect()
    }

    fn data(&self, file: &Held<'v, F>, offset: u64) -> Result<Option<Extent>> {
        let Some(from) = self.seek(file, offset, Seek::Data)? else { return Ok(None) };
        Ok(self.seek(file, from, Seek::Hole)?.map(|to| Extent { from, to }))
    }

    fn read(&self, file: &Held<'v, F>, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.vfs.read(file.ino, offset, into).map_err(self.failed("reading", &file.trail))
    }

    fn capacity(&self) -> Option<u64> {
        let shape = self.vfs.shape();
        Some(shape.blocks.saturating_mul(shape.block_size.into()))
    }

    fn make(&self, dir: &Held<'v, F>, name: &[u8], new: New<'_>) -> Result<Held<'v, F>> {
        let file = NewFile { kind: new.kind, perm: new.perm, umask: 0, rdev: new.rdev, target: new.target };
        let trail = dir.trail.join(new.shown_as.unwrap_or(name));
        let made = self.vfs.create(&self.who, dir.ino, self.name(dir, name)?, &file);
        let made = made.map_err(self.failed("making", &trail))?;
        let node = Held { vfs: self.vfs, ino: made.ino, dir: dir.ino, trail };
        // In a directory with the set-group-id bit the group is the directory's.
        let group = if self.stat(dir)?.attr.perm & libc::S_ISGID == 0 { self.owner.1 } else { made.attr.gid };
        if (self.owner.0, group) != (made.attr.uid, made.attr.gid) {
            self.set_owner(&node, self.owner.0, group)?;
        }
        Ok(node)
    }

    fn link(&self, node: &Held<'v, F>, dir: &Held<'v, F>, name: &[u8]) -> Result<()> {
        let linked = self.vfs.link(&self.who, node.ino, dir.ino, self.name(dir, name)?);
        let stat = linked.map_err(self.failed("linking", &dir.trail.join(name)))?;
        // The new hold is not needed.
        self.vfs.forget(stat.ino, 1);
        Ok(())
    }

    fn rename(&self, dir: &Held<'v, F>, from: &[u8], to: &[u8]) -> Result<()> {
        let (old, new) = ((dir.ino, self.name(dir, from)?), (dir.ino, self.name(dir, to)?));
        let renamed = self.vfs.rename(&self.who, old, new, RenameMode::Replace);
        renamed.map_err(self.failed("making", &dir.trail.join(to)))
    }

    fn unlink(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<()> {
        let removed = self.vfs.unlink(&self.who, dir.ino, self.name(dir, name)?);
        removed.map_err(self.failed("removing", &dir.trail.join(name)))
    }

    fn rmdir(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<()> {
        let removed = self.vfs.rmdir(&self.who, dir.ino, self.name(dir, name)?);
        removed.map_err(self.failed("removing", &dir.trail.join(name)))
    }

    fn write(&self, file: &Held<'v, F>, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.vfs.write(&self.who, file.ino, offset, data, false);
        written.map(drop).map_err(self.failed("writing", &file.trail))
    }

    fn resize(&self, file: &Held<'v, F>, size: u64) -> Result<()> {
        self.set(file, "resizing", &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn set_perm(&self, node: &Held<'v, F>, perm: u32) -> Result<()> {
        self.set(node, "setting the mode of", &SetAttr { perm: Some(perm), ..SetAttr::default() })
    }

    fn set_owner(&self, node: &Held<'v, F>, uid: u32, gid: u32) -> Result<OwnerSet> {
        self.set(node, "setting the owner of", &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })?;
        Ok(OwnerSet { uid: true, gid: true })
    }

    fn set_times(&self, node: &Held<'v, F>, atime: Timestamp, mtime: Timestamp) -> Result<()> {
        let (atime, mtime) = (Some(SetTime::To(atime)), Some(SetTime::To(mtime)));
        self.set(node, "setting the times of", &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    fn set_xattr(&self, node: &Held<'v, F>, (name, value): &Xattr) -> Result<()> {
        match self.vfs.set_xattr(&self.who, node.ino, name, value, SetMode::Any) {
            Ok(()) | Err(Error::Posix(libc::EOPNOTSUPP)) => Ok(()),
            Err(error) => Err(self.failed("setting an attribute of", &node.trail)(error)),
        }
    }

    fn settle(&self, files: &[&Held<'v, F>]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        self.vfs.sync().map_err(self.failed("writing", &self.top))
    }

    fn trail<'n>(&self, node: &'n Held<'v, F>) -> &'n Trail {
        &node.trail
    }

    fn shown(&self, path: &[u8]) -> String {
        match path.iter().position(|byte| *byte != b'/') {
            Some(first) => self.top.join(&path[first..]).to_string(),
            None => self.top.to_string(),
        }
    }

    fn describe(&self, node: &Held<'v, F>) -> String {
        node.trail.to_string()
    }
}
