//! Before pass 2: exchanges of names, and replacements of directories, that a crash of moafs interrupted.
//!
//! The temporary name of the inode that lost its name first tells of it ([`crate::format::exchange`]), and the rules of
//! a mount apply: what the two names lead to says how far the exchange came, and it is completed or taken back. Only
//! directories that the root leads to count, and temporary names of the mount that crashed. A temporary name that is
//! the inode's only one stays. Pass 2 then sees each directory with one name; counts of links and `..` follow in later
//! passes.
//!
//! Without repairs the names are ended in memory: what the passes find otherwise is then what a repair leaves.

use std::collections::{BTreeMap, BTreeSet};

use super::checker::Checker;
use super::dirs::text;
use super::error::CheckError;
use super::issue::Issue;
use crate::format::exchange::{Exchange, NameAt};
use crate::format::renaming::Marks;
use crate::format::{BlockNo, InodeNo, put_u32};

/// The most exchanges that are ended: what a sweep without repairs changes stays in memory.
const EXCHANGES_MAX: usize = 64;

/// An entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EntryAt {
    directory: InodeNo,
    block: (u64, BlockNo),
    offset: usize,
    leads_to: InodeNo,
}

/// A temporary name, and the exchange that it tells of.
struct Interrupted {
    exchange: Exchange,
    name: Vec<u8>,
    at: EntryAt,
}

impl Checker<'_> {
    pub(super) fn end_exchanges(&mut self) -> Result<(), CheckError> {
        let Some(marks) = self.marks else { return Ok(()) };
        let interrupted = self.interrupted_exchanges(marks)?;
        if interrupted.is_empty() {
            return Ok(());
        }
        let (reached, mut names) = self.read_names(&interrupted)?;
        for Interrupted { exchange, name, at } in interrupted {
            let Some(changes) = self.changes_to_end(&exchange, &reached, marks)? else { continue };
            let (inode, waiting) = (exchange.waiting, names.entry(exchange.waiting).or_default());
            *waiting += changes.iter().filter(|(_, to)| *to == inode).count();
            // The temporary one is among them.
            if *waiting <= 1 {
                continue;
            }
            *waiting -= 1;
            self.log.found(Issue::ExchangeInterrupted { inode, directory: at.directory, name: text(&name) });
            for (entry, to) in changes {
                self.point_entry(entry, to)?;
            }
            self.change_dir_block(at.directory, at.block, |bytes| put_u32(bytes, at.offset, 0))?;
        }
        Ok(())
    }

    /// Returns the temporary names in lost+found; in the root if there is none.
    fn interrupted_exchanges(&self, marks: Marks) -> Result<Vec<Interrupted>, CheckError> {
        let mut directory = InodeNo::ROOT;
        self.each_name(InodeNo::ROOT, |_, entry| {
            if entry.name == b"lost+found" && self.is_dir(entry.inode) {
                directory = entry.inode;
            }
        })?;
        let mut found = Vec::new();
        self.each_name(directory, |block, entry| {
            let exchange = Exchange::parse(entry.name, marks);
            if let Some(exchange) = exchange.filter(|exchange| exchange.waiting == entry.inode) {
                let at = EntryAt { directory, block, offset: entry.offset, leads_to: entry.inode };
                found.push(Interrupted { exchange, name: entry.name.to_vec(), at });
            }
        })?;
        found.truncate(EXCHANGES_MAX);
        Ok(found)
    }

    /// Reads all names below the root. Returns the directories, and how many names each waiting inode has.
    fn read_names(
        &self,
        interrupted: &[Interrupted],
    ) -> Result<(BTreeSet<InodeNo>, BTreeMap<InodeNo, usize>), CheckError> {
        let mut names: BTreeMap<_, _> = interrupted.iter().map(|told| (told.exchange.waiting, 0)).collect();
        let (mut reached, mut todo) = (BTreeSet::from([InodeNo::ROOT]), vec![InodeNo::ROOT]);
        while let Some(directory) = todo.pop() {
            self.each_name(directory, |_, entry| {
                if let Some(count) = names.get_mut(&entry.inode) {
                    *count += 1;
                }
                if self.dirs.contains_key(&entry.inode.0) && reached.insert(entry.inode) {
                    todo.push(entry.inode);
                }
            })?;
        }
        Ok((reached, names))
    }

    /// Returns the entries that change when an exchange ends, and what they lead to then; `None` if the temporary name
    /// has to stay.
    fn changes_to_end(
        &self,
        exchange: &Exchange,
        reached: &BTreeSet<InodeNo>,
        marks: Marks,
    ) -> Result<Option<Vec<(EntryAt, InodeNo)>>, CheckError> {
        let &Exchange { waiting, taker, .. } = exchange;
        if self.state(waiting).type_byte == 0 {
            return Ok(None);
        }
        let find = |at: NameAt| if reached.contains(&at.dir) { self.find_entry(at, exchange, marks) } else { Ok(None) };
        let (taken, left) = (find(exchange.taken)?, find(exchange.left)?);
        let leads_to = |entry: Option<EntryAt>| entry.map(|entry| entry.leads_to);
        let gets = match (leads_to(taken), leads_to(left)) {
            (Some(at), _) if at == waiting => None,
            (_, at) if at != Some(taker) => None,
            (Some(_), _) => taken,
            // Of a directory no later op changes the name: the volume is not as moafs leaves it.
            (None, _) if self.is_dir(taker) => return Ok(None),
            (None, _) => left,
        };
        Ok(Some(gets.map(|entry| (entry, waiting)).into_iter().collect()))
    }

    /// Finds a name of an exchange that leads to one of its inodes.
    fn find_entry(&self, at: NameAt, exchange: &Exchange, marks: Marks) -> Result<Option<EntryAt>, CheckError> {
        let mut found = None;
        self.each_name(at.dir, |block, entry| {
            let is_it = [exchange.waiting, exchange.taker].contains(&entry.inode) && marks.hash(entry.name) == at.hash;
            if is_it && found.is_none() {
                found = Some(EntryAt { directory: at.dir, block, offset: entry.offset, leads_to: entry.inode });
            }
        })?;
        Ok(found)
    }

    fn point_entry(&self, entry: EntryAt, to: InodeNo) -> Result<(), CheckError> {
        let (filetype, type_byte) = (self.geo.filetype, self.state(to).type_byte);
        self.change_dir_block(entry.directory, entry.block, |bytes| {
            put_u32(bytes, entry.offset, to.0);
            if filetype {
                bytes[entry.offset + 7] = type_byte;
            }
        })
    }
}
