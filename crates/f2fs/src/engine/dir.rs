//! Directories at work: names in the inode while they fit there, then in the blocks of a hash table.
//!
//! A lookup reads one bucket per level, so it costs the logarithm of the directory's size, found or not. An insertion takes
//! the first room on that way. Nothing is kept in memory but the blocks themselves; they change there and leave with the
//! next checkpoint, together with the inode, so a power cut never finds half a change.
//!
//! All changes of one directory's names come one after the other, and no reader runs beside them: vfs holds its inode lock.

use std::sync::Arc;

use moafs_disk::Buf;
use moafs_vfs::format::{Admission, DirSink};
use moafs_vfs::types::{Cookie, Dentry, FileKind, Ino, Lbn, Mapping, Name};
use moafs_vfs::{Error, Result};

use super::incore::Incore;
use super::nodes::Node;
use super::owned::Owned;
use super::{F2fs, damaged};
use crate::format::dentry::{self, Entry, Region};
use crate::format::inode::Inline;
use crate::format::{BLOCK, Nid, Structure, inode, node};

/// Cookies after `.` and `..`, which are listed first wherever they are stored.
const DOTS: [(&[u8], u64); 2] = [(b".", 1), (b"..", 2)];
/// The cookie after the name in slot `s` of block `b` is `FIRST_SLOT + SLOTS * b + s + 1`. A name that moves out of the
/// inode keeps its slot, in block 0.
const FIRST_SLOT: u64 = DOTS.len() as u64;
const SLOTS: u64 = Region::BLOCK.slots as u64;

/// Where entries lie.
enum Shelf {
    Inode(Arc<Node>, Region),
    Block(Arc<Owned>),
}

impl Shelf {
    fn view<T>(&self, look: impl FnOnce(&[u8], &Region) -> T) -> T {
        match self {
            Shelf::Inode(node, region) => node.view(|bytes| look(bytes, region)),
            Shelf::Block(block) => block.view(|bytes| look(bytes, &Region::BLOCK)),
        }
    }

    fn structure(&self) -> Structure {
        match self {
            Shelf::Inode(node, _) => Structure::Inode(node.ino),
            Shelf::Block(block) => Structure::Directory { inode: block.ino, lbn: block.lbn },
        }
    }

    fn damage(&self, problem: impl Into<String>) -> Error {
        damaged(self.structure().damage(None, problem))
    }

    /// An entry that can be believed.
    fn check<'a>(&self, entry: std::result::Result<Entry<'a>, String>) -> Result<Entry<'a>> {
        let entry = entry.map_err(|problem| self.damage(problem))?;
        if entry.ino < Nid::ROOT {
            return Err(self.damage(format!("the entry in slot {} names inode {}", entry.slot, entry.ino)));
        }
        Ok(entry)
    }
}

/// What a name was found to be.
pub(super) struct Found {
    pub(super) ino: Nid,
    pub(super) kind: Option<FileKind>,
    /// Where the entry is; `.` and `..` may have none.
    at: Option<(Shelf, usize)>,
}

/// An entry to be inserted.
struct NewEntry<'a> {
    name: &'a [u8],
    hash: u32,
    ino: Nid,
    kind: FileKind,
}

impl<'a> NewEntry<'a> {
    fn new(name: &'a [u8], ino: Nid, kind: FileKind) -> NewEntry<'a> {
        NewEntry { name, hash: dentry::hash(name), ino, kind }
    }

    fn insert(&self, bytes: &mut [u8], region: &Region, slot: usize) {
        dentry::insert(bytes, region, slot, self.hash, self.ino, self.kind, self.name);
    }
}

// -- reading
impl F2fs {
    /// The entries inside the inode, if that is where they are.
    fn inside(&self, dir: &Incore) -> Option<Shelf> {
        let region = || Region::inline(self.layout(dir).inline_range());
        self.is_inline(dir, Inline::DENTRY).then(|| Shelf::Inode(Arc::clone(&dir.node), region()))
    }

    /// Looks a name up.
    pub(super) fn find_name(&self, dir: &Incore, name: &Name) -> Result<Option<Found>> {
        let found = self.find_entry(dir, name.as_bytes());
        self.health.watch(found)
    }

    fn find_entry(&self, dir: &Incore, name: &[u8]) -> Result<Option<Found>> {
        if !dir.is_dir() {
            return Err(Error::Posix(libc::ENOTDIR));
        }
        let hash = dentry::hash(name);
        let inode = self.inode(dir)?;
        if let Some(shelf) = self.inside(dir) {
            if let Some(found) = find_on(shelf, hash, name)? {
                return Ok(Some(found));
            }
        } else {
            let levels = 0..inode.current_depth;
            for lbn in levels.flat_map(|level| dentry::bucket_blocks(level, inode.dir_level, hash)) {
                let Some(block) = self.owned_block(dir, lbn)? else { continue };
                if let Some(found) = find_on(Shelf::Block(block), hash, name)? {
                    return Ok(Some(found));
                }
            }
        }
        let missing_dot = |ino| Some(Found { ino, kind: Some(FileKind::Directory), at: None });
        Ok(match name {
            b"." if inode.inline.contains(Inline::DOTS) => missing_dot(dir.ino),
            b".." if inode.inline.contains(Inline::DOTS) => missing_dot(inode.pino),
            _ => None,
        })
    }

    /// Lists entries from a cookie on: `.` and `..`, then the others by place. Where `dir_level` is not 0, names that leave
    /// the inode during a listing may be listed twice or not at all.
    pub(super) fn list_names(&self, dir: &Incore, from: Cookie, to: &mut DirSink<'_>) -> Result<()> {
        let listed = self.list_entries(dir, from.0, to);
        self.health.watch(listed)
    }

    fn list_entries(&self, dir: &Incore, from: u64, to: &mut DirSink<'_>) -> Result<()> {
        for (name, cookie) in DOTS.into_iter().filter(|(_, cookie)| *cookie > from) {
            let (found, name) = (self.find_entry(dir, name)?, Name::new(name));
            if let (Some(Found { ino, kind, .. }), Some(name)) = (found, name)
                && !to(name, Dentry { ino: Ino(ino.0.into()), kind }, Cookie(cookie))
            {
                return Ok(());
            }
        }
        if let Some(shelf) = self.inside(dir) {
            return list_shelf(&shelf, FIRST_SLOT, from, to).map(drop);
        }
        let mut lbn = from.saturating_sub(FIRST_SLOT) / SLOTS;
        while let Some(block) = self.block_from(dir, lbn)? {
            lbn = block.lbn + 1;
            let first = FIRST_SLOT + block.lbn * SLOTS;
            if !list_shelf(&Shelf::Block(block), first, from, to)? {
                break;
            }
        }
        Ok(())
    }

    /// The first of a directory's blocks at or behind `lbn` that is no hole.
    fn block_from(&self, dir: &Incore, mut lbn: u64) -> Result<Option<Arc<Owned>>> {
        let limit = node::lbn_limit(self.layout(dir).addresses());
        while lbn < limit {
            if let Some(block) = self.owned_block(dir, lbn)? {
                return Ok(Some(block));
            }
            if let Mapping::Hole { len } = self.map_run(dir, Lbn(lbn), u32::MAX)? {
                lbn += u64::from(len);
            }
        }
        Ok(None)
    }

    /// True if there is nothing but `.` and `..`.
    pub(super) fn has_no_names(&self, dir: &Incore) -> Result<bool> {
        if let Some(shelf) = self.inside(dir) {
            return Ok(shelf.view(dentry::is_empty));
        }
        let mut lbn = 0;
        while let Some(block) = self.block_from(dir, lbn)? {
            if !block.view(|bytes| dentry::is_empty(bytes, &Region::BLOCK)) {
                return Ok(false);
            }
            lbn = block.lbn + 1;
        }
        Ok(true)
    }
}

fn find_on(shelf: Shelf, hash: u32, name: &[u8]) -> Result<Option<Found>> {
    let found = shelf.view(|bytes, region| match dentry::find(bytes, region, hash, name).transpose() {
        None => Ok(None),
        Some(entry) => shelf.check(entry).map(|entry| Some((entry.ino, entry.kind, entry.slot))),
    })?;
    Ok(found.map(|(ino, kind, slot)| Found { ino, kind, at: Some((shelf, slot)) }))
}

/// Lists the entries of a shelf, whose first slot has the cookie `first` before it. Returns false if `to` has had enough.
fn list_shelf(shelf: &Shelf, first: u64, from: u64, to: &mut DirSink<'_>) -> Result<bool> {
    // A copy: `to` may look names up in this very directory.
    let (bytes, region) = shelf.view(|bytes, region| (bytes.to_vec(), region.clone()));
    for entry in dentry::entries(&bytes, &region) {
        let entry = shelf.check(entry)?;
        let cookie = first + entry.slot as u64 + 1;
        let Some(name) = Name::new(entry.name).filter(|_| cookie > from && !entry.is_dot()) else { continue };
        if !to(name, Dentry { ino: Ino(entry.ino.0.into()), kind: entry.kind }, Cookie(cookie)) {
            return Ok(false);
        }
    }
    Ok(true)
}

// -- changing
impl F2fs {
    fn change_shelf(&self, shelf: &Shelf, edit: impl FnOnce(&mut [u8], &Region)) {
        match shelf {
            Shelf::Inode(node, region) => self.change(node, |bytes| edit(bytes, region)),
            Shelf::Block(block) => self.change_owned(block, |bytes| edit(bytes, &Region::BLOCK)),
        }
    }

    /// Makes a fresh inode an empty directory: `.` and `..`, both inside.
    pub(super) fn make_directory(&self, dir: &Incore, parent: Nid) -> Result<()> {
        self.change_inode(dir, |inode| {
            inode.inline.insert(Inline::DENTRY);
            inode.current_depth = 1;
            inode.dir_level = 0;
        })?;
        let area = self.layout(dir).inline_range();
        self.change(&dir.node, |bytes| {
            bytes[area.clone()].fill(0);
            inode::set_size(bytes, area.len() as u64);
            dentry::format_dots(bytes, &Region::inline(area), dir.ino, parent);
        });
        Ok(())
    }

    /// Adds a name that is not there.
    ///
    /// # Errors
    /// `ENOSPC` if all levels of the hash table are full for this name.
    pub(super) fn insert_name(
        &self,
        dir: &Incore,
        name: &Name,
        ino: Nid,
        kind: FileKind,
        admission: &mut Admission,
    ) -> Result<()> {
        let entry = NewEntry::new(name.as_bytes(), ino, kind);
        if let Some(shelf) = self.inside(dir) {
            if self.put_entry(&shelf, &entry) {
                return Ok(());
            }
            self.leave_inode(dir, admission)?;
        }
        self.insert_hashed(dir, &entry, admission)
    }

    /// Puts an entry on a shelf if there is room.
    fn put_entry(&self, shelf: &Shelf, entry: &NewEntry<'_>) -> bool {
        let slots = dentry::slots_of(entry.name.len());
        let Some(slot) = shelf.view(|bytes, region| dentry::room(bytes, region, slots)) else { return false };
        self.change_shelf(shelf, |bytes, region| entry.insert(bytes, region, slot));
        true
    }

    /// Puts an entry into the first block of its buckets that has room; a hole becomes a block.
    fn insert_hashed(&self, dir: &Incore, entry: &NewEntry<'_>, admission: &mut Admission) -> Result<()> {
        let dir_level = self.inode(dir)?.dir_level;
        let limit = node::lbn_limit(self.layout(dir).addresses());
        for level in 0..dentry::DEPTH_MAX {
            for lbn in dentry::bucket_blocks(level, dir_level, entry.hash).filter(|lbn| *lbn < limit) {
                let done = match self.owned_block(dir, lbn)? {
                    Some(block) => self.put_entry(&Shelf::Block(block), entry),
                    None => {
                        let mut bytes = Buf::zeroed(BLOCK);
                        entry.insert(&mut bytes, &Region::BLOCK, 0);
                        self.add_block(dir, lbn, bytes, admission)?;
                        true
                    }
                };
                if done {
                    return self.cover(dir, level, lbn);
                }
            }
        }
        Err(Error::Posix(libc::ENOSPC))
    }

    fn add_block(&self, dir: &Incore, lbn: u64, bytes: Buf, admission: &mut Admission) -> Result<()> {
        let _map = dir.map.lock();
        self.adopt(dir, lbn, bytes, admission).map(drop)
    }

    /// The inode says that there are names in this level and this block.
    fn cover(&self, dir: &Incore, level: u32, lbn: u64) -> Result<()> {
        let size = (lbn + 1) * BLOCK as u64;
        let inode = self.inode(dir)?;
        if inode.size >= size && inode.current_depth > level {
            return Ok(());
        }
        self.change_inode(dir, |inode| {
            inode.size = inode.size.max(size);
            inode.current_depth = inode.current_depth.max(level + 1);
        })
    }

    /// Names move out of the inode. If that fails it is as it was.
    fn leave_inode(&self, dir: &Incore, admission: &mut Admission) -> Result<()> {
        let before = dir.node.view(<[u8]>::to_vec);
        let left = self.move_out(dir, &before, admission);
        if left.is_err() {
            self.unmap_range(dir, 0, None, u32::MAX)?;
            self.change(&dir.node, |bytes| bytes.copy_from_slice(&before));
        }
        left
    }

    /// The entries of the inode `before` go to blocks (section 6.3).
    fn move_out(&self, dir: &Incore, before: &[u8], admission: &mut Admission) -> Result<()> {
        let layout = self.layout(dir);
        let region = Region::inline(layout.inline_range());
        let dir_level = self.inode(dir)?.dir_level;
        let has_attributes = self.is_inline(dir, Inline::XATTR);
        self.change(&dir.node, |bytes| {
            bytes[layout.addr_range()].fill(0);
            if !has_attributes {
                // Words that only inline entries reserve: they may become addresses.
                bytes[layout.inline_xattr_range()].fill(0);
            }
        });
        self.change_inode(dir, |inode| {
            inode.inline.remove(Inline::DENTRY);
            inode.size = BLOCK as u64;
            inode.current_depth = 1;
        })?;
        if dir_level == 0 {
            return self.add_block(dir, 0, Buf::copy_of(&dentry::inline_to_block(before, &region)), admission);
        }
        let shelf = Shelf::Inode(Arc::clone(&dir.node), region.clone());
        for entry in dentry::entries(before, &region) {
            let Entry { slot, name, ino, kind, .. } = shelf.check(entry)?;
            let kind = kind.ok_or_else(|| shelf.damage(format!("the entry in slot {slot} is of no known type")))?;
            self.insert_hashed(dir, &NewEntry::new(name, ino, kind), admission)?;
        }
        Ok(())
    }

    /// Lets a name that is there (also `..`) name another inode.
    pub(super) fn point_name(&self, dir: &Incore, name: &Name, ino: Nid, kind: FileKind) -> Result<()> {
        let found = self.find_name(dir, name)?.ok_or(Error::Posix(libc::ENOENT))?;
        if let Some((shelf, slot)) = found.at {
            self.change_shelf(&shelf, |bytes, region| dentry::point(bytes, region, slot, ino, kind));
        }
        Ok(())
    }

    /// Removes a name. A block without any name becomes a hole.
    pub(super) fn remove_name(&self, dir: &Incore, name: &Name) -> Result<()> {
        let found = self.find_name(dir, name)?.and_then(|found| found.at);
        let (shelf, slot) = found.ok_or(Error::Posix(libc::ENOENT))?;
        self.change_shelf(&shelf, |bytes, region| dentry::remove(bytes, region, slot));
        match &shelf {
            Shelf::Block(block) if block.lbn > 0 && shelf.view(dentry::is_blank) => {
                self.unmap_range(dir, block.lbn, Some(block.lbn + 1), 1).map(drop)
            }
            _ => Ok(()),
        }
    }
}
