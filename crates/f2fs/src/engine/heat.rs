//! Chooses the log that a file's data join.

use std::collections::VecDeque;

use moafs_runtime::leaf::Mutex;
use moafs_vfs::types::LbnRange;

use super::incore::Incore;
use crate::clean::order::Owner;
use crate::format::Log;
use crate::format::inode::Advise;
use crate::place::kind::{self, Traits};
use crate::place::wolf::Wolf;
use crate::place::{Heat, Temperature};

/// Blocks whose references are counted: 32 MiB of data at a time.
const COUNTED_BLOCKS: usize = 8192;
/// Blocks that are compared with each other: as many as a hot and a cold buffer of one segment hold
/// together.
const BUFFER_BLOCKS: usize = 1024;

/// The rule for the temperature of data.
pub(super) enum Judge {
    /// By the kind of the file and its marks.
    Kind,
    /// By the number of recent writes.
    Wolf(Box<Mutex<Buffer>>),
}

/// The blocks that were written last, and their reference counts.
pub(super) struct Buffer {
    wolf: Wolf,
    recent: VecDeque<Owner>,
}

impl Judge {
    pub(super) fn new(temperature: Temperature, seed: u64) -> Judge {
        match temperature {
            Temperature::Kind => Judge::Kind,
            Temperature::Wolf => {
                let buffer = Buffer { wolf: Wolf::new(COUNTED_BLOCKS, seed), recent: VecDeque::new() };
                Judge::Wolf(Box::new(Mutex::new(buffer)))
            }
        }
    }

    /// Returns the log for a range of a file that is about to be written.
    pub(super) fn log_of(&self, file: &Incore, range: LbnRange, now_ns: u64) -> Log {
        match self {
            Judge::Kind => {
                let advise = Advise::from_bits_retain(file.node.view_head(|bytes| bytes[2]));
                let mark = match () {
                    () if advise.contains(Advise::COLD) => Some(Heat::Cold),
                    () if advise.contains(Advise::HOT) => Some(Heat::Hot),
                    () => None,
                };
                kind::data_log(Traits { mark, ..Traits::default() })
            }
            Judge::Wolf(buffer) => buffer.lock().heat(file, range, now_ns).data_log(),
        }
    }

    /// Resets the counts: there was no request for a while.
    pub(super) fn idle(&self) {
        if let Judge::Wolf(buffer) = self {
            buffer.lock().wolf.idle();
        }
    }
}

impl Buffer {
    /// Returns the temperature of most of a range's blocks, compared with the blocks written with
    /// and before them.
    fn heat(&mut self, file: &Incore, range: LbnRange, now_ns: u64) -> Heat {
        let own = (range.start.0..range.end().0).map(|lbn| Owner { ino: file.ino, lbn });
        for owner in own {
            self.wolf.accessed(owner.ino, owner.lbn, now_ns);
            self.recent.push_back(owner);
        }
        let len = range.len as usize;
        while self.recent.len() > BUFFER_BLOCKS.max(len) {
            self.recent.pop_front();
        }
        let heats = self.wolf.split(self.recent.make_contiguous(), now_ns);
        let hot = heats.iter().rev().take(len).filter(|heat| **heat == Heat::Hot).count();
        if 2 * hot > len { Heat::Hot } else { Heat::Cold }
    }
}
