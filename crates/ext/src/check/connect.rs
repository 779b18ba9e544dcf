//! Passes 3 and 4: everything in use has a name in a directory that the root leads to, and the
//! number of names is the link count.

use std::collections::BTreeSet;

use moafs_disk::Buf;
use moafs_vfs::types::FileKind;

use super::checker::{Checker, DirInfo, InodeState};
use super::error::CheckError;
use super::inodes::storable_links;
use super::issue::Issue;
use super::mapped::Run;
use super::scan::Blocks;
use super::tree::has_tree;
use crate::format::dir::{self, Form};
use crate::format::inode::{EXTRA_BYTES, InodeFlags, entry_type, kind_of_entry_type};
use crate::format::map::DIRECT;
use crate::format::superblock::RoCompat;
use crate::format::{BlockNo, Inode, InodeNo, Sealed, put_u32, u32_at};

impl Checker<'_> {
    pub(super) fn pass3(&mut self, tell: &mut dyn FnMut(u8, u64, u64)) -> Result<(), CheckError> {
        let directories: Vec<InodeNo> = self.dirs.keys().map(|ino| InodeNo(*ino)).collect();
        tell(3, 0, directories.len() as u64);
        let mut connected = BTreeSet::from([InodeNo::ROOT]);
        for directory in &directories {
            self.connect(*directory, &mut connected)?;
        }
        for directory in &directories {
            self.check_dot_dot(*directory)?;
        }
        tell(3, directories.len() as u64, directories.len() as u64);
        Ok(())
    }

    /// Climbs from a directory to the root; where the way ends or runs in a circle, the directory
    /// there gets a name in lost+found.
    fn connect(&mut self, directory: InodeNo, connected: &mut BTreeSet<InodeNo>) -> Result<(), CheckError> {
        let mut path = Vec::new();
        let mut on_path = BTreeSet::new();
        let mut at = directory;
        while !connected.contains(&at) {
            let parent = self.dirs.get(&at.0).and_then(|info| info.parent);
            let circle = !on_path.insert(at);
            if circle || parent.is_none() {
                self.reconnect(at, parent)?;
                break;
            }
            path.push(at);
            at = parent.unwrap_or(InodeNo::ROOT);
        }
        connected.insert(at);
        connected.extend(path);
        Ok(())
    }

    fn reconnect(&mut self, directory: InodeNo, old_parent: Option<InodeNo>) -> Result<(), CheckError> {
        let issue = Issue::UnconnectedDirectory { inode: directory };
        let may_fix = self.log.may_fix(&issue);
        let home = if may_fix { self.name_in_lost_found(directory, FileKind::Directory)? } else { None };
        self.log.note(issue, home.is_some());
        let Some(home) = home else { return Ok(()) };
        // The old name is part of a circle. The new one counts already.
        if let Some(parent) = old_parent {
            self.remove_names(parent, directory)?;
        }
        self.reconnected.insert(directory);
        let info = self.dirs.get_mut(&directory.0).expect("it is a directory");
        info.parent = Some(home);
        Ok(())
    }

    /// Removes the entries by which `parent` names `child`.
    fn remove_names(&mut self, parent: InodeNo, child: InodeNo) -> Result<(), CheckError> {
        let form = Form::of(&self.geo);
        let blocks = self.dirs.get(&parent.0).map(|info| info.blocks.clone()).unwrap_or_default();
        for (lbn, block) in blocks {
            let page = self.volume.read(block)?;
            let names = dir::records(&page, form).map_while(Result::ok);
            let names = names.filter(|e| e.inode == child && !matches!(e.name, b"." | b".."));
            let offsets: Vec<usize> = names.map(|entry| entry.offset).collect();
            for offset in offsets {
                self.change_dir_block(parent, (lbn, block), |bytes| put_u32(bytes, offset, 0))?;
                let state = self.state_mut(child);
                state.found = state.found.saturating_sub(1);
            }
        }
        Ok(())
    }

    fn check_dot_dot(&mut self, directory: InodeNo) -> Result<(), CheckError> {
        let Some(info) = self.dirs.get(&directory.0) else { return Ok(()) };
        let parent = if directory == InodeNo::ROOT { Some(InodeNo::ROOT) } else { info.parent };
        let (Some(parent), Some((stored, block, offset))) = (parent, info.dot_dot) else { return Ok(()) };
        if stored == parent || !self.log.found(Issue::DotDotWrong { directory, stored, parent }) {
            return Ok(());
        }
        self.change_dir_block(directory, (0, block), |bytes| put_u32(bytes, offset, parent.0))?;
        if self.state(stored).type_byte != 0 {
            let old = self.state_mut(stored);
            old.found = old.found.saturating_sub(1);
        }
        let new = self.state_mut(parent);
        new.found = new.found.saturating_add(1);
        Ok(())
    }

    /// Gives an inode the name `#number` in lost+found; returns `None` if there is no room.
    fn name_in_lost_found(&mut self, ino: InodeNo, kind: FileKind) -> Result<Option<InodeNo>, CheckError> {
        let Some(home) = self.lost_found()? else { return Ok(None) };
        let name = format!("#{ino}");
        if !self.add_entry(home, name.as_bytes(), ino, kind)? {
            return Ok(None);
        }
        let state = self.state_mut(ino);
        state.found = state.found.saturating_add(1);
        Ok(Some(home))
    }

    /// Returns /lost+found, and makes it if it is missing.
    fn lost_found(&mut self) -> Result<Option<InodeNo>, CheckError> {
        if self.lost_found.is_some() || self.lost_found_failed {
            return Ok(self.lost_found);
        }
        let form = Form::of(&self.geo);
        let blocks = self.dirs.get(&InodeNo::ROOT.0).map(|info| info.blocks.clone()).unwrap_or_default();
        for (lbn, block) in blocks {
            let page = self.volume.read(block)?;
            let Some(entry) = dir::find(&page, form, b"lost+found") else { continue };
            let (inode, offset) = (entry.inode, entry.offset);
            if self.is_dir(inode) {
                self.lost_found = Some(inode);
                return Ok(self.lost_found);
            }
            // Pass 4 finds the file again, and gives it a name in the new directory.
            if !self.log.found(Issue::LostFoundNotDirectory { inode }) {
                self.lost_found_failed = true;
                return Ok(None);
            }
            self.change_dir_block(InodeNo::ROOT, (lbn, block), |bytes| put_u32(bytes, offset, 0))?;
            let state = self.state_mut(inode);
            state.found = state.found.saturating_sub(1);
        }
        let free = if self.log.may_fix(&Issue::LostFoundMissing) { self.take_inode()? } else { None };
        let made = match free {
            Some(ino) => self.make_lost_found(ino)?,
            None => false,
        };
        self.log.note(Issue::LostFoundMissing, made);
        self.lost_found_failed = !made;
        Ok(self.lost_found)
    }

    fn make_lost_found(&mut self, ino: InodeNo) -> Result<bool, CheckError> {
        if !self.make_directory(ino, InodeNo::ROOT, 0o700)? {
            return Ok(false);
        }
        if !self.add_entry(InodeNo::ROOT, b"lost+found", ino, FileKind::Directory)? {
            return Ok(false);
        }
        let info = self.dirs.get_mut(&ino.0).expect("it was just made");
        info.parent = Some(InodeNo::ROOT);
        // "." is counted already; the name and ".." are counted with it.
        self.state_mut(ino).found = 2;
        self.state_mut(InodeNo::ROOT).found += 1;
        self.lost_found = Some(ino);
        Ok(true)
    }

    /// Makes an empty directory of one block in place of the old contents of `ino`; returns false
    /// if the volume is full.
    pub(super) fn make_directory(&mut self, ino: InodeNo, parent: InodeNo, mode: u16) -> Result<bool, CheckError> {
        let Some(block) = self.take_block() else { return Ok(false) };
        let mut contents = Buf::zeroed(self.geo.block_bytes());
        dir::format_first(&mut contents, Form::of(&self.geo), ino, parent);
        let now = self.options.now;
        let mut inode = Inode {
            mode: 0o040_000 | mode,
            links: 2,
            size: self.geo.block_size.into(),
            blocks: self.geo.sectors_per_block().into(),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: Some(now),
            extra_isize: if self.geo.inode_size > 128 { EXTRA_BYTES } else { 0 },
            ..Inode::default()
        };
        inode.begin_map(&self.geo, Some(block));
        self.volume.write_sealed(block, Sealed::Leaf(inode.owner(ino)), contents);
        let mut slot = vec![0; self.geo.inode_size as usize];
        self.write_inode(ino, &mut slot, &inode)?;
        let state = self.state_mut(ino);
        state.type_byte = entry_type(FileKind::Directory);
        state.links = 2;
        state.found = 0;
        let dot_dot = Some((parent, block, 12));
        self.dirs.insert(ino.0, DirInfo { blocks: vec![(0, block)], parent: None, dot_dot });
        Ok(true)
    }

    /// Adds an entry, and a block if the directory has no place for it; returns false if that is
    /// impossible.
    fn add_entry(&mut self, home: InodeNo, name: &[u8], ino: InodeNo, kind: FileKind) -> Result<bool, CheckError> {
        let form = Form::of(&self.geo);
        let blocks = self.dirs[&home.0].blocks.clone();
        // An index would not know the new name.
        self.drop_index(home)?;
        let leaf = Sealed::Leaf(self.read_inode(home)?.1.owner(home));
        for (_, block) in &blocks {
            let mut contents = Buf::copy_of(&self.volume.read(*block)?);
            if dir::insert(&mut contents, form, name, ino, kind).is_some() {
                self.volume.write_sealed(*block, leaf, contents);
                return Ok(true);
            }
        }
        let Some(block) = self.append_block(home, blocks.len() as u64)? else { return Ok(false) };
        let mut contents = Buf::zeroed(self.geo.block_bytes());
        dir::format_empty(&mut contents, form);
        let added = dir::insert(&mut contents, form, name, ino, kind).is_some();
        self.volume.write_sealed(block, leaf, contents);
        Ok(added)
    }

    /// Changes a block of a directory: its number there, and on the volume.
    pub(super) fn change_dir_block(
        &self,
        directory: InodeNo,
        (lbn, block): (u64, BlockNo),
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), CheckError> {
        let (_, inode) = self.read_inode(directory)?;
        let mut contents = Buf::copy_of(&self.volume.read(block)?);
        change(&mut contents);
        let what = dir::sealed(&contents, lbn, inode.flags.contains(InodeFlags::INDEX), inode.owner(directory));
        self.volume.write_sealed(block, what, contents);
        Ok(())
    }

    /// Appends a block to a directory without holes: with pointers up to a single indirect block's worth.
    fn append_block(&mut self, home: InodeNo, lbn: u64) -> Result<Option<BlockNo>, CheckError> {
        let (mut slot, mut inode) = self.read_inode(home)?;
        if has_tree(&inode, &self.geo) {
            return self.append_to_tree(home, &mut slot, inode);
        }
        if lbn >= DIRECT + u64::from(self.geo.apb) {
            return Ok(None);
        }
        let Some(block) = self.take_block() else { return Ok(None) };
        let sectors = u64::from(self.geo.sectors_per_block());
        if lbn < DIRECT {
            inode.block[lbn as usize] = block.0 as u32;
        } else {
            if inode.block[12] == 0 {
                let Some(indirect) = self.take_block() else {
                    self.release(block);
                    return Ok(None);
                };
                self.volume.write(indirect, Buf::zeroed(self.geo.block_bytes()));
                inode.block[12] = indirect.0 as u32;
                inode.blocks += sectors;
            }
            let at = 4 * (lbn - DIRECT) as usize;
            self.volume.change(BlockNo(inode.block[12].into()), |bytes| {
                debug_assert_eq!(u32_at(bytes, at), 0, "the directory has no holes");
                put_u32(bytes, at, block.0 as u32);
            })?;
        }
        inode.size += u64::from(self.geo.block_size);
        inode.blocks += sectors;
        self.write_inode(home, &mut slot, &inode)?;
        self.dirs.get_mut(&home.0).expect("it is a directory").blocks.push((lbn, block));
        Ok(Some(block))
    }

    /// Appends a block to a directory that is mapped by extents; one more may be needed for a node of the tree.
    fn append_to_tree(
        &mut self,
        home: InodeNo,
        slot: &mut [u8],
        mut inode: Inode,
    ) -> Result<Option<BlockNo>, CheckError> {
        let mut mapped = self.mapped_of(&inode)?;
        let (Some(block), Some(spare)) = (self.take_block(), self.take_block()) else { return Ok(None) };
        let (lbn, before) = (mapped.end(), mapped.blocks_used());
        mapped.push(Run::one(lbn, block));
        mapped.nodes.push(spare);
        if !self.rebuild_tree(home, &mut inode, &mut mapped)? {
            return Ok(None);
        }
        inode.size += u64::from(self.geo.block_size);
        let unit = self.block_unit(&inode);
        inode.blocks = (inode.blocks + mapped.blocks_used() * unit).saturating_sub(before * unit);
        self.write_inode(home, slot, &inode)?;
        self.dirs.get_mut(&home.0).expect("it is a directory").blocks.push((lbn, block));
        Ok(Some(block))
    }

    pub(super) fn pass4(&mut self, tell: &mut dyn FnMut(u8, u64, u64)) -> Result<(), CheckError> {
        let total = u64::from(self.geo.groups);
        tell(4, 0, total);
        // A new name for one inode changes the count of another: names first, counts afterwards.
        let is_nameless = |(ino, state): &(InodeNo, InodeState)| state.found == 0 && self.orphan_file != Some(*ino);
        let nameless: Vec<InodeNo> = self.inodes_in_use().filter(is_nameless).map(|(ino, _)| ino).collect();
        for ino in nameless {
            self.attach(ino)?;
        }
        let wrong: Vec<(InodeNo, u16, u32)> = self
            .inodes_in_use()
            .filter(|(_, state)| storable_links(state.found) != state.links && state.found != 0)
            .map(|(ino, state)| (ino, state.links, state.found))
            .collect();
        for (ino, stored, counted) in wrong {
            if stored == 1 && self.may_not_count(ino)? {
                continue;
            }
            if self.log.found(Issue::LinkCount { inode: ino, stored, counted }) {
                self.change_inode(ino, |inode| inode.links = storable_links(counted))?;
            }
        }
        tell(4, total, total);
        Ok(())
    }

    /// Returns true if a link count of 1 may mean that the directory had more subdirectories than can be counted.
    fn may_not_count(&self, ino: InodeNo) -> Result<bool, CheckError> {
        let may = self.is_dir(ino) && self.geo.ro_compat.contains(RoCompat::DIR_NLINK);
        Ok(may && self.read_inode(ino)?.1.flags.contains(InodeFlags::INDEX))
    }

    fn attach(&mut self, ino: InodeNo) -> Result<(), CheckError> {
        let (_, inode) = self.read_inode(ino)?;
        let Some(kind) = kind_of_entry_type(self.state(ino).type_byte) else { return Ok(()) };
        let empty = kind == FileKind::Regular && inode.size == 0 && inode.blocks == 0;
        if empty {
            if self.log.found(Issue::UnattachedEmpty { inode: ino }) {
                let now = self.now_secs();
                self.change_inode(ino, |inode| {
                    inode.links = 0;
                    inode.dtime = now;
                })?;
                self.state_mut(ino).type_byte = 0;
            }
        } else {
            let issue = Issue::UnattachedInode { inode: ino, size: inode.size };
            let named = self.log.may_fix(&issue) && self.name_in_lost_found(ino, kind)?.is_some();
            self.log.note(issue, named);
        }
        Ok(())
    }
}
