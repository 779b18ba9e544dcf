//! Pass 2: directory blocks, their records and entries; the number of names of each inode.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};

use moafs_disk::Buf;
use moafs_vfs::types::FileKind;

use super::checker::Checker;
use super::error::CheckError;
use super::issue::Issue;
use super::scan::Blocks;
use crate::format::dir::{self, DirEntry, Form};
use crate::format::inode::{InodeFlags, entry_type, kind_of_entry_type};
use crate::format::{BlockNo, InodeNo, Sealed, Structure, put_u32};

/// Directories between two reports of progress.
const TELL_EVERY: usize = 256;

/// The block and offset of each name of a directory, by its hash: names of one hash are compared at
/// their places.
type Names = HashMap<u64, (BlockNo, usize)>;

/// The result of the check of an entry.
enum Fate {
    Keep,
    /// The name is removed; its record stays unused.
    Clear,
}

impl Checker<'_> {
    pub(super) fn pass2(&mut self, tell: &mut dyn FnMut(u8, u64, u64)) -> Result<(), CheckError> {
        let directories: Vec<InodeNo> = self.dirs.keys().map(|ino| InodeNo(*ino)).collect();
        let total = directories.len() as u64;
        for (done, directory) in directories.into_iter().enumerate() {
            if done % TELL_EVERY == 0 {
                tell(2, done as u64, total);
            }
            self.check_entries_of(directory)?;
        }
        tell(2, total, total);
        Ok(())
    }

    fn check_entries_of(&mut self, directory: InodeNo) -> Result<(), CheckError> {
        let blocks = self.dirs[&directory.0].blocks.clone();
        let (_, inode) = self.read_inode(directory)?;
        let (owner, indexed) = (inode.owner(directory), inode.flags.contains(InodeFlags::INDEX));
        let mut names = Names::new();
        for (lbn, block) in blocks {
            let before = self.volume.read(block)?;
            let what = dir::sealed(&before, lbn, indexed, owner);
            let mut contents = Buf::copy_of(&before);
            // A block that was cut gets a new checksum with the rest.
            let reseal = self.check_records(directory, lbn, &mut contents)
                || self.check_block_sum(directory, lbn, what, &mut contents);
            if lbn == 0 {
                self.check_dots(directory, block, &mut contents)?;
            }
            self.check_names(directory, lbn, block, &mut contents, &mut names)?;
            if reseal || *contents != *before {
                let what = dir::sealed(&contents, lbn, indexed, owner);
                self.volume.write_sealed(block, what, contents);
            }
        }
        Ok(())
    }

    /// Makes the records fill the block without gaps: everything behind a damaged record is given up. Returns true if
    /// that was done.
    fn check_records(&mut self, directory: InodeNo, lbn: u64, contents: &mut [u8]) -> bool {
        let form = Form::of(&self.geo);
        let Some(bad) = dir::records(contents, form).find_map(Result::err) else { return false };
        let issue = Issue::RecordDamaged { directory, lbn, offset: bad.offset, problem: bad.to_string() };
        let fix = self.log.found(issue);
        if fix {
            dir::cut_records(contents, form);
        }
        fix
    }

    /// Checks the checksum of a block, and that a block of names has a place for it. Returns true if a repair is to
    /// make it.
    fn check_block_sum(&mut self, directory: InodeNo, lbn: u64, what: Sealed, contents: &mut [u8]) -> bool {
        let form = Form::of(&self.geo);
        let is_leaf = matches!(what, Sealed::Leaf(_));
        let is_whole = dir::records(contents, form).all(|record| record.is_ok());
        if form.has_tail && is_leaf && is_whole && !dir::has_tail(contents, form) {
            let fix = self.log.found(Issue::LeafTail { directory, lbn });
            if fix {
                dir::make_tail(contents, form);
            }
            return fix;
        }
        let Err(problem) = self.geo.checksums.verify(what, contents) else { return false };
        let structure = if is_leaf {
            Structure::Directory { inode: directory, lbn }
        } else {
            Structure::Index { inode: directory, lbn }
        };
        self.log.found(Issue::Checksum { structure, problem })
    }

    /// Checks `.` and `..` at the start of the first block.
    fn check_dots(&mut self, directory: InodeNo, block: BlockNo, contents: &mut [u8]) -> Result<(), CheckError> {
        let form = Form::of(&self.geo);
        let (dot, dot_dot) = first_two(contents, form);
        let dot_missing = dot.is_none();
        if dot_missing && self.log.found(Issue::DotMissing { directory }) {
            self.rebuild_first(directory, contents, dot_dot.map(|(ino, _)| ino))?;
        } else if dot_dot.is_none() && !dot_missing && self.log.found(Issue::DotDotMissing { directory }) {
            self.rebuild_first(directory, contents, None)?;
        }
        let (dot, dot_dot) = first_two(contents, form);
        let elsewhere = dot.filter(|stored| *stored != directory);
        if elsewhere.is_some_and(|stored| self.log.found(Issue::DotWrong { directory, stored })) {
            put_u32(contents, 0, directory.0);
        }
        // Old drivers look for the name's end as a NUL.
        let unpadded = (dot.is_some() && contents[9] != 0) || (dot_dot.is_some() && contents[22] != 0);
        if unpadded && self.log.found(Issue::DotPadding { directory }) {
            contents[9..12].fill(0);
            if dot_dot.is_some() {
                contents[22..24].fill(0);
            }
        }
        if let Some((stored, offset)) = dot_dot {
            let info = self.dirs.get_mut(&directory.0).expect("pass 1 found it");
            info.dot_dot = Some((stored, block, offset));
        }
        Ok(())
    }

    /// Writes the first block anew, with as many of its entries as find a place. Pass 4 finds the
    /// inodes of the others again and gives them a name in lost+found.
    fn rebuild_first(
        &mut self,
        directory: InodeNo,
        contents: &mut [u8],
        parent: Option<InodeNo>,
    ) -> Result<(), CheckError> {
        debug_assert!(!self.read_inode(directory)?.1.flags.contains(InodeFlags::INDEX), "pass 1 gave its index up");
        let form = Form::of(&self.geo);
        let before = contents.to_vec();
        let parent = parent.filter(|parent| self.is_dir(*parent)).unwrap_or(InodeNo::ROOT);
        dir::format_first(contents, form, directory, parent);
        for entry in dir::records(&before, form).map_while(Result::ok).filter(DirEntry::is_used) {
            let legal = dir::check_contents(&entry, form).is_ok() && !matches!(entry.name, b"." | b"..");
            let kind = kind_of_entry_type(self.state(entry.inode).type_byte);
            if let (true, Some(kind)) = (legal, kind) {
                dir::insert(contents, form, entry.name, entry.inode, kind);
            }
        }
        Ok(())
    }

    fn check_names(
        &mut self,
        directory: InodeNo,
        lbn: u64,
        block: BlockNo,
        contents: &mut [u8],
        names: &mut Names,
    ) -> Result<(), CheckError> {
        let form = Form::of(&self.geo);
        let mut next = 0;
        // The loop may change the block, but its records stay at their offsets.
        while next < contents.len() {
            let Some(Ok(entry)) = dir::record_at(contents, form, next) else { break };
            let (offset, rec_len, inode) = (entry.offset, entry.rec_len, entry.inode);
            next += rec_len;
            if inode.0 == 0 {
                continue;
            }
            let is_dot = lbn == 0 && is_dot_at(&entry);
            let fate = if is_dot { Fate::Keep } else { self.judge(directory, lbn, &entry)? };
            let duplicate = matches!(fate, Fate::Keep)
                && self.is_duplicate(&entry, (block, offset), contents, names)?
                && self.log.found(Issue::EntryDuplicate { directory, name: text(entry.name) });
            if matches!(fate, Fate::Clear) || duplicate {
                put_u32(contents, offset, 0);
                continue;
            }
            self.check_type(directory, offset, contents);
            self.count(directory, inode, is_dot);
        }
        Ok(())
    }

    fn judge(&mut self, directory: InodeNo, lbn: u64, entry: &DirEntry<'_>) -> Result<Fate, CheckError> {
        let (form, inode) = (Form::of(&self.geo), entry.inode);
        let name = || text(entry.name);
        let issue = if let Err(problem) = dir::check_contents(entry, form) {
            Issue::EntryIllegal { directory, lbn, problem }
        } else if matches!(entry.name, b"." | b"..") {
            Issue::EntryDotAgain { directory, name: name() }
        } else if inode.0 < self.geo.first_ino || self.orphan_file == Some(inode) {
            Issue::EntryReserved { directory, name: name(), inode }
        } else if self.state(inode).type_byte == 0 && self.is_hidden(inode)? {
            let group = self.geo.locate_inode(inode).expect("the entry is legal").group;
            let issue = Issue::HiddenInode { group, directory, name: name(), inode };
            if self.log.found(issue.clone()) {
                self.uncover(group)?;
            } else {
                self.hidden.entry(group).or_insert(issue);
            }
            return Ok(Fate::Keep);
        } else if self.state(inode).type_byte == 0 {
            Issue::EntryUnused { directory, name: name(), inode }
        } else if self.is_dir(inode) && self.dirs.get(&inode.0).is_some_and(|info| info.parent.is_some()) {
            Issue::EntryDirectoryAgain { directory, name: name(), inode }
        } else {
            return Ok(Fate::Keep);
        };
        Ok(if self.log.found(issue) { Fate::Clear } else { Fate::Keep })
    }

    /// Returns true if the directory has had this name before.
    fn is_duplicate(
        &self,
        entry: &DirEntry<'_>,
        place: (BlockNo, usize),
        contents: &[u8],
        names: &mut Names,
    ) -> Result<bool, CheckError> {
        let mut hasher = DefaultHasher::new();
        hasher.write(entry.name);
        let Some((block, offset)) = names.insert(hasher.finish(), place) else { return Ok(false) };
        let form = Form::of(&self.geo);
        let same = |block: &[u8]| match dir::record_at(block, form, offset) {
            Some(Ok(earlier)) => earlier.is_used() && earlier.name == entry.name,
            _ => false,
        };
        if block == place.0 { Ok(same(contents)) } else { Ok(same(&self.volume.read(block)?)) }
    }

    fn check_type(&mut self, directory: InodeNo, offset: usize, contents: &mut [u8]) {
        let form = Form::of(&self.geo);
        let Some(Ok(entry)) = dir::record_at(contents, form, offset) else { return };
        let should = match entry.name {
            // Both names always lead to a directory.
            b"." | b".." => entry_type(FileKind::Directory),
            _ => self.state(entry.inode).type_byte,
        };
        let stored = entry.type_byte;
        if !self.geo.filetype || should == 0 || stored == should {
            return;
        }
        let issue = Issue::EntryType { directory, name: text(entry.name), stored, should };
        if self.log.found(issue) {
            contents[offset + 7] = should;
        }
    }

    fn count(&mut self, directory: InodeNo, inode: InodeNo, is_dot: bool) {
        if self.state(inode).type_byte == 0 {
            return;
        }
        let state = self.state_mut(inode);
        state.found = state.found.saturating_add(1);
        if is_dot {
            return;
        }
        if let Some(info) = self.dirs.get_mut(&inode.0) {
            info.parent.get_or_insert(directory);
        }
    }
}

/// Returns true for `.` and `..` where they belong.
fn is_dot_at(entry: &DirEntry<'_>) -> bool {
    (entry.offset == 0 && entry.name == b".") || (entry.offset == 12 && entry.name == b"..")
}

/// Returns the inode that `.` names, and the inode and the offset of `..`, if they are where they
/// belong.
fn first_two(contents: &[u8], form: Form) -> (Option<InodeNo>, Option<(InodeNo, usize)>) {
    let mut records = dir::records(contents, form).map_while(Result::ok);
    let dot = records.next().filter(|e| e.is_used() && e.name == b"." && e.rec_len == 12);
    let dot_dot = records.next().filter(|e| e.is_used() && e.name == b".." && e.offset == 12);
    let dot_dot = dot_dot.filter(|_| dot.is_some());
    (dot.map(|e| e.inode), dot_dot.map(|e| (e.inode, e.offset)))
}

/// Returns a name as text for messages.
pub(super) fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
