//! Ops: changes and the order in which they reach the disk.
//!
//! | change | reaches the disk after |
//! |---|---|
//! | new inode | its bitmap bit; its first directory block, its symlink's block |
//! | new name | the inode (with its link count raised); for a directory also the parent's raised count |
//! | removed name | the inode's newest name, if it keeps one |
//! | directory's new name | its old name, even if that is new itself; `..` follows, then the old name is removed |
//! | removed directory | the new names of the inodes that moved out of it |
//! | link count lowered, inode deleted | the removal of the name |
//! | bits cleared | the pointers, or the deletion |
//!
//! In a rename the inode's count is one too high on disk while it may have two names, and a file's inode says which is
//! the old one ([`Renaming`]): after a crash that one goes. An exchange gives one of the two a temporary name first, so
//! that neither is ever without one.

use moafs_runtime::leaf::atomic::Ordering;
use std::sync::Arc;

use moafs_disk::{Buf, Epoch, Kind};
use moafs_vfs::format::{Admission, CommitPoint, FormatOp, OpKind, Progress, Target};
use moafs_vfs::types::{Attr, BlockRun, FileKind, Ino, Lbn, LbnRange, Mapping, Name, SetMode, XattrKey};
use moafs_vfs::{Error, Result};

use super::incore::{Incore, Life, attr_of, put_attr};
use super::map::MapPlace;
use super::volume::Ext;
use crate::alloc::{NewInode, no_space};
use crate::format::dir as codec;
use crate::format::exchange::{Exchange, NameAt};
use crate::format::inode::{EXTRA_BYTES, InodeFlags};
use crate::format::renaming::Renaming;
use crate::format::{BlockNo, GroupNo, Inode, InodeNo, Sealed};
use crate::meta::{Freed, Handle, Level};
use crate::place::{ParentDirectory, ffs, inodes};

/// Runs that one op allocates without writing them at most: each may change a node of its own.
const PREALLOCATED_RUNS_MAX: u32 = 64;

/// An op that is running: it has been admitted and not ended.
pub struct ExtOp<'a> {
    pub(super) ext: &'a Ext,
    pub(super) kind: OpKind,
    pub(super) admission: &'a mut Admission,
    /// The commit point: the highest level of any change of the op.
    seal: Level,
    /// The level of the names that the op added or removed; its later changes wait for it.
    ordered: Level,
    /// The level that a name added by the op waits for, beyond its inode.
    before_names: Level,
    /// Inodes that are counted one link more until the op ends.
    linked_twice: Vec<Arc<Incore>>,
    /// The file whose inode tells of the rename until the op ends.
    moving: Option<Arc<Incore>>,
    /// The name that the op takes away, or has lead elsewhere, after it has given its inode another.
    leaving: Option<(Arc<Incore>, Box<[u8]>)>,
    /// The temporary name of the inode that lost its own to an exchange, or to a directory moved
    /// over it.
    temporary: Option<Temporary>,
    /// With a journal: keeps the transaction open until the op has ended.
    _handle: Option<Handle<'a>>,
}

/// Returns the most blocks of metadata that an op changes.
pub(super) fn credits(kind: OpKind) -> u64 {
    match kind {
        // Up to 128 ranges of up to 65 files: leaves of their maps, bitmaps, and slots.
        OpKind::Place => 256,
        // Ways to the leaf at each end, and the bitmaps of what is freed.
        OpKind::Unmap => 64,
        OpKind::Attr => 2 * OpKind::ATTR_INODES_MAX as u64,
        OpKind::Create | OpKind::Link | OpKind::Unlink | OpKind::Rename | OpKind::Exchange | OpKind::Xattr => 32,
    }
}

/// The conditions for the end of a name.
#[derive(Debug, Clone, Copy)]
struct NameEnd {
    needs: Level,
    /// True if the inode has other names.
    lives_on: bool,
    /// True if other changes wait for the name: it reaches the disk even if it is removed at once.
    awaited: bool,
}

/// A temporary name in a directory that has room.
struct Temporary {
    home: Arc<Incore>,
    name: Box<[u8]>,
    node: Arc<Incore>,
    /// The directory in which the inode lost its own name.
    of: InodeNo,
}

impl<'a> ExtOp<'a> {
    pub(super) fn new(
        ext: &'a Ext,
        kind: OpKind,
        admission: &'a mut Admission,
        handle: Option<Handle<'a>>,
    ) -> ExtOp<'a> {
        ExtOp {
            ext,
            kind,
            admission,
            seal: Level::NONE,
            ordered: Level::NONE,
            before_names: Level::NONE,
            linked_twice: Vec::new(),
            moving: None,
            leaving: None,
            temporary: None,
            _handle: handle,
        }
    }

    fn reached(&mut self, level: Level) -> Level {
        self.seal = self.seal.max(level);
        level
    }

    /// Has recovery look at an inode before the op changes it.
    ///
    /// # Errors
    /// EPERM if it is the journal's, or the orphan file's: the log goes on to be written to its blocks.
    fn touch(&self, node: &Incore) -> Result<()> {
        if self.ext.own_files.contains(&node.ino) { Err(Error::Posix(libc::EPERM)) } else { self.ext.touch(node) }
    }

    /// Does the same before new attributes are stored. The journal may get those with which it stays what it
    /// is.
    fn touch_to_put(&self, node: &Incore, attr: &Attr, disk_size: u64) -> Result<()> {
        let stays = {
            let is_kept = attr.nlink > 0 && attr.flags & InodeFlags::IMMUTABLE.bits() != 0;
            is_kept && disk_size == node.state.lock().inode.size
        };
        if stays { self.ext.touch(node) } else { self.touch(node) }
    }

    /// Does the same for an inode that is about to get or lose a name. The caller has looked names
    /// up after recovery has ended the exchanges that the crash interrupted, since that changes
    /// them.
    fn touch_named(&self, node: &Incore) -> Result<()> {
        let moves = node.kind == FileKind::Directory && self.kind != OpKind::Create;
        let settled = self.ext.recovery.is_settled(moves);
        debug_assert!(settled, "inode {} is named anew too early", node.ino.0);
        if settled { self.touch(node) } else { Err(Error::Posix(libc::EBUSY)) }
    }

    fn is_rename(&self) -> bool {
        matches!(self.kind, OpKind::Rename | OpKind::Exchange)
    }

    /// Stores an inode with one link more than it has; until the op ends every other store counts
    /// the extra link as well: the inode may be seen with two names, and write-back stores inodes
    /// at any time.
    fn store_linked_twice(&mut self, node: &Arc<Incore>) -> Result<Level> {
        node.state.lock().names_coming += 1;
        self.linked_twice.push(Arc::clone(node));
        let level = self.ext.store(node)?;
        Ok(self.reached(level))
    }

    /// Stores the links that are left when all names have changed.
    fn store_links(&mut self) -> Result<()> {
        self.forget_move();
        for node in std::mem::take(&mut self.linked_twice) {
            node.state.lock().names_coming -= 1;
            let level = self.ext.store_with(&node, self.ordered, |_, _| {})?;
            self.reached(level);
        }
        Ok(())
    }

    /// Has the inode of a renamed file tell of no rename from its next version on.
    fn forget_move(&mut self) {
        if let Some(node) = self.moving.take() {
            node.state.lock().inode.renaming = None;
        }
    }

    /// Returns the level that an entry naming `node` waits for.
    fn entry_needs(&mut self, dir: &Arc<Incore>, node: &Arc<Incore>, name: &Name) -> Result<Level> {
        let dots = name.as_bytes() == b"..";
        if self.is_rename() && !dots {
            let linked = self.store_linked_twice(node)?;
            self.before_names = self.before_names.max(linked);
            if node.kind == FileKind::Directory {
                let parent = self.store_linked_twice(dir)?;
                let old_name = node.state.lock().named;
                self.before_names = self.before_names.max(parent).max(old_name);
            }
        }
        let slot = self.ext.slot_pending(node)?;
        let after = if self.is_rename() { self.ordered } else { Level::NONE };
        Ok(slot.max(self.before_names).max(after))
    }

    /// Notes that an entry of `dir` leads to `node` at a level.
    fn named(&mut self, dir: &Incore, node: &Arc<Incore>, name: &Name, level: Level) {
        self.entered(level);
        if name.as_bytes() == b".." {
            return;
        }
        let reachable = level.max(dir.state.lock().named);
        // A file that was synced, even its data only, must be found.
        self.reached(reachable);
        if self.is_rename() {
            self.ordered = self.ordered.max(reachable);
        }
        // A file's first name is its only one: no name can go before it.
        if node.kind == FileKind::Directory || self.kind != OpKind::Create {
            let mut state = node.state.lock();
            state.named = state.named.max(reachable);
            drop(state);
            self.ext.hold(node, reachable);
        }
    }

    fn entered(&mut self, level: Level) {
        self.ext.names_level.fetch_max(level.0, Ordering::Relaxed);
        self.ext.entries_level.fetch_max(level.0, Ordering::Relaxed);
        self.reached(level);
        if self.is_rename() {
            self.ordered = self.ordered.max(level);
        }
    }

    /// Returns the conditions for the end of a name of `was`, beyond the op's own order. `moves`:
    /// the op has given it a new name.
    fn end_of_name(&self, was: &Incore, moves: bool) -> NameEnd {
        let state = was.state.lock();
        let directory = was.kind == FileKind::Directory;
        let lives_on = moves || (!directory && state.inode.links > 1);
        let needs = match was.kind {
            FileKind::Directory if moves => state.named.max(state.unlinked),
            FileKind::Directory => state.left.max(state.unlinked),
            _ if lives_on => state.named,
            _ => Level::NONE,
        };
        let relied_on = (lives_on || directory) && self.ext.meta.is_pending(state.unlinked.max(state.left));
        NameEnd { needs, lives_on, awaited: relied_on || (directory && moves) }
    }

    /// Notes that a name of `was` in `dir` ends at a level: `dir` itself may go only after the
    /// inodes that have left it can be found elsewhere.
    fn left(&self, dir: &Arc<Incore>, was: NameEnd, level: Level) {
        let until = if was.lives_on { was.needs.max(self.ordered).max(level) } else { was.needs };
        let mut state = dir.state.lock();
        state.left = state.left.max(until);
        drop(state);
        self.ext.hold(dir, until);
    }

    fn insert(&mut self, dir: &Arc<Incore>, name: &Name, ino: InodeNo, kind: FileKind, needs: Level) -> Result<Level> {
        let ext = self.ext;
        let admission = &mut *self.admission;
        let group = dir.at.group;
        let level = ext.insert_name(dir, name, ino, kind, needs, &mut || ext.meta_block(group, admission))?;
        // Names that come into the new block need to know.
        let reached = dir.state.lock().reached;
        ext.hold(dir, reached);
        Ok(level)
    }

    // -- making inodes

    fn pick_inode(&self, parent: &Incore, directory: bool) -> Result<NewInode> {
        let ext = self.ext;
        let first = if directory {
            let is_top = parent.state.lock().inode.flags.contains(InodeFlags::TOPDIR);
            let parent = ParentDirectory { group: parent.at.group, is_root: parent.ino == InodeNo::ROOT, is_top };
            ext.directories.group(parent, ext)
        } else {
            parent.at.group
        };
        loop {
            let freeing = ext.alloc.freeing();
            // A group that is damaged is left out: the others are as good as they were.
            let mut damage = None;
            let others = inodes::file_groups(&ext.geo, first, parent.ino);
            let others = others.filter(|group| ext.alloc.counts(*group).free_inodes > 0);
            for group in std::iter::once(first).chain(others) {
                match ext.alloc.inode(group, directory) {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => {}
                    Err(error @ Error::Damaged { .. }) => damage = damage.or(Some(error)),
                    Err(error) => return Err(error),
                }
            }
            // With a journal numbers are free at once, and no commit can be waited for within an op.
            if freeing == 0 || ext.meta.has_journal() {
                return Err(damage.unwrap_or_else(no_space));
            }
            ext.meta.wait_for_host(|| ext.finish_freeing(freeing))?;
        }
    }

    fn fill_directory(&mut self, ino: InodeNo, parent: InodeNo, group: GroupNo, inode: &mut Inode) -> Result<Level> {
        let (no, bits) = self.ext.meta_block(group, self.admission)?;
        let mut image = Buf::zeroed(self.ext.geo.block_bytes());
        codec::format_first(&mut image, self.ext.form, ino, parent);
        self.adopt(ino, inode, no, Kind::Directory, image, bits)
    }

    fn fill_symlink(&mut self, ino: InodeNo, target: &[u8], group: GroupNo, inode: &mut Inode) -> Result<Level> {
        if inode.set_fast_symlink(target) {
            return Ok(Level::NONE);
        }
        let mut image = Buf::zeroed(self.ext.geo.block_bytes());
        let Some(place) = image.get_mut(..target.len()) else { return Err(Error::Posix(libc::ENAMETOOLONG)) };
        place.copy_from_slice(target);
        let (no, bits) = self.ext.meta_block(group, self.admission)?;
        let level = self.adopt(ino, inode, no, Kind::Symlink, image, bits)?;
        inode.size = target.len() as u64;
        Ok(level)
    }

    /// Makes a fresh block the only one of a new inode.
    fn adopt(
        &mut self,
        ino: InodeNo,
        inode: &mut Inode,
        no: u64,
        kind: Kind,
        image: Buf,
        bits: Level,
    ) -> Result<Level> {
        let (block, fresh) = self.ext.fresh(no, kind, image)?;
        if kind == Kind::Directory {
            block.holds(Sealed::Leaf(inode.owner(ino)));
        }
        inode.begin_map(&self.ext.geo, Some(BlockNo(no)));
        inode.blocks = self.ext.geo.sectors_per_block().into();
        inode.size = self.ext.geo.block_size.into();
        Ok(bits.max(fresh))
    }

    fn new_inode(
        &mut self,
        NewInode { ino, table, .. }: NewInode,
        parent: &Incore,
        attr: &Attr,
        target: Option<&[u8]>,
    ) -> Result<(Arc<Incore>, Level)> {
        let ext = self.ext;
        let at = ext.slot_at(ino).ok_or_else(no_space)?;
        let table = table.map_or_else(|| ext.table_block(&at), Ok)?;
        let slot = at.offset..at.offset + ext.geo.inode_size as usize;
        let before = table.view(|bytes| Inode::parse(&bytes[slot], &ext.geo));
        let mut inode = Inode::parse(&vec![0; ext.geo.inode_size as usize], &ext.geo);
        inode.extra_isize = ext.extra_isize;
        inode.generation = match before.generation {
            // Never used, or not read: counting from the time makes it differ from earlier generations.
            0 => ext.rt.timestamp().secs as u32,
            last => last.wrapping_add(1),
        };
        inode.crtime = attr.crtime.or(Some(attr.ctime)).filter(|_| ext.extra_isize >= EXTRA_BYTES);
        put_attr(&mut inode, attr, 0);
        if attr.kind == FileKind::Regular {
            inode.begin_map(&ext.geo, None);
        }
        let needs = match attr.kind {
            FileKind::Directory => self.fill_directory(ino, parent.ino, at.group, &mut inode)?,
            FileKind::Symlink => self.fill_symlink(ino, target.unwrap_or_default(), at.group, &mut inode)?,
            FileKind::CharDevice | FileKind::BlockDevice => {
                inode.set_device(libc::major(attr.rdev), libc::minor(attr.rdev));
                Level::NONE
            }
            _ => Level::NONE,
        };
        let node = Incore::new(&ext.registry, ino, attr.kind, at, inode, Life::Unborn);
        // The slot may hold bytes of its last owner.
        node.state.lock().attributes = Some(Vec::new());
        Ok((Arc::new(node), needs))
    }

    /// Stores the first version of an inode's slot.
    fn bear(&mut self, node: &Incore, needs: Level) -> Result<Level> {
        let block = self.ext.table_block(&node.at)?;
        let mut state = node.state.lock();
        state.life = Life::Named { born: Level::NONE };
        let level = self.ext.write_slot(&block, node, &mut state, needs, |inode, slot| {
            slot.fill(0);
            // The extra part's length must be there before the fields in it are stored.
            inode.encode_into(slot, &self.ext.geo);
        });
        state.life = Life::Named { born: level };
        drop(state);
        Ok(self.reached(level))
    }

    // -- exchange

    /// Gives the inode that is about to lose `name` to `taker` a temporary name, and a link for it. The temporary name
    /// is on the disk only after both names as they are now: what they lead to beside it tells how far the op came.
    fn keep_reachable(&mut self, was: InodeNo, dir: &Incore, name: &Name, taker: InodeNo) -> Result<()> {
        let node = self.ext.incore(was)?;
        let home = self.ext.exchange_home()?;
        let (left, old) = self.leaving.take().expect("the op was announced");
        let old = Name::new(&old).expect("it was one when it was announced");
        let marks = self.ext.marks;
        let at = |dir: &Incore, name: &Name| NameAt { dir: dir.ino, hash: marks.hash(name.as_bytes()) };
        let exchange = Exchange { waiting: was, taken: at(dir, name), taker, left: at(&left, old) };
        let before = self.ext.name_level(dir, name)?.max(self.ext.name_level(&left, old)?);
        let name = exchange.temporary_name(marks);
        let bytes = Name::new(&name).expect("a short name without slashes");
        if self.admission.blocks() == 0 && !self.ext.fits_name(&home, bytes)? {
            // The free blocks are promised to others.
            return Err(Error::Posix(libc::ENOSPC));
        }
        self.touch(&home)?;
        let linked = self.store_linked_twice(&node)?;
        let level = self.insert(&home, bytes, was, node.kind, linked.max(before))?;
        self.named(&home, &node, bytes, level);
        self.temporary = Some(Temporary { home, name: name.into(), node, of: dir.ino });
        Ok(())
    }

    fn drop_temporary(&mut self) -> Result<()> {
        let Some(Temporary { home, name, node, .. }) = self.temporary.take() else { return Ok(()) };
        let name = Name::new(&name).expect("it was one when it was added");
        let level = self.ext.remove_name(&home, name, self.ordered, true)?;
        self.unnamed(&node, level);
        self.ordered = self.ordered.max(level);
        Ok(())
    }

    /// Notes that a name of an inode is gone at a level: its link count falls, or it is deleted,
    /// after that.
    fn unnamed(&mut self, node: &Arc<Incore>, level: Level) {
        self.ext.entries_level.fetch_max(level.0, Ordering::Relaxed);
        self.reached(level);
        let mut state = node.state.lock();
        state.unlinked = state.unlinked.max(level);
        state.needs = state.needs.max(level);
        drop(state);
        self.ext.hold(node, level);
    }
}

impl FormatOp for ExtOp<'_> {
    type Node = Arc<Incore>;

    fn inode_new(&mut self, parent: &Self::Node, attr: &Attr, target: Option<&[u8]>) -> Result<(Ino, Self::Node)> {
        let directory = attr.kind == FileKind::Directory;
        self.touch(parent)?;
        let new = self.pick_inode(parent, directory)?;
        // Not before: between the two the inode would be promised to another caller.
        self.admission.spend_inodes(1);
        let NewInode { ino, level: bits, .. } = new;
        self.ext.recovery.note_new(ino);
        let made = self.new_inode(new, parent, attr, target);
        let (node, needs) = match made {
            Ok(made) => made,
            Err(error) => {
                self.ext.alloc.free(Level::NONE, Freed::Inode { ino: ino.0, directory })?;
                return Err(error);
            }
        };
        // A load of its number, which the slot allows from here on, must find this in-core inode.
        self.ext.registry.insert(&node);
        if attr.nlink > 0 {
            self.bear(&node, bits.max(needs))?;
        } else if self.ext.meta.has_journal() {
            self.bear(&node, bits.max(needs))?;
            self.join_orphans(&node)?;
        } else {
            node.state.lock().needs = bits.max(needs);
        }
        if directory {
            {
                let mut state = parent.state.lock();
                // One link stands for more subdirectories than are counted.
                state.inode.links += u16::from(state.inode.links != 1);
            }
            let level = self.ext.store(parent)?;
            self.before_names = self.before_names.max(level);
            self.reached(level);
        }
        Ok((Ino(ino.0.into()), node))
    }

    fn inode_put(&mut self, node: &Self::Node, attr: &Attr, disk_size: u64) -> Result<()> {
        self.touch_to_put(node, attr, disk_size)?;
        let disk_size = self.size_on_disk(node, attr, disk_size);
        if attr.kind == FileKind::Regular && disk_size >= 1 << 31 {
            let level = self.ext.note_large_file()?;
            let mut state = node.state.lock();
            state.needs = state.needs.max(level);
        }
        if self.leaves_overhang(node, attr, disk_size) {
            self.ext.add_orphan(node)?;
        }
        let life = {
            let mut state = node.state.lock();
            // Behind the end of a file that a crash left or that was cut, its last block may hold bytes of an append
            // that was interrupted, or from before the cut. The zeros or bytes that are in their place now go first.
            let may_hide = self.ext.meta.has_journal() || self.ext.recovery.was_needed() || state.was_cut;
            if may_hide && disk_size > state.inode.size {
                state.data = state.data.max(Some(Epoch(self.ext.data_epoch.load(Ordering::Relaxed))));
            }
            state.was_cut |= disk_size < state.inode.size;
            put_attr(&mut state.inode, attr, disk_size);
            if attr.nlink > 0 && !state.is_listed {
                state.inode.dtime = 0;
            }
            state.life
        };
        match life {
            Life::Unborn if attr.nlink > 0 => drop(self.bear(node, Level::NONE)?),
            Life::Orphan(_) if attr.nlink > 0 => {
                node.state.lock().life = Life::Named { born: Level::NONE };
                self.ext.remove_orphan(node, 0)?;
                self.store_ordered(node)?;
            }
            _ => self.store_ordered(node)?,
        }
        Ok(())
    }

    fn inode_orphan(&mut self, node: &Self::Node, attr: &Attr) -> Result<()> {
        self.touch(node)?;
        self.ext.check_deletable(node)?;
        let table = self.ext.table_block(&node.at)?;
        let size = self.size_on_disk(node, attr, 0);
        let mut state = node.state.lock();
        if self.ext.meta.has_journal() {
            put_attr(&mut state.inode, attr, size);
            state.inode.links = 0;
            drop(state);
            return self.join_orphans(node);
        }
        put_attr(&mut state.inode, attr, attr.size);
        state.inode.links = 0;
        state.inode.dtime = attr.ctime.secs.clamp(1, u32::MAX.into()) as u32;
        if self.is_rename() {
            state.unlinked = state.unlinked.max(self.ordered);
        }
        let slot = self.ext.slot_bytes(&table, &node.at);
        if let Life::Named { born } = state.life
            && state.unlinked == Level::NONE
            && born != Level::NONE
            && self.ext.meta.cancel(&table, self.ext.record(&node.at), born)
        {
            state.life = Life::Unborn;
            let attributes = crate::format::xattr::inode_area(&slot, state.inode.extra_isize).to_vec();
            state.attributes.get_or_insert(attributes);
            return Ok(());
        }
        if !matches!(state.life, Life::Named { .. }) {
            return Ok(());
        }
        let needs = state.unlinked;
        let level = self.ext.write_slot(&table, node, &mut state, needs, |_, _| {});
        state.life = Life::Orphan(level);
        drop(state);
        if node.kind == FileKind::Directory {
            // The parent's count falls when the name is gone; that the nameless directory may still be there with its
            // `..` is a leak like any other. A rename over a directory waits for its end.
            self.ordered = self.ordered.max(if self.is_rename() { level } else { needs });
        }
        self.reached(level);
        Ok(())
    }

    fn inode_free(&mut self, node: &Self::Node) -> Result<()> {
        self.touch(node)?;
        self.ext.check_deletable(node)?;
        while self.ext.clear_pointers_of(node)? == Progress::More {}
        let (needs, file_acl, freed) = {
            let mut state = node.state.lock();
            let needs = match state.life {
                Life::Orphan(level) => level,
                Life::Unborn => Level::NONE,
                Life::Named { .. } => return Err(Error::Posix(libc::EBUSY)),
            };
            // Blocks that data left while the inode was being reaped.
            (needs, state.inode.file_acl, std::mem::take(&mut state.freed))
        };
        freed.into_iter().try_for_each(|freed| self.ext.alloc.free(needs, freed))?;
        if file_acl != 0 {
            self.ext.release_xattr_block(node, file_acl, needs)?;
            // If a later step fails this is tried again, and others may use the block.
            node.state.lock().inode.file_acl = 0;
        }
        if self.ext.meta.has_journal() {
            self.ext.remove_orphan(node, self.ext.now_secs().max(1))?;
            let mut state = node.state.lock();
            (state.inode.size, state.inode.blocks, state.inode.file_acl) = (0, 0, 0);
            drop(state);
            self.ext.store(node)?;
        }
        self.ext.drop_index(node);
        self.ext.registry.remove(node);
        let directory = node.kind == FileKind::Directory;
        self.ext.alloc.free(needs, Freed::Inode { ino: node.ino.0, directory })
    }

    fn name_moves(
        &mut self,
        node: &Self::Node,
        (from, old): (&Self::Node, &Name),
        (to, new): (&Self::Node, &Name),
    ) -> Result<()> {
        // A transaction has all of a rename or nothing.
        if self.ext.meta.has_journal() {
            return Ok(());
        }
        self.touch_named(node)?;
        self.leaving = Some((Arc::clone(from), old.as_bytes().into()));
        if self.kind == OpKind::Exchange || node.kind == FileKind::Directory {
            return Ok(());
        }
        let marks = self.ext.marks;
        let renaming = Renaming {
            from: from.ino,
            old: marks.of_old(old.as_bytes()),
            to: to.ino,
            new: marks.of_new(new.as_bytes()),
        };
        node.state.lock().inode.renaming = Some(renaming);
        self.moving = Some(Arc::clone(node));
        Ok(())
    }

    fn name_add(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()> {
        self.touch(dir)?;
        self.touch_named(to.node)?;
        let needs = self.entry_needs(dir, to.node, name)?;
        let level = self.insert(dir, name, to.node.ino, to.kind, needs)?;
        self.named(dir, to.node, name, level);
        Ok(())
    }

    fn name_point(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()> {
        self.touch(dir)?;
        self.touch_named(to.node)?;
        let dots = name.as_bytes() == b"..";
        let exchanging = self.kind == OpKind::Exchange && !dots;
        let was = self.ext.find_name(dir, name)?.ok_or(Error::Posix(libc::ENOENT))?.ino;
        if !dots {
            self.touch_named(&*self.ext.incore(was)?)?;
        }
        // A directory moved over another has two names for a while: recovery that takes the new one
        // needs to know which directory had it before.
        let over_directory = to.kind == FileKind::Directory && !dots;
        // A transaction has all of it or nothing.
        if (exchanging || over_directory) && self.temporary.is_none() && !self.ext.meta.has_journal() {
            self.keep_reachable(was, dir, name, to.node.ino)?;
        }
        let ends = self.ext.live(was).filter(|_| !dots).map(|node| (self.end_of_name(&node, exchanging), node));
        let needs = self.entry_needs(dir, to.node, name)?;
        let needs = ends.as_ref().map_or(needs, |(end, _)| needs.max(end.needs));
        // Of an exchange recovery puts a type right that came later than the inode.
        let level = match self.ext.point_name(dir, name, to.node.ino, to.kind, needs, exchanging)? {
            Some(level) => level,
            // Inode number and type lie in two sectors (a foreign block): the old entry goes, then a new one comes.
            None => {
                let removed = self.ext.remove_name(dir, name, needs, true)?;
                self.insert(dir, name, to.node.ino, to.kind, needs.max(removed))?
            }
        };
        if let Some((end, was)) = ends {
            self.left(dir, end, level);
            self.unnamed(&was, level);
        }
        self.named(dir, to.node, name, level);
        Ok(())
    }

    fn name_remove(&mut self, dir: &Self::Node, name: &Name, was: &Self::Node) -> Result<()> {
        self.touch(dir)?;
        self.touch_named(was)?;
        // From here on `..` shows which of the two names is the new one; of two in one directory it
        // cannot.
        let beside = self.temporary.as_ref().is_some_and(|temporary| temporary.of == dir.ino);
        if !beside {
            self.drop_temporary()?;
        }
        let end = self.end_of_name(was, self.is_rename());
        let level = self.ext.remove_name(dir, name, self.ordered.max(end.needs), end.awaited)?;
        // A directory with two names is not sound: changes that rely on the new one wait for the
        // old one to be removed.
        if self.is_rename() && was.kind == FileKind::Directory {
            self.ext.names_level.fetch_max(level.0, Ordering::Relaxed);
        }
        self.left(dir, end, level);
        self.unnamed(was, level);
        if self.is_rename() {
            self.ordered = self.ordered.max(level);
        }
        self.drop_temporary()
    }

    fn xattr_set(&mut self, node: &Self::Node, key: &XattrKey, value: Option<&[u8]>, mode: SetMode) -> Result<()> {
        self.touch(node)?;
        let level = self.ext.change_attribute(node, key, value, mode, self.admission)?;
        self.reached(level);
        Ok(())
    }

    fn place(&mut self, file: &Self::Node, at: LbnRange, to: BlockRun, written: Epoch) -> Result<()> {
        self.touch(file)?;
        let ext = self.ext;
        let group = ext.geo.group_of_block(BlockNo(to.start.0)).unwrap_or(file.at.group);
        let goal = to.end().0;
        ext.data_epoch.fetch_max(written.0, Ordering::Relaxed);
        let level = ext.set_pointers(file, at, to, Some(written), |place| {
            let goal = if ext.geo.group_of_block(BlockNo(goal)) == Some(group) { goal } else { to.start.0 };
            match place {
                MapPlace::Zone => ext.allocate(|draft| ffs::meta_block(draft, file.at.group)),
                MapPlace::Data => ext.allocate(|draft| ffs::map_block(draft, goal)),
            }
        });
        let level = match level {
            Ok(level) => level,
            Err(error) => {
                // Map blocks that were made on the way to the first block stay, and count as the file's.
                ext.store(file)?;
                return Err(error);
            }
        };
        ext.alloc.note_arrived(to);
        if ext.meta.has_journal() && matches!(file.state.lock().life, Life::Orphan(_)) {
            // Of an inode that is being freed no attributes are told any more; its map joins the transaction of the
            // bitmap all the same, or a crash would leave the blocks used by no file.
            ext.store(file).map_err(|error| ext.half_mapped(file, true, error))?;
        }
        ext.maps_level.fetch_max(level.0, Ordering::Relaxed);
        self.reached(level);
        Ok(())
    }

    fn preallocate(&mut self, file: &Self::Node, range: LbnRange) -> Result<u32> {
        self.touch(file)?;
        let mut at = range.start;
        let allocated = self.allocate_holes(file, range, &mut at);
        // Also after an error: nodes of the map may have changed.
        let level = self.ext.store(file)?;
        self.reached(level);
        allocated?;
        Ok((at.0 - range.start.0) as u32)
    }

    fn unmap(&mut self, file: &Self::Node, from: Lbn, to: Option<Lbn>, at_most: u32, orphan: bool) -> Result<Progress> {
        self.touch(file)?;
        self.ext.drop_early(file, from, to)?;
        let end = to.map_or(u64::MAX, |to| to.0);
        let progress = self.ext.clear_pointers(file, from.0, end, at_most, orphan)?;
        if self.ext.meta.has_journal() && to.is_none() {
            self.note_truncation(file, progress)?;
        }
        let level = self.ext.slot_pending(file)?;
        self.reached(level);
        Ok(progress)
    }

    fn end(mut self) -> CommitPoint {
        if let Err(error) = self.drop_temporary() {
            self.ext.health.fail(format!("removing an exchange's temporary name: {error}"));
        }
        if let Err(error) = self.store_links() {
            self.ext.health.fail(format!("storing link counts after a rename: {error}"));
        }
        CommitPoint(self.seal.0)
    }
}

impl Drop for ExtOp<'_> {
    /// Takes back, after a failure in the middle, links that were counted for names that were not added. After a panic
    /// nothing of the op is written, and its parts are left as they are.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.ext.health.fail("a panic in the middle of an op, which is a defect of moafs");
        }
        let _ = self.drop_temporary();
        self.forget_move();
        for node in std::mem::take(&mut self.linked_twice) {
            node.state.lock().names_coming -= 1;
            // Without that the disk shows a link too many, which is a leak at most.
            let _ = self.ext.store(&node);
        }
    }
}

impl ExtOp<'_> {
    /// Maps holes of `range` from `at` on to blocks that stay unwritten, and moves `at` behind them.
    fn allocate_holes(&mut self, file: &Arc<Incore>, range: LbnRange, at: &mut Lbn) -> Result<()> {
        let ext = self.ext;
        for _ in 0..PREALLOCATED_RUNS_MAX {
            let left = (range.end().0 - at.0) as u32;
            if left == 0 {
                break;
            }
            let passed = match ext.map_run(file, *at, left)? {
                Mapping::Hole { len } => {
                    let room = u32::try_from(self.admission.blocks()).unwrap_or(u32::MAX);
                    let hole = LbnRange { start: *at, len: len.clamp(1, left).min(room) };
                    if hole.len == 0 {
                        break;
                    }
                    let (run, _) = ext.allocate(|draft| ffs::place_early(draft, file, ext, hole))?;
                    self.admission.spend(run.len.into());
                    ext.set_unwritten(file, *at, run)?;
                    run.len
                }
                mapped => mapped.len().clamp(1, left),
            };
            *at = *at + u64::from(passed);
        }
        Ok(())
    }

    /// Puts an inode without a name on the orphan list of a volume with a journal.
    fn join_orphans(&mut self, node: &Arc<Incore>) -> Result<()> {
        node.state.lock().life = Life::Orphan(Level::NONE);
        let level = self.ext.add_orphan(node)?;
        self.reached(level);
        Ok(())
    }

    /// Keeps a file on the orphan list while blocks beyond its end are left to be freed.
    fn note_truncation(&mut self, file: &Arc<Incore>, progress: Progress) -> Result<()> {
        let (links, is_listed) = {
            let state = file.state.lock();
            (state.inode.links, state.is_listed)
        };
        match progress {
            // A file without a name stays until it is freed.
            _ if links == 0 => Ok(()),
            Progress::More => self.ext.add_orphan(file).map(drop),
            Progress::Done if is_listed => {
                self.ext.remove_orphan(file, 0)?;
                self.ext.store(file).map(drop)
            }
            Progress::Done => Ok(()),
        }
    }

    /// Returns the size that the disk may show: with a journal, a transaction that maps a block beyond the file's end
    /// moves the end behind it.
    fn size_on_disk(&self, node: &Incore, attr: &Attr, disk_size: u64) -> u64 {
        if !self.ext.meta.has_journal() {
            return disk_size;
        }
        let (mapped_end, block) = (node.state.lock().mapped_end, u64::from(self.ext.geo.block_size));
        // Within its last block the file grows only when the device has the bytes.
        if mapped_end <= disk_size.div_ceil(block) {
            return disk_size;
        }
        disk_size.max(mapped_end.saturating_mul(block).min(attr.size))
    }

    /// Returns true if an op stores a smaller size of a file on a volume with a journal, and leaves the blocks beyond
    /// it to a later one: after a crash the orphan list tells of them.
    fn leaves_overhang(&self, node: &Incore, attr: &Attr, disk_size: u64) -> bool {
        if !self.ext.meta.has_journal() || attr.kind != FileKind::Regular || self.kind == OpKind::Unmap {
            return false;
        }
        let state = node.state.lock();
        let end = disk_size.div_ceil(self.ext.geo.block_size.into());
        attr.nlink > 0 && disk_size < state.inode.size && end < state.mapped_end
    }

    /// Stores an inode after the names that the op has changed, where their order matters.
    fn store_ordered(&mut self, node: &Incore) -> Result<()> {
        if self.kind == OpKind::Exchange {
            self.drop_temporary_before(node)?;
        }
        let level = self.ext.store_with(node, self.ordered, |_, _| {})?;
        self.reached(level);
        Ok(())
    }

    /// Removes the temporary name, unless `node` is the directory that holds it: the extra link of
    /// an exchange may go only after that name.
    fn drop_temporary_before(&mut self, node: &Incore) -> Result<()> {
        let holds = self.temporary.as_ref().is_some_and(|temporary| temporary.home.ino != node.ino);
        if holds { self.drop_temporary() } else { Ok(()) }
    }
}

impl Ext {
    /// Returns the attributes that vfs keeps. The journal and the orphan file are shown as files that no program may
    /// change.
    pub(super) fn attr(&self, node: &Incore) -> Attr {
        let mut attr = attr_of(&node.inode(), node.kind);
        if self.own_files.contains(&node.ino) {
            attr.flags |= InodeFlags::IMMUTABLE.bits();
        }
        attr
    }

    /// Returns the directory for temporary names of exchanges: lost+found has room without growing.
    pub(super) fn exchange_home(&self) -> Result<Arc<Incore>> {
        let root = self.incore(InodeNo::ROOT)?;
        let name = Name::new(b"lost+found").expect("a legal name");
        let found = match self.find_name(&root, name)? {
            Some(found) => self.incore(found.ino)?,
            None => return Ok(root),
        };
        Ok(if found.kind == FileKind::Directory { found } else { root })
    }

    /// Frees some of a deleted inode's blocks.
    pub(super) fn clear_pointers_of(&self, node: &Incore) -> Result<Progress> {
        self.clear_pointers(node, 0, u64::MAX, u32::MAX, true)
    }
}
