//! Names that fast commits add and remove.
//!
//! Names go into the leaf of their hash; a full leaf is cut in two. Where the node above it is full as well, the
//! directory becomes linear, as on a mounted volume where its index cannot grow.

use std::collections::BTreeMap;

use moafs_disk::Kind;
use moafs_vfs::types::FileKind;
use moafs_vfs::{Error, Result};

use super::files::{Files, unsupported};
use super::map;
use crate::format::dir::{self, Entries, NAME_MAX};
use crate::format::extent::Extent;
use crate::format::extent::edit::Edit;
use crate::format::fast_commit::NameChange;
use crate::format::htree::edit::{self, Way};
use crate::format::htree::{self, ReadBlock};
use crate::format::inode::{InodeFlags, LINKS_MAX};
use crate::format::superblock::{RoCompat, Superblock};
use crate::format::{BlockNo, Damage, Inode, InodeNo, Place, Structure};
use crate::health::damaged;

/// The most bytes of directories that fast commits change.
const DIRECTORY_BYTES_MAX: u64 = 256 << 20;

/// A directory: its blocks, and its names with the blocks that they lie in.
struct Directory {
    blocks: Vec<BlockNo>,
    names: BTreeMap<Vec<u8>, (InodeNo, u32)>,
    /// Blocks before this one have no room for a name.
    full_before: usize,
}

/// The directories that have been looked at.
pub(super) struct Names<'a> {
    sb: &'a Superblock,
    directories: BTreeMap<InodeNo, Directory>,
    bytes: u64,
}

fn wrong(named: &NameChange, problem: &str) -> Error {
    let place = Place::of(Structure::Inode(named.parent));
    let name = String::from_utf8_lossy(&named.name);
    damaged(place.damage(format!("a fast commit {problem}: {name:?}, inode {}", named.ino)))
}

impl<'a> Names<'a> {
    pub(super) fn new(sb: &'a Superblock) -> Names<'a> {
        Names { sb, directories: BTreeMap::new(), bytes: 0 }
    }

    /// Gives a file a name. Nothing happens if directory or file are gone, or if the name is there: what a crashed
    /// replay has done is done again.
    pub(super) fn link(&mut self, files: &mut Files<'_>, named: &NameChange, is_new: bool) -> Result<()> {
        check(files, named)?;
        let Some(mut parent) = self.open(files, named.parent)? else { return Ok(()) };
        let Some(mut child) = files.inode(named.ino)? else { return Ok(()) };
        let kind = child.kind().unwrap_or(FileKind::Regular);
        if self.directory(named.parent).names.contains_key(&named.name) {
            return Ok(());
        }
        if kind == FileKind::Directory {
            if !is_new || child.links > 2 {
                return Err(wrong(named, "gives a directory a second name"));
            }
            self.directories.remove(&named.ino);
            self.set_parent(files, named)?;
            add_link(&mut parent, self.sb);
        } else if is_new {
            child.links = 1;
        } else if child.links >= LINKS_MAX {
            return Err(wrong(named, "gives a file too many names"));
        } else {
            child.links += 1;
        }
        self.insert(files, named, &mut parent, kind)?;
        (parent.mtime, parent.ctime) = (parent.mtime.max(child.ctime), parent.ctime.max(child.ctime));
        files.store(named.ino, &child)?;
        files.store(named.parent, &parent)
    }

    /// Takes a name away. Nothing happens if it is not there, or leads to another file.
    pub(super) fn unlink(&mut self, files: &mut Files<'_>, named: &NameChange) -> Result<()> {
        check(files, named)?;
        let Some(mut parent) = self.open(files, named.parent)? else { return Ok(()) };
        let Some(&(ino, lbn)) = self.directory(named.parent).names.get(&named.name) else { return Ok(()) };
        if ino != named.ino {
            return Ok(());
        }
        self.remove(files, named, &parent, lbn)?;
        if let Some(mut child) = files.inode(named.ino)? {
            if child.is_dir() {
                self.open(files, named.ino)?;
                if self.directories.get(&named.ino).is_some_and(|directory| !directory.names.is_empty()) {
                    return Err(wrong(named, "removes a directory that is not empty"));
                }
                self.directories.remove(&named.ino);
                child.links = 0;
                parent.links = if parent.links > 2 { parent.links - 1 } else { parent.links };
            } else {
                child.links = child.links.saturating_sub(1);
            }
            files.store(named.ino, &child)?;
        }
        files.store(named.parent, &parent)
    }

    /// Returns a directory's inode, and has its names in memory; `None` if there is no such directory any more.
    fn open(&mut self, files: &mut Files<'_>, ino: InodeNo) -> Result<Option<Inode>> {
        if ino != InodeNo::ROOT {
            files.check(ino)?;
        }
        let Some(inode) = files.inode(ino)?.filter(|inode| inode.is_dir() && inode.links > 0) else { return Ok(None) };
        if !self.directories.contains_key(&ino) {
            self.bytes += inode.size;
            if self.bytes > DIRECTORY_BYTES_MAX {
                return Err(unsupported("in directories that are too large"));
            }
            let directory = load(files, ino, &inode)?;
            self.directories.insert(ino, directory);
        }
        Ok(Some(inode))
    }

    fn directory(&mut self, ino: InodeNo) -> &mut Directory {
        self.directories.get_mut(&ino).expect("the directory was opened")
    }

    /// Has the first block of a new directory name its parent.
    fn set_parent(&mut self, files: &mut Files<'_>, named: &NameChange) -> Result<()> {
        let Some(inode) = self.open(files, named.ino)? else { return Ok(()) };
        let form = files.form;
        self.change(files, named.ino, &inode, 0, |bytes| {
            let Some(at) = dir::find(bytes, form, b"..").map(|entry| entry.offset) else { return false };
            dir::point(bytes, form, at, named.parent, FileKind::Directory).is_some()
        })?;
        Ok(())
    }

    /// Changes a block of names, unless `change` returns false.
    fn change(
        &mut self,
        files: &mut Files<'_>,
        ino: InodeNo,
        inode: &Inode,
        lbn: u32,
        change: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<bool> {
        let block = self.directory(ino).blocks[lbn as usize];
        let mut bytes = files.scratch.read(block, Kind::Directory)?;
        if !change(&mut bytes) {
            return Ok(false);
        }
        let is_indexed = inode.flags.contains(InodeFlags::INDEX);
        let what = dir::sealed(&bytes, lbn.into(), is_indexed, inode.owner(ino));
        files.scratch.write_sealed(block, what, bytes)?;
        Ok(true)
    }

    fn insert(&mut self, files: &mut Files<'_>, named: &NameChange, parent: &mut Inode, kind: FileKind) -> Result<()> {
        if parent.flags.contains(InodeFlags::INDEX) {
            // Each cut leaves room for any name in both leaves.
            for _ in 0..2 {
                let Some(way) = self.way(files, named, parent)? else { break };
                if self.put(files, named, parent, kind, way.leaf)? {
                    return Ok(());
                }
                if !self.cut_leaf(files, named.parent, parent, &way)? {
                    break;
                }
            }
            self.make_linear(files, named.parent, parent)?;
        }
        for lbn in self.directory(named.parent).full_before.. {
            if lbn == self.directory(named.parent).blocks.len() {
                self.grow(files, named.parent, parent)?;
            }
            if self.put(files, named, parent, kind, lbn as u32)? {
                break;
            }
            // Short names may find a place where a long one does not.
            if named.name.len() < 32 {
                self.directory(named.parent).full_before = lbn + 1;
            }
        }
        Ok(())
    }

    /// Puts a name into a block if it has room.
    fn put(
        &mut self,
        files: &mut Files<'_>,
        named: &NameChange,
        parent: &Inode,
        kind: FileKind,
        lbn: u32,
    ) -> Result<bool> {
        let form = files.form;
        let put = self.change(files, named.parent, parent, lbn, |bytes| {
            dir::insert(bytes, form, &named.name, named.ino, kind).is_some()
        })?;
        if put {
            self.directory(named.parent).names.insert(named.name.clone(), (named.ino, lbn));
        }
        Ok(put)
    }

    fn remove(&mut self, files: &mut Files<'_>, named: &NameChange, parent: &Inode, lbn: u32) -> Result<()> {
        let form = files.form;
        self.change(files, named.parent, parent, lbn, |bytes| {
            let Some(at) = dir::find(bytes, form, &named.name).map(|entry| entry.offset) else { return false };
            dir::remove(bytes, form, at).is_some()
        })?;
        let directory = self.directory(named.parent);
        directory.names.remove(&named.name);
        directory.full_before = directory.full_before.min(lbn as usize);
        Ok(())
    }

    /// Appends an empty block of names. Returns its number in the directory.
    fn grow(&mut self, files: &mut Files<'_>, ino: InodeNo, inode: &mut Inode) -> Result<u32> {
        let lbn = self.directory(ino).blocks.len() as u32;
        let block = files.scratch.allocate(ino)?;
        let mut bytes = vec![0; files.scratch.geo.block_bytes()];
        dir::format_empty(&mut bytes, files.form);
        files.scratch.write_sealed(block, crate::format::Sealed::Leaf(inode.owner(ino)), bytes)?;
        let extent = Extent { lbn, len: 1, start: block, unwritten: false };
        map::change(&mut files.scratch, ino, inode, Edit::put(extent))?;
        inode.size += u64::from(files.scratch.geo.block_size);
        self.directory(ino).blocks.push(block);
        Ok(lbn)
    }

    // -- the index

    /// Returns the way to the leaf of a name; `None` if the index leads nowhere.
    fn way(&mut self, files: &mut Files<'_>, named: &NameChange, parent: &Inode) -> Result<Option<Way>> {
        let blocks = &self.directory(named.parent).blocks.clone();
        let mut reader = Reader { files, ino: named.parent, blocks };
        let way = match edit::way(&mut reader, &named.name, self.sb) {
            Ok(way) => way,
            Err(Error::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let leaf = way.leaf as usize;
        if leaf == 0 || leaf >= blocks.len() {
            return Ok(None);
        }
        let bytes = files.scratch.read(blocks[leaf], Kind::Directory)?;
        let what = dir::sealed(&bytes, leaf as u64, true, parent.owner(named.parent));
        Ok(matches!(what, crate::format::Sealed::Leaf(_)).then_some(way))
    }

    /// Moves the upper half of a leaf's names to a new leaf. Returns false, and does nothing, if the node above it is
    /// full.
    fn cut_leaf(&mut self, files: &mut Files<'_>, ino: InodeNo, inode: &mut Inode, way: &Way) -> Result<bool> {
        let (form, levels) = (files.form, (way.steps.len() - 1) as u8);
        let lowest = &way.steps[way.steps.len() - 1];
        let room = htree::limit(files.scratch.geo.block_bytes(), form, lowest.lbn == 0);
        let old = files.scratch.read(self.directory(ino).blocks[way.leaf as usize], Kind::Directory)?;
        let place = Place::of(Structure::Directory { inode: ino, lbn: way.leaf.into() });
        let names = edit::names_by_hash(Entries::check(&old, form, place).map_err(damaged)?, &way.hasher);
        if lowest.entries.len() >= room || names.len() < 2 {
            return Ok(false);
        }
        let new = self.grow(files, ino, inode)?;
        let (lower, upper) = names.split_at(edit::middle(&names));
        for (lbn, part) in [(way.leaf, lower), (new, upper)] {
            self.change(files, ino, inode, lbn, |bytes| {
                dir::pack(bytes, form, part.iter().map(|named| (named.inode, named.type_byte, &*named.name)));
                true
            })?;
        }
        for named in upper {
            self.directory(ino).names.insert(named.name.clone(), (named.inode, new));
        }
        let mut entries = lowest.entries.clone();
        entries.insert(lowest.at + 1, edit::entry_at(&names, lower.len(), new));
        self.change(files, ino, inode, lowest.lbn, |bytes| {
            match lowest.lbn {
                0 => edit::put_root(bytes, form, way.hash_version, levels, &entries),
                _ => edit::put_node(bytes, form, &entries),
            }
            true
        })
    }

    /// Makes the blocks of a directory's index ordinary ones.
    fn make_linear(&mut self, files: &mut Files<'_>, ino: InodeNo, inode: &mut Inode) -> Result<()> {
        let (form, owner) = (files.form, inode.owner(ino));
        inode.flags.remove(InodeFlags::INDEX);
        for lbn in 0..self.directory(ino).blocks.len() as u32 {
            self.change(files, ino, inode, lbn, |bytes| {
                let is_leaf = matches!(dir::sealed(bytes, lbn.into(), true, owner), crate::format::Sealed::Leaf(_));
                if !is_leaf {
                    dir::make_linear(bytes, form, lbn == 0);
                }
                !is_leaf
            })?;
        }
        self.directory(ino).full_before = 0;
        Ok(())
    }
}

/// Counts one more subdirectory. Where there are too many the number of links becomes 1: they are not counted.
fn add_link(parent: &mut Inode, sb: &Superblock) {
    parent.links = match parent.links {
        1 => 1,
        LINKS_MAX.. if sb.ro_compat().contains(RoCompat::DIR_NLINK) => 1,
        links => links.saturating_add(1),
    };
}

/// Checks the name of a record, and the inode that it leads to.
fn check(files: &Files<'_>, named: &NameChange) -> Result<()> {
    files.check(named.ino)?;
    let name = &*named.name;
    let is_legal = name.len() <= NAME_MAX
        && !matches!(name, b"" | b"." | b"..")
        && name.iter().all(|byte| *byte != 0 && *byte != b'/');
    if is_legal { Ok(()) } else { Err(wrong(named, "has an illegal name")) }
}

/// Reads a directory.
fn load(files: &Files<'_>, ino: InodeNo, inode: &Inode) -> Result<Directory> {
    if !inode.has_extents() {
        return Err(unsupported("in directories without extents"));
    }
    let geo = files.scratch.geo;
    let lbns = (inode.size / u64::from(geo.block_size)) as u32;
    let mut directory = Directory { blocks: Vec::new(), names: BTreeMap::new(), full_before: 0 };
    for extent in map::read(&files.scratch, ino, inode)?.extents {
        let follows = u64::from(extent.lbn) == directory.blocks.len() as u64 && !extent.unwritten;
        let blocks = (extent.start.0..extent.start.0 + u64::from(extent.len)).map(BlockNo);
        directory.blocks.extend(blocks.take_while(|_| follows));
    }
    if (directory.blocks.len() as u64) < u64::from(lbns) {
        let place = Place::of(Structure::Directory { inode: ino, lbn: directory.blocks.len() as u64 });
        return Err(damaged(place.damage("the directory has a hole there")));
    }
    directory.blocks.truncate(lbns as usize);
    let is_indexed = inode.flags.contains(InodeFlags::INDEX);
    for (lbn, block) in (0..).zip(&directory.blocks) {
        let bytes = files.scratch.read(*block, Kind::Directory)?;
        let place = Place::new(Structure::Directory { inode: ino, lbn: u64::from(lbn) }, *block);
        let what = dir::sealed(&bytes, lbn.into(), is_indexed, inode.owner(ino));
        geo.checksums.verify(what, &bytes).map_err(|problem| damaged(place.damage(problem)))?;
        let entries = Entries::check(&bytes, files.form, place).map_err(damaged)?;
        let names = entries.used().filter(|entry| !matches!(entry.name, b"." | b".."));
        directory.names.extend(names.map(|entry| (entry.name.to_vec(), (entry.inode, lbn))));
    }
    Ok(directory)
}

/// The blocks of a directory, for a search in its index.
struct Reader<'a, 'b> {
    files: &'a Files<'b>,
    ino: InodeNo,
    blocks: &'a [BlockNo],
}

impl ReadBlock for Reader<'_, '_> {
    type Bytes = Vec<u8>;
    type Error = Error;

    fn read(&mut self, lbn: u32) -> Result<(Vec<u8>, Place)> {
        let structure = Structure::Index { inode: self.ino, lbn: lbn.into() };
        let missing = || -> Damage { Place::of(structure).damage("the directory has no such block") };
        let block = *self.blocks.get(lbn as usize).ok_or_else(missing).map_err(damaged)?;
        Ok((self.files.scratch.read(block, Kind::Directory)?, Place::new(structure, block)))
    }
}
