//! The layer of inodes: those in memory, and the lists of those that are dirty.

use std::sync::Arc;

use moafs_runtime::leaf::Mutex;

use crate::dirty::Lists;
use crate::format::Format;
use crate::inode::{Inode, KnownSectors, Shared, State, Table, Unput};
use crate::layer::layer;
use crate::pages::Pages;
use crate::plan::{DirtyFile, DirtyView};
use crate::types::{Attr, FileKind, Ino, Lbn, LbnRange};
use crate::volume::Volume;

/// The most ranges that one view of a file lists: the rest follows when these have been written.
const RANGES_MAX: usize = 4096;

/// The inodes in memory, and what is dirty of them.
pub(crate) struct InodeTable<F: Format> {
    volume: Volume<F>,
    pub(crate) table: Table<F::Node>,
    pub(crate) dirty: Mutex<Lists<F::Node>>,
}

layer!(InodeTable over volume: Volume);

impl<F: Format> InodeTable<F> {
    pub(crate) fn new(volume: Volume<F>) -> InodeTable<F> {
        InodeTable { volume, table: Table::new(), dirty: Mutex::new(Lists::new()) }
    }

    /// Puts an inode that the format has loaded into the table.
    pub(crate) fn insert_loaded(&self, ino: Ino, attr: Attr, node: F::Node) -> Shared<F> {
        let inode = Inode::new(&self.rt, ino, self.shape.root, attr, node);
        // It may have been in memory before, and been evicted: the front may still keep what it was told then.
        let known = match inode.kind {
            FileKind::Regular => KnownSectors::Told(self.format.stat_sectors(&inode.node)),
            _ => KnownSectors::None,
        };
        {
            let mut state = inode.state.lock();
            state.may_overhang = !self.shape.frees_overhang;
            state.known_sectors = known;
        }
        self.table.insert_loaded(Arc::new(inode))
    }

    /// Updates the dirty lists after a write to `inode`, whose `pages` are still locked: a dirty page that no plan
    /// finds would look like a policy that plans nothing.
    pub(crate) fn list_dirty(&self, inode: &Shared<F>, pages: &Pages) {
        if pages.is_settled() {
            return;
        }
        let state = inode.state.lock();
        let blocks = state.attr.size.div_ceil(self.block_bytes());
        self.dirty.lock().note_dirty(inode, state.home, blocks, self.rt.now());
    }

    /// Takes `inode` off the dirty lists if nothing of it is dirty or in flight.
    pub(crate) fn unlist_if_clean(&self, inode: &Shared<F>) {
        let pages = inode.pages.lock();
        if pages.is_settled() {
            self.dirty.lock().note_clean(inode.ino);
        }
    }

    /// Notes the directory that leads to an inode.
    pub(crate) fn set_home(&self, inode: &Shared<F>, home: Ino) {
        let mut state = inode.state.lock();
        if state.home == home {
            return;
        }
        state.home = home;
        if inode.kind == FileKind::Regular {
            self.dirty.lock().rehome(inode.ino, home);
        }
    }

    /// Notes that attributes changed without telling the format yet.
    pub(crate) fn unput(&self, inode: &Shared<F>, what: Unput, change: impl FnOnce(&mut Attr)) {
        let mut state = inode.state.lock();
        change(&mut state.attr);
        state.note_change(what);
        self.list_unput(&mut state, inode);
    }

    /// Puts an inode on the list of those whose attributes the format does not know.
    pub(crate) fn list_unput(&self, state: &mut State, inode: &Shared<F>) {
        if !state.unput_listed && !state.freed {
            state.unput_listed = true;
            self.dirty.lock().note_unput(inode);
        }
    }

    /// Returns true for a file that no name and no hold leads to any more: its data need not be written.
    pub(crate) fn is_abandoned(&self, inode: &Shared<F>) -> bool {
        let unreachable = {
            let state = inode.state.lock();
            state.freed || (state.attr.nlink == 0 && !state.nameless)
        };
        unreachable && !self.table.is_held(inode.ino)
    }

    /// Returns the dirty lists as a placement policy sees them.
    pub(crate) fn dirty_view(&self) -> &dyn DirtyView<F::Node> {
        self
    }
}

impl<F: Format> DirtyView<F::Node> for InodeTable<F> {
    fn file(&self, ino: Ino, around: Option<(Lbn, u32)>) -> Option<DirtyFile<F::Node>> {
        let (inode, home) = self.dirty.lock().get(ino)?;
        if self.is_abandoned(&inode) {
            return None;
        }
        let pages = inode.pages.lock();
        let blocks = inode.state.lock().attr.size.div_ceil(self.block_bytes());
        let (from, to) = match around {
            Some((at, max)) => (at.saturating_sub(max.into()), at.saturating_add(max.into())),
            None => (Lbn(0), Lbn::MAX),
        };
        let range = |(start, end)| LbnRange { start, len: u32::try_from(end - start).unwrap_or(u32::MAX) };
        let dirty: Vec<LbnRange> = pages.ready().within(from, to).take(RANGES_MAX).map(range).collect();
        if dirty.is_empty() {
            return None;
        }
        let whole = pages.len() as u64 >= blocks && pages.are_all_data();
        Some(DirtyFile { ino, home, node: Arc::clone(&inode.node), blocks, whole, dirty })
    }

    fn small_files(&self, home: Ino, blocks: u32) -> Vec<Ino> {
        self.dirty.lock().small_files(home, blocks.into())
    }

    fn small_counts(&self, home: Ino) -> Vec<u32> {
        self.dirty.lock().small_counts(home)
    }
}
