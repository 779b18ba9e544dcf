//! `fsck.f2fs --dry-run` as a judge. With correct checkpoints an F2FS volume is whole at any moment, so every report is
//! a fault.
//!
//! Exit code 0 alone proves little: some defects are "fixed" (in memory, in a dry run) and do not change the exit code.
//! So every line with one of [`FAULTS`] counts as well. The tool does not check everything either: sizes, parents'
//! numbers and names in inodes, contents of attributes are left to the tests of the tree.

use std::collections::BTreeSet;
use std::path::Path;

use moafs_disk::mem::MemDisk;

use super::{Class, tools};
use crate::f2fs_disk::{Areas, BLOCK, Reader};
use crate::family;

/// Marks of lines that report a defect.
const FAULTS: [&str; 3] = ["[Fail]", "[ASSERT]", "[FIX]"];

/// Answers to the dry run's questions about lost files.
const NO_TO_ALL: &str = "n\nn\nn\nn\nn\nn\nn\nn\n";

/// The result of a run of fsck.f2fs.
#[derive(Debug, Clone)]
pub struct FsckVerdict {
    /// Exit code; `None` if it crashed or did not end.
    pub exit: Option<i32>,
    /// Lines that tell of defects.
    pub faults: Vec<String>,
    /// All of its output.
    pub text: String,
}

impl FsckVerdict {
    fn new(exit: Option<i32>, text: String) -> FsckVerdict {
        let is_fault = |line: &&str| FAULTS.iter().any(|fault| line.contains(fault));
        let faults = text.lines().filter(is_fault).map(|line| line.trim().to_owned()).collect();
        FsckVerdict { exit, faults, text }
    }

    /// Returns true if the tool gave up at the chain of fsynced nodes: it refused it, or did not come to an end.
    pub fn refuses_chain(&self) -> bool {
        self.exit.is_none() || self.text.contains(CHAIN_REFUSED)
    }

    /// Returns true if nothing is reported.
    pub fn spotless(&self) -> bool {
        self.exit == Some(0) && self.faults.is_empty()
    }
}

impl From<FsckVerdict> for super::Verdict {
    fn from(verdict: FsckVerdict) -> super::Verdict {
        let spotless = verdict.spotless();
        let exit = verdict.exit.map_or_else(|| "no exit code".to_owned(), |exit| format!("exit {exit}"));
        super::Verdict {
            class: if spotless { Class::Clean } else { Class::Fatal },
            spotless,
            text: format!("{exit}: {}\n{}", verdict.faults.join("; "), verdict.text),
        }
    }
}

/// Message of fsck.f2fs 1.15 when it refuses an fsync chain, without a look at the checkpoint.
const CHAIN_REFUSED: &str = "record_fsync_data failed";

/// Checks an image without changing it; `None` if the tool is not installed.
///
/// fsck.f2fs 1.15 takes the size of the main area for its end when it checks the addresses in an fsync chain (seen with
/// one address at every place of a volume: all of the last segments are refused, as many as there are in front of the
/// main area). A chain with such an address is cut off on a copy, and the checkpoint judged by itself; the chain is
/// then left to a mount by moafs, after which the tool checks again.
pub fn run(image: &Path) -> Option<FsckVerdict> {
    let verdict = run_once(image)?;
    if !verdict.text.contains(CHAIN_REFUSED) {
        return Some(verdict);
    }
    match without_far_chain(image) {
        Some(copy) => run_once(copy.path()),
        None => Some(verdict),
    }
}

/// Makes a copy without its fsync chain, if the chain has an address that the tool wrongly refuses.
fn without_far_chain(image: &Path) -> Option<tempfile::NamedTempFile> {
    let disk = MemDisk::read_from(image).ok()?;
    let read = Reader(&disk);
    let areas = Areas::of(&read);
    let refused = areas.checkpoint + areas.main_blocks..areas.main + areas.main_blocks;
    let chain = areas.chain(&read);
    let is_far = |block: &u64| (0..1018).any(|word| refused.contains(&read.number(block * BLOCK + word * 4, 4)));
    let first = chain.first().filter(|_| chain.iter().any(is_far))?;
    disk.poke(first * BLOCK, &[0; BLOCK as usize]);
    family::scratch_image(&disk).ok()
}

fn run_once(image: &Path) -> Option<FsckVerdict> {
    let image = image.to_str().expect("test paths are text");
    let ended = tools::run_answered("fsck.f2fs", &["--dry-run", image], NO_TO_ALL, &tools::scratch())?;
    Some(FsckVerdict::new(ended.exit, ended.text))
}

/// A name with the directories that lead to it, and the inode number it leads to.
pub type NamedInode = (Vec<String>, u64);

/// Returns all names on an image, as fsck.f2fs finds them; `None` if the tool is not installed.
pub fn names(image: &Path) -> Option<BTreeSet<NamedInode>> {
    let image = image.to_str().expect("test paths are text");
    let ended = tools::run_answered("fsck.f2fs", &["-t", "--dry-run", image], NO_TO_ALL, &tools::scratch())?;
    Some(names_in(&ended.text))
}

/// Parses the tree that `-t` draws: `|   |-- NAME <ino = 0x7>, <encrypted (0)>`.
fn names_in(text: &str) -> BTreeSet<NamedInode> {
    let mut names = BTreeSet::new();
    let mut path: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some((indent, rest)) = line.split_once("-- ") else { continue };
        let Some((name, number)) = rest.rsplit_once(" <ino = 0x") else { continue };
        let digits = number.split('>').next().unwrap_or_default();
        let Ok(ino) = u64::from_str_radix(digits, 16) else { continue };
        path.truncate(indent.len() / 4);
        path.push(name.to_owned());
        names.insert((path.clone(), ino));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_and_exit_0_are_spotless() {
        let clean = "[FSCK] Unreachable nat entries                        [Ok..] [0x0]\n[FSCK] fixing SIT types\n";
        assert!(FsckVerdict::new(Some(0), clean.to_owned()).spotless());
        for (exit, line) in [
            (Some(4), ""),
            (None, ""),
            (Some(0), "[FIX] (f2fs_check_hash_code:1465)  --> Mismatch hash_code for \"x\""),
            (Some(0), "[FSCK] next block offset is free                      [Fail]"),
            (Some(255), "[ASSERT] (fsck_chk_inode_blk:1005)  --> ino: 0x4 chksum:0x1, but calculated one is: 0x2"),
        ] {
            let verdict = FsckVerdict::new(exit, format!("{clean}{line}"));
            assert!(!verdict.spotless(), "{exit:?} {line}");
            assert_eq!(verdict.faults.len(), usize::from(!line.is_empty()));
        }
    }

    #[test]
    fn the_drawn_tree_becomes_paths() {
        let text = "|-- d <ino = 0x4>, <encrypted (0)>\n|   |-- a b <ino = 0x7>, <encrypted (0)>\n|-- l <ino = 0x1a>, <encrypted (0)>\n";
        let path = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let should = [(path(&["d"]), 4), (path(&["d", "a b"]), 7), (path(&["l"]), 26)];
        assert_eq!(names_in(text), BTreeSet::from(should));
    }
}
