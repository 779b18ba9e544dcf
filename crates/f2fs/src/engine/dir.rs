//! Operations on directories: names in the inode while they fit there, then in the blocks of a hash
//! table.
//!
//! A lookup reads one bucket per level, so it costs the logarithm of the directory's size, found or
//! not. An insertion takes the first room on that way. Nothing is kept in memory but the blocks
//! themselves; they change there and are written with the next checkpoint, together with the inode,
//! so a power cut never finds half a change.
//!
//! All changes of one directory's names come one after the other, and no reader runs beside them: vfs holds
//! its inode lock.

use std::sync::Arc;

use moafs_disk::Buf;
use moafs_vfs::format::{Admission, DirSink};
use moafs_vfs::types::{Cookie, Dentry, FileKind, Ino, Lbn, Mapping, Name};
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use super::evict::CACHED_BYTES;
use super::incore::Incore;
use super::node_cache::Node;
use super::owned_cache::Owned;
use super::volume::F2fs;
use crate::format::dentry::{self, Entry, Region};
use crate::format::inode::Inline;
use crate::format::{BLOCK, Nid, Structure, inode, node};

/// Cookies after `.` and `..`, which are listed first at any place.
const DOTS: [(&[u8], u64); 2] = [(b".", 1), (b"..", 2)];
/// The cookie after the name in slot `s` of block `b` is `FIRST_SLOT + SLOTS * b + s + 1`. A name that moves out of the
/// inode keeps its slot, in block 0.
const FIRST_SLOT: u64 = DOTS.len() as u64;
const SLOTS: u64 = Region::BLOCK.slots as u64;

/// Memory of the blocks that one walk over a directory leaves in the cache, in bytes.
const LISTED_BYTES_MAX: usize = 16 << 20;

/// The place of a set of entries.
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

    /// Returns the entry if it can be believed, else the damage.
    fn check<'a>(&self, entry: std::result::Result<Entry<'a>, String>) -> Result<Entry<'a>> {
        let entry = entry.map_err(|problem| self.damage(problem))?;
        if entry.ino < Nid::ROOT {
            return Err(self.damage(format!("the entry in slot {} names inode {}", entry.slot, entry.ino)));
        }
        Ok(entry)
    }
}

/// The result of looking up a name.
pub(super) struct Found {
    pub(super) ino: Nid,
    pub(super) kind: Option<FileKind>,
    /// The place of the entry; `.` and `..` may have none.
    at: Option<(Shelf, usize)>,
}

/// The place of a new entry in the hash table.
struct EntryPlace {
    level: u32,
    lbn: u64,
    /// The block there, and a slot with room; `None` if it is a hole.
    block: Option<(Arc<Owned>, usize)>,
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
    /// Returns the entries inside the inode; `None` if they lie in blocks.
    fn inside(&self, dir: &Incore) -> Option<Shelf> {
        let region = || Region::inline(self.layout(dir).inline_range());
        self.is_inline(dir, Inline::DENTRY).then(|| Shelf::Inode(Arc::clone(&dir.node), region()))
    }

    /// Looks up a name; `None` if the directory does not have it.
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

    /// Lists entries from a cookie on: `.` and `..`, then the others by place. If `dir_level` is
    /// not 0, names that move out of the inode during a listing may be listed twice or not at all.
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
        let (mut lbn, mut walked) = (from.saturating_sub(FIRST_SLOT) / SLOTS, 0);
        while let Some(block) = self.block_from(dir, lbn, &mut walked)? {
            lbn = block.lbn + 1;
            let first = FIRST_SLOT + block.lbn * SLOTS;
            if !list_shelf(&Shelf::Block(block), first, from, to)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns the first of a directory's blocks at or behind `lbn` that is no hole. `walked` counts those of one walk.
    fn block_from(&self, dir: &Incore, mut lbn: u64, walked: &mut usize) -> Result<Option<Arc<Owned>>> {
        let blocks = dir.node.view(inode::size).div_ceil(BLOCK as u64);
        let limit = node::lbn_limit(self.layout(dir).addresses()).min(blocks);
        while lbn < limit {
            if let Some(block) = self.owned_block(dir, lbn)? {
                // A damaged directory may have any number of blocks without names.
                *walked += 1;
                if walked.is_multiple_of(LISTED_BYTES_MAX / CACHED_BYTES) {
                    self.owned.shrink(LISTED_BYTES_MAX / 2);
                }
                return Ok(Some(block));
            }
            match self.map_run(dir, Lbn(lbn), u32::MAX)? {
                Mapping::Hole { len } => lbn += u64::from(len),
                Mapping::Unwritten(run) => lbn += u64::from(run.len),
                Mapping::Run(_) => {}
            }
        }
        Ok(None)
    }

    /// True if there is nothing but `.` and `..`.
    pub(super) fn has_no_names(&self, dir: &Incore) -> Result<bool> {
        if let Some(shelf) = self.inside(dir) {
            return Ok(shelf.view(dentry::is_empty));
        }
        let (mut lbn, mut walked) = (0, 0);
        while let Some(block) = self.block_from(dir, lbn, &mut walked)? {
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

/// Lists the entries of a shelf, whose first slot has the cookie `first` before it. Returns false if `to`
/// has had enough.
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

    /// Puts an entry into the first place of its buckets that has room; a hole becomes a block.
    fn insert_hashed(&self, dir: &Incore, entry: &NewEntry<'_>, admission: &mut Admission) -> Result<()> {
        let place = self.place_for(dir, entry.hash, entry.name)?.ok_or(Error::Posix(libc::ENOSPC))?;
        match place.block {
            Some((block, slot)) => {
                self.change_shelf(&Shelf::Block(block), |bytes, region| entry.insert(bytes, region, slot));
            }
            None => {
                let mut bytes = Buf::zeroed(BLOCK);
                entry.insert(&mut bytes, &Region::BLOCK, 0);
                self.add_block(dir, place.lbn, bytes, admission)?;
            }
        }
        self.cover(dir, place.level, place.lbn)
    }

    /// Returns the first place for a name in the hash table; `None` if all levels are full for it.
    fn place_for(&self, dir: &Incore, hash: u32, name: &[u8]) -> Result<Option<EntryPlace>> {
        let dir_level = self.inode(dir)?.dir_level;
        let limit = node::lbn_limit(self.layout(dir).addresses());
        let slots = dentry::slots_of(name.len());
        for level in 0..dentry::DEPTH_MAX {
            for lbn in dentry::bucket_blocks(level, dir_level, hash).filter(|lbn| *lbn < limit) {
                let Some(block) = self.owned_block(dir, lbn)? else {
                    return Ok(Some(EntryPlace { level, lbn, block: None }));
                };
                if let Some(slot) = block.view(|bytes| dentry::room(bytes, &Region::BLOCK, slots)) {
                    return Ok(Some(EntryPlace { level, lbn, block: Some((block, slot)) }));
                }
            }
        }
        Ok(None)
    }

    /// Returns true if a name is in a directory, or can be added without a new block.
    pub(super) fn fits_name(&self, dir: &Incore, name: &Name) -> Result<bool> {
        if self.find_name(dir, name)?.is_some() {
            return Ok(true);
        }
        let name = name.as_bytes();
        if let Some(shelf) = self.inside(dir) {
            let slots = dentry::slots_of(name.len());
            return Ok(shelf.view(|bytes, region| dentry::room(bytes, region, slots).is_some()));
        }
        let place = self.place_for(dir, dentry::hash(name), name)?;
        Ok(place.is_some_and(|place| place.block.is_some()))
    }

    fn add_block(&self, dir: &Incore, lbn: u64, bytes: Buf, admission: &mut Admission) -> Result<()> {
        let _map = dir.map.lock();
        self.adopt(dir, lbn, bytes, admission).map(drop)
    }

    /// Makes the inode's depth and size cover this level and this block.
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

    /// Moves the names out of the inode. If that fails, the inode stays as it was.
    fn leave_inode(&self, dir: &Incore, admission: &mut Admission) -> Result<()> {
        let before = dir.node.view(<[u8]>::to_vec);
        let left = self.health.watch(self.move_out(dir, &before, admission));
        if left.is_err() {
            self.unmap_range(dir, 0, None, u32::MAX)?;
            self.change(&dir.node, |bytes| bytes.copy_from_slice(&before));
        }
        left
    }

    /// Copies the entries of the inode `before` to blocks (`docs/formats/f2fs.md`, section 6.3).
    fn move_out(&self, dir: &Incore, before: &[u8], admission: &mut Admission) -> Result<()> {
        let layout = self.layout(dir);
        let region = Region::inline(layout.inline_range());
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
            // With more buckets in level 0 each entry might need a block of its own, more than an op is admitted for.
            inode.dir_level = 0;
        })?;
        let shelf = Shelf::Inode(Arc::clone(&dir.node), region.clone());
        for entry in dentry::entries(before, &region) {
            let Entry { slot, kind, .. } = shelf.check(entry)?;
            kind.ok_or_else(|| shelf.damage(format!("the entry in slot {slot} is of no known type")))?;
        }
        self.add_block(dir, 0, Buf::copy_of(&dentry::inline_to_block(before, &region)), admission)
    }

    /// Changes the inode that a name (also `..`) names.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use moafs_disk::mem::MemDisk;
    use moafs_vfs::Vfs;
    use moafs_vfs::api::RenameMode;
    use moafs_vfs::format::Format;
    use proptest::prelude::*;

    use super::*;
    use crate::format::BlkAddr;
    use crate::judge::{assert_clean, features, loaded, mount, name, new, root, volume};

    const ROOT: Ino = Ino(3);
    const MEBIBYTES: u64 = 128;

    type Names = BTreeMap<Vec<u8>, Ino>;

    struct Mounted {
        mem: Arc<MemDisk>,
        vfs: Vfs<F2fs>,
        dir: Ino,
    }

    impl Mounted {
        /// Returns a volume with one directory in its root.
        fn new(features: crate::format::superblock::Features) -> Mounted {
            let mem = volume(MEBIBYTES, features);
            let vfs = mount(&mem);
            let dir = vfs.create(&root(), ROOT, name(b"directory"), &new(FileKind::Directory)).unwrap().ino;
            Mounted { mem, vfs, dir }
        }

        /// Lets the directory's names leave the inode, and its levels start with 2^`level` buckets, as other drivers
        /// can make it.
        fn widen(&self, level: u8) {
            (0..200).for_each(|i| assert!(self.create(&number(i), FileKind::Fifo).is_ok()));
            (0..200).for_each(|i| self.remove(&number(i)).unwrap());
            assert!(!self.is_inline());
            let (node, fs) = self.node();
            fs.change_inode(&node, |inode| inode.dir_level = level).unwrap();
        }

        fn create(&self, text: &[u8], kind: FileKind) -> Result<Ino> {
            let ino = self.vfs.create(&root(), self.dir, name(text), &new(kind))?.ino;
            self.vfs.forget(ino, 1);
            Ok(ino)
        }

        fn remove(&self, text: &[u8]) -> Result<()> {
            match self.vfs.unlink(&root(), self.dir, name(text)) {
                Err(error) if error.errno() == libc::EISDIR => self.vfs.rmdir(&root(), self.dir, name(text)),
                done => done,
            }
        }

        fn find(&self, text: &[u8]) -> Option<Ino> {
            let found = self.node().1.find_name(&self.node().0, name(text)).unwrap();
            found.map(|found| Ino(found.ino.0.into()))
        }

        fn node(&self) -> (Arc<Incore>, &F2fs) {
            let fs = self.vfs.format();
            (fs.incore(Nid(self.dir.0 as u32)).unwrap(), fs)
        }

        fn inode(&self) -> crate::format::inode::Inode {
            let (node, fs) = self.node();
            fs.inode(&node).unwrap()
        }

        fn is_inline(&self) -> bool {
            self.inode().inline.contains(Inline::DENTRY)
        }

        /// Returns at most `count` names from a cookie on, and the cookie to go on from.
        fn some(&self, from: Cookie, count: usize) -> (Vec<(Vec<u8>, Ino)>, Cookie) {
            let (mut found, mut at) = (Vec::new(), from);
            let (node, fs) = self.node();
            fs.list_names(&node, from, &mut |name, dentry, next| {
                if found.len() == count {
                    return false;
                }
                at = next;
                // Nothing may be locked here.
                assert_eq!(fs.lookup(&node, name).unwrap().map(|found| found.ino), Some(dentry.ino));
                found.push((name.as_bytes().to_vec(), dentry.ino));
                true
            })
            .unwrap();
            (found, at)
        }

        /// Returns all names, listed `count` at a time.
        fn names(&self, count: usize) -> Names {
            let (mut all, mut from) = (Names::new(), Cookie::START);
            loop {
                let (found, next) = self.some(from, count);
                if found.is_empty() {
                    assert_eq!(all.remove(&b"."[..]), Some(self.dir));
                    assert_eq!(all.remove(&b".."[..]), Some(ROOT));
                    return all;
                }
                assert!(next > from);
                from = next;
                found.into_iter().for_each(|(name, ino)| assert_eq!(all.insert(name, ino), None));
            }
        }

        fn remount(&mut self, what: &str) {
            self.vfs.clone().close().unwrap();
            assert_clean(&self.mem, what);
            self.vfs = mount(&self.mem);
        }
    }

    fn number(i: usize) -> Vec<u8> {
        format!("{i:07}").into_bytes()
    }

    #[test]
    fn a_new_directory_lies_in_its_inode() {
        for features in features() {
            let mut m = Mounted::new(features);
            assert!(m.is_inline() && m.names(1).is_empty());
            let (node, fs) = m.node();
            assert!(fs.has_no_names(&node).unwrap());
            assert_eq!(m.inode().size, fs.layout(&node).inline_range().len() as u64);
            assert_eq!(m.vfs.stat(m.dir).unwrap().sectors, m.inode().size.div_ceil(512));
            m.remount("an empty directory");
            assert!(m.is_inline() && m.names(1).is_empty());
        }
    }

    #[test]
    fn names_leave_the_inode_when_it_is_full_and_listings_go_on() {
        for features in features() {
            let mut m = Mounted::new(features);
            let (node, fs) = m.node();
            let slots = Region::inline(fs.layout(&node).inline_range()).slots;
            let all: Names =
                (2..slots).map(|i| (number(i), m.create(&number(i), FileKind::Regular).unwrap())).collect();
            assert!(m.is_inline());
            let (first, at) = m.some(Cookie::START, 90);
            m.remove(&first[80].0).unwrap();
            m.create(b"a name of several slots", FileKind::Regular).unwrap();
            assert!(!m.is_inline());
            assert_eq!((m.inode().size, m.inode().current_depth), (BLOCK as u64, 1));
            let (rest, _) = m.some(at, usize::MAX);
            let listed: Names = first.into_iter().chain(rest).collect();
            assert!(all.iter().all(|entry| listed.get(entry.0) == Some(entry.1)));
            assert_eq!(listed.len(), 2 + all.len() + 1);
            m.remount("a directory that has just left its inode");
            assert_eq!(m.names(7).len(), all.len());
        }
    }

    #[test]
    fn where_levels_start_wide_names_are_found_by_hash() {
        let mut m = Mounted::new(features()[0]);
        m.widen(4);
        let all: Names = (0..400).map(|i| (number(i), m.create(&number(i), FileKind::Fifo).unwrap())).collect();
        assert!(m.inode().size > 10 * BLOCK as u64);
        m.remount("a directory with 16 buckets on its first level");
        assert_eq!(m.names(50), all);
        assert!(all.iter().all(|(name, ino)| m.find(name) == Some(*ino)));
    }

    #[test]
    fn thousands_of_names_come_and_go() {
        let mut m = Mounted::new(features()[0]);
        let long = |i: usize| format!("{i:0width$}", width = 1 + i * 31 % 255).into_bytes();
        let mut all: Names = (0..5000).map(|i| (long(i), m.create(&long(i), FileKind::Regular).unwrap())).collect();
        assert!(m.inode().current_depth > 5);
        m.remount("5,000 names");
        assert_eq!(m.names(500), all);
        for name in (0..5000).filter(|i| i % 3 > 0).map(long) {
            m.remove(&name).unwrap();
            all.remove(&name);
        }
        m.remount("a third of 5,000 names");
        assert_eq!(m.names(500), all);
        assert!((0..5000).map(long).all(|name| m.find(&name) == all.get(&name).copied()));
        let refused = m.vfs.rmdir(&root(), ROOT, name(b"directory")).unwrap_err();
        assert_eq!(refused.errno(), libc::ENOTEMPTY);
        all.keys().for_each(|name| m.remove(name).unwrap());
        assert!(m.names(1).is_empty());
        assert_eq!(m.inode().blocks, 2, "all blocks but the first are holes again");
        m.vfs.forget(m.dir, 1);
        m.vfs.rmdir(&root(), ROOT, name(b"directory")).unwrap();
        m.remount("nothing");
    }

    #[test]
    fn directories_of_the_reference_tool_are_read_and_changed() {
        let source = tempfile::TempDir::new().unwrap();
        let host = source.path().join("directory");
        std::fs::create_dir(&host).unwrap();
        let long = |i: usize| format!("{i:0width$}", width = 4 + i * 31 % 252).into_bytes();
        for i in 0..1500 {
            std::fs::write(host.join(String::from_utf8(long(i)).unwrap()), b"").unwrap();
        }
        for features in features() {
            let Some(mem) = loaded(MEBIBYTES, features, source.path()) else { return };
            let vfs = mount(&mem);
            let dir = vfs.lookup(&root(), ROOT, name(b"directory")).unwrap().ino;
            let mut m = Mounted { mem, vfs, dir };
            assert!(m.inode().current_depth > 4);
            let mut all = m.names(100);
            assert!(
                (0..1500).map(long).all(|name| m.find(&name).is_some() && m.find(&name) == all.get(&name).copied())
            );
            for i in (0..1500).step_by(2) {
                m.remove(&long(i)).unwrap();
                all.remove(&long(i));
                all.insert(number(i), m.create(&number(i), FileKind::Regular).unwrap());
            }
            m.remount("what the reference tool made, changed");
            assert_eq!(m.names(100), all);
        }
    }

    #[test]
    fn missing_dots_are_answered() {
        let m = Mounted::new(features()[0]);
        let (node, fs) = m.node();
        m.create(b"name", FileKind::Regular).unwrap();
        let shelf = fs.inside(&node).unwrap();
        fs.change_shelf(&shelf, |bytes, region| {
            [0, 1].into_iter().for_each(|slot| dentry::remove(bytes, region, slot))
        });
        assert_eq!((m.find(b"."), m.find(b"..")), (None, None));
        fs.change_inode(&node, |inode| inode.inline.insert(Inline::DOTS)).unwrap();
        assert_eq!((m.find(b"."), m.find(b"..")), (Some(m.dir), Some(ROOT)));
        assert_eq!(m.names(1).len(), 1);
    }

    #[test]
    fn moving_a_directory_moves_its_dot_dot() {
        let mut m = Mounted::new(features()[0]);
        m.create(b"from", FileKind::Directory).unwrap();
        let to = m.create(b"to", FileKind::Directory).unwrap();
        let from = m.find(b"from").unwrap();
        m.vfs.rename(&root(), (m.dir, name(b"from")), (to, name(b"moved")), RenameMode::Replace).unwrap();
        m.remount("a moved directory");
        m.dir = from;
        assert_eq!(m.find(b".."), Some(to));
    }

    #[test]
    fn damage_is_reported_with_its_block() {
        let m = Mounted::new(features()[0]);
        (0..300).for_each(|i| assert!(m.create(&number(i), FileKind::Regular).is_ok()));
        let (node, fs) = m.node();
        let shelf = Shelf::Block(fs.owned_block(&node, 0).unwrap().unwrap());
        fs.change_shelf(&shelf, |bytes, region| dentry::point(bytes, region, 2, Nid(2), FileKind::Regular));
        let listed = fs.list_names(&node, Cookie::START, &mut |_, _, _| true);
        let text = listed.unwrap_err().to_string();
        assert!(text.contains(&format!("block 0 of directory inode {}", m.dir.0)), "{text}");
        assert!(text.contains("the entry in slot 2 names inode 2"), "{text}");
        assert!(m.vfs.failed().is_some());
    }

    #[test]
    fn names_that_cannot_leave_the_inode_stay_there() {
        let m = Mounted::new(features()[0]);
        let (node, fs) = m.node();
        (0..150).for_each(|i| assert!(m.create(&number(i), FileKind::Regular).is_ok()));
        let before = m.names(99);
        let shelf = fs.inside(&node).unwrap();
        let blocks = m.inode().blocks;
        // The last entry's type becomes an invalid one.
        fs.change_shelf(&shelf, |bytes, region| bytes[region.dentries + 11 * 151 + 10] = 0);
        let refused = m.create(&[b'x'; 255], FileKind::Regular).unwrap_err();
        assert!(refused.to_string().contains("the entry in slot 151 is of no known type"), "{refused}");
        assert!(m.is_inline());
        assert_eq!(m.inode().blocks, blocks);
        assert_eq!(m.names(99), before);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Create(Vec<u8>, FileKind),
        Fill(usize, usize),
        Remove(prop::sample::Index),
        Sweep(usize),
        Rename(prop::sample::Index, Vec<u8>),
        Remount,
    }

    fn any_name() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'a'), Just(b'b'), Just(b'.'), Just(0xFF)];
        let long = prop::collection::vec(byte.clone(), 200..=255);
        let name = prop_oneof![3 => prop::collection::vec(byte.clone(), 1..4), 2 => prop::collection::vec(byte, 7..30), 1 => long];
        name.prop_filter("not a dot", |name| !matches!(&name[..], b"." | b".."))
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let kind = prop::sample::select(vec![FileKind::Regular, FileKind::Directory, FileKind::Fifo]);
        prop_oneof![
            8 => (any_name(), kind).prop_map(|(name, kind)| Op::Create(name, kind)),
            3 => (1usize..250, 1usize..20).prop_map(|(count, width)| Op::Fill(count, width)),
            5 => any::<prop::sample::Index>().prop_map(Op::Remove),
            1 => (1usize..4).prop_map(Op::Sweep),
            3 => (any::<prop::sample::Index>(), any_name()).prop_map(|(at, name)| Op::Rename(at, name)),
            1 => Just(Op::Remount),
        ]
    }

    fn apply(m: &mut Mounted, model: &mut Names, op: Op) {
        let nth = |model: &Names, at: prop::sample::Index| model.keys().nth(at.index(model.len().max(1))).cloned();
        match op {
            Op::Create(name, kind) => match m.create(&name, kind) {
                Ok(ino) => assert_eq!(model.insert(name, ino), None),
                Err(error) => assert!(error.errno() == libc::EEXIST && model.contains_key(&name), "{error}"),
            },
            Op::Fill(count, width) => {
                for name in (0..count).map(|i| format!("{i:0width$}").into_bytes()) {
                    apply(m, model, Op::Create(name, FileKind::Regular));
                }
            }
            Op::Remove(at) => {
                let Some(name) = nth(model, at) else { return };
                m.remove(&name).unwrap();
                model.remove(&name);
            }
            Op::Sweep(step) => {
                let names: Vec<Vec<u8>> = model.keys().step_by(step).cloned().collect();
                for name in names {
                    m.remove(&name).unwrap();
                    model.remove(&name);
                }
            }
            Op::Rename(at, new) => {
                let Some(old) = nth(model, at) else { return };
                let renamed = m.vfs.rename(&root(), (m.dir, name(&old)), (m.dir, name(&new)), RenameMode::Replace);
                if renamed.is_ok() {
                    let ino = model.remove(&old).unwrap();
                    model.insert(new, ino);
                }
            }
            Op::Remount => m.remount("in between"),
        }
    }

    /// Gives a directory blocks that are reserved, or all the same one, as no driver does.
    fn stuff(fs: &F2fs, dir: &Incore, lbns: std::ops::Range<u64>, to: impl Fn(u64) -> BlkAddr) {
        for lbn in lbns {
            let leaf = fs.leaf(dir, lbn, &mut Admission::none()).unwrap();
            fs.change(&leaf.node, |bytes| leaf.set(bytes, lbn, to(lbn)));
        }
    }

    #[test]
    fn blocks_of_a_hostile_directory_take_little_memory() {
        for reserved in [true, false] {
            let m = Mounted::new(features()[0]);
            (0..200).for_each(|i| assert!(m.create(&number(i), FileKind::Fifo).is_ok()));
            (0..200).for_each(|i| m.remove(&number(i)).unwrap());
            m.vfs.sync().unwrap();
            let (node, fs) = m.node();
            let Mapping::Run(first) = fs.map_run(&node, Lbn(0), 1).unwrap() else { panic!("block 0 is there") };
            let to = |_| if reserved { BlkAddr::NEW } else { BlkAddr(first.start.0 as u32) };
            let blocks = 10_000;
            stuff(fs, &node, 1..blocks, to);
            let most = if reserved { 1 } else { 3 * LISTED_BYTES_MAX / 2 / CACHED_BYTES + 16 };
            for size in [blocks, 1] {
                fs.change_inode(&node, |inode| inode.size = size * BLOCK as u64).unwrap();
                fs.owned.shrink(0);
                assert!(fs.has_no_names(&node).unwrap());
                fs.list_names(&node, Cookie::START, &mut |_, _, _| true).unwrap();
                let count = fs.owned.count();
                assert!(count <= most && (size > 1 || count <= 16), "{count} of {size} blocks, reserved: {reserved}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn directories_behave_like_maps(
            ops in prop::collection::vec(any_op(), 1..40), which in 0usize..2, count in 1usize..40, wide in 0u8..3,
        ) {
            let mut m = Mounted::new(features()[which]);
            if wide > 0 {
                m.widen(wide);
            }
            let mut model = Names::new();
            for op in ops {
                apply(&mut m, &mut model, op);
                prop_assert_eq!(m.names(count), model.clone());
            }
            m.remount("at the end");
            prop_assert_eq!(m.names(count), model.clone());
            for (name, ino) in &model {
                prop_assert_eq!(m.find(name), Some(*ino));
            }
            prop_assert_eq!(m.find(b"absent"), None);
        }

        #[test]
        fn hostile_directories_never_panic(
            pokes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(0u8), Just(0xFF), any::<u8>()]), 1..60),
            inside: bool, head: bool, count in 0usize..250,
        ) {
            let m = Mounted::new(features()[0]);
            for i in 0..count {
                m.create(&number(i), FileKind::Regular).unwrap();
            }
            let (node, fs) = m.node();
            let poke = |bytes: &mut [u8]| {
                // The footer, which names the node, stays. The head of the inode decides most.
                let end = if head { 400 } else { 4072 };
                pokes.iter().for_each(|(at, byte)| bytes[at.index(end)] = *byte);
            };
            match fs.owned_block(&node, 0) {
                Ok(Some(block)) if !inside => fs.change_owned(&block, poke),
                _ => fs.change(&node.node, poke),
            }
            let mut admission = Admission::none();
            let text = name(b"0000007");
            let _ = fs.find_name(&node, text).is_ok();
            let _ = fs.list_names(&node, Cookie::START, &mut |_, _, _| true);
            let _ = fs.has_no_names(&node);
            let _ = fs.remove_name(&node, text);
            let _ = fs.point_name(&node, name(b".."), Nid(3), FileKind::Directory);
            for i in 0..20 {
                let long = [b'a' + i; 200];
                let _ = fs.insert_name(&node, name(&long), Nid(3), FileKind::Regular, &mut admission);
            }
            let _ = fs.list_names(&node, Cookie(1 << 40), &mut |_, _, _| true);
        }
    }
}
