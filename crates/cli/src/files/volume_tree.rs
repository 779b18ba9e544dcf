//! A volume's files as a [`Tree`].

use moafs_runtime::Timestamp;
use moafs_vfs::api::{NewFile, Seek, SetAttr, SetTime, Stat};
use moafs_vfs::types::{Cookie, FileKind, Ino, Mapping, Name, SetMode};
use moafs_vfs::{Error, Format, Vfs, Who};

use super::tree::{Extent, Meta, New, Tree, Xattr};
use crate::error::{CliError, Result};

/// Symbolic links followed on the way to a file, as Linux limits them.
const LINKS_MAX: usize = 40;

/// The files of an open volume.
pub(crate) struct VolumeTree<'v, F: Format> {
    vfs: &'v Vfs<F>,
    who: Who,
    /// What messages call the volume.
    image: String,
}

/// A file of a volume, held until it is dropped.
pub(crate) struct Held<'v, F: Format> {
    vfs: &'v Vfs<F>,
    pub(crate) ino: Ino,
}

impl<F: Format> Drop for Held<'_, F> {
    fn drop(&mut self) {
        self.vfs.forget(self.ino, 1);
    }
}

impl<'v, F: Format> VolumeTree<'v, F> {
    /// The files of `vfs`, which messages call `image`.
    pub(crate) fn new(vfs: &'v Vfs<F>, image: impl Into<String>) -> VolumeTree<'v, F> {
        VolumeTree { vfs, who: Who::root(), image: image.into() }
    }

    fn held(&self, stat: &Stat) -> Held<'v, F> {
        Held { vfs: self.vfs, ino: stat.ino }
    }

    fn failed<T: Into<String>>(&self, what: &'static str, at: T) -> impl FnOnce(Error) -> CliError + use<F, T> {
        let at = format!("{}:{}", self.image, at.into());
        move |error| CliError::Volume { what, at, error }
    }

    /// The root directory.
    pub(crate) fn root(&self) -> Result<Held<'v, F>> {
        let root = self.vfs.shape().root;
        self.vfs.hold(root).map_err(self.failed("opening", "/"))?;
        Ok(Held { vfs: self.vfs, ino: root })
    }

    /// All attributes.
    pub(crate) fn stat(&self, ino: Ino) -> Result<Stat> {
        self.vfs.stat(ino).map_err(self.failed("looking at", format!("inode {}", ino.0)))
    }

    /// The file at `path`; symbolic links on the way are followed within the volume, the last component's is not.
    pub(crate) fn walk(&self, path: &[u8]) -> Result<Option<Held<'v, F>>> {
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut at = self.root()?;
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let Some(next) = self.child(&at, &name)? else { return Ok(None) };
            let is_link = !todo.is_empty() && self.stat(next.ino)?.attr.kind == FileKind::Symlink;
            if !is_link {
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                let error = Error::Posix(libc::ELOOP);
                return Err(self.failed("looking up", String::from_utf8_lossy(path))(error));
            }
            let target = self.target(&next)?;
            if target.first() == Some(&b'/') {
                at = self.root()?;
            }
            todo.append(&mut components(&target));
        }
        Ok(Some(at))
    }

    /// Runs of a file's blocks: first block in the file, first block on the volume, length.
    pub(crate) fn runs(&self, file: &Held<'v, F>, size: u64) -> Result<Vec<[u64; 3]>> {
        if self.stat(file.ino)?.attr.kind != FileKind::Regular || size == 0 {
            return Ok(Vec::new());
        }
        let block_size = u64::from(self.vfs.shape().block_size);
        let mapped = self.vfs.map(file.ino, 0, size).map_err(self.failed("mapping", self.describe(file)))?;
        let runs = mapped.into_iter().filter_map(|(offset, mapping)| match mapping {
            Mapping::Run(run) | Mapping::Unwritten(run) => Some([offset / block_size, run.start.0, u64::from(run.len)]),
            Mapping::Hole { .. } => None,
        });
        Ok(runs.collect())
    }

    fn name<'n>(&self, name: &'n [u8]) -> Result<&'n Name> {
        let wrong = if name.len() > Name::BYTES_MAX { libc::ENAMETOOLONG } else { libc::EINVAL };
        Name::new(name).ok_or_else(|| self.failed("the name", shown(name))(Error::Posix(wrong)))
    }

    fn set(&self, node: &Held<'v, F>, what: &'static str, set: &SetAttr) -> Result<()> {
        let set = self.vfs.set_attr(&self.who, node.ino, set);
        set.map(drop).map_err(self.failed(what, format!("inode {}", node.ino.0)))
    }

    fn seek(&self, file: &Held<'v, F>, offset: u64, what: Seek) -> Result<Option<u64>> {
        match self.vfs.seek(file.ino, offset, what) {
            Ok(offset) => Ok(Some(offset)),
            Err(Error::Posix(libc::ENXIO)) => Ok(None),
            Err(error) => Err(self.failed("seeking in", self.describe(file))(error)),
        }
    }
}

/// The components of a path, the first one last; empty ones and `.` are left out.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}

fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl<'v, F: Format> Tree for VolumeTree<'v, F> {
    type Node = Held<'v, F>;

    fn resolve(&self, path: &[u8]) -> Result<Option<Held<'v, F>>> {
        self.walk(path)
    }

    fn child(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<Option<Held<'v, F>>> {
        match self.vfs.lookup(&self.who, dir.ino, self.name(name)?) {
            Ok(stat) => Ok(Some(self.held(&stat))),
            Err(Error::Posix(libc::ENOENT)) => Ok(None),
            Err(error) => Err(self.failed("looking up", shown(name))(error)),
        }
    }

    fn meta(&self, node: &Held<'v, F>) -> Result<Meta> {
        let attr = self.stat(node.ino)?.attr;
        Ok(Meta {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            rdev: attr.rdev,
            nlink: u64::from(attr.nlink),
            atime: attr.atime,
            mtime: attr.mtime,
            id: (self.vfs.shape().id, node.ino.0),
        })
    }

    fn names(&self, dir: &Held<'v, F>) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let listed = self.vfs.list(&self.who, dir.ino, Cookie::START, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            true
        });
        listed.map_err(self.failed("listing", self.describe(dir)))?;
        names.retain(|name| !matches!(name.as_slice(), b"." | b".."));
        names.sort_unstable();
        Ok(names)
    }

    fn target(&self, link: &Held<'v, F>) -> Result<Vec<u8>> {
        self.vfs.readlink(link.ino).map_err(self.failed("reading the link", self.describe(link)))
    }

    fn xattrs(&self, node: &Held<'v, F>) -> Result<Vec<Xattr>> {
        let fail = || self.failed("reading attributes of", self.describe(node));
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
        self.vfs.read(file.ino, offset, into).map_err(self.failed("reading", self.describe(file)))
    }

    fn make(&self, dir: &Held<'v, F>, name: &[u8], new: New<'_>) -> Result<Held<'v, F>> {
        let file = NewFile { kind: new.kind, perm: new.perm, umask: 0, rdev: new.rdev, target: new.target };
        let made = self.vfs.create(&self.who, dir.ino, self.name(name)?, &file);
        Ok(self.held(&made.map_err(self.failed("making", shown(name)))?))
    }

    fn link(&self, node: &Held<'v, F>, dir: &Held<'v, F>, name: &[u8]) -> Result<()> {
        let linked = self.vfs.link(&self.who, node.ino, dir.ino, self.name(name)?);
        // The new hold goes with the temporary.
        drop(self.held(&linked.map_err(self.failed("linking", shown(name)))?));
        Ok(())
    }

    fn unlink(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<()> {
        let removed = self.vfs.unlink(&self.who, dir.ino, self.name(name)?);
        removed.map_err(self.failed("removing", shown(name)))
    }

    fn rmdir(&self, dir: &Held<'v, F>, name: &[u8]) -> Result<()> {
        let removed = self.vfs.rmdir(&self.who, dir.ino, self.name(name)?);
        removed.map_err(self.failed("removing", shown(name)))
    }

    fn write(&self, file: &Held<'v, F>, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.vfs.write(&self.who, file.ino, offset, data, false);
        written.map(drop).map_err(self.failed("writing", self.describe(file)))
    }

    fn resize(&self, file: &Held<'v, F>, size: u64) -> Result<()> {
        self.set(file, "resizing", &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn set_perm(&self, node: &Held<'v, F>, perm: u32) -> Result<()> {
        self.set(node, "setting the mode of", &SetAttr { perm: Some(perm), ..SetAttr::default() })
    }

    fn set_owner(&self, node: &Held<'v, F>, uid: u32, gid: u32) -> Result<()> {
        self.set(node, "setting the owner of", &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
    }

    fn set_times(&self, node: &Held<'v, F>, atime: Timestamp, mtime: Timestamp) -> Result<()> {
        let (atime, mtime) = (Some(SetTime::To(atime)), Some(SetTime::To(mtime)));
        self.set(node, "setting the times of", &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    fn set_xattr(&self, node: &Held<'v, F>, (name, value): &Xattr) -> Result<()> {
        let set = self.vfs.set_xattr(&self.who, node.ino, name, value, SetMode::Any);
        set.map_err(self.failed("setting an attribute of", self.describe(node)))
    }

    fn describe(&self, node: &Held<'v, F>) -> String {
        format!("inode {}", node.ino.0)
    }
}
