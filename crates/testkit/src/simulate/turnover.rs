//! Small files that a client makes, syncs and removes in turn: blocks whose contents were just promised are free a
//! moment later, and hold the next promise. Directories come and go between them, so the blocks change their kind.

use std::collections::VecDeque;

use moafs_vfs::types::FileKind;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::model::{Model, NodeId};
use crate::ops::{Bytes, Op};

/// The most files that are left at a time.
const KEPT_MAX: usize = 8;
/// The most blocks that one write covers.
const BLOCKS_MAX: u64 = 6;
/// The name of the directory that comes and goes.
const DIRECTORY: &[u8] = b"turned";

/// The source of such operations, all in the client's own directory.
pub struct Turnover {
    rng: Pcg64Mcg,
    block_size: u64,
    /// Files made so far.
    made: u64,
    /// Names of the files that are left, oldest first.
    kept: VecDeque<Bytes>,
    /// The name of the file that was written and is to be synced next.
    written: Option<Bytes>,
}

impl Turnover {
    /// Creates the source of `seed`; `cycle` tells its files from those of others.
    pub fn new(seed: u64, cycle: u32, block_size: u64) -> Turnover {
        let rng = Pcg64Mcg::seed_from_u64(seed ^ 0x7012);
        Turnover { rng, block_size, made: u64::from(cycle) << 32, kept: VecDeque::new(), written: None }
    }

    /// Returns the next operation. Other operations may have taken the files away meanwhile: then it is a wrong one.
    pub fn next(&mut self, model: &Model) -> Op {
        if let Some(node) = self.written.take().and_then(|name| file(model, &name)) {
            return Op::Fsync { node, data_only: self.rng.random_ratio(1, 3) };
        }
        if let Some(name) = self.kept.back().cloned()
            && let Some(node) = file(model, &name)
            && model.node(node).content.size() == 0
            && self.rng.random_ratio(7, 8)
        {
            return self.write(name, node, 0);
        }
        if self.kept.len() > KEPT_MAX {
            let name = self.kept.pop_front().expect("there are some");
            return Op::Unlink { dir: NodeId::ROOT, name };
        }
        match self.rng.random_range(0..8) {
            0 if model.node(NodeId::ROOT).entries.contains_key(DIRECTORY) => {
                Op::Rmdir { dir: NodeId::ROOT, name: Bytes(DIRECTORY.to_vec()) }
            }
            0 => self.create(FileKind::Directory, Bytes(DIRECTORY.to_vec())),
            1 | 2 if !self.kept.is_empty() => {
                let name = self.kept[self.rng.random_range(0..self.kept.len())].clone();
                let offset = self.rng.random_range(0..BLOCKS_MAX) * self.block_size;
                match file(model, &name) {
                    Some(node) => self.write(name, node, offset.min(model.node(node).content.size())),
                    None => self.create_file(),
                }
            }
            _ => self.create_file(),
        }
    }

    fn create_file(&mut self) -> Op {
        self.made += 1;
        let name = Bytes(format!("turn{:x}", self.made).into_bytes());
        self.kept.push_back(name.clone());
        self.create(FileKind::Regular, name)
    }

    fn create(&self, kind: FileKind, name: Bytes) -> Op {
        Op::Create { dir: NodeId::ROOT, name, kind, perm: 0o755, rdev: 0 }
    }

    fn write(&mut self, name: Bytes, node: NodeId, offset: u64) -> Op {
        self.written = Some(name);
        let len = self.rng.random_range(1..=BLOCKS_MAX * self.block_size) as usize;
        Op::Write { node, offset, len, append: false }
    }
}

/// Returns the regular file of this name in the client's directory.
fn file(model: &Model, name: &Bytes) -> Option<NodeId> {
    let node = *model.node(NodeId::ROOT).entries.get(&name.0)?;
    (model.node(node).kind == FileKind::Regular).then_some(node)
}
