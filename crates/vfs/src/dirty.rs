//! The dirty lists: the files that have data that are not on the volume yet.
//!
//! Files are listed per home directory, hashed by block count (small files: co-writing looks through these);
//! by the age of their oldest dirty block (the syncer looks through these); by the last write (the first ones are
//! written when the cache needs room). Every order is a number handed out in turn, so
//! equal runs make equal decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use moafs_runtime::Time;

use crate::inode::Inode;
use crate::plan::SMALL_BLOCKS_MAX;
use crate::types::Ino;

/// A file with this many dirty bytes does not wait for its age: it is being written in one go.
pub(crate) const STREAM_BYTES: usize = 8 << 20;

struct Entry<N> {
    inode: Arc<Inode<N>>,
    home: Ino,
    blocks: u64,
    /// The number of its becoming dirty: order within `small` and `ages`.
    seq: u64,
    since: Time,
    /// The number of its last write: order within `recency`.
    touched: u64,
}

/// The dirty lists of a volume. A leaf: taken inside `pages` and `state` of an inode.
pub(crate) struct Lists<N> {
    files: HashMap<Ino, Entry<N>>,
    /// Small dirty files by (home, block count, seq).
    small: BTreeMap<(Ino, u64, u64), Ino>,
    ages: BTreeMap<(Time, u64), Ino>,
    recency: BTreeMap<u64, Ino>,
    /// Files that have [`STREAM_BYTES`] of dirty data.
    streams: BTreeSet<Ino>,
    /// Inodes whose attributes the format has not been told.
    unput: BTreeMap<Ino, Arc<Inode<N>>>,
    seq: u64,
}

impl<N> Lists<N> {
    pub(crate) fn new() -> Lists<N> {
        Lists {
            files: HashMap::new(),
            small: BTreeMap::new(),
            ages: BTreeMap::new(),
            recency: BTreeMap::new(),
            streams: BTreeSet::new(),
            unput: BTreeMap::new(),
            seq: 0,
        }
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Notes that a file was written to: it has dirty blocks, and `blocks` blocks in all.
    pub(crate) fn note_dirty(&mut self, inode: &Arc<Inode<N>>, home: Ino, blocks: u64, now: Time) {
        let seq = self.next_seq();
        if let Some(entry) = self.files.get_mut(&inode.ino) {
            self.recency.remove(&entry.touched);
            self.recency.insert(seq, inode.ino);
            entry.touched = seq;
            if (entry.home, entry.blocks) != (home, blocks) {
                self.relist(inode.ino, home, blocks);
            }
            return;
        }
        let entry = Entry { inode: Arc::clone(inode), home, blocks, seq, since: now, touched: seq };
        self.files.insert(inode.ino, entry);
        self.ages.insert((now, seq), inode.ino);
        self.recency.insert(seq, inode.ino);
        if blocks <= SMALL_BLOCKS_MAX {
            self.small.insert((home, blocks, seq), inode.ino);
        }
    }

    fn relist(&mut self, ino: Ino, home: Ino, blocks: u64) {
        let Some(entry) = self.files.get_mut(&ino) else { return };
        self.small.remove(&(entry.home, entry.blocks, entry.seq));
        (entry.home, entry.blocks) = (home, blocks);
        if blocks <= SMALL_BLOCKS_MAX {
            self.small.insert((home, blocks, entry.seq), ino);
        }
    }

    /// Moves a dirty file to another directory's list.
    pub(crate) fn rehome(&mut self, ino: Ino, home: Ino) {
        if let Some(blocks) = self.files.get(&ino).map(|entry| entry.blocks) {
            self.relist(ino, home, blocks);
        }
    }

    /// Notes that a file has much dirty data; true if it was not on that list.
    pub(crate) fn note_stream(&mut self, ino: Ino) -> bool {
        self.streams.insert(ino)
    }

    /// Takes the files with much dirty data off their list; they may be listed again later.
    pub(crate) fn take_streams(&mut self) -> Vec<Arc<Inode<N>>> {
        let streams = std::mem::take(&mut self.streams);
        streams.iter().filter_map(|ino| self.files.get(ino)).map(|entry| Arc::clone(&entry.inode)).collect()
    }

    /// Takes a file off the lists that has no dirty block any more, nor one in flight.
    pub(crate) fn note_clean(&mut self, ino: Ino) {
        let Some(entry) = self.files.remove(&ino) else { return };
        self.small.remove(&(entry.home, entry.blocks, entry.seq));
        self.ages.remove(&(entry.since, entry.seq));
        self.recency.remove(&entry.touched);
    }

    /// Counts a file as dirty since `when`, because its write failed and is to be tried again later.
    pub(crate) fn postpone(&mut self, ino: Ino, when: Time) {
        let seq = self.next_seq();
        let Some(entry) = self.files.get_mut(&ino) else { return };
        self.ages.remove(&(entry.since, entry.seq));
        self.recency.remove(&entry.touched);
        entry.since = when;
        entry.touched = seq;
        self.ages.insert((when, entry.seq), ino);
        self.recency.insert(seq, ino);
    }

    pub(crate) fn note_unput(&mut self, inode: &Arc<Inode<N>>) {
        self.unput.insert(inode.ino, Arc::clone(inode));
    }

    pub(crate) fn forget_unput(&mut self, ino: Ino) {
        self.unput.remove(&ino);
    }

    pub(crate) fn unput_inodes(&self) -> Vec<Arc<Inode<N>>> {
        self.unput.values().cloned().collect()
    }

    /// Returns the dirty files that became dirty at `until` or before, the oldest first.
    pub(crate) fn older_than(&self, until: Time) -> Vec<Arc<Inode<N>>> {
        let inos = self.ages.range(..=(until, u64::MAX)).map(|(_, ino)| ino);
        inos.filter_map(|ino| self.files.get(ino)).map(|entry| Arc::clone(&entry.inode)).collect()
    }

    /// Returns the time at which the oldest dirty block became dirty.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.ages.first_key_value().map(|((since, _), _)| *since)
    }

    /// Returns `count` dirty files at most, the one that was not written to for the longest time first.
    pub(crate) fn least_recent(&self, count: usize) -> Vec<Arc<Inode<N>>> {
        let inos = self.recency.values().filter_map(|ino| self.files.get(ino));
        inos.take(count).map(|entry| Arc::clone(&entry.inode)).collect()
    }

    /// Returns a dirty file, and the directory that leads to it.
    pub(crate) fn get(&self, ino: Ino) -> Option<(Arc<Inode<N>>, Ino)> {
        self.files.get(&ino).map(|entry| (Arc::clone(&entry.inode), entry.home))
    }

    /// Returns the dirty small files of a directory with exactly `blocks` blocks, in the order in which they became
    /// dirty.
    pub(crate) fn small_files(&self, home: Ino, blocks: u64) -> Vec<Ino> {
        self.small.range((home, blocks, 0)..=(home, blocks, u64::MAX)).map(|(_, ino)| *ino).collect()
    }

    /// Returns the block counts of a directory's dirty small files, ascending.
    pub(crate) fn small_counts(&self, home: Ino) -> Vec<u32> {
        let mut counts: Vec<u32> = Vec::new();
        let mut from = (home, 0, 0);
        while let Some(((_, blocks, _), _)) = self.small.range(from..=(home, u64::MAX, u64::MAX)).next() {
            counts.push(*blocks as u32);
            from = (home, blocks + 1, 0);
        }
        counts
    }
}
