//! Free blocks that directories keep for themselves: the next files of a directory go there, if no
//! other file took the blocks meanwhile.
//!
//! A directory whose files come a few at a time, by turns with files of other directories, would
//! otherwise lie in as many pieces as it was written in. So each time it needs a new run it also
//! keeps as many blocks behind that as it has placed so far (up to [`AHEAD_BYTES_MAX`]): files that
//! come in n turns lie in about log n pieces, and a directory whose files come at once keeps no
//! blocks.
//!
//! A window is a hint in memory: its blocks are free, and any writer that finds no others takes them.

use std::collections::BTreeMap;

use moafs_runtime::leaf::Mutex;
use moafs_vfs::types::{BlockRun, Ino};

/// The most that a directory keeps, in bytes.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// The most directories remembered; the least recently used one is forgotten.
const DIRECTORIES_MAX: usize = 4096;

/// The windows of a volume's directories.
#[derive(Debug, Default)]
pub struct Windows {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    windows: BTreeMap<Ino, Kept>,
    /// Directories by their last use.
    uses: BTreeMap<u64, Ino>,
    next_use: u64,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    window: Window,
    last_use: u64,
}

/// The window of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The blocks of the window that are not used yet.
    pub rest: Option<BlockRun>,
    /// Blocks placed for the directory since it is remembered.
    placed: u64,
}

impl Window {
    /// Returns the number of blocks that the directory keeps behind its next run.
    pub fn ahead(&self, block_bytes: u32) -> u32 {
        self.placed.min(AHEAD_BYTES_MAX / u64::from(block_bytes)) as u32
    }

    /// Changes the window: `blocks` more were placed for the directory, and `rest` is kept for the next files.
    pub fn change(&mut self, blocks: u32, rest: Option<BlockRun>) {
        self.placed += u64::from(blocks);
        self.rest = rest.filter(|rest| rest.len > 0);
    }
}

impl Windows {
    /// Returns the window of a directory.
    pub fn of(&self, directory: Ino) -> Window {
        self.state.lock().windows.get(&directory).map_or_else(Window::default, |kept| kept.window)
    }

    /// Notes that `blocks` more were placed for a directory, and that `rest` is kept for the next files.
    pub fn note(&self, directory: Ino, blocks: u32, rest: Option<BlockRun>) {
        let mut state = self.state.lock();
        let now = state.next_use;
        state.next_use += 1;
        let kept = state.windows.entry(directory).or_insert(Kept { window: Window::default(), last_use: now });
        let before = std::mem::replace(&mut kept.last_use, now);
        kept.window.change(blocks, rest);
        state.uses.remove(&before);
        state.uses.insert(now, directory);
        if state.windows.len() > DIRECTORIES_MAX
            && let Some((_, oldest)) = state.uses.pop_first()
        {
            state.windows.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use moafs_vfs::types::BlockAddr;

    use super::*;

    #[test]
    fn a_directory_keeps_as_much_as_it_has_placed() {
        let windows = Windows::default();
        let dir = Ino(12);
        let kept = || (windows.of(dir).ahead(4096), windows.of(dir).rest);
        assert_eq!(kept(), (0, None));
        let rest = BlockRun { start: BlockAddr(100), len: 3 };
        windows.note(dir, 5, Some(rest));
        assert_eq!(kept(), (5, Some(rest)));
        windows.note(dir, 5000, None);
        assert_eq!(kept(), (1024, None));
    }

    #[test]
    fn the_directory_that_waited_longest_is_forgotten() {
        let windows = Windows::default();
        for number in 0..DIRECTORIES_MAX as u64 {
            windows.note(Ino(number), 1, None);
        }
        windows.note(Ino(0), 1, None);
        windows.note(Ino(1 << 40), 1, None);
        assert_eq!(windows.of(Ino(0)).ahead(4096), 2);
        assert_eq!(windows.of(Ino(1)).ahead(4096), 0);
        assert_eq!(windows.state.lock().windows.len(), DIRECTORIES_MAX);
        assert_eq!(windows.state.lock().uses.len(), DIRECTORIES_MAX);
    }
}
